"""The course of a log: which of its numbers belong together, told from all of it at once.

Lines that skip numbers may bear each other out and be astray all the same: then the numbers
they skip come behind them. Who reads front to back cannot know that and asks here. It costs a
look over the whole log, and only where numbers are skipped.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

from .lines import PLAUSIBLE, Line, decode_line, lines_in

ANCHOR = 32 * 1024
"""Bytes of lines one number apart that are right whatever is in front of them.

Reads from the end, and writers, look at no more than the last 64 KB where these are so plain.
"""

_START = re.compile(rb'\{"seq":(\d{1,18}),"uuid":"')

Pages = Callable[[], Iterable[tuple[int, bytes]]]
"""All whole lines of a log as it is by now: offsets and bytes."""


class Course:
    """The longest rising row of a log's numbers, made when it is first asked for."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._size = -1
        self._offsets: list[int] = []
        self._seqs: list[int] = []

    def comes_back(self, line: Line, high: int) -> bool:
        """Whether the row goes on, behind a line, with a number between `high` and its own."""
        if line.offset >= self._size:
            self._look()
        at = bisect_right(self._offsets, line.offset)
        at = bisect_right(self._seqs, high, lo=at)
        return at < len(self._seqs) and self._seqs[at] < line.seq

    def _look(self) -> None:
        self._offsets, self._seqs = [], []
        high, rises = -1, True
        for at, data in self._pages():
            self._size = at + len(data)
            for found in _START.finditer(data) if rises else ():
                seq = int(found[1])
                if seq <= high:
                    rises = False
                    break
                high = seq
        # What begins a line, whole or not, rises all the way: so do the lines that are whole.
        if rises:
            return
        lines: list[tuple[int, int, int]] = []
        for at, data in self._pages():
            for line in lines_in(data, at, decode_line, None):
                lines.append((line.offset, line.length, line.seq))
            self._size = at + len(data)
        row = rising(lines)
        self._offsets = [at for at, _ in row]
        self._seqs = [seq for _, seq in row]


def rising(lines: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Offset and number of each line in the longest rising row of numbers.

    `lines` has the offset, length and number of each. Of rows as long as each other it is the
    one with the highest numbers, compared from the front; of copies, the last.
    """
    place, top = _anchor(lines)
    most = PLAUSIBLE + (lines[-1][0] + lines[-1][1] if lines else 0)
    # From the end: for each length of a row, where one begins with the highest number, negated.
    best: list[int] = []
    where: list[int] = []
    after: dict[int, int] = {}
    for index in range(len(lines) - 1, -1, -1):
        seq = lines[index][2]
        if seq > most or (seq > top if index <= place else seq <= top):
            continue
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


def _anchor(lines: list[tuple[int, int, int]]) -> tuple[int, int]:
    """The place and number of the last line that enough plain lines lead up to."""
    place, top = -1, 0
    size, end, last = 0, -1, -1
    for index, (at, length, seq) in enumerate(lines):
        size = size + length if (at, seq) == (end, last + 1) else length
        end, last = at + length, seq
        if size >= ANCHOR and size > length:
            place, top = index, seq
    return place, top
