"""A workspace: a directory being watched over. Scanned into trees, restored from trees.

All that touches the directory goes through here, under the workspace's lock: scans, the
line of time, restores and their recovery. Contents go to the blob store, who did what to
the catalogue beside it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import Conflict, Damaged, NotFound, StoreFailed
from ..stores.base import Store
from ..stores.files import failed
from ..stores.locks import FileLock
from .beneath import DIRECTORY
from .blobs import Blobs, CachedBlobs, Reference
from .brackets import Bracket, Place, Runner, is_dead
from .catalogue import Catalogue
from .git import git_head
from .grabbing import grab
from .looking import Log, Looking
from .names import shown
from .roots import Identity, identity
from .scan import Limits, Own
from .trees import EMPTY_DIGEST, diff_trees

if TYPE_CHECKING:
    from .attribution import Attributed
    from .journal import Journal
    from .plan import Plan

LONG_CALL = 10.0
"""Seconds after which a person may well have saved a file during a shell call."""


class Restored(NamedTuple):
    """A plan as it went, and the trees around it."""

    plan: Plan
    before: bytes
    after: bytes


class Workspace:
    """One watched directory, on one blob store. May be used from several threads."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        blobs: Blobs,
        catalogue: Catalogue,
        state: Path,
        *,
        own: Own = lambda status: False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.root = os.fsencode(os.path.realpath(root))
        self.blobs = blobs
        self.catalogue = catalogue
        self.get = CachedBlobs(blobs.get)
        self.problems: list[str] = []
        self.place = self._find()
        self._lock = FileLock(state / f"lock-{self.place.n}", f"the workspace {self.path}")
        index = state / f"index-{self.place.n}"
        self._looking = Looking(blobs, index, Limits(own=own), progress, self.get)

    @property
    def path(self) -> str:
        """The root, for people."""
        return shown(self.root)

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

    @contextmanager
    def locked(
        self, store: Store | None = None, *, rebind: bool = False, make: bool = False
    ) -> Iterator[int]:
        """The root's descriptor, with nobody else at work in the workspace; -1 if it is gone.

        A restore that was cut short is finished first. `rebind` takes whatever directory
        is there now for the workspace, `make` makes the root again.
        """
        with self._lock:
            fd = self._open_root(make or self.catalogue.journal(self.place.n) is not None)
            try:
                if fd >= 0:
                    self._check_identity(fd, rebind)
                    self._recover(fd, store)
                yield fd
            finally:
                if fd >= 0:
                    os.close(fd)

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
        self.place = self.catalogue.rebind(self.place.n, here, self.root)
        self._looking.forget()

    def _check_identity(self, fd: int, rebind: bool) -> None:
        """Refuse another directory in the place of the one watched over.

        Inside a call that one may well have been replaced by the call. And a directory
        with the very same content is as good.
        """
        here = identity(fd)
        if here == self.place.identity:
            return
        if here.is_same(self.place.identity):
            self.place = self.catalogue.rebind(self.place.n, here, self.root)
            return
        known = self.catalogue.tree(self.place.n)
        if not rebind and known != EMPTY_DIGEST and not self.catalogue.brackets(self.place.n):
            self._looking.forget()
            tree = self._looking.captured(fd, None)
            if known is not None and tree != known:
                raise Conflict(
                    f"{self.path} is another directory than the one watched over, and "
                    f"{self._differing(known, tree)}: `relocate` takes it as it is"
                )
        if rebind:
            self.catalogue.drop_journal(self.place.n)
        self._rebind(here)

    def _differing(self, known: bytes, tree: bytes) -> str:
        try:
            paths = [path for path, _, _ in diff_trees(self.get, known, tree)]
        except (NotFound, Damaged):
            return "its content differs"
        few = ", ".join(shown(path) for path in paths[:3])
        return f"{len(paths)} paths differ ({few}{', …' if len(paths) > 3 else ''})"

    # --- scanning ------------------------------------------------------------------------

    def scan(
        self, log: Log, store: Store | None = None, *, rebind: bool = False,
        stop: Callable[[], bool] | None = None,
    ) -> bytes:  # fmt: skip
        """The present tree, stored; `log` relies on it from now on.

        `stop` is asked now and then; the scan ends with `Stopped` if it says so.
        """
        with self.locked(store, rebind=rebind) as root:
            return self._scan(root, log, stop=stop)

    def is_new(self) -> bool:
        """Whether nothing was ever scanned here."""
        return self.catalogue.tree(self.place.n) is None

    def grab(self, log: Log, paths: list[bytes]) -> bytes:
        """A tree of these paths alone, stored, without waiting for a scan under way."""
        fd = self._open_root(False)
        if fd < 0:
            return self._looking.gone(log)
        try:
            tree, contents = grab(fd, paths)
        finally:
            os.close(fd)
        self.blobs.write(contents.items(), [Reference(*log, tree)])
        return tree

    def _scan(
        self, root: int, log: Log, paths: Collection[bytes] | None = None,
        stop: Callable[[], bool] | None = None, *, sync: bool = True,
    ) -> bytes:  # fmt: skip
        tree = self._looking.captured(root, log, paths, stop, sync=sync)
        self.catalogue.record(self.place.n, tree)
        return tree

    def head(self) -> str | None:
        """What git has checked out in the root: a branch with its commit, or a commit."""
        try:
            fd = os.open(self.root, DIRECTORY)
        except OSError:
            return None
        try:
            return git_head(fd)
        finally:
            os.close(fd)

    def not_captured(self) -> list[tuple[str, str, int]]:
        """What the last scan did not keep: path, reason, size."""
        return self._looking.not_captured()

    # --- who did what --------------------------------------------------------------------

    def begin(
        self, log: Log, name: str, call: str | None, paths: list[bytes] | None,
        store: Store | None = None, *, rebind: bool = False, runner: Runner | None = None,
    ) -> Bracket:  # fmt: skip
        """A call begins; its bracket holds the tree it begins with.

        `runner` is the process that runs the call, if it is not this one.
        """
        n = self.place.n
        with self.locked(store, rebind=rebind) as root:
            tree = self._looking.captured(root, log, paths)
            self._looking.settle(paths)
            return self.catalogue.open_bracket(n, log[1], tree, paths, name, call, runner)

    def open(self, log: Log, name: str) -> Bracket:
        """A bracket that begins with the newest state known, whoever found that."""
        return self.catalogue.open_bracket(self.place.n, log[1], None, None, name, None)

    def end(
        self, bracket: Bracket, log: Log, store: Store | None = None, *, told: bool = True
    ) -> tuple[bytes, Attributed | None]:
        """A call is over: the tree now, and what the call did to the files, if anything.

        Who is about to tell it in a log says `told=False`, and calls `drop` once that is
        done: killed in between, the bracket is an orphan and can be ended again.

        What it left lies in its files too, so contents are synced as events are.
        """
        done = None
        sync = store is None or store.durability == "synced"
        with self.locked(store) as root:
            try:
                tree = self._scan(root, log, bracket.paths, sync=sync)
                done = self._attributed(bracket, tree)
                if done is not None:
                    self._rely(log, done)
            finally:
                if told or done is None:
                    self.drop(bracket)
                else:
                    self.catalogue.end_bracket(bracket)
        return tree, done

    def drop(self, bracket: Bracket) -> None:
        """Forget a call: it is told, or there is nothing to tell."""
        self.catalogue.close_bracket(self.place.n, bracket)

    def _attributed(self, bracket: Bracket, tree: bytes) -> Attributed | None:
        # Here, as a hook that opens a bracket pays for every import.
        from .attribution import attribute

        others = self.catalogue.brackets(self.place.n)
        open_now = {other.id for other in others if not other.ended}
        spans = self.catalogue.transitions(self.place.n, bracket.opened)
        long = time.time() - bracket.since > LONG_CALL
        return attribute(self.get, bracket, tree, spans, open_now, long=long)

    def _rely(self, log: Log, done: Attributed) -> None:
        """Trees between a call's scans may have been found by other sessions, and go with them."""
        own = {done.before, done.after}
        parts = {tree for part in done.parts for tree in (part.before, part.after)} - own
        if parts:
            self.blobs.write([], [Reference(*log, tree) for tree in parts])

    def orphans(self, owner: str) -> list[Bracket]:
        """Calls of a session that a crash left open."""
        open_now = self.catalogue.brackets(self.place.n)
        return [bracket for bracket in open_now if bracket.owner == owner and is_dead(bracket)]

    # --- restoring -----------------------------------------------------------------------

    def preview(
        self, log: Log, plan_for: Callable[[bytes], Plan], store: Store | None = None
    ) -> Plan:
        """The plan for the present state."""
        with self.locked(store) as root:
            return plan_for(self._scan(root, log))

    def restore(
        self,
        log: Log,
        plan_for: Callable[[bytes], Plan],
        journal_for: Callable[[Plan, bytes], Journal],
        append: Callable[[Journal, bytes], None],
        store: Store | None = None,
    ) -> Restored:
        """Apply the plan that `plan_for` gives for the present tree, and `append` its events.

        The present state is stored first; that is what undo goes back to. Where the plan
        changes nothing, nothing is appended.
        """
        from .restore import HalfRestored, Restore

        with self.locked(store, make=True) as root:
            now = self._scan(root, log)
            plan = plan_for(now)
            if not plan.acts:
                return Restored(plan, now, now)
            self._check_contents(plan)
            if os.fstatvfs(root).f_flag & os.ST_RDONLY:
                raise StoreFailed(
                    f"{self.path} is on a read-only file system: nothing was changed",
                    errno=errno.EROFS,
                )
            if self.catalogue.journal(self.place.n) is not None:
                raise Conflict(
                    f"a restore was cut short, and {self.path} is another directory now: "
                    "`relocate` gives that restore up"
                )
            journal = journal_for(plan, now)
            self.catalogue.write_journal(self.place, journal.encoded())
            try:
                done = Restore(root, journal.id, self.blobs.get).apply(plan)
            except HalfRestored:
                raise
            except BaseException as error:
                if isinstance(error, StoreFailed):
                    self.catalogue.drop_journal(self.place.n)
                raise
            after = self._verified(root, log, done)
            append(journal, after)
            if store is not None:
                # Files and log agree after a power cut too.
                store.flush()
            self.catalogue.drop_journal(self.place.n)
            return Restored(done, now, after)

    def _verified(self, root: int, log: Log, plan: Plan) -> bytes:
        """The tree after a restore, looking only at what it touched."""
        return self._scan(root, log, [step.path for step in plan.steps])

    def _check_contents(self, plan: Plan) -> None:
        """Refuse before anything is touched if a content cannot be had."""
        for digest, path in plan.needed().items():
            try:
                self.blobs.get(digest)
            except (NotFound, Damaged) as error:
                raise type(error)(
                    f"the content of {shown(path)} cannot be had: {error}; nothing was changed, "
                    "and `paths` can leave it out"
                ) from error

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
        from .journal import decoded, tell
        from .restore import Restore

        journal = decoded(content)
        done = Restore(root, journal.id, self.blobs.get).finish(journal.plan)
        tell(journal, self._verified(root, journal.log, done), store)
        self.catalogue.drop_journal(self.place.n)
        for step in done.conflicts:
            if step not in journal.plan.steps:
                self._complain(f"a restore was finished without {shown(step.path)}: {step.reason}")

    def _complain(self, note: str) -> None:
        if note not in self.problems:
            self.problems.append(note)

    def close(self) -> None:
        """Save the index, and let go of the lock's file."""
        if self._looking.unsaved:
            with self._lock:
                self._looking.save()
        self._lock.close()


def _identity_at(path: bytes) -> Identity | None:
    try:
        fd = os.open(path, DIRECTORY)
    except OSError:
        return None
    try:
        return identity(fd)
    finally:
        os.close(fd)
