"""A disk without room: people can still look, and nothing is run that could not be taken back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Session, StoreFailed
from backtrail.stores.sqlite import SQLiteStore

from ..cli.stage import Stage, work


def test_records_are_reported_where_they_cannot_be_stored(tmp_path: Path) -> None:
    """Counts are folded for the reader alone if the database takes nothing any more."""
    with SQLiteStore(tmp_path / "agent.db") as store, Session.create(store, "work") as session:
        session.append({"role": "user", "content": "hi"})
        with store._database.lock.held():
            store._database.writer().execute("PRAGMA query_only = 1").fetchall()
        assert [info.message_count for info in store.sessions()] == [1]
        assert store.info("work").message_count == 1


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Stage]:
    """A project with a session, whose store lies on a disk of its own."""
    stage = Stage(tmp_path)
    stage.project.mkdir()
    disk = tmp_path / "store"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    try:
        work(stage)
        yield stage
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(stage: Stage) -> None:
    """Leave no byte of the store's disk."""
    with (stage.folder / "store" / "fill").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            return


def test_a_full_disk_can_be_looked_at(small: Stage) -> None:
    """Verbs that only look work; what would change something says why not, and does not."""
    fill(small)
    for verb in ("ls", "show", "log", "tree", "stats", "verify"):
        reported = small.run(verb)
        assert reported.code == 0, (verb, reported.err)
    before = sorted(path.name for path in small.project.iterdir())
    for given in (["undo", "--yes"], ["record", "--", "touch", "new"], ["checkpoint", "x"]):
        reported = small.run(*given)
        assert (reported.code, "free some space" in reported.err) == (1, True), reported.err
    assert sorted(path.name for path in small.project.iterdir()) == before
    (small.folder / "store" / "fill").unlink()
    assert small.run("undo", "--yes").code == 0
    assert (small.project / ".env").read_text() == "TOKEN=only-copy\n"


def test_record_runs_nothing_that_it_cannot_take_back(tmp_path: Path) -> None:
    """Where contents may not be kept, the command is not run and no session is left."""
    stage = Stage(tmp_path)
    stage.project.mkdir()
    work(stage)
    precious = stage.project / "precious.txt"
    precious.write_text("the only copy")
    reported = stage.run("record", "--", "rm", "precious.txt", BACKTRAIL_BUDGET="1")
    assert (reported.code, "was not run" in reported.err) == (1, True), reported.err
    assert precious.read_text() == "the only copy"
    assert [row["id"] for row in stage.run("ls", "--json").json["sessions"]] == ["work"]
    assert stage.run("record", "--", "rm", "precious.txt").code == 0
    assert not precious.exists()
    assert stage.run("undo", "--yes").code == 0
    assert precious.read_text() == "the only copy"


def test_a_read_only_project_is_left_alone(tmp_path: Path) -> None:
    """A rewind says so at once, and it is not finished behind one's back."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("one")
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    with Session.create(f"sqlite:///{tmp_path}/store.db", "s", cwd=project) as s:
        s.append({"role": "user", "content": "go"})
        with s.tool("bash"):
            (project / "a").write_text("two")
        bound = subprocess.run(["mount", "--bind", project, project], capture_output=True)
        if bound.returncode:
            pytest.skip(f"cannot mount: {bound.stderr.decode().strip()}")
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", project], check=True)
            with pytest.raises(StoreFailed, match="read-only"):
                s.undo()
        finally:
            subprocess.run(["umount", project], check=True)
        assert s.changes()[-1].seq
        assert (project / "a").read_text() == "two"
        s.undo()
        assert (project / "a").read_text() == "one"
