"""Looking for damage in a JSONL log, line by line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ...events import Problem
from ..disk.fs import open_file
from .lines import Damage, Forward, Line, decode_line, lines_in
from .reading import MOST, course_of, whole_lines


def verify_log(session_id: str, log: str, path: Path, *, locked: bool = True) -> Iterator[Problem]:
    """Every damaged place of a log. Only who holds the lock knows a torn tail for damage."""
    damages: list[Damage] = []
    ids: set[str] = set()
    last = end = 0
    fd = open_file(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        sorter = Forward(damages.append, 0, course_of(fd))
        at = 0
        while True:
            data = whole_lines(fd, at, MOST)
            if not data:
                break
            for line in sorter.take(lines_in(data, at, decode_line, damages.append)):
                yield from _verify_line(session_id, log, line, last, ids, line.offset == end)
                last, end = line.seq, line.offset + line.length
            at += len(data)
        tail = os.fstat(fd).st_size - at
        if locked:
            sorter.drop()
        if tail and locked:
            damages.append(Damage(at, tail, "torn line"))
    finally:
        os.close(fd)
    for damage in damages:
        yield problem_of(session_id, log, damage)


def _verify_line(
    session_id: str, log: str, line: Line, last: int, ids: set[str], adjacent: bool
) -> Iterator[Problem]:
    if line.uuid in ids:
        yield Problem(session_id, log, "duplicate", f"id `{line.uuid}` is used twice")
    ids.add(line.uuid)
    # A gap around a damaged place is that damage, and told as such.
    if line.seq > last + 1 and adjacent:
        count = line.seq - last - 1
        seqs = tuple(range(last + 1, min(line.seq, last + 1001)))
        detail = f"events {last + 1} to {line.seq - 1} are missing"
        yield Problem(session_id, log, "gap", detail, offset=line.offset, count=count, seqs=seqs)


def problem_of(session_id: str, log: str, damage: Damage) -> Problem:
    """A damaged place as it is told."""
    return Problem(
        session_id,
        log,
        damage.what,
        f"{damage.what} at byte {damage.offset}, {damage.length} bytes",
        offset=damage.offset,
        length=damage.length,
        count=damage.lines,
        seqs=damage.seqs,
    )
