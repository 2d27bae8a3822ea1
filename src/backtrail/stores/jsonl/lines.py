"""The JSONL format: one event a line, each with its own check sum.

    {"seq":7,"uuid":"…","ts":"…","event":"…","follows":3,"data":{…},"batch":[1,2],"crc":"…"}

`seq` and `uuid` come first and `crc` last, so that a line is known without decoding it.
`docs/format.md` is the normative text.

A batch is written by one call. Its lines carry `[i, n]`; without line `[n, n]` the write
was cut short and none of the batch counts. Anything else that is wrong costs just the
line it is in. A right check sum is no proof that a writer of ours made the line: numbers out
of bounds, an event that follows a later one, a number that is astray are damage as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from zlib import crc32

import msgspec

from ..._startup.frozen import NamedTuple
from ...events import MAX_SEQ, Event, is_ts, make_event
from ...events.messages import Said
from ..batches import Stored

if TYPE_CHECKING:
    from .course import Course

_text = msgspec.json.Encoder().encode
_HEADER = re.compile(rb'\{"seq":(\d{1,18}),"uuid":("[^"\\]*(?:\\.[^"\\]*)*"),"ts":"')
_NUMBER = re.compile(rb'\{"seq":(\d{1,18}),')
_BATCH = re.compile(rb',"batch":\[(\d{1,9}),(\d{1,9})\]$')
_CRC = ',"crc":"%08x"}'
_SUFFIX = len(_CRC % 0)
_END = _SUFFIX + 1
_START = b'{"seq":'
_read_text = msgspec.json.Decoder(str).decode


PLAUSIBLE = 10_000
"""How many numbers a line may skip without another line that bears it out."""

MAX_BATCH = 1_000_000
"""The most events of one batch."""

_Seq = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
_Follows = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)]
_Place = Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class _Body(msgspec.Struct, gc=False):
    seq: _Seq
    uuid: _Name
    ts: str
    event: _Name
    data: dict[str, Any]
    follows: _Follows | None = None
    batch: tuple[_Place, _Place] | None = None


class Spoken(msgspec.Struct, gc=False):
    """A line as views need it. What the check sum covers need not all be decoded."""

    seq: _Seq
    uuid: _Name
    ts: str
    event: _Name
    data: Said
    follows: _Follows | None = None
    batch: tuple[_Place, _Place] | None = None


def _is_possible(line: _Body | Spoken) -> bool:
    """Whether a writer of ours may have made this line; types and bounds are known by now."""
    seq = line.seq
    if line.follows is not None and line.follows >= seq:
        return False
    if line.batch is not None:
        place, size = line.batch
        if place > size or place > seq or seq + size - place > MAX_SEQ:
            return False
    return line.uuid.isprintable() and line.event.isprintable() and is_ts(line.ts)


_UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_decode = msgspec.json.Decoder(_Body).decode
_decode_bodies = msgspec.json.Decoder(_Body).decode_lines
_decode_spoken = msgspec.json.Decoder(Spoken).decode_lines
_Decoded = TypeVar("_Decoded", _Body, Spoken)


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
    except _UNDECODABLE:
        return None
    # The number comes first, as it is: a reader that looks at no more than that sees the same one.
    if likely_seq(text) != body.seq or not _is_possible(body):
        return None
    index, count = body.batch or (1, 1)
    seq, uuid = body.seq, body.uuid
    event = make_event(seq, uuid, body.ts, body.event, body.data, body.follows)
    return _tuple(Line, (offset, end + _SUFFIX + 1, seq, uuid, index, count, event))


def decode_header(text: bytes, offset: int) -> Line | None:
    """Like `decode_line` without the event: several times faster, and not as strict.

    Only for a search whose result is decoded: a forged line may pass here.
    """
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
    try:
        uuid = _read_text(header[2])
    except _UNDECODABLE:
        return None
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
    lines = memoryview(data)[start:]
    return _sound(BytesIO(lines).readlines(), lines, _decode_spoken)


def sound_lines(texts: list[bytes], end: int) -> list[Line] | None:
    """Whole lines that end at offset `end`, decoded at once; None if `decode_line` refuses any.

    Each begins with the number behind the one before.
    """
    bodies = _sound(texts, b"".join(texts), _decode_bodies)
    if not bodies:
        return None
    first = likely_seq(texts[0])
    offset = end - sum(map(len, texts))
    lines: list[Line] = []
    for seq, (text, body) in enumerate(zip(texts, bodies, strict=True), first or 0):
        if body.seq != seq:
            return None
        uuid = body.uuid
        index, count = body.batch or (1, 1)
        event = make_event(seq, uuid, body.ts, body.event, body.data, body.follows)
        lines.append(_tuple(Line, (offset, len(text), seq, uuid, index, count, event)))
        offset += len(text)
    return lines


def _sound(
    texts: list[bytes], data: bytes | memoryview, decode: Callable[[Any], list[_Decoded]]
) -> list[_Decoded] | None:
    """What lines say, `data` being all of them, if each ends in its sum."""
    sums = tuple([crc32(text[:-_END]) for text in texts])
    # Where a line is too short to have a sum, these two differ in length.
    if b"".join([text[-_END:] for text in texts]) != (f"{_CRC}\n" * len(sums) % sums).encode():
        return None
    if b"".join([text[: len(_START)] for text in texts]) != _START * len(texts):
        return None
    try:
        lines = decode(data)
    except _UNDECODABLE:
        return None
    return lines if len(lines) == len(sums) and all(map(_is_possible, lines)) else None


class Forward:
    """Sorts good lines into events that count, front to back, over any number of pages.

    Numbers rise from line to line. A line whose number is not above those before it is a
    duplicate. So is one that bears the next number, if numbers soon fall back behind it and many
    plain lines lead up to a later one of that number, on the log's course. One that skips numbers
    counts if the course goes on with it, else it is astray. A batch is held until its last line is
    there. A reader that begins in the middle of a log without knowing the number before begins
    with a `high` of -1.
    """

    def __init__(
        self, damage: OnLineDamage | None, high: int = 0, whole: Course | None = None
    ) -> None:
        self._damage = damage
        self._whole = whole
        self._plain = 0 if whole is not None else sys.maxsize
        self.high = high
        self._end = 0
        self._held: list[Line] = []

    @property
    def held(self) -> list[Line]:
        """Lines of a batch whose end has not come yet."""
        return self._held

    def take(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The lines that count among the next ones."""
        for line in lines:
            seq = line.seq
            if seq == self.high + 1:
                if line.offset >= self._plain and self._comes_again(line):
                    self._report("duplicate", [line])
                elif line.size == 1 and not self._held:
                    # What nearly every line is.
                    self.high = seq
                    self._end = line.offset + line.length
                    yield line
                else:
                    yield from self._accept(line)
            elif seq <= self.high:
                self._report("duplicate", [line])
            elif self._whole is None or self._whole.goes_on(line, self.high, self._is_near(line)):
                yield from self._accept(line)
            else:
                self._report("astray", [line])

    def _comes_again(self, line: Line) -> bool:
        assert self._whole is not None
        self._plain = self._whole.plain_until(line)
        return line.offset >= self._plain and self._whole.comes_again(line)

    def _is_near(self, line: Line) -> bool:
        """Whether so many numbers may have been lost: a few, or those of the bytes in between."""
        before = self._held[-1].last if self._held else self.high
        return line.seq - max(before, self.high) <= PLAUSIBLE + max(0, line.offset - self._end)

    def _accept(self, line: Line) -> Iterator[Line]:
        if self._held and self._held[0].last != line.last:
            self.drop()
        held = self._held
        self.high = line.seq
        self._end = line.offset + line.length
        if line.place < line.size:
            held.append(line)
            return
        if held:
            self._held = []
            yield from held
        yield line

    def drop(self) -> None:
        """Give up on a batch whose last line never came."""
        if self._held:
            self._report("torn batch", self._held)
            self.high = max(self.high, self._held[-1].last)
            self._held = []

    def _report(self, what: str, lines: list[Line]) -> None:
        if self._damage is not None:
            first, final = lines[0], lines[-1]
            length = final.offset + final.length - first.offset
            seqs = tuple(line.seq for line in lines)
            self._damage(Damage(first.offset, length, what, seqs, len(lines)))


class Backward:
    """Which lines count, back to front, where every number is one below the one behind it.

    Anything that is not as plain as that is for `Forward` to decide, from the log's beginning.
    `at_end` says that the first line is the log's last.
    """

    def __init__(self, at_end: bool = False) -> None:
        self._at_end = at_end
        # The number and the place in its batch that the next line, going back, has to have.
        self._seq: int | None = None
        self._place: tuple[int, int] | None = None

    def counts(self, line: Line) -> bool | None:
        """Whether the next line counts; None if that cannot be decided from here.

        The only ones that do not are those of a batch at the very end, which may still be on
        its way.
        """
        place = (line.place, line.size)
        if self._seq is None:
            if line.place < line.size:
                return False if self._at_end else None
        elif line.seq != self._seq or not self._fits(place):
            return None
        self._goes_on(line.seq, place)
        return True

    def _fits(self, place: tuple[int, int]) -> bool:
        return place[0] == place[1] if self._place is None else place == self._place

    def _goes_on(self, seq: int, place: tuple[int, int]) -> None:
        self._seq = seq - 1
        self._place = (place[0] - 1, place[1]) if place[0] > 1 else None

    def take_all(self, seqs: list[int], batches: list[tuple[int, int] | None]) -> bool:
        """Take a page whose numbers rise without a gap; False if it cannot be decided here."""
        if self._seq is not None and seqs[-1] != self._seq:
            return False
        if not self._fits(batches[-1] or (1, 1)):
            return False
        if batches.count(None) < len(batches):
            for batch, behind in pairwise(batches):
                place, size = batch or (1, 1)
                after, of = behind or (1, 1)
                if (place < size or after > 1) and (after, of) != (place + 1, size):
                    return False
        self._goes_on(seqs[0], batches[0] or (1, 1))
        return True
