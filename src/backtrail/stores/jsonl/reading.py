"""How a JSONL log is read, in both directions.

Readers need no lock: they take whole lines and leave an unterminated tail alone, since
it may be on its way. A file is opened anew for each page, so nothing is held in
between (`file.py`).

Which lines count is decided front to back (`lines.Forward`). Where every line bears the number
behind the one before it, there is nothing to decide, and a read from the end takes them as they
are. At the first line that does not, it lets `Forward` go through the whole log. Each
decision asks the same `Course` about lines that skip numbers.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...events import Event, Problem
from ...events.history import Mark
from ...events.messages import Page, page_of
from ..disk.fs import open_file
from ..records import gap_before
from .course import Course
from .file import (
    FIRST,
    MOST,
    LogFile,
    end_of,
    locate_after,
    page_before,
    pages_from,
    plain_page,
    whole_lines,
)
from .lines import (
    Backward,
    Damage,
    Forward,
    Line,
    OnLineDamage,
    Spoken,
    decode_line,
    lines_in,
    sound_lines,
    sound_page,
)


@dataclass(slots=True)
class Span:
    """Which events a read is after."""

    after: int = 0
    until: int | None = None
    limit: int | None = None
    kinds: Collection[str] | None = None

    def wants(self, event: Event) -> bool:
        """Whether `event` is one of them."""
        return (
            event.seq > self.after
            and (self.until is None or event.seq <= self.until)
            and (self.kinds is None or event.kind in self.kinds)
        )


# --- reading -----------------------------------------------------------------------------


def read_forward(path: str | Path, span: Span, damage: OnLineDamage | None) -> Iterator[Event]:
    """Events in order. The file is opened anew for each page, so nothing is held between."""
    left = span.limit
    passed = span.after
    everything = span.until is None and span.kinds is None
    file, at = LogFile(path), -1
    sorter = Forward(damage)
    while left is None or left > 0:
        fd, length = file.open()
        try:
            if file.replaced:
                at = locate_after(fd, length, passed)
                sorter = Forward(damage, passed if at else 0, Course(partial(_pages_of, file)))
            data = whole_lines(fd, at, FIRST if left is not None and left < 32 else MOST)
        finally:
            os.close(fd)
        found = lines_in(data, at, decode_line, damage)
        for line in sorter.take(found):
            event = line.event
            if line.seq <= passed:
                continue
            passed = line.seq
            if event is None or not (everything or span.wants(event)):
                if span.until is not None and line.seq > span.until:
                    return
                continue
            yield event
            if left is not None:
                left -= 1
                if left == 0:
                    return
        if not data:
            return
        at += len(data)


def read_backward(path: str | Path, span: Span, damage: OnLineDamage | None) -> Iterator[Event]:
    """Events newest first, reading only as far back as is asked for."""
    left = span.limit
    if left is not None and left <= 0:
        return
    everything = span.until is None and span.kinds is None
    for line in _backward(path, span.until, None if span.kinds else left, damage):
        event = line.event
        if line.seq <= span.after:
            return
        if event is not None and (everything or span.wants(event)):
            yield event
            if left is not None:
                left -= 1
                if left == 0:
                    return


def _backward(
    path: str | Path, until: int | None, wanted: int | None, damage: OnLineDamage | None
) -> Iterator[Line]:
    """The lines that count, newest first: from plain pages, as long as they are plain."""
    sorter = Backward()
    file, end, size = LogFile(path), 0, FIRST
    bound, passed = until, 0
    if wanted is not None and wanted > _FEW:
        size += FIRST // 2
    while True:
        fd, length = file.open()
        try:
            if file.replaced:
                sorter = Backward(at_end=bound is None)
                end = end_of(fd, length, bound)
            texts = plain_page(fd, end, size) if end > 0 else []
        finally:
            os.close(fd)
        if end == 0:
            return
        had = len(texts)
        while texts:
            some = texts if wanted is None else texts[passed - wanted :]
            found, plain = _counting(some, end, sorter)
            for line in found:
                if bound is None or line.seq <= bound:
                    bound = line.seq - 1
                    passed += 1
                    yield line
            if not plain:
                had = 0
                break
            end -= sum(map(len, some))
            del texts[-len(some) :]
        if not had:
            yield from counted_backward(path, bound, damage)
            return
        if wanted is None or wanted - passed > had:
            # More is wanted than this page had.
            size = min(size * 4, MOST)


_FEW = 8
"""As many lines as a page of the smallest size has, where they are of the usual length."""


def _counting(texts: list[bytes], end: int, sorter: Backward) -> tuple[list[Line], bool]:
    """The lines that count among those up to `end`, newest first, and whether that is all of them.

    If not, those in front of the last found cannot be decided from here.
    """
    lines = sound_lines(texts, end)
    if lines is not None and sorter.take_all(
        [line.seq for line in lines],
        [None if line.size == 1 else (line.place, line.size) for line in lines],
    ):
        lines.reverse()
        return lines, True
    found: list[Line] = []
    for text in reversed(texts):
        end -= len(text)
        line = decode_line(text[:-1], end)
        counts = None if line is None else sorter.counts(line)
        if line is None or counts is None:
            return found, False
        if counts:
            found.append(line)
    return found, True


_CHUNK = 256


def counted_backward(
    path: str | Path, bound: int | None, damage: OnLineDamage | None
) -> Iterator[Line]:
    """The lines up to `bound` that count, newest first, found by going through the whole log."""
    file = LogFile(path)
    places: list[tuple[int, int, int]] = []
    while True:
        fd, _ = file.open()
        try:
            if file.replaced:
                places = list(counted(fd, damage))
                while places and bound is not None and places[-1][2] > bound:
                    places.pop()
            chunk = places[-_CHUNK:]
            texts = [(os.pread(fd, size - 1, at), at) for at, size, _ in reversed(chunk)]
        finally:
            os.close(fd)
        if not texts:
            return
        del places[-_CHUNK:]
        for text, at in texts:
            line = decode_line(text, at)
            if line is not None:
                bound = line.seq - 1
                yield line


def counted(fd: int, damage: OnLineDamage | None) -> Iterator[tuple[int, int, int]]:
    """Offset, length and number of each line that counts, front to back."""
    sorter = Forward(damage, 0, course_of(fd))
    at = 0
    while data := whole_lines(fd, at, MOST):
        for line in sorter.take(lines_in(data, at, decode_line, damage)):
            yield line.offset, line.length, line.seq
        at += len(data)


def course_of(fd: int) -> Course:
    """The course of an open log."""
    return Course(partial(pages_from, fd))


def _pages_of(file: LogFile, at: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Pages of the file that is being read; none if another has taken its place."""
    fd = file.again()
    if fd is not None:
        try:
            yield from pages_from(fd, at, size)
        finally:
            os.close(fd)


# --- checking ----------------------------------------------------------------------------


def verify_log(session_id: str, log: str, path: Path, *, locked: bool = True) -> Iterator[Problem]:
    """Every damaged place of a log. Under the lock a torn tail is damage too."""
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
    # A gap around a damaged place is that damage, and reported as such.
    if line.seq > last + 1 and adjacent:
        yield gap_before(session_id, log, last, line.seq, line.offset)


def problem_of(session_id: str, log: str, damage: Damage) -> Problem:
    """A damaged place as it is reported."""
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


# --- pages for views ---------------------------------------------------------------------

# A page whose lines bear one number after the other is checked and decoded as a whole. At the
# first that is not as plain as that, the rest is read line by line, as `read_backward` does.


_CACHED = 256 * 1024
"""Bytes of a page that stays in the processor's cache while it is looked at again."""

_LINES = 512


def pages_backward(
    path: str | Path, until: int | None, damage: OnLineDamage | None
) -> Iterator[Page]:
    """The log up to `until`: newest page first, each in order."""
    sorter = Backward()
    file, end, size = LogFile(path), -1, FIRST
    bound = top = until
    while True:
        fd, length = file.open()
        try:
            if file.replaced:
                # Above `top` are lines to pass over.
                sorter, top = Backward(), bound
                end = end_of(fd, length, top)
            start, data, skip, high = page_before(fd, max(0, end), size)
        finally:
            os.close(fd)
        if end >= 0 and not data:
            return
        page = None if end < 0 else _whole(sound_page(data, skip), high, top, sorter)
        if page is None:
            # Or the place to begin at is not found.
            yield from _by_line(path, bound, damage)
            return
        if page.seqs:
            bound = page.seqs[0] - 1
            yield page
        end, size = start + skip, min(size * 4, _CACHED, MOST)


def _whole(lines: list[Spoken] | None, high: int, top: int | None, sorter: Backward) -> Page | None:
    """The page, if every line of it counts and leads up to the page behind it."""
    if not lines:
        return None
    seqs = [line.seq for line in lines]
    first = seqs[0]
    if first != high + 1 or seqs != list(range(first, first + len(seqs))):
        return None
    if not sorter.take_all(seqs, [line.batch for line in lines]):
        return None
    if top is not None and seqs[-1] > top:
        lines = lines[: max(0, top + 1 - first)]
        seqs = seqs[: len(lines)]
    return Page(
        seqs,
        [line.event for line in lines],
        [line.follows for line in lines],
        [line.data for line in lines],
    )


def _by_line(path: str | Path, bound: int | None, damage: OnLineDamage | None) -> Iterator[Page]:
    events: list[Event] = []
    for line in counted_backward(path, bound, damage):
        if line.event is not None:
            events.append(line.event)
            if len(events) == _LINES:
                yield page_of(events[::-1])
                events = []
    if events:
        yield page_of(events[::-1])


def as_far_as(newest_first: Iterator[Page], after: int) -> Iterator[Page]:
    """The pages back to the one with the event behind `after`."""
    for page in newest_first:
        yield page
        if page.seqs and page.seqs[0] <= after + 1:
            return


def marks_of(newest_first: Iterator[Page], kinds: Collection[str], after: int) -> list[Mark]:
    """The events of some kinds, and all that jump, in order; none up to `after`."""
    found: list[Mark] = []
    for page in newest_first:
        rows = zip(page.seqs, page.kinds, page.follows, strict=True)
        marks = [Mark(*row) for row in rows if row[2] is not None or row[1] in kinds]
        found += [mark for mark in reversed(marks) if mark.seq > after]
    found.reverse()
    return found


def tally_of(pages: Iterator[Page], after: int) -> dict[str, int]:
    """How many events of each kind there are behind `after`."""
    found: Counter[str] = Counter()
    for page in pages:
        found.update(page.kinds[bisect_right(page.seqs, after) :])
    return dict(found)
