"""What is known about a directory: its numbers, its files, and what goes with them.

Most directories are as they were, and no reader asks more about their files than that. So the
files of a directory are kept packed, as they are saved: their names in one string, their
numbers in another. They become objects when they are to be seen or changed, and are packed
again by the next scan that finds them unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter
from typing import TypeVar

import msgspec

from ...errors import Damaged
from ..beneath import DIRECTORY
from ..trees import NOTHING, Entry, Kind, Made
from .ignore import LEFT_OUT_FILE, OUR_NAME, OUR_STORE

_MOST = 2**64 - 1

T = TypeVar("T")

Numbers = tuple[int, int, int, int]
"""What changes when a file does: both times, inode, size."""

_numbers = attrgetter("st_ctime_ns", "st_mtime_ns", "st_ino", "st_size")


class KnownFile(msgspec.Struct, gc=False):
    """A file, link or skipped thing as last seen. `racy`: look again, whatever the numbers."""

    kind: Kind
    mode: int
    size: int
    mtime: int
    ctime: int
    inode: int
    value: bytes
    racy: bool = False

    def entry(self) -> Entry:
        """What a tree says about it."""
        if self.kind == "link":
            return Entry("link", 0o777, len(self.value), self.value)
        return Entry(self.kind, self.mode, self.size, self.value)

    def is_as(self, now: os.stat_result) -> bool:
        """Whether its numbers are what they were."""
        return (self.ctime, self.mtime, self.inode, self.size) == _numbers(now)


class Fact(msgspec.Struct, array_like=True, gc=False):
    """What the numbers of a file do not say."""

    kind: Kind
    mode: int
    value: bytes
    racy: bool


_encode = msgspec.msgpack.Encoder().encode
_decode_numbers = msgspec.msgpack.Decoder(list[Numbers]).decode
_decode_facts = msgspec.msgpack.Decoder(list[Fact]).decode


class IndexDamaged(Damaged):
    """The index cannot be what was saved: it has to be made anew."""


def _decoded(decode: Callable[[bytes], list[T]], packed: bytes) -> list[T]:
    try:
        return decode(packed)
    except (msgspec.MsgspecError, ValueError) as error:
        raise IndexDamaged(f"the index is damaged: {error}") from error


class PackedFiles(msgspec.Struct, array_like=True, gc=False):
    """The files of a directory as they are saved; names are separated by slashes.

    `steady`: none of them is racy.
    """

    names: bytes = b""
    numbers: bytes = _encode([])
    facts: bytes = _encode([])
    steady: bool = True

    @classmethod
    def of(cls, files: dict[bytes, KnownFile]) -> PackedFiles:
        """Files, packed."""
        known = files.values()
        facts = [Fact(file.kind, file.mode, file.value, file.racy) for file in known]
        numbers = [(file.ctime, file.mtime, file.inode, file.size) for file in known]
        steady = not any(file.racy for file in known)
        return cls(b"/".join(files), _encoded(numbers), _encode(facts), steady)

    def unpacked(self) -> dict[bytes, KnownFile]:
        """What was packed."""
        rows = zip(self.split(), self._unpacked_numbers(), self.look(), strict=True)
        return {
            name: KnownFile(fact.kind, fact.mode, size, mtime, ctime, inode, fact.value, fact.racy)
            for name, (ctime, mtime, inode, size), fact in rows
        }

    def _unpacked_numbers(self) -> list[Numbers]:
        numbers = _decoded(_decode_numbers, self.numbers)
        if len(numbers) != len(self):
            raise IndexDamaged("the index describes other files than it names")
        return numbers

    def __len__(self) -> int:
        return self.names.count(b"/") + 1 if self.names else 0

    def split(self) -> Iterable[bytes]:
        """The names."""
        return self.names.split(b"/") if self.names else ()

    def look(self) -> Iterable[Fact]:
        """What is known besides numbers, in the order of the names."""
        facts = _decoded(_decode_facts, self.facts)
        if len(facts) != len(self):
            raise IndexDamaged("the index describes other files than it names")
        return facts

    def stirred_in(self, fd: int) -> list[bytes]:
        """The names that are not in an open directory as they were.

        The innermost loop of every scan, which finds most directories as they were.
        """
        look = os.stat
        try:
            now = [_numbers(look(name, dir_fd=fd, follow_symlinks=False)) for name in self.split()]
            if self.steady and _encode(now) == self.numbers:
                return []
        except (OSError, OverflowError, ValueError):
            # Something is gone, older than numbers go, or no name: a closer look finds out.
            return list(self.split())
        rows = zip(self.split(), now, self._unpacked_numbers(), self.look(), strict=True)
        return [name for name, new, old, fact in rows if fact.racy or new != old]


def _encoded(numbers: list[Numbers]) -> bytes:
    try:
        return _encode(numbers)
    except OverflowError:
        # A time that no decoder takes: such a file is looked at more closely each time.
        return _encode([[max(0, min(number, _MOST)) for number in row] for row in numbers])


class KnownDirectory(msgspec.Struct, gc=False):
    """A directory as last seen; `digest` is empty while it has to be computed.

    A name in both `opaque` and `directories` was captured and cannot be entered now: it is
    opaque, and what is known about it waits for the day it can. `made` is the tree of
    `digest`, kept where one name after the other changes.
    """

    mode: int = 0
    mtime: int = 0
    ctime: int = 0
    inode: int = 0
    racy: bool = True
    digest: bytes = b""
    held: dict[bytes, KnownFile] | PackedFiles = {}
    directories: dict[bytes, KnownDirectory] = {}
    opaque: dict[bytes, bytes] = {}
    made: Made = NOTHING

    @property
    def files(self) -> dict[bytes, KnownFile]:
        """The files in it, to be looked at and changed."""
        held = self.held
        if not isinstance(held, dict):
            held = self.held = held.unpacked()
        return held

    @files.setter
    def files(self, files: dict[bytes, KnownFile]) -> None:
        self.held = files

    def packed(self) -> PackedFiles:
        """The files in it. A dictionary that `files` gave before is worthless now."""
        held = self.held
        if isinstance(held, dict):
            held = self.held = PackedFiles.of(held)
        return held

    def is_as(self, now: os.stat_result) -> bool:
        """Whether its own numbers are what they were, so that the same names are in it."""
        return (
            not self.racy
            and self.ctime == now.st_ctime_ns
            and self.mtime == now.st_mtime_ns
            and self.inode == now.st_ino
        )

    def has_file(self, name: bytes) -> bool:
        """Whether a file of this name is in it."""
        held = self.held
        return name in (held if isinstance(held, dict) else held.split())

    def contents(self) -> list[bytes]:
        """The digests of the files in it, an empty one where a file has to be read again."""
        return [file.value for file in self._facts() if file.kind == "file"]

    def skips(self) -> bool:
        """Whether something in it is not kept."""
        return any(file.kind == "skipped" for file in self._facts())

    def _facts(self) -> Iterable[Fact | KnownFile]:
        held = self.held
        return held.values() if isinstance(held, dict) else held.look()

    def tree(self, names: Collection[bytes] | None = None) -> Made:
        """The directory as a tree; the digests below must be there.

        `names` are those that changed since it had its digest, None if that is not known.
        """
        before = self.made if self.digest else NOTHING
        if names is None or before is NOTHING:
            before = NOTHING
            names = {*self.files, *self.directories, *self.opaque}
        return before.changed({name: self._entry(name) for name in names})

    def _entry(self, name: bytes) -> Entry | None:
        """What the tree says about a name."""
        reason = self.opaque.get(name)
        directory = self.directories.get(name)
        # Our own logs and workbenches come and go; to a workspace they are not there.
        is_ours = reason in (OUR_STORE, OUR_NAME)
        if reason is not None and (not is_ours or directory is not None):
            is_file = reason.startswith(LEFT_OUT_FILE)
            return Entry("skipped" if is_file else "opaque", 0, 0, reason)
        if directory is not None:
            return Entry("directory", directory.mode, 0, directory.digest)
        file = self.files.get(name)
        return file.entry() if file is not None else None


def left_out(known: KnownDirectory) -> Iterator[tuple[bytes, bytes]]:
    """The names in a directory that are there and were never captured, with the reasons."""
    for name, reason in known.opaque.items():
        if name not in known.directories:
            yield name, reason
    if known.skips():
        for name, file in known.files.items():
            if file.kind == "skipped":
                yield name, file.value


def not_captured(known: KnownDirectory) -> Iterator[tuple[bytes, bytes, int]]:
    """What a tree does not hold: path, reason, size."""
    todo = [(b"", known)]
    while todo:
        above, directory = todo.pop()
        for name, reason in directory.opaque.items():
            yield above + name, reason, 0
        if directory.skips():
            for name, file in directory.files.items():
                if file.kind == "skipped":
                    yield above + name, file.value, file.size
        for name, child in directory.directories.items():
            if name not in directory.opaque:
                todo.append((above + name + b"/", child))


# --- a first look ------------------------------------------------------------------------


_DEPTH = 30


class Glance:
    """One look at the known directories of one device: which are as they were, with all in them.

    Most scans find nothing else, so it does as little as it can; the rest is left to the scan
    proper, which finds out what happened. `seen` is called with numbers of files, if given.
    """

    def __init__(self, device: int, seen: Callable[[int], None] | None) -> None:
        self._device = device
        self._seen = seen
        # By identity; as long as they are kept here, nothing else can have that.
        self._calm: dict[int, KnownDirectory] = {}
        self._stirred: dict[int, tuple[KnownDirectory, list[bytes]]] = {}

    def is_calm(self, known: KnownDirectory) -> bool:
        """Whether a directory that was looked at is as it was, and all below it."""
        return id(known) in self._calm

    def stirred(self, known: KnownDirectory, fd: int) -> list[bytes]:
        """The files of an open directory that are not as they were, if it has the same names."""
        looked = self._stirred.get(id(known))
        return looked[1] if looked is not None else known.packed().stirred_in(fd)

    def look(self, fd: int, known: KnownDirectory, depth: int = 0) -> bool:
        """Look at an open directory and all below it; whether nothing changed."""
        status = os.fstat(fd)
        calm = known.is_as(status) and status.st_dev == self._device
        if calm:
            stirred = known.packed().stirred_in(fd)
            self._stirred[id(known)] = known, stirred
            calm = not stirred and known.digest != b""
        if self._seen is not None:
            self._seen(len(known.packed()) if calm else 0)
        for name, child in known.directories.items():
            if depth == _DEPTH or name in known.opaque:
                # What could not be entered is tried again.
                calm = False
                continue
            try:
                below = os.open(name, DIRECTORY, dir_fd=fd)
            except OSError:
                calm = False
                continue
            try:
                calm = self.look(below, child, depth + 1) and calm
            finally:
                os.close(below)
        if calm:
            self._calm[id(known)] = known
        return calm
