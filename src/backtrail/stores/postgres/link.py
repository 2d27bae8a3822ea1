"""The connections of a PostgreSQL store, and what the server's errors mean.

A connection is one thread's at a time, for one statement or one transaction; nothing is kept in it
between two uses, so that a pooler in transaction mode may stand in between. There are no threads
here: a caller that finds no free connection opens one, up to the limit, or waits.

A forked child opens its own. The parent's are kept there and never touched: closing one would end
it for the parent.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import Closed, SessionBusy, StoreFailed, Unsupported
from ..disk import forks
from .address import Address
from .pool import Pool

try:
    import psycopg
    from psycopg.types.string import ByteaBinaryLoader
except ImportError as error:
    from ..._startup.extras import install_line

    raise Unsupported(
        f"PostgreSQL needs the package `psycopg`: {install_line('postgres')}"
    ) from error

if TYPE_CHECKING:
    Connection = psycopg.Connection[tuple[Any, ...]]
    Cursor = psycopg.Cursor[tuple[Any, ...]]

T = TypeVar("T")

PATIENCE = 15.0
"""Seconds for which a store in use tries to reach its server again."""

WAIT = 30.0
"""Seconds to wait for a connection of one's own."""

_PREPARED = 2
_GOOD = psycopg.pq.ConnStatus.OK
_AT_REST = psycopg.pq.TransactionStatus.IDLE
_REPEATS = 8


class Lost(Exception):
    """The connection broke: whether the statement was carried out is not known."""


class Execute:
    """Runs statements on one connection. `backtrail.` stands for the schema of the store."""

    __slots__ = ("_cursor", "connection", "link")

    def __init__(self, link: Link, connection: Connection) -> None:
        self.link = link
        self.connection = connection
        self._cursor = connection.cursor()

    def __call__(self, text: str, values: Sequence[object] = ()) -> Cursor:
        """Run one statement; numbers come in binary, a `varchar` as bytes."""
        return self._cursor.execute(self.link.sql(text), values, binary=True)

    def one(self, text: str, values: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """The first row of a query."""
        return self(text, values).fetchone()

    def all(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self(text, values).fetchall()


class Link:
    """The way to one database: connections, statements, transactions."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.reconnected: Callable[[Execute, bool], None] | None = None
        """Called on the first connection after a loss, and whether the server is another one."""
        self._texts: dict[str, bytes] = {}
        self._closed = False
        self._met = False
        self._prepares = True
        self.line = ""
        """The timeline of the server: another one has another history."""
        self.standby = False
        """Whether it is a replica, which only reads."""
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """Leave the parent's connections alone, and begin with none."""
        # Kept, so that none is finalised here.
        _parents.append(self.__dict__.get("_pool"))
        self._pool: Pool[Execute] = Pool(self.address.pool)
        self._lost = False
        self._meeting = threading.Lock()

    def sql(self, text: str) -> bytes:
        """A statement with the schema of the store in it."""
        found = self._texts.get(text)
        if found is None:
            found = text.replace("backtrail.", f'"{self.address.schema}".').encode()
            self._texts[text] = found
        return found

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self._closed:
            raise Closed(f"the store at {self.address.place} is closed")

    # --- work ----------------------------------------------------------------------------

    def read(self, work: Callable[[Execute], T]) -> T:
        """Do work that may be done twice: again on another connection if this one breaks."""
        return self._persist(lambda: self.attempt(work))

    def write(self, work: Callable[[Execute], T]) -> T:
        """Do work in one transaction; again if the connection breaks, so it must not mind that."""
        return self._persist(lambda: self.attempt_whole(work))

    def _persist(self, attempt: Callable[[], T]) -> T:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return attempt()
            except Lost as error:
                if time.monotonic() > deadline:
                    raise self.unreachable(error) from error

    def unreachable(self, error: BaseException) -> StoreFailed:
        """The error for a server that was lost for too long."""
        return StoreFailed(
            f"PostgreSQL at {self.address.place} went away: {_first_line(error)}; it was tried "
            f"again for {PATIENCE:g} s. Nothing was acknowledged; go on when it is back"
        )

    def attempt_whole(self, work: Callable[[Execute], T]) -> T:
        """Do work in one transaction, once; `Lost` if the outcome is not known."""

        def whole(execute: Execute) -> T:
            with execute.connection.transaction():
                return work(execute)

        return self.attempt(whole)

    def attempt(self, work: Callable[[Execute], T]) -> T:
        """Do work once; `Lost` if the outcome is not known.

        What the server took back by itself, because of a deadlock or a conflict, is done again.
        """
        for turn in range(_REPEATS):
            execute = self._take()
            connection = execute.connection
            try:
                return work(execute)
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as error:
                if turn + 1 == _REPEATS:
                    raise self.failure(error) from error
            except (
                psycopg.errors.DuplicatePreparedStatement,
                psycopg.errors.InvalidSqlStatementName,
            ) as error:
                # A pooler is in between that does not show.
                self._prepares = False
                connection.close()
                if turn + 1 == _REPEATS:
                    raise self.failure(error) from error
            except psycopg.errors.UniqueViolation:
                raise
            except psycopg.Error as error:
                if connection.closed or (error.sqlstate or "").startswith(("08", "57P")):
                    self._forget_idle()
                    raise Lost(_first_line(error)) from error
                raise self.failure(error) from error
            finally:
                self._give(execute)
            time.sleep(random.random() * 0.01 * 2**turn)
        raise AssertionError("unreachable")

    # --- connections -----------------------------------------------------------------------

    def _take(self) -> Execute:
        self.check_open()
        try:
            found = self._pool.take(WAIT)
        except TimeoutError:
            raise SessionBusy(
                f"all {self.address.pool} connections to {self.address.place} were in use for "
                f"{WAIT:g} s: give the URL a larger `pool=`"
            ) from None
        if found is not None:
            return found
        try:
            return Execute(self, self._connect())
        except BaseException:
            self._pool.drop()
            raise

    def _give(self, execute: Execute) -> None:
        server = execute.connection.pgconn
        if server.status != _GOOD or server.transaction_status != _AT_REST:
            execute.connection.close()
            self._pool.drop()
            return
        self._pool.give(execute)
        if self._closed:
            self._close_idle()

    def _close_idle(self) -> None:
        for execute in self._pool.drain():
            execute.connection.close()

    def _forget_idle(self) -> None:
        """Close what rests: after a restart of the server each of them is broken."""
        self._lost = True
        self._close_idle()

    def _connect(self) -> Connection:
        """A new connection; a store that was in use waits for its server to come back."""
        deadline = time.monotonic() + PATIENCE
        pause = 0.02
        while True:
            try:
                connection = self.open()
                break
            except psycopg.OperationalError as error:
                if not self._met or time.monotonic() > deadline or not _may_pass(error):
                    raise self.refused(error) from error
            self.check_open()
            time.sleep(pause * (1 + random.random()))
            pause = min(pause * 1.6, 0.5)
        try:
            self._greet(connection)
        except psycopg.Error as error:
            connection.close()
            if not self._met:
                raise self.failure(error) from error
            raise Lost(_first_line(error)) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def open(self, conninfo: str = "") -> Connection:
        """A connection outside the pool, by another way if one is given."""
        connection: Connection = psycopg.connect(
            conninfo or self.address.conninfo,
            autocommit=True,
            prepare_threshold=None,
            **_defaults(conninfo or self.address.conninfo),
        )
        connection.adapters.register_loader("varchar", ByteaBinaryLoader)
        return connection

    def _greet(self, connection: Connection) -> None:
        """Find out which server this is, and whether it is itself that answers."""
        row = connection.execute(_GREETING).fetchone()
        if row is None:
            raise psycopg.OperationalError("no answer")
        pid, encoding, standby, line = row
        if encoding != "UTF8":
            raise Unsupported(
                f"the database {self.address.place} is encoded as {encoding}: make one with UTF8"
            )
        if self._prepares and pid == connection.info.backend_pid:
            connection.prepare_threshold = _PREPARED
        self.standby = bool(standby)
        # Until it is known what the server has, no other connection is used.
        with self._meeting:
            moved = bool(line and self.line and line != self.line)
            if (self._lost or moved) and self.reconnected is not None:
                self.reconnected(Execute(self, connection), moved)
            self.line = line or self.line
            self._lost, self._met = False, True

    def close(self) -> None:
        """Close what rests; what is in use is closed when it is given back."""
        self._closed = True
        self._close_idle()

    # --- errors ----------------------------------------------------------------------------

    def refused(self, error: psycopg.Error) -> StoreFailed:
        """The error for a server that could not be connected to: where, why, what to do."""
        text = _first_line(error)
        advice = next((then for sign, then in _ADVICE if sign in text), "")
        return StoreFailed(f"cannot connect to PostgreSQL at {self.address.place}: {text}{advice}")

    def failure(self, error: psycopg.Error) -> StoreFailed:
        """The error for a statement that the server refused."""
        advice = _STATES.get(error.sqlstate or "", "")
        return StoreFailed(
            f"PostgreSQL at {self.address.place} refused: {_first_line(error)}{advice}"
        )


_parents: list[object] = []

_GREETING = (
    "SELECT pg_backend_pid(), current_setting('server_encoding'), pg_is_in_recovery(), "
    "CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
)

_ADVICE = (
    ("password authentication failed", "; check user and password (PGPASSWORD, or ~/.pgpass)"),
    ("no password supplied", "; give the password by PGPASSWORD or ~/.pgpass"),
    ("does not exist", "; make it first (createdb, createuser), or name another"),
    ("Connection refused", "; is the server running, and is this its port?"),
    ("could not translate host name", "; is the host spelt right?"),
    ("failed to resolve host", "; is the host spelt right?"),
    ("too many", "; make `pool=` smaller, or put a pooler in front (docs/how-to/postgres.md)"),
    ("remaining connection slots", "; make `pool=` smaller, or put a pooler in front"),
    ("timeout expired", "; is there a firewall in between?"),
)

_STATES = {
    "25006": "; this server only reads: it is a replica, or was set so. Name the primary one",
    "53100": "; its disk is full: make room there, then go on",
    "53200": "; it has no memory left",
    "42501": "; the role lacks a right: see docs/how-to/postgres.md for the ones that are needed",
    "42P01": "; the tables of the store are gone, or of another version: see `backtrail store`",
    "57014": "; a limit of time was over",
}


def _defaults(conninfo: str) -> dict[str, Any]:
    """Limits of time, unless the URL has its own; a peer that is silent counts as gone."""
    given = {"connect_timeout": 10, "client_encoding": "UTF8", "tcp_user_timeout": 30_000}
    return {name: value for name, value in given.items() if f"{name}=" not in conninfo}


def _may_pass(error: psycopg.Error) -> bool:
    """Whether a server that cannot be connected to may be back soon."""
    text = str(error)
    return not any(
        sign in text for sign in ("authentication failed", "does not exist", "no password")
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].strip() or type(error).__name__
