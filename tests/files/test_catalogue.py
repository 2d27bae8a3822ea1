"""The line of time of a workspace, which several processes move, and the tray it lies in."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from backtrail.errors import Closed, Damaged, StoreFailed
from backtrail.files.changes.brackets import NOBODY, Bracket, Transition
from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.changes.lines import Lines
from backtrail.files.changes.timeline import Line, LineTray
from backtrail.files.workspace.roots import Identity
from backtrail.stores.disk import database as sqlite_connections
from backtrail.stores.disk import resting, sync

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


def test_what_failed_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        first = begin(catalogue, place, ONE)
        fails = patch.object(Line, "changed", side_effect=OSError("in the middle"))
        with fails, pytest.raises(OSError, match="in the middle"):
            catalogue.end_bracket(place, first, TWO, told=False)
        spans, _ = catalogue.end_bracket(place, first, THREE, told=False)
        assert [(span.before, span.after) for span in spans] == [(ONE, THREE)]


def test_who_is_interrupted_after_a_record_finds_it(tmp_path: Path) -> None:
    """What is in the file counts, whatever this process was about to remember."""
    with opened(tmp_path) as (catalogue, place):
        first = begin(catalogue, place, ONE)
        real = LineTray._write

        def strikes(self: LineTray, body: bytes) -> int:
            real(self, body)
            raise KeyboardInterrupt

        with patch.object(LineTray, "_write", strikes), pytest.raises(KeyboardInterrupt):
            catalogue.record(place, TWO)
        second = begin(catalogue, place, TWO)
        spans, others = catalogue.end_bracket(place, first, THREE, told=True)
        assert [(span.before, span.after) for span in spans] == [(ONE, TWO), (TWO, THREE)]
        assert others == {second.id}
        assert second.id in {call.id for call in spans[-1].brackets}


def test_told_calls_are_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place), opened(tmp_path) as (other, _):
        for n in range(20):
            bracket = begin(catalogue, place, bytes([n]) * 32)
            catalogue.end_bracket(place, bracket, bytes([n + 1]) * 32, told=False)
            catalogue.tell_bracket(place, bracket)
            assert other.brackets(place) == []
        assert other.trees() == {bytes([20]) * 32, *rows(tmp_path)}


def test_a_told_call_that_cannot_be_forgotten_goes_with_the_next(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place), opened(tmp_path) as (other, _):
        bracket = begin(catalogue, place, ONE)
        catalogue.end_bracket(place, bracket, TWO, told=False)
        with patch.object(LineTray, "_write", side_effect=StoreFailed("broken")):
            catalogue.tell_bracket(place, bracket)
        assert catalogue.brackets(place) == []
        assert [call.ended for call in other.brackets(place)] == [True]
        catalogue.record(place, THREE)
        assert other.brackets(place) == []


# --- the tray ----------------------------------------------------------------------------


def rows(folder: Path) -> list[bytes]:
    """The trees that the database tells of; read by another process."""
    code = (
        "import sqlite3, sys\n"
        "rows = sqlite3.connect(sys.argv[1]).execute('SELECT tree FROM workspaces')\n"
        "print(*(tree.hex() for (tree,) in rows if tree))"
    )
    name = str(folder / "catalogue.db")
    done = subprocess.run([sys.executable, "-c", code, name], check=True, capture_output=True)
    return [bytes.fromhex(text) for text in done.stdout.decode().split()]


def test_a_call_writes_one_record(tmp_path: Path) -> None:
    """The database learns of it with the next transaction, and others know it before."""
    with opened(tmp_path) as (catalogue, place):
        begin(catalogue, place, ONE)
        assert rows(tmp_path) == []
        with opened(tmp_path) as (other, _):
            assert other.tree(place) == ONE
            other.place(Identity(4, 5, 6), b"/elsewhere")
        assert rows(tmp_path) == [ONE]
        assert catalogue.tree(place) == ONE
        assert len(catalogue.brackets(place)) == 1


def test_a_full_tray_is_emptied(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        tray = tmp_path / "catalogue.db-tray"
        begin(catalogue, place, ONE)
        length = tray.stat().st_size
        for n in range(400):
            catalogue.record(place, n.to_bytes(32))
        assert tray.stat().st_size == length
        assert catalogue.tree(place) == (399).to_bytes(32)
        assert rows(tmp_path) != []


def test_what_changed_in_a_long_call(tmp_path: Path) -> None:
    """However much that is: the rows take it when it is more than a record should hold."""
    with opened(tmp_path) as (catalogue, place):
        bracket = begin(catalogue, place, bytes(32))
        for n in range(1, 100):
            catalogue.record(place, n.to_bytes(32))
        spans, _ = catalogue.end_bracket(place, bracket, (99).to_bytes(32), told=True)
        assert [(int.from_bytes(s.before), int.from_bytes(s.after)) for s in spans] == [
            (n, n + 1) for n in range(99)
        ]
        begin(catalogue, place, ONE)
        catalogue.place(Identity(4, 5, 6), b"/elsewhere")
        assert catalogue.trees() == {ONE}


def test_a_call_that_says_much(tmp_path: Path) -> None:
    """More than fits into the tray goes to the rows."""
    with opened(tmp_path) as (catalogue, place):
        bracket = begin(catalogue, place, ONE)
        catalogue.end_bracket(place, bracket, TWO, told=False)
        catalogue.keep_bracket(place, bracket, {"much": "x" * 200_000}, NOBODY)
        assert catalogue.brackets(place)[0].files == {"much": "x" * 200_000}
        catalogue.record(place, THREE)
        assert [call.id for call in catalogue.brackets(place)] == [bracket.id]


def test_without_room_for_a_tray_the_rows_take_all(tmp_path: Path) -> None:
    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with opened(tmp_path) as (catalogue, place):
        with patch.object(os, "pwrite", full):
            bracket = begin(catalogue, place, ONE)
            spans, _ = catalogue.end_bracket(place, bracket, TWO, told=True)
        assert len(spans) == 1
        assert rows(tmp_path) == [TWO]


def test_a_damaged_tray_loses_what_is_damaged(tmp_path: Path) -> None:
    """A record that is whole counts; one that is not is as if it were not there."""
    with opened(tmp_path) as (catalogue, place):
        catalogue.record(place, ONE)
        catalogue.record(place, TWO)
    tray = tmp_path / "catalogue.db-tray"
    data = bytearray(tray.read_bytes())
    data[data.index(TWO)] ^= 1
    tray.write_bytes(data)
    with opened(tmp_path) as (catalogue, place):
        assert catalogue.tree(place) == ONE
        catalogue.record(place, THREE)
        assert catalogue.tree(place) == THREE
    tray.write_bytes(b"garbage" * 1000)
    with opened(tmp_path) as (catalogue, place):
        assert catalogue.tree(place) is None
        catalogue.record(place, ONE)
        assert catalogue.tree(place) == ONE


def test_a_workspace_that_was_given_up_stays_so(tmp_path: Path) -> None:
    """Its last record does not come back as a row."""
    with opened(tmp_path) as (catalogue, place):
        other = catalogue.place(Identity(4, 5, 6), b"/other")
        catalogue.record(other.n, TWO)
        catalogue.rebind(place, Identity(4, 5, 6), b"/other")
        catalogue.record(place, ONE)
        catalogue.place(Identity(7, 8, 9), b"/elsewhere")
        assert catalogue.trees() == {ONE}


def test_a_forked_child_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        bracket = begin(catalogue, place, ONE)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                catalogue.record(place, TWO)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        spans, _ = catalogue.end_bracket(place, bracket, THREE, told=True)
        assert [(span.before, span.after) for span in spans] == [(ONE, TWO), (TWO, THREE)]


def test_a_fork_waits_for_who_looks_at_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the lock then reads without waiting for the fork, which would wait for it."""
    monkeypatch.setattr(sqlite_connections, "PATIENCE", 2.0)
    entered = threading.Event()
    with opened(tmp_path) as (catalogue, place):
        real, database = LineTray.lines, catalogue._database

        def slowly(self: LineTray) -> dict[int, Line]:
            if threading.current_thread() is other:
                entered.set()
                while not database._pausing:
                    time.sleep(0.001)
            return real(self)

        monkeypatch.setattr(LineTray, "lines", slowly)
        other = threading.Thread(target=begin, args=(catalogue, place, ONE))
        other.start()
        assert entered.wait(10)
        child = os.fork()
        if child == 0:
            os._exit(len(resting._leaked))
        assert os.waitpid(child, 0)[1] == 0
        other.join()
        assert catalogue.tree(place) == ONE


# --- at bad moments ----------------------------------------------------------------------


def elsewhere(catalogue: Catalogue) -> None:
    """A transaction, which moves all that is in the tray to the rows."""
    catalogue.place(Identity(*os.urandom(3)), os.urandom(8))


def chain(spans: list[Transition]) -> list[tuple[bytes, bytes]]:
    return [(span.before, span.after) for span in spans]


def test_rows_that_are_not_up_to_date_hold_no_tree(tmp_path: Path) -> None:
    """Or what a purge is to erase would stay; where they cannot be written, better too many."""
    with opened(tmp_path) as (catalogue, place):
        catalogue.record(place, ONE)
        elsewhere(catalogue)
        catalogue.record(place, TWO)
        with patch.object(LineTray, "clear", side_effect=StoreFailed("read-only")):
            assert catalogue.trees() >= {TWO}
        assert catalogue.trees() == {TWO}


@pytest.mark.parametrize("long", [False, True])
def test_killed_before_the_tray_is_emptied(tmp_path: Path, long: bool) -> None:
    """Rows and tray tell of the same changes then; each counts once."""
    with opened(tmp_path) as (catalogue, place):
        bracket = begin(catalogue, place, ONE)
        catalogue.record(place, TWO)
        elsewhere(catalogue)
        for n in range(16):
            catalogue.record(place, n.to_bytes(32))
        child = os.fork()
        if child == 0:
            with patch.object(LineTray, "clear", lambda _: os._exit(9)):
                if long:
                    catalogue.record(place, ONE)
                elsewhere(catalogue)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        if long:
            elsewhere(catalogue)
        spans, _ = catalogue.end_bracket(place, bracket, THREE, told=True)
        trees = [ONE, TWO, *(n.to_bytes(32) for n in range(16)), THREE]
        assert chain(spans) == list(pairwise(trees))


def test_closed_by_another_thread_in_the_middle(tmp_path: Path) -> None:
    """It is told so, and what this process remembers is not taken for what is there."""
    with opened(tmp_path) as (other, _), opened(tmp_path) as (catalogue, place):
        catalogue.record(place, ONE)
        other.record(place, TWO)
        real = Lines.keep

        def keep(self: Lines, line: Line) -> None:
            closing = threading.Thread(target=self._tray.close)
            closing.start()
            closing.join()
            real(self, line)

        with patch.object(Lines, "keep", keep), pytest.raises(Closed):
            catalogue.record(place, THREE)
        with pytest.raises(Closed):
            elsewhere(catalogue)
        assert other.tree(place) == TWO


def test_who_is_interrupted_when_the_tray_was_emptied(tmp_path: Path) -> None:
    with opened(tmp_path) as (mine, place), opened(tmp_path) as (theirs, _):
        mine.record(place, ONE)
        bracket = begin(theirs, place, TWO)
        elsewhere(theirs)
        strikes = patch.object(LineTray, "_emptied", side_effect=KeyboardInterrupt)
        with strikes, pytest.raises(KeyboardInterrupt):
            mine.tree(place)
        mine.record(place, THREE)
        spans, _ = theirs.end_bracket(place, bracket, ONE, told=True)
        assert chain(spans) == [(TWO, THREE), (THREE, ONE)]


def test_a_look_while_another_empties_the_tray(tmp_path: Path) -> None:
    """What was there before the look began is seen."""
    with opened(tmp_path) as (mine, place), opened(tmp_path) as (theirs, _):
        mine.record(place, ONE)
        theirs.record(place, TWO)
        real = LineTray._read_header
        header = iter([True])

        def meanwhile(self: LineTray) -> int:
            found = real(self)
            if self is mine._lines._tray and next(header, False):
                elsewhere(theirs)
                theirs.open_bracket(place, "s", TWO, [b"x" * 4000], "edit", None)
            return found

        with patch.object(LineTray, "_read_header", meanwhile):
            assert mine.tree(place) == TWO


def test_a_workspace_that_is_gone_stands_nowhere(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place), opened(tmp_path) as (theirs, _):
        bracket = begin(catalogue, place, ONE)
        new = theirs.place(Identity(4, 5, 6), b"/new")
        theirs.rebind(new.n, Identity(4, 5, 6), b"/work")
        assert catalogue.tree(place) is None
        catalogue.tell_bracket(place, bracket)
        assert catalogue.brackets(place) == []


def test_a_record_of_somebody_else_is_told(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        catalogue.record(place, ONE)
        catalogue._lines._tray._write(b"\x93\x01\x02\x03")
        with pytest.raises(Damaged, match="none of ours"):
            catalogue.tree(place)


def test_a_tray_that_is_removed_is_told(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        catalogue.record(place, ONE)
        (tmp_path / "catalogue.db-tray").unlink()
        with pytest.raises(StoreFailed, match="removed"):
            catalogue.drop_journal(place)
        with pytest.raises(StoreFailed, match="removed"):
            catalogue.record(place, TWO)
        with suppress(StoreFailed):
            catalogue.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_root_leaves_the_tray_to_who_owns_the_database(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalogue, place):
        os.chown(tmp_path / "catalogue.db", 65534, 65534)
        catalogue.record(place, ONE)
        assert (tmp_path / "catalogue.db-tray").stat().st_uid == 65534


def test_a_journal_is_not_followed_by_an_old_record(tmp_path: Path) -> None:
    """After a power cut the tray is as it was emptied for the journal, if not newer."""
    with opened(tmp_path) as (catalogue, place):
        catalogue.record(place, ONE)
        synced: list[str] = []
        real = sync.data_sync

        def noted(fd: int) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
            real(fd)

        with patch.object(sync, "data_sync", noted):
            catalogue.drop_journal(place)
        assert synced == ["catalogue.db-wal", "catalogue.db-tray"]
