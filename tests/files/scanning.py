"""What the tests of scans share: a directory, an index, and a blob store to scan into."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from backtrail.files.contents.blobs import MemoryBlobs
from backtrail.files.trees import Entry, flatten
from backtrail.files.workspace.index import Index
from backtrail.files.workspace.known import not_captured
from backtrail.files.workspace.reader import Capture
from backtrail.files.workspace.scan import Scanner
from backtrail.files.workspace.verdicts import Limits

NOBODY = 65534


@dataclass
class Site:
    """A directory under test. Every scan is stored, and its index saved and loaded."""

    root: Path
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    limits: Limits = field(default_factory=Limits)
    writes: int = 0
    index: Index = field(init=False)

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)
        self.index = Index(self.blobs.id, self.blobs.epoch())

    def __truediv__(self, name: str) -> Path:
        return self.root / name

    @contextmanager
    def opened(self) -> Iterator[int]:
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def scan(
        self,
        paths: Collection[bytes] | None = None,
        *,
        index: Index | None = None,
        weak: bool = False,
    ) -> bytes:
        """The digest of what is there; of what a user without privileges sees, if `weak`."""
        index = index or self.index
        with self.opened() as fd, unprivileged() if weak else nullcontext():
            capture = Capture(self.blobs)
            scanner = Scanner(index, capture, self.limits)
            digest = scanner.scan(fd, paths)
        self.writes = 0
        if capture.pending:
            capture.finish()
            self.writes = capture.written
        return digest

    def fresh(self) -> bytes:
        """The digest that a scan without an index gives."""
        return self.scan(index=Index(self.blobs.id, self.blobs.epoch()))

    def reload(self) -> None:
        """Go on with the index as it comes back from the disk."""
        path = self.root.with_name(self.root.name + ".index")
        self.index.save(path)
        self.index = Index.load(path, self.blobs.id, self.blobs.epoch())

    def paths(self, digest: bytes | None = None) -> dict[bytes, Entry]:
        """Everything in a tree by its path; in the present one if none is given."""
        return dict(flatten(self.blobs.get, digest or self.scan()))

    def reasons(self) -> dict[bytes, bytes]:
        """What the last scan did not capture, and why."""
        assert self.index.root is not None
        return {path: reason for path, reason, _ in not_captured(self.index.root)}


def truth(root: Path) -> dict[bytes, tuple[str, int, bytes]]:
    """What is in a directory, found out the plain way: kind, mode, and content or text."""
    found: dict[bytes, tuple[str, int, bytes]] = {}
    todo = [(os.fsencode(root), b"")]
    while todo:
        place, prefix = todo.pop()
        for name in os.listdir(place):
            path = os.path.join(place, name)
            status = os.lstat(path)
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                found[prefix + name] = ("link", 0o777, os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                found[prefix + name] = ("directory", mode, b"")
                todo.append((path, prefix + name + b"/"))
            else:
                with open(path, "rb") as file:
                    found[prefix + name] = ("file", mode, sha256(file.read()).digest())
    return found


def plainly(tree: dict[bytes, Entry]) -> dict[bytes, tuple[str, int, bytes]]:
    """A tree in the form of `truth`."""
    return {
        path: (entry.kind, entry.mode, b"" if entry.kind == "directory" else entry.value)
        for path, entry in tree.items()
    }


@contextmanager
def unprivileged() -> Iterator[None]:
    """Be a user that permissions stop: root is stopped by none."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def settle(site: Site) -> bytes:
    """Scan until nothing is racy: a change after this must show in the numbers."""
    time.sleep(site.limits.granularity / 1e9 + 0.01)
    return site.scan()
