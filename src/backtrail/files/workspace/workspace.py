"""A workspace: a directory being watched over. Scanned into trees, restored from trees.

All that touches the directory goes through here, under the workspace's lock: scans, the
line of time, restores. Contents go to the blob store, attribution to the catalogue beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace as replaced

from ...errors import NotFound
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
from .meetings import OpenCall, UnderWay, distinct
from .root import Rooted
from .roots import git_head, identity_at
from .snapshot import Log

if TYPE_CHECKING:
    from ..changes.attribution import Attributed

LONG_CALL = 10.0
"""Seconds after which a person may well have saved a file during a shell call."""


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
        self.expect(log, store)
        with self.locked(store, rebind=rebind) as root:
            return self.looked(root, log, store, stop, adopt=adopt)

    def looked(
        self, root: int, log: Log, store: Store | None,
        stop: Callable[[], bool] | None = None, *, adopt: bool = False,
    ) -> bytes:  # fmt: skip
        """Scan, and end the calls that are over by now. The caller holds the lock."""
        tree = self.scanned(root, log, stop=stop, adopt=adopt)
        self._end_left(tree, log, store)
        return tree

    def glance(self, log: Log, store: Store | None = None) -> bytes:
        """The present tree, stored; unlike `scan`, no call ends by it."""
        self.expect(log, store)
        with self.locked(store) as root:
            return self.scanned(root, log)

    def is_new(self) -> bool:
        """Whether nothing was ever scanned here."""
        return self.catalogue.lines.tree(self.place.n) is None

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

    # --- calls ---------------------------------------------------------------------------

    def begin(
        self, log: Log, name: str, call: str | None, paths: list[bytes] | None,
        store: Store | None = None, runner: Runner | None = None, adopt: bool = False,
        rebind: bool = False,
    ) -> Bracket:  # fmt: skip
        """A call begins; its bracket holds the tree it begins with.

        `runner` is the process that runs the call, if it is not this one; `adopt` as in `scan`.
        """
        self.expect(log, store)
        with self.locked(store, rebind=rebind) as root:
            n = self.place.n
            opening = self._opening(log, name, paths, runner)
            try:
                tree = self._looking.captured(root, log, paths, sync=False, adopt=adopt)
                self._end_left(tree, log, store)
                bracket, there = self.catalogue.lines.open_bracket(
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
            return self.catalogue.lines.open_bracket(
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
        self, bracket: Bracket, log: Log, store: Store | None = None, *,
        ran_from: float | None = None, late: bool = False,
    ) -> tuple[bytes, Attributed | None]:  # fmt: skip
        """A call is over: the tree now, and what the call did to the files, if anything.

        The caller records that, and calls `recorded` or `drop` then: killed in between, the
        bracket is an orphan and can be ended again. So it can where the files cannot be looked
        at, and this raises.

        What it left lies in its files too, so contents are synced as events are. Where a person
        was asked before it ran, `ran_from` is since when it did, if that is known. One that is
        found over so `late` that others may have been here since has had a last sign of life.
        """
        sync = store is None or store.durability == "synced"
        with self.locked(store) as root:
            tree = self._looking.captured(root, log, bracket.paths, sync=sync)
            self._number(tree)
            until = self._last_sign(bracket, store) if late else None
            done = self._ended(bracket, tree, log, ran_from, until)
            self._end_left(tree, log, store)
        return tree, done

    def _ended(
        self, call: Bracket, tree: bytes, log: Log, ran_from: float | None = None,
        until: float | None = None, *, late: bool = False,
    ) -> Attributed | None:  # fmt: skip
        """End a call with a tree: what it did, which is to be recorded."""
        met = self._met(call)
        spans, open_now = self.catalogue.lines.end_bracket(self.place.n, call, tree, met=met)
        self._unmark(call)
        done = None
        try:
            done = self._attributed(call, tree, spans, open_now, met, ran_from, until, late=late)
            if done is not None:
                self._rely(log, done, () if late else (done.before, done.after))
        finally:
            if spans and done is None:
                self.drop(call)
        return done

    def _met(self, bracket: Bracket) -> list[Met]:
        """The calls elsewhere that a call met. Its files were scanned before this."""
        owner = f"{bracket.owner}@{bracket.store}"
        return distinct([*bracket.met, *self.meetings.met(bracket.mark, owner)])

    def _unmark(self, bracket: Bracket) -> None:
        """Strike a call from the open ones of this machine, with the last of its brackets."""
        calls = self.catalogue.lines.brackets(self.place.n)
        if bracket.mark and all(
            call.mark != bracket.mark or call.id == bracket.id for call in calls
        ):
            self.meetings.close(bracket.mark)

    # --- calls without an end ------------------------------------------------------------

    def _end_left(self, tree: bytes, log: Log, store: Store | None) -> None:
        """End other sessions' calls whose process is gone, or whose turn: this look is their end.

        What they did is kept for their own session to record.
        """
        for call in self.catalogue.lines.brackets(self.place.n):
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
        """Up to when a change is a call's: when it was last known to be at work, see `beat`.

        One that has only begun, or was stopped, may go on for a moment.
        """
        from ..changes.attribution import GRACE, stopped_at

        known = store is not None and call.store in ("", store_name(store))
        stopped = stopped_at(call, store) if known and store is not None else None
        return max(max(call.since, stopped or 0.0) + GRACE, self.meetings.beaten(call.mark))

    def end_open(self, log: str, store: Store | None) -> list[Bracket]:
        """End every call that is open here, whichever process runs it; what it did is kept for its
        session.

        `log` is the name of the store that asks for it.
        """
        with self.locked(store) as root:
            calls = [c for c in self.catalogue.lines.brackets(self.place.n) if not c.ended]
            if calls:
                own = calls[0].store or log, calls[0].owner
                tree = self.scanned(root, own)
                for call in calls:
                    self._end_for(call, tree, own, store)
        return calls

    def _end_for(self, call: Bracket, tree: bytes, log: Log, store: Store | None) -> None:
        """End a call for its session, late as it may be. The caller holds the lock."""
        own = call.store or log[0], call.owner
        done = self._ended(call, tree, own, until=self._last_sign(call, store), late=True)
        if done is not None:
            self.keep(call, done.to_dict(), NOBODY)

    def so_far(
        self, bracket: Bracket, log: Log, split: Split, ran_from: float | None = None
    ) -> Attributed | None:
        """What a call did up to now, if anything; it is to be recorded, as after `end`."""
        done = None
        try:
            tree, spans, open_now, _ = split
            done = self._attributed(bracket, tree, spans, open_now, self._met(bracket), ran_from)
            if done is not None:
                self._rely(log, done, (done.before, done.after))
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
        spans, open_now = self.catalogue.lines.seen_by(self.place.n, bracket)
        met = self._met(bracket)
        until = self._last_sign(bracket, store) if late else None
        open_now = open_now.difference(besides)
        return self._attributed(bracket, tree, spans, open_now, met, until=until)

    def keep(self, bracket: Bracket, files: dict[str, Json], runner: Runner) -> None:
        """What an ended call did is kept for the process that is to record it."""
        stamped = bracket if bracket.stamp else replaced(bracket, stamp=self.stamp())
        self.catalogue.lines.keep_bracket(self.place.n, stamped, files, runner)

    def drop(self, bracket: Bracket) -> None:
        """Forget a call: it is recorded, or there is nothing to record."""
        self.catalogue.lines.close_bracket(self.place.n, bracket)
        self._unmark(bracket)

    def recorded(self, bracket: Bracket) -> None:
        """Forget a call whose work is recorded, soon: killed before that, its
        session finds an orphan, and has to look into its log to see that it is recorded.
        """
        self.catalogue.lines.settle_bracket(self.place.n, bracket)

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
        from ..changes.attribution import touched_at

        at = touched_at(self.root + b"/" + path)
        return at < ran_from or (until is not None and at > until)

    def _rely(self, log: Log, done: Attributed, known: Collection[bytes]) -> None:
        """Trees between a call's scans may have been found by other sessions, and go with them.

        On those `known` the log relies already.
        """
        trees = {done.before, done.after}
        trees.update(tree for part in done.parts for tree in (part.before, part.after))
        if trees := trees.difference(known):
            self.blobs.write([], [Reference(*log, tree) for tree in trees])

    def orphans(
        self, owner: str, besides: Collection[str] = (), store: Store | None = None
    ) -> list[Bracket]:
        """Calls of a session that are over and were not ended; and `besides`."""
        open_now = self.catalogue.lines.brackets(self.place.n)
        return [
            call
            for call in open_now
            if call.id in besides
            or _is_orphan(call, owner)
            or (call.owner == owner and not call.ended and self.is_over(call, store))
        ]

    # --- beside restores -----------------------------------------------------------------

    def note_restore(self, log: Log, paths: list[bytes]) -> None:
        """What a restore did at `paths` is no call's that is open in another store or root."""
        by = OpenCall(*log, "restore", os.getpid(), own_birth(os.getpid()), paths, time.time())
        try:
            self.meetings.restored(by)
        except OSError as error:
            self.complain(f"a call elsewhere does not know of a restore: {error.strerror}")

    def is_stranger(self) -> Callable[[bytes], bool] | None:
        """Whether a file came from where nothing is captured; None if no file did."""
        strangers = self._looking.strangers()

        def is_one(path: bytes) -> bool:
            with descriptor(self.root, DIRECTORY) as root:
                found = identity_at(root, path)
            return found is not None and strangers.get(found.inode) == found.born != 0

        return is_one if strangers else None

    def was_control(self, path: bytes) -> bool:
        """Whether what is not captured at a path was once version control's here."""
        return self._looking.was_control(path)

    def under_way(self, log: Log, store: Store | None = None) -> list[UnderWay]:
        """The calls of others that are open here, above or below. The caller holds the lock.

        The session's own calls in this process are not among them: these know.
        """
        found = []
        for call in self.catalogue.lines.brackets(self.place.n):
            own = call.owner == log[1] and call.pid == os.getpid()
            if not (own or call.ended or self.is_over(call, store)):
                found.append(UnderWay(call.owner, call.name, call.program, call.pid, call.since,
                                      self.path))  # fmt: skip
        for _, other, root in self.meetings.others(f"{log[1]}@{log[0]}"):
            if not is_gone(other.pid, other.born):
                found.append(UnderWay(other.session, other.name, other.agent, other.pid,
                                      other.since, shown(root.path)))  # fmt: skip
        return found


def _is_orphan(bracket: Bracket, owner: str) -> bool:
    return bracket.owner == owner and is_dead(bracket)
