"""The index: what a workspace looked like at the last scan. A cache, rebuildable.

For each file it keeps the numbers that change when the file does, and the digest that goes
with them; for each directory its own numbers and its tree's digest. It belongs to one blob
store: if that one collected garbage since, or is another, no digest is believed until the
store says that it has it. What it knows about each directory is in `known`.

    file = "BTI1" crc32 [version, blobs, epoch, device, …]     msgpack

Directories are saved in a row, each with the number of its parent, which comes before it:
they may lie deeper than a decoder nests. What is known of them is saved column by column,
as ten thousand lists of ten things take three times as long as ten lists of ten thousand.

What is not captured has *marks*, so that it is known again under another name: an opaque or
left-out thing has an identity, its inode and time of birth. An inode alone is given again at once,
so without a time of birth a listing must agree. What moved is marked in trees by its reason, which
names where it first was; the identity never is in a tree.
"""

from __future__ import annotations

import gc
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ..._startup.hashing import sha256
from ..beneath import Directories, descriptor
from ..trees import MOVED_FROM, Entry, control_in
from .ignore import IGNORE_FILES
from .known import KnownDirectory, PackedFiles
from .roots import identity_at

# --- marks -----------------------------------------------------------------------------


_LONGEST = 60_000
_NUMBERED = rb" \(\d+\)\Z"


class Mark(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One thing: its identity, where it first was, and why it was not captured there.

    `listing` is what is in it, kept only where its birth is not known. `control` says that it
    was seen at a name of version control. `number` distinguishes it from others that first were
    there, too: two or more, if there was another.
    """

    inode: int
    born: int
    listing: bytes
    origin: bytes
    reason: bytes
    control: bool = False
    number: int = 0

    def is_same(self, other: Mark) -> bool:
        """Whether both are one thing; False in doubt."""
        if self.inode != other.inode:
            return False
        if self.born and other.born:
            return self.born == other.born
        return self.listing != b"" and self.listing == other.listing

    def reason_at(self, path: bytes) -> bytes:
        """The reason a tree gives for it at a path."""
        if path == self.origin or len(self.origin) > _LONGEST:
            return self.reason
        return (
            self.reason
            + MOVED_FROM
            + self.origin
            + (b" (%d)" % self.number if self.number else b"")
        )


Marks = dict[bytes, dict[bytes, Mark]]
"""What is not captured, by directory and name."""

Sighting = tuple[bytes, Mark]
"""A thing, and the path at which it was seen."""


def plain(reason: bytes) -> bytes:
    """A reason without where the thing came from."""
    return reason.partition(MOVED_FROM)[0]


def thing_at(path: bytes, entry: Entry) -> bytes:
    """Which thing an entry is for: where it first was, and its number if it was not alone."""
    return entry.value.partition(MOVED_FROM)[2] or path


def origin_of(thing: bytes) -> bytes:
    """Where a thing first was."""
    return re.sub(_NUMBERED, b"", thing)


class Sightings:
    """The things known before a scan, and whether what it meets is one of them."""

    def __init__(self, marks: Mapping[bytes, Mapping[bytes, Mark]], root: int) -> None:
        self._root = root
        self._known: dict[int, list[Sighting]] = {}
        self._numbers: dict[bytes, int] = {}
        for where, names in marks.items():
            for name, mark in names.items():
                path = where + b"/" + name if where else name
                self._known.setdefault(mark.inode, []).append((path, mark))
                highest = self._numbers.get(mark.origin, 1)
                self._numbers[mark.origin] = max(highest, mark.number)

    def may_be(self, inode: int) -> bool:
        """Whether a thing of this number was known."""
        return inode in self._known

    def known(self, fd: int, name: bytes, path: bytes) -> Sighting | None:
        """The thing at a name of an open directory, if it was known here or is gone elsewhere.

        With it goes the path where it was seen last.
        """
        seen = _seen(fd, name, path, b"")
        return None if seen is None else self._recognized(seen, path)

    def mark(self, fd: int, name: bytes, path: bytes, reason: bytes) -> Mark | None:
        """The thing at a name, which is not captured; None if it is gone."""
        seen = _seen(fd, name, path, reason)
        old = None if seen is None else self._recognized(seen, path)
        if seen is None:
            return None
        if old is None:
            return replace(seen, number=self._next(path))
        first = old[1]
        why = reason if path == first.origin else first.reason
        return replace(
            first, listing=seen.listing, reason=why, control=seen.control or first.control
        )

    def _next(self, origin: bytes) -> int:
        """A number for a new thing; none for the first of a place."""
        if origin not in self._numbers:
            self._numbers[origin] = 1
            return 0
        self._numbers[origin] += 1
        return self._numbers[origin]

    def _recognized(self, seen: Mark, path: bytes) -> Sighting | None:
        for where, mark in self._known.get(seen.inode, ()):
            if mark.is_same(seen) and (where == path or self._is_gone(where, seen.inode)):
                return where, mark
        return None

    def _is_gone(self, path: bytes, inode: int) -> bool:
        """Whether a thing has left its path; a second name of a file does not mean that."""
        try:
            with Directories(self._root) as directories:
                parent, name = directories.parent(path)
                return os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino != inode
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False


def _seen(fd: int, name: bytes, path: bytes, reason: bytes) -> Mark | None:
    found = identity_at(fd, name)
    if found is None:
        return None
    listing = b"" if found.born else _listing(fd, name)
    return Mark(found.inode, found.born, listing, path, reason, control_in(path) is not None)


def _listing(fd: int, name: bytes) -> bytes:
    """What distinguishes a thing from another with its number; empty if nothing does."""
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            with descriptor(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd) as below:
                names: Iterable[str] = sorted(os.listdir(below))
            text = "/".join(names)
        else:
            text = f"{status.st_size} {status.st_mtime_ns}" if status.st_size else ""
    except OSError:
        return b""
    return sha256(os.fsencode(text)).digest() if text else b""


# --- the index --------------------------------------------------------------------------


MAGIC = b"BTI1"
VERSION = 3


class _Saved(msgspec.Struct, array_like=True, gc=False):
    """`opaque` has only the directories with something opaque in them, by number."""

    version: int
    blobs: str
    epoch: int
    device: int
    parents: list[int]
    names: list[bytes]
    modes: list[int]
    mtimes: list[int]
    ctimes: list[int]
    inodes: list[int]
    racy: list[bool]
    digests: list[bytes]
    files: list[PackedFiles]
    opaque: dict[int, dict[bytes, bytes]]
    marks: Marks | None = None
    rules: dict[bytes, dict[bytes, bytes]] = {}
    pending: list[bytes] = []
    adopted: bool = False
    looked: int = 0
    strangers: dict[int, int] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Saved).decode


class Index:
    """The last known state of one workspace.

    `doubtful`: it may rely on blobs that the store does not have. `changed`: it knows more
    than what was saved last. `looked` is when the last whole scan began, `strangers` are the
    inodes and births of files that came from where nothing is captured: see `verdicts.Arrivals`.
    """

    def __init__(self, blobs: str, epoch: int) -> None:
        self.blobs = blobs
        self.epoch = epoch
        self.device = 0
        self.root: KnownDirectory | None = None
        self.marks: Marks = {}
        self.rules: dict[bytes, dict[bytes, bytes]] = {}
        self.pending: set[bytes] = set()
        self.adopted = False
        self.looked = 0
        self.strangers: dict[int, int] = {}
        self.doubtful = False
        self.changed = False

    @classmethod
    def load(cls, path: Path, blobs: str, epoch: int) -> Index:
        """The saved index, or an empty one where there is none that can be read."""
        index = cls(blobs, epoch)
        try:
            data = path.read_bytes()
        except OSError:
            return index
        saved = _read(data)
        if saved is not None:
            index.root, index.device = _nested(saved), saved.device
            index._take_marks(saved.marks)
            index._take_rules(saved)
            index.looked, index.strangers = saved.looked, saved.strangers
            index.doubtful = (saved.blobs, saved.epoch) != (blobs, epoch)
        return index

    def save(self, path: Path) -> None:
        """Replace the saved index. Not synced: a lost cache costs one scan."""
        if self.root is None:
            return
        # No store counts below zero: what is doubtful now is doubtful when it is loaded.
        epoch = -1 if self.doubtful else self.epoch
        saved = _saved(self.root, self.blobs, epoch, self.device)
        saved.marks, saved.rules, saved.adopted = self.marks, self.rules, self.adopted
        saved.pending = sorted(self.pending)
        saved.looked, saved.strangers = self.looked, self.strangers
        body = _encode(saved)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb", buffering=0) as file:
                for part in (MAGIC + zlib.crc32(body).to_bytes(4, "big"), body):
                    view = memoryview(part)
                    while view:
                        view = view[file.write(view) :]
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self.changed = False

    def _take_marks(self, marks: Marks | None) -> None:
        """Believe the saved marks; where none were made yet, look again at what needs them."""
        self.marks = marks or {}
        if marks is None:
            for directory in self.directories():
                directory.racy = directory.racy or bool(directory.opaque) or directory.skips()

    def _take_rules(self, saved: _Saved) -> None:
        """Believe the saved rules; where none were kept yet, look again at those there are."""
        self.rules, self.pending = saved.rules, set(saved.pending)
        self.adopted = saved.adopted
        if not saved.adopted:
            for directory in self.directories():
                has_rules = any(directory.has_file(name) for name in IGNORE_FILES)
                directory.racy = directory.racy or has_rules

    def known_at(self, path: bytes) -> KnownDirectory | None:
        """What is known about the directory at a path."""
        known = self.root
        for name in path.split(b"/") if path else ():
            known = known.directories.get(name) if known is not None else None
        return known

    def was_control(self, path: bytes) -> bool:
        """Whether what is not captured at a path was once seen at a name of version control."""
        where, _, name = path.rpartition(b"/")
        mark = self.marks.get(where, {}).get(name)
        return mark is not None and mark.control

    def prune(self) -> None:
        """Forget marks and rules in directories that are not there any more."""
        for where in [*self.marks, *self.rules]:
            if self.known_at(where) is None:
                self.marks.pop(where, None)
                self.rules.pop(where, None)
                self.changed = True

    def adopt(self) -> None:
        """Let every directory be listed whose rules changed since they were in force."""
        for where in self.pending:
            known = self.known_at(where)
            if known is not None:
                known.racy = True

    def at(self, path: bytes) -> bytes | None:
        """The content of the file at a path; empty if none is known, None for a directory."""
        above, _, name = path.rpartition(b"/")
        known = self.known_at(above)
        if known is None:
            return b""
        if name in known.directories:
            return None
        return known.files[name].value if known.has_file(name) else b""

    def digests(self) -> Iterator[bytes]:
        """Every blob the index relies on."""
        for directory in self.directories():
            if directory.digest:
                yield directory.digest
            yield from filter(None, directory.contents())

    def directories(self) -> Iterator[KnownDirectory]:
        """Every known directory, parents before children."""
        todo = [self.root] if self.root else []
        while todo:
            directory = todo.pop()
            yield directory
            todo.extend(directory.directories.values())

    def doubt(self, missing: Collection[bytes]) -> None:
        """Look again at everything whose blob is not in the store."""
        marked: set[int] = set()
        for directory in reversed(list(self.directories())):
            lost = not directory.digest or directory.digest in missing
            if any(not value or value in missing for value in directory.contents()):
                lost = True
                for file in directory.files.values():
                    if file.kind == "file" and (not file.value or file.value in missing):
                        file.value, file.racy = b"", True
            if lost or not marked.isdisjoint(map(id, directory.directories.values())):
                marked.add(id(directory))
                directory.digest = b""
        self.changed = self.changed or bool(marked)
        self.doubtful = False

    def distrust(self) -> None:
        """Believe no number: the files are on another device than they were."""
        for directory in self.directories():
            directory.racy = True
            for file in directory.files.values():
                file.racy = True


def _read(data: bytes) -> _Saved | None:
    """What a saved index says; None if it is not whole, or from another version."""
    body = memoryview(data)[8:]
    if data[:8] != MAGIC + zlib.crc32(body).to_bytes(4, "big"):
        return None
    # Nothing here is garbage, and a collection in between would look at all of it.
    enabled = gc.isenabled()
    gc.disable()
    try:
        saved = _decode(body)
    except (msgspec.MsgspecError, ValueError):
        return None
    finally:
        if enabled:
            gc.enable()
    return saved if saved.version == VERSION and saved.parents else None


def _saved(root: KnownDirectory, blobs: str, epoch: int, device: int) -> _Saved:
    parents, names, known = [-1], [b""], [root]
    for at, directory in enumerate(known):
        below = directory.directories
        if below:
            parents += [at] * len(below)
            names += below
            known += below.values()
    return _Saved(
        VERSION, blobs, epoch, device, parents, names,
        [d.mode for d in known], [d.mtime for d in known], [d.ctime for d in known],
        [d.inode for d in known], [d.racy for d in known], [d.digest for d in known],
        [d.packed() for d in known], {n: d.opaque for n, d in enumerate(known) if d.opaque},
    )  # fmt: skip


def _nested(saved: _Saved) -> KnownDirectory:
    known = list(
        map(KnownDirectory, saved.modes, saved.mtimes, saved.ctimes, saved.inodes, saved.racy,
            saved.digests, saved.files)
    )  # fmt: skip
    rows = zip(saved.parents, saved.names, known, strict=True)
    next(rows)
    for parent, name, directory in rows:
        known[parent].directories[name] = directory
    for at, opaque in saved.opaque.items():
        known[at].opaque = opaque
    return known[0]
