"""When the disk says no, the caller hears of it, and nothing is acknowledged."""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults import variants
from tests.faults.calls import Calls, Strike, filling, refusing
from tests.faults.kill import Violation, forked
from tests.faults.raw import log_file, main_log, numbers
from tests.faults.script import Step, after, observe
from tests.faults.variants import Broken

from backtrail.errors import AlreadyExists, BacktrailError, StoreFailed
from backtrail.events import MAIN_LOG, NewEvent, SessionInfo
from backtrail.stores import jsonl, syncing
from backtrail.stores.base import Durability
from backtrail.stores.jsonl import JSONLStore
from backtrail.stores.options import Options

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

CODES = [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EDQUOT]

SETUP = [Step("create", "a"), Step("append", "a", "first", 3), Step("update", "a", "old")]

STEPS = {
    "append": Step("append", "a", "single"),
    "batch": Step("append", "a", "lot", 4, size=300),
    "side log": Step("append", "a", "side", 2, log="subagents/x"),
    "create": Step("create", "b"),
    "fork": Step("create", "b", base=("a", 2)),
    "update": Step("update", "a", "new"),
    "purge": Step("purge", "a", seqs=(2,)),
    "delete": Step("delete", "a"),
}


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs happen when asked for, so that a run can be repeated."""
    monkeypatch.setattr(syncing.background, "add", lambda file: None)


def refused_at(
    root: Path, step: Step, strike: Strike, point: int, durability: Durability, lasting: bool
) -> bool:
    """One fault at the `point`-th call of `step`; False when the step has fewer calls."""
    script = [*SETUP, step]
    with JSONLStore(root, Options(durability=durability)) as store:
        for first in SETUP:
            first.run(store)
        calls = Calls(strike, point, lasting=lasting)
        refusal: Exception | None = None
        with calls:
            try:
                step.run(store)
            except Exception as error:
                refusal = error
        if not calls.struck:
            return False
        where = f"{step.verb} at call {point} ({calls.struck[0]})"
        seen = observe(store)
        if refusal is None:
            # A fault that costs nothing need not be told, but then all must be done.
            if seen != after(script, 4):
                raise Violation(f"{where} was acknowledged and is not there: {seen}")
        else:
            check_refusal(refusal, where)
            if step.verb != "purge" and seen not in (after(script, 3), after(script, 4)):
                raise Violation(f"{where} is half done: {seen}")
        if not (refusal is not None and calls.struck[0] == "fdatasync"):
            go_on(store, root, step, where)
    with JSONLStore(root) as store:
        go_on(store, root, step, f"{where}, reopened")
    return True


def check_refusal(error: Exception, where: str) -> None:
    """An error of the library that says what failed and why."""
    if not isinstance(error, StoreFailed) or error.errno not in CODES:
        raise Violation(f"{where} raised {error!r}") from error
    if os.strerror(error.errno) not in str(error) or "`" not in str(error):
        raise Violation(f"{where} says only: {error}")


def go_on(store: JSONLStore, root: Path, step: Step, where: str) -> None:
    """With the fault gone, what was refused can be repeated and more can be written."""
    path = log_file(root, step.session, step.log)
    used = numbers(path.read_bytes()) if path.exists() else set()
    there = {event.id for event in store.read("a", log=step.log)} if step.verb == "append" else {}
    try:
        step.run(store)
    except AlreadyExists:
        pass
    except LookupError:
        if step.verb != "delete":
            raise
    if step.verb == "append":
        again = {e.seq for e in store.read("a", log=step.log) if e.id not in there}
        if again & used:
            raise Violation(f"{where}: numbers {again & used} used again")
    for info in store.sessions():
        log = step.log if step.session == info.id else MAIN_LOG
        used = numbers(log_file(root, info.id, log).read_bytes())
        rows = list(store.read(info.id, log=log))
        new = store.append(info.id, [NewEvent("later", {})], log=log)
        if new[0].seq <= max(used, default=0):
            raise Violation(f"{where}: number {new[0].seq} is used again")
        if list(store.read(info.id, log=log)) != rows + new:
            raise Violation(f"{where}: the log does not go on")
        if list(store.read(info.id, log=log, reverse=True)) != (rows + new)[::-1]:
            raise Violation(f"{where}: the log is another one backwards")


def sweep(fast: Path, step: Step, strike: Callable[[int], Strike], lasting: bool) -> int:
    """Every call of a step in turn, at both durabilities; how many faults there were."""
    count = 0
    durabilities: tuple[Durability, ...] = ("written", "synced")
    for durability in durabilities:
        point = 1
        while refused_at(
            fast / f"{durability}{point}", step, strike(point), point, durability, lasting
        ):
            point += 1
            count += 1
    return count


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))
def test_every_call_may_fail(fast: Path, step: Step, code: int) -> None:
    """One refused call at any place: an error, no false acknowledgement, and the store goes on."""
    assert sweep(fast, step, lambda _: refusing(code), lasting=False) >= 3


@pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))
def test_every_call_may_go_on_failing(fast: Path, step: Step) -> None:
    """A fault that stays while the store cleans up: as with one that goes away."""
    assert sweep(fast, step, lambda _: refusing(errno.EIO), lasting=True) >= 3


@pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))
def test_disk_fills_up_within_a_write(fast: Path, step: Step) -> None:
    """A short write, then no space: nothing half written is ever taken for an event."""

    def strike(point: int) -> Strike:
        return filling(errno.ENOSPC, random.Random(point))

    assert sweep(fast, step, strike, lasting=True) >= 3


def test_disk_fills_up_and_cutting_back_fails(fast: Path) -> None:
    """A torn tail that cannot be taken back nor sealed is not glued to, at any later try."""
    with JSONLStore(fast) as store:
        for step in SETUP:
            step.run(store)
        full = filling(errno.ENOSPC, random.Random(5))
        with Calls(full, 1, names=("write", "ftruncate"), lasting=True) as calls:
            real = refusing(errno.EIO)
            os.ftruncate = lambda *args: real("ftruncate", os.ftruncate, args, {})
            for _ in range(3):
                with pytest.raises(StoreFailed):
                    Step("append", "a", "big", 2, size=500).run(store)
        assert calls.struck
        torn = main_log(fast, "a").read_bytes()
        assert not torn.endswith(b"\n")
        used = numbers(torn)
        new = store.append("a", [NewEvent("later", {})])
        assert new[0].seq > max(used)
        assert main_log(fast, "a").read_bytes().startswith(torn + b"\n{")
        assert list(store.read("a"))[3:] == new


def test_error_sweep_finds_swallowed_errors(fast: Path) -> None:
    """The sweep fails on a store that acknowledges what it could not write."""
    with variants.swallowing_errors(), pytest.raises(Violation, match="and is not there"):
        sweep(fast, STEPS["append"], lambda _: refusing(errno.EIO), lasting=False)


def test_error_sweep_finds_glued_events(fast: Path) -> None:
    """The sweep fails on a store that writes on behind half a line."""
    with variants.keeping_short_writes(), pytest.raises(Violation, match="used again"):
        sweep(
            fast,
            STEPS["batch"],
            lambda point: filling(errno.ENOSPC, random.Random(point)),
            lasting=True,
        )


# --- syncs that fail ---------------------------------------------------------------------


@contextmanager
def failing_syncs(path: Path) -> Iterator[list[int]]:
    """The first `fdatasync` of one file fails; later ones succeed, as Linux does it."""
    real = os.fdatasync
    failures: list[int] = []

    def fdatasync(fd: int) -> None:
        mine = path.exists() and os.path.samestat(os.fstat(fd), path.stat())
        if mine and not failures:
            failures.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    os.fdatasync = fdatasync
    try:
        yield failures
    finally:
        os.fdatasync = real


def failed_sync(root: Path, durability: Durability) -> None:
    """A failed sync of one log, and what is acknowledged on it and on others after."""
    with JSONLStore(root, Options(durability=durability)) as store:
        for id in ("a", "b"):
            store.create(SessionInfo(id))
            store.append(id, [NewEvent("first", {})])
        store.flush()
        with failing_syncs(main_log(root, "a")) as failures:
            if durability == "synced":
                with pytest.raises(StoreFailed, match=r"`a` could not be synced"):
                    store.append("a", [NewEvent("second", {}, id="second")])
            else:
                store.append("a", [NewEvent("second", {}, id="second")])
                with pytest.raises(StoreFailed, match=r"`a` could not be synced"):
                    store.flush()
            assert failures
            for _ in range(3):
                with pytest.raises(StoreFailed, match="acknowledges nothing"):
                    store.append("a", [NewEvent("third", {}, id="third")])
            with pytest.raises(StoreFailed):
                store.flush()
            store.append("b", [NewEvent("second", {})])
            store.append("a", [NewEvent("aside", {})], log="transcript")
            assert [event.kind for event in store.read("a")] == ["first", "second"]
    with JSONLStore(root, Options(durability=durability)) as store:
        assert store.append("a", [NewEvent("third", {}, id="third")])[0].seq == 3
        store.flush()


@pytest.mark.parametrize("durability", ["written", "synced"])
def test_failed_sync_ends_acknowledgement(fast: Path, durability: Durability) -> None:
    """After a failed sync a log acknowledges nothing more until reopened; others go on."""
    failed_sync(fast, durability)


@pytest.mark.parametrize("broken", [variants.retrying_syncs, variants.not_syncing])
@pytest.mark.parametrize("durability", ["written", "synced"])
def test_failed_sync_finds_broken_stores(
    fast: Path, durability: Durability, broken: Broken
) -> None:
    """A store that tries again, or does not sync at all, is found out."""
    with broken(), pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        failed_sync(fast, durability)


def test_failed_background_sync_ends_acknowledgement(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody waited for and could not be synced stops the next append."""
    monkeypatch.undo()
    with JSONLStore(fast) as store:
        store.create(SessionInfo("a"))
        with failing_syncs(main_log(fast, "a")) as failures:
            store.append("a", [NewEvent("first", {})])
            deadline = time.monotonic() + 10
            while not failures and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.05)
            with pytest.raises(StoreFailed, match="acknowledges nothing"):
                store.append("a", [NewEvent("second", {})])


def test_failed_sync_when_a_log_is_put_away(fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that fails while files are closed to open others stops its own log only."""
    monkeypatch.setattr(jsonl, "OPEN_FOLDERS", 2)
    with JSONLStore(fast) as store:
        for id in ("a", "b", "c", "d"):
            store.create(SessionInfo(id))
        with failing_syncs(main_log(fast, "a")) as failures:
            store.append("a", [NewEvent("first", {})])
            for id in ("b", "c", "d"):
                store.append(id, [NewEvent("first", {})])
            assert failures
            with pytest.raises(StoreFailed, match="could not be synced"):
                store.append("a", [NewEvent("second", {})])
            for id in ("b", "c", "d"):
                store.append(id, [NewEvent("second", {})])


def test_failed_sync_at_close(fast: Path) -> None:
    """`close` tells of a failed sync, and closes everything all the same."""
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    store = JSONLStore(fast)
    for id in ("a", "b", "c"):
        store.create(SessionInfo(id))
        store.append(id, [NewEvent("first", {})])
        store.append(id, [NewEvent("first", {})], log="transcript")
    with failing_syncs(main_log(fast, "a")), pytest.raises(StoreFailed, match="`a`"):
        store.close()
    store.close()
    if before:
        assert set(os.listdir("/proc/self/fd")) == before


# --- real limits -------------------------------------------------------------------------


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
    after_filling(root, child.told.decode().split(), f"limit {limit}")


def test_file_size_limit_at_many_bytes(fast: Path) -> None:
    """A file that may not grow, at limits all over the first 4 KB: no half event counts."""
    for limit in range(0, 4097, 16):
        at_file_size(fast / str(limit), limit + limit % 15)


@pytest.mark.torture
def test_file_size_limit_at_every_byte(fast: Path) -> None:
    """A file that may not grow, at every limit from 0 to 4096 bytes."""
    for limit in range(4097):
        at_file_size(fast / str(limit), limit)


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

    done, refused = map(int, forked(body).told.split())
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
            for step in STEPS.values():
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
