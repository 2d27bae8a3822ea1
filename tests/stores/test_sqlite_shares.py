"""Parts of forks in SQLite: one that changed behind the store's back is damage, and reported."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from backtrail import Damaged
from backtrail.events import Event, SessionInfo
from backtrail.testing.store.base import child, joined

from .database import opened, raw, said

COLUMNS = "log, position, source, until, seal"


def change(place: Path, statements: str) -> None:
    """Let another process change the database."""

    def run() -> None:
        with raw(place) as connection:
            connection.execute(statements)

    assert joined([child(run)]) == [0]


def shares(place: Path) -> list[Any]:
    with raw(place) as connection:
        return connection.execute(f"SELECT {COLUMNS} FROM shares ORDER BY 1, 2").fetchall()


def sum_of(row: tuple[Any, ...]) -> int:
    """The check sum of a part, by the words of docs/format.md."""
    return zlib.crc32("".join(f"{number}\n" for number in row).encode())


def forked(place: Path) -> dict[str, list[Event]]:
    """Two sessions, a fork of the first, and a fork of that fork, as they were written."""
    written: dict[str, list[Event]] = {}
    with opened(place) as store:
        for id, base in (("a", None), ("b", None), ("f", ("a", 3)), ("g", ("f", 5))):
            store.create(SessionInfo(id=id), base=base)
            past = [] if base is None else written[base[0]][: base[1]]
            words = [said(f"word {id}{n}") for n in range(6)]
            written[id] = past + store.append(id, words)
        # The end that `verify` knows of each log.
        store.sessions()
    return written


def right(place: Path, ids: str, written: dict[str, list[Event]]) -> None:
    """These sessions can be read, and go on."""
    with opened(place) as store:
        for id in ids:
            assert list(store.read(id)) == written[id]
            written[id] += store.append(id, [said("more")])
            assert list(store.read(id)) == written[id]


def test_every_part_has_the_sum_that_the_format_says(tmp_path: Path) -> None:
    """Those of a fork of a fork as well."""
    forked(tmp_path)
    rows = shares(tmp_path)
    assert len(rows) == 3
    assert [row[4] for row in rows] == [sum_of(row[:4]) for row in rows]


OTHER = "(SELECT l.n FROM logs l JOIN sessions s ON s.n = l.session WHERE s.id = 'b')"
LAST = "log = (SELECT max(log) FROM shares)"
CHANGES = {
    "first source": f"source = {OTHER} WHERE {LAST} AND position = 0",
    "last source": f"source = {OTHER} WHERE {LAST} AND position = 1",
    "until": f"until = until - 1 WHERE {LAST} AND position = 0",
    "sum": f"seal = seal + 1 WHERE {LAST} AND position = 1",
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=list(CHANGES))
def test_a_changed_part_is_never_read_as_the_past_of_a_fork(tmp_path: Path, changed: str) -> None:
    """The fork is damaged, its own end apart; the others are whole, and `verify` names the one."""
    written = forked(tmp_path)
    change(tmp_path, f"UPDATE shares SET {changed}")
    with opened(tmp_path) as store:
        assert {problem.session_id for problem in store.verify()} == {"g"}
        with pytest.raises(Damaged):
            list(store.read("g"))
        with pytest.raises(Damaged):
            store.find("g", written["g"][0].id)
        with pytest.raises(Damaged):
            store.create(SessionInfo(id="h"), base=("g", 4))
        assert store.tail("g", 2) == written["g"][-2:]
        for hit in store.search("word", limit=100):
            assert hit.event in written[hit.session_id]
    right(tmp_path, "abf", written)


def test_parts_of_an_earlier_version_are_read_and_sealed(tmp_path: Path) -> None:
    """They are unchecked until then; new forks are checked from the start."""
    written = forked(tmp_path)
    change(tmp_path, "ALTER TABLE shares DROP COLUMN seal; PRAGMA user_version = 4")
    right(tmp_path, "abfg", written)
    assert [row[4] for row in shares(tmp_path)] == [None] * 3
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="new"), base=("g", 2))
        assert list(store.read("new")) == written["g"][:2]
        assert store.verify() == []
        assert store.seal() == store.seal(dry_run=True) == 0
        assert store.verify() == []
    rows = shares(tmp_path)
    assert len(rows) == 4
    assert [row[4] for row in rows] == [sum_of(row[:4]) for row in rows]
    right(tmp_path, "abfg", written)
    change(tmp_path, f"UPDATE shares SET source = {OTHER} WHERE log = 3")
    with opened(tmp_path) as store:
        assert {problem.session_id for problem in store.verify()} == {"f"}
