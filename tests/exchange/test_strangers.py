"""A stranger's session brings files that run by themselves: none of them is written unasked.

The oracle is a real git with a command in `core.fsmonitor`, and the bytes of the folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

from backtrail import BacktrailError, Damaged, Session, Unsafe
from backtrail.events import Json, NewEvent, SessionInfo
from backtrail.exchange.bundle import check, check_bundle, read_bundle
from backtrail.files.beneath import remove_tree
from backtrail.files.contents.blobs import Reference
from backtrail.files.depot import opened
from backtrail.files.restore.materialize import materialize, write_tree
from backtrail.stores import Store, open_store
from backtrail.stores.wrapper import store_name

from . import forging
from .forging import State, forged, manifest_of, packed, resealed, tree_of


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every path below a folder, with its mode and content."""
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        held = b""
        if stat.S_ISLNK(mode):
            held = os.fsencode(path.readlink())
        elif stat.S_ISREG(mode):
            held = path.read_bytes()
        found[str(path.relative_to(folder))] = (mode, held)
    return found


class Trap:
    """A command that leaves a mark where it runs, and repositories that have git run it."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "it-ran"
        self.command = folder / "command"
        self.command.write_text(f"#!/bin/sh\ntouch '{self.mark}'\n")
        self.command.chmod(0o755)

    def repository(self) -> State:
        """The inside of a repository that runs the command at `git status`."""
        config = f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = {self.command}\n"
        return {
            "HEAD": b"ref: refs/heads/main\n",
            "config": config.encode(),
            "objects": {"keep": b""},
            "refs": {"keep": b""},
        }

    def status(self, folder: Path) -> bool:
        """Whether `git status` in a folder, and in those below it, runs the command."""
        clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
        for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            subprocess.run(["git", "status"], cwd=place, env=clean, capture_output=True)
        return self.mark.exists()


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    (tmp_path / "bin").mkdir()
    return Trap(tmp_path / "bin")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A project without a repository, and with a folder `sub`."""
    place = tmp_path / "victim"
    (place / "sub").mkdir(parents=True)
    (place / "sub" / "a.txt").write_text("a\n")
    return place


HERE: State = {"sub": {"a.txt": b"a\n"}}


def attacks(trap: Trap) -> dict[str, State]:
    """States that, written, run code; each beside what the folder has."""
    inside = trap.repository()
    bare = {**inside, "config": inside["config"] + b"\tworktree = .\n"}  # type: ignore[operator]
    return {
        "repository": {".git": inside, **HERE},
        "below": {"sub": {"a.txt": b"a\n", ".git": inside}},
        "gitfile": {"sub": {"a.txt": b"a\n", ".git": b"gitdir: ../real\n"}, "real": inside},
        "link": {"sub": {"a.txt": b"a\n", ".git": ("link", "../real")}, "real": inside},
        "bare": {"sub": {"a.txt": b"a\n"}, "bare": bare},
        "shared": {"sub": {"a.txt": b"a\n"}, "one": {
            "HEAD": b"ref: refs/heads/main\n", "commondir": b"../two\n"},
            "two": {k: v for k, v in bare.items() if k != "HEAD"}},
        "mercurial": {".hg": {"hgrc": b"[hooks]\npre-status = true\n"}, **HERE},
        "jujutsu": {".jj": {"repo": {"config.toml": b"x"}}, **HERE},
        "sapling": {".sl": {"config": b"[hooks]\npre-status = true\n"}, **HERE},
        "sapling upper": {".SL": {"config": b"[hooks]\npre-status = true\n"}, **HERE},
        "sapling short": {"sl~1": {"config": b"[hooks]\npre-status = true\n"}, **HERE},
        "cvs": {"CVS": {"Root": b":ext;CVS_RSH=x:y\n"}, **HERE},
        "cvs folded": {"cvs": {"root": b"x", "Repository": b"x", "Entries": b"x"}, **HERE},
        "upper case": {".GIT": inside, **HERE},
        "short": {"git~1": inside, **HERE},
        "ignorable": {".g\u200cit": inside, **HERE},
        "soft hyphen": {".gi\u00adt": inside, **HERE},
        "variation": {".git\ufe0f": inside, **HERE},
        "ignorable first": {"\ufeff.git": inside, **HERE},
        "dots": {".git. .": inside, **HERE},
        "stream": {".git::$INDEX_ALLOCATION": inside, **HERE},
        "backslash": {"sub\\.git": inside, **HERE},
    }  # fmt: skip


NAMES = """repository, below, gitfile, link, bare, shared, mercurial, jujutsu, sapling,
sapling upper, sapling short, cvs, cvs folded, upper case, short,
ignorable, soft hyphen,
variation, ignorable first, dots, stream, backslash""".replace("\n", " ").split(", ")

SHAPED = ("bare", "shared", "cvs folded")
"""What is known by its shape, in bundles alone."""


def written(state: State, folder: Path) -> None:
    """Write a state as it is."""
    folder.mkdir(exist_ok=True)
    for name, held in state.items():
        if isinstance(held, bytes):
            (folder / name).write_bytes(held)
        elif isinstance(held, tuple):
            (folder / name).symlink_to(held[1])
        else:
            written(held, folder / name)


@pytest.mark.parametrize("name", NAMES[:5])
def test_the_trap_bites(name: str, trap: Trap, tmp_path: Path) -> None:
    """Writing such a state has git run the command: so the tests below can fail."""
    written(attacks(trap)[name], tmp_path / "written")
    assert trap.status(tmp_path / "written")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["mine", "exact"])
def test_a_bundle_cannot_bring_version_control(
    name: str, mode: str, trap: Trap, victim: Path, tmp_path: Path
) -> None:
    """It is refused as a whole, names the path, and leaves nothing; so nothing can run."""
    path = tmp_path / "b"
    path.write_bytes(packed(forged([attacks(trap)[name], HERE], victim)))
    before = snapshot(victim)
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        with suppress(BacktrailError):
            read_bundle(store, path)
        with suppress(BacktrailError), Session.resume(store, "theirs") as s:
            s.rewind(1, mode=mode)  # type: ignore[arg-type]
    assert snapshot(victim) == before
    assert not trap.status(victim)
    with pytest.raises(Unsafe):
        check_bundle(path)
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        assert store.sessions() == []


def test_a_sound_bundle_is_taken(trap: Trap, victim: Path, tmp_path: Path) -> None:
    """So those above are refused for what is in them. Opaque entries may bear such names."""
    path = tmp_path / "b"
    fine: State = {"HEAD": b"x", "objects": {}, ".gitignore": b"x", "git~": b"x", ".gitx": {}}
    path.write_bytes(packed(forged([fine, HERE], victim)))
    with open_store(f"file:{tmp_path}/s") as store:
        assert read_bundle(store, path).head == 2
    (victim / ".git").mkdir()
    with open_store(f"file:{tmp_path}/own") as store:
        from backtrail.exchange.bundle import write_bundle

        with Session.create(store, "own", cwd=victim) as s:
            s.checkpoint("now")
        write_bundle(store, "own", tmp_path / "own.bundle")
        assert read_bundle(store, tmp_path / "own.bundle", as_id="again").head > 0


def planted(store: Store, states: list[State], cwd: Path) -> None:
    """The same session as in a bundle, in a store that took it in before, or was brought."""
    blobs: dict[str, bytes] = {}
    trees = [tree_of(state, blobs) for state in states]
    store.create(SessionInfo("theirs", cwd=str(cwd), metadata={"imported_from": None}))
    with opened(store) as depot:
        contents = [(bytes.fromhex(name), held) for name, held in blobs.items()]
        references = [Reference(store_name(store), "theirs", bytes.fromhex(t)) for t in trees]
        depot.blobs.write(contents, references)
    said: dict[str, Json] = {"message": {"role": "user", "content": "go"}, "tree": trees[0]}
    done: dict[str, Json] = {"name": "bash", "files": {"before": trees[0], "after": trees[1]}}
    store.append("theirs", [NewEvent("user_message", said), NewEvent("action", done)])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SHAPED])
@pytest.mark.parametrize("way", ["mine", "exact", "undo", "fork", "materialize"])
def test_a_store_cannot_bring_version_control(
    name: str, way: str, trap: Trap, victim: Path, tmp_path: Path
) -> None:
    """The whole operation is refused, and the session can still be shown and rewound elsewhere."""
    before = snapshot(victim)
    new = tmp_path / "new"
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        planted(store, [attacks(trap)[name], HERE], victim)
        with Session.resume(store, "theirs") as s:
            tree = str(next(store.read("theirs")).data["tree"]) if way == "materialize" else ""
            with pytest.raises(Unsafe, match="version control"):
                if way == "undo":
                    s.undo()
                elif way == "fork":
                    s.fork(at=1, into=new)
                elif way == "materialize":
                    materialize(store, tree, new)
                else:
                    s.rewind(1, mode=way)  # type: ignore[arg-type]
            assert [event.kind for event in s.history()][:2] == ["user_message", "action"]
            assert s.changes()
            s.append({"role": "user", "content": "more"})
            with s.tool("edit"):
                (victim / "more.txt").write_text("more\n")
            assert s.undo().files_changed == ["more.txt"]
    assert snapshot(victim) == before
    assert not new.exists()
    assert not trap.status(victim)


def test_a_journal_cannot_bring_version_control(victim: Path, tmp_path: Path) -> None:
    """Neither a restore that is finished after a crash: the rest of it is done."""
    from backtrail.files.restore.plan import Plan, Step
    from backtrail.files.restore.restore import Restore
    from backtrail.files.trees import Entry

    content = b"evil\n"
    entry = Entry("file", 0o644, len(content), hashlib.sha256(content).digest())
    folder = Entry("directory", 0o755, 0, b"\0" * 32)
    steps = [Step(b".git", "create", None, folder), Step(b".git/config", "create", None, entry),
             Step(b"fine", "create", None, entry)]  # fmt: skip
    plan = Plan(b"\0" * 32, steps)
    fd = os.open(victim, os.O_RDONLY | os.O_DIRECTORY)
    try:
        before = snapshot(victim)
        with pytest.raises(Unsafe):
            Restore(fd, "one", lambda _: content).apply(plan)
        assert snapshot(victim) == before
        done = Restore(fd, "two", lambda _: content).finish(plan)
    finally:
        os.close(fd)
    assert [step.action for step in done.steps] == ["conflict", "conflict", "create"]
    assert snapshot(victim).keys() - before.keys() == {"fine"}


@pytest.mark.parametrize(
    "name", [".git", ".GIT", ".hg", ".jj", ".sl", "CVS", "git~1", ".g\u200cit"]
)
@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_our_own_trees_never_hold_them(name: str, kind: str, victim: Path, tmp_path: Path) -> None:
    """A scan leaves them alone, and says so; a rewind of what is around them works."""
    place = victim / "sub" / name
    if kind == "file":
        place.write_text("gitdir: ../real\n")
    elif kind == "link":
        place.symlink_to("../real")
    else:
        place.mkdir()
        (place / "config").write_text("mine\n")
    with open_store(f"sqlite:///{tmp_path}/s.db") as store, Session.create(store, cwd=victim) as s:
        s.append({"role": "user", "content": "go"})
        before = snapshot(victim)
        with s.tool("bash"):
            (victim / "sub" / "a.txt").write_text("b\n")
        assert [path for path, _, _ in s.not_captured()] == [f"sub/{name}"]
        assert s.undo().files_changed == ["sub/a.txt"]
        s.rewind(1, mode="exact")
        assert snapshot(victim) == before
        stored = b"".join(_blobs(store))
        assert b"gitdir: ../real" not in stored and b"mine\n" not in stored


def _blobs(store: Store) -> list[bytes]:
    with opened(store) as depot:
        known = {r.root for r in depot.blobs.references()}
        return [depot.blobs.get(digest) for digest in known]


def test_a_bare_repository_of_ones_own_is_captured(
    trap: Trap, victim: Path, tmp_path: Path
) -> None:
    """Tests of git tools keep such; what a person has is the person's."""
    subprocess.run(["git", "init", "-q", "--bare", victim / "fixture.git"], check=True)
    before = snapshot(victim)
    with open_store(f"sqlite:///{tmp_path}/s.db") as store, Session.create(store, cwd=victim) as s:
        s.append({"role": "user", "content": "go"})
        with s.tool("bash"):
            (victim / "fixture.git" / "HEAD").unlink()
        assert s.undo().files_changed == ["fixture.git/HEAD"]
    assert snapshot(victim) == before


def test_a_state_of_countless_paths_is_refused(tmp_path: Path) -> None:
    """A few trees that name each other often would keep every verb busy for ever."""
    inner: State = {"x": b"x", "y": b"y"}
    state: State = {"one": inner, "two": inner}
    path = tmp_path / "b"
    path.write_bytes(packed(forged([state, {}], tmp_path)))
    check_bundle(path)
    with mock.patch.object(check, "MOST_PATHS", 5), pytest.raises(Unsafe, match="paths"):
        check_bundle(path)


@pytest.mark.parametrize("name", [".backtrail-store", ".Backtrail-STORE"])
@pytest.mark.parametrize("held", [b"", b"0" * 32 + b"\n\n", {"x": b"x"}, ("link", "x")])
def test_a_marker_of_a_store_is_refused(
    tmp_path: Path, name: str, held: bytes | State | tuple[str, str]
) -> None:
    """A stranger's folder must not pass itself off as a store."""
    path = tmp_path / "b"
    path.write_bytes(packed(forged([{"sub": {name: held}}, {}], tmp_path)))
    with pytest.raises(Unsafe, match="as a store"):
        check_bundle(path)


def test_a_marker_in_a_state_that_is_stored_is_not_written(tmp_path: Path) -> None:
    """A tree from before such were refused brings everything but the marker."""
    blobs: dict[str, bytes] = {}
    tree = tree_of({"sub": {".backtrail-store": b"", "x": b"x"}}, blobs)
    write_tree(lambda digest: blobs[digest.hex()], bytes.fromhex(tree), tmp_path / "out")
    assert {path: held for path, (_, held) in snapshot(tmp_path / "out").items()} == {
        "sub": b"",
        "sub/x": b"x",
    }


@pytest.mark.parametrize("text", ["", "a\0b", "x" * 4096], ids=["empty", "zero", "long"])
def test_a_link_that_no_system_makes_is_refused(tmp_path: Path, text: str) -> None:
    """Nothing of the bundle is imported, and no folder is made for it."""
    path = tmp_path / "b"
    path.write_bytes(packed(forged([{"a": b"a", "l": ("link", text), "z": b"z"}, {}], tmp_path)))
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        with pytest.raises(Damaged, match="no link"):
            read_bundle(store, path, as_id="theirs")
        assert list(store.sessions()) == []


def test_a_name_that_no_system_takes_is_refused(tmp_path: Path) -> None:
    """A file system takes 255 bytes."""
    path = tmp_path / "b"
    path.write_bytes(packed(forged([{"n" * 255: b"x"}, {}], tmp_path)))
    check_bundle(path)
    path.write_bytes(packed(forged([{"sub": {"n" * 256: b"x"}}, {}], tmp_path)))
    with pytest.raises(Unsafe, match="longer than a name"):
        check_bundle(path)


def _nested(levels: int, tmp_path: Path) -> bytes:
    """A bundle of folders in each other, made from the innermost."""
    blobs: dict[str, bytes] = {}
    value = bytes.fromhex(tree_of({"x": b"x"}, blobs))
    for _ in range(levels - 1):
        tree = b"BTT1" + struct.pack(">BHQH", 3, 0o755, 0, 1) + b"d"
        tree += struct.pack(">H", 32) + value
        value = hashlib.sha256(tree).digest()
        blobs[value.hex()] = tree
    with mock.patch.object(forging, "tree_of", side_effect=_put(value.hex(), blobs)):
        return packed(forged([{}], tmp_path))


def _put(tree: str, held: dict[str, bytes]) -> Callable[[State, dict[str, bytes]], str]:
    def put(state: State, blobs: dict[str, bytes]) -> str:
        blobs.update(held)
        return tree

    return put


def test_folders_that_no_path_reaches_are_refused(tmp_path: Path) -> None:
    """A name for each level, and a slash: no path goes deeper than 2,000 levels."""
    path = tmp_path / "b"
    path.write_bytes(_nested(2_001, tmp_path))
    with pytest.raises(Unsafe, match="2,000 levels"):
        check_bundle(path)
    path.write_bytes(_nested(2_000, tmp_path))
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        read_bundle(store, path, as_id="theirs")
        began = time.process_time()
        materialize(store, check_bundle(path).manifest.trees[0], tmp_path / "out")
        assert time.process_time() - began < 20
    deep = os.open(tmp_path / "out", os.O_RDONLY)
    for _ in range(1_999):
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    assert os.listdir(deep) == ["x"]
    os.close(deep)
    remove_tree(tmp_path / "out")


def test_bits_that_raise_rights_are_refused(tmp_path: Path) -> None:
    """A stranger's file would run with the rights of the user that restored it."""
    files = forged([{"tool": b"#!/bin/sh\n"}, {}], tmp_path)
    blobs = {name: content for name, content in files if name.startswith("blobs/")}
    for name, content in blobs.items():
        if b"tool" in content:
            raised = content.replace(b"\x01\x01\xed", b"\x01\x09\xed")
            assert raised != content
            digest = hashlib.sha256(raised).hexdigest()
            old = name.removeprefix("blobs/")
            break
    made = [(n.replace(old, digest), c.replace(old.encode(), digest.encode())) for n, c in files]
    made = [(n, raised if n == f"blobs/{digest}" else c) for n, c in made]
    manifest = manifest_of(made)
    log = dict(made)["logs/0.jsonl"]
    manifest["logs"][0]["sha256"] = hashlib.sha256(log).hexdigest()
    path = tmp_path / "b"
    path.write_bytes(packed(resealed(made, manifest)))
    with pytest.raises(Unsafe, match="rights"):
        check_bundle(path)
