"""A session in a bundle, and out of it again elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backtrail import (
    AlreadyExists,
    InvalidId,
    NewEvent,
    NotFound,
    Session,
    SessionInfo,
    Store,
    Unsafe,
)
from backtrail import files as tracked
from backtrail.exchange.bundle import check_bundle, read_bundle, write_bundle
from backtrail.formats.secrets import Masking
from backtrail.settings.allowance import allow
from backtrail.stores import open_store

from .forging import lines_of, manifest_of, unpacked

URLS = ("sqlite:///{}/x.db", "file:{}/store")
KEY = "ghp_" + "a1B2c3" * 6


def contents(root: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Everything in a directory: modes, bytes, the text of links."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        what: bytes | str | None = None
        if path.is_symlink():
            what = os.readlink(path)
        elif path.is_file():
            what = path.read_bytes()
        found[path.relative_to(root).as_posix()] = (mode, what)
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "src" / "app.py").write_text("print('one')\n")
    (root / "src" / "deep" / "data.bin").write_bytes(bytes(range(256)) * 40)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("src/app.py")
    return root


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/source.db") as store:
        yield store


def worked(store: Store, project: Path) -> int:
    """A session with tools, a side log, a checkpoint and a rewind; the first prompt's number."""
    with Session.create(store, "work", cwd=project, title="Work", tags=["x"], key="k") as s:
        first = s.append({"role": "user", "content": f"clean up with {KEY}"})
        with s.tool("bash", {"command": "rm -r src"}) as call:
            shutil.rmtree(project / "src")
            (project / "new.txt").write_text("new\n")
            call.result = "done"
        s.log("transcript").append({"raw": "line"})
        s.log("subagents/a1").append({"message": {"role": "user", "content": "look"}})
        s.checkpoint("broken")
        s.rewind(first)
        s.append({"role": "user", "content": "gently"})
        return first.seq


def of_a_stranger(info: SessionInfo) -> SessionInfo:
    """A record as it is taken in: with the mark that it came from a bundle."""
    return replace(info, metadata={**info.metadata, "imported_from": "bundle"})


@pytest.mark.parametrize("url", URLS)
def test_a_session_goes_on_elsewhere(
    url: str, source: Store, project: Path, tmp_path: Path
) -> None:
    """Logs, record, and the files of every point, byte by byte, in another store and folder."""
    before = contents(project)
    first = worked(source, project)
    done = write_bundle(source, "work", tmp_path / "w.bundle")
    assert (done.missing, done.masked, done.logs) == (0, 0, 3)
    assert done.blobs > 5
    shutil.rmtree(project)

    place = tmp_path / "elsewhere"
    place.mkdir()
    with open_store(url.format(place)) as target:
        info = read_bundle(target, tmp_path / "w.bundle")
        assert info == of_a_stranger(source.info("work"))
        assert target.logs("work") == source.logs("work")
        for log in source.logs("work"):
            assert list(target.read("work", log=log)) == list(source.read("work", log=log))
        with Session.resume(target, "work") as s:
            assert [c.label for c in s.checkpoints()] == ["broken"]
            fork = s.fork(at=first, into=place / "copy")
            assert contents(place / "copy") == before
            fork.close()
            broken = s.fork(at=s.checkpoints()[0].id, into=place / "broken")
            assert (place / "broken" / "new.txt").read_text() == "new\n"
            broken.close()
        assert tracked.verify(target) == []
        assert tracked.collect(target, grace=0).blobs == 0


@pytest.mark.parametrize("url", URLS)
def test_it_can_be_rewound_there(url: str, source: Store, project: Path, tmp_path: Path) -> None:
    """With the files brought along by hand, as after a clone on another machine."""
    with Session.create(source, "work", cwd=project) as s:
        s.append({"role": "user", "content": "go"})
        with s.tool("edit", paths=["run.sh"]):
            (project / "run.sh").write_text("broken\n")
    write_bundle(source, "work", tmp_path / "w.bundle")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(project, elsewhere, symlinks=True)
    place = tmp_path / "place"
    place.mkdir()
    with open_store(url.format(place)) as target:
        assert read_bundle(target, tmp_path / "w.bundle", cwd=elsewhere).cwd == str(elsewhere)
        with Session.resume(target, "work") as s:
            with pytest.raises(Unsafe, match="not allowed"):
                s.undo()
            assert (elsewhere / "run.sh").read_text() == "broken\n"
            allow(elsewhere)
            done = s.undo()
            assert done.files_changed == ["run.sh"]
        assert (elsewhere / "run.sh").read_text() == "#!/bin/sh\n"
        assert (project / "run.sh").read_text() == "broken\n"


def test_a_fork_brings_what_it_shares(source: Store, project: Path, tmp_path: Path) -> None:
    """Also where its parent is not there, or is gone."""
    worked(source, project)
    with Session.resume(source, "work") as s:
        s.fork(session_id="other").append({"role": "user", "content": "mine"})
    source.delete("work")
    write_bundle(source, "other", tmp_path / "f.bundle")
    with open_store(f"file:{tmp_path}/target") as target:
        info = read_bundle(target, tmp_path / "f.bundle")
        assert (info.parent_id, info.relation, info.fork_seq) == ("work", "fork", info.fork_seq)
        assert info == of_a_stranger(source.info("other"))
        assert target.history("other") == source.history("other")
        assert check_bundle(tmp_path / "f.bundle").manifest.missing == []


def test_importing_twice_changes_nothing(source: Store, project: Path, tmp_path: Path) -> None:
    """Nor when the session went on meanwhile."""
    worked(source, project)
    write_bundle(source, "work", tmp_path / "w.bundle")
    with open_store(f"sqlite:///{tmp_path}/t.db") as target:
        first = read_bundle(target, tmp_path / "w.bundle")
        assert read_bundle(target, tmp_path / "w.bundle") == first
        target.update("work", title="Mine now")
        target.append("work", [NewEvent("note", {"more": 1})])
        again = read_bundle(target, tmp_path / "w.bundle")
        assert (again.title, again.head) == ("Mine now", first.head + 1)


def test_another_session_of_that_id_stays(source: Store, project: Path, tmp_path: Path) -> None:
    """The error names the way out, and the way out works."""
    worked(source, project)
    write_bundle(source, "work", tmp_path / "w.bundle")
    with open_store(f"sqlite:///{tmp_path}/t.db") as target:
        target.create(SessionInfo(id="work", key="k"))
        with pytest.raises(AlreadyExists, match="--as"):
            read_bundle(target, tmp_path / "w.bundle")
        assert target.info("work").head == 0
        with pytest.raises(InvalidId):
            read_bundle(target, tmp_path / "w.bundle", as_id="../x")
        info = read_bundle(target, tmp_path / "w.bundle", as_id="theirs")
        assert (info.id, info.key, info.head) == ("theirs", None, source.info("work").head)
        with Session.resume(target, "theirs") as s:
            s.fork(at=2, into=tmp_path / "copy")
            assert (tmp_path / "copy" / "run.sh").exists()
        assert {i.id for i in target.sessions() if not i.parent_id} == {"theirs", "work"}


def test_a_bundle_of_an_older_state_is_not_another_session(
    source: Store, project: Path, tmp_path: Path
) -> None:
    """But a newer one is: events are never added to a session behind its back."""
    worked(source, project)
    write_bundle(source, "work", tmp_path / "old.bundle")
    source.append("work", [NewEvent("note", {"more": 1})])
    write_bundle(source, "work", tmp_path / "new.bundle")
    read_bundle(source, tmp_path / "old.bundle")
    with open_store(f"sqlite:///{tmp_path}/t.db") as target:
        read_bundle(target, tmp_path / "old.bundle")
        with pytest.raises(AlreadyExists):
            read_bundle(target, tmp_path / "new.bundle")


def test_the_file_is_private_whole_and_never_over_another(
    source: Store, project: Path, tmp_path: Path
) -> None:
    """Mode 0600; equal sessions give equal bytes; `force` overwrites."""
    worked(source, project)
    path = tmp_path / "w.bundle"
    write_bundle(source, "work", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_bytes()
    with pytest.raises(AlreadyExists, match="--force"):
        write_bundle(source, "work", path)
    with pytest.raises(NotFound):
        write_bundle(source, "nobody", tmp_path / "n.bundle")
    write_bundle(source, "work", path, force=True)
    assert path.read_bytes() == first
    assert sorted(p.name for p in tmp_path.glob("*.bundle")) == ["w.bundle"]
    assert not list(tmp_path.glob(".*bundle*"))


def test_others_can_open_it(source: Store, project: Path, tmp_path: Path) -> None:
    """It is a tar archive in zstd: the manifest first, then contents, logs and the seal."""
    worked(source, project)
    write_bundle(source, "work", tmp_path / "w.bundle")
    files = unpacked(tmp_path / "w.bundle")
    manifest = manifest_of(files)
    assert [name for name, _ in files] == [
        "manifest.json",
        *(f"blobs/{blob['sha256']}" for blob in manifest["blobs"]),
        "logs/0.jsonl",
        "logs/1.jsonl",
        "logs/2.jsonl",
        "manifest.sha256",
    ]
    assert (manifest["format"], manifest["version"]) == ("backtrail-bundle", 1)
    assert manifest["session"]["title"] == "Work"
    lines = lines_of(files)
    assert lines == [json.loads(json.dumps(e.to_dict())) for e in source.read("work")]


def test_masking_is_asked_for(source: Store, project: Path, tmp_path: Path) -> None:
    """A bundle is for moving a session, so it holds all; masked, events change, files do not."""
    (project / ".env").write_text(f"TOKEN={KEY}\n")
    worked(source, project)
    write_bundle(source, "work", tmp_path / "all.bundle")
    assert KEY in str(lines_of(unpacked(tmp_path / "all.bundle")))
    done = write_bundle(source, "work", tmp_path / "m.bundle", masking=Masking())
    assert done.masked >= 1
    files = unpacked(tmp_path / "m.bundle")
    assert KEY not in str(lines_of(files))
    assert manifest_of(files)["masked"] == done.masked
    assert any(KEY.encode() in content for name, content in files if name.startswith("blobs/"))
    with open_store(f"sqlite:///{tmp_path}/t.db") as target:
        assert read_bundle(target, tmp_path / "m.bundle").head == source.info("work").head


def test_what_is_gone_is_reported(source: Store, project: Path, tmp_path: Path) -> None:
    """Contents that were purged leave a session that can be moved all the same."""
    from backtrail import purge

    worked(source, project)
    erased = purge(source, "work", path="src/app.py")
    assert erased.blobs == 1
    done = write_bundle(source, "work", tmp_path / "w.bundle")
    assert done.missing == 1
    with open_store(f"sqlite:///{tmp_path}/t.db") as target:
        read_bundle(target, tmp_path / "w.bundle")
        with Session.resume(target, "work") as s, pytest.raises(NotFound, match=r"app\.py"):
            s.fork(at=2, into=tmp_path / "copy")


def test_a_session_without_files(tmp_path: Path) -> None:
    """Needs no place for contents, and makes none."""
    with open_store("memory:") as source, open_store(f"file:{tmp_path}/t") as target:
        with Session.create(source, "talk") as s:
            s.append({"role": "user", "content": "hi"})
            s.record("mine", {"tree": "an oak", "files": {"after": 7}})
        assert write_bundle(source, "talk", tmp_path / "t.bundle").blobs == 0
        assert read_bundle(target, tmp_path / "t.bundle").message_count == 1
        assert not (tmp_path / "t" / "blobs").exists()


def test_a_number_that_damage_took_is_filled(tmp_path: Path) -> None:
    """As in any copy: with a `lost` event."""
    with open_store(f"file:{tmp_path}/s") as source:
        source.create(SessionInfo(id="s"))
        for n in range(4):
            source.append("s", [NewEvent("note", {"n": n}, id=f"e{n}")])
    path = tmp_path / "s" / "sessions" / "s" / "messages.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b"x" * (len(lines[1]) - 1) + b"\n"
    path.write_bytes(b"".join(lines))
    with open_store(f"file:{tmp_path}/s") as source, open_store("memory:") as target:
        write_bundle(source, "s", tmp_path / "s.bundle")
        read_bundle(target, tmp_path / "s.bundle")
        assert [event.kind for event in target.read("s")] == ["note", "lost", "note", "note"]
