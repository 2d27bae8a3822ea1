"""A store is named by an id in it: it may be moved, and another may come to its place."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import apsw
import pytest

from backtrail import NewEvent, Session, SessionInfo
from backtrail import files as tracked
from backtrail.files.contents.blobs import Reference
from backtrail.files.depot import opened
from backtrail.files.restore.journal import Journal, record
from backtrail.files.restore.plan import Plan
from backtrail.files.trees import EMPTY_DIGEST
from backtrail.stores import Buffered, Redacting, open_store
from backtrail.stores.wrapper import store_name, store_names

URLS = {"sqlite": "sqlite:///{}/s.db", "file": "file:{}/s"}


@pytest.fixture(params=sorted(URLS))
def url(request: pytest.FixtureRequest) -> str:
    return URLS[request.param]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "a.txt").write_text("first\n")
    return place


def moved(source: Path, target: Path) -> None:
    """Move all that a store has, but not what is shared."""
    target.mkdir()
    for part in sorted(source.iterdir()):
        shutil.move(part, target / part.name)


def test_a_moved_store_keeps_its_contents(url: str, project: Path, tmp_path: Path) -> None:
    """Also if a new one at its old path collects, in a place that both share."""
    shared = str(tmp_path / "shared")
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    with (
        open_store(url.format(old), blobs=shared) as store,
        Session.create(store, "work", cwd=project) as s,
    ):
        s.append({"role": "user", "content": "go"})
        with s.tool("bash"):
            (project / "a.txt").write_text("second\n")
    moved(old, new)
    with open_store(url.format(old), blobs=shared) as store:
        with Session.create(store, "other", cwd=tmp_path / "new") as s:
            s.append({"role": "user", "content": "hi"})
        assert tracked.collect(store, grace=0).sessions == ()
    with open_store(url.format(new), blobs=shared) as store:
        assert tracked.verify(store) == []
        with Session.resume(store, "work") as s:
            assert s.undo().files_changed == ["a.txt"]
        assert (project / "a.txt").read_text() == "first\n"
        # And it still gives back what its own deleted sessions relied on.
        store.delete("work")
        assert tracked.collect(store, grace=0).sessions == ("work",)


def test_a_journal_is_recorded_in_its_own_store(url: str, tmp_path: Path) -> None:
    """Not to another one at that path, with a session of the same id; none is made there."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    address = url.format(old)
    with open_store(address) as store:
        store.create(SessionInfo("s"))
        events = [NewEvent("rewound", {"to": 0}, id="r1")]
        journal = Journal("j", Plan(EMPTY_DIGEST), EMPTY_DIGEST, store.url, "", "s", events,
                          store_id=store.id)  # fmt: skip
        assert journal.log == (store_name(store), "s")
    moved(old, new)
    assert record(journal, EMPTY_DIGEST, None) is False
    assert list(old.iterdir()) == []
    with open_store(address) as other:
        other.create(SessionInfo("s"))
        assert record(journal, EMPTY_DIGEST, other) is False
        assert list(other.read("s")) == []
    with open_store(url.format(new)) as store:
        assert record(journal, EMPTY_DIGEST, store) is True
        assert [event.id for event in store.read("s")] == ["r1"]


def test_the_id_is_random_and_stays(url: str, tmp_path: Path) -> None:
    """The same for each scope and behind every wrapper, another for each store."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with open_store(url.format(tmp_path / "a")) as store:
        id = store.id
        assert len(id) == 32 and store.former_name == ""
        assert store_names(store) == (id,)
        assert Redacting(store).id == id and Buffered(store).id == id
    with open_store(url.format(tmp_path / "a"), scope="x") as store:
        assert store.id == id and store_name(store) == f"{id}#x"
    with open_store(url.format(tmp_path / "b")) as store:
        assert store.id != id
    with open_store("memory:") as one, open_store("memory:") as other:
        assert one.id and one.id != other.id


def without_id(folder: Path, url: str) -> None:
    """A store as an earlier version left it."""
    if url.startswith("file"):
        (folder / "s" / ".backtrail-store").write_bytes(b"")
        return
    connection = apsw.Connection(str(folder / "s.db"))
    connection.execute(
        "ALTER TABLE shares DROP COLUMN seal; DROP TABLE identity; PRAGMA user_version = 3"
    )
    connection.close()


def test_what_named_a_store_by_its_url_still_holds(url: str, project: Path, tmp_path: Path) -> None:
    """References of an earlier version: kept as long as their session is there, then given up."""
    place = tmp_path / "place"
    place.mkdir()
    address = url.format(place)
    with open_store(address) as store:
        with Session.create(store, "work", cwd=project) as s:
            s.append({"role": "user", "content": "go"})
            with s.tool("bash"):
                (project / "a.txt").write_text("second\n")
        name = store_name(store)
        with opened(store) as depot:
            known = [r for r in depot.blobs.references() if r.store == name]
            depot.blobs.write([], [Reference(store.url, r.log, r.root) for r in known])
            for reference in known:
                depot.blobs.drop_references(name, reference.log, [reference.root])
    without_id(place, url)
    with open_store(address) as store:
        assert store.former_name == store.url and store.id
        assert tracked.collect(store, grace=0).blobs == 0
        with Session.resume(store, "work") as s:
            fork = s.fork(session_id="fork")
            fork.close()
            assert s.undo().files_changed == ["a.txt"]
        store.delete("work")
        tracked.collect(store, grace=0)
        assert tracked.verify(store) == []
        store.delete("fork")
        tracked.collect(store, grace=0)
        with opened(store) as depot:
            logs = {r.log for r in depot.blobs.references() if r.store in store_names(store)}
        assert logs <= {"hooks-baseline"}


def test_one_that_cannot_be_written_has_none_yet(url: str, tmp_path: Path) -> None:
    """Its URL names it, as before; it can be read."""
    place = tmp_path / "place"
    place.mkdir()
    with open_store(url.format(place)) as store:
        store.create(SessionInfo("s"))
    without_id(place, url)
    if url.startswith("sqlite"):
        for end in ("-wal", "-shm"):
            (place / f"s.db{end}").unlink(missing_ok=True)
    paths = [place, *place.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(0o500 if stat.S_ISDIR(modes[path]) else 0o400)
    try:
        with open_store(url.format(place), create=False) as store:
            assert [info.id for info in store.sessions()] == ["s"]
            assert store_name(store)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
