"""Reads and transactions on one of the connections of a database.

`with database.reading() as connection` lends one that reads. `with database.writing() as
execute` is a transaction, with SQLite's errors turned into ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import apsw

from .schema import failure

if TYPE_CHECKING:
    from .database import Database

Execute = Callable[..., Any]
"""A cursor's `execute`. Each call ends the statement before it, so fetch first.

What rows hold is known from the query and not from the types of `apsw`, hence `Any`.
"""

_REMEMBERED = 4096
_UNKNOWN = -1


class Older:
    """A connection to a database of an earlier version: what it lacks is put into the queries."""

    def __init__(self, connection: apsw.Connection, lacking: dict[str, str]) -> None:
        self._connection = connection
        self._lacking = lacking

    def execute(self, query: str, values: Any = None) -> Any:
        """Run a query in which no column is one that the database has not."""
        for name, instead in self._lacking.items():
            query = re.sub(rf"(?:\b[a-z]\.)?\b{name}\b", instead, query)
        return self._connection.execute(query, values)

    def cursor(self) -> Any:
        """What `execute` returns can be gone through; there is nothing to be closed."""
        return _OlderCursor(self)


class _OlderCursor:
    """A cursor of `Older`."""

    def __init__(self, connection: Older) -> None:
        self._connection = connection
        self._rows: Any = iter(())

    def execute(self, query: str, values: Any = None) -> Any:
        self._rows = self._connection.execute(query, values)
        return self._rows

    def __iter__(self) -> Any:
        return iter(self._rows)

    def close(self) -> None:
        self._rows.close()


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
        writer = database.hold(self._wait)
        try:
            if writer is not self._of:
                self._of, self._execute = writer, writer.cursor().execute
            # Perhaps the last one was interrupted before it could end.
            self._roll_back()
            if database.first is not None:
                database.first(writer)
            self._execute("BEGIN IMMEDIATE")
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
            try:
                self._execute("ROLLBACK")
            except apsw.Error:
                # SQLite ends the transaction by itself when it cannot go on with it.
                pass
