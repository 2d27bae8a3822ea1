"""One thread does the work of all that wait, and nobody is forgotten."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from backtrail import NewEvent, NotFound, SessionInfo, StoreFailed, open_store
from backtrail.stores import syncing
from backtrail.stores.combining import Combiner, Job


def test_everybody_gets_what_is_theirs() -> None:
    """Results go to who asked, whoever did the work, and fewer runs than jobs are made."""
    groups: list[int] = []

    def run(jobs: list[Job[int, int]]) -> None:
        groups.append(len(jobs))
        time.sleep(0.001)
        for job in jobs:
            job.result = job.value * 2

    combiner = Combiner(run)
    wrong: list[int] = []

    def work(base: int) -> None:
        for n in range(base, base + 50):
            if combiner.do(n) != n * 2:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(groups) == 400
    assert len(groups) < 400


def test_a_failed_group_fails_for_each_of_it_and_the_next_goes_on() -> None:
    """An error reaches every job that was not done, and the combiner is usable after it."""
    broken = True

    def run(jobs: list[Job[int, int]]) -> None:
        if broken:
            raise StoreFailed("no")
        for job in jobs:
            job.result = job.value

    combiner = Combiner(run)
    with pytest.raises(StoreFailed):
        combiner.do(1)
    broken = False
    assert combiner.do(2) == 2


def test_who_leads_next_is_woken_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The served come first: they make new jobs, and the next run does these as well."""
    go, running = threading.Semaphore(0), threading.Semaphore(0)
    woken: list[int] = []
    groups: list[list[int]] = []
    wake = Job.wake

    def noted(job: Job[int, int]) -> None:
        woken.append(job.value)
        wake(job)

    def run(jobs: list[Job[int, int]]) -> None:
        groups.append([job.value for job in jobs])
        running.release()
        go.acquire(timeout=30)

    monkeypatch.setattr(Job, "wake", noted)
    combiner = Combiner(run)
    threads: list[threading.Thread] = []

    def other(value: int, waiting: int) -> None:
        threads.append(threading.Thread(target=combiner.do, args=(value,)))
        threads[-1].start()
        while len(combiner._queue) < waiting:
            time.sleep(0.001)

    other(1, 0)
    running.acquire(timeout=30)
    other(2, 1)
    other(3, 2)
    go.release()
    running.acquire(timeout=30)
    other(4, 1)
    go.release(9)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert groups == [[1], [2, 3], [4]]
    assert woken == [2, 3, 4]


def test_who_is_alone_leads_without_a_job() -> None:
    """Meanwhile others queue up; at the end one of them leads, and after the last nobody."""
    groups: list[list[int]] = []

    def run(jobs: list[Job[int, int]]) -> None:
        groups.append(sorted(job.value for job in jobs))

    combiner = Combiner(run)
    assert combiner.begin()
    assert not combiner.begin()
    threads = [threading.Thread(target=combiner.do, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while len(combiner._queue) < 3:
        time.sleep(0.001)
    assert not groups
    combiner.end()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert groups == [[0, 1, 2]]
    assert combiner.begin()
    combiner.end()


@pytest.mark.parametrize("scheme", ["sqlite:///{}/x.db", "file:{}/x"])
def test_one_writer_waits_for_its_own_sync(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who appends alone takes the short way, and is told only when the disk has it."""
    new = [NewEvent("user_message", {"n": 1})]
    synced: list[int] = []
    real = syncing.data_sync

    def sync(fd: int) -> None:
        synced.append(fd)
        real(fd)

    with open_store(scheme.format(tmp_path), durability="synced") as store:
        store.create(SessionInfo("s"))
        store.append("s", new)
        monkeypatch.setattr(syncing, "data_sync", sync)
        monkeypatch.setattr(syncing, "DELAY", 60.0)
        for number in range(1, 6):
            store.append("s", new)
            assert len(synced) == number

        def failing(fd: int) -> None:
            raise OSError(5, "no")

        monkeypatch.setattr(syncing, "data_sync", failing)
        for _ in range(2):
            with pytest.raises(StoreFailed, match="acknowledges nothing"):
                store.append("s", new)


@pytest.mark.parametrize("begun", [False, True], ids=["queued", "begun"])
def test_who_is_interrupted_keeps_nobody_waiting(begun: bool) -> None:
    """Ctrl-C in one that waits takes only its own job back, or leaves it; the others end."""
    go, running = threading.Semaphore(0), threading.Semaphore(0)
    done: list[int] = []
    leading = 0

    def run(jobs: list[Job[int, int]]) -> None:
        nonlocal leading
        leading += 1
        assert leading == 1
        running.release()
        go.acquire(timeout=30)
        done.extend(job.value for job in jobs)
        leading -= 1

    combiner = Combiner(run)

    def waiting(number: int) -> None:
        while len(combiner._queue) < number:
            time.sleep(0.001)

    def other(value: int) -> threading.Thread:
        thread = threading.Thread(target=combiner.do, args=(value,))
        thread.start()
        return thread

    def interrupt() -> None:
        waiting(2)
        others.append(other(3))
        waiting(3)
        if begun:
            go.release()
            running.acquire(timeout=30)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    others = [other(1)]
    running.acquire(timeout=30)
    others.append(other(2))
    waiting(1)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        combiner.do(0)
    go.release(9)
    interrupting.join()
    for thread in others:
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(done) == ([0, 1, 2, 3] if begun else [1, 2, 3])
    assert combiner.do(4) is None and done[-1] == 4


@pytest.mark.parametrize("scheme", ["sqlite:///{}/x.db", "file:{}/x"])
def test_one_session_that_is_gone_does_not_fail_the_others(tmp_path: Path, scheme: str) -> None:
    """Of appends that are synced together, only those to a deleted session are refused."""
    refused: list[str] = []
    with open_store(scheme.format(tmp_path), durability="synced") as store:
        for id in ("a", "b"):
            store.create(SessionInfo(id))
            store.append(id, [NewEvent("user_message", {})])
        begin = threading.Barrier(9)

        def work(id: str) -> None:
            begin.wait()
            for n in range(40):
                try:
                    store.append(id, [NewEvent("user_message", {"n": n})])
                except NotFound:
                    refused.append(id)

        threads = [threading.Thread(target=work, args=("ab"[n % 2],)) for n in range(8)]
        for thread in threads:
            thread.start()
        begin.wait()
        store.delete("b")
        for thread in threads:
            thread.join()
        assert set(refused) <= {"b"} and refused
        assert [event.seq for event in store.read("a")] == list(range(1, 162))


@pytest.mark.parametrize("scheme", ["sqlite:///{}/x.db", "file:{}/x"])
def test_what_others_did_meanwhile_is_known(tmp_path: Path, scheme: str) -> None:
    """Synced appends of two stores take turns, also when one replaces the log by a purge."""
    url = scheme.format(tmp_path)
    new = [NewEvent("user_message", {"n": 1})]
    with open_store(url, durability="synced") as one, open_store(url, durability="synced") as two:
        one.create(SessionInfo("s"))
        for _ in range(3):
            one.append("s", new)
            two.append("s", new)
        two.purge("s", [1])
        seqs = [store.append("s", new)[0].seq for store in (one, two, one, one)]
        assert seqs == [7, 8, 9, 10]
        events = list(two.read("s"))
        assert [event.seq for event in events] == list(range(1, 11))
        assert events[0].data == {"purged": True}
        assert not two.verify()


@pytest.mark.parametrize("scheme", ["sqlite:///{}/x.db", "file:{}/x"])
def test_each_session_gets_its_own(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of several sessions that are synced together go where they belong."""
    inside, go = threading.Event(), threading.Event()
    real = syncing.data_sync

    def slow(fd: int) -> None:
        inside.set()
        go.wait(10)
        real(fd)

    with open_store(scheme.format(tmp_path), durability="synced") as store:
        for id in "ba":
            store.create(SessionInfo(id))
            store.append(id, [NewEvent("user_message", {"of": id})])
        monkeypatch.setattr(syncing, "data_sync", slow)
        told: dict[str, list[str]] = {"a": [], "b": []}

        def work(id: str) -> None:
            [event] = store.append(id, [NewEvent("user_message", {"of": id})])
            told[id].append(event.id)

        threads = [threading.Thread(target=work, args=(id,)) for id in "aabab"]
        for thread in threads:
            # The first syncs, and the others queue up behind it in this order.
            thread.start()
            inside.wait(10)
            time.sleep(0.05)
        go.set()
        for thread in threads:
            thread.join(10)
        for id, count in (("a", 4), ("b", 3)):
            events = list(store.read(id))
            assert [event.data for event in events] == [{"of": id}] * count
            assert [event.seq for event in events] == list(range(1, count + 1))
            assert sorted(event.id for event in events[1:]) == sorted(told[id])
