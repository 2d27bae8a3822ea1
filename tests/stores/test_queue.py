"""One thread writes for all that wait; none is forgotten, and each has its own outcome."""

from __future__ import annotations

import dis
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty
from types import CodeType, FrameType
from typing import Any

import pytest

from backtrail import (
    Closed,
    NewEvent,
    NotFound,
    SessionBusy,
    SessionInfo,
    Store,
    StoreFailed,
    open_store,
)
from backtrail.events import MAIN_LOG
from backtrail.stores import Buffered, Durability, queue
from backtrail.stores.batches import Call, drafts
from backtrail.stores.disk import database as sqlite_connections
from backtrail.stores.disk import sync as syncing
from backtrail.stores.disk.locks import FileLock
from backtrail.stores.queue import Job, Postponed, Queue

SCHEMES = pytest.mark.parametrize("scheme", ["sqlite:///{}/x.db", "file:{}/x"])
NEW = [NewEvent("user_message", {"n": 1})]


class Gate:
    """A `write` that stops in the middle until it is let go on."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.inside, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def write(self, items: Sequence[int]) -> list[int | BaseException]:
        self.groups.append(list(items))
        self.inside.release()
        assert self.go.acquire(timeout=30)
        return [item * 2 for item in items]


def begun(work: Callable[..., object], *arguments: object) -> threading.Thread:
    """A thread that does this."""
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def ended(threads: list[threading.Thread]) -> None:
    """All of them come to an end."""
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def until(condition: Callable[[], object]) -> None:
    """Return when this holds; fail if it does not come to."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def waiting(jobs: Queue[int, int], count: int) -> None:
    """Return when so many jobs wait."""
    until(lambda: jobs._jobs.qsize() >= count)


# --- the queue ----------------------------------------------------------------------------


def test_each_writer_gets_its_own_result() -> None:
    """Outcomes go to the callers, errors too, and fewer groups than jobs are written."""
    groups: list[int] = []

    def write(items: Sequence[int]) -> list[int | BaseException]:
        groups.append(len(items))
        time.sleep(0.001)
        return [StoreFailed(str(n)) if n % 7 == 0 else n * 2 for n in items]

    jobs: Queue[int, int] = Queue(write)
    wrong: list[int] = []

    def work(base: int) -> None:
        for n in range(base, base + 50):
            try:
                if jobs.do(n) != n * 2 or n % 7 == 0:
                    wrong.append(n)
            except StoreFailed as error:
                if str(error) != str(n):
                    wrong.append(n)

    ended([begun(work, 100 * n + 1) for n in range(8)])
    assert not wrong
    assert sum(groups) == 400
    assert len(groups) < 400


def test_a_write_that_raises_fails_for_each_of_its_group_and_the_next_goes_on() -> None:
    """Also one that gives too few outcomes."""
    answers: list[Any] = [StoreFailed("no"), [], [4]]

    def write(items: Sequence[int]) -> list[int | BaseException]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    jobs: Queue[int, int] = Queue(write)
    with pytest.raises(StoreFailed, match="no"):
        jobs.do(1)
    with pytest.raises(ValueError, match="zip"):
        jobs.do(2)
    assert jobs.do(3) == 4


def test_requests_that_come_meanwhile_are_written_together_and_in_order() -> None:
    """One group for all that came while the last one was written; a barrier waits for them."""
    gate = Gate()
    jobs: Queue[int, int] = Queue(gate.write)
    threads = [begun(jobs.do, 1)]
    assert gate.inside.acquire(timeout=30)
    for n in (2, 3, 4):
        threads.append(begun(jobs.do, n))
        waiting(jobs, n - 1)
    barrier = begun(jobs.do, None)
    waiting(jobs, 4)
    gate.go.release()
    assert gate.inside.acquire(timeout=30)
    assert barrier.is_alive()
    gate.go.release()
    ended([*threads, barrier])
    assert gate.groups == [[1], [2, 3, 4]]


def test_the_thread_ends_when_idle_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is left behind, and no job in the moment between."""
    monkeypatch.setattr(queue, "IDLE", 0.001)
    jobs: Queue[int, int] = Queue(list, "backtrail-test-writer")
    for n in range(300):
        assert jobs.do(n) == n
        time.sleep(0.0009 + n % 3 * 0.0002)
    until(lambda: "backtrail-test-writer" not in {thread.name for thread in threading.enumerate()})
    assert jobs.do(7) == 7


def test_a_job_that_comes_as_the_thread_ends_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller still saw a thread, and started none."""
    monkeypatch.setattr(queue, "IDLE", 0.001)
    jobs: Queue[int, int] = Queue(list)
    done, late = threading.Event(), list[Job[int, int]]()
    real = jobs._waiting

    def waiting(wait: float) -> list[Job[int, int]]:
        try:
            return real(wait)
        except Empty:
            if not late:
                late.append(Job(2, lambda jobs: done.set()))
                jobs.put(late[0])
            raise

    monkeypatch.setattr(jobs, "_waiting", waiting)
    assert jobs.do(1) == 1
    assert done.wait(30)
    assert late[0].outcome == 2


def test_one_thread_writes_however_often_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that come before it runs start another, which ends at once."""
    gate, made = Gate(), list[threading.Thread]()
    jobs: Queue[int, int] = Queue(gate.write)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: made.append(thread))
        for number in (1, 2, 3):
            jobs.put(Job(number))
    assert len(made) == 3
    for thread in made:
        thread.start()
    assert gate.inside.acquire(timeout=30)
    until(lambda: sum(thread.is_alive() for thread in made) == 1)
    gate.go.release(9)
    assert jobs.do(4) == 8
    assert gate.groups == [[1, 2, 3], [4]]


def test_where_no_thread_can_be_started_the_caller_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the interpreter shuts down."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    me: list[int] = []

    def write(items: Sequence[int]) -> list[int | BaseException]:
        me.append(threading.get_ident())
        return list(items)

    jobs: Queue[int, int] = Queue(write)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert jobs.do(5) == 5
    assert me == [threading.get_ident()]
    assert jobs.do(6) == 6


def test_the_writer_does_not_wait_for_itself() -> None:
    """A job that is put from within `write` is done at once."""
    jobs: Queue[int, int]

    def write(items: Sequence[int]) -> list[int | BaseException]:
        return [n if n < 10 else jobs.do(n - 10) or 0 for n in items]

    jobs = Queue(write)
    assert jobs.do(15) == 5


def test_jobs_in_no_hurry_wait_for_one_that_is() -> None:
    """With a delay, those that no caller waits for are written later, all at once."""
    gate = Gate()
    jobs: Queue[int, int] = Queue(gate.write, delay=60)
    gate.go.release(9)
    for n in (1, 2, 3):
        jobs.put(Job(n))
    assert jobs.do(4) == 8
    assert gate.groups == [[1, 2, 3, 4]]


def test_what_is_postponed_keeps_its_place_and_holds_no_other_up() -> None:
    """It is tried again, in order; the others are written, and a barrier does not wait for it."""
    shut, stored = True, list[int]()

    def write(items: Sequence[int]) -> list[int | BaseException]:
        stored.extend(item for item in items if not (shut and item >= 10))
        return [Postponed() if shut and item >= 10 else item for item in items]

    jobs: Queue[int, int] = Queue(write)
    threads = []
    for number in (10, 11, 12):
        threads.append(begun(jobs.do, number))
        until(partial(lambda taken: taken in jobs.held, number))
        assert jobs.do(number - 10) == number - 10
    jobs.do(None)
    assert all(thread.is_alive() for thread in threads)
    shut = False
    ended(threads)
    assert stored == [0, 1, 2, 10, 11, 12]
    assert not list(jobs.held)


def test_a_postponed_job_can_be_taken_back() -> None:
    """Between two attempts, or during one that postpones it again; then its waiter is woken."""
    gate, woken = threading.Semaphore(0), threading.Event()
    inside = threading.Semaphore(0)

    def write(items: Sequence[int]) -> list[int | BaseException]:
        inside.release()
        assert gate.acquire(timeout=30)
        return [Postponed() for _ in items]

    jobs: Queue[int, int] = Queue(write)
    job: Job[int, int] = Job(1, lambda done: woken.set())
    jobs.put(job)
    assert inside.acquire(timeout=30)
    assert not job.take_back()
    assert not woken.is_set()
    gate.release(9)
    assert woken.wait(30)
    assert isinstance(job.outcome, Postponed)
    until(lambda: not list(jobs.held))


# --- interrupts ----------------------------------------------------------------------------


@pytest.mark.parametrize("begins", [False, True], ids=["queued", "begun"])
def test_an_interrupted_caller_keeps_no_other_waiting(begins: bool) -> None:
    """Ctrl-C in one that waits takes only its own job back, or leaves it; the others end."""
    gate = Gate()
    jobs: Queue[int, int] = Queue(gate.write)
    others = [begun(jobs.do, 1)]
    assert gate.inside.acquire(timeout=30)
    others.append(begun(jobs.do, 2))
    waiting(jobs, 1)

    def interrupt() -> None:
        waiting(jobs, 2)
        others.append(begun(jobs.do, 3))
        waiting(jobs, 3)
        if begins:
            gate.go.release()
            assert gate.inside.acquire(timeout=30)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = begun(interrupt)
    with pytest.raises(KeyboardInterrupt):
        jobs.do(0)
    gate.go.release(9)
    ended([interrupting, *others])
    assert gate.groups == [[1], [2, 0, 3] if begins else [2, 3]]
    assert jobs.do(4) == 8


class Instants:
    """Raises `KeyboardInterrupt` at the n-th moment at which Ctrl-C may come.

    The interpreter looks for signals when a function begins, after a call of C code and in a
    loop.
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self._last: dict[FrameType | None, int] = {}
        self._moments: dict[CodeType, dict[int, Handler]] = {}

    def __enter__(self) -> Instants:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        # What comes back from Python code is not looked at.
        self._last.pop(frame.f_back, None)
        if os.sep + "backtrail" + os.sep not in frame.f_code.co_filename:
            return None
        # Before its first line: what the function begins with does not guard this.
        self._passed()
        frame.f_trace_opcodes = True
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            last, self._last[frame] = self._last.get(frame, -1), frame.f_lasti
            moments = self._of(frame.f_code)
            # The interpreter raises at the call itself. What is raised here is raised behind it:
            # where another handler is in charge there, that would be another moment.
            if last in moments and moments[last] == handler(frame.f_code, frame.f_lasti):
                self._passed()
        return self._stepped

    def _passed(self) -> None:
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt

    def _of(self, code: CodeType) -> dict[int, Handler]:
        """Where in the code the interpreter looks for signals, with what handles an error."""
        if code not in self._moments:
            self._moments[code] = {
                one.offset: handler(code, one.offset)
                for one in dis.get_instructions(code)
                if one.opname.startswith(("CALL", "JUMP_BACKWARD"))
            }
        return self._moments[code]


Handler = tuple[int, int] | None
"""Where the code goes on after an error, and with how much on its stack."""


def handler(code: CodeType, offset: int) -> Handler:
    """What handles an error at this place in the code."""
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        if entry.start <= offset < entry.end:
            return entry.target, entry.depth
    return None


def interrupted_at(number: int, work: Callable[[], object]) -> bool:
    """Whether there is such a moment in `work`, which is interrupted there."""
    with Instants(number) as instants:
        try:
            work()
        except KeyboardInterrupt:
            pass
    return instants.left <= 0


def free(folder: Path) -> None:
    """Another program could take every lock in this folder, in a while."""
    for path in folder.rglob("*lock"):
        fd = os.open(path, os.O_RDWR)
        deadline = time.monotonic() + 5
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline, path
                time.sleep(0.001)
        os.close(fd)


def open_below(folder: Path) -> dict[int, str]:
    """The descriptors of this process that are of files in this folder."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return {fd: path for fd, path in found.items() if path.startswith(f"{folder}/")}


def moments(work: Callable[[], object], stride: int = 1) -> Iterator[int]:
    """Interrupt `work` at each of its moments, or one in `stride`, one after another."""
    number = 1
    while interrupted_at(number, work):
        yield number
        number += stride


def test_ctrl_c_at_any_moment_leaves_a_queue_that_works() -> None:
    """Another thread's job, and the next of one's own, are done all the same."""
    jobs: Queue[int, int] = Queue(list)
    count = 0
    for number in moments(lambda: jobs.do(1)):
        ended([begun(jobs.do, 2)])
        assert jobs.do(number) == number
        count += 1
    assert count > 3


def test_ctrl_c_at_any_moment_of_taking_a_job_back() -> None:
    """It is known to be taken back, or the writer may still begin it."""
    made: list[Job[int, int]] = []
    count = 0

    def take_back() -> None:
        made.append(Job(1))
        made[-1].take_back()

    for _ in moments(take_back):
        assert not made or made[-1].is_open == made[-1].begin()
        count += 1
    assert count > 3


def test_ctrl_c_at_any_moment_of_the_first_job_of_all() -> None:
    """The thread is started by the next caller, and only one of them writes."""
    made: list[Queue[int, int]] = []

    def first() -> None:
        made.append(Queue(list))
        made[-1].do(1)

    count = 0
    for number in moments(first):
        if made:
            ended([begun(made[-1].do, 2)])
            assert made[-1].do(number) == number
        count += 1
    assert count > 3


def test_ctrl_c_at_any_moment_of_a_wait_for_the_disk(tmp_path: Path) -> None:
    """A waiter for the same file is not left waiting."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    file = syncing.SyncFile("file", fd)
    count = 0
    file.note()
    for _ in moments(file.flush):
        ended([begun(file.wait, file.note())])
        file.note()
        count += 1
    assert count > 2
    file.retire()
    os.close(fd)


@pytest.mark.parametrize("durability", ["written", "synced"])
@SCHEMES
def test_ctrl_c_at_any_moment_of_an_append(
    tmp_path: Path, scheme: str, durability: Durability
) -> None:
    """No lock is left behind that other threads or programs would wait for."""
    with open_store(scheme.format(tmp_path), durability=durability) as store:
        store.create(SessionInfo("s"))
        store.append("s", NEW)
        count = 0
        for _ in moments(lambda: store.append("s", NEW)):
            free(tmp_path)
            ended([begun(store.append, "s", NEW)])
            store.append("s", NEW)
            count += 1
        assert count > 10
        seqs = [event.seq for event in store.read("s")]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) >= 1 + 2 * count
        assert not store.verify()


def test_ctrl_c_at_any_moment_of_an_append_to_a_buffer(tmp_path: Path) -> None:
    """The next append is written all the same, though no caller waits for it."""
    with Buffered(f"sqlite:///{tmp_path}/x.db", interval=0.001) as store:
        store.create(SessionInfo("s"))
        count = 0
        for _ in moments(lambda: store.append("s", NEW)):
            store.append("s", NEW)
            until(lambda: not store._waiting)
            count += 1
        assert count > 10


def lease(store: Store) -> None:
    with store.lease("s"):
        pass


CHANGES: dict[str, Callable[[Store], object]] = {
    "create": lambda store: store.create(SessionInfo("new")),
    "update": lambda store: store.update("s", title="b"),
    "delete": lambda store: store.delete("s", log="side"),
    "purge": lambda store: store.purge("s", [1], log="side"),
    "lease": lease,
    "flush": lambda store: store.flush(),
    "sessions": lambda store: store.sessions(),
}


@pytest.mark.parametrize("change", CHANGES)
@SCHEMES
def test_ctrl_c_at_any_moment_of_a_change(tmp_path: Path, scheme: str, change: str) -> None:
    """No lock is left behind, whatever is done to a session as a whole."""
    with open_store(scheme.format(tmp_path)) as store:
        store.create(SessionInfo("s"))

        def begin() -> None:
            with suppress(NotFound):
                store.delete("new")
            with suppress(NotFound):
                store.delete("s", log="side")
            store.append("s", NEW, log="side")

        begin()
        # What is made at the first use of all is not meant.
        CHANGES[change](store)
        begin()
        count = 0
        for _ in moments(lambda: CHANGES[change](store), stride=3):
            free(tmp_path)
            ended([begun(partial(store.update, "s", title="a"))])
            begin()
            count += 1
        assert count > 1
        assert not store.verify()


VERBS: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append("s", NEW),
    "side": lambda store: store.append("s", NEW, log="side"),
    "read": lambda store: list(store.read("s")),
    "reverse": lambda store: list(store.read("s", reverse=True)),
    "pages": lambda store: list(store.pages("s")),
    "record": lambda store: store.record("s"),
}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="lists the open files of a process")
@pytest.mark.parametrize("verb", VERBS)
def test_ctrl_c_at_any_moment_leaves_no_file_open(tmp_path: Path, verb: str) -> None:
    """Whether a verb only reads, or opens the files of its session to write."""
    with open_store(f"file:{tmp_path}/x") as store:
        store.create(SessionInfo("s"))
        for log in (MAIN_LOG, "side"):
            store.append("s", NEW, log=log)
        folder = tmp_path / "x" / "sessions" / "s"
        sizes = {path: path.stat().st_size for path in folder.glob("*.jsonl")}
        count = 0
        for _ in moments(lambda: VERBS[verb](store)):
            # Open them anew, with no more events: to learn those would be more moments.
            store._open.close_unused()  # type: ignore[attr-defined]
            for path, size in sizes.items():
                os.truncate(path, size)
            count += 1
        assert count > 3
    assert not open_below(tmp_path)


@pytest.mark.parametrize("take", ["acquire", "try_acquire"])
def test_ctrl_c_twice_as_a_lock_is_taken(
    tmp_path: Path, take: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after the file is locked, and again as the first function after that begins."""
    lock = FileLock(tmp_path / "lock", "it")
    lock.acquire()
    lock.release()
    real = fcntl.flock

    def again(frame: FrameType, event: str, argument: object) -> None:
        sys.settrace(None)
        raise KeyboardInterrupt

    def flock(fd: int, how: int) -> None:
        real(fd, how)
        sys.settrace(again)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        try:
            getattr(lock, take)()
        except KeyboardInterrupt:
            sys.settrace(None)
    free(tmp_path)
    assert lock.enter(False)
    lock.leave()
    lock.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_ctrl_c_at_any_moment_of_a_fork(tmp_path: Path) -> None:
    """Python drops the interrupt there; the store goes on for every thread and program."""
    me = os.getpid()

    def fork() -> None:
        try:
            os.waitpid(os.fork(), 0)
        finally:
            if os.getpid() != me:
                os._exit(0)

    with open_store(f"sqlite:///{tmp_path}/x.db", durability="written") as store:
        store.create(SessionInfo("s"))
        count = 0
        for _ in moments(fork):
            ended([begun(store.append, "s", NEW)])
            store.append("s", NEW)
            free(tmp_path)
            count += 1
        assert count > 10
        assert [event.seq for event in store.read("s")] == list(range(1, 2 * count + 1))


def test_a_wait_for_a_fork_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader and a writer get an error; nothing is left of it when the store goes on."""
    monkeypatch.setattr(sqlite_connections, "WAIT", 0.05)
    database = sqlite_connections.Database(tmp_path / "x.db", synced=False)
    assert database.rest(False)
    reported: list[str] = []

    def wait(work: Callable[[], object]) -> None:
        try:
            work()
        except SessionBusy as error:
            reported.append(str(error))

    ended([begun(wait, database.enter), begun(wait, database.take)])
    assert len(reported) == 2 and all("waits for a fork" in text for text in reported)
    database.go_on()
    database.go_on()
    database.give(database.take())
    database.enter()
    database.lock.release()
    database.close()


# --- stores --------------------------------------------------------------------------------


@SCHEMES
def test_one_writer_waits_for_its_own_sync(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone writer writes by itself, and returns only when the disk has it."""
    synced: list[int] = []
    real = syncing.data_sync

    def sync(fd: int) -> None:
        synced.append(threading.get_ident())
        real(fd)

    with open_store(scheme.format(tmp_path), durability="synced") as store:
        store.create(SessionInfo("s"))
        store.append("s", NEW)
        monkeypatch.setattr(syncing, "data_sync", sync)
        monkeypatch.setattr(syncing, "DELAY", 60.0)
        for number in range(1, 6):
            store.append("s", NEW)
            assert synced == [threading.get_ident()] * number

        def failing(fd: int) -> None:
            raise OSError(5, "no")

        monkeypatch.setattr(syncing, "data_sync", failing)
        for _ in range(2):
            with pytest.raises(StoreFailed, match="acknowledges nothing"):
                store.append("s", NEW)


def held_sync(monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> tuple[Any, Any]:
    """Let the first sync wait, until it is let go on."""
    inside, go = threading.Event(), threading.Event()
    real = syncing.data_sync

    def slow(fd: int) -> None:
        inside.set()
        go.wait(10)
        if fails:
            raise OSError(5, "no")
        real(fd)

    monkeypatch.setattr(syncing, "data_sync", slow)
    return inside, go


@SCHEMES
def test_a_failed_sync_fails_for_all_that_wait_for_it(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lone one and those that queue behind it; none of them is acknowledged."""
    reported: list[str] = []
    with open_store(scheme.format(tmp_path), durability="synced") as store:
        store.create(SessionInfo("s"))
        store.append("s", NEW)
        inside, go = held_sync(monkeypatch, fails=True)

        def work() -> None:
            try:
                store.append("s", NEW)
                reported.append("stored")
            except StoreFailed as error:
                reported.append("acknowledges nothing" if "acknowledges" in str(error) else "?")

        threads = [begun(work)]
        assert inside.wait(10)
        threads += [begun(work) for _ in range(4)]
        until(lambda: store.queue._jobs.qsize() + len(reported) >= 3 or store.queue._writer)
        go.set()
        ended(threads)
        assert reported == ["acknowledges nothing"] * 5


@SCHEMES
def test_an_append_that_was_interrupted_is_not_stored_behind_the_next(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the writer has begun when its caller gives up comes before what that one does next."""
    inside, go = threading.Event(), threading.Event()
    with open_store(scheme.format(tmp_path), durability="synced") as store:
        store.create(SessionInfo("s"))
        store.append("s", NEW)
        real = type(store)._append_queued

        def late(self: Store, calls: Sequence[Call]) -> list[Any]:
            inside.set()
            assert go.wait(30)
            return list(real(self, calls))

        monkeypatch.setattr(type(store), "_append_queued", late)
        # As `do` has it, without a signal: one that comes just before a wait does not end it.
        job: Job[Call, list[Any]] = Job(Call("s", drafts([NewEvent("user_message", {"n": 2})])))
        store.queue.put(job)
        assert inside.wait(30)
        assert not job.take_back()
        following = begun(store.append, "s", [NewEvent("user_message", {"n": 3})])
        until(lambda: store.queue._jobs.qsize() or not following.is_alive())
        go.set()
        ended([following])
        assert [event.data["n"] for event in store.read("s")] == [1, 2, 3]


@SCHEMES
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

        threads = [begun(work, "ab"[n % 2]) for n in range(8)]
        begin.wait()
        store.delete("b")
        ended(threads)
        assert set(refused) <= {"b"} and refused
        assert [event.seq for event in store.read("a")] == list(range(1, 162))


@SCHEMES
def test_what_others_did_meanwhile_is_known(tmp_path: Path, scheme: str) -> None:
    """Synced appends of two stores take turns, also when one replaces the log by a purge."""
    url = scheme.format(tmp_path)
    with open_store(url, durability="synced") as one, open_store(url, durability="synced") as two:
        one.create(SessionInfo("s"))

        def append(*stores: Store) -> None:
            for store in stores:
                outcomes = store.append_each([Call("s", drafts(NEW)) for _ in range(2)])
                assert [type(outcome) for outcome in outcomes] == [list, list]

        append(one, two, one, two, one, two)
        two.purge("s", [1])
        append(one, two, one, one)
        events = list(two.read("s"))
        assert [event.seq for event in events] == list(range(1, 21))
        assert events[0].data == {"purged": True}
        assert not two.verify()


@SCHEMES
def test_each_session_gets_its_own(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of several sessions that are synced together go where they belong."""
    with open_store(scheme.format(tmp_path), durability="synced") as store:
        for id in "ba":
            store.create(SessionInfo(id))
            store.append(id, [NewEvent("user_message", {"of": id})])
        inside, go = held_sync(monkeypatch)
        reported: dict[str, list[str]] = {"a": [], "b": []}

        def work(id: str) -> None:
            [event] = store.append(id, [NewEvent("user_message", {"of": id})])
            reported[id].append(event.id)

        threads = []
        for id in "aabab":
            # The first syncs, and the others queue up behind it in this order.
            threads.append(begun(work, id))
            inside.wait(10)
            time.sleep(0.05)
        go.set()
        ended(threads)
        for id, count in (("a", 4), ("b", 3)):
            events = list(store.read(id))
            assert [event.data for event in events] == [{"of": id}] * count
            assert [event.seq for event in events] == list(range(1, count + 1))
            assert sorted(event.id for event in events[1:]) == sorted(reported[id])


@SCHEMES
def test_a_group_is_one_transaction_and_one_sync(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait behind a slow disk."""
    syncs: list[int] = []
    with open_store(scheme.format(tmp_path), durability="synced") as store:
        store.create(SessionInfo("s"))
        store.append("s", NEW)
        monkeypatch.setattr(syncing, "DELAY", 60.0)
        inside, go = held_sync(monkeypatch)
        slow = syncing.data_sync

        def counted(fd: int) -> None:
            syncs.append(fd)
            slow(fd)

        monkeypatch.setattr(syncing, "data_sync", counted)
        threads = [begun(store.append, "s", NEW)]
        assert inside.wait(10)
        threads += [begun(store.append, "s", NEW)]
        until(lambda: store.queue._writer)
        threads += [begun(store.append, "s", NEW) for _ in range(10)]
        until(lambda: store.queue._jobs.qsize() >= 10)
        go.set()
        ended(threads)
        assert len(list(store.read("s"))) == 13
        assert len(syncs) == 3


@SCHEMES
def test_closing_leaves_no_caller_waiting(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the disk is at is stored; what waits is stored, or its caller hears that it is not."""
    reported: list[str] = []
    url = scheme.format(tmp_path)
    store = open_store(url, durability="synced")
    store.create(SessionInfo("s"))
    store.append("s", NEW)
    inside, go = held_sync(monkeypatch)

    def work() -> None:
        try:
            store.append("s", NEW)
            reported.append("stored")
        except (Closed, StoreFailed):
            reported.append("refused")

    threads = [begun(work)]
    assert inside.wait(10)
    threads += [begun(work) for _ in range(5)]
    closing = begun(store.close)
    time.sleep(0.05)
    go.set()
    ended([*threads, closing])
    assert len(reported) == 6 and "stored" in reported
    with open_store(url) as again:
        assert len(list(again.read("s"))) >= 1 + reported.count("stored")


@SCHEMES
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_queue_of_its_own(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is written once, by the parent; the child's appends are its own."""
    with open_store(scheme.format(tmp_path), durability="synced") as store:
        store.create(SessionInfo("s"))
        store.append("s", NEW)
        jobs: Queue[Call, list[Any]] = store.queue
        started, go = threading.Event(), threading.Event()

        def stop(done: list[Any]) -> None:
            started.set()
            go.wait(20)

        # The writer is held while it reports, with more waiting behind it.
        jobs.put(Job(Call("s", drafts([NewEvent("user_message", {"n": 2})])), stop))
        assert started.wait(20)
        jobs.put(Job(Call("s", drafts([NewEvent("user_message", {"n": 3})]))))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(20)
                mine = store.queue.do(Call("s", drafts([NewEvent("user_message", {"n": 9})])))
                code = 0 if mine and mine[0].data == {"n": 9} else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        go.set()
        jobs.do(None)
        assert [event.data["n"] for event in store.read("s")] == [1, 2, 9, 3]


@SCHEMES
def test_on_a_full_disk_what_fits_is_stored(tmp_path: Path, scheme: str) -> None:
    """Of several that are written together, only the one that does not fit is refused."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    try:
        with open_store(scheme.format(disk), durability="synced") as store:
            store.create(SessionInfo("s"))
            store.append("s", NEW)
            sizes = [10, 4_000_000, 20, 30]
            calls = [
                Call("s", drafts([NewEvent("user_message", {"text": "x" * size})]))
                for size in sizes
            ]
            kinds = [type(outcome) for outcome in store.append_each(calls)]
            assert kinds == [list, StoreFailed, list, list]
            assert store.append("s", NEW)[0].seq == 5
            found = [len(event.data.get("text", "")) for event in store.read("s")]
            assert found == [0, 10, 20, 30, 0]
            assert not store.verify()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


INTERRUPTED = """
import os, signal, sys, threading, time
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store

open_to = []

def interrupted(*_):
    # Once for each time: another one may come before the loop is in its `try` again.
    if open_to:
        open_to.clear()
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupted)
store = open_store({url!r}, durability="synced")
for id in "abcd":
    store.create(SessionInfo(id))
stop = threading.Event()
written = dict.fromkeys("abcd", 0)

def work(id):
    while not stop.is_set():
        store.append(id, [NewEvent("user_message", {{"n": written[id]}})])
        written[id] += 1

threads = [threading.Thread(target=work, args=(id,)) for id in "abc"]
for thread in threads:
    thread.start()

def interrupt():
    for n in range(40):
        time.sleep(0.003 + n % 7 * 0.0007)
        os.kill(os.getpid(), signal.SIGINT)
    stop.set()

stopping = threading.Thread(target=interrupt)
interrupts = 0
stopping.start()
while stopping.is_alive():
    try:
        open_to.append(True)
        while stopping.is_alive():
            store.append("d", [NewEvent("user_message", {{}})])
            written["d"] += 1
    except KeyboardInterrupt:
        interrupts += 1
for thread in threads:
    thread.join()
print(interrupts, *written.values(), flush=True)
"""


@SCHEMES
def test_a_process_that_is_interrupted_over_and_over_goes_on(tmp_path: Path, scheme: str) -> None:
    """Real signals, real threads: all acknowledged is there, no thread waits for ever."""
    url = scheme.format(tmp_path)
    script = INTERRUPTED.format(url=url)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, env=environment, text=True
    )
    assert done.returncode == 0, done.stderr
    interrupts, *reported = map(int, done.stdout.split())
    assert interrupts > 10
    with open_store(url) as store:
        assert not store.verify()
        for id, count in zip("abcd", reported, strict=True):
            stored = len(list(store.read(id)))
            assert stored == count if id != "d" else count <= stored <= count + interrupts
