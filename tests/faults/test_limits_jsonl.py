"""Real limits: a full disk, a short file, no handles left, a folder one may not write."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.faults import variants
from tests.faults.kill import Violation, apart, forked
from tests.faults.raw import main_log, numbers
from tests.faults.script import REFUSED, SETUP

from backtrail.errors import AlreadyExists, BacktrailError, StoreFailed
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores.jsonl import JSONLStore

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def fill_up(store: JSONLStore, size: int) -> list[str]:
    """Append until the disk says no; the ids that were acknowledged."""
    acknowledged: list[str] = []
    for at in range(10_000):
        id = f"e{at}"
        try:
            store.append("a", [NewEvent("fill", {"text": "x" * (at % size)}, id=id)])
        except StoreFailed as error:
            assert error.errno in (errno.ENOSPC, errno.EFBIG), error
            return acknowledged
        acknowledged.append(id)
    raise AssertionError("the limit was never reached")


def after_filling(root: Path, acknowledged: list[str], where: str) -> None:
    """With space again, all acknowledged is there, nothing else, and the log goes on."""
    with JSONLStore(root) as store:
        ids = [event.id for event in store.read("a")]
        if ids != acknowledged:
            raise Violation(f"{where}: {len(ids)} events, {len(acknowledged)} acknowledged")
        used = numbers(main_log(root, "a").read_bytes())
        new = store.append("a", [NewEvent("later", {})])
        if new[0].seq <= max(used, default=0):
            raise Violation(f"{where}: number {new[0].seq} is used again")
        lines = main_log(root, "a").read_bytes().split(b"\n")
        if not lines[-2].startswith(b'{"seq":%d,' % new[0].seq):
            raise Violation(f"{where}: the event is glued to {lines[-2][:40]!r}")
        if [event.id for event in store.read("a")] != [*acknowledged, new[0].id]:
            raise Violation(f"{where}: the log does not go on")


def at_file_size(root: Path, limit: int) -> None:
    """A child whose files may not grow beyond `limit` bytes appends until refused."""
    with JSONLStore(root) as store:
        store.create(SessionInfo("a"))

    def body(pipe: int) -> None:
        # Python ignores SIGXFSZ, so the write is cut short and the next refused.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with JSONLStore(root) as store:
            acknowledged = fill_up(store, 300)
            assert [event.id for event in store.read("a")] == acknowledged
        os.write(pipe, " ".join(acknowledged).encode())

    child = forked(body)
    after_filling(root, child.reported.decode().split(), f"limit {limit}")


def at_file_sizes(folder: Path, limits: Iterable[int]) -> None:
    """The same at each of these limits."""
    for n, limit in enumerate(limits):
        at_file_size(folder / str(n), limit)


def test_file_size_limit_at_many_bytes(fast: Path) -> None:
    """A file that may not grow, at limits all over the first 4 KB: no half event counts."""
    apart(at_file_sizes, fast, [limit + limit % 15 for limit in range(0, 4097, 16)])


@pytest.mark.torture
def test_file_size_limit_at_every_byte(fast: Path) -> None:
    """A file that may not grow, at every limit from 0 to 4096 bytes."""
    apart(at_file_sizes, fast, range(4097))


def test_file_size_limit_finds_kept_short_writes(fast: Path) -> None:
    """The limit finds a store that neither cuts back nor seals what a short write left."""
    with (
        variants.keeping_short_writes(),
        variants.not_sealing(),
        pytest.raises(Violation, match="glued"),
    ):
        at_file_size(fast, 1000)


def test_full_disk(tmp_path: Path) -> None:
    """A disk that is really full: refused, readable, and in order once there is space."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    try:
        root = disk / "store"
        with JSONLStore(root) as store:
            store.create(SessionInfo("a"))
            store.append("a", [NewEvent("side", {})], log="transcript")
            ballast = disk / "ballast"
            ballast.write_bytes(b"x" * 40_000)
            acknowledged = fill_up(store, 3000)
            assert len(acknowledged) > 20
            with pytest.raises(StoreFailed, match="free some space"):
                store.create(SessionInfo("b"))
            with pytest.raises(StoreFailed, match="free some space"):
                store.update("a", title="new " * 5000)
            assert [event.id for event in store.read("a")] == acknowledged
            assert [info.id for info in store.sessions()] == ["a"]
            ballast.unlink()
            store.create(SessionInfo("b"))
            assert store.update("a", title="new").title == "new"
        after_filling(root, acknowledged, "full disk")
        with JSONLStore(root) as store:
            assert store.verify() == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("handles", [11, 12, 13, 20])
def test_few_file_handles(fast: Path, handles: int) -> None:
    """More sessions than file handles: each append works, or is refused with the reason."""

    def body(pipe: int) -> None:
        open_now = len(os.listdir("/dev/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + handles, 4096))
        refused = done = 0
        with JSONLStore(fast) as store:
            for at in range(120):
                name = f"s{at % 60}"
                for attempt in range(3):
                    try:
                        if at < 60:
                            store.create(SessionInfo(name))
                        store.append(name, [NewEvent("n", {"at": at})])
                        done += 1
                        break
                    except AlreadyExists:
                        store.append(name, [NewEvent("n", {"at": at})])
                        done += 1
                        break
                    except StoreFailed as error:
                        assert error.errno == errno.EMFILE and "ulimit" in str(error), error
                        refused += 1
                        assert attempt < 2, "closing other files did not help"
        os.write(pipe, b"%d %d" % (done, refused))

    done, refused = map(int, forked(body).reported.split())
    assert done == 120
    assert refused > 0, "the limit was never reached"
    with JSONLStore(fast) as store:
        assert sum(info.head for info in store.sessions()) == 120
        assert store.verify() == []


def test_read_only_folder(fast: Path) -> None:
    """A store one may read but not write: reads work, writes say why not."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    with JSONLStore(fast / "store") as store:
        for step in SETUP:
            step.run(store)
    for path in [fast, *fast.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)

    def body(pipe: int) -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with JSONLStore(fast / "store") as store:
            assert [event.id for event in store.read("a")] == ["first-1", "first-2", "first-3"]
            assert store.info("a").title == "old"
            assert len(store.sessions()) == 1
            for step in REFUSED.values():
                try:
                    step.run(store)
                except StoreFailed as error:
                    assert error.errno == errno.EACCES, error
                    assert "who owns the folder" in str(error), error
                else:
                    raise AssertionError(f"{step} worked")
        try:
            JSONLStore(fast / "other")
        except StoreFailed as error:
            assert "who owns the folder" in str(error), error
        else:
            raise AssertionError("a store was made")

    forked(body)


def test_errors_are_of_the_library(fast: Path) -> None:
    """A store in a place that cannot be one is refused by an error of the library."""
    (fast / "file").write_text("x")
    for place in (fast / "file", fast / "file" / "store", Path("/proc/nothing/store")):
        with pytest.raises(BacktrailError):
            JSONLStore(place)
