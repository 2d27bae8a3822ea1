"""How a JSONL log is read, in both directions.

Readers need no lock: they take whole lines and leave an unterminated tail alone, since
somebody may be writing it. A file is opened anew for each page, so nothing is held in
between. Numbers rise from line to line, so a place is found by halving.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from ..events import Event
from .jsonl_file import LogFile
from .lines import (
    Backward,
    Forward,
    Line,
    OnLineDamage,
    decode_header,
    decode_line,
    likely_seq,
    lines_in,
)

FIRST = 64 * 1024
"""Bytes of a page when little is asked for."""

MOST = 1024 * 1024
"""Bytes of a page when everything is."""

_FRONT = 16 * 1024


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


class Passed:
    """The numbers a backward read has been at, as ranges: in a sound log, one range.

    A block of lines that was copied as a whole is not known as such from its middle on.
    """

    def __init__(self) -> None:
        self._last = [1 << 62, 0]
        self._ranges = [self._last]

    def take(self, seq: int) -> bool:
        """Note a number; False if it was there before."""
        if seq == self._last[0] - 1:
            self._last[0] = seq
            return True
        if any(low <= seq <= high for low, high in self._ranges):
            return False
        self._last = [seq, seq]
        self._ranges.append(self._last)
        return True

    def take_run(self, first: int, last: int) -> bool:
        """Note numbers that lie right below those noted last; False, and no note, if not."""
        if last == self._last[0] - 1:
            self._last[0] = first
        elif len(self._ranges) == 1:
            self._last = [first, last]
            self._ranges.append(self._last)
        else:
            return False
        return True


# --- reading -----------------------------------------------------------------------------


def read_forward(path: str | Path, span: Span, damage: OnLineDamage | None) -> Iterator[Event]:
    """Events in order. The file is opened anew for each page, so nothing is held between."""
    left = span.limit
    sorter = Forward(damage, span.after)
    everything = span.until is None and span.kinds is None
    file, at = LogFile(path), -1
    while left is None or left > 0:
        fd, length = file.open()
        try:
            if file.replaced:
                sorter = Forward(damage, sorter.held[0].seq - 1 if sorter.held else sorter.high)
                at = locate_after(fd, length, sorter.high)
            data = whole_lines(fd, at, FIRST if left is not None and left < 32 else MOST)
        finally:
            os.close(fd)
        if not data:
            return
        for line in sorter.take(lines_in(data, at, decode_line, damage)):
            event = line.event
            if event is None or not (everything or span.wants(event)):
                if span.until is not None and line.seq > span.until:
                    return
                continue
            yield event
            if left is not None:
                left -= 1
                if left == 0:
                    return
        at += len(data)


def read_backward(path: str | Path, span: Span, damage: OnLineDamage | None) -> Iterator[Event]:
    """Events newest first, reading only as far back as is asked for."""
    left = span.limit
    if left is not None and left <= 0:
        return
    sorter = Backward(damage)
    everything = span.until is None and span.kinds is None
    passed = Passed()
    file, end, size = LogFile(path), -1, FIRST
    bound = top = span.until
    plain = True
    while left is None or left > 0:
        fd, length = file.open()
        try:
            if file.replaced:
                end = length
                top = bound
                if top is not None:
                    end = batch_end(fd, locate(fd, end, top), top)
                end = last_newline(fd, end)
            texts = plain_page(fd, end, size) if plain else []
            if not texts:
                start, data, skip, high = page_before(fd, end, size)
        finally:
            os.close(fd)
        plain, wanted = True, left
        if texts:
            lines = _newest_first(texts, end, sorter)
        elif data:
            whole = lines_in(data[skip:], start + skip, decode_line, damage)
            lines = iter(sorter.take(list(whole), high))
        else:
            return
        for line in lines:
            if line is None:
                # Damaged. The page is read again the careful way; what was passed stays so.
                plain = False
                break
            event, seq = line.event, line.seq
            if seq <= span.after:
                return
            if (top is not None and seq > top) or not passed.take(seq):
                continue
            bound = seq - 1
            if event is not None and (everything or span.wants(event)):
                yield event
                if left is not None:
                    left -= 1
                    if left == 0:
                        return
        if plain:
            end = end - sum(map(len, texts)) if texts else start + skip
            if left is None or wanted is None or left > wanted - left:
                # More is wanted than this page had.
                size = min(size * 4, MOST)


def _newest_first(texts: list[bytes], end: int, sorter: Backward) -> Iterator[Line | None]:
    """The lines of a plain page that count, decoded one by one; None where one is damaged."""
    for text in reversed(texts):
        end -= len(text)
        line = decode_line(text[:-1], end)
        if line is None or sorter.counts(line):
            yield line


class Back:
    """Pages of lines, back to front, as `page_before` gives them.

    `bound` is the highest number still wanted; who reads lowers it. `top` is what it was
    when the file was opened first, or replaced by a purge: above it are lines to pass over.
    """

    def __init__(
        self, path: str | Path, bound: int | None, most: int | None = None, front: int = _FRONT
    ) -> None:
        self.bound = self.top = bound
        self._path = path
        self._most = MOST if most is None else min(most, MOST)
        self._front = front

    def __iter__(self) -> Iterator[tuple[int, bytes, int, int]]:
        file, end, size = LogFile(self._path), -1, FIRST
        while True:
            fd, length = file.open()
            try:
                if file.replaced:
                    end = length
                    self.top = self.bound
                    if self.top is not None:
                        end = batch_end(fd, locate(fd, end, self.top), self.top)
                    end = last_newline(fd, end)
                page = page_before(fd, end, size, self._front)
            finally:
                os.close(fd)
            if not page[1]:
                return
            yield page
            end = page[0] + page[2]
            size = min(size * 4, self._most)


def whole_lines(fd: int, at: int, size: int) -> bytes:
    """Whole lines from `at` on, about `size` bytes or one line; empty at the end."""
    parts: list[bytes] = []
    while True:
        part = os.pread(fd, size, at)
        if not part:
            return b""
        cut = part.rfind(b"\n")
        if cut >= 0:
            parts.append(part[: cut + 1])
            return parts[0] if len(parts) == 1 else b"".join(parts)
        parts.append(part)
        at += len(part)


def last_newline(fd: int, end: int) -> int:
    """The offset behind the last newline before `end`."""
    if end > 0 and os.pread(fd, 1, end - 1) == b"\n":
        return end
    while end > 0:
        start = max(0, end - FIRST)
        cut = os.pread(fd, end - start, start).rfind(b"\n")
        if cut >= 0:
            return start + cut + 1
        end = start
    return 0


def plain_page(fd: int, end: int, size: int) -> list[bytes]:
    """The lines before `end`, about `size` bytes, if each bears the number behind the one before.

    Then none of them is a stray copy, and there is no need to look at all to know the last.
    As in `page_before`, those in front are only looked at. Each has its newline.
    """
    start = max(0, end - size)
    data = os.pread(fd, end - start, start)
    if not data.endswith(b"\n"):
        return []
    # Ten times as fast as `split`, which goes from byte to byte.
    texts = BytesIO(data).readlines()
    front = 0
    if start:
        before, least = len(texts[0]), min(len(data) // 4, _FRONT)
        del texts[0]
        while front < len(texts) and (not front or before < least):
            before += len(texts[front])
            front += 1
    number = likely_seq(texts[0]) if texts else None
    if number is None:
        return []
    for seq, text in enumerate(texts, number):
        if not text.startswith(f'{{"seq":{seq},'.encode()):
            return []
    return texts[front:]


def page_before(fd: int, end: int, size: int, front: int = _FRONT) -> tuple[int, bytes, int, int]:
    """A page that ends at `end`: its offset, its bytes, and how many of these to skip.

    From there on they are whole lines; last comes the highest number in front of them.
    """
    start = end
    while start > 0:
        start = max(0, start - size)
        data = os.pread(fd, end - start, start)
        if start == 0:
            return 0, data, 0, 0
        # The good lines in front are only looked at; they belong to the page before.
        first, high = data.find(b"\n") + 1, 0
        while first:
            second = data.find(b"\n", first) + 1
            if second in (0, len(data)):
                break
            line = decode_header(data[first : second - 1], 0)
            if line is not None:
                high = max(high, line.seq)
            if high and second >= min(len(data) // 4, front):
                return start, data, second, high
            first = second
        size = min(size * 2, 64 * MOST)
    return 0, b"", 0, 0


def locate(fd: int, size: int, seq: int) -> int:
    """The offset of the first line with a number above `seq`, by halving."""
    return _locate(fd, size, seq)[0]


def locate_after(fd: int, size: int, seq: int) -> int:
    """An offset that no line with a number above `seq` is before, also where copies are astray.

    Halving may end behind copies of older lines. Then the number there is not the next one,
    and higher ones lie before it: the log is to be read from its beginning.
    """
    at, number = _locate(fd, size, seq)
    if number == seq + 1:
        return at
    start = max(0, at - 4 * FIRST)
    data = os.pread(fd, at - start, start)
    skipped = data.find(b"\n") + 1 if start else 0
    before = lines_in(data[skipped:], start + skipped, decode_header, None)
    return 0 if any(line.seq > seq for line in before) else at


def _locate(fd: int, size: int, seq: int) -> tuple[int, int]:
    """Where that line is, and its number.

    At the end of the file, the number that comes next if the last two lines say so, else 0.
    """
    if seq <= 0:
        return 0, 1
    low, high = 0, size
    while high - low > FIRST:
        middle = (low + high) // 2
        found = _probe(fd, middle, high)
        if found is None:
            high = middle
        elif found[1] <= seq:
            low = found[0]
        else:
            high = middle
    at = low
    before = last = 0
    while at < size:
        data = whole_lines(fd, at, FIRST)
        if not data:
            break
        for line in lines_in(data, at, decode_header, None):
            if line.seq > seq:
                return line.offset, line.seq
            before, last = last, line.seq
        at += len(data)
    return at, seq + 1 if (before, last) == (seq - 1, seq) else 0


def batch_end(fd: int, at: int, seq: int) -> int:
    """The offset behind the batch that goes on at `at`, if `seq` is in the middle of one."""
    end = at
    while data := whole_lines(fd, at, FIRST):
        for line in lines_in(data, at, decode_header, None):
            if line.seq - line.place >= seq:
                return end
            end = line.offset + line.length
        at += len(data)
    return end


def _probe(fd: int, at: int, high: int) -> tuple[int, int] | None:
    """A line start at or behind `at`, and the higher number of the two lines there.

    Of two, since one may be a stray copy of an older line.
    """
    start, numbers, first = at, [], -1
    skip = True
    while start < high:
        data = os.pread(fd, FIRST, start)
        position = 0
        while True:
            end = data.find(b"\n", position)
            if end < 0:
                break
            if not skip:
                line = decode_header(data[position:end], 0)
                if line is not None:
                    first = start + position if first < 0 else first
                    numbers.append(line.seq)
                    if len(numbers) == 2:
                        return (first, max(numbers)) if first < high else None
            skip = False
            position = end + 1
        if position == 0:
            if len(data) < FIRST:
                break
            start += len(data)
            skip = True
        else:
            start += position
            skip = False
            if position >= len(data) and len(data) < FIRST:
                break
    return None
