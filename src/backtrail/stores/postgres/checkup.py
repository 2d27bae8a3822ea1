"""Checking a PostgreSQL store, from end to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import Damaged, InvalidId, NotFound
from ...events import MAIN_LOG, Event, Problem, check_log
from ..records import check_order
from .kept import COLUMNS, FROM, kept_of
from .link import Link
from .spans import Log, problem, read_log, spans_of

_SESSIONS = "SELECT n, id FROM backtrail.sessions WHERE scope = %s ORDER BY n"
_LOGS = (
    "SELECT l.n, l.name, l.base, l.head, l.epoch, (SELECT array_agg("
    "ARRAY[h.position, h.source, h.until, h.seal] ORDER BY h.position) FROM backtrail.shares h "
    "WHERE h.log = l.n AND l.base > 0) FROM backtrail.logs l WHERE l.session = %s ORDER BY l.name"
)
_STRAYS = (
    "SELECT e.log, count(*) FROM backtrail.events e WHERE e.scope = %s AND NOT EXISTS("
    "SELECT 1 FROM backtrail.logs l WHERE l.n = e.log) GROUP BY e.log ORDER BY e.log"
)
_ORPHANS = (
    "SELECT l.n, l.session FROM backtrail.logs l WHERE l.scope = %s AND l.session IS NOT NULL "
    "AND NOT EXISTS(SELECT 1 FROM backtrail.sessions s WHERE s.n = l.session)"
)


def verify(link: Link, scope: str) -> list[Problem]:
    """All that is wrong; one damaged session does not keep the others from being checked."""
    problems: list[Problem] = []
    for log, count in link.read(lambda execute: execute.all(_STRAYS, (scope,))):
        detail = f"there are events of log {log}, which is none"
        problems.append(Problem("", "", "stray", detail, count=count))
    for log, session in link.read(lambda execute: execute.all(_ORPHANS, (scope,))):
        detail = f"log {log} is of session number {session}, which is none"
        problems.append(Problem("", "", "stray", detail))
    for n, id in link.read(lambda execute: execute.all(_SESSIONS, (scope,))):
        problems.extend(_check_session(link, n, id))
    return problems


def _check_session(link: Link, n: int, session_id: str) -> list[Problem]:
    problems: list[Problem] = []
    record = f"SELECT {COLUMNS} {FROM} WHERE s.n = %s"
    row = link.read(lambda execute: execute.one(record, (n,)))
    logs = link.read(lambda execute: execute.all(_LOGS, (n,)))
    if not logs and row is None:
        # Deleted meanwhile.
        return []
    if row is None:
        problems.append(Problem(session_id, MAIN_LOG, "record", "it has no main log"))
    else:
        try:
            kept_of(row)
        except Damaged as error:
            problems.append(Problem(session_id, "", "record", str(error)))
    for log in logs:
        problems.extend(_check_log(link, session_id, n, log))
    return problems


def _check_log(link: Link, session_id: str, session: int, row: tuple[Any, ...]) -> list[Problem]:
    n, name, base, head, epoch, shares = row
    problems: list[Problem] = []
    lost: set[int] = set()
    last = 0

    def damage(seq: int, why: str) -> None:
        lost.add(seq)
        problems.append(problem(session_id, name, seq, why))

    def followed(events: Iterator[Event]) -> Iterator[Event]:
        nonlocal last
        for event in events:
            last = event.seq
            yield event

    try:
        check_log(name)
    except InvalidId as error:
        problems.append(Problem(session_id, str(name), "record", str(error)))
    try:
        log = Log(n, session, base, head, epoch, "", spans_of(n, base, shares))
        events = followed(read_log(link, log, session_id, damage))
        for found in check_order(session_id, name, events):
            # A row that cannot be read is reported already, and leaves a gap.
            if found.what != "gap" or not lost.issuperset(found.seqs):
                problems.append(found)
        last = max([last, *lost])
        if last < head:
            seqs = tuple(range(last + 1, min(head, last + 1000) + 1))
            detail = f"the log ends at {last}, and once had events up to {head}"
            problems.append(
                Problem(session_id, name, "shorter", detail, count=head - last, seqs=seqs)
            )
    except NotFound:
        # Deleted meanwhile: what was found wrong is gone too.
        return []
    except Damaged as error:
        problems.append(Problem(session_id, name, "unreadable", str(error)))
    return problems
