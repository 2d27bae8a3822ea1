"""The directory of a workspace: which one it is, and nobody else at work in it.

Whoever takes the lock finishes a restore that was cut short, before anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Conflict, Damaged, NotFound
from ..stores.base import Store
from ..stores.files import failed
from ..stores.locks import FileLock
from .beneath import DIRECTORY
from .blobs import Blobs, CachedBlobs
from .brackets import Place
from .catalogue import Catalogue
from .ignore import OwnPlaces
from .looking import Log, Looking
from .names import meant, shown
from .roots import Identity, identity
from .scan import Limits
from .trees import EMPTY_DIGEST, diff_trees, look_up

if TYPE_CHECKING:
    from .plan import Plan


class Rooted:
    """The directory of a workspace, and what is known about it."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        blobs: Blobs,
        catalogue: Catalogue,
        state: Path,
        *,
        own: OwnPlaces | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.root = os.fsencode(os.path.realpath(root))
        self.blobs = blobs
        self.catalogue = catalogue
        self.get = CachedBlobs(blobs.get)
        self.problems: list[str] = []
        self.place = self._find()
        self._lock = FileLock(state / f"lock-{self.place.n}", f"the workspace {self.path}")
        self._noise = os.urandom(8).hex()
        self._is_whole = False
        self._checked: tuple[int, int, int] | None = None
        index = state / f"index-{self.place.n}"
        self._looking = Looking(blobs, index, Limits(own=own or OwnPlaces()), progress, self.get)

    @property
    def path(self) -> str:
        """The root, for people."""
        return shown(self.root)

    def meant(self, paths: Iterable[str | os.PathLike[str]], *trees: bytes | None) -> list[bytes]:
        """The paths that a caller names, as they are in these trees."""

        def is_known(path: bytes) -> bool:
            return any(tree and look_up(self.get, tree, path) for tree in trees)

        return [meant(self.root, path, is_known) for path in paths]

    # --- identity ------------------------------------------------------------------------

    def _find(self) -> Place:
        """The workspace that this directory is, also if it was moved here."""
        here = _identity_at(self.root)
        if here is None:
            # It is gone, and made again when needed.
            return self.catalogue.place(Identity(0, 0, 0), self.root)
        known = self.catalogue.moved_from(here)
        if known is not None and known.path != self.root and _identity_at(known.path) != here:
            return self.catalogue.rebind(known.n, here, self.root)
        return self.catalogue.place(here, self.root)

    def locked(
        self, store: Store | None = None, *, rebind: bool = False, make: bool = False
    ) -> Locked:
        """The root's descriptor, with nobody else at work in the workspace; -1 if it is gone.

        A restore that was cut short is finished first. `rebind` takes whatever directory
        is there now for the workspace, `make` makes the root again.
        """
        return Locked(self, store, rebind, make)

    def _enter(self, store: Store | None, rebind: bool, make: bool) -> int:
        self._take()
        fd = -1
        try:
            cut_short = self._is_cut_short()
            fd = self._open_root(make or cut_short)
            if fd >= 0:
                self._check_identity(fd, rebind)
                if cut_short:
                    self._recover(fd, store)
        except BaseException:
            self._leave(fd)
            raise
        return fd

    def _leave(self, fd: int) -> None:
        try:
            if fd >= 0:
                os.close(fd)
        finally:
            self._lock.release()

    def _take(self) -> None:
        """Take the lock. Its file is written to, which a store that is only read does not let."""
        try:
            self._lock.acquire()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failed(error, f"lock the workspace {self.path} by {self._lock.path}") from error

    def _is_cut_short(self) -> bool:
        """Whether a restore was cut short; only for who holds the lock.

        A journal is only written under the lock, and who takes that leaves a name in its
        file. So nothing has to be looked up as long as nobody else came by.
        """
        name = f"{os.getpid()} {self._noise}".encode()
        try:
            if self._is_whole and os.pread(self._lock.fd, 64, 0) == name:
                return False
            os.ftruncate(self._lock.fd, 0)
            os.pwrite(self._lock.fd, name, 0)
            named = True
        except OSError:
            # Perhaps the disk is full: then it is looked up next time, too.
            named = False
        cut_short = self.catalogue.journal(self.place.n) is not None
        self._is_whole = named and not cut_short
        return cut_short

    def _open_root(self, make: bool) -> int:
        try:
            if make and not os.path.isdir(self.root):
                os.mkdir(self.root)
                here = _identity_at(self.root)
                assert here is not None
                self._rebind(here)
            return os.open(self.root, DIRECTORY)
        except (FileNotFoundError, NotADirectoryError) as error:
            if make:
                raise failed(error, f"make {self.path} again") from error
            return -1
        except OSError as error:
            raise failed(error, f"open {self.path}") from error

    def _rebind(self, here: Identity) -> None:
        self._checked = None
        self.place = self.catalogue.rebind(self.place.n, here, self.root)
        self._looking.forget()

    def _check_identity(self, fd: int, rebind: bool) -> None:
        """Refuse another directory in the place of the one watched over.

        Inside a call that one may well have been replaced by the call. And a directory
        with the very same content is as good.
        """
        status = os.fstat(fd)
        # A directory that is another was made later, and its numbers changed then.
        checked = status.st_dev, status.st_ino, status.st_ctime_ns
        if checked == self._checked:
            return
        here = identity(fd)
        if here == self.place.identity:
            self._checked = checked
            return
        if here.is_same(self.place.identity):
            self.place = self.catalogue.rebind(self.place.n, here, self.root)
            return
        known = self.catalogue.tree(self.place.n)
        calls = [call for call in self.catalogue.brackets(self.place.n) if not call.ended]
        if not rebind and known != EMPTY_DIGEST and not calls:
            self._looking.forget()
            tree = self._looking.captured(fd, None)
            if known is not None and tree != known:
                raise Conflict(
                    f"{self.path} is another directory than the one watched over, and "
                    f"{self.differing(known, tree)}: `relocate` takes it as it is"
                )
        if rebind:
            self.catalogue.drop_journal(self.place.n)
        self._rebind(here)

    def differing(self, known: bytes, tree: bytes) -> str:
        """In which paths two states differ, for people."""
        try:
            paths = [path for path, _, _ in diff_trees(self.get, known, tree)]
        except (NotFound, Damaged):
            return "its content differs"
        few = ", ".join(shown(path) for path in paths[:3])
        return f"{len(paths)} paths differ ({few}{', …' if len(paths) > 3 else ''})"

    # --- a restore that was cut short ----------------------------------------------------

    def recover(self, store: Store | None = None) -> None:
        """Finish a restore that was cut short, and tell its log, before anything is planned."""
        if self.catalogue.journal(self.place.n) is not None:
            with self.locked(store):
                return

    def _recover(self, root: int, store: Store | None) -> None:
        """Finish a restore that was cut short."""
        found = self.catalogue.journal(self.place.n)
        if found is None:
            return
        place, content = found
        moved = place.path != self.place.path and not place.identity.born
        if moved or not place.identity.is_same(self.place.identity):
            self._complain(
                f"a restore of {shown(place.path)} was cut short, and another directory is there"
            )
            return
        from dataclasses import replace

        from .journal import decoded, tell
        from .restore import Restore

        journal = decoded(content)
        done = Restore(root, journal.id, self.blobs.get).finish(journal.plan)
        tell(replace(journal, plan=done), self._verified(root, journal.log, done), store)
        self.catalogue.drop_journal(self.place.n)
        for step in done.conflicts:
            if step not in journal.plan.steps:
                self._complain(f"a restore was finished without {shown(step.path)}: {step.reason}")

    def _complain(self, note: str) -> None:
        if note not in self.problems:
            self.problems.append(note)

    def _verified(self, root: int, log: Log, plan: Plan) -> bytes:
        """The tree after a restore, looking only at what it touched.

        What it left alone may be changed by others at any time, and is not its own.
        """
        tree = self._looking.captured(root, log, [step.path for step in plan.steps if step.acts])
        self.catalogue.record(self.place.n, tree, restored=True)
        return tree

    def _scan(
        self, root: int, log: Log, paths: Collection[bytes] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> bytes:  # fmt: skip
        tree = self._looking.captured(root, log, paths, stop)
        self.catalogue.record(self.place.n, tree)
        return tree

    def close(self) -> None:
        """Save the index, and let go of the lock's file."""
        if self._looking.unsaved:
            with self._lock:
                self._looking.save()
        self._lock.close()


class Locked:
    """A workspace in which nobody else is at work. Every call of a tool comes by twice."""

    __slots__ = ("_fd", "_how", "_of")

    def __init__(self, of: Rooted, *how: Any) -> None:
        self._of = of
        self._how = how

    def __enter__(self) -> int:
        self._fd = self._of._enter(*self._how)
        return self._fd

    def __exit__(self, *_: object) -> None:
        self._of._leave(self._fd)


def _identity_at(path: bytes) -> Identity | None:
    try:
        fd = os.open(path, DIRECTORY)
    except OSError:
        return None
    try:
        return identity(fd)
    finally:
        os.close(fd)
