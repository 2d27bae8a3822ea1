"""The course of a log: which of its numbers belong together, found from all of it at once.

A line that skips numbers is an event behind lost ones, or astray: a reader that goes front to
back cannot tell which, and asks here. It costs a look over the whole log, and only where numbers
are skipped. An append goes on behind the course, so it does not change which older lines count:
whether a line may be on the course is decided by the lines in front of it, and a course that was
the longest is so with one more line, too. The exception is an append that makes forged lines at
the end into an anchor across an earlier one: reads from the end see no more than that.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...events import MAX_SEQ
from .lines import PLAUSIBLE, Line, decode_line, lines_in

ANCHOR = 32 * 1024
"""Bytes of lines one number apart that are right whatever is in front of them.

Reads from the end, and writers, look at no more than the last 64 KB where these are so plain.
"""

_START = re.compile(rb'\{"seq":(\d{1,18}),')
_BEGINS = re.compile(rb'\n\{"seq":(\d{1,18}),')

Place = tuple[int, int, int, int]
"""Of a line: its offset, its length, its number, and the last number of its batch."""

Pages = Callable[[int, int], Iterable[tuple[int, bytes]]]
"""Whole lines of a log as it is by now, from an offset on: offsets and bytes.

The first page has about as many bytes as the second argument says, each other four times as many.
"""


class Course:
    """The longest rising row of a log's numbers, made when it is first asked for."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._size = -1
        self._rises = False
        self._row: list[tuple[int, int]] | None = None
        self._anchors: list[tuple[int, int]] = []
        self._odd = -1
        self._window = 2 * ANCHOR

    def plain_until(self, line: Line) -> int:
        """An offset up to which a line is followed by `ANCHOR` bytes one number apart.

        That is, from `line` on. What comes behind so many does not make a line a duplicate. At
        the end of the log there may be fewer.
        """
        if line.offset < self._odd:
            return line.offset
        found = plain_stretch(self._pages, line.offset, line.seq, self._window)
        if found.whole:
            return found.end
        if found.odd:
            self._odd, self._window = found.end, 2 * ANCHOR
        else:
            self._window = min(4 * self._window, 32 * ANCHOR)
        return found.end - ANCHOR + 1

    def comes_again(self, line: Line) -> bool:
        """Whether an anchor behind this line has a lower number, or the row has the line's again.

        The latter where it is led up to: the lines in the `ANCHOR` bytes in front of that one bear
        one number after the other.
        """
        if line.offset >= self._size:
            self._look()
        if self._rises:
            return False
        row = self._whole_row()
        at = bisect_right(self._anchors, (line.offset, MAX_SEQ))
        if at < len(self._anchors) and self._anchors[at][1] < line.seq:
            return True
        at = bisect_left(row, line.seq, key=lambda place: place[1])
        return at < len(row) and row[at][1] == line.seq and self._is_led_up_to(*row[at], line)

    def _is_led_up_to(self, offset: int, seq: int, line: Line) -> bool:
        start = max(0, offset - ANCHOR - 1)
        if start <= line.offset:
            # The line has the same number, and its neighbours others than they should.
            return False
        data = b""
        for _, page in self._pages(start, ANCHOR + 1):
            data += page
            if start + len(data) >= offset:
                break
        front = data[: offset - start]
        return leads_up(front[front.find(b"\n") + 1 :], seq)

    def goes_on(self, line: Line, high: int, near: bool) -> bool:
        """Whether the next number of the row, at or behind `line` and above `high`, is the line's.

        `near` says that the line skips no more than is plausible.
        """
        if line.offset >= self._size:
            self._look()
        if self._rises and near:
            return True
        row = self._whole_row()
        at = bisect_left(row, (line.offset, 0))
        at = bisect_right(row, high, lo=at, key=lambda place: place[1])
        return at < len(row) and row[at][1] == line.seq

    def _whole_row(self) -> list[tuple[int, int]]:
        if self._row is None:
            lines = self._lines()
            anchors = _anchors(lines)
            self._row = rising(lines, anchors)
            self._anchors = [(lines[index][0], seq) for index, seq in anchors]
        return self._row

    def _look(self) -> None:
        """See how long the log is by now, and whether its numbers rise all the way."""
        self._row = None
        high, self._rises = -1, True
        for at, data in self._pages(0, 32 * ANCHOR):
            self._size = at + len(data)
            # Whatever begins a line, whole or not: if that rises, so do the lines that are whole.
            for found in _START.finditer(data) if self._rises else ():
                seq = int(found[1])
                if seq <= high:
                    self._rises = False
                    break
                high = seq

    def _lines(self) -> list[Place]:
        lines: list[Place] = []
        for at, data in self._pages(0, 32 * ANCHOR):
            for line in lines_in(data, at, decode_line, None):
                lines.append((line.offset, line.length, line.seq, line.last))
            self._size = at + len(data)
        return lines


def rising(lines: list[Place], anchors: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Offset and number of each line in the longest rising row of numbers.

    Of rows as long as each other it is the one with the highest numbers, compared from the front;
    of copies, the last.
    """
    # From the end: for each length of a row, where one begins with the highest number, negated.
    best: list[int] = []
    where: list[int] = []
    after: dict[int, int] = {}
    for index in reversed(_eligible(lines, anchors)):
        seq = lines[index][2]
        length = bisect_left(best, -seq)
        if length == len(best):
            best.append(-seq)
            where.append(index)
        elif best[length] != -seq:
            best[length], where[length] = -seq, index
        else:
            continue
        if length:
            after[index] = where[length - 1]
    row: list[tuple[int, int]] = []
    at = where[-1] if where else None
    while at is not None:
        row.append((lines[at][0], lines[at][2]))
        at = after.get(at)
    return row


class Stretch(NamedTuple):
    """Lines one number apart: where they end, and whether at an odd line, or with the log."""

    end: int
    odd: bool
    whole: bool


def plain_stretch(pages: Pages, at: int, expected: int, least: int) -> Stretch:
    """The lines from `at` on that bear one number after the other; `least` bytes, or a few more."""
    end = at
    for offset, data in pages(at, least):
        seqs = list(map(int, _BEGINS.findall(b"\n" + data)))
        if len(seqs) != data.count(b"\n") or seqs != [*range(expected, expected + len(seqs))]:
            return Stretch(offset + _plain_bytes(data, expected), odd=True, whole=False)
        end, expected = offset + len(data), expected + len(seqs)
        if end - at >= least:
            return Stretch(end, odd=False, whole=False)
    return Stretch(end, odd=False, whole=True)


def leads_up(data: bytes, seq: int) -> bool:
    """Whether whole lines bear one number after the other, and the last the one before `seq`."""
    seqs = list(map(int, _BEGINS.findall(b"\n" + data)))
    return len(seqs) == data.count(b"\n") and seqs == [*range(seq - len(seqs), seq)]


def _plain_bytes(data: bytes, expected: int) -> int:
    """How many bytes of whole lines come before the first that has not the next number."""
    at = 0
    while data.startswith(b'{"seq":%d,' % expected, at):
        at = data.index(b"\n", at) + 1
        expected += 1
    return at


def _eligible(lines: list[Place], anchors: list[tuple[int, int]]) -> list[int]:
    """The lines that may be in the row: no number out of nowhere, and none across an anchor."""
    found: list[int] = []
    top = end = before = passed = 0
    for index, (at, length, seq, last) in enumerate(lines):
        while passed < len(anchors) and anchors[passed][0] < index:
            passed += 1
        near = seq <= top + PLAUSIBLE + at - end
        if near or before < seq <= before + PLAUSIBLE or (not index and _is_borne_out(lines)):
            low = anchors[passed - 1][1] if passed else 0
            if low < seq and (passed == len(anchors) or seq <= anchors[passed][1]):
                found.append(index)
            if last > top:
                top, end = last, at + length
        before = seq
    return found


def _is_borne_out(lines: list[Place]) -> bool:
    """Whether the first line begins a log that lost its front: then the second goes on there."""
    return len(lines) > 1 and lines[0][2] < lines[1][2] <= lines[0][2] + PLAUSIBLE


def _anchors(lines: list[Place]) -> list[tuple[int, int]]:
    """The place and number of lines that enough plain lines lead up to; of each such stretch one.

    That is its last, or the last whose number is below those of the next such stretch.
    """
    begins: list[int] = []
    end = before = -1
    for index, (at, length, seq, _) in enumerate(lines):
        if (at, seq) != (end, before + 1):
            begins.append(index)
        end, before = at + length, seq
    kept: list[tuple[int, int]] = []
    behind, lowest = len(lines), MAX_SEQ + 1
    for first in reversed(begins):
        offset, _, seq, _ = lines[first]
        last = min(behind, first + lowest - seq) - 1
        if last > first and sum(lines[last][:2]) - offset >= ANCHOR:
            kept.append((last, lines[last][2]))
            lowest = seq
        behind = first
    return kept[::-1]
