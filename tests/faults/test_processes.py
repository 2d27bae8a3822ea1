"""Leases, forks of the process, and file modes: what processes do to each other."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.kill import apart
from tests.faults.workers import STORES, Worker, umask, url_of

from backtrail.errors import SessionBusy
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store
from backtrail.stores.base import Durability, Store

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.timeout(300),
]


@pytest.fixture(params=list(STORES))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every store on a disk in turn."""
    return url_of(request.param, tmp_path)


# --- leases ------------------------------------------------------------------------------


def holding(url: str) -> Callable[[Callable[[str], None]], None]:
    """A process that takes the lease and keeps it."""

    def body(report: Callable[[str], None]) -> None:
        with open_store(url) as store, store.lease("s"):
            report("held")
            time.sleep(60)

    return body


@pytest.fixture
def store(url: str) -> Store:
    """A store with a session."""
    store = open_store(url)
    store.create(SessionInfo("s"))
    store.create(SessionInfo("other"))
    return store


def test_lease_names_its_owner(store: Store) -> None:
    """A second driver is refused, with the name of the driver."""
    worker = Worker(holding(store.url))
    assert worker.line() == "held"
    with pytest.raises(SessionBusy, match=str(worker.pid)) as caught, store.lease("s"):
        pass
    assert caught.value.owner.pid == worker.pid
    assert caught.value.owner.since
    with store.lease("other"):
        store.append("s", [NewEvent("by the way", {})])
    worker.kill()
    worker.wait()
    store.close()


def test_killed_owner_frees_the_lease_at_once(store: Store) -> None:
    """The death of the driver is the end of its lease; none need wait."""
    for _ in range(5):
        worker = Worker(holding(store.url))
        assert worker.line() == "held"
        worker.kill()
        worker.wait()
        began = time.monotonic()
        with store.lease("s") as lease:
            assert lease.owner.pid == os.getpid()
        assert time.monotonic() - began < 1
    store.close()


def test_waiting_for_a_lease(store: Store) -> None:
    """`wait` gets the lease when it is given back, or gives up in time."""

    def body(report: Callable[[str], None]) -> None:
        with open_store(store.url) as mine, mine.lease("s"):
            report("held")
            time.sleep(0.5)

    worker = Worker(body)
    assert worker.line() == "held"
    began = time.monotonic()
    with pytest.raises(SessionBusy), store.lease("s", wait=0.1):
        pass
    assert 0.1 <= time.monotonic() - began < 0.45
    with store.lease("s", wait=10):
        assert time.monotonic() - began < 5
    worker.wait()
    store.close()


def test_lease_is_not_inherited(store: Store) -> None:
    """A forked child does not drive, and its end does not free the parent's lease."""
    with store.lease("s"):

        def body(report: Callable[[str], None]) -> None:
            try:
                with store.lease("s"):
                    report("taken")
            except SessionBusy as busy:
                report(f"busy {busy.owner.pid}")
            with store.lease("other"):
                report("other")

        assert Worker(body).wait() == [f"busy {os.getpid()}", "other"]
        # The child has ended; its copies of the descriptors are closed.
        assert Worker(body).wait()[0].startswith("busy")
        worker = Worker(lambda report: time.sleep(60))
    # A child that lives on does not keep what it inherited.
    with open_store(store.url) as again, again.lease("s"):
        pass
    worker.kill()
    worker.wait()
    store.close()


def test_only_one_drives(store: Store) -> None:
    """Processes that compete for the lease drive one after another, never two at once."""

    def body(report: Callable[[str], None]) -> None:
        with open_store(store.url) as mine:
            for _ in range(10):
                with mine.lease("s", wait=30):
                    head = mine.info("s").head
                    time.sleep(0.001)
                    mine.append("s", [NewEvent("turn", {})], expected=head)

    workers = [Worker(body) for _ in range(6)]
    for worker in workers:
        worker.wait()
    assert store.info("s").head == 60
    store.close()


# --- forks of the process ----------------------------------------------------------------


def fork_rounds(url: str, durability: Durability, rounds: int) -> None:
    """Fork a process whose threads append, again and again; both sides go on."""
    with open_store(url, durability=durability) as store:
        store.create(SessionInfo("s"))
        fork_at_work(store, rounds)


def fork_at_work(store: Store, rounds: int) -> None:
    """The rounds of forks."""
    stop = threading.Event()
    counts = [0] * 4
    errors: list[BaseException] = []

    def work(name: int) -> None:
        try:
            while not stop.is_set():
                store.append("s", [NewEvent("parent", {"by": name, "n": counts[name]})])
                counts[name] += 1
                time.sleep(0.001)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    try:
        for at in range(rounds):

            def body(report: Callable[[str], None], at: int = at) -> None:
                store.append("s", [NewEvent("child", {"n": at}, id=f"child-{at}")])
                assert any(e.id == f"child-{at}" for e in store.read("s", reverse=True))
                store.flush()
                report("done")
                if at % 3 == 0:
                    store.close()

            worker = Worker(body)
            assert worker.wait(20) == ["done"]
            assert not errors, errors
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors, errors
    events = list(store.read("s"))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.data["n"] for event in events if event.kind == "child"] == list(range(rounds))
    for name, count in enumerate(counts):
        mine = [event.data["n"] for event in events if event.data.get("by") == name]
        assert mine == list(range(count))
    assert store.verify() == []


@pytest.mark.parametrize(("durability", "rounds"), [("written", 100), ("synced", 40)])
def test_fork_of_a_busy_process(url: str, durability: Durability, rounds: int) -> None:
    """100 forks while threads append: no deadlock, nothing twice, both sides go on."""
    apart(fork_rounds, url, durability, rounds)


def test_child_of_a_child(store: Store) -> None:
    """A store goes on working through several forks in a row."""

    def body(report: Callable[[str], None]) -> None:
        store.append("s", [NewEvent("child", {})])

        def inner(report: Callable[[str], None]) -> None:
            store.append("s", [NewEvent("grandchild", {})])

        Worker(inner).wait()
        store.append("s", [NewEvent("child", {})])

    store.append("s", [NewEvent("parent", {})])
    Worker(body).wait()
    store.append("s", [NewEvent("parent", {})])
    assert [e.kind for e in store.read("s")] == ["parent", "child", "grandchild", "child", "parent"]
    assert [e.seq for e in store.read("s")] == [1, 2, 3, 4, 5]
    store.close()


# --- modes -------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077], ids=oct)
@pytest.mark.parametrize("kind", list(STORES))
def test_files_are_private(tmp_path: Path, kind: str, mask: int) -> None:
    """Every file is 0600 and every folder 0700, whatever the umask, at any time."""
    place = tmp_path / "place"
    with umask(mask):
        store = open_store(f"{url_of(kind, place / 'deep')}")
        for id in ("a", "b"):
            store.create(SessionInfo(id))
            text = "x" * 200_000
            store.append(id, [NewEvent("test", {"text": text}) for _ in range(4)])
            store.append(id, [NewEvent("test", {})], log="transcript")
            store.append(id, [NewEvent("test", {})], log="subagents/x")
        with store.lease("a"):
            store.create(SessionInfo("f"), base=("a", 1))
            store.update("a", title="new", cwd=str(tmp_path))
            store.purge("a", [1])
            store.search("x")
            store.memory(tmp_path).write("note")
            store.flush()
            store.sessions()
            seen = check_private(place)
        store.delete("b")
        store.close()
        seen |= check_private(place)
    names = "\n".join(sorted(seen))
    expected = {
        "jsonl": ("lock", "lease", "metadata.json", "fold.json", ".md", "subagents/x.jsonl"),
        "sqlite": (".db", "-wal", "-shm"),
    }[kind]
    for name in expected:
        assert name in names


def check_private(place: Path) -> set[str]:
    """The names of all files, none of which another user may open."""
    names: set[str] = set()
    for path in [place, *place.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path.name} is {oct(mode)}"
        names.add(str(path.relative_to(place)))
    return names


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not list files")
def test_close_lets_go_of_every_file(url: str, tmp_path: Path) -> None:
    """After `close` no file of the store is open, and none is opened again later."""
    for _ in range(3):
        with open_store(url) as store:
            if not store.sessions():
                store.create(SessionInfo("s"))
            store.append("s", [NewEvent("test", {})])
            store.append("s", [NewEvent("test", {})], log="transcript")
            with store.lease("s"):
                list(store.read("s"))
            store.verify()
        assert open_files(tmp_path) == []
    time.sleep(0.5)
    assert open_files(tmp_path) == []


def open_files(folder: Path) -> list[str]:
    """The files below a folder that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found
