"""The index: what a workspace looked like at the last scan. A cache, rebuildable.

For each file it keeps the numbers that change when the file does, and the digest that goes
with them; for each directory its own numbers and its tree's digest. It belongs to one blob
store: if that one collected garbage since, or is another, no digest is believed until the
store says that it has it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from .trees import Entry, Kind, Tree

VERSION = 1


class KnownFile(msgspec.Struct, array_like=True, gc=False):
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
        return Entry(self.kind, self.mode, self.size, self.value)


class KnownDirectory(msgspec.Struct, array_like=True):
    """A directory as last seen; `digest` is empty while it has to be computed."""

    mode: int
    mtime: int
    ctime: int
    inode: int
    racy: bool = True
    digest: bytes = b""
    files: dict[bytes, KnownFile] = {}
    directories: dict[bytes, KnownDirectory] = {}
    opaque: dict[bytes, bytes] = {}

    def tree(self) -> Tree:
        """The directory as a tree; the digests below must be there."""
        tree: Tree = {name: file.entry() for name, file in self.files.items()}
        for name, directory in self.directories.items():
            tree[name] = Entry("directory", directory.mode, 0, directory.digest)
        for name, reason in self.opaque.items():
            tree[name] = Entry("opaque", 0, 0, reason)
        return tree


class _Saved(msgspec.Struct, array_like=True):
    version: int
    blobs: str
    epoch: int
    device: int
    root: KnownDirectory


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Saved).decode


class Index:
    """The last known state of one workspace."""

    def __init__(self, blobs: str, epoch: int) -> None:
        self.blobs = blobs
        self.epoch = epoch
        self.device = 0
        self.root: KnownDirectory | None = None
        self.doubtful = False

    @classmethod
    def load(cls, path: Path, blobs: str, epoch: int) -> Index:
        """The saved index, or an empty one where there is none that can be read."""
        index = cls(blobs, epoch)
        try:
            saved = _decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError):
            return index
        if saved.version == VERSION:
            index.root, index.device = saved.root, saved.device
            index.doubtful = (saved.blobs, saved.epoch) != (blobs, epoch)
        return index

    def save(self, path: Path) -> None:
        """Replace the saved index. Not synced: a lost cache costs one scan."""
        if self.root is None:
            return
        saved = _Saved(VERSION, self.blobs, self.epoch, self.device, self.root)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(_encode(saved))
        temporary.rename(path)

    def digests(self) -> Iterator[bytes]:
        """Every blob the index relies on."""
        todo = [self.root] if self.root else []
        while todo:
            directory = todo.pop()
            if directory.digest:
                yield directory.digest
            yield from (file.value for file in directory.files.values() if file.kind == "file")
            todo.extend(directory.directories.values())

    def doubt(self, missing: Collection[bytes]) -> None:
        """Look again at everything whose blob is not in the store."""
        if self.root is not None:
            _doubt(self.root, missing)
        self.doubtful = False


def _doubt(directory: KnownDirectory, missing: Collection[bytes]) -> bool:
    """Mark what relies on missing blobs, and every directory above it."""
    marked = directory.digest in missing or not directory.digest
    for file in directory.files.values():
        if file.kind == "file" and file.value in missing:
            file.racy = marked = True
    for child in directory.directories.values():
        marked = _doubt(child, missing) or marked
    if marked:
        directory.digest = b""
    return marked
