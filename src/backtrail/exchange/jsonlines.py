"""Reading a file of JSON lines that another program writes, perhaps right now.

Only whole lines are read, from a byte on, and every line is kept as it was: a line that is
no JSON object is a line all the same. The file is never locked and never changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..errors import InvalidData, NotFound, StoreFailed
from ..events import Json, encode_data
from .shapes import id_in, time_in

MOST = 48 << 20
"""Bytes of a line above which it is not looked into; its bytes are kept in pieces."""

_BLOCK = 1 << 20
_UNPACKED = 2 << 30


class Unreadable(StoreFailed):
    """A file of another program's that the system does not let us read."""


class Line(msgspec.Struct, frozen=True):
    """One line: where it is, its bytes, and the object it holds, or why it holds none.

    A torn line is the last one, without its end: it may yet be finished.
    """

    at: int
    end: int
    raw: bytes
    value: dict[str, Json] | None
    problem: str = ""
    torn: bool = False

    def get(self, name: str) -> Json:
        """A field; None where there is none."""
        return None if self.value is None else self.value.get(name)

    @property
    def ts(self) -> str | None:
        """The time that it states."""
        return time_in(self.value, "timestamp")

    @property
    def own_id(self) -> str | None:
        """The id that it states."""
        return id_in(self.value, "uuid")

    @property
    def place_id(self) -> str:
        """A name made of its place and its bytes; the same whenever it is read."""
        return f"line-{self.at}-{sha256(self.raw).hexdigest()[:16]}"

    @property
    def id(self) -> str:
        """Its own id, else the one made of its place."""
        return self.own_id or self.place_id


def as_line(at: int, end: int, raw: bytes) -> Line:
    """The line of these bytes, which end before `end`."""
    if len(raw) > MOST:
        return Line(at, end, raw, None, f"is {len(raw)} bytes long, over the limit of {MOST}")
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        return Line(at, end, raw, None, "is nested too deep")
    except (msgspec.MsgspecError, ValueError) as error:
        return Line(at, end, raw, None, f"is not JSON: {error}")
    if not isinstance(value, dict):
        return Line(at, end, raw, None, "is JSON, but no object")
    try:
        encode_data({"line": value})
    except InvalidData as error:
        return Line(at, end, raw, None, f"cannot be kept as JSON: {error}")
    return Line(at, end, raw, value)


def read_lines(path: Path, after: int = 0, *, final: bool = True) -> Iterator[Line]:
    """The lines from byte `after` on; empty ones are passed over.

    With `final`, a last line without its end counts too: the writer is done. It is torn
    unless it is a whole object. Without `final` it is left for the next time.
    """
    with _opened(path) as file:
        file.seek(after)
        at, rest = after, b""
        while block := _read(path, lambda: file.read(_BLOCK)):
            parts = (rest + block).split(b"\n")
            rest = parts.pop()
            for raw in parts:
                end = at + len(raw) + 1
                if raw.strip():
                    yield as_line(at, end, raw)
                at = end
            if len(rest) > _BLOCK:
                # A long line is read in one go: joining it block by block is quadratic.
                rest += _read(path, file.readline)
                if rest.endswith(b"\n"):
                    end = at + len(rest)
                    yield as_line(at, end, rest[:-1])
                    at, rest = end, b""
        if final and rest.strip():
            last = as_line(at, at + len(rest), rest)
            torn = Line(last.at, last.end, rest, None, "is torn: the file ends within it", True)
            yield last if last.value is not None else torn


def _read(path: Path, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}", errno=error.errno) from error


def _opened(path: Path, flags: int = 0) -> BinaryIO:
    """A regular file, open for reading; a pipe or device would keep us waiting."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}") from error
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot open {path}: {error}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InvalidData(f"{path} is not a file")
    return os.fdopen(fd, "rb")


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The file itself, or what a file that ends in `.zst` holds, for as long as it is needed."""
    if path.suffix != ".zst":
        yield path
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="backtrail-") as folder:
        plain = Path(folder, path.stem)
        with _opened(path) as packed, plain.open("wb") as file:
            _unpack(packed, file, path)
        yield plain


def _unpack(packed: BinaryIO, file: BinaryIO, path: Path) -> None:
    import zstandard

    try:
        # A larger window than any rollout needs is only asked for to do harm.
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(packed)
        total = 0
        while block := reader.read(_BLOCK):
            total += len(block)
            if total > _UNPACKED:
                raise InvalidData(f"{path} unpacks to over {_UNPACKED >> 30} GB: that is refused")
            file.write(block)
    except zstandard.ZstdError as error:
        raise InvalidData(f"{path} cannot be unpacked: {error}") from error
    except OSError as error:
        raise Unreadable(f"cannot unpack {path}: {error}", errno=error.errno) from error


def read_small(path: Path, most: int) -> bytes | None:
    """The bytes of a regular file that is no link; None if there is none, or it is longer."""
    try:
        with _opened(path, os.O_NOFOLLOW) as file:
            content = file.read(most + 1)
    except (InvalidData, NotFound, OSError):
        return None
    return content if len(content) <= most else None


def read_object(path: Path) -> dict[str, Json]:
    """The JSON object in a small file; empty if there is none."""
    content = read_small(path, 1 << 20)
    if content is None:
        return {}
    try:
        value = msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def size_of(path: Path) -> int | None:
    """How long a file is; None if there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
