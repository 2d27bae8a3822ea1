"""Writers that are killed and connections that break, at any moment, many times over."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests import postgres
from tests.proxy import CUTS, Proxy

from backtrail.errors import SessionBusy, StoreFailed
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import Store, open_store
from backtrail.testing.store.base import child, joined

WRITERS = 6
LOGS = ("messages", "side")


def opened(url: str) -> Store:
    """A store that is open; one that was never in use does not wait for its server."""
    while True:
        with suppress(StoreFailed):
            return open_store(url)


def write_on(url: str, by: str, file: Path, stop: Path) -> None:
    """Append to both logs, alone and in batches, under a lease and without one, until killed."""
    rng = random.Random(by)
    n = 0
    with opened(url) as store, open(file, "w") as acknowledged:
        while not stop.exists():
            log = LOGS[n % 2]
            given = [f"{by}-{n}-{k}" if rng.random() < 0.3 else None for k in range(1 + n % 3)]
            batch = [
                NewEvent("user_message", {"by": by, "n": n, "k": k}, id=id)
                for k, id in enumerate(given)
            ]
            events = []
            if n % 10 == 0:
                with suppress(SessionBusy), store.lease("s"):
                    events = store.append("s", batch, log=log)
            else:
                with suppress(SessionBusy):
                    events = store.append("s", batch, log=log)
            for event in events:
                acknowledged.write(f"{log} {event.seq} {event.id} {by} {n} {event.data['k']}\n")
            acknowledged.flush()
            n += 1


def run(place: Path, seconds: float, hurt: Callable[[Proxy, list[int]], int]) -> None:
    """Let writers write while they are hurt; what was acknowledged is there, once, in order."""
    server = postgres.server()
    stop = place / "stop"
    files: list[Path] = []
    with Proxy(server.port) as proxy:
        url = postgres.url_for(place).replace(f":{server.port}", f":{proxy.port}")
        with open_store(url) as store:
            store.create(SessionInfo("s"))

        def begin() -> int:
            files.append(place / f"w{len(files)}")
            files[-1].touch()
            return child(partial(write_on, url, f"w{len(files)}", files[-1], stop))

        pids = [begin() for _ in range(WRITERS)]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(random.random() * 0.1)
            if dead := hurt(proxy, pids):
                pids[pids.index(dead)] = begin()
        proxy.disarm()
        stop.touch()
        assert joined(pids) == [0] * WRITERS
    check(place, files)


def check(place: Path, files: list[Path]) -> None:
    """What is stored, against what was acknowledged."""
    with open_store(postgres.url_for(place)) as store:
        stored = {log: list(store.read("s", log=log)) for log in LOGS}
        assert store.verify() == []
    seen: set[tuple[str, int, str, str, int, int]] = set()
    for log, events in stored.items():
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        names = Counter((e.data["by"], e.data["n"], e.data["k"]) for e in events)
        assert max(names.values()) == 1
        # Batches are there as a whole.
        for by, n, k in names:
            assert k == 0 or (by, n, k - 1) in names
        for e in events:
            seen.add((log, e.seq, e.id, e.data["by"], e.data["n"], e.data["k"]))
    said = set()
    for file in files:
        for line in file.read_text().splitlines():
            words = line.split()
            if len(words) == 6:
                log, seq, id, by, n, k = words
                said.add((log, int(seq), id, by, int(n), int(k)))
    assert len(said) > 100
    assert said <= seen


def killed(proxy: Proxy, pids: list[int]) -> int:
    """A writer dies."""
    pid = random.choice(pids)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid


def broken(proxy: Proxy, pids: list[int]) -> int:
    """One piece meets with a cut, or every connection breaks."""
    if random.random() < 0.3:
        proxy.break_all()
    else:
        proxy.arm(random.choice(CUTS), random.randrange(4))
    return 0


def either(proxy: Proxy, pids: list[int]) -> int:
    """One or the other."""
    return killed(proxy, pids) if random.random() < 0.2 else broken(proxy, pids)


HURTS = [killed, broken, either]


@pytest.mark.parametrize("hurt", HURTS, ids=lambda hurt: hurt.__name__)
def test_what_was_acknowledged_stays(
    hurt: Callable[[Proxy, list[int]], int], tmp_path: Path
) -> None:
    """For a few seconds."""
    run(tmp_path, 2.5, hurt)


@pytest.mark.torture
@pytest.mark.parametrize("hurt", HURTS, ids=lambda hurt: hurt.__name__)
def test_what_was_acknowledged_stays_for_longer(
    hurt: Callable[[Proxy, list[int]], int], tmp_path: Path
) -> None:
    """For a minute."""
    run(tmp_path, 60, hurt)
