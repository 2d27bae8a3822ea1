"""The JSONL format: one event a line, each with its own check sum.

    {"seq":7,"uuid":"…","ts":"…","event":"…","follows":3,"data":{…},"batch":[1,2],"crc":"…"}

`seq` and `uuid` come first and `crc` last, so that a line is known without decoding it.
`docs/format.md` is the normative text.

A batch is written by one call. Its lines carry `[i, n]`; without line `[n, n]` the write
was cut short and none of the batch counts. Anything else that is wrong costs just the
line it is in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from ..events import Event, make_event
from ..messages import Said
from .batches import Stored

_text = msgspec.json.Encoder().encode
_HEADER = re.compile(rb'\{"seq":(\d{1,18}),"uuid":("[^"\\]*(?:\\.[^"\\]*)*"),"ts":"')
_NUMBER = re.compile(rb'\{"seq":(\d{1,18}),')
_BATCH = re.compile(rb',"batch":\[(\d{1,9}),(\d{1,9})\]$')
_CRC = ',"crc":"%08x"}'
_SUFFIX = len(_CRC % 0)
_read_text = msgspec.json.Decoder(str).decode


class _Body(msgspec.Struct, gc=False):
    seq: int
    uuid: str
    ts: str
    event: str
    data: dict[str, Any]
    follows: int | None = None
    batch: tuple[int, int] | None = None


class Spoken(msgspec.Struct, gc=False):
    """A line as views need it. What the check sum covers need not all be decoded."""

    seq: int
    uuid: str
    ts: str
    event: str
    data: Said
    follows: int | None = None
    batch: tuple[int, int] | None = None


_decode = msgspec.json.Decoder(_Body).decode
_decode_lines = msgspec.json.Decoder(Spoken).decode_lines


# A named tuple's own constructor goes through Python code.
_tuple = tuple.__new__


class Line(NamedTuple):
    """One line of a log: where it is, which event, and which place in its batch."""

    offset: int
    length: int
    seq: int
    uuid: str
    place: int
    size: int
    event: Event | None

    @property
    def last(self) -> int:
        """The `seq` of the last event of this line's batch; it names the batch."""
        return self.seq + self.size - self.place


class Damage(NamedTuple):
    """A place in a log that cannot be read."""

    offset: int
    length: int
    what: str
    seqs: tuple[int, ...] = ()
    lines: int = 1


OnLineDamage = Callable[[Damage], None]


def encode_batch(fresh: list[Stored]) -> bytes:
    """The lines of one batch, to be written by one call."""
    count = len(fresh)
    return b"".join(
        encode_line(event, body, f',"batch":[{index},{count}]')
        for index, (event, body) in enumerate(fresh, 1)
    )


def encode_line(event: Event, body: bytes, batch: str = "") -> bytes:
    """One line, with its newline."""
    id, kind, follows = event.id, event.kind, event.follows
    # Both are printable, so JSON escapes only these two.
    if '"' in id or "\\" in id:
        id = _text(id).decode()[1:-1]
    if '"' in kind or "\\" in kind:
        kind = _text(kind).decode()[1:-1]
    link = "" if follows is None else f',"follows":{follows}'
    front = (
        f'{{"seq":{event.seq},"uuid":"{id}","ts":"{event.ts}","event":"{kind}"{link},"data":'
    ).encode()
    back = batch.encode()
    check = crc32(back, crc32(body, crc32(front)))
    return b"".join((front, body, back, f',"crc":"{check:08x}"}}\n'.encode()))


def is_sound(text: bytes, end: int) -> bool:
    """Whether a line ends, from `end` on, in the check sum of what stands before."""
    return end >= 0 and text[end:] == f',"crc":"{crc32(text[:end]):08x}"}}'.encode()


def decode_line(text: bytes, offset: int) -> Line | None:
    """A line without its newline, decoded; None if it is not what was written."""
    end = len(text) - _SUFFIX
    if not is_sound(text, end):
        return None
    try:
        body = _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    index, count = body.batch or (1, 1)
    seq, uuid = body.seq, body.uuid
    event = make_event(seq, uuid, body.ts, body.event, body.data, body.follows)
    return _tuple(Line, (offset, end + _SUFFIX + 1, seq, uuid, index, count, event))


def decode_header(text: bytes, offset: int) -> Line | None:
    """Like `decode_line` without the event: several times faster."""
    end = len(text) - _SUFFIX
    if not is_sound(text, end):
        return None
    header = _HEADER.match(text)
    if header is None:
        return None
    index = count = 1
    batch = _BATCH.search(text, max(0, end - 40), end)
    if batch is not None:
        index, count = int(batch[1]), int(batch[2])
    uuid = _read_text(header[2])
    return Line(offset, len(text) + 1, int(header[1]), uuid, index, count, None)


def likely_seq(text: bytes) -> int | None:
    """The number a line begins with, whether or not the rest of it is whole."""
    number = _NUMBER.match(text)
    return int(number[1]) if number else None


Decoder = Callable[[bytes, int], Line | None]


def lines_in(
    data: bytes, offset: int, decode: Decoder, damage: OnLineDamage | None
) -> Iterator[Line]:
    """The good lines among whole lines of bytes that begin at `offset`.

    A good line glued behind a torn one or a run of NULs is found as well.
    """
    start, size = 0, len(data)
    while start < size:
        end = data.find(b"\n", start)
        if end < 0:
            end = size
        text = data[start:end]
        line = decode(text, offset + start)
        if line is not None:
            yield line
        else:
            line = _glued(text, offset + start, decode)
            length = end - start if line is None else line.offset - offset - start
            if damage is not None:
                seq = likely_seq(text)
                seqs = () if seq is None else (seq,)
                damage(Damage(offset + start, length, _describe(text[:length]), seqs))
            if line is not None:
                yield line
        start = end + 1


def _glued(text: bytes, offset: int, decode: Decoder) -> Line | None:
    """The whole line that a damaged one ends with, if it does."""
    # Data may hold what looks like the start of a line, so more than one place is tried.
    for header in islice(_HEADER.finditer(text, 1), 16):
        line = decode(text[header.start() :], offset + header.start())
        if line is not None:
            return line
    return None


def _describe(text: bytes) -> str:
    if not text:
        return "empty line"
    if not text.strip(b"\0"):
        return "NUL bytes"
    return "torn line" if text.startswith(b'{"seq":') else "garbage"


def sound_page(data: bytes, start: int) -> list[Spoken] | None:
    """Whole lines from `start` on, decoded at once; None if any is not what was written."""
    sums: list[int] = []
    ends: list[bytes] = []
    add_sum, add_end, find = sums.append, ends.append, data.find
    view = memoryview(data)
    lines_at = start
    while (end := find(b"\n", start)) >= 0:
        add_sum(crc32(view[start : end - _SUFFIX]))
        add_end(data[end - _SUFFIX : end])
        start = end + 1
    # A line too short to have a sum shows here: its end is short, or holds a newline.
    if b"".join(ends) != (_CRC * len(sums) % tuple(sums)).encode():
        return None
    try:
        lines = _decode_lines(view[lines_at:])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return lines if len(lines) == len(sums) else None


class Forward:
    """Sorts good lines into events that count, front to back, over any number of pages.

    Drops lines whose number was seen (duplicates), and holds a batch back until its last
    line is there.
    """

    def __init__(self, damage: OnLineDamage | None, high: int = 0) -> None:
        self._damage = damage
        self.high = high
        self._held: list[Line] = []

    @property
    def held(self) -> list[Line]:
        """Lines of a batch whose end has not come yet."""
        return self._held

    def take(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The lines that count among the next ones."""
        for line in lines:
            if line.seq <= self.high:
                self._tell("duplicate", [line])
                continue
            held = self._held
            if held and held[0].last != line.last:
                self.drop()
                held = self._held
            self.high = line.seq
            if line.place < line.size:
                held.append(line)
                continue
            if held:
                yield from held
                self._held = []
            yield line

    def drop(self) -> None:
        """Give up on a batch whose last line never came."""
        if self._held:
            self._tell("torn batch", self._held)
            self.high = max(self.high, self._held[-1].last)
            self._held = []

    def _tell(self, what: str, lines: list[Line]) -> None:
        if self._damage is not None:
            first, final = lines[0], lines[-1]
            length = final.offset + final.length - first.offset
            seqs = tuple(line.seq for line in lines)
            self._damage(Damage(first.offset, length, what, seqs, len(lines)))


class Backward:
    """The same, back to front: `take` gets the good lines of one page in file order.

    `high` is the number in front of the page, so that a duplicate at its start is known.
    """

    def __init__(self, damage: OnLineDamage | None) -> None:
        self._damage = damage
        self._whole: set[int] = set()
        self._begun = False

    def take(self, lines: list[Line], high: int) -> list[Line]:
        """The lines of a page that count, newest first."""
        rising: list[Line] = []
        for line in lines:
            if line.seq <= high:
                self._tell(line, "duplicate")
            else:
                high = line.seq
                rising.append(line)
        return [line for line in reversed(rising) if self.counts(line)]

    def counts(self, line: Line) -> bool:
        """Whether the next line, going back, is not of a torn batch."""
        if line.size > 1:
            if line.place < line.size and line.last not in self._whole:
                # At the very end it may still be on its way.
                if self._begun:
                    self._tell(line, "torn batch")
                return False
            if line.place > 1:
                self._whole.add(line.last)
        self._begun = True
        return True

    def take_all(self, seqs: list[int], batches: list[tuple[int, int] | None]) -> bool:
        """Take a page whose numbers rise without a gap; False if not all of it counts."""
        final, first = batches[-1], batches[0]
        rest = 0 if final is None else final[1] - final[0]
        if rest > 0 and seqs[-1] + rest not in self._whole:
            return False
        if batches.count(None) < len(batches):
            for batch, behind in pairwise(batches):
                if batch is None or batch[0] == batch[1]:
                    continue
                if behind != (batch[0] + 1, batch[1]):
                    return False
        self._begun = True
        if first is not None and first[0] > 1:
            self._whole.add(seqs[0] + first[1] - first[0])
        return True

    def _tell(self, line: Line, what: str) -> None:
        if self._damage is not None:
            self._damage(Damage(line.offset, line.length, what, (line.seq,)))


def purged_line(line: Line, event: Event, body: bytes) -> bytes:
    """A line with another body in the same place of its batch."""
    batch = f',"batch":[{line.place},{line.size}]' if line.size > 1 else ""
    return encode_line(event, body, batch)
