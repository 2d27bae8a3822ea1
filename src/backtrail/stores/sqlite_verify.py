"""Checking a SQLite store: the file, the records, and every log from end to end."""

from __future__ import annotations

from typing import Any, cast

import apsw

from ..errors import Damaged, InvalidId, NotFound
from ..events import Problem, check_log
from .base import check_order
from .sqlite_connections import Database
from .sqlite_logs import log_at
from .sqlite_pages import problem, read_log
from .sqlite_records import COLUMNS, info_of


def verify(database: Database, scope: str) -> list[Problem]:
    """All that is wrong; one damaged session does not keep the others from being checked."""
    problems = _check_file(database)
    with database.reading() as connection:
        numbers = connection.execute("SELECT n FROM sessions WHERE scope = ?", (scope,)).fetchall()
    for (n,) in numbers:
        problems.extend(_check_session(database, n))
    return problems


def _check_file(database: Database) -> list[Problem]:
    with database.reading() as connection:
        try:
            found = connection.execute("PRAGMA integrity_check").fetchall()
        except apsw.CorruptError as error:
            found = [(str(error),)]
    return [Problem("", "", "database", str(text)) for (text,) in found if text != "ok"]


def _check_session(database: Database, n: int) -> list[Problem]:
    record = f"SELECT {COLUMNS} FROM sessions s WHERE s.n = ?"
    names = "SELECT CAST(id AS BLOB) FROM sessions WHERE n = ?"
    problems: list[Problem] = []
    with database.reading() as connection:
        named = connection.execute(names, (n,)).get
        if named is None:
            return []
        session_id = cast(bytes, named).decode(errors="backslashreplace")
        try:
            info_of(cast("tuple[Any, ...]", connection.execute(record, (n,)).get))
        except (Damaged, UnicodeDecodeError) as error:
            problems.append(Problem(session_id, "", "record", str(error)))
        logs = "SELECT n, base, name FROM logs WHERE session = ? ORDER BY name"
        found = connection.execute(logs, (n,)).fetchall()
    for number, base, name in cast("list[tuple[int, int, str]]", found):
        problems.extend(_check_log(database, session_id, number, base, name))
    return problems


def _check_log(
    database: Database, session_id: str, number: int, base: int, name: str
) -> list[Problem]:
    problems: list[Problem] = []
    lost: set[int] = set()

    def damage(seq: int, why: str) -> None:
        lost.add(seq)
        problems.append(problem(session_id, name, seq, why))

    try:
        check_log(name)
    except InvalidId as error:
        problems.append(Problem(session_id, name, "record", str(error)))
    try:
        with database.reading() as connection:
            log = log_at(connection.execute, number, base)
        events = read_log(database, log, session_id, damage)
        for found in check_order(session_id, name, events):
            # A row that cannot be read is told already, and leaves a gap.
            if found.what != "gap" or not lost.issuperset(found.seqs):
                problems.append(found)
    except NotFound:
        # Deleted meanwhile: what was found wrong is gone too.
        return []
    except Damaged as error:
        problems.append(Problem(session_id, name, "unreadable", str(error)))
    return problems
