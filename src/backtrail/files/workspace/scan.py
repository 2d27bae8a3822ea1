"""The scan: from a directory to a tree digest, reading only what changed.

Known directories are opened one from the other, never following a link. In each, the known
names are looked up; the directory is listed again only if its own numbers changed. A file
whose numbers changed is read, hashed, and looked at again for changes under the read.
Then the digests of changed directories are computed, from the leaves up.

Whatever was touched so short before the scan that a later change might not show in the
clock is *racy* and read again next time.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable

from ...errors import BacktrailError, StoreFailed
from ..beneath import DIRECTORY
from ..names import is_reserved
from ..trees import MARKER
from .ignore import (
    IGNORE_FILES,
    MOUNTED,
    OUR_STORE,
)
from .index import Index
from .known import Glance, KnownDirectory, KnownFile
from .reader import Capture, Reading, is_gone, unreadable
from .trail import Frame, Paths, Trail, by_name, is_there
from .verdicts import Hidden, Limits, Verdicts

_REPORT = 1000
_AT_ONCE = 200

Found = list[tuple[bytes, os.stat_result | OSError]]
"""Names that are not what they were, and what looking at them gave."""


class Stopped(BacktrailError):
    """A scan was asked to stop; the next one goes on from there."""


class Scanner:
    """One scan of one workspace. Updates the index; new blobs go to `capture`.

    `progress` hears now and then how many files were seen. `stop` is asked now and then:
    if it says so, the scan raises `Stopped`, and what it learnt stays in the index. Only one
    that may `adopt` them brings new ignore rules into force, or the first one here. What a
    restore brought back is `kept` whatever a rule says: it was captured once.
    """

    def __init__(
        self, index: Index, capture: Capture, limits: Limits | None = None,
        progress: Callable[[int], None] | None = None, stop: Callable[[], bool] | None = None,
        *, adopt: bool = True, kept: Collection[bytes] = (),
    ) -> None:  # fmt: skip
        self.index = index
        self._kept = kept
        self._adopts = adopt
        self.capture = capture
        self.limits = limits or Limits()
        self.progress = progress
        self.stop = stop
        self._seen = self._reported = 0
        self._glance: Glance
        self._trail: Trail
        self._verdicts: Verdicts
        self._dirty: list[tuple[KnownDirectory, set[bytes]]] = []

    def scan(self, root: int, paths: Collection[bytes] | None = None) -> bytes:
        """The digest of the tree below the open directory `root`.

        With `paths`, only these are looked at, and the rest is taken to be as last seen. They are
        relative to the root. What lies in an opaque directory, behind a link or outside is ignored.
        """
        only = None if paths is None else by_name(paths)
        index, status = self.index, os.fstat(root)
        if index.root is None or not index.root.digest or index.device != status.st_dev:
            only = None
        if index.root is None:
            index.root = KnownDirectory()
        elif index.device != status.st_dev:
            index.distrust()
        index.device = status.st_dev
        start = time.time_ns() - self.limits.granularity
        self.capture.begin(index, self.limits.file_size, start)
        heard = self.progress is not None or self.stop is not None
        self._glance = Glance(index.device, self._pause if heard else None)
        adopts = self._adopts = self._adopts or not index.adopted
        if adopts and only is None:
            index.adopt()
        in_force = None if adopts else index.rules
        self._trail = Trail(Frame(root, b"", index.root, status, only), in_force)
        self._verdicts = Verdicts(
            index, self._trail, root, self.limits.own, adopts=adopts, kept=self._kept
        )
        try:
            if only is not None or not index.root.digest or not self._glance.look(root, index.root):
                self._walk()
                if index.marks or index.rules:
                    index.prune()
                self._verdicts.arrivals.settle(partly=only is not None)
            if only is None:
                index.looked = start
            if adopts and only is None and (index.pending or not index.adopted):
                index.pending.clear()
                index.adopted = index.changed = True
            return self._digests(index.root)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Leave the index so that the next scan finds what this one did not finish."""
        self.index.doubtful = self.index.changed = True
        for frame in self._trail.close():
            frame.known.digest = b""
            frame.known.racy = True
        for known, _ in self._dirty:
            known.digest = b""
        self.capture.abandon()

    def _digests(self, root: KnownDirectory) -> bytes:
        """Compute the digests of changed directories, which are in order, leaves first."""
        for known, names in self._dirty:
            digest = self.capture.tree(known, names)
            if digest != known.digest:
                known.digest = digest
                self.index.changed = True
        self._dirty = []
        if self.progress is not None and self._seen != self._reported:
            self.progress(self._seen)
        return root.digest

    # --- walking -------------------------------------------------------------------------

    def _walk(self) -> None:
        """Visit directories, parents before children."""
        frames = self._trail.frames
        self._visit(frames[0])
        while frames:
            frame = frames[-1]
            for name, only in frame.todo:
                if self._enter(frame, name, only):
                    break
            else:
                self._leave(self._trail.pop())

    def _leave(self, frame: Frame) -> None:
        """All that is in a directory was visited."""
        if frame.before is not None and frame.before != _snapshot(frame.known):
            self.index.changed = True
        if frame.changed or frame.moved or not frame.known.digest:
            self._dirty.append((frame.known, frame.changed))
            if self._trail.frames:
                self._trail.frames[-1].changed.add(frame.name)

    def _enter(self, above: Frame, name: bytes, only: Paths | None) -> bool:
        """Go into a known directory; False if it cannot be entered."""
        known = above.known.directories[name]
        try:
            fd = os.open(name, DIRECTORY, dir_fd=above.fd)
        except OSError as error:
            if is_gone(error) or error.errno == errno.ELOOP:
                # Removed or replaced under the scan: the next one lists the directory above.
                self._verdicts.arrivals.left_all(known)
                del above.known.directories[name]
                above.known.opaque.pop(name, None)
                above.changed.add(name)
                above.known.racy = self.index.changed = True
            else:
                self._hide(above, name, unreadable(error))
            return False
        frame = Frame(fd, name, known, os.fstat(fd), only, above.relist)
        if frame.status.st_ino != known.inode:
            self._verdicts.arrivals.left(known.inode)
            if self._verdicts.is_moved_here(above, frame):
                os.close(fd)
                return False
        self._trail.push(frame)
        try:
            self._visit(frame)
        except Hidden as hidden:
            self._trail.pop()
            self._hide(above, name, hidden.reason)
            return False
        if above.known.opaque and above.known.opaque.pop(name, None) is not None:
            above.changed.add(name)
            self.index.changed = True
        return True

    def _hide(self, above: Frame, name: bytes, reason: bytes) -> None:
        """A directory cannot be entered. What is known about its content is kept."""
        known = above.known
        if not known.directories[name].inode:
            # Never captured, so its rules are still to be applied: look again next time.
            del known.directories[name]
            known.racy = known.racy or reason != OUR_STORE
        if known.opaque.get(name) != reason:
            known.opaque[name] = reason
            above.changed.add(name)
            self.index.changed = self.index.changed or above.before is None

    # --- one directory -------------------------------------------------------------------

    def _visit(self, frame: Frame) -> None:
        """Bring what is known about a directory up to date, but for the directories in it."""
        known, status = frame.known, frame.status
        self._pause()
        if status.st_dev != self.index.device:
            raise Hidden(MOUNTED)
        if frame.only is not None:
            self._look_at(frame, frame.only)
        elif frame.relist or not known.is_as(status):
            self._list(frame)
        elif stirred := self._glance.stirred(known, frame.fd):
            self._look(frame, stirred)
        if frame.only is None and known.directories:
            calm = self._glance.is_calm
            below = known.directories.items()
            frame.todo = iter([(n, None) for n, child in below if frame.relist or not calm(child)])

    def _pause(self, seen: int = 0) -> None:
        """Report progress, and end where the caller says so."""
        self._seen += seen
        if self.progress is not None and self._seen >= self._reported + _REPORT:
            self._reported = self._seen
            self.progress(self._seen)
        if self.stop is not None and self.stop():
            raise Stopped("the scan was stopped; the next one goes on from there")

    def _look(self, frame: Frame, stirred: list[bytes]) -> None:
        """Find out which of the known files changed."""
        changed, _ = self._changed(frame, stirred)
        if self._verdicts.changes_rules(frame, {name for name, _ in changed}):
            frame.relist = True
            self._list(frame)
        else:
            self._take(frame, changed)
            self._verdicts.mark(frame, {name for name, _ in changed})

    def _list(self, frame: Frame) -> None:
        """List a directory that is new or changed."""
        known, status = frame.known, frame.status
        found = self._names(frame)
        frame.names = found
        frame.before = frame.before or _snapshot(known)
        files = {name: file for name, file in known.files.items() if found.get(name) is False}
        gone = known.files.keys() - files.keys()
        for name in gone:
            self._verdicts.arrivals.left(known.files[name].inode)
        known.files = files
        todo, again = self._changed(frame, [name for name in found if not found[name]])
        again = self._verdicts.choose(frame, [name for name in found if found[name]]) or again
        mode = stat.S_IMODE(status.st_mode)
        frame.moved = mode != known.mode
        known.mode = mode
        known.mtime, known.ctime = status.st_mtime_ns, status.st_ctime_ns
        known.inode = status.st_ino
        known.racy = again or self.capture.racy(known.mtime, known.ctime)
        touched = gone.union(name for name, _ in todo)
        frame.relist = self._verdicts.changes_rules(frame, touched) or frame.relist
        self._seen += len(found)
        if gone:
            frame.changed |= gone
            self.index.changed = True
        self._take(frame, todo)
        self._verdicts.mark(frame)
        if self._verdicts.adopts:
            self._verdicts.keep_rules(frame)

    def _names(self, frame: Frame) -> dict[bytes, bool]:
        """The names in a directory, and whether they are directories."""
        root = len(self._trail.frames) == 1
        try:
            with os.scandir(frame.fd) as entries:
                found = {os.fsencode(e.name): e.is_dir(follow_symlinks=False) for e in entries}
        except OSError as error:
            reason = unreadable(error)
            if root:
                raise StoreFailed(f"cannot list the workspace: {error.strerror}") from error
            raise Hidden(reason) from error
        frame.ours = ours = self._verdicts.stores_in(frame, found.keys())
        frame.reserved = [name for name in found if is_reserved(name)]
        return {n: found[n] for n in found if n not in ours and not is_reserved(n)}

    def _changed(self, frame: Frame, names: Iterable[bytes]) -> tuple[Found, bool]:
        """Which of these names are not the files they were; whether to list again next time."""
        changed: Found = []
        again = False
        for name in names:
            try:
                now = os.stat(name, dir_fd=frame.fd, follow_symlinks=False)
            except OSError as error:
                again = True
                changed.append((name, error))
                continue
            file = frame.known.files.get(name)
            if file is None or file.racy or not file.is_as(now):
                changed.append((name, now))
        return changed, again

    # --- files ---------------------------------------------------------------------------

    def _take(self, frame: Frame, found: Found) -> None:
        """Update the known files from what was found; the content goes to `capture`."""
        if not found:
            return
        known = frame.known
        frame.changed.update([name for name, _ in found])
        readings: list[Reading] = []
        for name, now in found:
            old = known.files.get(name)
            if old is not None and (isinstance(now, OSError) or old.inode != now.st_ino):
                self._verdicts.arrivals.left(old.inode)
            if isinstance(now, OSError):
                self._lost(known, name, now)
                continue
            reason = self._verdicts.why_not_file(frame, name, now, old)
            if reason:
                known.files.pop(name, None)
                known.opaque[name] = reason
            else:
                known.opaque.pop(name, None)
                readings.append(Reading(name, now, old))
                if old is None or old.inode != now.st_ino:
                    self._verdicts.arrived(frame, name, now)
        for at in range(0, len(readings), _AT_ONCE):
            self._pause()
            self.capture.files(frame.fd, readings[at : at + _AT_ONCE], known)

    def _lost(self, known: KnownDirectory, name: bytes, error: OSError) -> None:
        """A name could not be looked at. Only an error that says so means that it is gone."""
        if is_gone(error):
            known.racy = self.index.changed = True
            known.files.pop(name, None)
        else:
            known.files[name] = KnownFile("skipped", 0, 0, 0, 0, 0, unreadable(error), True)

    # --- declared paths ------------------------------------------------------------------

    def _look_at(self, frame: Frame, only: Paths) -> None:
        """Bring what is known about some names in a directory up to date."""
        known = frame.known
        frame.names, frame.before = IGNORE_FILES, _snapshot(known)
        ours: Collection[bytes] = ()
        suspect = OUR_STORE in known.opaque.values() or self._verdicts.is_ours(frame.status)
        if suspect or is_there(frame.fd, MARKER):
            ours = self._verdicts.stores_in(frame, {*map(os.fsencode, os.listdir(frame.fd))})
        if not known.inode:
            known.mode, known.inode = stat.S_IMODE(frame.status.st_mode), frame.status.st_ino
        names = [n for n in only.names if n not in ours and not is_reserved(n)]
        changed, _ = self._changed(frame, names)
        if self._verdicts.changes_rules(frame, {name for name, _ in changed}):
            frame.only, frame.relist = None, True
            self._list(frame)
            return
        files: Found = []
        for name, now in changed:
            if not isinstance(now, OSError) and stat.S_ISDIR(now.st_mode):
                self._declared(frame, name)
            elif isinstance(now, OSError) and not is_gone(now) and name in known.directories:
                # What keeps us from looking at it shows when it is entered.
                continue
            else:
                self._verdicts.arrivals.left_all(known.directories.get(name))
                if known.directories.pop(name, None) or known.opaque.pop(name, None):
                    frame.changed.add(name)
                files.append((name, now))
        self._take(frame, files)
        self._verdicts.mark(frame, names)
        frame.todo = iter([(n, only.names[n]) for n in names if n in known.directories])

    def _declared(self, frame: Frame, name: bytes) -> None:
        """A name is a directory; decide about it if it is new."""
        known = frame.known
        if (file := known.files.pop(name, None)) is not None:
            self._verdicts.arrivals.left(file.inode)
            frame.changed.add(name)
        if name in known.directories:
            return
        frame.changed.add(name)
        reason = self._trail.why_not(name, lambda inner: is_there(frame.fd, inner))
        if reason and not self._verdicts.keeps(frame, name):
            known.opaque[name] = reason
        else:
            known.opaque.pop(name, None)
            known.directories[name] = KnownDirectory()


def _snapshot(known: KnownDirectory) -> tuple[object, ...]:
    """What the index says about a directory, but for its files."""
    numbers = (known.mode, known.mtime, known.ctime, known.inode, known.racy)
    return *numbers, dict(known.opaque), set(known.directories)
