"""How a server does: what `doctor` says of a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from ..._startup.frozen import NamedTuple
from .link import Execute, Link

State = Literal["ok", "warning", "bad"]

_MANY = 1000
_IN_PLACE = 0.9
_CROWDED = 0.8

_SERVER = (
    "SELECT current_setting('server_version'), current_setting('fsync'), "
    "current_setting('full_page_writes'), current_setting('synchronous_commit'), "
    "current_setting('synchronous_standby_names'), current_setting('max_connections')::int, "
    "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), "
    "(SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), "
    "inet_server_addr() IS NULL OR inet_server_addr() <<= '127.0.0.0/8' OR "
    "inet_server_addr() = '::1', (SELECT count(*) FROM pg_stat_replication), pg_backend_pid()"
)
_COUNTS = (
    "SELECT (SELECT count(*) FROM backtrail.sessions WHERE scope = %s), "
    "(SELECT coalesce(sum(head - base), 0)::bigint FROM backtrail.logs WHERE scope = %s), "
    "(SELECT count(*) FROM backtrail.logs WHERE indexed < head AND name = 'messages')"
)
_TABLES = (
    "SELECT sum(pg_total_relation_size(relid))::bigint, "
    "max(CASE WHEN relname = 'logs' THEN n_tup_upd END), "
    "max(CASE WHEN relname = 'logs' THEN n_tup_hot_upd END) "
    "FROM pg_stat_user_tables WHERE schemaname = %s"
)


class Finding(NamedTuple):
    """One thing that was looked at, how it is, and what to do."""

    name: str
    state: State
    detail: str
    advice: str = ""


def health(link: Link, scope: str) -> list[Finding]:
    """Look at the server, the connections to it, and the tables; nothing is changed."""

    def ask(execute: Execute) -> tuple[Any, Any, Any, bool]:
        server = execute.one(_SERVER)
        counts = execute.one(_COUNTS, (scope, scope))
        tables = execute.one(_TABLES, (link.address.schema,))
        assert server is not None
        return server, counts, tables, server[10] != execute.connection.info.backend_pid

    server, counts, tables, pooled = link.read(ask)
    return [
        *_server(link, server, pooled),
        *_connections(server),
        *_tables(counts, tables),
    ]


def _server(link: Link, row: tuple[Any, ...], pooled: bool) -> Iterator[Finding]:
    version, fsync, pages, commit, standbys, *_, ssl, is_local, replicas, _ = row
    kind = "a replica, which only reads" if link.standby else "it takes writes"
    yield Finding("server", "ok", f"PostgreSQL {version}, {kind}")
    off = [
        name for name, value in (("fsync", fsync), ("full_page_writes", pages)) if value == "off"
    ]
    if commit in ("off", "local") and (commit == "off" or standbys):
        off.append(f"synchronous_commit={commit}")
    if off:
        text = f"{', '.join(off)} off" if "=" not in off[-1] else ", ".join(off)
        yield Finding(
            "durability", "warning", f"{text}: a crash can take events that were acknowledged",
            "docs/how-to/postgres.md says what the server has to promise",
        )  # fmt: skip
    elif replicas and not standbys:
        yield Finding(
            "durability", "warning",
            "replicas are asynchronous: a failover can lose the newest events",
            "set synchronous_standby_names to lose none",
        )  # fmt: skip
    else:
        yield Finding("durability", "ok", "a commit survives a crash of the server")
    if not ssl and not is_local:
        yield Finding(
            "encryption", "warning", "the connection is not encrypted", "add sslmode=verify-full"
        )
    if pooled and not link.address.listen:
        yield Finding(
            "pooler", "warning", "a pooler is in between, so no news come through: followers poll",
            "add listen=HOST:PORT of the server itself",
        )  # fmt: skip


def _connections(row: tuple[Any, ...]) -> Iterator[Finding]:
    most, used = row[5], row[6]
    text = f"{used} of {most} in use"
    if used > most * _CROWDED:
        advice = "make `pool=` smaller, or put a pooler in front"
        yield Finding("connections", "warning", text, advice)
    else:
        yield Finding("connections", "ok", text)


def _tables(counts: tuple[Any, ...], tables: tuple[Any, ...]) -> Iterator[Finding]:
    sessions, events, behind = counts
    size, updates, hot = tables
    text = f"{sessions:,} sessions, {events:,} events, {(size or 0) / 1e6:,.0f} MB with indexes"
    yield Finding("tables", "ok", text)
    if updates is not None and updates > _MANY and (hot or 0) < updates * _IN_PLACE:
        yield Finding(
            "tables", "warning", f"only {(hot or 0) / updates:.0%} of appends rewrite in place",
            "VACUUM the table `logs` more often (autovacuum_vacuum_scale_factor = 0.02)",
        )  # fmt: skip
    if behind:
        text = f"{behind:,} logs have events whose words are not indexed yet"
        yield Finding("search", "ok", f"{text}: the next search does it")
