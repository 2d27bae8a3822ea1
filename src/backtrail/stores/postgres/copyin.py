"""A session from elsewhere, with all its logs, in one transaction."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import psycopg

from ...events import MAIN_LOG, SessionInfo
from .kept import insert_record, is_made_by, taken
from .link import PATIENCE, Execute, Link, Lost
from .rowgate import row_sum

if TYPE_CHECKING:
    from ..adopting import Logs

_LOG = (
    "INSERT INTO backtrail.logs(scope, session, name, updated_at) VALUES(%s, %s, %s, %s) "
    "RETURNING n"
)
_COPY = "COPY backtrail.events(scope, log, seq, id, ts, kind, follows, data, crc) FROM STDIN"
_HEAD = "UPDATE backtrail.logs SET head = %s, updated_at = %s WHERE n = %s"
_SORTED = "UPDATE backtrail.sessions SET sorted_at = %s WHERE n = %s"


def adopted(link: Link, record: SessionInfo, logs: Logs) -> int:
    """Make a session with all its logs, once; the number of its main log.

    Where the connection breaks, events that can be gone through only once cannot be sent again:
    then the session is there, or the error says that it is not.
    """
    token = f"made {os.urandom(16).hex()}"
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return link.attempt_whole(lambda execute: _fill(execute, record, logs, token))
        except psycopg.errors.UniqueViolation:
            made = link.read(lambda execute: _made(execute, record, token))
            if made is None:
                raise link.read(lambda execute: taken(execute, record)) from None
            return made
        except Lost as error:
            if any(iter(events) is events for events in logs.values()):
                made = link.read(lambda execute: _made(execute, record, token))
                if made is not None:
                    return made
            elif time.monotonic() < deadline:
                continue
            raise link.unreachable(error) from error


def _made(execute: Execute, record: SessionInfo, token: str) -> int | None:
    """The main log that a lost attempt made; None if there is none, and none will come."""
    try:
        # This waits for the attempt, if the server is still at work on it.
        with execute.connection.transaction(force_rollback=True):
            insert_record(execute, record, 0, record.created_at, "")
    except psycopg.errors.UniqueViolation:
        return is_made_by(execute, record.scope, record.id, token)
    return None


def _fill(execute: Execute, record: SessionInfo, logs: Logs, token: str) -> int:
    """Make the session with its events; returns the number of its main log."""
    from ..adopting import whole

    session, main = insert_record(execute, record, 0, record.created_at, token)
    for name, events in logs.items():
        n = main
        if name != MAIN_LOG:
            row = execute.one(_LOG, (record.scope, session, name, record.created_at))
            assert row is not None
            n = row[0]
        head, newest = 0, record.created_at
        cursor = execute.connection.cursor()
        with cursor.copy(execute.link.sql(_COPY)) as copy:
            for event, body in whole(events):
                head = event.seq
                if event.kind != "session_end":
                    newest = max(newest, event.ts)
                crc = row_sum(n, head, event.id, event.ts, event.kind, event.follows, body)
                place = (record.scope, n, head, event.id, event.ts, event.kind, event.follows)
                copy.write_row((*place, body.decode(), crc))
        execute(_HEAD, (head, newest, n))
        if name == MAIN_LOG:
            execute(_SORTED, (newest, session))
    return main
