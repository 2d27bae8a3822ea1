"""A session from elsewhere, with all its logs, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...events import MAIN_LOG, SessionInfo
from .link import Execute
from .records import insert_record
from .rows import row_sum

if TYPE_CHECKING:
    from ..adopting import Logs

_LOG = (
    "INSERT INTO backtrail.logs(scope, session, name, updated_at) VALUES(%s, %s, %s, %s) "
    "RETURNING n"
)
_COPY = "COPY backtrail.events(scope, log, seq, id, ts, kind, follows, data, crc) FROM STDIN"
_HEAD = "UPDATE backtrail.logs SET head = %s, updated_at = %s WHERE n = %s"
_SORTED = "UPDATE backtrail.sessions SET sorted_at = %s WHERE n = %s"


def fill(execute: Execute, record: SessionInfo, logs: Logs, token: str) -> int:
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
