"""Appending to JSONL logs: to one at a time, or to many, and then one wait for the disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...errors import BacktrailError, SessionBusy, StoreFailed
from ...events import Event
from ..batches import Call, Draft, Outcome
from ..disk.locks import WAIT
from ..queue import PAUSE, Postponed
from .folders import OpenFolders
from .writing import LogWriter

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
        # Sessions that the queue found locked: when to try again, and what it was told.
        self._locked: dict[str, tuple[float, SessionBusy]] = {}

    def append_usual(
        self, session_id: str, log: str, draft: Draft
    ) -> tuple[Event, LogWriter] | None:
        """Append to a log that nobody else wrote to; None, and nothing written, if it is not."""
        try:
            folder = self._open.by_id[session_id]
            writer = folder.open_writer(log)
            if writer is None or draft.given or draft.follows is not None:
                return None
            event = writer.append_usual(folder.lock, draft)
            return None if event is None else (event, writer)
        except (KeyError, TypeError):
            return None
        except OSError as error:
            raise self._told(error, session_id) from error

    def is_busy(self, session_id: str, log: str) -> bool:
        """Whether another thread writes to this log and waits for the disk."""
        folder = self._open.by_id.get(session_id)
        writer = None if folder is None else folder.open_writer(log)
        return writer is not None and writer.busy

    def append_each(self, calls: Sequence[Call], *, patient: bool = True) -> list[Outcome]:
        """One write to each log, and then, if it is to be waited for, the disk.

        Whoever is not `patient` has others wait behind: an append to a session that another
        process has locked for longer is `Postponed`, all to the same log or none.
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
                    outcomes[n] = self._told(outcome, session_id)
            return outcomes, writer, ticket
        except OSError as error:
            return [self._told(error, session_id)] * len(calls), None, 0
        except BacktrailError as error:
            return [error] * len(calls), None, 0

    def _told(self, error: OSError, session_id: str) -> OSError:
        if isinstance(error, BacktrailError):
            return error
        return self._failed(error, f"append to session `{session_id}`")
