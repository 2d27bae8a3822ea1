"""The directory of a workspace: which one it is, and its lock.

The lock is the machine's for this directory, whichever store watches over it. A process that
takes it finishes a restore that was cut short, before anything else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from ..._startup.frozen import NamedTuple
from ...errors import BacktrailError, Conflict, NotFound
from ...events import Json, timestamp
from ...events.history import newest_look, root_of, tree_of
from ...stores.base import Store
from ...stores.disk.fs import failed
from ...stores.disk.locks import WAIT
from ..beneath import DIRECTORY
from ..changes.brackets import Place, is_dead
from ..changes.catalogue import Catalogue
from ..contents.blobs import Blobs, CachedBlobs
from ..names import meant, shown
from ..trees import EMPTY_DIGEST, differing, look_up
from .machine import About, Machine, Root, RootIds, identity_at
from .meetings import Meetings
from .roots import Identity, identity
from .snapshot import Log, Looking
from .verdicts import Limits, OwnPlaces


class Known(NamedTuple):
    """What a session knows of its root: the newest tree, the root's id (empty: not known), when.

    `seq` is the event that says so.
    """

    session: str
    seq: int
    tree: bytes
    id: str
    at: str


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
        url: str = "",
    ) -> None:
        self.url = url
        self.root = os.fsencode(os.path.realpath(root))
        self.blobs = blobs
        self.catalogue = catalogue
        self.get = CachedBlobs(blobs.get)
        self.problems: list[str] = []
        self.machine, trouble = Machine.here(os.fspath(state))
        if trouble:
            self.problems.append(trouble)
        here = identity_at(self.root)
        self.place = self._find(here)
        self._registered = self.machine.root(here or self.place.identity, self.root)
        self.meetings = Meetings(self._registered, blobs.id)
        self._about: About | None = None
        self._continues: About | None = None
        self._ids = RootIds(state)
        self._expected: Known | None = None
        self._looked_for: Log | None = None
        self._besides: list[Root] = []
        self._noise = os.urandom(8).hex()
        self.is_whole = False
        """Whether no restore was cut short as long as no other process takes the lock."""
        self._checked: tuple[int, int, int] | None = None
        self._state = state
        self._limits = Limits(own=own or OwnPlaces())
        self._progress = progress
        self._looking = self._looking_at(self.place)

    def _looking_at(self, place: Place) -> Looking:
        index = self._state / f"index-{place.n}"
        return Looking(self.blobs, index, self._limits, self._progress, self.get)

    @property
    def path(self) -> str:
        """The root, for people."""
        return shown(self.root)

    def stamp(self) -> dict[str, Json]:
        """The root on this machine and the number of its state, as the last look found it."""
        about = self._about or self._registered.about()
        return {"id": about.id, "n": about.n} if about is not None else {}

    def expect(self, log: Log, store: Store | None) -> None:
        """The next look is for a session: if it knows its root, another one is refused."""
        if store is None or self._looked_for == log:
            return
        try:
            event = newest_look(store.read(log[1], reverse=True))
        except NotFound:
            event = None
        tree = tree_of(event) if event is not None else None
        if event is not None and tree is not None:
            self._expected = Known(log[1], event.seq, tree, root_of(event), event.ts)
        self._looked_for = log

    def meant(self, paths: Iterable[str | os.PathLike[str]], *trees: bytes | None) -> list[bytes]:
        """The paths that a caller names, as they are in these trees."""

        def is_known(path: bytes) -> bool:
            return any(tree and look_up(self.get, tree, path) for tree in trees)

        return [meant(self.root, path, is_known) for path in paths]

    # --- identity ------------------------------------------------------------------------

    def _find(self, here: Identity | None) -> Place:
        """The workspace that this directory is, also if it was moved here.

        A directory that came in the place of another is a new one, unless a call may have
        replaced it, or nothing was there.
        """
        if here is None:
            # It is gone, and made again when needed.
            return self.catalogue.place(Identity(0, 0, 0), self.root)
        known = self.catalogue.moved_from(here)
        if known is not None:
            if not known.gone and known.path == self.root:
                return known
            if known.gone or identity_at(known.path) != here:
                return self.catalogue.rebind(known.n, here, self.root)
        there = self.catalogue.place(here, self.root)
        if here.is_same(there.identity) or self._goes_on(there):
            return there
        return self.catalogue.renew(here, self.root)

    def _goes_on(self, place: Place) -> bool:
        """Whether a workspace goes on in another directory at its path."""
        line = self.catalogue.lines.line(place.n)
        if line.tree in (None, EMPTY_DIGEST):
            return True
        return any(not (call.ended or is_dead(call)) for call in line.calls)

    def locked(
        self, store: Store | None = None, *, rebind: bool = False, make: bool = False,
        wide: bool = False, wait: float = WAIT,
    ) -> Locked:  # fmt: skip
        """The root's descriptor, with no other process at work in the workspace; -1 if it is gone.

        A restore that was cut short is finished first. `rebind` takes whatever directory
        is there now for the workspace, `make` makes the root again. `wide` keeps all others
        out of the registered roots above and below, too.
        """
        return Locked(self, store, rebind, make, wide, wait)

    def _enter(self, store: Store | None, rebind: bool, make: bool, wide: bool, wait: float) -> int:
        self._take(wide, wait)
        fd = -1
        try:
            if self._about is None:
                self._remember()
            cut_short = self._is_cut_short()
            fd = self._open_root(make or cut_short)
            if fd >= 0:
                self._check_identity(fd, rebind)
                expected = self._expected
                if expected is not None:
                    self._check_expected(fd, expected, store, rebind)
                if cut_short:
                    from ..restore.journal import Recovery

                    Recovery(self).finish(fd, store)
        except BaseException:
            self._leave(fd)
            raise
        return fd

    def _leave(self, fd: int) -> None:
        try:
            if fd >= 0:
                os.close(fd)
        finally:
            besides, self._besides = self._besides, []
            self._registered.release()
            for root in besides:
                root.release()
                root.close()

    def _take(self, wide: bool, wait: float = WAIT) -> None:
        """Take the lock, and those around it in an order that is the same in every process."""
        own = self._registered
        besides: list[Root] = []
        if wide:
            related = {one.key: one.path for one in self.meetings.related()}
            besides = [Root(self.machine, key, path) for key, path in related.items()]
        taken: list[Root] = []
        root = own
        try:
            for root in sorted([own, *besides], key=lambda root: root.key):
                root.acquire(wait)
                taken.append(root)
        except BaseException as error:
            for one in taken:
                one.release()
            for one in besides:
                one.close()
            if not isinstance(error, OSError) or isinstance(error, BacktrailError):
                raise
            raise failed(error, f"lock the workspace {self.path} by {root.lock.path}") from error
        self._besides = besides

    def _is_cut_short(self) -> bool:
        """Whether a restore was cut short; the caller holds the lock.

        A journal is only written under the lock, and its holder leaves a name in its
        file. So nothing has to be looked up as long as no other process held it.
        """
        name = f"{os.getpid()} {self._noise}".encode()
        try:
            if self.is_whole and self._registered.last_taker() == name:
                return False
            self._registered.leave_name(name)
            named = True
        except OSError:
            # Perhaps the disk is full: then it is looked up next time, too.
            named = False
        cut_short = self.catalogue.journal(self.place.n) is not None
        self.say_set_aside()
        self.is_whole = named and not cut_short
        return cut_short

    def _open_root(self, make: bool) -> int:
        try:
            if make and not os.path.isdir(self.root):
                os.mkdir(self.root)
                here = identity_at(self.root)
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
        """The workspace is another directory from here on: so is its lock."""
        self._checked = None
        known = self.catalogue.moved_from(here)
        if known is not None and known.n != self.place.n:
            # Other sessions began there meanwhile.
            self.place = self.catalogue.rebind(known.n, here, self.root)
            self._looking = self._looking_at(self.place)
        else:
            self.place = self.catalogue.rebind(self.place.n, here, self.root)
            self._looking.forget()
        old, new = self._registered, self.machine.root(here, self.root)
        if new.key == old.key:
            return
        self._continues = old.about()
        new.acquire()
        self._besides.append(old)
        self._registered = new
        self.meetings = self.meetings.moved(new)

    def _remember(self) -> None:
        """Know the root by the id that the store has for it. The caller holds the lock.

        So a registry that was lost, or is another one, does not make it another root. Its
        numbers go on from the time, which is far beyond all that were used.
        """
        id = self._ids.read(self._registered.key)
        if len(id) == 32 and self._registered.about() is None:
            self._continues = About(int(time.time()), b"", id, "", b"")

    def _check_expected(self, fd: int, known: Known, store: Store | None, rebind: bool) -> None:
        """Refuse a directory that is not the one the session knows, unless it is just like it."""
        about = self._registered.about() or self._continues
        if known.id:
            is_another = about is None or about.id != known.id
        else:
            # Its events do not say which it was; but one born later it was not.
            is_another = timestamp(self.place.identity.born / 1e9) > known.at
        if is_another and not rebind and not _is_moved_fork(store, known):
            tree = self._looking.captured(fd, None)
            if how := differing(self.get, known.tree, tree):
                raise Conflict(
                    f"{self.path} is another directory than the one the session knows, and "
                    f"{how}: `relocate` takes it as it is"
                )
        self._expected = None

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
        known = self.catalogue.lines.tree(self.place.n)
        calls = [call for call in self.catalogue.lines.brackets(self.place.n) if not call.ended]
        if not rebind and known != EMPTY_DIGEST and not calls:
            self._looking.forget()
            tree = self._looking.captured(fd, None)
            if known is not None and (how := differing(self.get, known, tree)):
                raise Conflict(
                    f"{self.path} is another directory than the one watched over, and "
                    f"{how}: `relocate` takes it as it is"
                )
        if rebind:
            self.catalogue.drop_journal(self.place.n)
        self._rebind(here)

    # --- looking -------------------------------------------------------------------------

    @property
    def cut_short(self) -> bool:
        """Whether a restore was cut short here, or is under way."""
        return self.catalogue.journal(self.place.n) is not None

    def recover(self, store: Store | None = None, *, wait: float = WAIT) -> None:
        """Finish a restore that was cut short, and record it, before anything is planned."""
        if self.cut_short:
            with self.locked(store, wait=wait):
                return

    def say_set_aside(self) -> None:
        """Note a restore that can never be finished, if one is kept."""
        found = self.catalogue.set_aside_of(self.place.n)
        if found is not None:
            self.complain(
                f"a restore of {self.path} was cut short and cannot be finished ({found[0]}): "
                "`backtrail doctor --repair` tries again, or gives it up"
            )

    def complain(self, note: str) -> None:
        """Note something for the person; once."""
        if note not in self.problems:
            self.problems.append(note)

    def restored(
        self, root: int, log: Log | None, paths: Collection[bytes] | None = None,
        kept: Collection[bytes] = (),
    ) -> bytes:  # fmt: skip
        """The tree now, in which what changed is a restore's doing and no call's."""
        tree = self._looking.captured(root, log, paths, kept=kept)
        self.catalogue.lines.record(self.place.n, tree, restored=True)
        self._number(tree)
        return tree

    def _number(self, tree: bytes) -> None:
        """The root's state is `tree`, for all stores. The caller holds the lock."""
        try:
            like, last = self._continues, self._about
            if like is None and last is not None:
                like = last._replace(n=max(last.n, int(time.time())))
            self._about = self._registered.moved(tree, like)
            self._ids.note(self._registered.key, self._about.id)
        except OSError as error:
            raise failed(error, f"write {self._registered.lock.path}") from error

    def scanned(
        self, root: int, log: Log, stop: Callable[[], bool] | None = None, *, adopt: bool = False
    ) -> bytes:
        """The present tree, stored. The caller holds the lock."""
        tree = self._looking.captured(root, log, None, stop, adopt=adopt)
        self.catalogue.lines.record(self.place.n, tree)
        self._number(tree)
        return tree

    def close(self) -> None:
        """Save the index, and let go of the lock's file."""
        if self._looking.unsaved:
            self._take(False)
            try:
                self._looking.save()
            finally:
                self._registered.release()
        self._registered.close()
        self.meetings.shut()


def _is_moved_fork(store: Store | None, known: Known) -> bool:
    """Whether a session began as a fork in another folder than its parent's, and has not looked.

    What it knows of a root is its parent's.
    """
    info = store.info(known.session) if store is not None else None
    if store is None or info is None or known.seq > (info.fork_seq or 0):
        return False
    try:
        parent = store.info(info.parent_id or "")
    except BacktrailError:
        return True
    return (parent.root or parent.cwd) != (info.root or info.cwd)


class Locked:
    """A workspace in which no other process is at work. Every call of a tool comes by twice."""

    __slots__ = ("_fd", "_how", "_of")

    def __init__(self, of: Rooted, *how: Any) -> None:
        self._of = of
        self._how = how

    def __enter__(self) -> int:
        self._fd = self._of._enter(*self._how)
        return self._fd

    def __exit__(self, *_: object) -> None:
        self._of._leave(self._fd)
