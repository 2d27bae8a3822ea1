"""The scan: from a directory to a tree digest, reading only what changed.

Known directories are opened one from the other, never following a link. In each, the known
names are looked up; the directory is listed again only if its own numbers changed. A file
whose numbers changed is read, hashed, and looked at again for changes under the read.
Then the digests of changed directories are computed, from the leaves up.

Whatever was touched so short before the scan that a later change might not show in the
clock is *racy* and read again next time.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from .capture import Capture
from .ignore import FILE_LIMIT, RESERVED, Rules, is_heavy, opaque_name
from .index import Index, KnownDirectory, KnownFile
from .trees import encode_tree

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

GRANULARITY = 10_000_000
"""Nanoseconds within which two changes may carry one time: a tick of a slow kernel clock."""

Own = Callable[[os.stat_result], bool]
"""Whether something belongs to a store of ours, which is never captured."""


@dataclass(slots=True)
class Limits:
    """What a scan does not capture."""

    file_size: int = FILE_LIMIT
    own: Own = lambda status: False
    granularity: int = GRANULARITY


@dataclass(slots=True)
class Scanner:
    """One scan of one workspace. Updates the index; new blobs go to `capture`."""

    index: Index
    capture: Capture
    limits: Limits = field(default_factory=Limits)
    progress: Callable[[int], None] | None = None
    _start: int = 0
    _seen: int = 0

    def scan(self, root: int) -> bytes:
        """The digest of the tree below the open directory `root`."""
        self._start = time.time_ns() - self.limits.granularity
        status = os.fstat(root)
        known = self.index.root
        if known is None or self.index.device != status.st_dev:
            known = KnownDirectory(0, 0, 0, 0)
        self.index.device = status.st_dev
        self._directory(root, "", known, None, status)
        self.index.root = known
        self.capture.wait()
        return self._digest(known)

    def scan_paths(self, root: int, paths: Collection[bytes]) -> bytes:
        """The same, looking only at `paths`; the rest is taken to be as last seen."""
        known = self.index.root
        if known is None:
            return self.scan(root)
        self._start = time.time_ns() - self.limits.granularity
        for path in paths:
            self._path(root, known, path.split(b"/"))
        self.capture.wait()
        return self._digest(known)

    # --- directories ---------------------------------------------------------------------

    def _directory(
        self, fd: int, prefix: str, known: KnownDirectory, rules: Rules | None,
        status: os.stat_result,
    ) -> bool:  # fmt: skip
        """Bring `known` up to date; whether anything below changed."""
        changed = not known.digest
        if (
            known.racy
            or known.mtime != status.st_mtime_ns
            or known.ctime != status.st_ctime_ns
            or known.inode != status.st_ino
        ):
            changed = self._list(fd, prefix, known, rules, status) or changed
        else:
            changed = self._look(fd, known) or changed
            changed = self._descend(fd, prefix, known, rules) or changed
        if changed:
            known.digest = b""
        return changed

    def _look(self, fd: int, known: KnownDirectory) -> bool:
        """Compare the known files with what is there. The innermost loop of every scan."""
        changed: list[tuple[bytes, os.stat_result | None]] = []
        look = os.stat
        for name, file in known.files.items():
            try:
                now = look(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                changed.append((name, None))
                continue
            if (
                now.st_ctime_ns != file.ctime
                or now.st_mtime_ns != file.mtime
                or now.st_ino != file.inode
                or now.st_size != file.size
                or file.racy
            ):
                changed.append((name, now))
        self._seen += len(known.files)
        if not changed:
            return False
        return self._take(fd, known, changed)

    def _descend(self, fd: int, prefix: str, known: KnownDirectory, rules: Rules | None) -> bool:
        changed = False
        for name, child in list(known.directories.items()):
            try:
                below = os.open(name, DIRECTORY, dir_fd=fd)
            except OSError:
                # Gone or replaced since the directory was looked at: the next scan lists it.
                known.racy = True
                continue
            try:
                inner = f"{prefix}{os.fsdecode(name)}/"
                changed = self._directory(below, inner, child, rules, os.fstat(below)) or changed
            finally:
                os.close(below)
        return changed

    def _list(
        self, fd: int, prefix: str, known: KnownDirectory, rules: Rules | None,
        status: os.stat_result,
    ) -> bool:  # fmt: skip
        """List a directory that is new or changed."""
        known.mode = stat.S_IMODE(status.st_mode)
        known.mtime, known.ctime = status.st_mtime_ns, status.st_ctime_ns
        known.inode = status.st_ino
        known.racy = max(known.mtime, known.ctime) >= self._start
        names = {os.fsencode(name) for name in os.listdir(fd)}
        names = {name for name in names if not name.startswith(RESERVED)}
        rules = (rules or Rules()).inside(prefix, lambda name: _ignore_file(fd, name, names))
        files: list[tuple[bytes, os.stat_result | None]] = []
        before = (set(known.files), set(known.directories), dict(known.opaque))
        known.opaque = {}
        for name in names:
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                known.racy = True
                continue
            if stat.S_ISDIR(found.st_mode):
                self._enter(fd, prefix, name, names, known, rules, found, before[2])
            elif name in before[2] or self.limits.own(found) or name in (b".git",):
                # A pointer file of version control, or a file of our own store.
                known.opaque[name] = before[2].get(name, b"not ours to keep")
            else:
                files.append((name, found))
        for gone in before[0] - {name for name, _ in files}:
            del known.files[gone]
        for gone in before[1] - names | (before[1] & known.opaque.keys()):
            known.directories.pop(gone, None)
        for gone in before[1] & {name for name, _ in files}:
            known.directories.pop(gone, None)
        self._take(fd, known, files)
        self._descend(fd, prefix, known, rules)
        self._seen += len(names)
        if self.progress is not None:
            self.progress(self._seen)
        return True

    def _enter(
        self, fd: int, prefix: str, name: bytes, names: set[bytes], known: KnownDirectory,
        rules: Rules, found: os.stat_result, opaque: dict[bytes, bytes],
    ) -> None:  # fmt: skip
        """Decide about a directory that was listed: entered from now on, or opaque."""
        if name in known.directories:
            # Captured once, captured always.
            return
        reason = opaque.get(name, b"")
        if not reason:
            reason = self._why_not(fd, prefix, name, names, rules, found)
        if reason:
            known.opaque[name] = reason
        else:
            known.directories[name] = KnownDirectory(0, 0, 0, 0)

    def _why_not(
        self, fd: int, prefix: str, name: bytes, names: set[bytes], rules: Rules,
        found: os.stat_result,
    ) -> bytes:  # fmt: skip
        if self.limits.own(found):
            return b"a store of ours"
        if found.st_dev != self.index.device:
            return b"mounted"
        try:
            below = os.open(name, DIRECTORY, dir_fd=fd)
        except OSError as error:
            return f"unreadable: {error.strerror}".encode()
        try:
            reason = opaque_name(name, names, lambda inner: _is_there(below, inner))
            if not reason:
                verdict = rules.verdict(prefix + os.fsdecode(name), directory=True)
                if verdict == ".backtrailignore":
                    reason = b"left out by .backtrailignore"
                elif verdict and is_heavy(below):
                    reason = b"ignored by git, and heavy"
            return reason
        finally:
            os.close(below)

    # --- files ---------------------------------------------------------------------------

    def _take(
        self, fd: int, known: KnownDirectory, found: list[tuple[bytes, os.stat_result | None]]
    ) -> bool:
        """Update the known files from what was found; the content goes to `capture`."""
        changed = False
        reading: list[tuple[bytes, KnownFile]] = []
        for name, now in found:
            old = known.files.get(name)
            if now is None or stat.S_ISDIR(now.st_mode):
                # Its kind changed under the scan: the next one lists the directory.
                known.racy = True
                if now is None and old is not None:
                    del known.files[name]
                    changed = True
                continue
            if old is not None and not old.racy and _same(old, now):
                continue
            new = self._known(fd, name, now)
            known.files[name] = new
            changed = changed or old is None or old.entry() != new.entry()
            if new.kind == "file":
                new.value = b""
                reading.append((name, new))
        if reading:
            changed = self.capture.files(fd, reading, known) or changed
        return changed

    def _known(self, fd: int, name: bytes, now: os.stat_result) -> KnownFile:
        mode, size = stat.S_IMODE(now.st_mode), now.st_size
        racy = max(now.st_mtime_ns, now.st_ctime_ns) >= self._start
        numbers = (now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
        if stat.S_ISREG(now.st_mode):
            if size > self.limits.file_size:
                reason = f"over {self.limits.file_size} bytes".encode()
                return KnownFile("skipped", mode, size, *numbers, reason, racy)
            return KnownFile("file", mode, size, *numbers, b"", racy)
        if stat.S_ISLNK(now.st_mode):
            try:
                text = os.fsencode(os.readlink(name, dir_fd=fd))
                return KnownFile("link", 0o777, size, *numbers, text, racy)
            except OSError:
                return KnownFile("skipped", mode, size, *numbers, b"unreadable", True)
        reason = next((text for test, text in _SPECIAL if test(now.st_mode)), b"special file")
        return KnownFile("skipped", mode, 0, *numbers, reason, racy)

    # --- declared paths ------------------------------------------------------------------

    def _path(self, fd: int, known: KnownDirectory, parts: list[bytes]) -> None:
        name = parts[0]
        known.digest = b""
        if name in known.opaque or name.startswith(RESERVED):
            return
        try:
            now = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            known.files.pop(name, None)
            known.directories.pop(name, None)
            known.racy = True
            return
        if not stat.S_ISDIR(now.st_mode):
            known.directories.pop(name, None)
            self._take(fd, known, [(name, now)])
            return
        known.files.pop(name, None)
        child = known.directories.setdefault(name, KnownDirectory(0, 0, 0, 0))
        child.mode = stat.S_IMODE(now.st_mode)
        below = os.open(name, DIRECTORY, dir_fd=fd)
        try:
            if len(parts) == 1:
                self._directory(below, "", child, None, os.fstat(below))
            else:
                self._path(below, child, parts[1:])
        finally:
            os.close(below)

    # --- digests -------------------------------------------------------------------------

    def _digest(self, known: KnownDirectory) -> bytes:
        if known.digest:
            return known.digest
        for child in known.directories.values():
            self._digest(child)
        known.digest = self.capture.tree(encode_tree(known.tree()))
        return known.digest


_SPECIAL = (
    (stat.S_ISFIFO, b"a pipe"),
    (stat.S_ISSOCK, b"a socket"),
    (stat.S_ISBLK, b"a device"),
    (stat.S_ISCHR, b"a device"),
)


def _same(file: KnownFile, now: os.stat_result) -> bool:
    return (file.ctime, file.mtime, file.inode, file.size) == (
        now.st_ctime_ns,
        now.st_mtime_ns,
        now.st_ino,
        now.st_size,
    )


def _is_there(fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _ignore_file(fd: int, name: bytes, names: set[bytes]) -> bytes | None:
    if name not in names:
        return None
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return None
    try:
        return os.read(file, 1 << 20) if stat.S_ISREG(os.fstat(file).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(file)


def not_captured(known: KnownDirectory, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes, int]]:
    """What a tree does not hold: path, reason, size."""
    for name, reason in known.opaque.items():
        yield prefix + name, reason, 0
    for name, file in known.files.items():
        if file.kind == "skipped":
            yield prefix + name, file.value, file.size
    for name, child in known.directories.items():
        yield from not_captured(child, prefix + name + b"/")
