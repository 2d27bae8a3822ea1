"""How a JSONL log is read, in both directions.

Readers need no lock: they take whole lines and leave an unterminated tail alone, since
somebody may be writing it. A file is opened anew for each page, so nothing is held in
between. Numbers rise from line to line, so a place is found by halving.

Which lines count is decided front to back (`lines.Forward`). Where every line bears the number
behind the one before it, there is nothing to decide, and a read from the end takes them as they
are. At the first line that does not, it lets `Forward` go through the whole log. All who decide
ask the same `Course` about lines that skip numbers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

from ...events import Event
from .course import Course, leads_up, plain_stretch
from .file import LogFile
from .lines import (
    Backward,
    Forward,
    Line,
    OnLineDamage,
    decode_line,
    likely_seq,
    lines_in,
)

FIRST = 64 * 1024
"""Bytes of a page when little is asked for."""

MOST = 1024 * 1024
"""Bytes of a page when everything is."""


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
        for text in reversed(texts):
            end -= len(text)
            line = decode_line(text[:-1], end)
            counts = None if line is None else sorter.counts(line)
            if line is None or counts is None:
                texts = []
                break
            if counts and (bound is None or line.seq <= bound):
                bound = line.seq - 1
                passed += 1
                yield line
        if not texts:
            yield from counted_backward(path, bound, damage)
            return
        if wanted is None or wanted - passed > len(texts):
            # More is wanted than this page had.
            size = min(size * 4, MOST)


def end_of(fd: int, length: int, bound: int | None) -> int:
    """The offset behind the last line up to `bound`, and what else its batch has.

    Below 0 if that cannot be told by halving.
    """
    if bound is None:
        return last_newline(fd, length)
    at, number = _locate(fd, length, bound)
    if (at == 0 and bound > 0 and length) or not _is_trusted(fd, at, number, bound):
        return -1
    return last_newline(fd, batch_end(fd, at, bound))


_CHUNK = 256


def counted_backward(
    path: str | Path, bound: int | None, damage: OnLineDamage | None
) -> Iterator[Line]:
    """The lines up to `bound` that count, newest first, told by going through the whole log."""
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
    return Course(partial(_pages_from, fd))


def _pages_of(file: LogFile, at: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Pages of the file that is being read; none if another has taken its place."""
    fd = file.again()
    if fd is not None:
        try:
            yield from _pages_from(fd, at, size)
        finally:
            os.close(fd)


def _pages_from(fd: int, at: int, size: int) -> Iterator[tuple[int, bytes]]:
    while data := whole_lines(fd, at, min(size, MOST)):
        yield at, data
        at += len(data)
        size *= 4


class Back:
    """Pages of lines, back to front, as `page_before` gives them.

    `bound` is the highest number still wanted; who reads lowers it. `top` is what it was
    when the file was opened first, or replaced by a purge: above it are lines to pass over.
    `lost` says that the place to begin at cannot be told; there are no pages then.
    """

    def __init__(self, path: str | Path, bound: int | None, most: int | None = None) -> None:
        self.bound = self.top = bound
        self.lost = self.replaced = False
        self._path = path
        self._most = MOST if most is None else min(most, MOST)

    def __iter__(self) -> Iterator[tuple[int, bytes, int, int]]:
        file, end, size = LogFile(self._path), -1, FIRST
        while True:
            fd, length = file.open()
            try:
                self.replaced = file.replaced
                if file.replaced:
                    self.top = self.bound
                    end = end_of(fd, length, self.top)
                    self.lost = end < 0
                page = page_before(fd, max(0, end), size)
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
    while start and (data.count(b"\n") < 3 or not _is_enough(data)):
        # Long lines: one in part, one to be looked at, and one to be taken; and enough of them
        # that no line in front can be believed instead (`course.ANCHOR`).
        start = max(0, end - 4 * (end - start))
        data = os.pread(fd, end - start, start)
    if not data.endswith(b"\n"):
        return []
    # Ten times as fast as `split`, which goes from byte to byte.
    texts = BytesIO(data).readlines()
    front = 0
    if start:
        before = len(texts[0])
        del texts[0]
        while not front or before <= FIRST // 2:
            before += len(texts[front])
            front += 1
    number = likely_seq(texts[0]) if texts else None
    if number is None:
        return []
    # A log that has lost its front is for those who decide front to back.
    if not start and number != 1:
        return []
    for seq, text in enumerate(texts, number):
        if not text.startswith(f'{{"seq":{seq},'.encode()):
            return []
    return texts[front:]


def page_before(fd: int, end: int, size: int) -> tuple[int, bytes, int, int]:
    """A page that ends at `end`: its offset, its bytes, and how many of these to skip.

    From there on they are whole lines. Last comes the number in front of them, -1 if the lines
    there do not bear one number after the other: they are looked at, and belong to the page before.
    """
    start = end
    while start > 0:
        start = max(0, start - size)
        data = os.pread(fd, end - start, start)
        if start == 0:
            return 0, data, 0, 0
        first = data.find(b"\n") + 1
        skip = data.find(b"\n", max(first, FIRST // 2)) + 1
        if first and 0 < skip < len(data) and _is_enough(data):
            number = likely_seq(data[skip : skip + 40])
            if number is None or not leads_up(data[first:skip], number):
                return start, data, skip, -1
            return start, data, skip, number - 1
        size = min(size * 2, 64 * MOST)
    return 0, b"", 0, 0


def _is_enough(data: bytes) -> bool:
    """Whether there is so much in whole lines, and in front of the last, as makes an anchor."""
    last = data.rfind(b"\n", 0, len(data) - 1) + 1
    return min(len(data) - data.find(b"\n"), last) > FIRST // 2


_NEIGHBOURS = 8


def locate_after(fd: int, size: int, seq: int) -> int:
    """An offset that no line with a number above `seq` is before, also where copies are astray.

    Halving may end behind copies of older lines. Then the numbers in front of that place do
    not lead up to `seq`, and the log is to be read from its beginning.
    """
    at, number = _locate(fd, size, seq)
    return at if _is_trusted(fd, at, number, seq) else 0


def _is_trusted(fd: int, at: int, number: int, seq: int) -> bool:
    """Whether the lines around an offset are those around the end of line `seq`."""
    if at == 0:
        return True
    if number not in (0, seq + 1):
        return False
    before = _numbers_before(fd, at)
    if before != list(range(seq + 1 - len(before), seq + 1)) or not _leads_up(fd, at, seq):
        return False
    # Else the lines in front may be forged, and those of the log itself come behind.
    behind = plain_stretch(partial(_pages_from, fd), at, seq + 1, FIRST // 2)
    return not behind.odd or behind.end - at >= FIRST // 2


def _leads_up(fd: int, at: int, seq: int) -> bool:
    """Whether the lines before an offset are whole, and bear the numbers up to `seq`.

    As many are looked at as no line in front of them can be believed instead of. A damaged one
    would leave a number out, and what comes behind that is for the course to tell.
    """
    size = FIRST
    while True:
        start = max(0, at - size)
        texts = BytesIO(os.pread(fd, at - start, start)).readlines()
        if start:
            del texts[:1]
        count = total = 0
        while count < len(texts) and (count < 2 or total < FIRST // 2):
            count += 1
            total += len(texts[-count])
        if start == 0 or (count > 1 and total >= FIRST // 2):
            break
        size *= 4
    if total < FIRST // 2 and len(texts) != seq:
        return False
    del texts[:-count]
    for expected, text in enumerate(texts, seq + 1 - len(texts)):
        if (
            not text.startswith(f'{{"seq":{expected},'.encode())
            or decode_line(text[:-1], 0) is None
        ):
            return False
    return True


def _numbers_before(fd: int, at: int) -> list[int]:
    """The numbers of the last good lines before an offset."""
    size = 4096
    while True:
        start = max(0, at - size)
        data = os.pread(fd, at - start, start)
        skipped = data.find(b"\n") + 1 if start else 0
        texts = data[skipped:].split(b"\n")[:-1][-_NEIGHBOURS:] if skipped or not start else []
        if start == 0 or len(texts) == _NEIGHBOURS:
            lines = [decode_line(text, 0) for text in texts]
            return [0 if line is None else line.seq for line in lines]
        size *= 4


def _locate(fd: int, size: int, seq: int) -> tuple[int, int]:
    """The offset of the first line with a number above `seq`, by halving, and that number.

    0 at the end of the file. Lines astray may lead anywhere: see `_is_trusted`.
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
    while at < size:
        data = whole_lines(fd, at, FIRST)
        if not data:
            break
        for line in lines_in(data, at, decode_line, None):
            if line.seq > seq:
                return line.offset, line.seq
        at += len(data)
    return at, 0


def batch_end(fd: int, at: int, seq: int) -> int:
    """The offset behind the batch that goes on at `at`, if `seq` is in the middle of one."""
    end = at
    while data := whole_lines(fd, at, FIRST):
        for line in lines_in(data, at, decode_line, None):
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
                line = decode_line(data[position:end], 0)
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
