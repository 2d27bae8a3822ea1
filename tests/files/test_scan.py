"""Scans: exact, complete about what they leave out, and quiet when nothing changed."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from backtrail.errors import StoreFailed
from backtrail.files.contents.blobs import MemoryBlobs
from backtrail.files.trees import EMPTY_DIGEST, Entry, parse_tree
from backtrail.files.workspace import ignore, trail
from backtrail.files.workspace.index import Index
from backtrail.files.workspace.known import Glance, KnownDirectory
from backtrail.files.workspace.reader import Capture
from backtrail.files.workspace.scan import Scanner, Stopped
from backtrail.files.workspace.trail import Frame, Trail
from backtrail.files.workspace.verdicts import Limits, OwnPlaces
from tests.files.scanning import Site, plainly, settle, truth


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def fill(site: Site, *paths: str) -> None:
    """Make files, each with its path as content."""
    for path in paths:
        place = site / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path)


# --- exact -------------------------------------------------------------------------------


def test_a_tree_is_what_is_there(site: Site) -> None:
    """Bytes, all twelve mode bits, links that dangle, empty directories, any name."""
    assert site.scan() == EMPTY_DIGEST
    fill(site, "a", "deep/er/b")
    (site / "empty").mkdir()
    (site / "dangling").symlink_to("nowhere/at all")
    (site / "to").symlink_to("deep")
    Path(os.fsdecode(os.fsencode(site.root) + b"/\xff\xfe")).write_bytes(b"\0\xff" * 999)
    for number, mode in enumerate((0o000, 0o777, 0o4755, 0o2755, 0o1644, 0o7777)):
        (site / f"mode{number}").write_text("")
        (site / f"mode{number}").chmod(mode)
    (site / "empty").chmod(0o3775)
    assert plainly(site.paths()) == truth(site.root)
    assert site.blobs.get(site.paths()[b"\xff\xfe"].value) == b"\0\xff" * 999


def test_nothing_changed_writes_nothing(site: Site) -> None:
    """The same digest, no blob, and an index with nothing new once it has settled."""
    fill(site, "a", "b/c", "b/d/e")
    (site / "link").symlink_to("a")
    os.mkfifo(site / "pipe")
    digest = site.scan()
    assert site.writes > 0
    site.index.changed = False
    assert settle(site) == digest
    assert site.writes == 0
    site.index.changed = False
    for _ in range(2):
        assert site.scan() == digest
        assert site.writes == 0
        assert not site.index.changed


def test_only_what_changed_is_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its neighbours, even if their directory is listed again."""
    fill(site, "d/a", "d/b", "d/c", "e/f", ".gitignore")
    settle(site)
    fill(site, "d/new")
    (site / "d/c").write_text("changed")
    (site / "d/a").unlink()
    real = os.open
    opened: list[object] = []

    def watched(path: object, flags: int, *args: int, **more: int) -> int:
        if not flags & os.O_DIRECTORY:
            opened.append(path)
        return real(path, flags, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", watched)
    site.scan()
    assert sorted(path for path in opened if isinstance(path, bytes)) == [
        b".gitignore", b"c", b"new",
    ]  # fmt: skip


def test_only_what_may_have_changed_is_entered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first look says which directories are as they were; no more is done about these."""
    fill(site, "a/b/c", "a/d/e", "f/g")
    settle(site)
    (site / "a/b/c").write_text("changed")
    visited: list[bytes] = []
    real = Trail.push

    def push(trail: Trail, frame: Frame) -> None:
        visited.append(frame.name)
        real(trail, frame)

    monkeypatch.setattr(Trail, "push", push)
    assert site.scan() == site.fresh()
    assert visited[:2] == [b"a", b"b"]
    assert sorted(visited[2:]) == [b"a", b"b", b"d", b"f"]
    settle(site)
    visited.clear()
    site.scan()
    assert visited == []


def test_what_is_replaced_after_the_first_look_is_seen_next_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that was as known, and then another, while the one above is listed."""
    fill(site, "a/b/c", "a/d")
    settle(site)
    fill(site, "a/new")
    real = Glance.look

    def look(glance: Glance, fd: int, known: KnownDirectory, depth: int = 0) -> bool:
        calm = real(glance, fd, known, depth)
        if not depth:
            shutil.rmtree(site / "a/b")
            fill(site, "a/b/other")
        return calm

    with monkeypatch.context() as patch:
        patch.setattr(Glance, "look", look)
        site.scan()
    assert site.scan() == site.fresh()


@pytest.mark.parametrize("depth", [29, 30, 31, 40])
def test_depth_hides_no_change(site: Site, depth: int) -> None:
    """The first look goes only so deep; what lies deeper is looked at all the same."""
    deep = "/".join(["d"] * depth)
    fill(site, f"{deep}/a", f"{deep}/e/b")
    before = settle(site)
    assert settle(site) == before
    (site / f"{deep}/e/b").write_text("changed")
    assert site.scan() == site.fresh() != before


def racy(site: Site) -> set[bytes]:
    """The names at the top that are to be looked at again; an empty one for the root."""
    root = site.index.root
    assert root is not None
    return {name for name, file in root.files.items() if file.racy} | (
        {b""} if root.racy else set()
    )


def test_racy_files_settle(site: Site) -> None:
    """They are read again once, and not for ever."""
    fill(site, "a")
    site.scan()
    assert racy(site) == {b"", b"a"}
    site.index.changed = False
    settle(site)
    assert racy(site) == set()
    assert site.index.changed


def test_a_change_in_the_same_tick_is_seen(site: Site) -> None:
    """Even if the clock stood still: what is younger than the scan is read again."""
    fill(site, "a")
    site.scan()
    status = os.stat(site / "a")
    (site / "a").write_text("b")
    os.utime(site / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert site.index.root is not None
    # A clock that stood still would show these numbers.
    now = os.stat(site / "a")
    site.index.root.files[b"a"].ctime = now.st_ctime_ns
    assert site.scan() == site.fresh()


def test_times_to_come_settle(site: Site) -> None:
    """An archive may bring files from the future: they are not read for ever."""
    fill(site, "a")
    os.utime(site / "a", (2**32, 2**32))
    settle(site)
    assert racy(site) == set()


def test_whole_seconds_are_a_coarse_clock() -> None:
    """Where times have no fractions, two changes in one second look like one."""
    capture = Capture(MemoryBlobs())
    second = 1_000_000_000
    capture.begin(Index("", 0), 100, 1000 * second + 5)
    assert capture.racy(0, 1000 * second)
    assert capture.racy(0, 999 * second)
    assert not capture.racy(0, 997 * second)
    assert not capture.racy(0, 999 * second + 7)


def touch_back(path: Path, change: Callable[[Path], object]) -> None:
    """Change a file and set its time of change to what it was."""
    status = path.stat()
    change(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("reload", [False, True])
def test_an_edit_with_its_time_set_back_is_seen(site: Site, reload: bool) -> None:
    """Same size, same time, same inode: only the time of the inode differs."""
    fill(site, "a")
    before = settle(site)
    if reload:
        site.reload()
    touch_back(site / "a", lambda path: path.write_text("b"))
    assert site.scan() == site.fresh() != before


def test_size_and_time_alone_would_miss_it(site: Site) -> None:
    """The rule above bites: an index without the time of the inode does not see the edit."""
    fill(site, "a")
    before = settle(site)
    touch_back(site / "a", lambda path: path.write_text("b"))
    assert site.index.root is not None
    site.index.root.files[b"a"].ctime = os.stat(site / "a").st_ctime_ns
    assert site.scan() == before != site.fresh()


def test_modes_alone_are_a_change(site: Site) -> None:
    """Of files, and of directories; the content is not stored again."""
    fill(site, "a", "d/b")
    settle(site)
    (site / "a").chmod(0o4711)
    (site / "d").chmod(0o711)
    found = site.paths(site.scan())
    assert (found[b"a"].mode, found[b"d"].mode) == (0o4711, 0o711)
    # The root's tree and nothing else.
    assert site.writes == 1


def make(path: Path, name: str) -> None:
    path.mkdir()
    (path / name).write_text("y")


KINDS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("x"),
    "link": lambda path: path.symlink_to("x"),
    "empty": lambda path: os.mkdir(path),
    "directory": lambda path: make(path, "x"),
    "pipe": lambda path: os.mkfifo(path),
    "nothing": lambda path: None,
    "opaque": lambda path: make(path, "pyvenv.cfg"),
}


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


PAIRS = [
    (before, after)
    for before in KINDS
    for after in KINDS
    # A directory that was captured, or was not, stays so as long as there is one.
    if {before, after} not in ({"opaque", "empty"}, {"opaque", "directory"})
]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_any_kind_may_become_any_other(site: Site, before: str, after: str, settled: bool) -> None:
    """A name keeps nothing of what it was."""
    fill(site, "beside")
    KINDS[before](site / "venv")
    if settled:
        settle(site)
    else:
        site.scan()
    clear(site / "venv")
    KINDS[after](site / "venv")
    assert site.scan() == site.fresh()
    site.reload()
    assert site.scan() == site.fresh()


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_declared_path_may_change_its_kind(site: Site, before: str, after: str) -> None:
    """The same, looking at nothing else."""
    fill(site, "in/beside")
    KINDS[before](site / "in/venv")
    settle(site)
    clear(site / "in/venv")
    KINDS[after](site / "in/venv")
    assert site.scan([b"in/venv"]) == site.fresh()
    assert site.scan() == site.fresh()


# --- what is not captured ----------------------------------------------------------------


def test_special_files_are_named_and_never_opened(site: Site, tmp_path: Path) -> None:
    """Opening a pipe would hang, or disturb who waits at it."""
    os.mkfifo(site / "pipe")
    os.chdir(site.root)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        assert site.paths() == {
            b"pipe": Entry("skipped", os.stat("pipe").st_mode & 0o7777, 0, b"a pipe"),
            b"socket": Entry("skipped", os.stat("socket").st_mode & 0o7777, 0, b"a socket"),
        }
    os.chdir("/")


def test_a_file_replaced_by_a_pipe_does_not_hang(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and the opening."""
    fill(site, "a")
    real = os.open

    def replace(path: object, flags: int, *args: int, **more: int) -> int:
        if path == b"a" and not (site / "a").is_fifo():
            (site / "a").unlink()
            os.mkfifo(site / "a")
        return real(path, flags, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", replace)
    assert site.paths()[b"a"].value == b"a pipe"


@pytest.mark.parametrize("after", KINDS)
def test_a_file_replaced_while_it_is_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Whatever it became, the next scan has it right."""
    fill(site, "a", "z")
    real = os.open
    done: list[int] = []

    def replace(path: object, flags: int, *args: int, **more: int) -> int:
        if path == b"a" and not done:
            done.append(1)
            clear(site / "a")
            KINDS[after](site / "a")
        return real(path, flags, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", replace)
    site.scan()
    assert done
    assert site.scan() == site.fresh()


def test_large_files_are_skipped_with_their_size(site: Site) -> None:
    """At the limit a file is kept, above it is not, and below again it is."""
    site.limits = Limits(file_size=100)
    (site / "at").write_bytes(b"x" * 100)
    (site / "over").write_bytes(b"x" * 101)
    found = site.paths()
    assert found[b"at"].kind == "file"
    assert found[b"over"] == Entry("skipped", found[b"at"].mode, 101, b"over 100 bytes")
    assert site.reasons() == {b"over": b"over 100 bytes"}
    (site / "over").write_bytes(b"x")
    (site / "at").write_bytes(b"x" * 102)
    found = site.paths()
    assert (found[b"over"].kind, found[b"at"].kind) == ("file", "skipped")


def test_version_control_is_opaque_and_nested_repositories_are_not(site: Site) -> None:
    """Only `.git` itself, a directory or the file that points to one."""
    fill(site, ".git/HEAD", "nested/.git/HEAD", "nested/a", "tree/b", ".gitmodules")
    (site / "tree/.git").write_text("gitdir: /elsewhere\n")
    found = site.paths()
    assert {path for path, entry in found.items() if entry.kind == "opaque"} == {
        b".git", b"nested/.git", b"tree/.git",
    }  # fmt: skip
    assert {b"nested/a", b"tree/b", b".gitmodules"} <= found.keys()
    assert not any(path.endswith(b"HEAD") for path in found)


def test_reserved_names_are_not_seen(site: Site) -> None:
    """What a restore is building is no change."""
    fill(site, ".backtrail-tmp-01a1ec19-7813-7160-8f24-34262000845a", "d/a")
    (site / ".backtrail-tmp-01a1ec19-7813-7160-8f24-34262000845b").mkdir()
    digest = site.scan()
    assert site.paths(digest).keys() == {b"d", b"d/a"}
    fill(site, "d/.backtrail-tmp-01a1ec19-7813-7160-8f24-34262000845c")
    assert (
        site.scan()
        == site.scan([b"d/.backtrail-tmp-01a1ec19-7813-7160-8f24-34262000845c"])
        == digest
    )


def test_our_stores_are_left_alone(site: Site) -> None:
    """Known by inode, or by marker and layout, and not in the tree; what was captured stays."""
    fill(site, "store.db", "store/log", "marked/sessions/s/messages.jsonl", "later/a", "b")
    (site / "marked/.backtrail-store").write_text("0" * 32 + "\n\n")
    own = [str(site / name) for name in ("store.db", "store.db-wal", "store")]
    site.limits = Limits(own=OwnPlaces(own))
    digest = site.scan()
    assert site.paths(digest).keys() == {b"later", b"later/a", b"b"}
    assert site.reasons().keys() == {b"store.db", b"store", b"marked"}
    fill(site, "store.db-wal")
    assert site.scan() == digest
    assert site.scan([b"store/log", b"marked/lock", b"store.db"]) == digest
    fill(site, "later/.backtrail-store")
    assert site.scan() == digest
    site.limits = Limits(own=OwnPlaces([*own, str(site / "b")]))
    fill(site, "b")
    assert site.paths().keys() == {b"later", b"later/a"}


def test_mounts_are_opaque(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device below the root, mounted before the first scan or after."""
    fill(site, "on/a", "late/b")
    real = os.fstat
    mounted = {os.stat(site / "on").st_ino}

    def elsewhere(fd: int) -> os.stat_result:
        status = real(fd)
        if status.st_ino not in mounted:
            return status
        return os.stat_result([*status[:2], status.st_dev + 1, *status[3:]])

    monkeypatch.setattr(os, "fstat", elsewhere)
    before = site.paths(settle(site))
    assert before[b"on"] == Entry("opaque", 0, 0, b"mounted")
    mounted.add(os.stat(site / "late").st_ino)
    found = site.paths()
    assert found[b"late"].kind == "opaque"
    mounted.clear()
    found = site.paths()
    assert {path: entry.kind for path, entry in found.items()} == {
        b"on": "directory", b"on/a": "file", b"late": "directory", b"late/b": "file",
    }  # fmt: skip


def test_an_opaque_directory_that_vanishes_leaves_the_tree(site: Site) -> None:
    """The workspace says what that means."""
    fill(site, "node_modules/a", "b")
    assert b"node_modules" in site.paths()
    shutil.rmtree(site / "node_modules")
    assert site.paths().keys() == {b"b"}


# --- what cannot be read -----------------------------------------------------------------


def test_unreadable_things_are_never_absent(site: Site) -> None:
    """In the tree with the reason, back when they can be read, without a word about deletion."""
    fill(site, "d/in", "f", "half/x")
    settle(site)
    (site / "d").chmod(0)
    (site / "f").chmod(0)
    (site / "half").chmod(0o744)
    for _ in range(2):
        found = site.paths(site.scan(weak=True))
        assert found.keys() == {b"d", b"f", b"half", b"half/x"}
        assert found[b"d"] == Entry("opaque", 0, 0, b"unreadable: Permission denied")
        assert found[b"f"].kind == found[b"half/x"].kind == "skipped"
        assert found[b"f"].value.startswith(b"unreadable")
    site.index.changed = False
    site.scan(weak=True)
    assert site.writes == 0
    assert not site.index.changed
    site.reload()
    for name in ("d", "f", "half"):
        (site / name).chmod(0o755)
    assert site.scan(weak=True) == site.fresh()


def test_new_unreadable_directories_are_entered_when_they_can_be(site: Site) -> None:
    """By the rules that hold for new ones: they were never captured."""
    fill(site, "d/in", "venv/pyvenv.cfg", ".git/HEAD")
    for name in ("d", "venv", ".git"):
        (site / name).chmod(0)
    found = site.paths(site.scan(weak=True))
    assert {name: found[name].kind for name in (b"d", b"venv", b".git")} == {
        b"d": "opaque", b"venv": "opaque", b".git": "opaque",
    }  # fmt: skip
    for name in ("d", "venv", ".git"):
        (site / name).chmod(0o755)
    assert site.scan(weak=True) == site.fresh()
    assert site.paths()[b"venv"].value == ignore.PACKAGES


@pytest.mark.parametrize("name", [b"f", b"d"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_passing_error_is_no_deletion(
    site: Site, monkeypatch: pytest.MonkeyPatch, code: int, name: bytes
) -> None:
    """A disk or a network that hesitates does not delete files."""
    fill(site, "f", "d/in")
    before = settle(site)
    real_stat, real_open = os.stat, os.open

    def fail(path: object) -> None:
        if path == name:
            raise OSError(code, os.strerror(code))

    def stat_(path: object, **more: object) -> os.stat_result:
        fail(path)
        return real_stat(path, **more)  # type: ignore[arg-type]

    def open_(path: object, *args: int, **more: int) -> int:
        fail(path)
        return real_open(path, *args, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat_)
        patch.setattr(os, "open", open_)
        found = site.paths(site.scan())
        declared = site.paths(site.scan([name]))
    assert found[name].kind in ("skipped", "opaque")
    assert declared[name].kind in ("skipped", "opaque")
    assert site.scan() == before


def test_no_descriptors_left_is_a_failure(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing about the files, and the next scan is whole."""
    fill(site, "f", "d/in")
    real = os.open

    def open_(path: object, *args: int, **more: int) -> int:
        if path == b"d":
            raise OSError(errno.EMFILE, "too many")
        return real(path, *args, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        with pytest.raises(StoreFailed):
            site.scan()
    assert site.index.doubtful
    site.index.doubt(set(site.index.digests()) - site.blobs.has(set(site.index.digests())))
    assert site.scan() == site.fresh()


def test_an_unreadable_root_is_a_failure(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not an empty tree."""

    def scandir(fd: int) -> object:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StoreFailed, match="broken"):
        site.scan()


# --- depth, numbers, stopping ------------------------------------------------------------


def nest(site: Site, depth: int) -> None:
    """A tree `depth` directories deep, with a file and a sibling in each."""
    fd = os.open(site.root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(b"d", dir_fd=fd)
        os.mkdir(b"e", dir_fd=fd)
        os.close(os.open(b"f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd))
        below = os.open(b"d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def test_depth_is_no_limit(site: Site) -> None:
    """Deeper than Python calls, than paths are long, than descriptors are many."""
    import resource

    nest(site, 1500)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 80, hard))
    try:
        digest = site.scan()
        assert len(site.paths(digest)) == 4500
        site.reload()
        assert site.scan() == site.fresh() == digest
        assert site.scan([b"d/" * 1400 + b"f"]) == digest
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        subprocess_rm(site.root)


def subprocess_rm(root: Path) -> None:
    """Remove what is too deep for `shutil`."""
    import subprocess

    subprocess.run(["rm", "-rf", root], check=True)


def test_descriptors_are_closed(site: Site) -> None:
    """After a scan, after a failed one, after a stopped one."""
    nest(site, 60)
    before = len(os.listdir("/dev/fd"))
    site.scan()
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 50

    with site.opened() as fd, pytest.raises(Stopped):
        Scanner(Index("", 0), Capture(site.blobs), stop=stop).scan(fd)
    assert len(os.listdir("/dev/fd")) == before


def test_a_moved_directory_ends_the_scan(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes back up must not find himself in another directory."""
    nest(site, 40)
    (site / "elsewhere").mkdir()
    asked: list[int] = []

    def move() -> bool:
        asked.append(1)
        if len(asked) == 45:
            (site / "d/d").rename(site / "elsewhere/d")
        return False

    monkeypatch.setattr(trail, "_OPEN", 2)
    with site.opened() as fd, pytest.raises(StoreFailed, match="moved"):
        Scanner(site.index, Capture(site.blobs), stop=move).scan(fd)
    site.index.doubt(set(site.index.digests()) - site.blobs.has(set(site.index.digests())))
    assert site.scan() == site.fresh()


def test_a_stopped_import_goes_on(site: Site) -> None:
    """What was read is not read again, and what was not is not forgotten."""
    fill(site, *(f"d{n}/f{m}" for n in range(20) for m in range(5)))
    settle(Site(site.root, blobs=site.blobs))
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 20

    capture = Capture(site.blobs)
    with site.opened() as fd, pytest.raises(Stopped):
        Scanner(site.index, capture, stop=stop).scan(fd)
    capture.finish()
    assert site.index.doubtful
    site.reload()
    assert site.index.doubtful
    known = set(site.index.digests())
    assert len(known) >= 40
    site.index.doubt(known - site.blobs.has(known))
    assert site.scan([b"d0/f0"]) == site.fresh()
    assert plainly(site.paths()) == truth(site.root)


def test_a_large_directory_can_be_stopped(site: Site) -> None:
    """Not only between directories."""
    fill(site, *(f"f{n}" for n in range(1000)))
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 4

    with site.opened() as fd, pytest.raises(Stopped):
        Scanner(site.index, Capture(site.blobs), stop=stop).scan(fd)
    known = set(site.index.digests())
    assert 0 < len(known) < 1000
    site.index.doubt(known - site.blobs.has(known))
    assert site.scan() == site.fresh()


def test_progress_counts_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows, and ends with all of them."""
    fill(site, *(f"d{n}/f{m}" for n in range(10) for m in range(250)))
    heard: list[int] = []
    with site.opened() as fd:
        Scanner(site.index, Capture(site.blobs), progress=heard.append).scan(fd)
    assert len(heard) >= 3
    assert heard == sorted(set(heard))
    assert heard[-1] == 2510


# --- the store ---------------------------------------------------------------------------


def test_what_the_store_lost_is_read_again(site: Site) -> None:
    """After doubt, everything the tree needs is there."""
    fill(site, "a", "d/b", "d/e/c")
    digest = settle(site)
    lost = site.paths(digest)[b"d/b"].value
    site.blobs.remove({lost, digest})
    site.index.doubt(set(site.index.digests()) - site.blobs.has(set(site.index.digests())))
    assert site.scan() == digest
    assert site.blobs.get(lost) == b"d/b"
    assert parse_tree(site.blobs.get(digest))


def test_another_device_believes_no_number(site: Site) -> None:
    """The same files on another device: read again, the same digest, nothing forgotten."""
    fill(site, "d/a", "build/x")
    digest = settle(site)
    fill(site, ".backtrailignore")
    (site / ".backtrailignore").write_text("build/\n")
    digest = site.scan()
    site.index.device += 1
    touch_back(site / "d/a", lambda path: path.write_text("new"))
    assert site.scan() != digest
    assert site.paths()[b"build/x"].kind == "file"


# --- declared paths ----------------------------------------------------------------------


def test_only_declared_paths_are_looked_at(site: Site) -> None:
    """Others may have changed: that is for the next scan of everything."""
    fill(site, "a", "d/b", "d/c", "e/f")
    settle(site)
    before = site.paths()
    fill(site, "d/new", "d/undeclared", "far/off/x", "far/off/y")
    for path in ("a", "d/b", "d/c", "e/f"):
        (site / path).write_text("changed")
    (site / "e").chmod(0o700)
    found = site.paths(site.scan([b"d/b", b"d/new", b"far/off/x", b"missing/x", b"d/b"]))
    assert found.keys() - before.keys() == {b"d/new", b"far", b"far/off", b"far/off/x"}
    assert [path for path in before if found[path] != before[path]] == [b"d", b"d/b"]
    assert site.scan() == site.fresh()


def test_declared_paths_that_go(site: Site) -> None:
    """With their directory, or without."""
    fill(site, "d/a", "d/b", "e/f/g")
    settle(site)
    (site / "d/a").unlink()
    shutil.rmtree(site / "e")
    assert site.scan([b"d/a", b"e/f/g"]) == site.fresh()


def test_a_declared_directory_is_all_that_is_in_it(site: Site) -> None:
    """New, known or changed; and an empty path is everything."""
    fill(site, "d/a", "d/e/b", "other")
    settle(site)
    (site / "d/e/b").write_text("changed")
    fill(site, "d/x/y/z", "new/a/b")
    (site / "d").chmod(0o711)
    assert site.scan([b"d", b"d/e", b"new/"]) == site.fresh()
    fill(site, "anything")
    assert site.scan([b"./", b"d"]) == site.fresh()


@pytest.mark.parametrize(
    "path",
    [b"node_modules/x", b"link/a", b"../outside", b"d/../../outside", b"/etc/passwd", b"a/x"],
)
def test_paths_that_lead_nowhere_are_ignored(site: Site, tmp_path: Path, path: bytes) -> None:
    """Below what is opaque, through a link, outside, or below a file."""
    fill(site, "d/a", "a", "node_modules/x")
    (site / "link").symlink_to("d")
    (tmp_path / "outside").write_text("x")
    digest = settle(site)
    (site / "d/a").write_text("changed")
    (site / "node_modules/x").write_text("changed")
    assert site.scan([path]) == digest


def test_a_directory_that_became_a_link_is_not_followed(site: Site, tmp_path: Path) -> None:
    """Declared paths behind it are not those that were meant."""
    fill(site, "d/a")
    settle(site)
    shutil.rmtree(site / "d")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a").write_text("secret")
    (site / "d").symlink_to(tmp_path / "outside")
    assert site.scan([b"d/a"]) == site.fresh()
    assert site.paths()[b"d"].kind == "link"


def test_declared_paths_without_an_index_are_a_whole_scan(site: Site) -> None:
    """There is no rest to be taken as known."""
    fill(site, "a", "b")
    assert site.scan([b"a"]) == site.fresh()
