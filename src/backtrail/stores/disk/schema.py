"""The SQLite database: where it is, how it is made, migrated and opened, what its errors mean.

The schema is a list of numbered migrations. Each runs in one transaction with the number
that records it, so a database is always of one known version.

An event's key is `log << 32 | seq`: the rows of a log lie together and in order, and a
log's number is never used again. `dirty` names the main logs that have events the session
record does not count yet, `unindexed` those with events the search does not know yet. Of
the kinds only checkpoints are indexed: common kinds would cost every append. So would the
ids: those that end in their own `seq`, as nearly all do that the store makes itself, are
found by it and are not indexed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import apsw

from ..._startup.frozen import NamedTuple
from ...errors import BacktrailError, Closed, Damaged, SessionBusy, StoreFailed, Unsupported
from . import fs
from .locks import FileLock


class Schema(NamedTuple):
    """A kind of database: `application` marks its files, `setup` runs once before the first.

    Migration i brings a database from version i to i + 1.
    """

    application: int
    migrations: tuple[str, ...]
    setup: str
    missing: tuple[tuple[tuple[str, str], ...], ...] = ()
    """For each migration: names that it adds, and what queries have in place of each before it."""


BUSY_TIMEOUT = 10_000
"""Milliseconds to wait for another program that uses the database without our lock."""

WAL_LIMIT = 2 << 20
"""Bytes of the -wal file above which the background checkpoints it."""

# Pages of the -wal file after which a commit checkpoints it. With twice as many the file grows for
# longer, which is slower to sync; with half as many the database is synced too often.
_WAL_PAGES = 500

_WAL_KEPT = 64 << 20
_WAL_LEFT = 1 << 20

Execute = Callable[..., Any]
"""A cursor's `execute`. Each call ends the statement before it, so fetch first.

What rows hold is known from the query and not from the types of `apsw`, hence `Any`.
"""


# The words are cut and folded in Python. The `ascii` tokenizer leaves everything outside
# ASCII alone, so that the index and `query.Query` cannot disagree about a word.
_FIRST = """
CREATE TABLE sessions(
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  scope TEXT NOT NULL, id TEXT NOT NULL, key TEXT,
  parent_id TEXT, relation TEXT, fork_seq INTEGER,
  title TEXT, cwd TEXT, model TEXT, agent_name TEXT,
  created_at TEXT NOT NULL, tags TEXT NOT NULL, metadata TEXT NOT NULL,
  folded INTEGER NOT NULL DEFAULT 0, updated_at TEXT NOT NULL,
  message_count INTEGER NOT NULL DEFAULT 0, turn_count INTEGER NOT NULL DEFAULT 0,
  usage TEXT NOT NULL DEFAULT '{}', cost_usd REAL, exit_reason TEXT
) STRICT;
CREATE UNIQUE INDEX sessions_id ON sessions(scope, id);
CREATE UNIQUE INDEX sessions_key ON sessions(scope, key) WHERE key IS NOT NULL;
CREATE INDEX sessions_updated ON sessions(scope, updated_at);
CREATE INDEX sessions_cwd ON sessions(scope, cwd, updated_at);
CREATE INDEX sessions_parent ON sessions(scope, parent_id, updated_at);

CREATE TABLE logs(
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  session INTEGER, name TEXT NOT NULL,
  base INTEGER NOT NULL DEFAULT 0, indexed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX logs_name ON logs(session, name);

CREATE TABLE shares(
  log INTEGER NOT NULL, position INTEGER NOT NULL,
  source INTEGER NOT NULL, until INTEGER NOT NULL,
  PRIMARY KEY(log, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX shares_source ON shares(source, until);

CREATE TABLE events(
  key INTEGER PRIMARY KEY,
  id TEXT NOT NULL, ts TEXT NOT NULL, kind TEXT NOT NULL, follows INTEGER, data TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_id ON events(key >> 32, id)
  WHERE substr(id, 29) IS NOT format('%08x', key & 4294967295);
CREATE INDEX checkpoints ON events(kind) WHERE kind = 'checkpoint';
CREATE INDEX checkpoints_id ON events(id) WHERE kind = 'checkpoint';

CREATE TABLE dirty(log INTEGER PRIMARY KEY) STRICT;
CREATE TABLE unindexed(log INTEGER PRIMARY KEY) STRICT;
CREATE TABLE notes(
  scope TEXT NOT NULL, cwd TEXT NOT NULL, text TEXT NOT NULL, ts TEXT NOT NULL,
  PRIMARY KEY(scope, cwd)
) STRICT, WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(
  text, content='', contentless_delete=1, tokenize="ascii tokenchars '_'"
);
"""

# NULL means that the root is `cwd`, as nearly everywhere: the index has only the others.
_ROOTS = """
ALTER TABLE sessions ADD COLUMN root TEXT;
CREATE INDEX sessions_root ON sessions(scope, root, updated_at) WHERE root IS NOT NULL;
"""

# Rows that are there already have no check sum. `unsealed` is the number of a log's last such row;
# behind it, a row without one is damaged. `seal` gives them theirs.
_CHECKSUMS = """
ALTER TABLE events ADD COLUMN crc INTEGER;
ALTER TABLE logs ADD COLUMN unsealed INTEGER NOT NULL DEFAULT 0;
UPDATE logs SET unsealed = coalesce((
  SELECT max(key) & 4294967295 FROM events WHERE key BETWEEN n << 32 AND n << 32 | 2147483647
), 0);
"""

# `was` is the URL that references named the store by; empty until it is known, NULL for a new one.
_IDENTITY = """
CREATE TABLE identity(id TEXT NOT NULL, was TEXT) STRICT;
INSERT INTO identity SELECT lower(hex(randomblob(16))), iif(EXISTS(SELECT 1 FROM logs), '', NULL);
"""

# The check sum of a part of a fork. NULL in rows that were there already, until `seal`.
_SHARE_SUMS = "ALTER TABLE shares ADD COLUMN seal INTEGER;"

# Pages of 8 KB hold three messages of 2 KB, pages of 4 KB often only one.
EVENTS = Schema(
    0x426B7472,
    (_FIRST, _ROOTS, _CHECKSUMS, _IDENTITY, _SHARE_SUMS),
    "PRAGMA page_size = 8192",
    (
        (),
        (("INDEXED BY sessions_root", "NOT INDEXED"), ("root", "NULL")),
        (("crc", "NULL"), ("unsealed", "4294967295")),
        (),
        (("seal", "NULL"),),
    ),
)
"""The database of a `SQLiteStore` ("Bktr")."""


def lock_for(path: str) -> FileLock:
    """The lock that every writer of the database takes."""
    return FileLock(f"{path}-lock", f"the database {path}")


# --- opening -----------------------------------------------------------------------------


def prepare(path: str, schema: Schema) -> tuple[apsw.Connection, FileLock, dict[str, str]]:
    """Open the database, made or migrated if need be: its first connection, and its lock.

    Last come the columns that an older database lacks because it cannot be written to, and
    what is read in their place.

    The connection knows the name of the file, links followed. SQLite puts the -wal beside
    the file itself, so our own files go there as well.
    """
    if path in ("", ":memory:") or "\0" in path:
        raise Unsupported(f"{path!r} is not the path of a database: name a file")
    connection: apsw.Connection | None = None
    try:
        connection = _existing(path)
        if connection is None:
            path = fs.real_path(path)
            fs.make_store_folder(Path(path).parent)
        else:
            path = connection.filename
        fs.refuse_network(os.path.dirname(path))
        lock = lock_for(path)
        lacking: dict[str, str] = {}
        version = 0 if connection is None else _version(connection, path, schema)
        if connection is None or version < len(schema.migrations):
            try:
                with lock.held():
                    connection = connection or _make(path)
                    migrate(connection, path, schema)
                fs.sync_directory(Path(path).parent)
            except (OSError, apsw.Error) as error:
                # Without writing, what an earlier version wrote must still be readable.
                if connection is None or not version or not _is_refusal(error):
                    raise
                lacking = dict(chain.from_iterable(schema.missing[version:]))
        return connection, lock, lacking
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, apsw.CantOpenError):
            # SQLite follows no link to these.
            fs.refuse_links(f"{path}-wal", f"{path}-journal", f"{path}-shm")
        if isinstance(error, apsw.Error):
            raise failure(error, path) from error
        if isinstance(error, OSError) and not isinstance(error, BacktrailError):
            raise fs.failed(error, f"open the database {path}") from error
        raise


def _is_refusal(error: OSError | apsw.Error) -> bool:
    """Whether a file, or its disk, does not let itself be written to."""
    if isinstance(error, OSError):
        return error.errno in fs.NO_ROOM
    kinds = (apsw.ReadOnlyError, apsw.PermissionsError, apsw.CantOpenError, apsw.FullError)
    return isinstance(error, kinds)


def _existing(path: str) -> apsw.Connection | None:
    """A connection to the database; None if there is none."""
    try:
        return connect(path)
    except apsw.CantOpenError:
        # If it is there now, another process may just have made it.
        return connect(path) if os.path.exists(path) else None


def connect(path: str) -> apsw.Connection:
    """A connection to a database that exists."""
    connection = apsw.Connection(path, apsw.SQLITE_OPEN_READWRITE)
    # Closing must be quick and must leave the -wal file, whose descriptor others sync.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # Without this guarantee SQLite plans a join again for every set of bound values.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # A damaged or forged file must not run functions from its schema, nor have cells that
    # reach out of their page.
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.execute("PRAGMA cell_size_check = ON")
    connection.set_busy_timeout(BUSY_TIMEOUT)
    return connection


def prepare_writer(connection: apsw.Connection) -> None:
    """What only the connection that writes needs. The commit does not sync; `SyncFile` does.

    The -wal file keeps its length when it starts over, because writing into a file is
    cheaper than making it longer; only a very long one is cut.
    """
    connection.execute(
        "PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON;"
        f"PRAGMA journal_size_limit = {_WAL_KEPT}; PRAGMA wal_autocheckpoint = {_WAL_PAGES}"
    ).fetchall()


def _make(path: str) -> apsw.Connection:
    """Let SQLite make the file, with the mode of the lock file (0600).

    A descriptor of our own would do harm: closing it drops the locks that SQLite holds on
    the same file for another thread.
    """
    if os.path.exists(path):
        return connect(path)
    name, like = (
        text.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        for text in (path, f"{path}-lock")
    )
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
    name = f"file:{name}?modeof={like.replace('&', '%26')}"
    apsw.Connection(name, flags).close()
    return connect(path)


def _version(connection: apsw.Connection, path: str, schema: Schema) -> int:
    version: int = connection.execute("PRAGMA user_version").get
    known = len(schema.migrations)
    if version and not _is_of(connection, schema):
        raise _foreign(path)
    if version > known:
        raise Unsupported(
            f"{path} has version {version}, this library knows up to {known}: update it"
        )
    return version


def _is_of(connection: apsw.Connection, schema: Schema) -> bool:
    """Whether the database is of this kind.

    A mark in the file is there for good. It may be in the -wal still, where a statement sees it.
    """
    _, mark = connection.read("main", 0, 68, 4)
    if int.from_bytes(mark) == schema.application:
        return True
    return bool(connection.execute("PRAGMA application_id").get == schema.application)


def _foreign(path: str) -> Unsupported:
    return Unsupported(f"{path} is a database of another program: choose another file")


def migrate(connection: apsw.Connection, path: str, schema: Schema) -> None:
    """Bring a database up to the newest version. The caller holds the lock."""
    if _version(connection, path, schema) == 0:
        if connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise _foreign(path)
        connection.execute(f"{schema.setup}; PRAGMA journal_mode = WAL").fetchall()
    for number in range(_version(connection, path, schema), len(schema.migrations)):
        with connection:
            connection.execute(schema.migrations[number]).fetchall()
            connection.execute(f"PRAGMA application_id = {schema.application}")
            connection.execute(f"PRAGMA user_version = {number + 1}")


# --- an earlier version ------------------------------------------------------------------


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


# --- the -wal file -----------------------------------------------------------------------


def empty_wal(writer: apsw.Connection, wal: int) -> None:
    """Leave a short -wal file: the next to open the database reads all of it."""
    if os.fstat(wal).st_size > _WAL_LEFT:
        try:
            writer.set_busy_timeout(0)
            writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:
            # Another process uses it, or the disk is full: then it stays.
            pass


def cut_wal(writer: apsw.Connection) -> None:
    """Begin the -wal file anew, and leave some of it: what is there need not be made again.

    SQLite cuts it to the limit with the first commit after it has begun anew.
    """
    try:
        writer.set_busy_timeout(0)
        kept: int = writer.execute("PRAGMA journal_size_limit").get
        writer.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}").fetchall()
        try:
            writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            version: int = writer.execute("PRAGMA user_version").get
            writer.execute(f"PRAGMA user_version = {version}")
        finally:
            writer.execute(f"PRAGMA journal_size_limit = {kept}").fetchall()
    except apsw.BusyError:
        # A reader is at work: another time.
        pass
    finally:
        writer.set_busy_timeout(BUSY_TIMEOUT)


# --- errors ------------------------------------------------------------------------------

_HINTS: dict[type[apsw.Error], tuple[int | None, str]] = {
    apsw.FullError: (errno.ENOSPC, "free some space and try again"),
    apsw.ReadOnlyError: (errno.EROFS, "it is read-only: check its mode and its file system"),
    apsw.CantOpenError: (errno.EACCES, "check who owns the folder and its mode"),
    apsw.PermissionsError: (errno.EACCES, "check who owns the folder and its mode"),
    apsw.IOError: (errno.EIO, "check the disk"),
    apsw.NoMemError: (errno.ENOMEM, "the machine has no memory left"),
}


def failure(error: apsw.Error | UnicodeDecodeError, path: str) -> BacktrailError:
    """The library's error for one of SQLite's, or for a text in it that is none."""
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return SessionBusy(f"the database {path} is locked by another program: try again")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError)):
        return Damaged(f"the database {path} is damaged ({error}): `verify` reports where")
    if isinstance(error, apsw.ConnectionClosedError):
        return closed(path)
    code, hint = _HINTS.get(type(error), (None, ""))
    return StoreFailed(
        f"the database {path} refused: {error}" + (f"; {hint}" if hint else ""), errno=code
    )


def closed(path: str) -> Closed:
    """The error for a store used after `close`."""
    return Closed(f"the store {path} is closed")


def located(address: str) -> str:
    """The path in the part of a URL behind `sqlite:`."""
    name = address[3:] if address.startswith("///") else address
    if not name or name.startswith("//") or name == ":memory:":
        raise Unsupported(
            f"`sqlite:{address}` names no file: use sqlite:///PATH, with four slashes for an "
            "absolute path, or memory: for a store without a file"
        )
    return os.path.expanduser(name)
