"""The sessions of a JSONL store that are written to: their folders stay open, up to a number.

An append goes to one log at a time, or to many, and then there is one wait for the disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from ...errors import BacktrailError, InvalidId, NotFound, SessionBusy, StoreFailed
from ...events import MAIN_LOG, Event, Problem, check_session_id
from ..batches import Call, Draft, Outcome
from ..disk.fs import NO_ROOM
from ..disk.locks import WAIT
from ..queue import PAUSE, Postponed
from .folder import Folder, Report
from .layout import is_session
from .writing import LogWriter

T = TypeVar("T")

OPEN_FOLDERS = 128
"""Sessions whose files are kept open, most recently written first."""


class OpenFolders:
    """Folders by session. `find` gives the folder of a session that exists."""

    def __init__(self, find: Callable[[str], Path], report: Report) -> None:
        self._find = find
        self._report = report
        self._begin()

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self.by_id: OrderedDict[str, Folder] = OrderedDict()

    def abandon(self) -> None:
        """In a forked child: forget the parent's open files."""
        inherited = self.by_id
        self._begin()
        for folder in inherited.values():
            folder.abandon()

    def get(self, session_id: str) -> Folder:
        """The folder of a session, to write in."""
        if type(session_id) is not str:
            check_session_id(session_id)
        folder = self.by_id.get(session_id)
        if folder is not None:
            try:
                self.by_id.move_to_end(session_id)
            except KeyError:
                pass
            return folder
        path = self._find(session_id)
        with self._mutex:
            folder = self.by_id.get(session_id)
            if folder is None:
                folder = self.by_id[session_id] = Folder(path, self._report)
                self._close_some(OPEN_FOLDERS)
        return folder

    @contextmanager
    def _held(
        self, session_id: str, wait: float, ready: Callable[[Folder], T | None]
    ) -> Iterator[T]:
        """What is ready of a session's folder, under its lock; `NotFound` if it is gone by then."""
        while True:
            folder = self.get(session_id)
            try:
                folder.lock.acquire(wait)
            except FileNotFoundError:
                self.forget(folder)
                continue
            try:
                found = ready(folder)
                if found is not None:
                    yield found
                    return
            finally:
                folder.lock.release()
            self.forget(folder)
            folder.close()

    def locked(self, session_id: str) -> AbstractContextManager[Folder]:
        """The session's folder under its lock; `NotFound` if it is gone by then."""
        return self._held(session_id, WAIT, lambda folder: folder if folder.current() else None)

    def append(
        self, session_id: str, log: str, calls: Sequence[Call], wait: float = WAIT
    ) -> tuple[list[Outcome], LogWriter, int]:
        """Append to one log what these calls want; where, and the ticket of the last write."""
        # A writer that is open knows by itself whether the session is there.
        with self._held(session_id, wait, lambda folder: folder.writer(log)) as writer:
            outcomes, ticket = writer.append_each(calls)
            return outcomes, writer, ticket

    def forget(self, folder: Folder) -> None:
        """The session is not there any more, or another one."""
        with self._mutex:
            if self.by_id.get(folder.id) is folder:
                del self.by_id[folder.id]

    def close_unused(self) -> None:
        """Close all that are not in use, so that there are descriptors again."""
        with self._mutex:
            self._close_some(0)

    def _close_some(self, most: int) -> None:
        """Close what was not written to for longest; those in use stay.

        Closing syncs, so what the background has not synced yet stays too, up to twice as
        many.
        """
        extra = len(self.by_id) - most
        # Not the newest: the session that opened it last is about to write.
        for id in list(self.by_id)[: -1 if most else None]:
            if extra <= 0:
                return
            folder = self.by_id[id]
            if (extra > most or not folder.dirty) and folder.close(wait=False):
                del self.by_id[id]
                extra -= 1

    def verify(self, sessions: Path) -> Iterator[Problem]:
        """Read every line of every log under its lock; report each place that is damaged."""
        for entry in sorted(os.scandir(sessions), key=lambda entry: entry.name):
            try:
                if is_session(entry.path):
                    yield from self._verify(entry.name)
                    continue
                detail = "a folder without a main log: a session that was being made or removed"
                yield Problem(entry.name, MAIN_LOG, "stray", detail)
            except NotFound:
                continue
            except InvalidId as error:
                yield Problem(entry.name, MAIN_LOG, "stray", str(error))
            except OSError as error:
                yield Problem(entry.name, MAIN_LOG, "unreadable", str(error))

    def _verify(self, session_id: str) -> list[Problem]:
        try:
            with self.locked(session_id) as folder:
                return list(folder.verify())
        except OSError as error:
            # Without writing there is no lock: what is not finished may be on its way.
            if error.errno not in NO_ROOM:
                raise
            return list(Folder(self._find(session_id), self._report).verify(locked=False))

    def flush(self) -> None:
        """Return when all that was written is on the disk."""
        with self._mutex:
            folders = list(self.by_id.values())
        for folder in folders:
            folder.flush()

    def close(self) -> None:
        """Close all of them."""
        with self._mutex:
            folders, self.by_id = self.by_id, OrderedDict()
        with ExitStack() as closing:
            for folder in folders.values():
                closing.callback(folder.close)


# --- appending ---------------------------------------------------------------------------


_BRIEF = 0.02


Appended = tuple[Sequence[Outcome], LogWriter | None, int]
"""What came of each call to a log, and what to wait for."""


class Appender:
    """Appends to the logs of a store. `failed` says what an error of the system means."""

    def __init__(
        self, folders: OpenFolders, failed: Callable[[OSError, str], StoreFailed], *, synced: bool
    ) -> None:
        self._open = folders
        self._failed = failed
        self._synced = synced
        # Sessions that the queue found locked: when to try again, and the error.
        self._locked: dict[str, tuple[float, SessionBusy]] = {}

    def append_usual(
        self, session_id: str, log: str, draft: Draft
    ) -> tuple[Event, LogWriter] | None:
        """Append to a log without other writers; None, and nothing written, if it has some."""
        try:
            folder = self._open.by_id[session_id]
            writer = folder.open_writer(log)
            if writer is None or not draft.usual:
                return None
            event = writer.append_usual(folder.lock, draft)
            return None if event is None else (event, writer)
        except (KeyError, TypeError):
            return None
        except OSError as error:
            raise self._meant(error, session_id) from error

    def is_busy(self, session_id: str, log: str) -> bool:
        """Whether another thread writes to this log and waits for the disk."""
        folder = self._open.by_id.get(session_id)
        writer = None if folder is None else folder.open_writer(log)
        return writer is not None and writer.busy

    def append_each(self, calls: Sequence[Call], *, patient: bool = True) -> list[Outcome]:
        """One write to each log, and then, if it is to be waited for, the disk.

        A caller that is not `patient` has others wait behind it: an append to a session that
        another process has locked for longer is `Postponed`, all to the same log or none.
        """
        logs: dict[tuple[str, str], list[int]] = {}
        for n, call in enumerate(calls):
            logs.setdefault((call.session_id, call.log), []).append(n)
        outcomes: list[Outcome] = [[] for _ in calls]
        written: list[tuple[LogWriter, int, list[int]]] = []
        for (session_id, log), places in logs.items():
            append = self._append if patient else self._append_briefly
            found, writer, ticket = append(session_id, log, [calls[n] for n in places])
            for n, outcome in zip(places, found, strict=True):
                outcomes[n] = outcome
            if self._synced and writer is not None and ticket:
                written.append((writer, ticket, places))
                writer.busy = True
                if len(logs) > 1:
                    # The disk works on all of them while the first is waited for.
                    writer.begin_sync()
        for writer, ticket, places in written:
            try:
                writer.sync.wait(ticket)
            except StoreFailed as error:
                for n in places:
                    outcomes[n] = error
            finally:
                writer.busy = False
        return outcomes

    def _append_briefly(self, session_id: str, log: str, calls: Sequence[Call]) -> Appended:
        """Append to one log, if its lock is free soon; else a call has waited enough, or not."""
        again, busy = self._locked.get(session_id, (0.0, None))
        if busy is None or time.monotonic() >= again:
            found = self._append(session_id, log, calls, _BRIEF if busy is None else 0.0)
            if not isinstance(found[0][0], SessionBusy):
                self._locked.pop(session_id, None)
                return found
            owner = found[0][0].owner
            text = f"session `{session_id}` is locked by {owner}; waited {WAIT:g} s"
            busy = SessionBusy(text, owner=owner)
            self._locked[session_id] = time.monotonic() + PAUSE, busy
        begun = time.monotonic() - WAIT
        return [busy if call.since <= begun else Postponed() for call in calls], None, 0

    def _append(
        self, session_id: str, log: str, calls: Sequence[Call], wait: float = WAIT
    ) -> Appended:
        """Append to one log."""
        try:
            if len(calls) == 1 and calls[0].usual:
                found = self.append_usual(session_id, log, calls[0].batch[0])
                if found is not None:
                    return [[found[0]]], found[1], found[1].sync.written
            outcomes, writer, ticket = self._open.append(session_id, log, calls, wait)
            for n, outcome in enumerate(outcomes):
                if isinstance(outcome, OSError):
                    outcomes[n] = self._meant(outcome, session_id)
            return outcomes, writer, ticket
        except OSError as error:
            return [self._meant(error, session_id)] * len(calls), None, 0
        except BacktrailError as error:
            return [error] * len(calls), None, 0

    def _meant(self, error: OSError, session_id: str) -> OSError:
        if isinstance(error, BacktrailError):
            return error
        return self._failed(error, f"append to session `{session_id}`")
