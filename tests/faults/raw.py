"""Log files looked at behind the store's back, with nothing of the store's own code."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NUMBER = re.compile(rb'\{"seq":(\d+),')


@dataclass(frozen=True)
class RawLine:
    """One line of a log file: where it is, its number if it is whole, and its batch."""

    offset: int
    text: bytes
    seq: int | None
    id: str | None
    batch: tuple[int, int]

    @property
    def last(self) -> int:
        """The number of the last event of the line's batch."""
        return (self.seq or 0) + self.batch[1] - self.batch[0]


def raw_lines(data: bytes) -> list[RawLine]:
    """The lines of a log, an unterminated tail included."""
    lines = []
    offset = 0
    for text in data.split(b"\n"):
        if offset < len(data):
            lines.append(_parse(offset, text))
        offset += len(text) + 1
    return lines


def _parse(offset: int, text: bytes) -> RawLine:
    match = re.fullmatch(rb'(.*),"crc":"([0-9a-f]{8})"\}', text, re.DOTALL)
    if match and zlib.crc32(match[1]) == int(match[2], 16):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            row = None
        if is_possible(row) and text.startswith(b'{"seq":%d,' % row["seq"]):
            place, size = row.get("batch") or (1, 1)
            return RawLine(offset, text, row["seq"], row["uuid"], (place, size))
    return RawLine(offset, text, None, None, (1, 1))


def is_possible(row: Any) -> bool:
    """Whether what a line holds may be an event, by the words of docs/format.md."""
    if not isinstance(row, dict):
        return False
    seq, follows, batch = row.get("seq"), row.get("follows"), row.get("batch")
    if type(seq) is not int or not 1 <= seq < 2**31:
        return False
    if follows is not None and (type(follows) is not int or not 0 <= follows < seq):
        return False
    if batch is not None:
        if not isinstance(batch, list) or [type(n) for n in batch] != [int, int]:
            return False
        if not 1 <= batch[0] <= batch[1] <= 10**6 or batch[0] > seq:
            return False
        if seq + batch[1] - batch[0] >= 2**31:
            return False
    for name in ("uuid", "event"):
        text = row.get(name)
        if not isinstance(text, str) or not 1 <= len(text) <= 256 or not text.isprintable():
            return False
    ts = row.get("ts")
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    if not isinstance(ts, str) or not re.fullmatch(form, ts, re.ASCII):
        return False
    return isinstance(row.get("data"), dict)


def numbers(data: bytes) -> set[int]:
    """Every number that stands at the start of a line, whole or not."""
    found = set()
    for line in data.split(b"\n"):
        match = _NUMBER.match(line)
        if match:
            found.add(int(match[1]))
    return found


def counted(data: bytes) -> list[RawLine]:
    """The lines that must be returned, by the plainest reading of the rules.

    A line counts if it is whole, its number is above all before it, and its batch has a last
    line. One that skips numbers does so only if the log's longest rising row goes on with it. One
    that does not skip any does not if the row has a later line of its number with 32 KB in front of
    it of lines that bear one number after the other, or a later one that binds has a lower number,
    and in the 32 KB from it on they do not bear one number after the other.
    """
    tail = data.rfind(b"\n") + 1
    lines = raw_lines(data[:tail])
    good = [line for line in lines if line.seq is not None]
    row = longest_row(good)
    bound = [good[at] for at in _binding(good)]
    result: list[RawLine] = []
    held: list[RawLine] = []
    high = 0
    for line in good:
        seq = line.seq or 0
        if seq <= high:
            continue
        if seq > high + 1:
            behind = (n.seq for n in row if n.offset >= line.offset and (n.seq or 0) > high)
            if next(behind, None) != seq:
                continue
        elif not _is_plain_from(line, lines) and (
            _comes_again(line, row, lines)
            or any(n.offset > line.offset and (n.seq or 0) < seq for n in bound)
        ):
            continue
        if held and held[0].last != line.last:
            high = max(high, held[-1].last)
            held = []
        high = seq
        held.append(line)
        if line.batch[0] == line.batch[1]:
            result.extend(held)
            held = []
    return result


def _comes_again(line: RawLine, row: list[RawLine], lines: list[RawLine]) -> bool:
    """Whether 32 KB of lines one number apart lead up to a later one of the row, of its number."""
    for other in row:
        if other.seq == line.seq and other.offset > line.offset:
            within = [n for n in lines if other.offset - 32 * 1024 <= n.offset < other.offset]
            return other.offset > 32 * 1024 and all(
                n.text.startswith(b'{"seq":%d,' % seq)
                for seq, n in enumerate(within, (other.seq or 0) - len(within))
            )
    return False


def _is_plain_from(line: RawLine, lines: list[RawLine]) -> bool:
    """Whether the lines that begin in the 32 KB from a line on bear one number after the other."""
    within = [n for n in lines if line.offset < n.offset < line.offset + 32 * 1024]
    return all(
        n.text.startswith(b'{"seq":%d,' % seq) for seq, n in enumerate(within, (line.seq or 0) + 1)
    )


def longest_row(good: list[RawLine]) -> list[RawLine]:
    """The most lines whose numbers rise, as docs/format.md says which of several."""
    seqs = [line.seq or 0 for line in good]
    may = [a and b for a, b in zip(_credible(good), _unbound(good), strict=True)]
    length, then = [0] * len(good), [-1] * len(good)
    for at in reversed(range(len(good))):
        higher = [n for n in range(at + 1, len(good)) if may[n] and seqs[n] > seqs[at]]
        if may[at]:
            then[at] = max(higher, key=lambda n: (length[n], seqs[n], n), default=-1)
            length[at] = 1 + (length[then[at]] if higher else 0)
    at = max(range(len(good)), key=lambda n: (length[n], seqs[n], n), default=-1)
    row = []
    while at >= 0 and may[at]:
        row.append(good[at])
        at = then[at]
    return row


def _credible(good: list[RawLine]) -> list[bool]:
    """Whether a number does not come out of nowhere."""
    seqs = [line.seq or 0 for line in good]
    result: list[bool] = []
    for at, line in enumerate(good):
        credible = [n for n in range(at) if result[n]]
        top = max((good[n].last for n in credible), default=0)
        end = next((_end(good[n]) for n in credible if good[n].last == top), 0)
        fits = seqs[at] <= top + 10_000 + line.offset - end
        if at:
            fits |= 1 <= seqs[at] - seqs[at - 1] <= 10_000
        elif len(good) > 1:
            fits |= 1 <= seqs[1] - seqs[0] <= 10_000
        result.append(fits)
    return result


def _unbound(good: list[RawLine]) -> list[bool]:
    """Whether no stretch of 32 KB of plain lines says that a number is out of place."""
    seqs = [line.seq or 0 for line in good]
    binding = _binding(good)
    return [
        all(seq <= seqs[n] if at <= n else seq > seqs[n] for n in binding)
        for at, seq in enumerate(seqs)
    ]


def _binding(good: list[RawLine]) -> list[int]:
    """The lines that bind: of a stretch the last below the first number of the next that does."""
    seqs = [line.seq or 0 for line in good]
    stretches: list[list[int]] = []
    for at in range(len(good)):
        if at and seqs[at] == seqs[at - 1] + 1 and good[at].offset == _end(good[at - 1]):
            stretches[-1].append(at)
        else:
            stretches.append([at])
    binding: list[int] = []
    lowest = 2**31
    for stretch in reversed(stretches):
        below = [at for at in stretch if seqs[at] < lowest]
        if len(below) > 1 and _end(good[below[-1]]) - good[below[0]].offset >= 32 * 1024:
            binding.append(below[-1])
            lowest = seqs[below[0]]
    return binding


def _end(line: RawLine) -> int:
    return line.offset + len(line.text) + 1


def is_damaged(data: bytes) -> bool:
    """Whether anything in a log is not as it was written."""
    torn = data != b"" and not data.endswith(b"\n")
    return torn or len(counted(data)) != data.count(b"\n")


def main_log(root: Path, session: str) -> Path:
    """The file of a session's main log."""
    return root / "sessions" / session / "messages.jsonl"


def log_file(root: Path, session: str, log: str) -> Path:
    """The file of any log of a session."""
    return root / "sessions" / session / f"{log}.jsonl"
