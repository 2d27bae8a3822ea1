"""The sessions of a JSONL store that are written to: their folders stay open, up to a number."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...events import check_session_id
from ..batches import Call, Outcome
from ..disk.locks import WAIT
from .folder import Folder, Tell
from .writing import LogWriter

OPEN_FOLDERS = 128
"""Sessions whose files are kept open, most recently written first."""


class OpenFolders:
    """Folders by session. `find` tells where that of a session is which exists."""

    def __init__(self, find: Callable[[str], Path], tell: Tell) -> None:
        self._find = find
        self._tell = tell
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
                folder = self.by_id[session_id] = Folder(path, self._tell)
                self._close_some(OPEN_FOLDERS)
        return folder

    @contextmanager
    def locked(self, session_id: str) -> Iterator[Folder]:
        """The session's folder under its lock; `NotFound` if it is gone by then."""
        while True:
            folder = self.get(session_id)
            try:
                folder.lock.acquire()
            except FileNotFoundError:
                self.forget(folder)
                continue
            try:
                if folder.current():
                    yield folder
                    return
            finally:
                folder.lock.release()
            self.forget(folder)
            folder.close()

    def append(
        self, session_id: str, log: str, calls: Sequence[Call], wait: float = WAIT
    ) -> tuple[list[Outcome], LogWriter, int]:
        """Append to one log what these calls want; where, and the ticket of the last write."""
        # Not with `locked`: a writer that is open knows by itself whether the session is there.
        while True:
            folder = self.get(session_id)
            lock = folder.lock
            try:
                lock.acquire(wait)
            except FileNotFoundError:
                self.forget(folder)
                continue
            try:
                writer = folder.writer(log)
                if writer is not None:
                    outcomes, ticket = writer.append_each(calls)
                    return outcomes, writer, ticket
            finally:
                lock.release()
            self.forget(folder)
            folder.close()

    def forget(self, folder: Folder) -> None:
        """The session is not there any more, or another one."""
        with self._mutex:
            if self.by_id.get(folder.id) is folder:
                del self.by_id[folder.id]

    def close_unused(self) -> None:
        """Close all that nobody uses, so that there are descriptors again."""
        with self._mutex:
            self._close_some(0)

    def _close_some(self, most: int) -> None:
        """Close what was not written to for longest; those in use stay.

        Closing syncs, so what the background has not synced yet stays too, up to twice as
        many.
        """
        extra = len(self.by_id) - most
        # Not the newest: whoever has just opened it is about to write.
        for id in list(self.by_id)[: -1 if most else None]:
            if extra <= 0:
                return
            folder = self.by_id[id]
            if (extra > most or not folder.dirty) and folder.close(wait=False):
                del self.by_id[id]
                extra -= 1

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
