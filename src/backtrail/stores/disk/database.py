"""The connections of one store: a few that read, one that writes, and the sync of its -wal.

A connection is used by one thread at a time. Readers take one from a stack for the length
of one page and give it back. The writer works behind a mutex and a flock, so that waiting
for it is fair and short; SQLite's own busy handler is only for foreign programs.

A fork of the process must not meet a connection at work: SQLite keeps its locks by process
and would believe, in the child, to hold those of the parent. So before a fork every store
comes to rest, and the child closes the resting copies before it opens its own. Closing them
is safe: without a checkpoint on close it touches nothing that is shared.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import apsw

from ...errors import BacktrailError, SessionBusy
from . import fs
from . import schema as tables
from .locks import WAIT
from .resting import PATIENCE, doorway, leak, register, settle
from .schema import (
    EVENTS,
    WAL_LIMIT,
    Execute,
    Older,
    Schema,
    closed,
    connect,
    cut_wal,
    empty_wal,
    failure,
    migrate,
    prepare,
    prepare_writer,
)
from .sync import SyncFile

_KEPT = 4
_REMEMBERED = 4096
_UNKNOWN = -1
_FINISHED = 1.0  # Seconds that closing waits for readers at most.
_COMMITS = 200  # The -wal file stays long: its length alone does not say that there is work.


class Database:
    """An open database file, shared by the threads of this process."""

    def __init__(
        self, path: str | os.PathLike[str], *, synced: bool, idle: Callable[[], None] | None = None,
        schema: Schema = EVENTS,
    ) -> None:  # fmt: skip
        self.writing = Writing(self, WAIT)
        self.briefly = Writing(self, 0.05)
        self._synced = synced
        self._idle = idle
        # Done before each transaction, under the lock.
        self.first: Callable[[apsw.Connection], None] | None = None
        self._guard = threading.Lock()
        self._open = True
        self._used = 0
        self._moved = self._cut = 0
        self._holds = self._pausing = False
        self._guarded: list[bool] = []
        # The one that writes, once it is open; only for the holder of the lock.
        self.connection: apsw.Connection | None = None
        self.sync: SyncFile | None = None
        # Where logs that are marked dirty end, as of the last commit of ours. A commit of
        # another gives the file another version and makes it worthless.
        self.heads: dict[int, int] = {}
        self.version = 0
        with doorway:
            # What an older database lacks that could not be brought up to date.
            connection, self.lock, self.lacking = prepare(os.fspath(path), schema)
            self._readers = [connection]
            self.path = connection.filename
            self._schema = schema
            register(self)

    # --- reading ---------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Lend a connection for one short read, with SQLite's errors turned into ours."""
        connection: apsw.Connection | None = None
        try:
            connection = self.take()
            yield connection if not self.lacking else Older(connection, self.lacking)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise failure(error, self.path) from error
        finally:
            if connection is not None:
                self.give(connection)

    def take(self) -> apsw.Connection:
        """A connection for this thread alone; `give` it back."""
        if self._pausing:
            self._wait()
        with self._guard:
            if not self._open:
                raise closed(self.path)
            self._used += 1
            if self._readers:
                return self._readers.pop()
        try:
            return connect(self.path)
        except BaseException:
            self.give(None)
            raise

    def give(self, connection: apsw.Connection | None) -> None:
        """Return what `take` gave."""
        with self._guard:
            if connection is None or (self._open and len(self._readers) < _KEPT):
                self._used -= 1
                if connection is not None:
                    self._readers.append(connection)
                return
        try:
            connection.close()
        finally:
            with self._guard:
                self._used -= 1

    def _wait(self) -> None:
        """Let the process be forked first."""
        deadline = time.monotonic() + WAIT
        while self._pausing:
            settle()
            if time.monotonic() > deadline:
                raise SessionBusy(f"the database {self.path} waits for a fork of this process")
            time.sleep(0.0002)

    # --- writing ---------------------------------------------------------------------

    def enter(self, wait: float = WAIT) -> None:
        """Take the lock that writers take; `lock.release` gives it back."""
        if self._pausing:
            self._wait()
        try:
            self.lock.acquire(wait)
        except BacktrailError:
            raise
        except OSError as error:
            raise fs.failed(error, f"lock the database {self.path}") from error

    def hold(self, wait: float = WAIT) -> apsw.Connection:
        """Take the lock, for the connection that writes."""
        self.enter(wait)
        try:
            writer = self.writer()
            if self.sync is not None:
                self.sync.check()
            return writer
        except BaseException as error:
            self.lock.release()
            if isinstance(error, apsw.Error):
                raise failure(error, self.path) from error
            raise

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._open

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if not self._open:
            raise closed(self.path)

    def writer(self) -> apsw.Connection:
        """The connection that writes; only for the holder of the lock."""
        self.check_open()
        if self.connection is None:
            connection = connect(self.path)
            if self.lacking:
                migrate(connection, self.path, self._schema)
                self.lacking = {}
            prepare_writer(connection)
            # A read makes the -wal file, and pins it for as long as the connection lives.
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            name = f"{self.path}-wal"
            try:
                fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError as error:
                connection.close()
                raise fs.failed(error, f"open {name}") from error
            with self._guard:
                if self._open:
                    self.sync = SyncFile(name, fd, self._idle)
                    self.connection = connection
            if self.connection is None:
                # Closed meanwhile, so these are ours to let go of.
                os.close(fd)
                connection.close()
                raise closed(self.path)
        return self.connection

    def acknowledge(self) -> None:
        """Wait, if the store's durability says so, until what was committed is on the disk."""
        if self._synced and self.sync is not None:
            self.sync.wait(self.writing.ticket)

    def flush(self) -> None:
        """Return when everything committed so far is on the disk."""
        self.check_open()
        sync = self.sync
        if sync is None:
            with self.lock.held():
                self.writer()
                sync = self.sync
        if sync is not None:
            sync.flush()

    @property
    def dirty(self) -> bool:
        """Whether something committed here may not be on the disk."""
        return self.sync is not None and self.sync.dirty

    def checkpoint(self) -> None:
        """Move the -wal into the database while others go on, if it has grown."""
        sync, ticket = self.sync, self.writing.ticket
        if sync is None or ticket - self._moved < _COMMITS:
            return
        if os.fstat(sync.fd).st_size <= WAL_LIMIT:
            return
        self._moved = ticket
        with self.reading() as connection:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def shorten(self) -> None:
        """Cut a -wal file that much was written through at once; if it is in use, another time."""
        sync = self.sync
        if sync is None or os.fstat(sync.fd).st_size <= WAL_LIMIT:
            return
        if self.writing.ticket != self._cut:
            # Another thread writes on: not in the middle of that.
            self._cut = self.writing.ticket
            sync.later()
            return
        if self.lock.try_acquire():
            try:
                if self.connection is not None:
                    cut_wal(self.connection)
            finally:
                self.lock.release()

    def erase_wal(self) -> None:
        """Empty the -wal file, so that nothing old can be read in it."""
        with self.lock.held():
            try:
                self.writer().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError as error:
                raise SessionBusy(
                    f"the events are purged, but traces stay in {self.path}-wal while another "
                    "program reads the database: purge again when it is done"
                ) from error
            except apsw.Error as error:
                raise failure(error, self.path) from error

    # --- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection that rests; those in use close when given back."""
        with self._guard:
            if not self._open:
                return
            self._open = False
            readers, self._readers = self._readers, []
        try:
            with fs.failing(f"close the database {self.path}"), doorway:
                self._let_go(readers)
        except apsw.Error as error:
            raise failure(error, self.path) from error

    def _let_go(self, readers: list[apsw.Connection]) -> None:
        writer, sync = self.connection, self.sync
        if writer is None and len(readers) == 1:
            # A store that was only looked at.
            self.lock.shut()
            readers[0].close()
            return
        with ExitStack() as closing:
            closing.callback(self.lock.shut)
            if sync is not None:
                closing.callback(os.close, sync.fd)
            for connection in readers if writer is None else [*readers, writer]:
                closing.callback(connection.close)
            if sync is not None:
                closing.callback(sync.retire)
            if writer is not None and sync is not None:
                # Threads that read, or copy the -wal in the background, have a moment to finish.
                deadline = time.monotonic() + _FINISHED
                while self._used and time.monotonic() < deadline:
                    time.sleep(0.0002)
                # A writer at work finishes first.
                with self.lock.held():
                    self.connection = self.sync = None
                    empty_wal(writer, sync.fd)

    # --- forks of the process --------------------------------------------------------

    def rest(self, locked: bool) -> bool:
        """Wait until no thread uses a connection, and keep it so. False if it takes long.

        `locked` says that another store of this process holds the lock on the same file.
        """
        if not self._open:
            return False  # Its lock is closed with it, and would be opened again.
        self._pausing = True
        if not locked:
            try:
                self.lock.acquire(PATIENCE)
            except (OSError, BacktrailError):
                self._pausing = False
                return False
            self._holds = True
        deadline = time.monotonic() + PATIENCE
        while True:
            # One call of C code takes the guard and notes it: an interrupt leaves no half.
            self._guarded.extend(map(self._guard.acquire, (True,)))
            if not self._used:
                return True
            self._guarded = []
            self._guard.release()
            if time.monotonic() > deadline:
                self.go_on()
                return False
            time.sleep(0.0002)

    def go_on(self) -> None:
        """End what `rest` began, or as much of it as was done; may be called again."""
        # No interrupt comes between forgetting that one is held and the call that gives it back.
        if self._guarded:
            self._guarded = []
            self._guard.release()
        if self._holds:
            self._holds = False
            self.lock.release()
        # Last, since a thread that waits for this ends what was interrupted; see `settle`.
        self._pausing = False

    def begin_anew(self, rested: bool) -> None:
        """In a forked child: let go of the parent's connections."""
        # An interrupted fork has it among those that rest, and it may not.
        rested = rested and bool(self._guarded) and not self._used
        self._guard = threading.Lock()
        self._guarded = []
        self._holds = self._pausing = False
        self._used = self._moved = 0
        self.heads.clear()
        old, self._readers = self._readers, []
        if self.connection is not None:
            old.append(self.connection)
        self.connection = None
        sync, self.sync = self.sync, None
        if sync is not None:
            os.close(sync.fd)
        if not rested:
            leak(old)
            return
        for connection in old:
            connection.close()


def _begin_soon(writer: apsw.Connection, wait: float) -> None:
    """Begin a transaction; programs that know nothing of our lock are not waited for longer."""
    writer.set_busy_timeout(int(wait * 1000))
    try:
        writer.execute("BEGIN IMMEDIATE")
    finally:
        writer.set_busy_timeout(tables.BUSY_TIMEOUT)


class Writing:
    """One transaction: locked, begun at once, committed or rolled back."""

    def __init__(self, database: Database, wait: float) -> None:
        self._database = database
        self._wait = wait
        self.ticket = 0
        # Only the holder of the lock uses these.
        self._of: apsw.Connection | None = None
        self._execute: Any = None
        self._moved: dict[int, int] = {}

    @contextmanager
    def __call__(self) -> Iterator[Execute]:
        """The transaction. A generator: one that an interrupt drops is ended all the same."""
        database = self._database
        writer = database.hold(wait := self._wait)
        try:
            if writer is not self._of:
                self._of, self._execute = writer, writer.cursor().execute
            # Perhaps the last one was interrupted before it could end.
            self._roll_back()
            if database.first is not None:
                database.first(writer)
            _begin_soon(writer, wait) if wait < WAIT else self._execute("BEGIN IMMEDIATE")
            heads = database.heads
            if heads and writer.data_version() != database.version:
                heads.clear()
            yield self._execute
            # An interrupt between the commit and `_remember` leaves heads that are not believed.
            database.version = _UNKNOWN
            self._execute("COMMIT")
            self._remember()
            if database.sync is not None:
                database.writing.ticket = database.sync.note()
        except (apsw.Error, UnicodeDecodeError) as error:
            raise failure(error, database.path) from error
        finally:
            try:
                self._roll_back()
            finally:
                database.lock.release()

    def head(self, log: int) -> int | None:
        """Where a log ends, if that is known."""
        return self._moved.get(log, self._database.heads.get(log))

    def moves(self, log: int, head: int) -> None:
        """Say that this transaction only appends: to `log`, up to `head`."""
        self._moved[log] = head

    def _remember(self) -> None:
        database = self._database
        if not self._moved:
            database.heads.clear()
        elif self._of is not None:
            if len(database.heads) >= _REMEMBERED:
                database.heads.clear()
            database.heads.update(self._moved)
            database.version = self._of.data_version()
            self._moved = {}

    def _roll_back(self) -> None:
        self._moved = {}
        if self._of is not None and self._of.in_transaction:
            # SQLite ends the transaction by itself when it cannot go on with it.
            with suppress(apsw.Error):
                self._execute("ROLLBACK")
