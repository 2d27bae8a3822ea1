"""A workspace: a directory being watched over. Scanned into trees, restored from trees.

All that touches the directory goes through here, under the workspace's lock: scans, the
line of time, restores. Contents go to the blob store, attribution to the catalogue beside it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace as replaced

from ..._startup.frozen import NamedTuple
from ...errors import Conflict, Damaged, NotFound, Owner, SessionBusy, StoreFailed
from ...events import Json, new_id, timestamp
from ...stores.base import Store
from ...stores.disk.fs import failed
from ...stores.wrapper import store_name
from ..beneath import DIRECTORY, descriptor
from ..changes.brackets import (
    NOBODY,
    Bracket,
    Met,
    Opening,
    Runner,
    Split,
    Transition,
    is_dead,
    is_gone,
    own_birth,
)
from ..contents.blobs import Reference
from ..names import shown
from .firstimport import grab
from .meetings import OpenCall, distinct
from .root import Rooted
from .roots import git_head, identity_at
from .snapshot import Log

if TYPE_CHECKING:
    from ..changes.attribution import Attributed
    from ..restore.journal import Journal
    from ..restore.moves import Local
    from ..restore.plan import Plan

LONG_CALL = 10.0
"""Seconds after which a person may well have saved a file during a shell call."""


class UnderWay(NamedTuple):
    """A call that is open, as it is shown to a person."""

    session: str
    name: str
    program: str
    pid: int
    since: float
    root: str

    def __str__(self) -> str:
        program = f" of {self.program}" if self.program else ""
        return (
            f"`{self.name}` in session `{self.session}`{program} (process {self.pid}, since "
            f"{timestamp(self.since)}) is under way in {self.root}"
        )

    def refusal(self) -> SessionBusy:
        """The error for a caller that wants to go back meanwhile."""
        return SessionBusy(
            f"{self}: what it does could not be told from a way back; nothing was changed. Wait "
            "for it, or insist with `--force` (in Python `force=True`)",
            owner=Owner(self.pid, os.uname().nodename, timestamp(self.since)),
        )


class Restored(NamedTuple):
    """A plan as it went, and the trees around it."""

    plan: Plan
    before: bytes
    after: bytes


class Workspace(Rooted):
    """One watched directory, on one blob store. May be used from several threads."""

    left_open: Sequence[Bracket] = ()
    """Calls of the session that a crash left open, as the last `begin` found them."""

    # --- scanning ------------------------------------------------------------------------

    def scan(
        self, log: Log, store: Store | None = None, *, rebind: bool = False,
        stop: Callable[[], bool] | None = None, adopt: bool = False,
    ) -> bytes:  # fmt: skip
        """The present tree, stored; `log` relies on it from now on.

        `stop` is asked now and then; the scan ends with `Stopped` if it says so. `adopt` brings
        ignore rules into force that changed since the last prompt.
        """
        self._expect(log, store)
        with self.locked(store, rebind=rebind) as root:
            return self._looked(root, log, store, stop, adopt=adopt)

    def _looked(
        self, root: int, log: Log, store: Store | None,
        stop: Callable[[], bool] | None = None, *, adopt: bool = False,
    ) -> bytes:  # fmt: skip
        """Scan, and end the calls that are over by now. The caller holds the lock."""
        tree = self._scan(root, log, stop=stop, adopt=adopt)
        self._end_left(tree, log, store)
        return tree

    def glance(self, log: Log, store: Store | None = None) -> bytes:
        """The present tree, stored; unlike `scan`, no call ends by it."""
        self._expect(log, store)
        with self.locked(store) as root:
            return self._scan(root, log)

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

    def head(self) -> str | None:
        """What git has checked out in the root: a branch with its commit, or a commit."""
        try:
            with descriptor(self.root, DIRECTORY) as fd:
                return git_head(fd)
        except OSError:
            return None

    def not_captured(self) -> list[tuple[str, str, int]]:
        """What the last scan did not keep: path, reason, size."""
        return self._looking.not_captured()

    def local(self) -> Local:
        """What this machine knows of the present state, and no tree says."""
        from ..restore.moves import Local

        strangers = self._looking.strangers()

        def is_stranger(path: bytes) -> bool:
            with descriptor(self.root, DIRECTORY) as root:
                found = identity_at(root, path)
            return found is not None and strangers.get(found.inode) == found.born != 0

        return Local(self._looking.was_control, is_stranger if strangers else None)

    # --- who did what --------------------------------------------------------------------

    def begin(
        self, log: Log, name: str, call: str | None, paths: list[bytes] | None,
        store: Store | None = None, *, rebind: bool = False, runner: Runner | None = None,
        adopt: bool = False,
    ) -> Bracket:  # fmt: skip
        """A call begins; its bracket holds the tree it begins with.

        `runner` is the process that runs the call, if it is not this one; `adopt` as in `scan`.
        """
        self._expect(log, store)
        with self.locked(store, rebind=rebind) as root:
            n = self.place.n
            opening = self._opening(log, name, paths, runner)
            try:
                tree = self._looking.captured(root, log, paths, sync=False, adopt=adopt)
                self._end_left(tree, log, store)
                bracket, there = self.catalogue.open_bracket(
                    n, log[1], tree, paths, name, call, runner, opening
                )
            except BaseException:
                self.meetings.close(opening.mark)
                raise
            self.left_open = [other for other in there if _is_orphan(other, log[1])]
            try:
                self._number(tree)
                # Last: after a wait for the disk a process is slow for a while.
                self._looking.settle(paths)
            except BaseException:
                self.drop(bracket)
                raise
            self.meetings.beat(bracket.mark)
            return bracket

    def open(self, log: Log, name: str) -> Bracket:
        """A bracket that begins with the newest state known, whichever process found that."""
        opening = self._opening(log, name, None, None)
        try:
            return self.catalogue.open_bracket(
                self.place.n, log[1], None, None, name, None, None, opening
            )[0]
        except BaseException:
            self.meetings.close(opening.mark)
            raise

    def _opening(
        self, log: Log, name: str, paths: list[bytes] | None, runner: Runner | None
    ) -> Opening:
        """Register a call on this machine, before its files are scanned."""
        pid = os.getpid()
        pid, born, _, program, *_ = runner or Runner(pid, own_birth(pid))
        id, since = new_id(), time.time()
        call = OpenCall(*log, name, pid, born, paths, since, program, self.url)
        try:
            mark, met = self.meetings.open(id, call)
        except OSError as error:
            raise failed(error, f"register a call in {self.machine.roots}") from error
        return Opening(id, since, log[0], mark, met)

    def end(
        self, bracket: Bracket, log: Log, store: Store | None = None, *, recorded: bool = True,
        ran_from: float | None = None, late: bool = False,
    ) -> tuple[bytes, Attributed | None]:  # fmt: skip
        """A call is over: the tree now, and what the call did to the files, if anything.

        A caller that is about to record it says `recorded=False`, and calls `recorded` or `drop`
        once that is done: killed in between, the bracket is an orphan and can be ended again. So
        it can where the files cannot be looked at, and this raises.

        What it left lies in its files too, so contents are synced as events are. Where a person
        was asked before it ran, `ran_from` is since when it did, if that is known. One that is
        found over so `late` that others may have been here since has had a last sign of life.
        """
        sync = store is None or store.durability == "synced"
        with self.locked(store) as root:
            tree = self._looking.captured(root, log, bracket.paths, sync=sync)
            met = self._met(bracket)
            until = self._last_sign(bracket, store) if late else None
            spans, open_now = self.catalogue.end_bracket(
                self.place.n, bracket, tree, recorded=recorded, met=met
            )
            self._unmark(bracket)
            done = None
            try:
                self._number(tree)
                done = self._attributed(bracket, tree, spans, open_now, met, ran_from, until)
                if done is not None:
                    self._rely(log, done)
            finally:
                if spans and done is None and not recorded:
                    self.drop(bracket)
            self._end_left(tree, log, store)
        return tree, done

    def _met(self, bracket: Bracket) -> list[Met]:
        """The calls elsewhere that a call met. Its files were scanned before this."""
        owner = f"{bracket.owner}@{bracket.store}"
        return distinct([*bracket.met, *self.meetings.met(bracket.mark, owner)])

    def _unmark(self, bracket: Bracket) -> None:
        """Strike a call from the open ones of this machine, with the last of its brackets."""
        calls = self.catalogue.brackets(self.place.n)
        if bracket.mark and all(
            call.mark != bracket.mark or call.id == bracket.id for call in calls
        ):
            self.meetings.close(bracket.mark)

    # --- calls without an end ------------------------------------------------------------

    def _end_left(self, tree: bytes, log: Log, store: Store | None) -> None:
        """End other sessions' calls whose process is gone, or whose turn: this look is their end.

        What they did is kept for their own session to record.
        """
        for call in self.catalogue.brackets(self.place.n):
            if call.owner != log[1] and not call.ended and self.is_over(call, store):
                self._end_for(call, tree, log, store)

    @staticmethod
    def is_over(call: Bracket, store: Store | None) -> bool:
        """Whether an open call is over, though it was not ended.

        Its process is gone; or the agent's session is, or goes on with another prompt, or a
        person stopped it, where that is in `store`. A subagent may be at work in the background
        whatever its session is asked.
        """
        if is_dead(call):
            return True
        if call.left:
            # Its agent is done with it, its process is not.
            return False
        if not call.program or store is None or call.store != store_name(store):
            return False
        kinds = ("session_end",) if call.agent else ("user_message", "session_end")
        try:
            last = next(store.read(call.owner, kinds=kinds, reverse=True, limit=1), None)
        except NotFound:
            return True
        if last is not None and last.ts > timestamp(call.since):
            return True
        from ..changes.attribution import stopped_at

        return stopped_at(call, store) is not None

    def _last_sign(self, call: Bracket, store: Store | None) -> float:
        """When a call was last known to be at work: see `beat`."""
        from ..changes.attribution import stopped_at

        known = store is not None and call.store in ("", store_name(store))
        stopped = stopped_at(call, store) if known and store is not None else None
        return max(call.since, self.meetings.beaten(call.mark), stopped or 0.0)

    def end_open(self, log: str, store: Store | None) -> list[Bracket]:
        """End every call that is open here, whichever process runs it; what it did is kept for its
        session.

        `log` is the name of the store that asks for it.
        """
        with self.locked(store) as root:
            calls = [c for c in self.catalogue.brackets(self.place.n) if not c.ended]
            if calls:
                own = calls[0].store or log, calls[0].owner
                tree = self._scan(root, own)
                for call in calls:
                    self._end_for(call, tree, own, store)
        return calls

    def _end_for(self, call: Bracket, tree: bytes, log: Log, store: Store | None) -> None:
        """End a call for its session, late as it may be. The caller holds the lock."""
        met = self._met(call)
        until = self._last_sign(call, store)
        spans, open_now = self.catalogue.end_bracket(
            self.place.n, call, tree, recorded=False, met=met
        )
        self._unmark(call)
        done = None
        try:
            done = self._attributed(call, tree, spans, open_now, met, until=until, late=True)
            if done is not None:
                own = call.store or log[0], call.owner
                trees = {tree for part in done.parts for tree in (part.before, part.after)}
                trees |= {done.before, done.after}
                self.blobs.write([], [Reference(*own, tree) for tree in trees])
                self.keep(call, done.to_dict(), NOBODY)
        finally:
            if spans and done is None:
                self.drop(call)

    def so_far(
        self, bracket: Bracket, log: Log, split: Split, ran_from: float | None = None
    ) -> Attributed | None:
        """What a call did up to now, if anything; it is to be recorded, as after `end`."""
        done = None
        try:
            met = self._met(bracket)
            done = self._attributed(bracket, split.tree, split.spans, split.open_now, met, ran_from)
            if done is not None:
                self._rely(log, done)
        finally:
            if done is None:
                self.drop(bracket)
        return done

    def foreseen(
        self, bracket: Bracket, tree: bytes, store: Store, besides: Collection[str] = (), *,
        late: bool,
    ) -> Attributed | None:  # fmt: skip
        """What a call did if it ended now, and `besides` before it; none of them ends.

        It is `late` as in `end`.
        """
        spans, open_now = self.catalogue.seen_by(self.place.n, bracket)
        met = self._met(bracket)
        until = self._last_sign(bracket, store) if late else None
        open_now = open_now.difference(besides)
        return self._attributed(bracket, tree, spans, open_now, met, until=until)

    def keep(self, bracket: Bracket, files: dict[str, Json], runner: Runner) -> None:
        """What an ended call did is kept for the process that is to record it."""
        stamped = bracket if bracket.stamp else replaced(bracket, stamp=self.stamp())
        self.catalogue.keep_bracket(self.place.n, stamped, files, runner)

    def drop(self, bracket: Bracket) -> None:
        """Forget a call: it is recorded, or there is nothing to record."""
        self.catalogue.close_bracket(self.place.n, bracket)
        self._unmark(bracket)

    def recorded(self, bracket: Bracket) -> None:
        """Forget a call whose work is recorded, soon: killed before that, its
        session finds an orphan, and has to look into its log to see that it is recorded.
        """
        self.catalogue.settle_bracket(self.place.n, bracket)

    def _attributed(
        self, bracket: Bracket, tree: bytes, spans: list[Transition], open_now: set[str],
        met: list[Met], ran_from: float | None = None, until: float | None = None, *,
        late: bool = False,
    ) -> Attributed | None:  # fmt: skip
        if not spans:
            return None
        # Here, as a hook that opens a bracket pays for every import.
        from ..changes.attribution import attribute

        long = time.time() - bracket.since > LONG_CALL
        doubt = None
        if bracket.left or bracket.question or until is not None:
            since = 0.0 if not bracket.question else ran_from
            doubt = partial(self._is_doubtful, None if bracket.left else since, until)
        return attribute(
            self.get, bracket, tree, spans, open_now, long=long, met=met, late=late, doubt=doubt
        )

    def _is_doubtful(self, ran_from: float | None, until: float | None, path: bytes) -> bool:
        """Whether a path may have changed before its call ran, or after its last sign of life.

        Where it is not known since when it ran, it may.
        """
        if ran_from is None:
            return True
        from ..changes.attribution import GRACE, touched_at

        at = touched_at(self.root + b"/" + path)
        return at < ran_from or (until is not None and at > until + GRACE)

    def _rely(self, log: Log, done: Attributed) -> None:
        """Trees between a call's scans may have been found by other sessions, and go with them."""
        own = {done.before, done.after}
        parts = {tree for part in done.parts for tree in (part.before, part.after)} - own
        if parts:
            self.blobs.write([], [Reference(*log, tree) for tree in parts])

    def orphans(
        self, owner: str, besides: Collection[str] = (), store: Store | None = None
    ) -> list[Bracket]:
        """Calls of a session that are over and were not ended; and `besides`."""
        open_now = self.catalogue.brackets(self.place.n)
        return [
            call
            for call in open_now
            if call.id in besides
            or _is_orphan(call, owner)
            or (call.owner == owner and not call.ended and self.is_over(call, store))
        ]

    # --- restoring -----------------------------------------------------------------------

    def preview(
        self, log: Log, plan_for: Callable[[bytes], Plan], store: Store | None = None
    ) -> Plan:
        """The plan for the present state. No call ends by it, not even one that is over."""
        from dataclasses import replace

        self._expect(log, store)
        with self.locked(store) as root:
            plan = plan_for(self._scan(root, log))
            busy = self.under_way(log, store)
            notes = [f"{call}: refused meanwhile, unless by force" for call in busy]
            return replace(plan, warnings=[*plan.warnings, *notes]) if notes else plan

    def restore(
        self,
        log: Log,
        plan_for: Callable[[bytes], Plan],
        journal_for: Callable[[Plan, bytes], Journal],
        append: Callable[[Journal, bytes], None],
        store: Store | None = None,
        *,
        force: bool = True,
        unmake: bool = False,
    ) -> Restored:
        """Apply the plan that `plan_for` gives for the present tree, and `append` its events.

        The present state is stored first; that is what undo goes back to. Where the plan
        changes nothing, nothing is appended. Unless by `force`, it is refused while a call of
        others is under way here, above or below.

        A root that is gone is made again only for what comes into it. With `unmake` it goes, if
        nothing is left in it.
        """
        from dataclasses import replace

        from ..restore.restore import HalfRestored, Restore, identified

        self._expect(log, store)
        gone = self._would_do_nothing(log, plan_for, store)
        if isinstance(gone, Restored):
            return gone
        with self.locked(store, make=True, wide=True) as root:
            now = self._looked(root, log, store)
            if not force and (busy := self.under_way(log, store)):
                raise busy[0].refusal()
            plan = identified(root, plan_for(now))
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
            journal = replace(journal_for(plan, now), makes_root=gone)
            self._is_whole = False
            self.catalogue.write_journal(self.place, journal.encoded())
            try:
                done = Restore(root, journal.id, self.blobs.get).apply(plan)
            except HalfRestored:
                raise
            except BaseException as error:
                if isinstance(error, (StoreFailed, NotFound, Damaged)):
                    self.catalogue.drop_journal(self.place.n)
                    self._remove_root(gone)
                raise
            after = self._verified(root, log, done)
            self._tell_elsewhere(log, done)
            append(replace(journal, plan=done, workspace=self.stamp()), after)
            if store is not None:
                # Files and log agree after a power cut too.
                store.flush()
            self.catalogue.drop_journal(self.place.n)
            self._remove_root(unmake or gone)
            return Restored(done, now, after)

    def _would_do_nothing(
        self, log: Log, plan_for: Callable[[bytes], Plan], store: Store | None
    ) -> Restored | bool:
        """What a restore comes to that brings nothing into a root that is gone; else if it is."""
        if os.path.isdir(self.root):
            return False
        with self.locked(store, wide=True) as root:
            if root >= 0:
                return False
            now = self._looked(root, log, store)
            plan = plan_for(now)
            return True if plan.acts else Restored(plan, now, now)

    def _remove_root(self, wanted: bool) -> None:
        """Remove the root where that is `wanted` and nothing is in it."""
        if wanted:
            with suppress(OSError):
                os.rmdir(self.root)

    def _tell_elsewhere(self, log: Log, plan: Plan) -> None:
        """What a restore did is no call's that is open in another store or root."""
        paths = [step.path for step in plan.steps if step.acts]
        by = OpenCall(*log, "restore", os.getpid(), own_birth(os.getpid()), paths, time.time())
        try:
            self.meetings.restored(by)
        except OSError as error:
            self._complain(f"a call elsewhere does not know of a restore: {error.strerror}")

    def under_way(self, log: Log, store: Store | None = None) -> list[UnderWay]:
        """The calls of others that are open here, above or below. The caller holds the lock.

        The session's own calls in this process are not among them: these know.
        """
        found = []
        for call in self.catalogue.brackets(self.place.n):
            own = call.owner == log[1] and call.pid == os.getpid()
            if not (own or call.ended or self.is_over(call, store)):
                found.append(UnderWay(call.owner, call.name, call.program, call.pid, call.since,
                                      self.path))  # fmt: skip
        for _, other, root in self.meetings.others(f"{log[1]}@{log[0]}"):
            if not is_gone(other.pid, other.born):
                found.append(UnderWay(other.session, other.name, other.agent, other.pid,
                                      other.since, shown(root.path)))  # fmt: skip
        return found

    def _check_contents(self, plan: Plan) -> None:
        """Refuse before anything is touched if a content is gone; damage shows in building it."""
        from ..restore.plan import lacking

        needed = plan.needed()
        for there in self.blobs.has(needed):
            del needed[there]
        for error in lacking(needed, self.blobs.get).values():
            raise error


def _is_orphan(bracket: Bracket, owner: str) -> bool:
    return bracket.owner == owner and is_dead(bracket)
