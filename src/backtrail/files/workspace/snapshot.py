"""Looking at a workspace: the index, kept and saved, and the scans that bring it up to date.

The caller holds the workspace's lock. Many processes share an index through its file: a
scan takes what was saved last, by any process, and what it finds beyond that it reads again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from ...errors import Conflict
from ...stores.disk import forks
from ..contents.blobs import Blobs, CachedBlobs, Reference, gone
from ..contents.rows import LITTLE
from ..names import shown
from ..trees import EMPTY, EMPTY_DIGEST
from .index import Index
from .known import IndexDamaged, not_captured
from .reader import Capture
from .scan import Scanner, Stopped
from .verdicts import Limits

_TRIES = 5
_SAVE_EVERY = 3.0

Log = tuple[str, str]
"""A store's name and a session's id: the log that relies on a tree."""


class Looking:
    """The index of one workspace, and the way from its directory to a stored tree."""

    def __init__(
        self, blobs: Blobs, path: Path, limits: Limits, progress: Callable[[int], None] | None,
        trees: CachedBlobs,
    ) -> None:  # fmt: skip
        self._blobs = blobs
        self._trees = trees
        self._path = path
        self._name = str(path)
        self._folder = str(path.parent)
        self._limits = limits
        self._progress = progress
        self._index: Index | None = None
        self._index_stamp: tuple[int, int] | None = None
        self._saved = -_SAVE_EVERY
        self._relied: set[Reference] = set()
        self._unsynced: set[bytes] = set()
        self._stored = False
        forks.register(self)

    def after_fork(self) -> None:
        """The index may list contents that a thread of the parent was about to store."""
        self._index = None

    @property
    def unsaved(self) -> bool:
        """Whether something is known that no file says yet."""
        return self._index is not None and self._index.changed

    def save(self) -> None:
        """Save what is known, unless another process did meanwhile."""
        if self._index is not None and _stamp(self._name) == self._index_stamp:
            self._save_index(self._index, now=True)

    def captured(
        self, root: int, log: Log | None, paths: Collection[bytes] | None = None,
        stop: Callable[[], bool] | None = None, *, sync: bool = True, adopt: bool = False,
        kept: Collection[bytes] = (),
    ) -> bytes:  # fmt: skip
        """The tree, all of it stored; scanned again where a collection took some of it.

        Without `sync` it survives this process, and a power cut within 250 ms: enough for
        what lies on the disk as files, until these are changed. Ignore rules that changed
        are in force from a look on that may `adopt` them: one for a prompt. To what a restore
        brought back, the `kept` paths, no rule applies.
        """
        if root < 0:
            return self.gone(log)
        for _ in range(_TRIES - 1):
            try:
                return self._capture(root, log, paths, stop, sync, adopt, kept)
            except Conflict:
                # The index is loaded anew, and what the store lost is read again.
                continue
            except IndexDamaged:
                # It can be made anew from the files.
                self._path.unlink(missing_ok=True)
        return self._capture(root, log, paths, stop, sync, adopt, kept)

    def settle(self, paths: Collection[bytes] | None) -> None:
        """Before files are changed at `paths` (None: anywhere): they are on the disk.

        So is all that the last look stored: it may be what a person left.
        """
        if self._stored or self._may_lose(paths):
            self._sync()

    def _may_lose(self, paths: Collection[bytes] | None) -> bool:
        """Whether a content at `paths` may not be on the disk."""
        index = self._index
        if not self._unsynced or index is None:
            return False
        if paths is None:
            return True
        found = [index.at(path) for path in paths]
        return any(digest is None or digest in self._unsynced for digest in found)

    def _sync(self) -> None:
        self._blobs.flush()
        self._unsynced.clear()

    def _capture(
        self, root: int, log: Log | None, paths: Collection[bytes] | None,
        stop: Callable[[], bool] | None, sync: bool, adopt: bool, kept: Collection[bytes],
    ) -> bytes:  # fmt: skip
        index = self._loaded(check=paths is None)
        self._stored = False
        capture = Capture(self._blobs, self._check_room)
        limits, progress = self._limits, self._progress
        scanner = Scanner(index, capture, limits, progress, stop, adopt=adopt, kept=kept)
        try:
            tree = scanner.scan(root, paths)
            new = Reference(*log, tree) if log is not None else None
            relied = new is None or new in self._relied
            pending, large = capture.pending, capture.is_large
            if pending or not relied:
                if pending:
                    self._check_room(counting=paths is None or large or capture.size > LITTLE)
                sync = sync or large
                if not sync:
                    self._unsynced.update(capture.waiting)
                capture.finish([] if relied or new is None else [new], sync=sync)
                self._stored = True
                self._trees.keep(capture.trees)
                if new is not None:
                    # One alone: references to earlier trees may be dropped by the budget.
                    self._relied = {new}
            elif paths is not None and self._blobs.epoch() != index.epoch:
                raise gone(())
        except BaseException as error:
            # The index may list contents that were not stored.
            self._index = None
            if isinstance(error, Stopped):
                capture.finish()
                index.save(self._path)
            raise
        self._save_index(index)
        return tree

    def _check_room(self, *, counting: bool = True) -> None:
        """Raise `DiskLow` if no more may be stored; what is stored is counted, if wanted."""
        from ..contents.garbage import check_budget, check_floor

        check_floor(self._folder)
        if counting:
            check_budget(self._blobs.used(), self._folder)

    def gone(self, log: Log | None) -> bytes:
        """The tree of a root that is not there: nothing is."""
        self.forget()
        relied = [] if log is None else [Reference(*log, EMPTY_DIGEST)]
        self._blobs.write([(EMPTY_DIGEST, EMPTY)], relied)
        return EMPTY_DIGEST

    def _loaded(self, *, check: bool = True) -> Index:
        """The index as it was last saved, by any process.

        Unless that is left to a later `check`, it vouches only for what the store has.
        """
        stamp = _stamp(self._name)
        if self._index is None or stamp != self._index_stamp:
            self._index = Index.load(self._path, self._blobs.id, self._blobs.epoch())
            self._index_stamp = stamp
            self._relied.clear()
        index = self._index
        if not check and not index.doubtful:
            return index
        epoch = self._blobs.epoch()
        if index.doubtful or index.epoch != epoch:
            wanted = set(index.digests())
            index.doubt(wanted - self._blobs.has(wanted))
            index.epoch = epoch
            self._relied.clear()
        return index

    def _save_index(self, index: Index, *, now: bool = False) -> None:
        """Save what is known, at most every few seconds: it is only a cache.

        A process that loads an older one reads a few files again.
        """
        if index.changed and (now or time.monotonic() - self._saved > _SAVE_EVERY):
            # It vouches for contents, so these come first.
            if self._unsynced:
                self._sync()
            index.save(self._path)
            self._index_stamp = _stamp(self._name)
            self._saved = time.monotonic()

    def forget(self) -> None:
        """Drop the index: the next scan reads everything again."""
        self._index = None
        self._path.unlink(missing_ok=True)

    def was_control(self, path: bytes) -> bool:
        """Whether what is not captured at a path was once version control's here."""
        return self._loaded().was_control(path)

    def strangers(self) -> Mapping[int, int]:
        """The inodes and births of files that came from where nothing is captured."""
        return self._loaded().strangers

    def not_captured(self) -> list[tuple[str, str, int]]:
        """What the last scan did not keep: path, reason, size."""
        root = self._loaded().root
        if root is None:
            return []
        found = ((shown(p), reason.decode("utf-8", "replace"), size)
                 for p, reason, size in not_captured(root))  # fmt: skip
        return sorted(found)


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
