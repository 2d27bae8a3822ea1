"""The file of a JSONL log as a reader sees it: its pages, and places that are found by halving.

It is opened anew for each page, and is still the same. Numbers rise from line to line, so a
place is found by halving; where lines are astray, the numbers around it do not lead up to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

from ...errors import Damaged, NotFound
from ..disk.fs import open_file
from .course import leads_up, plain_stretch
from .lines import (
    decode_line,
    likely_seq,
    lines_in,
)

# Fewer bytes than stand before the data of a first line, which a purge may change.
_IDENTITY = 64

# Opening a FIFO would wait for a writer.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class LogFile:
    """A log's file for one read, opened anew for each page.

    `replaced` says that it was opened first, or is another file since a purge.
    """

    def __init__(self, path: str | Path) -> None:
        self.replaced = True
        self._path = path
        self._inode = 0
        self._begin = b""

    def open(self) -> tuple[int, int]:
        """A descriptor and the size; `NotFound` if the log was deleted since the first time."""
        try:
            fd = open_file(self._path, _OPEN)
        except FileNotFoundError:
            if self._inode:
                raise self._gone() from None
            raise
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise Damaged(f"{self._path} is not a file: remove it")
            # A log made anew may get the inode of the old one. How it begins tells them apart.
            begin = os.pread(fd, _IDENTITY, 0)
            if not begin.startswith(self._begin):
                raise self._gone()
        except BaseException:
            os.close(fd)
            raise
        self.replaced = status.st_ino != self._inode
        self._inode, self._begin = status.st_ino, begin
        return fd, status.st_size

    def again(self) -> int | None:
        """A descriptor of the file that was opened last; None if it is not there any more."""
        try:
            fd = open_file(self._path, _OPEN)
        except OSError:
            return None
        try:
            if os.fstat(fd).st_ino == self._inode:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def _gone(self) -> NotFound:
        return NotFound(f"the log {self._path} was deleted during the read")


FIRST = 64 * 1024
"""Bytes of a page when little is asked for."""


MOST = 1024 * 1024
"""Bytes of a page when everything is."""


def end_of(fd: int, length: int, bound: int | None) -> int:
    """The offset behind the last line up to `bound`, and what else its batch has.

    Below 0 if halving does not find it.
    """
    if bound is None:
        return last_newline(fd, length)
    at, number = _locate(fd, length, bound)
    if (at == 0 and bound > 0 and length) or not _is_trusted(fd, at, number, bound):
        return -1
    return last_newline(fd, batch_end(fd, at, bound))


def pages_from(fd: int, at: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Pages of whole lines from an offset on, each larger than the one before it."""
    while data := whole_lines(fd, at, min(size, MOST)):
        yield at, data
        at += len(data)
        size *= 4


# --- pages -------------------------------------------------------------------------------


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
    while True:
        data = os.pread(fd, end - start, start)
        # Many times as fast as `split` or `count`, which go from byte to byte.
        texts = BytesIO(data).readlines()
        if not start or (len(texts) > 2 and _is_enough(data)):
            break
        # Long lines: one in part, one to be looked at, and one to be taken; and enough of them
        # that no line in front can be believed instead (`course.ANCHOR`).
        start = max(0, end - 4 * (end - start))
    if not data.endswith(b"\n"):
        return []
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
    # A log that has lost its front is for `Forward` to decide, front to back.
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


# --- places ------------------------------------------------------------------------------

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
    behind = plain_stretch(partial(pages_from, fd), at, seq + 1, FIRST // 2)
    return not behind.odd or behind.end - at >= FIRST // 2


def _leads_up(fd: int, at: int, seq: int) -> bool:
    """Whether the lines before an offset are whole, and bear the numbers up to `seq`.

    As many are looked at as no line in front of them can be believed instead of. A damaged one
    would leave a number out, and what comes behind that is for the course to decide.
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
