"""The line of time of a workspace: what one connection remembers, another may have moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from backtrail.files.brackets import Bracket
from backtrail.files.catalogue import Catalogue
from backtrail.files.roots import Identity
from backtrail.files.timeline import Line
from backtrail.stores.sqlite_transactions import Writing

ONE, TWO, THREE = (bytes([n]) * 32 for n in (1, 2, 3))


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Catalogue, int]]:
    catalogue = Catalogue(folder / "catalogue.db")
    try:
        yield catalogue, catalogue.place(Identity(1, 2, 3), b"/work").n
    finally:
        catalogue.close()


def begin(catalogue: Catalogue, place: int, tree: bytes) -> Bracket:
    return catalogue.open_bracket(place, "s", tree, None, "bash", None)[0]


def test_what_others_record_meanwhile_is_seen(tmp_path: Path) -> None:
    with opened(tmp_path) as (mine, place), opened(tmp_path) as (theirs, _):
        bracket = begin(mine, place, ONE)
        theirs.record(place, TWO)
        spans, others = mine.end_bracket(place, bracket, THREE, told=True)
        assert [(span.before, span.after) for span in spans] == [(ONE, TWO), (TWO, THREE)]
        assert others == set()


def test_calls_of_others_are_seen(tmp_path: Path) -> None:
    with opened(tmp_path) as (mine, place), opened(tmp_path) as (theirs, _):
        first = begin(mine, place, ONE)
        second = begin(theirs, place, ONE)
        spans, others = mine.end_bracket(place, first, TWO, told=True)
        assert {call.id for call in spans[0].brackets} == {first.id, second.id}
        assert others == {second.id}
        theirs.end_bracket(place, second, TWO, told=True)
        third = begin(mine, place, TWO)
        assert mine.end_bracket(place, third, TWO, told=True) == ([], set())
        assert mine.brackets(place) == []


def test_what_was_rolled_back_is_not_remembered(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        first = begin(catalogue, place, ONE)
        real = Line.changed

        def fail(self: Line, *args: object) -> Line:
            real(self, *args)  # type: ignore[arg-type]
            raise OSError("in the middle")

        with patch.object(Line, "changed", fail), pytest.raises(OSError, match="in the middle"):
            catalogue.end_bracket(place, first, TWO, told=False)
        spans, _ = catalogue.end_bracket(place, first, THREE, told=False)
        assert [(span.before, span.after) for span in spans] == [(ONE, THREE)]


def test_who_is_interrupted_after_a_commit_leaves_nothing_to_be_believed(tmp_path: Path) -> None:
    """The next transaction, which says nothing of a line, must not take over what it left."""
    with opened(tmp_path) as (catalogue, place):
        first = begin(catalogue, place, ONE)
        strikes = patch.object(Writing, "_remember", side_effect=KeyboardInterrupt)
        with strikes, pytest.raises(KeyboardInterrupt):
            catalogue.record(place, TWO)
        second = catalogue.go_on(place, first)
        spans, others = catalogue.end_bracket(place, first, THREE, told=True)
        assert others == {second.id}
        assert second.id in {call.id for call in spans[-1].brackets}


def test_told_calls_go_with_the_next_one(tmp_path: Path) -> None:
    """Killed at any moment, one at the most is left that is told already."""
    with opened(tmp_path) as (catalogue, place), opened(tmp_path) as (other, _):
        for n in range(20):
            bracket = begin(catalogue, place, bytes([n]) * 32)
            catalogue.end_bracket(place, bracket, bytes([n + 1]) * 32, told=False)
            catalogue.tell_bracket(place, bracket)
            assert len(other.brackets(place)) <= 1
        assert len(catalogue.trees()) == 1
        assert other.brackets(place) == []
