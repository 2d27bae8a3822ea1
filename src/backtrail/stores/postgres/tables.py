"""The tables of a PostgreSQL store: numbered migrations, each in one transaction.

`scope` is in every key. The head row of a log carries what each append needs in one statement; no
column that an append changes is indexed, so that the server rewrites the row in place.
"""

from __future__ import annotations

import os

import psycopg

from ..._startup.frozen import NamedTuple
from ...errors import NotFound, StoreFailed, Unsupported
from .link import Execute, Link

_FIRST = """
CREATE TABLE backtrail.store(
  one int PRIMARY KEY CHECK (one = 1), id text COLLATE "C" NOT NULL, version int NOT NULL,
  epoch bigint NOT NULL DEFAULT 0);
CREATE TABLE backtrail.sessions(
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  scope text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, key text COLLATE "C",
  parent_id text COLLATE "C", relation text COLLATE "C", fork_seq bigint,
  title text, cwd text COLLATE "C", root text COLLATE "C", model text, agent_name text,
  created_at text COLLATE "C" NOT NULL, tags text NOT NULL, metadata text NOT NULL,
  sorted_at text COLLATE "C" NOT NULL,
  folded bigint NOT NULL DEFAULT 0, message_count bigint NOT NULL DEFAULT 0,
  turn_count bigint NOT NULL DEFAULT 0, usage text NOT NULL DEFAULT '{}', cost_usd float8,
  exit_reason text);
CREATE UNIQUE INDEX sessions_id ON backtrail.sessions(scope, id);
CREATE UNIQUE INDEX sessions_key ON backtrail.sessions(scope, key) WHERE key IS NOT NULL;
CREATE INDEX sessions_sorted ON backtrail.sessions(scope, sorted_at, n);
CREATE INDEX sessions_cwd ON backtrail.sessions(scope, cwd, sorted_at);
CREATE INDEX sessions_root ON backtrail.sessions(scope, root, sorted_at);
CREATE INDEX sessions_parent ON backtrail.sessions(scope, parent_id, sorted_at)
  WHERE parent_id IS NOT NULL;
CREATE TABLE backtrail.logs(
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, scope text COLLATE "C" NOT NULL,
  session bigint, name text COLLATE "C" NOT NULL, base bigint NOT NULL DEFAULT 0,
  head bigint NOT NULL DEFAULT 0, updated_at text COLLATE "C" NOT NULL,
  indexed bigint NOT NULL DEFAULT 0, epoch bigint NOT NULL DEFAULT 0,
  holder text COLLATE "C", owner text, until timestamptz) WITH (fillfactor = 50);
CREATE UNIQUE INDEX logs_name ON backtrail.logs(session, name);
CREATE INDEX logs_gone ON backtrail.logs(n) WHERE session IS NULL;
CREATE TABLE backtrail.shares(
  log bigint, position int, source bigint NOT NULL, until bigint NOT NULL, seal bigint NOT NULL,
  PRIMARY KEY(log, position));
CREATE INDEX shares_source ON backtrail.shares(source, until);
CREATE TABLE backtrail.events(
  scope text COLLATE "C" NOT NULL, log bigint, seq bigint, id text COLLATE "C" NOT NULL,
  ts text COLLATE "C" NOT NULL, kind text COLLATE "C" NOT NULL, follows bigint,
  data text COLLATE "C" NOT NULL, crc bigint NOT NULL, PRIMARY KEY(log, seq));
CREATE UNIQUE INDEX events_id ON backtrail.events(log, id)
  WHERE right(id, 8) <> lpad(to_hex(seq), 8, '0');
CREATE INDEX checkpoints ON backtrail.events(id) WHERE kind = 'checkpoint';
CREATE TABLE backtrail.words(
  log bigint, seq bigint, words text[] COLLATE "C" NOT NULL, PRIMARY KEY(log, seq));
CREATE INDEX words_words ON backtrail.words USING gin(words);
CREATE TABLE backtrail.notes(
  scope text COLLATE "C", cwd text COLLATE "C", text text NOT NULL, ts text NOT NULL,
  PRIMARY KEY(scope, cwd));
CREATE TABLE backtrail.packs(
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, scope text COLLATE "C" NOT NULL,
  place text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, bytes bigint NOT NULL,
  state text COLLATE "C" NOT NULL, since timestamptz NOT NULL);
CREATE TABLE backtrail.blobs(
  scope text COLLATE "C", digest bytea, size bigint NOT NULL, stamp timestamptz NOT NULL,
  codec smallint NOT NULL, content bytea, pack bigint, at bigint, length bigint NOT NULL,
  PRIMARY KEY(scope, digest));
CREATE INDEX blobs_pack ON backtrail.blobs(pack) WHERE pack IS NOT NULL;
CREATE TABLE backtrail.chunks(
  pack bigint, piece int, content bytea NOT NULL, PRIMARY KEY(pack, piece));
ALTER TABLE backtrail.blobs ALTER content SET STORAGE EXTERNAL;
ALTER TABLE backtrail.chunks ALTER content SET STORAGE EXTERNAL;
CREATE TABLE backtrail."references"(
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, scope text COLLATE "C" NOT NULL,
  store text COLLATE "C" NOT NULL, log text COLLATE "C" NOT NULL, root bytea NOT NULL,
  UNIQUE(scope, store, log, root));
CREATE TABLE backtrail.erased(
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, scope text COLLATE "C" NOT NULL,
  digest bytea NOT NULL);
"""

MIGRATIONS = (_FIRST,)
"""Migration i brings a store from version i to i + 1."""

VERSION = len(MIGRATIONS)
"""What this program works with."""

_KEY = "SELECT pg_advisory_xact_lock(hashtext('backtrail.' || %s))"
_STORE = "SELECT id, version FROM backtrail.store"
_HAS_LZ4 = "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"


class Upgraded(NamedTuple):
    """What an upgrade did: the version before it, 0 for a new store, and after it."""

    before: int
    after: int


def check(link: Link, create: bool) -> str:
    """The id of the store; a new one is made if that is wished. An error if versions differ."""
    found = _look(link)
    if found is None:
        if not create:
            raise NotFound(f"there is no store at {link.address.place}")
        upgrade(link)
        found = _look(link)
    if found is None:
        raise StoreFailed(f"the store at {link.address.place} could not be made")
    id, version = found
    if version < VERSION:
        raise Unsupported(
            f"the store at {link.address.place} has version {version}, this program needs "
            f"{VERSION}: `backtrail store upgrade` brings it up to date, for a role that may "
            "change tables"
        )
    if version > VERSION:
        raise Unsupported(
            f"the store at {link.address.place} has version {version}, this program knows "
            f"{VERSION}: update this program"
        )
    return id


def _look(link: Link) -> tuple[str, int] | None:
    """The id and the version of a store; None if there is none."""

    def look(execute: Execute) -> tuple[str, int] | None:
        try:
            row = execute.one(_STORE)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        return None if row is None else (row[0], row[1])

    return link.read(look)


def upgrade(link: Link) -> Upgraded:
    """Make the tables, or bring them up to date; others that do the same wait."""

    def work(execute: Execute) -> Upgraded:
        schema = link.address.schema
        execute(_KEY, (schema,))
        there = execute.one(
            "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'store'",
            (schema,),
        )
        version = 0
        if there is None:
            known = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s"
            if execute.one(known, (schema,)) is None:
                execute.connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
        else:
            row = execute.one("SELECT version FROM backtrail.store FOR UPDATE")
            version = 0 if row is None else row[0]
        before = version
        for migration in MIGRATIONS[version:]:
            # Several statements in one: no parameters, and nothing is prepared.
            execute.connection.execute(link.sql(migration), prepare=False)
            version += 1
        if before == 0:
            _finish(execute)
        elif version != before:
            execute("UPDATE backtrail.store SET version = %s", (version,))
        return Upgraded(before, version)

    return link.write(work)


def _finish(execute: Execute) -> None:
    """Give a new store its id, and the compression that the server has."""
    lz4 = execute.one(_HAS_LZ4)
    if lz4 is not None and lz4[0]:
        execute("ALTER TABLE backtrail.events ALTER data SET COMPRESSION lz4")
    execute(
        "INSERT INTO backtrail.store(one, id, version) VALUES(1, %s, %s)",
        (os.urandom(16).hex(), VERSION),
    )
