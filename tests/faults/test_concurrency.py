"""Many processes and threads on one store: nothing is torn, lost, doubled or stuck."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.faults import variants
from tests.faults.kill import Violation
from tests.faults.raw import main_log
from tests.faults.variants import Broken, sound
from tests.faults.workers import STORES, Worker, url_of

from backtrail.errors import NotFound, StoreFailed
from backtrail.events import Event, NewEvent, Problem, SessionInfo
from backtrail.stores import open_store
from backtrail.stores.base import Store

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.timeout(300),
]

KINDS = list(STORES)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every store on a disk in turn."""
    return url_of(request.param, tmp_path)


# --- many writers ------------------------------------------------------------------------


def appending(
    url: str, name: int, count: int, broken: Broken = sound
) -> Callable[[Callable[[str], None]], None]:
    """A process that appends singles and batches, and reports each acknowledged event."""

    def body(report: Callable[[str], None]) -> None:
        dice = random.Random(name)
        with broken(), open_store(url) as store:
            at = 0
            while at < count:
                size = min(dice.choice([1, 1, 1, 1, 3]), count - at)
                batch = [
                    NewEvent("test", {"by": name, "n": at + k, "text": "x" * dice.randint(0, 500)})
                    for k in range(size)
                ]
                stored = store.append("s", batch)
                at += size
                report(" ".join(f"{event.seq}:{event.data['n']}" for event in stored))

    return body


def many(url: str, processes: int, count: int, *, kill: bool, broken: Broken = sound) -> None:
    """Let processes append together, half of them killed meanwhile, and check the log."""
    with open_store(url) as store:
        store.create(SessionInfo("s"))
    # Those to be killed never come to an end by themselves.
    counts = [count if name % 2 or not kill else 10**6 for name in range(processes)]
    workers = [Worker(appending(url, name, n, broken)) for name, n in enumerate(counts)]
    if kill:
        dice = random.Random(processes)
        for worker in workers[::2]:
            worker.line()
        for worker in workers[::2]:
            time.sleep(dice.random() * 0.02)
            worker.kill()
    reported = [worker.wait(600) for worker in workers]
    if kill:
        assert sum(worker.child.killed for worker in workers) >= processes // 4
    problems: list[Problem] = []
    with open_store(url, on_damage=problems.append) as store:
        check_log(store, reported, count, kill=kill)
        left = [p for p in store.verify() if not (kill and p.what.startswith("torn"))]
        if left:
            raise Violation(f"the log is damaged: {left[:3]}")


def check_log(store: Store, reported: list[list[str]], count: int, *, kill: bool) -> None:
    """Whole, in order, without gaps that damage does not explain, nothing lost."""
    events = list(store.read("s"))
    seqs = [event.seq for event in events]
    if seqs != sorted(set(seqs)) or (not kill and seqs != list(range(1, len(seqs) + 1))):
        raise Violation("numbers are missing or come twice")
    found = {event.seq: event for event in events}
    for name, lines in enumerate(reported):
        mine = [event.data["n"] for event in events if event.data["by"] == name]
        if mine != list(range(len(mine))):
            raise Violation(f"the order of process {name} is lost")
        if len(mine) != count and not (kill and name % 2 == 0):
            raise Violation(f"process {name} has {len(mine)} of {count} events")
        for item in " ".join(lines).split():
            seq, n = map(int, item.split(":"))
            if found.get(seq) is None or found[seq].data["n"] != n:
                raise Violation(f"event {seq} of process {name} was acknowledged and is gone")
    newest = store.append("s", [NewEvent("last", {})])[0]
    if newest.seq <= seqs[-1] or store.tail("s", 1) != [newest]:
        raise Violation("the log does not go on")


def test_many_processes(url: str) -> None:
    """16 processes at once: every event whole, no gap, each one's order kept."""
    many(url, 16, 1000, kill=False)


def test_many_processes_half_of_them_killed(url: str) -> None:
    """16 processes, 8 killed by SIGKILL meanwhile: what was acknowledged is there."""
    many(url, 16, 300, kill=True)


@pytest.mark.torture
@pytest.mark.parametrize("kill", [False, True], ids=["alive", "killed"])
def test_many_processes_at_length(url: str, kill: bool) -> None:
    """16 processes, 5,000 events each."""
    many(url, 16, 5000, kill=kill)


def test_many_processes_find_a_store_without_locks(tmp_path: Path) -> None:
    """The check fails on a store that does not lock, as soon as two of them meet."""
    with pytest.raises(Violation):
        for attempt in range(20):
            url = url_of("jsonl", tmp_path / str(attempt))
            many(url, 8, 200, kill=False, broken=variants.not_locking)


def test_many_threads_synced(url: str) -> None:
    """32 threads, each event on the disk when its append returns: one sync serves many."""
    with open_store(url, durability="synced") as store:
        store.create(SessionInfo("s"))

        def work(name: int) -> list[int]:
            return [
                store.append("s", [NewEvent("test", {"by": name, "n": n})])[0].seq
                for n in range(20)
            ]

        with ThreadPoolExecutor(32) as pool:
            given = list(pool.map(work, range(32)))
        assert sorted(seq for seqs in given for seq in seqs) == list(range(1, 641))
        for name, seqs in enumerate(given):
            mine = [event for event in store.read("s") if event.data["by"] == name]
            assert [event.seq for event in mine] == seqs
            assert [event.data["n"] for event in mine] == list(range(20))
        assert store.verify() == []


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
def test_readers_meet_no_damage_while_others_write(url: str, reverse: bool) -> None:
    """A reader beside a writer of large batches sees whole batches, and no damage."""
    with open_store(url) as store:
        store.create(SessionInfo("s"))

    def body(report: Callable[[str], None]) -> None:
        with open_store(url) as store:
            for n in range(150):
                text = "x" * 3000
                store.append("s", [NewEvent("t", {"n": n, "text": text}) for _ in range(20)])

    worker = Worker(body)
    problems: list[Problem] = []
    looks = 0
    with open_store(url, on_damage=problems.append) as store:
        while os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            events = list(store.read("s", reverse=reverse, limit=45 if reverse else None))
            looks += 1
            if reverse:
                events.reverse()
                events = [event for event in events if event.seq > events[0].seq + 20]
            assert [e.seq for e in events] == [events[0].seq + n for n in range(len(events))]
            assert len(events) % 20 == 0 or reverse
        worker.wait()
        assert looks > 5
        assert problems == []


# --- deleting under a writer -------------------------------------------------------------


def test_deleting_under_other_processes(url: str) -> None:
    """A session deleted under live writers: `NotFound`, and nothing acknowledged after."""
    with open_store(url) as store:
        for at in range(10):
            id = f"s{at}"
            store.create(SessionInfo(id))
            store.append(id, [NewEvent("first", {}), NewEvent("second", {})])
            fork = SessionInfo(f"f{at}", parent_id=id, relation="fork", fork_seq=2)
            store.create(fork, base=(id, 2))

            def body(report: Callable[[str], None], id: str = id) -> None:
                with open_store(url) as store:
                    try:
                        while True:
                            report(f"start {time.monotonic()}")
                            store.append(id, [NewEvent("more", {})])
                    except NotFound:
                        report("gone")

            workers = [Worker(body) for _ in range(3)]
            for worker in workers:
                worker.line()
                worker.line()
            store.delete(id)
            deleted = time.monotonic()
            if at % 2:
                store.create(SessionInfo(id, title="another"))
            for worker in workers:
                if at % 2:
                    time.sleep(0.01)
                    continue
                lines = worker.wait()
                starts = [float(line.split()[1]) for line in lines if line.startswith("start")]
                assert lines[-1] == "gone"
                assert len([start for start in starts if start > deleted]) <= 1
            if at % 2:
                # The id is in use again: writers go on in the new session, or nowhere.
                store.delete(id)
                for worker in workers:
                    assert worker.wait()[-1] == "gone"
            assert [event.kind for event in store.read(f"f{at}")] == ["first", "second"]
        assert len(store.sessions()) == 10
        assert [p for p in store.verify() if p.what != "stray"] == []


def test_deleting_under_threads(url: str) -> None:
    """The same within one process: an append after the deletion is `NotFound`."""
    with open_store(url) as store:
        for at in range(10):
            store.create(SessionInfo("s"))
            gone = threading.Event()
            late: list[Event] = []

            def work(gone: threading.Event = gone, late: list[Event] = late) -> None:
                try:
                    while True:
                        was_gone = gone.is_set()
                        stored = store.append("s", [NewEvent("more", {})])
                        if was_gone:
                            late.extend(stored)
                except NotFound:
                    return

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.01 + at * 0.002)
            store.delete("s")
            gone.set()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()
            assert late == []
        assert store.sessions() == []


def test_recreated_session_is_another(url: str) -> None:
    """A writer that held a deleted session writes to the new one of that id, from 1 on."""
    with open_store(url) as store, open_store(url) as other:
        store.create(SessionInfo("s"))
        for n in range(5):
            store.append("s", [NewEvent("old", {"n": n})])
        store.create(SessionInfo("f", parent_id="s", relation="fork", fork_seq=3), base=("s", 3))
        other.delete("s")
        with pytest.raises(NotFound):
            store.append("s", [NewEvent("void", {})])
        other.create(SessionInfo("s"))
        assert store.append("s", [NewEvent("new", {})])[0].seq == 1
        assert [event.kind for event in other.read("s")] == ["new"]
        assert [event.data["n"] for event in other.read("f")] == [0, 1, 2]
        assert store.append("f", [NewEvent("own", {})])[0].seq == 4


def test_deleted_folder_behind_the_store(tmp_path: Path) -> None:
    """A session whose files were removed by hand is `NotFound`, not written to the void."""
    with open_store(url_of("jsonl", tmp_path)) as store:
        store.create(SessionInfo("s"))
        store.append("s", [NewEvent("first", {})])
        main_log(tmp_path / "store", "s").unlink()
        with pytest.raises((NotFound, StoreFailed)):
            store.append("s", [NewEvent("void", {})])
