"""The outside of a bundle: a tar archive of plain files, compressed with zstd, and read as a
stream.

Only what we write is read: plain files with short names, in the one order that the manifest
gives. Links, folders, long names and extensions of the format are refused by their header,
before anything of them is read. Sizes, the number of files, the whole and how far it was
compressed are limited while it is read, so that a bomb costs no more than the limit.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import zstandard

from ...errors import Damaged, Unsafe

_BLOCK = 512
_LONGEST_END = 21 * _BLOCK
"""The mark of the end, two blocks, and what fills the record of twenty in which it may begin
with the last: `tar` writes whole records."""
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100x8s64x8s8s167x")
_CHUNK = 1 << 20
_WINDOW = 1 << 25
_RATIO_FROM = 64 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a bundle may hold: bytes in all, bytes a file of the session, files.

    `ratio` is how many times smaller than its contents it may be, beyond the first 64 MB.
    """

    total: int = 16 << 30
    blob: int = 512 << 20
    files: int = 2_000_000
    manifest: int = 512 << 20
    ratio: int = 2000


# --- writing -----------------------------------------------------------------------------


class Packer:
    """Writes files one after another."""

    def __init__(self, file: BinaryIO) -> None:
        compressor = zstandard.ZstdCompressor(level=6, write_checksum=True)
        self._out = compressor.stream_writer(file, closefd=False)

    def add(self, name: str, size: int, chunks: Iterator[bytes]) -> None:
        """Write one file; `chunks` are `size` bytes in all."""
        self._out.write(_header(name, size))
        written = 0
        for chunk in chunks:
            self._out.write(chunk)
            written += len(chunk)
        if written != size:
            raise Damaged(f"{name} has {written} bytes, not {size}: it changed meanwhile")
        self._out.write(bytes(-size % _BLOCK))

    def close(self) -> None:
        """Write the end."""
        self._out.write(bytes(2 * _BLOCK))
        self._out.flush(zstandard.FLUSH_FRAME)


def _header(name: str, size: int) -> bytes:
    """A header of the tar format, with no owner and no time: equal sessions, equal bundles."""
    numbers = (b"0000600", b"0000000", b"0000000", b"%011o" % size, b"00000000000")
    head = _HEADER.pack(name.encode(), *numbers, b" " * 8, b"0", b"ustar\x0000", *[b"0000000"] * 2)
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


# --- reading -----------------------------------------------------------------------------


class Unpacker:
    """Reads files one after another; `Damaged` or `Unsafe` for whatever is not as written."""

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        self._source = file
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        self._stream = decompressor.stream_reader(file, 1 << 16, read_across_frames=True)
        self._limits = limits
        self._total = 0
        self._names: set[str] = set()

    def next(self, name: str, size: int | None, most: int) -> Member:
        """The next file, which must be this one; of this size, or of at most so many bytes."""
        head = self._exactly(_BLOCK)
        if not any(head):
            raise Damaged(f"not a whole bundle: {name} is missing")
        found, length = self._parsed(head)
        if found != name:
            raise self._unexpected(found, name)
        self._names.add(found)
        if length > most or (size is not None and length != size):
            raise Damaged(
                f"{name} has {length} bytes, and may have {most if size is None else size}"
            )
        return Member(self, name, length)

    def end(self) -> None:
        """Nothing may follow but the mark of the end, and what fills a record of a tape."""
        rest = self._exactly(2 * _BLOCK)
        while len(rest) <= _LONGEST_END and (more := self._some(_BLOCK)):
            rest += more
        if any(rest) or len(rest) > _LONGEST_END:
            raise Damaged("the bundle holds more than its manifest lists")

    def _parsed(self, head: bytes) -> tuple[str, int]:
        plain = head[:148] + b" " * 8 + head[156:]
        try:
            right = int(head[148:156].strip(b"\0 "), 8) == sum(plain)
            size = int(head[124:136].strip(b"\0 ") or b"0", 8)
            name = head[:100].rstrip(b"\0").decode("ascii")
        except ValueError:
            raise Damaged("not a bundle: a file in it has no header") from None
        if not right or head[257:262] != b"ustar":
            raise Damaged("not a bundle: the header of a file in it is damaged")
        if head[156:157] not in (b"0", b"\0") or any(head[157:257]):
            raise Unsafe(f"the bundle holds `{_shown(name)}`, which is a link or no plain file")
        if any(head[345:500]) or name.startswith("/") or ".." in name.split("/"):
            raise Unsafe(f"the bundle holds a file with the name `{_shown(name)}`")
        return name, size

    def _unexpected(self, found: str, name: str) -> Damaged:
        if found in self._names:
            return Damaged(f"the bundle holds `{_shown(found)}` twice")
        return Damaged(f"the bundle holds `{_shown(found)}` where {name} belongs")

    def _exactly(self, size: int) -> bytes:
        data = self._some(size)
        if len(data) < size:
            raise Damaged("the bundle ends too early: it was cut short on its way")
        return data

    def _some(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        parts: list[bytes] = []
        while size:
            try:
                data = self._stream.read(min(size, _CHUNK))
            except zstandard.ZstdError as error:
                raise Damaged(f"not a bundle, or a damaged one: {error}") from error
            if not data:
                break
            parts.append(data)
            size -= len(data)
            self._count(len(data))
        return b"".join(parts)

    def _count(self, size: int) -> None:
        self._total += size
        if self._total > self._limits.total:
            raise Unsafe(f"the bundle holds over {self._limits.total >> 20} MB")
        spare = self._total - _RATIO_FROM
        if spare > 0 and spare > self._source.tell() * self._limits.ratio:
            raise Unsafe(
                f"the bundle unpacks to over {self._limits.ratio} times its size: no session does"
            )


class Member:
    """One file of a bundle, read once, from its beginning to its end."""

    def __init__(self, unpacker: Unpacker, name: str, size: int) -> None:
        self._unpacker = unpacker
        self._left = size
        self._sum = hashlib.sha256()
        self.name = name
        self.size = size

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, in pieces."""
        while self._left:
            data = self._unpacker._exactly(min(self._left, _CHUNK))
            self._left -= len(data)
            self._sum.update(data)
            yield data
        if any(self._unpacker._exactly(-self.size % _BLOCK)):
            raise Damaged(f"{self.name} is followed by bytes that belong to nothing")

    def content(self, digest: str | None = None) -> bytes:
        """All of it, checked against its digest."""
        content = b"".join(self.chunks())
        self.check(digest)
        return content

    def lines(self, digest: str, longest: int) -> Iterator[bytes]:
        """Its lines without their ends; the digest is checked behind the last."""
        held: list[bytes] = []
        length = 0
        for chunk in self.chunks():
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                yield b"".join((*held, line))
                held, length = [], 0
            held.append(rest)
            length += len(rest)
            if length > longest:
                raise Damaged(f"{self.name} has a line of over {longest} bytes")
        if any(held):
            raise Damaged(f"{self.name} does not end with a whole line")
        self.check(digest)

    def check(self, digest: str | None) -> None:
        """Raise if what was read has another digest."""
        if digest is not None and self._sum.hexdigest() != digest:
            raise Damaged(f"{self.name} is not what was written: its SHA-256 is another")


def _shown(name: str) -> str:
    return name.encode("unicode_escape").decode("ascii")
