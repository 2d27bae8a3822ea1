"""When the disk says no, the caller hears of it, and nothing is acknowledged."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.faults import variants
from tests.faults.calls import Calls, Strike, filling, refusing
from tests.faults.kill import Violation
from tests.faults.raw import log_file, main_log, numbers
from tests.faults.script import REFUSED, SETUP, Step, after, observe
from tests.faults.variants import Broken

from backtrail.errors import AlreadyExists, StoreFailed
from backtrail.events import MAIN_LOG, NewEvent, SessionInfo
from backtrail.stores.base import Durability
from backtrail.stores.disk import sync as syncing
from backtrail.stores.jsonl import JSONLStore, opened
from backtrail.stores.opening import Options

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

CODES = [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EDQUOT]


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
            # A fault that costs nothing need not be reported, but then all must be done.
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
@pytest.mark.parametrize("step", REFUSED.values(), ids=list(REFUSED))
def test_every_call_may_fail(fast: Path, step: Step, code: int) -> None:
    """One refused call at any place: an error, no false acknowledgement, and the store goes on."""
    assert sweep(fast, step, lambda _: refusing(code), lasting=False) >= 3


@pytest.mark.parametrize("step", REFUSED.values(), ids=list(REFUSED))
def test_every_call_may_go_on_failing(fast: Path, step: Step) -> None:
    """A fault that stays while the store cleans up: as with one that goes away."""
    assert sweep(fast, step, lambda _: refusing(errno.EIO), lasting=True) >= 3


@pytest.mark.parametrize("step", REFUSED.values(), ids=list(REFUSED))
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

        def refuse_to_cut(fd: int, size: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with (
            Calls(full, 1, names=("write",), lasting=True) as calls,
            patch.object(os, "ftruncate", refuse_to_cut),
        ):
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
        sweep(fast, REFUSED["append"], lambda _: refusing(errno.EIO), lasting=False)


def test_error_sweep_finds_glued_events(fast: Path) -> None:
    """The sweep fails on a store that writes on behind half a line."""
    with variants.keeping_short_writes(), pytest.raises(Violation, match="used again"):
        sweep(
            fast,
            REFUSED["batch"],
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

    with patch.object(os, "fdatasync", fdatasync):
        yield failures


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
    """What no caller waited for and could not be synced stops the next append."""
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
    monkeypatch.setattr(opened, "OPEN_FOLDERS", 2)
    with JSONLStore(fast) as store:
        for id in "abcdefgh":
            store.create(SessionInfo(id))
        with failing_syncs(main_log(fast, "a")) as failures:
            store.append("a", [NewEvent("first", {})])
            for id in "bcdefgh":
                store.append(id, [NewEvent("first", {})])
            assert failures
            with pytest.raises(StoreFailed, match="could not be synced"):
                store.append("a", [NewEvent("second", {})])
            for id in "bcdefgh":
                store.append(id, [NewEvent("second", {})])


def test_failed_sync_at_close(fast: Path) -> None:
    """`close` reports a failed sync, and closes everything all the same."""
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


def test_interrupted_sync(fast: Path) -> None:
    """A sync that Ctrl-C cuts short proves nothing, and prevents no later sync."""
    with JSONLStore(fast, Options(durability="synced")) as store:
        store.create(SessionInfo("a"))
        interrupted = patch.object(os, "fdatasync", side_effect=KeyboardInterrupt)
        with interrupted, pytest.raises(KeyboardInterrupt):
            store.append("a", [NewEvent("first", {})])
        with patch.object(os, "fdatasync", wraps=os.fdatasync) as sync:
            done = threading.Thread(target=store.append, args=("a", [NewEvent("second", {})]))
            done.start()
            done.join(10)
            assert not done.is_alive()
            assert sync.called
