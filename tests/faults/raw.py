"""Log files looked at behind the store's back, with nothing of the store's own code."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

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
        row = json.loads(text)
        place, size = row.get("batch", (1, 1))
        return RawLine(offset, text, row["seq"], row["uuid"], (place, size))
    return RawLine(offset, text, None, None, (1, 1))


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

    A line counts if it is whole, its number is above all before it, and its batch has a
    last line.
    """
    tail = data.rfind(b"\n") + 1
    result: list[RawLine] = []
    held: list[RawLine] = []
    high = 0
    for line in raw_lines(data[:tail]):
        if line.seq is None or line.seq <= high:
            continue
        if held and held[0].last != line.last:
            held = []
        high = line.seq
        held.append(line)
        if line.batch[0] == line.batch[1]:
            result.extend(held)
            held = []
    return result


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
