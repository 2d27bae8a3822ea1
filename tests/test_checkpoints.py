"""Deleting checkpoints: they are listed no more, and all else stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import AsyncSession, NotFound, Session
from backtrail.files import collect
from backtrail.files.depot import opened
from backtrail.stores import open_store

from .talking import kinds, talk, texts

BIG = b"the only copy of this " * 4000


def test_a_deleted_checkpoint_is_no_point_any_more(url: str) -> None:
    """Neither by object, label, id nor number; the newest of its label counts again."""
    with Session.create(url, "s") as s:
        talk(s, "one")
        old = s.checkpoint("mark")
        talk(s, "two")
        new = s.checkpoint("mark")
        other = s.checkpoint("other")
        before = list(s.events())
        assert s.delete_checkpoint("mark") == new
        assert s.checkpoints() == [old, other]
        note = next(s.events(after=new.seq, kinds=("checkpoint",)))
        for target in (new, new.id, note, note.seq):
            with pytest.raises(NotFound, match="deleted"):
                s.rewind(target)
            with pytest.raises(NotFound, match="deleted"):
                s.delete_checkpoint(target)
        assert list(s.events())[: len(before)] == before
        assert kinds(s)[-1] == "checkpoint_deleted"
        s.rewind("mark")
        assert texts(s) == ["one", "re: one"]
    with Session.resume(url, "s") as s:
        assert s.checkpoints() == [old, other]


def test_only_checkpoints_can_be_deleted(url: str) -> None:
    """Nothing is appended for what is none, or is another session's."""
    with Session.create(url, "s") as s, Session.create(url, "t") as t:
        events = talk(s, "one")
        point = t.checkpoint("theirs")
        head = s.info().head
        for target in (events[0], 1, "nothing", point):
            with pytest.raises(NotFound):
                s.delete_checkpoint(target)
        assert s.info().head == head


def test_undo_and_redo_do_not_notice(url: str) -> None:
    """A deletion is no operation, takes nothing back, and does not end redo."""
    with Session.create(url, "s") as s:
        talk(s, "one")
        s.checkpoint("mark")
        talk(s, "two")
        s.undo()
        s.delete_checkpoint("mark")
        assert texts(s) == ["one", "re: one"]
        s.redo()
        assert texts(s) == ["one", "re: one", "two", "re: two"]
        s.undo()
        s.undo()
        assert texts(s) == []


def test_a_checkpoint_can_be_made_again(url: str) -> None:
    """The same point, label and files as a deleted one are a new checkpoint."""
    with Session.create(url, "s") as s:
        talk(s, "one")
        first = s.checkpoint("mark")
        s.delete_checkpoint(first)
        again = s.checkpoint("mark")
        assert (again.seq, again.label) == (first.seq, "mark") and again.id != first.id
        assert s.checkpoints() == [again]


def test_a_fork_goes_its_own_way(url: str) -> None:
    """What one of the two deletes, the other still has."""
    with open_store(url) as store:
        s = Session.create(store, "s")
        talk(s, "one")
        kept, gone, late = (s.checkpoint(label) for label in ("kept", "gone", "late"))
        fork = s.fork(copy_checkpoints=True)
        s.delete_checkpoint(gone)
        fork.delete_checkpoint(kept)
        assert s.checkpoints() == [kept, late]
        assert [point.id for point in fork.checkpoints()] == [gone.id, late.id]
        talk(fork, "two")
        fork.rewind("gone")
        assert texts(fork) == ["one", "re: one"]
        assert store.checkpoint(gone.id).session_id == fork.id
        later = s.fork(copy_checkpoints=True)
        assert [point.id for point in later.checkpoints()] == [kept.id, late.id]


def holds(url: str, content: bytes) -> bool:
    """Whether the contents of a store still hold these bytes, looked at one by one."""
    with open_store(url) as store, opened(store) as depot:
        return any(depot.blobs.get(digest) == content for digest in depot.blobs.digests())


def test_its_contents_can_be_collected(disk_url: str, tmp_path: Path) -> None:
    """Those that nothing else keeps; the files of other points come back as they were."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "big").write_bytes(BIG)
    with Session.create(disk_url, "s", cwd=root) as s:
        s.checkpoint("big")
    (root / "big").write_bytes(b"small")
    with Session.create(disk_url, "t", cwd=root) as t:
        t.append({"role": "user", "content": "go"})
        t.checkpoint("small")
        with t.tool("bash"):
            (root / "big").write_bytes(b"changed")
    collect(disk_url, grace=0)
    assert holds(disk_url, BIG)
    with Session.resume(disk_url, "s") as s:
        s.delete_checkpoint("big")
    collect(disk_url, grace=0)
    assert not holds(disk_url, BIG)
    with Session.resume(disk_url, "t") as t:
        t.rewind("small")
    assert (root / "big").read_bytes() == b"small"
    with Session.resume(disk_url, "s") as s:
        s.append({"role": "user", "content": "go on"})
        s.checkpoint("again")
        assert s.problems == []


def test_what_another_event_names_stays(disk_url: str, tmp_path: Path) -> None:
    """A tree that the checkpoint shares with a prompt is needed by that."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "big").write_bytes(BIG)
    with Session.create(disk_url, "s", cwd=root) as s:
        prompt = s.append({"role": "user", "content": "go"})
        s.checkpoint("big")
        with s.tool("bash"):
            (root / "big").write_bytes(b"changed")
        s.delete_checkpoint("big")
        collect(disk_url, grace=0)
        s.rewind(prompt)
        assert (root / "big").read_bytes() == BIG


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_asynchronous_verb(anyio_backend: str) -> None:
    """The same, on a loop."""
    async with await AsyncSession.create("memory:", "s") as s:
        point = await s.checkpoint("mark")
        assert await s.delete_checkpoint(point) == point
        assert await s.checkpoints() == []
