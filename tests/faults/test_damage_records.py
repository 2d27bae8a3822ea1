"""Damaged or hostile records, folders and links cost one session at most."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults.raw import main_log

from backtrail.errors import BacktrailError, NotFound, Unsafe, Unsupported
from backtrail.events import NewEvent, Problem, SessionInfo
from backtrail.stores.jsonl import JSONLStore
from backtrail.stores.opening import Options

Change = Callable[[Path], object]


def record(**fields: object) -> bytes:
    """A `metadata.json` with some fields changed."""
    return json.dumps({"format": 1, "id": "a", "title": "changed", **fields}).encode()


RECORDS: dict[str, bytes] = {
    "empty": b"",
    "NULs": b"\0" * 500,
    "half": b'{"format":1,"id":"a","ti',
    "not UTF-8": b'{"format":1,"id":"a","title":"\xff\xfe"}',
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "another id": record(id="b"),
    "a hostile id": record(id="../../x"),
    "a hostile parent": record(parent_id="../x", relation="fork"),
    "a wrong relation": record(relation="owner"),
    "a wrong type": record(tags="x"),
    "a wrong time": record(created_at="yesterday"),
    "a NUL in cwd": record(cwd="/x\0y"),
    "a lone surrogate": b'{"format":1,"id":"a","title":"\\ud800"}',
    "a strange format": record(format="x"),
}


@pytest.fixture
def root(fast: Path) -> Path:
    """Three sessions, the first with its record in the log as well."""
    with JSONLStore(fast) as store:
        for id in ("a", "b", "c"):
            store.create(SessionInfo(id, title=f"title of {id}", tags=["t"]))
            info = store.info(id).to_dict()
            store.append(id, [NewEvent("session_start", {"info": info}), NewEvent("test", {})])
    return fast


def check_others(store: JSONLStore, *others: str) -> None:
    """Other sessions are listed, read and written as ever."""
    assert set(others) <= {info.id for info in store.sessions()}
    for id in others:
        assert store.info(id).title == f"title of {id}"
        assert [event.kind for event in store.read(id)][:2] == ["session_start", "test"]
        store.append(id, [NewEvent("later", {})])


@pytest.mark.parametrize("content", RECORDS.values(), ids=list(RECORDS))
def test_damaged_record(root: Path, content: bytes) -> None:
    """A record that cannot be used is reported and taken from the log; no other is hidden."""
    path = root / "sessions" / "a" / "metadata.json"
    path.write_bytes(content)
    reported: list[Problem] = []
    with JSONLStore(root, Options(on_damage=reported.append)) as store:
        info = store.info("a")
        assert (info.id, info.title, info.tags, info.parent_id) == ("a", "title of a", ["t"], None)
        check_others(store, "a", "b", "c")
        assert [(p.session_id, p.log) for p in store.verify()] == [("a", "metadata.json")]
        assert [(p.session_id, p.log) for p in reported] == [("a", "metadata.json")]
        assert len(store.sessions(tag="t")) == 3
        store.create(SessionInfo("fork", parent_id="a", relation="fork"), base=("a", 1))
        assert [event.seq for event in store.read("fork")] == [1]
        assert path.read_bytes() == content


def test_missing_record(root: Path) -> None:
    """A session whose record is gone is found again, and the record written anew."""
    path = root / "sessions" / "a" / "metadata.json"
    path.unlink()
    with JSONLStore(root) as store:
        check_others(store, "a", "b", "c")
        assert [(p.log, p.what) for p in store.verify()] == [("metadata.json", "damaged record")]
        assert store.update("a", title="new").title == "new"
        assert store.verify() == []


def test_record_and_log_damaged(root: Path) -> None:
    """With no record anywhere the session has a bare one, and its events."""
    (root / "sessions" / "a" / "metadata.json").write_bytes(b"\0" * 10)
    path = main_log(root, "a")
    path.write_bytes(path.read_bytes().replace(b"session_start", b"session_stat_", 1))
    with JSONLStore(root) as store:
        assert store.info("a").title is None
        assert [event.kind for event in store.read("a")] == ["test"]
        check_others(store, "b", "c")
        assert {p.session_id for p in store.verify()} == {"a"}


def test_newer_format_is_refused(root: Path) -> None:
    """A session of a newer format is neither read nor written by this version."""
    path = root / "sessions" / "a" / "metadata.json"
    path.write_bytes(record(format=99, future="field"))
    with JSONLStore(root) as store:
        for refused in (
            lambda: store.read("a"),
            lambda: store.pages("a"),
            lambda: store.info("a"),
            lambda: store.update("a", title="old"),
            lambda: store.append("a", [NewEvent("old", {})]),
        ):
            with pytest.raises(Unsupported, match="99"):
                refused()
        assert path.read_bytes() == record(format=99, future="field")
        store.create(SessionInfo(id="new", key="k"))
        assert [(p.session_id, p.log) for p in store.verify()] == [("a", "metadata.json")]
        check_others(store, "b", "c")


@pytest.mark.parametrize("name", ["metadata.json", "fold.json", "lease"])
def test_a_folder_where_a_file_should_be(root: Path, name: str) -> None:
    """A session that is not made as sessions are is reported, and no other is hidden."""
    path = root / "sessions" / "a" / name
    path.unlink(missing_ok=True)
    path.mkdir()
    with JSONLStore(root) as store:
        check_others(store, "b", "c")
        assert name != "metadata.json" or {p.session_id for p in store.verify()} == {"a"}


def test_damaged_fold_cache(root: Path) -> None:
    """What was counted before is only a cache: damaged, it is made anew."""
    for content in (b"", b"\0" * 100, b"\xff", b"{}", b"[1,2,3]", b'{"inode":1,"size":1,"fold":0}'):
        (root / "sessions" / "a" / "fold.json").write_bytes(content)
        with JSONLStore(root) as store:
            assert store.info("a").head == 2
            assert store.verify() == []


def test_strange_names_among_the_sessions(root: Path) -> None:
    """Files and folders that no session made are reported, not read, and hide nothing."""
    sessions = root / "sessions"
    (sessions / "file").write_text("x")
    (sessions / "empty").mkdir()
    for name in (".hidden", "a b", "-x", "ü", "x" * 200):
        (sessions / name).mkdir()
        main_log(root, name).write_bytes(main_log(root, "a").read_bytes())
    with JSONLStore(root) as store:
        check_others(store, "a", "b", "c")
        assert len(store.sessions()) == 3
        stray = {p.session_id for p in store.verify()}
        assert stray == {"file", "empty", ".hidden", "a b", "-x", "ü", "x" * 200}


@pytest.fixture
def outside(root: Path) -> Iterator[Path]:
    """A folder beside the store, that looks like a session and must stay as it is."""
    folder = root.parent / f"{root.name}-outside"
    folder.mkdir()
    (folder / "messages.jsonl").write_bytes(main_log(root, "b").read_bytes())
    (folder / "metadata.json").write_bytes(b"mine")
    (folder / "sub").mkdir()
    (folder / "sub" / "precious").write_text("mine")
    yield folder
    shutil.rmtree(folder)


def everything(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_session_that_is_a_link(root: Path, outside: Path) -> None:
    """A link among the sessions is no session: not read, not written, not cleared."""
    before = everything(outside)
    os.symlink(outside, root / "sessions" / "linked")
    os.symlink("linked", root / "sessions" / "again")
    os.symlink("nothing", root / "sessions" / "broken")
    with JSONLStore(root) as store:
        verbs: list[Callable[[str], object]] = [
            store.info,
            lambda name: list(store.read(name)),
            lambda name: store.append(name, [NewEvent("x", {})]),
            lambda name: store.update(name, title="x"),
            store.delete,
            store.lease,
        ]
        for id in ("linked", "again", "broken"):
            for verb in verbs:
                with pytest.raises(NotFound):
                    verb(id)
            with pytest.raises(Unsafe):
                store.create(SessionInfo(id))
        check_others(store, "a", "b", "c")
        assert {p.session_id for p in store.verify()} == {"linked", "again", "broken"}
    assert everything(outside) == before


LINKS: dict[str, Change] = {
    "main log": lambda folder: (folder / "messages.jsonl").unlink(),
    "side log": lambda folder: None,
    "folder of side logs": lambda folder: None,
    "lock": lambda folder: (folder / "lock").unlink(),
    "lease": lambda folder: None,
    "record": lambda folder: (folder / "metadata.json").unlink(),
}
NAMES = {
    "main log": ("messages.jsonl", "messages.jsonl"),
    "side log": ("transcript.jsonl", "messages.jsonl"),
    "folder of side logs": ("subagents", "sub"),
    "lock": ("lock", "made-by-lock"),
    "lease": ("lease", "made-by-lease"),
    "record": ("metadata.json", "metadata.json"),
}


@pytest.mark.parametrize("what", LINKS)
def test_links_inside_a_session(root: Path, outside: Path, what: str) -> None:
    """A link planted in a session's folder leads to no write outside of it."""
    folder = root / "sessions" / "a"
    LINKS[what](folder)
    name, target = NAMES[what]
    os.symlink(outside / target, folder / name)
    before = everything(outside)
    with JSONLStore(root) as store:
        verbs: list[Callable[[str], object]] = [
            lambda log: store.append("a", [NewEvent("x", {})], log=log),
            lambda log: store.purge("a", [1], log=log),
            lambda log: list(store.read("a", log=log)),
            lambda log: store.lease("a").__enter__(),
            lambda log: store.update("a", title="x"),
        ]
        for log in ("messages", "transcript", "subagents/x"):
            for verb in verbs:
                with suppress(BacktrailError):
                    verb(log)
        check_others(store, "b", "c")
        store.verify()
        assert everything(outside) == before
        with suppress(BacktrailError):
            store.delete("a")
    assert everything(outside) == before
