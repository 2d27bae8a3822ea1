"""The line of time of a workspace, which several processes move."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from backtrail.errors import StoreFailed
from backtrail.files.changes import timeline
from backtrail.files.changes.brackets import NOBODY, Bracket, Transition
from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.changes.timeline import Line
from backtrail.files.workspace.roots import Identity

ONE, TWO, THREE = (bytes([n]) * 32 for n in (1, 2, 3))


@contextmanager
def opened(folder: Path) -> Iterator[tuple[Catalogue, int]]:
    catalogue = Catalogue(folder / "catalogue.db")
    try:
        yield catalogue, catalogue.place(Identity(1, 2, 3), b"/work").n
    finally:
        catalogue.close()


def begin(catalogue: Catalogue, place: int, tree: bytes) -> Bracket:
    return catalogue.lines.open_bracket(place, "s", tree, None, "bash", None)[0]


def recorded(
    catalogue: Catalogue, place: int, bracket: Bracket, tree: bytes
) -> tuple[list[Transition], set[str]]:
    """End a call, and record it."""
    found = catalogue.lines.end_bracket(place, bracket, tree)
    catalogue.lines.close_bracket(place, bracket)
    return found


def test_what_others_record_meanwhile_is_seen(tmp_path: Path) -> None:
    with opened(tmp_path) as (mine, place), opened(tmp_path) as (theirs, _):
        bracket = begin(mine, place, ONE)
        theirs.lines.record(place, TWO)
        spans, others = recorded(mine, place, bracket, THREE)
        assert [(span.before, span.after) for span in spans] == [(ONE, TWO), (TWO, THREE)]
        assert others == set()


def test_calls_of_others_are_seen(tmp_path: Path) -> None:
    with opened(tmp_path) as (mine, place), opened(tmp_path) as (theirs, _):
        first = begin(mine, place, ONE)
        second = begin(theirs, place, ONE)
        spans, others = recorded(mine, place, first, TWO)
        assert {call.id for call in spans[0].brackets} == {first.id, second.id}
        assert others == {second.id}
        recorded(theirs, place, second, TWO)
        third = begin(mine, place, TWO)
        assert recorded(mine, place, third, TWO) == ([], set())
        assert mine.lines.brackets(place) == []


def test_what_failed_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        first = begin(catalogue, place, ONE)
        fails = patch.object(Line, "changed", side_effect=OSError("in the middle"))
        with fails, pytest.raises(OSError, match="in the middle"):
            catalogue.lines.end_bracket(place, first, TWO)
        spans, _ = catalogue.lines.end_bracket(place, first, THREE)
        assert [(span.before, span.after) for span in spans] == [(ONE, THREE)]


def test_recorded_calls_are_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place), opened(tmp_path) as (other, _):
        for n in range(20):
            bracket = begin(catalogue, place, bytes([n]) * 32)
            catalogue.lines.end_bracket(place, bracket, bytes([n + 1]) * 32)
            catalogue.lines.settle_bracket(place, bracket)
            assert other.lines.brackets(place) == []
        assert other.lines.trees() == {bytes([20]) * 32}


def test_a_recorded_call_that_cannot_be_forgotten_goes_with_the_next(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place), opened(tmp_path) as (other, _):
        bracket = begin(catalogue, place, ONE)
        catalogue.lines.end_bracket(place, bracket, TWO)
        with patch.object(timeline, "store", side_effect=StoreFailed("broken")):
            catalogue.lines.settle_bracket(place, bracket)
        assert catalogue.lines.brackets(place) == []
        assert [call.ended for call in other.lines.brackets(place)] == [True]
        catalogue.lines.record(place, THREE)
        assert other.lines.brackets(place) == []


def test_what_changed_in_a_long_call(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        bracket = begin(catalogue, place, bytes(32))
        for n in range(1, 100):
            catalogue.lines.record(place, n.to_bytes(32))
        spans, _ = recorded(catalogue, place, bracket, (99).to_bytes(32))
        assert [(int.from_bytes(s.before), int.from_bytes(s.after)) for s in spans] == [
            (n, n + 1) for n in range(99)
        ]
        begin(catalogue, place, ONE)
        catalogue.place(Identity(4, 5, 6), b"/elsewhere")
        assert catalogue.lines.trees() == {ONE}


def test_a_call_that_says_much(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        bracket = begin(catalogue, place, ONE)
        catalogue.lines.end_bracket(place, bracket, TWO)
        catalogue.lines.keep_bracket(place, bracket, {"much": "x" * 200_000}, NOBODY)
        assert catalogue.lines.brackets(place)[0].files == {"much": "x" * 200_000}
        catalogue.lines.record(place, THREE)
        assert [call.id for call in catalogue.lines.brackets(place)] == [bracket.id]


def test_a_workspace_that_was_given_up_stays_so(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        other = catalogue.place(Identity(4, 5, 6), b"/other")
        catalogue.lines.record(other.n, TWO)
        catalogue.rebind(place, Identity(4, 5, 6), b"/other")
        catalogue.lines.record(place, ONE)
        catalogue.place(Identity(7, 8, 9), b"/elsewhere")
        assert catalogue.lines.trees() == {ONE}


def test_a_forked_child_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        bracket = begin(catalogue, place, ONE)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                catalogue.lines.record(place, TWO)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        spans, _ = recorded(catalogue, place, bracket, THREE)
        assert [(span.before, span.after) for span in spans] == [(ONE, TWO), (TWO, THREE)]


def test_a_workspace_that_is_gone_stands_nowhere(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place), opened(tmp_path) as (theirs, _):
        bracket = begin(catalogue, place, ONE)
        new = theirs.place(Identity(4, 5, 6), b"/new")
        theirs.rebind(new.n, Identity(4, 5, 6), b"/work")
        assert catalogue.lines.tree(place) is None
        catalogue.lines.settle_bracket(place, bracket)
        assert catalogue.lines.brackets(place) == []
