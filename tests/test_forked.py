"""A forked child goes on with its copy of a session, whatever the parent's threads did."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backtrail import NewEvent, Session, SessionBusy, SessionInfo, StoreFailed, Unsupported
from backtrail.agent.models.openai import OpenAIModel
from backtrail.events import MAIN_LOG, Event, Json
from backtrail.files import depot
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.formats.secrets import mask_json
from backtrail.session.flows import Failed, Reading
from backtrail.stores import Buffered, KnownIds, Redacting, open_store
from backtrail.stores.wrapper import Wrapper

from .talking import assistant, kinds, outcome, texts, user

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def forked(body: Callable[[], object], meanwhile: Callable[[], object] | None = None) -> None:
    """Run `body` in a forked child, which must come to a good end within a while."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            body()
            code = 0
        except BaseException as error:
            os.write(2, f"in the child: {error!r}\n".encode())
        finally:
            os._exit(code)
    if meanwhile is not None:
        meanwhile()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextmanager
def held(*locks: Any) -> Iterator[None]:
    """Another thread holds these locks meanwhile."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.__enter__()
        taken.set()
        done.wait()
        for lock in reversed(locks):
            lock.__exit__(None, None, None)

    with elsewhere(hold):
        taken.wait()
        try:
            yield
        finally:
            done.set()


@contextmanager
def elsewhere(work: Callable[[], object]) -> Iterator[None]:
    """Another thread does this meanwhile."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


class Slow(Wrapper):
    """A store whose appends wait in other threads than the main one."""

    def __init__(self, url: str) -> None:
        super().__init__(open_store(url))
        self.inside, self.go = threading.Event(), threading.Event()

    def append(
        self,
        session_id: str,
        events: Any,
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        if threading.current_thread() is not threading.main_thread():
            self.inside.set()
            self.go.wait()
        return self.inner.append(session_id, events, log=log, expected=expected, known=known)


# --- locks ---------------------------------------------------------------------------------


def test_a_child_appends_while_a_thread_of_its_parent_does(disk_url: str) -> None:
    """The lock was held at that moment, by a thread that is not there."""
    store = Slow(disk_url)
    with store, Session.open(store, "s") as session:
        with elsewhere(lambda: session.append(user("by a thread"))):
            store.inside.wait()
            try:
                forked(lambda: session.append(user("by a child")))
            finally:
                store.go.set()
        assert texts(session) == ["by a child", "by a thread"]


def test_a_child_does_everything_while_all_locks_are_held(disk_url: str, tmp_path: Path) -> None:
    """Append, listen, drive, call tools, look at files, close."""
    session = Session.open(disk_url, "s", cwd=tmp_path / "work")
    (tmp_path / "work").mkdir()
    session.append(user("first"))
    subscription = session.subscribe()
    side = session.log("transcript")

    def everything() -> None:
        session.append(user("by a child"))
        assert isinstance(subscription.get(1), Event)
        session.subscribe().close()
        side.append({"n": 1})
        session.log("other").append({"n": 1})
        with session.turn("turn"), session.tool("bash"):
            (tmp_path / "work" / "new").write_text("new\n")
        session.undo()
        session.cancel()
        session.close()

    log, recorder = session.parts.log, session.parts.capture.recorder
    cancelled = session.parts.turns.cancelled
    with session, held(
        log.mutex, log._side_mutex, log.listeners._lock, recorder.lock, recorder.queue.lock,
        session.parts.lease.order, vars(cancelled)["_cond"], subscription._ready,
    ):  # fmt: skip
        forked(everything)
    assert not (tmp_path / "work" / "new").exists()


def test_a_child_opens_a_session_while_a_thread_opens_one(disk_url: str, tmp_path: Path) -> None:
    """What is known about files is shared in a process, behind one lock."""
    (tmp_path / "work").mkdir()

    def begin() -> None:
        with Session.open(disk_url, "s", cwd=tmp_path / "work") as session:
            session.append(user("by a child"))

    with held(depot._lock):
        forked(begin)


def test_a_child_masks_and_asks_while_a_thread_does(disk_url: str) -> None:
    """Counters and clients have locks, too. A client's connections are the parent's."""
    model = OpenAIModel("m", base_url="http://localhost:9", api_key="k")
    inherited = model._client(is_async=False)

    def ask() -> None:
        session.append(user("sk-ant-api03-" + "x" * 80))
        assert store.masked == 1
        assert model._client(is_async=False) is not inherited

    with (
        Redacting(disk_url, mask_json) as store,
        Session.open(store, "s") as session,
        held(store._counting, model._lock),
    ):
        forked(ask)
    model.close()


def test_a_child_does_not_wait_for_a_stream_of_its_parent() -> None:
    """The thread that reads it is not there."""
    go = threading.Event()

    def words() -> Iterator[Json]:
        go.wait()
        yield "word"

    reading = Reading(words)

    def read() -> None:
        answer = reading.next(lambda: None)
        assert isinstance(answer, Failed) and isinstance(answer.error, Unsupported)

    forked(read)
    go.set()
    assert reading.next(lambda: None) == "word"


# --- what was half done --------------------------------------------------------------------


def test_what_is_owed_is_the_parents(disk_url: str) -> None:
    """It is recorded once, by the process that saw it."""
    with Session.open(disk_url, "s") as session:
        session.parts.capture.recorder.queue.put(NewEvent("files_changed", {"files": {}}), None)
        forked(lambda: session.append(user("by a child")))
        session.append(user("by the parent"))
        assert kinds(session) == [
            "session_start",
            "user_message",
            "files_changed",
            "user_message",
        ]


class Failing(Wrapper):
    """A store that takes nothing."""

    failing = False

    def append(
        self,
        session_id: str,
        events: Any,
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        if self.failing:
            raise StoreFailed("no")
        return self.inner.append(session_id, events, log=log, expected=expected, known=known)


def test_what_was_not_saved_is_the_parents(disk_url: str) -> None:
    """It is saved by the process to which it was said."""
    store = Failing(open_store(disk_url))
    with store, Session.open(store, "s", on_error="record") as session:
        store.failing = True
        session.append(user("by the parent"))
        store.failing = False
        forked(lambda: session.append(user("by a child")))
        assert [e.data["message"]["content"] for e in session.events(after=1)] == ["by a child"]
        session.append(user("again"))
        assert texts(session) == ["by a child", "by the parent", "again"]


def test_what_a_buffer_has_waiting_is_the_parents(disk_url: str) -> None:
    """It is written once; what the child appends is its own."""
    with Buffered(open_store(disk_url), interval=60) as store:
        store.create(SessionInfo("s"))

        def append(number: int) -> None:
            store.append("s", [NewEvent("user_message", {"n": number})])

        def child() -> None:
            append(9)
            store.flush()

        append(1)
        forked(child)
        append(2)
        assert [event.data["n"] for event in store.read("s")] == [9, 1, 2]


def test_what_listeners_have_waiting_is_read_again(disk_url: str) -> None:
    """No event is lost; deltas are the parent's."""
    with Session.open(disk_url, "s") as session, session.subscribe() as subscription:
        session.append(user("one"))
        # As in the middle of `take`, in another thread.
        subscription._queue.popleft()

        def listen() -> None:
            session.append(user("two"))
            got = [subscription.get(1), subscription.get(1)]
            assert [e.seq for e in got if isinstance(e, Event)] == [2, 3]

        forked(listen)


def test_contents_that_a_thread_was_about_to_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child does not rely on them: perhaps they are never stored."""
    work = tmp_path / "work"
    work.mkdir()
    session = Session.open(f"sqlite:///{tmp_path}/s.db", "s", cwd=work)
    session.append(user("first"))
    (work / "new").write_text("new\n")
    real, inside, go = SQLiteBlobs.write, threading.Event(), threading.Event()

    def slow(self: SQLiteBlobs, *given: Any, **options: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go.wait()
            raise StoreFailed("no")
        real(self, *given, **options)

    monkeypatch.setattr(SQLiteBlobs, "write", slow)

    def look() -> None:
        event = session.append(user("by a child"))
        assert session.parts.capture.workspace is not None
        session.parts.capture.workspace.blobs.get(bytes.fromhex(event.data["tree"]))

    with session, elsewhere(lambda: outcome(lambda: session.append(user("by a thread")))):
        inside.wait()
        forked(look, go.set)


# --- what is the parent's alone ------------------------------------------------------------


@pytest.mark.parametrize("lease", ["turn", "session"])
def test_a_child_does_not_drive_beside_its_parent(disk_url: str, lease: Any) -> None:
    """The lease is the parent's. Once that is gone, so is the lease."""

    def drive() -> None:
        with pytest.raises(SessionBusy), session.turn("by a child"):
            pass

    with Session.open(disk_url, "s", lease=lease) as session:
        with session.turn("by the parent"):
            forked(drive)
        if lease == "session":
            forked(drive)
        else:
            forked(lambda: session.turn("by a child").__enter__())


def test_a_child_leaves_a_block_of_its_parent(disk_url: str) -> None:
    """What it does afterwards is under a lease of its own."""
    with Session.open(disk_url, "s") as session:
        read, write = os.pipe()
        with session.turn("by the parent"):
            pid = os.fork()
        if pid == 0:
            try:
                os.read(read, 1)
                with session.turn("by a child"):
                    os.write(2, b"" if session.parts.lease.depth == 1 else b"not under a lease\n")
                    os._exit(0 if session.parts.lease.depth == 1 else 1)
            finally:
                os._exit(1)
        os.write(write, b".")
        assert os.waitpid(pid, 0)[1] == 0
        os.close(read)
        os.close(write)


def test_a_child_does_not_end_a_turn_of_its_parent(disk_url: str) -> None:
    """Closing its copy of the session says nothing about the turn under way."""

    def agent(turn: Any) -> Iterator[Json]:
        yield assistant("one")
        yield assistant("two")

    with Session.open(disk_url, "s", agent=agent) as session:
        stream = session.stream("go")
        next(stream)
        forked(session.close)
        list(stream)
        assert [e.data["reason"] for e in session.events(kinds=("turn_end",))] == ["end_turn"]


def test_a_child_leaves_the_folders_of_its_parent(tmp_path: Path) -> None:
    """Contents of a store in memory, and a copy of the log, go with their own process."""
    work = tmp_path / "work"
    work.mkdir()

    def end() -> None:
        session.append(user("by a child"))
        assert session.parts.log.transcript_path() != copied
        session.close()
        with Session.open(store, "t", cwd=work) as other:
            other.append(user("by a child"))

    with open_store("memory:") as store, Session.open(store, "s", cwd=work) as session:
        session.append(user("first"))
        copied = session.parts.log.transcript_path()
        contents = depot.Depot.of(store)
        contents.close()
        forked(end)
        assert Path(copied).exists()
        assert (contents.folder / "blobs.db").exists()
    assert not Path(copied).exists()
    assert not contents.folder.exists()
