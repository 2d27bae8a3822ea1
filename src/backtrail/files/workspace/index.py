"""The index: what a workspace looked like at the last scan. A cache, rebuildable.

For each file it keeps the numbers that change when the file does, and the digest that goes
with them; for each directory its own numbers and its tree's digest. It belongs to one blob
store: if that one collected garbage since, or is another, no digest is believed until the
store says that it has it. What it knows about each directory is in `known`.

    file = "BTI1" crc32 [version, blobs, epoch, device, …]     msgpack

Directories are saved in a row, each with the number of its parent, which comes before it:
they may lie deeper than a decoder nests. What is known of them is saved column by column,
as ten thousand lists of ten things take three times as long as ten lists of ten thousand.
"""

from __future__ import annotations

import gc
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from .ignore import IGNORE_FILES
from .known import KnownDirectory, PackedFiles
from .marks import Marks
from .roots import birth_at

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
    inodes and births of files that came from where nothing is captured: see `Arrivals`.
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


# --- arrivals ----------------------------------------------------------------------------


_MOST = 10_000
"""How many strangers are remembered; the oldest are forgotten first."""


class Arrivals:
    """What came and what left in one scan: so captured files are found that no call made.

    What is new in a workspace and older than the last look was moved there. If no captured file
    left with that number, it comes from an opaque folder, whose things are not known one by one, or
    from outside. It is captured like others; but a way back must not leave it in the store alone,
    so it is noted as a stranger. Where the system has no times of birth, none is.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._left: set[int] = set()
        self._came: dict[int, int] = {}

    def left(self, inode: int) -> None:
        """A captured file is not where it was."""
        self._left.add(inode)

    def left_all(self, known: KnownDirectory | None) -> None:
        """A captured directory is not where it was, with all in it."""
        todo = [known] if known is not None and self._index.looked else []
        while todo:
            one = todo.pop()
            self._left.add(one.inode)
            self._left.update(file.inode for file in one.files.values())
            todo += one.directories.values()

    def came(self, fd: int, name: bytes, status: os.stat_result) -> None:
        """A file is new at a name of an open directory.

        One with a second name is there, too, when this one goes.
        """
        born = birth_at(fd, name) if status.st_nlink == 1 else 0
        if 0 < born < self._index.looked:
            self._came[status.st_ino] = born

    def settle(self, *, partly: bool) -> None:
        """Note what came, and left no captured place.

        Where only some paths were looked at, what left is still known at its old place.
        """
        if partly and self._came:
            files = [file for one in self._index.directories() for file in one.files.values()]
            known = Counter(file.inode for file in files)
            self._left.update(inode for inode in self._came if known[inode] > 1)
        strangers = self._index.strangers
        for inode, born in self._came.items():
            if inode not in self._left and strangers.get(inode) != born:
                strangers[inode] = born
                self._index.changed = True
        while len(strangers) > _MOST:
            del strangers[next(iter(strangers))]
