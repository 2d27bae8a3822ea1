"""What the rules of the contract share: opening, appending, lists of calls, child processes."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ...events import MAIN_LOG, Event, Json, NewEvent, SessionInfo
from ...stores.base import KnownIds, Store
from ..places import PlaceBase

Call = Callable[[], object]
"""A call with its arguments bound."""


class ContractBase(PlaceBase[Store]):
    """The settings and tools of `StoreContract`."""

    def settle(
        self, store: Store, session_id: str, log: str, events: Sequence[Event]
    ) -> list[Event]:
        """The events that `append` returned, with their final `seq`."""
        return list(events)

    # --- tools ---------------------------------------------------------------------------

    def started(self, tmp_path: Path, session_id: str = "s", events: int = 0) -> Store:
        """A store with one session and some events in it."""
        store = self.open(tmp_path)
        store.create(SessionInfo(id=session_id))
        if events:
            self.put(store, session_id, notes(events))
        return store

    def put(
        self,
        store: Store,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        """Append, and return what was stored."""
        result = store.append(session_id, events, log=log, expected=expected, known=known)
        return self.settle(store, session_id, log, result)

    def session_calls(self, store: Store, id: str) -> dict[str, Call]:
        """Every method that takes a session id, called with `id`."""
        return {
            "info": lambda: store.info(id),
            "record": lambda: store.record(id),
            "outline": lambda: store.outline(id),
            "tally": lambda: store.tally(id),
            "update": lambda: store.update(id, title="x"),
            "delete": lambda: store.delete(id),
            "logs": lambda: store.logs(id),
            "lease": lambda: enter(store.lease(id)),
            "fork": lambda: store.create(SessionInfo(id="fork"), base=(id, 0)),
            **self.log_calls(store, id, MAIN_LOG),
            "delete log": lambda: store.delete(id, log="side"),
        }

    def log_calls(self, store: Store, id: str, log: str) -> dict[str, Call]:
        """Every method that takes the name of a log, called with `log`."""
        return {
            "append": lambda: self.put(store, id, [note()], log=log),
            "append nothing": lambda: self.put(store, id, [], log=log),
            "read": lambda: store.read(id, log=log),
            "read back": lambda: store.read(id, log=log, reverse=True, limit=1),
            "purge": lambda: store.purge(id, [1], log=log),
            "tail": lambda: store.tail(id, 1, log=log),
            "walk": lambda: store.walk(id, log=log),
            "history": lambda: store.history(id, log=log),
            "pages": lambda: store.pages(id, log=log),
            "find": lambda: store.find(id, "e1", log=log),
            "follow": lambda: store.follow(id, log=log),
            "follow after": lambda: store.follow(id, log=log, after=0),
            "delete log": lambda: store.delete(id, log=log),
        }


# --- events ------------------------------------------------------------------------------


def note(n: Json = 0, id: str | None = None, follows: int | None = None) -> NewEvent:
    """A small event of a kind the library does not know."""
    return NewEvent("note", {"n": n}, id=id, follows=follows)


def notes(count: int, first: int = 1) -> list[NewEvent]:
    """Events with the ids e1, e2 …, whose number is their place in an otherwise empty log."""
    return [note(n, id=f"e{n}") for n in range(first, first + count)]


def said(role: str, text: str, **extra: Json) -> NewEvent:
    """A message of the conversation; `extra` goes beside it."""
    return NewEvent(f"{role}_message", {"message": {"role": role, "content": text}, **extra})


def everything(store: Store, session_id: str, log: str = MAIN_LOG) -> list[Event]:
    """A whole log."""
    return list(store.read(session_id, log=log))


def seqs(events: Sequence[Event]) -> list[int]:
    """The numbers of events."""
    return [event.seq for event in events]


# --- every method ------------------------------------------------------------------------


def store_calls(store: Store, cwd: Path) -> dict[str, Call]:
    """Every method that takes no session id."""
    return {
        "create": lambda: store.create(SessionInfo(id="new")),
        "sessions": lambda: store.sessions(),
        "latest": lambda: store.latest(cwd),
        "checkpoint": lambda: store.checkpoint("e1"),
        "search": lambda: store.search("word"),
        "memory read": lambda: store.memory(cwd).read(),
        "memory write": lambda: store.memory(cwd).write("text"),
        "verify": lambda: store.verify(),
        "flush": lambda: store.flush(),
    }


def enter(context: AbstractContextManager[object]) -> None:
    """Enter a context and leave it."""
    with context:
        pass


def raised(call: Call) -> type[BaseException] | None:
    """The type of the error that a call raises; None if it returns."""
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def assert_all_raise(calls: dict[str, Call], error: type[BaseException]) -> None:
    """Each of the calls raises just this."""
    assert {name: raised(call) for name, call in calls.items()} == dict.fromkeys(calls, error)


# --- processes ---------------------------------------------------------------------------


def child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process and return its id; the exit code says how it went."""
    with warnings.catch_warnings():
        # The child opens its own store and never touches the parent's threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # Test runners turn these into jumps back into their own loop.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def joined(pids: Sequence[int]) -> list[int]:
    """The exit codes of child processes, waited for."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
