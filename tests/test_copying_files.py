"""Copying sessions with the contents of their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from backtrail import Event, NewEvent, Session, SessionInfo, Store, copy_sessions, open_store, purge
from backtrail.events import MAIN_LOG
from backtrail.files import collect, verify
from backtrail.files.contents.collect import trees_of
from backtrail.files.depot import opened
from backtrail.stores import KnownIds
from backtrail.stores.memory import MemoryStore
from backtrail.stores.wrapper import Wrapper, store_name

from .talking import user


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a file to lose."""
    root = tmp_path / "project"
    (root / "d").mkdir(parents=True)
    (root / "d/f").write_text("precious")
    return root


def work(store: Store, root: Path) -> None:
    """A session with a labelled point and a change, and a fork of it with another."""
    with Session.create(store, "s", cwd=root) as s:
        s.append(user("one"))
        s.checkpoint("label")
        with s.tool("sh", {}):
            (root / "d/f").write_text("2")
        s.append(user("two"))
        with s.fork(session_id="f") as fork, fork.tool("sh", {}):
            (root / "d/f").write_text("3")


def move_on(store: Store, root: Path) -> None:
    """The workspace goes on, and relies on nothing that was before."""
    (root / "d/f").write_text("today")
    with Session.create(store, cwd=root) as other:
        other.append(user("go on"))


def go_back(store: Store, root: Path, id: str) -> str:
    """What a session finds at its label."""
    with Session.resume(store, id, cwd=root) as s:
        s.rewind("label", mode="exact")
    return (root / "d/f").read_text()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "urls", [("file:{}/a", "sqlite:///{}/b.db"), ("sqlite:///{}/a.db", "file:{}/b")]
)
def test_a_copy_keeps_its_contents(
    tmp_path: Path, project: Path, urls: tuple[str, str], shared: bool
) -> None:
    """Also when the source is gone and collected, and also those of a fork."""
    blobs = str(tmp_path / "blobs") if shared else None
    first, second = (url.format(tmp_path) for url in urls)
    with open_store(first, blobs=blobs) as src, open_store(second, blobs=blobs) as dst:
        work(src, project)
        done = copy_sessions(src, dst)
        assert done.missing == 0
        assert (done.contents == 0) is shared
        again = copy_sessions(src, dst)
        assert (again.events, again.contents, again.missing) == (0, 0, 0)
        for id in ("s", "f"):
            src.delete(id)
        move_on(dst, project)
        collect(src, grace=0)
        collect(dst, grace=0)
        assert verify(dst) == []
        assert go_back(dst, project, "s") == "precious"
        dst.delete("s")
        move_on(dst, project)
        collect(dst, grace=0)
        assert go_back(dst, project, "f") == "precious"


class Checking(Wrapper):
    """A store that refuses events whose contents are not there yet."""

    fails = 0

    def append(
        self, session_id: str, events: Sequence[NewEvent], *, log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:  # fmt: skip
        named = {tree for event in events for tree in trees_of(event)}
        if named:
            self.check(session_id, named)
        if self.fails:
            self.fails -= 1
            raise KeyboardInterrupt
        return super().append(session_id, events, log=log, expected=expected, known=known)

    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        if base is not None:
            shared = self.read(base[0], until=base[1])
            self.check(info.id, {tree for event in shared for tree in trees_of(event)})
        super().create(info, base=base)

    def check(self, session_id: str, trees: set[bytes]) -> None:
        """All trees are stored, and the session relies on them."""
        with opened(self) as depot:
            assert depot.blobs.has(trees) == trees
            name = store_name(self)
            relied = {r.root for r in depot.blobs.references() if r[:2] == (name, session_id)}
        assert trees <= relied


def test_contents_come_before_events(tmp_path: Path, project: Path) -> None:
    """So a copy may be cut short at any point, even by a collection, and be repeated."""
    with (
        open_store(f"sqlite:///{tmp_path}/a.db") as src,
        Checking(open_store(f"sqlite:///{tmp_path}/b.db")) as dst,
    ):
        work(src, project)
        dst.fails = 2
        for _ in range(dst.fails):
            with pytest.raises(KeyboardInterrupt):
                copy_sessions(src, dst)
            collect(dst, grace=0)
        assert copy_sessions(src, dst).events == 7
        assert go_back(dst, project, "f") == "precious"


def test_contents_that_go_while_they_are_copied(tmp_path: Path, project: Path) -> None:
    """A collection in the middle takes nothing from what is copied after it."""

    class Swept(Checking):
        def append(
            self, session_id: str, events: Sequence[NewEvent], *, log: str = MAIN_LOG,
            expected: int | None = None,
            known: KnownIds = "follow",
        ) -> list[Event]:  # fmt: skip
            stored = super().append(session_id, events, log=log, expected=expected, known=known)
            if session_id == "s":
                # The parent is gone at once, and what it brought with it.
                self.delete("s")
                collect(self, grace=0)
            return stored

    with (
        open_store(f"file:{tmp_path}/a") as src,
        Swept(open_store(f"sqlite:///{tmp_path}/b.db")) as dst,
    ):
        work(src, project)
        copy_sessions(src, dst)
        assert verify(dst) == []
        assert go_back(dst, project, "f") == "precious"


def test_what_cannot_be_had_is_counted(tmp_path: Path, project: Path) -> None:
    """In the outcome, and by `verify` where a store has no contents at all."""
    with open_store(f"file:{tmp_path}/a") as src, open_store(f"file:{tmp_path}/b") as dst:
        work(src, project)
        src.contents = None
        assert copy_sessions(src, dst).missing == 3
        assert [(p.session_id, p.what, p.count) for p in verify(src)] == [
            ("f", "missing contents", 3),
            ("s", "missing contents", 2),
        ]
        with MemoryStore() as memory:
            assert copy_sessions(dst, memory).missing == 3


def test_one_lost_content_is_reported(tmp_path: Path, project: Path) -> None:
    """The rest is copied; `verify` of the copy reports it."""
    with open_store(f"file:{tmp_path}/a") as src, open_store(f"file:{tmp_path}/b") as dst:
        work(src, project)
        with opened(src) as depot:
            from backtrail.files.trees import digest_of

            depot.blobs.remove([digest_of(b"precious")])
        assert copy_sessions(src, dst).missing == 1
        assert {p.what for p in verify(dst)} == {"missing content"}


def test_what_was_erased_stays_erased(tmp_path: Path, project: Path) -> None:
    """On purpose, there or here: it is no loss, and it does not come back."""
    with open_store(f"file:{tmp_path}/a") as src, open_store(f"file:{tmp_path}/b") as dst:
        work(src, project)
        copy_sessions(src, dst, ids=["s"])
        purge(dst, path="d/f")
        done = copy_sessions(src, dst)
        with opened(dst) as depot:
            contents = [depot.blobs.get(digest) for digest in depot.blobs.digests()]
        assert b"precious" not in contents
        assert (done.missing, verify(dst)) == (0, [])
