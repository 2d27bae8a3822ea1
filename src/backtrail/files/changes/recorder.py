"""What calls do to a session's files, as events.

Whatever a call does, by whatever means, lies between two scans: its *bracket*. The event of
the call carries the trees before and after it. What others did in between is a `files_changed`
event. Nothing changed means no event and no new tree.

A call is one bracket, or several in a row: at a point that can be gone back to, what it
did so far is an event of its own, and it goes on in a new bracket.

The recorder appends nothing. What it owes the log waits until its user appends it, and only
then does the bracket go. So a crash loses nothing: the next process finds the bracket and
owes the event. The event names its bracket, so none is recorded twice.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ...errors import BacktrailError
from ...events import Event, Json, NewEvent
from ..trees import differing
from ..workspace.firstimport import PARTIAL
from .brackets import (
    NOBODY,
    Bracket,
    Ended,
    Grab,
    Queue,
    Runner,
    call_event,
    details,
    is_recorded,
    named_in,
    others_events,
    own_birth,
)
from .host import Folder

if TYPE_CHECKING:
    from ..workspace.snapshot import Log
    from ..workspace.workspace import Workspace
    from .brackets import Split
    from .reversal import Reversal


class Recorder:
    """Watches over a session's directory, and says in events what happened there.

    The calls under way are those that began here.
    """

    shared = False
    """Whether several processes record one session, as hooks do: see `SharedRecorder`."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.lock = folder.lock
        """Held while what is known about calls changes."""
        self.tree: bytes | None = None
        """The state of the directory as this session last saw it."""
        self.under_way: dict[str, Bracket] = {}
        """The bracket that each call is in now, by the one that it began with."""
        self.asked: dict[str, Bracket] = {}
        """The calls that a message opened, by the model's id of the call."""
        self.unseen: set[str] = set()
        """Calls that ended, and whose files could not be looked at then."""
        self.queue = Queue()
        """What is to be appended, in order. Those with an id are appended alone: where another
        process was quicker they are skipped, and nothing must hang on them."""
        self._store = folder.store
        self._id = folder.id
        self._host = folder.host
        self._turn: Bracket | None = None

    def after_fork(self) -> None:
        """Leave to the parent what is owed, too."""
        self.lock = self.folder.after_fork()
        self.queue = Queue()

    @property
    def log(self) -> Log:
        """The session's log, as contents name it that it relies on."""
        return self.folder.log

    @property
    def workspace(self) -> Workspace | None:
        """The workspace, if it is open."""
        return self.folder.opened

    def watched(self) -> Workspace | None:
        """The workspace, opened when first needed; None where files are not captured."""
        return self.folder.opened or self.folder.workspace()

    def known_tree(self) -> bytes | None:
        """The state that this session knows last, from its log where it has not looked yet."""
        if self.tree is None:
            self.tree = self._host.known()
        return self.tree

    # --- what is owed --------------------------------------------------------------------

    def settle(self, count: int) -> None:
        """The first events that were owed are in the log, and their brackets go.

        They go when there is time: what is stored must not fail here.
        """
        for _, bracket in self.queue.take(count):
            if bracket is not None and self.workspace is not None:
                self.workspace.recorded(bracket)

    def owe_call(
        self, bracket: Bracket, how: str, files: dict[str, Json], id: str | None = None
    ) -> None:
        """Owe what a call did that no event of its own says, or not now."""
        id = bracket.id if self.shared else id
        self.queue.put(call_event(bracket, how, files, self.workspace, id), bracket)

    def _owe_others(self, tree: bytes, besides: str = "", *, prompt: bool = False) -> None:
        """Owe `files_changed` for changes that none of this session's calls made."""
        self.owe_others(tree)

    def owe_others(self, tree: bytes, back: Reversal | None = None) -> None:
        """Owe `files_changed` for how `tree` differs from what this session knew.

        What the session's own agent put `back` is an event of its own.
        """
        known, here = self.known_tree(), self.workspace
        rebound, self.folder.rebound = self.folder.rebound, False
        if known is None or known == tree:
            return
        if rebound and here is not None and (how := differing(here.get, known, tree)):
            self._host.complain("moved", f"{here.path} is another directory: {how}")
        for event in others_events(known, tree, back, here):
            self.queue.put(event, None)

    # --- looking -------------------------------------------------------------------------

    def look(self, *, over: bool = False, prompt: bool = False) -> dict[str, Json]:
        """Scan: what the next event says about the files; empty where none are captured.

        What calls under way did so far is owed, and they go on; with `over`, those that
        messages opened end. Ignore rules that changed are in force from a `prompt` on.
        """
        workspace = self.watched()
        if workspace is None:
            return {}
        with self.lock:
            ended = {bracket.id for bracket in self.asked.values()} if over else set()
            try:
                if self.folder.importing and self.folder.is_partial(0):
                    return details(None, {"missed": PARTIAL}, self.workspace)
                self.end_orphans(workspace)
                chosen = self.folder.fresh or self.folder.rebound
                adopt = prompt or self._starts()
                tree = workspace.scan(self.log, self._store, rebind=chosen, adopt=adopt)
                owes = self._catch_up(workspace, ended)
            except BacktrailError as error:
                self._host.missed(error)
                return details(None, {"missed": str(error)}, self.workspace)
            if over:
                self.asked.clear()
            for note in workspace.problems:
                self._host.complain("restore", note)
            self.folder.fresh = False
            if not owes:
                self._owe_others(tree, prompt=prompt)
            self.tree = tree
            head = workspace.head()
            state = {"tree": tree.hex()} | ({"git": head} if head else {})
            return details(None, None, workspace, state)

    def _starts(self) -> bool:
        """Whether the session has seen nothing yet: rules are in force from its start on."""
        return self.tree is None and not self.shared and self._host.known() is None

    def _catch_up(
        self, workspace: Workspace, over: Collection[str] = (), *, before: int | None = None
    ) -> bool:
        """Owe what calls under way did so far, as the last scan found it; whether that is much.

        They go on, but for those that are `over`. Only changes that came `before` the
        transition of this number are new.
        """
        owes = False
        for first, bracket in self.going(workspace):
            if before is not None and bracket.opened >= before:
                continue
            split = workspace.catalogue.lines.split(workspace.place.n, bracket, over=first in over)
            if first in over:
                del self.under_way[first]
            elif split is not None and split.later is not None:
                self.under_way[first] = split.later
            how = "interrupted" if first in over else "so_far"
            owes = self.owe_so_far(workspace, bracket, split, how) or owes
        return owes

    def catch_up_elsewhere(self, workspace: Workspace) -> None:
        """Owe what this session's calls in other processes did so far; they go on."""
        with self.lock:
            workspace.scan(self.log, self._store)
            here = {bracket.id for bracket in self.under_way.values()}
            for bracket in self.mine(workspace):
                if not (bracket.ended or bracket.id in here):
                    split = workspace.catalogue.lines.split(workspace.place.n, bracket, over=False)
                    self.owe_so_far(workspace, bracket, split, "so_far", bracket.id)

    def owe_so_far(
        self, workspace: Workspace, bracket: Bracket, split: Split | None, how: str,
        id: str | None = None, ran_from: float | None = None,
    ) -> bool:  # fmt: skip
        """Owe what a call did up to now, if anything; whether it did."""
        done = workspace.so_far(bracket, self.log, split, ran_from) if split else None
        if done is not None:
            self.owe_call(bracket, how, done.to_dict(), id)
        return done is not None

    def going(self, workspace: Workspace) -> list[tuple[str, Bracket]]:
        """The calls under way, by the bracket that each began with."""
        # A fork of the process leaves the calls of its parent alone.
        return [(first, b) for first, b in self.under_way.items() if b.pid == os.getpid()]

    def mine(self, workspace: Workspace) -> list[Bracket]:
        """The session's calls, whichever process runs them."""
        calls = workspace.catalogue.lines.brackets(workspace.place.n)
        return [call for call in calls if call.owner == self._id]

    # --- calls ---------------------------------------------------------------------------

    def begin(
        self, name: str, call: str | None, paths: list[bytes] | None, *,
        runner: Runner | None = None, wait: float = 0,
    ) -> Bracket | Grab | None:  # fmt: skip
        """A call begins: its bracket; None if it is not captured.

        Before the first import is done, the paths that it declares are kept as they are. A
        call that declares none waits for the import, `wait` seconds at most.
        """
        workspace = self.watched()
        if workspace is None:
            return None
        try:
            if self.folder.importing and self.folder.is_partial(0 if paths is not None else wait):
                return Grab(workspace.grab(self.log, paths), paths) if paths is not None else None
        except BacktrailError as error:
            self._host.missed(error)
            return None
        with self.lock:
            workspace = self.watched()
            if workspace is None:
                return None
            try:
                bracket, owes = self._opened(workspace, name, call, paths, runner)
            except BacktrailError as error:
                self._host.missed(error)
                return None
            if not owes:
                self._owe_others(bracket.tree, bracket.id)
            self.tree = bracket.tree
            self.under_way[bracket.id] = bracket
            return bracket

    def _opened(
        self, workspace: Workspace, name: str, call: str | None, paths: list[bytes] | None,
        runner: Runner | None,
    ) -> tuple[Bracket, bool]:  # fmt: skip
        """The bracket of a call that begins, and whether others did much by then, which is owed."""
        adopt = paths is None and self._starts()
        begin = partial(workspace.begin, self.log, name, call, paths, self._store, runner, adopt)
        turn, self._turn = self._turn, None
        if turn is not None:
            # What no call claims is not the turn's own, as it uses tools.
            self.drop(turn)
        bracket = begin(self.folder.fresh or self.folder.rebound)
        if workspace.left_open or self.unseen:
            # They end before another begins, so that what they did is theirs.
            workspace.drop(bracket)
            self.end_orphans(workspace)
            bracket = begin(False)
        self.folder.fresh = False
        try:
            return bracket, self._catch_up(workspace, before=bracket.opened)
        except BacktrailError:
            workspace.drop(bracket)
            raise

    def end(self, begun: Bracket | Grab, ran_from: float | None = None) -> Ended:
        """A call is over: what its event says, which `recorded` follows.

        Where a person was asked before it ran, `ran_from` is since when it did, if known.
        """
        if isinstance(begun, Grab):
            return begun.ended(self.workspace, self.log)
        with self.lock:
            now, workspace = self.under_way.get(begun.id), self.workspace
            if now is None or workspace is None:
                # The session was closed, and the call was left to the next process that opens it.
                return Ended(begun, {})
            if now.files is not None:
                # Another process found it over, and kept what it had done by then.
                del self.under_way[begun.id]
                return Ended(now, details(now, now.files, self.workspace))
            try:
                tree, done = workspace.end(now, self.log, self._store, ran_from=ran_from)
            except BaseException as failure:
                # The next look ends it.
                self.unseen.add(now.id)
                workspace.meetings.beat(now.mark)
                if not isinstance(failure, BacktrailError):
                    raise
                return Ended(now, details(None, {"missed": str(failure)}, self.workspace), failure)
            finally:
                del self.under_way[begun.id]
            if done is None:
                # What changed all the same is not its own, and owed with the next look.
                return Ended(now, {})
            self.tree = tree
            return Ended(now, details(now, done.to_dict(), self.workspace))

    def drop(self, begun: Bracket | Grab) -> None:
        """Forget a call that is under way."""
        with self.lock:
            now = None if isinstance(begun, Grab) else self.under_way.pop(begun.id, None)
            if now is not None and self.workspace is not None:
                self.workspace.drop(now)

    def beat(self) -> None:
        """The calls that began here are at work: what changed up to now is theirs, if we die."""
        with self.lock:
            if self.workspace is not None:
                for bracket in self.under_way.values():
                    self.workspace.meetings.beat(bracket.mark)

    # --- calls that messages open --------------------------------------------------------

    def drop_asked(self, id: str | None) -> None:
        """A call has a bracket of its own: the one that its message opened is not needed."""
        with self.lock:
            if id is not None and (bracket := self.asked.pop(id, None)) is not None:
                self.drop(bracket)

    def end_asked(self) -> None:
        """The conversation went elsewhere: calls of messages that have no result get none."""
        with self.lock:
            if self.workspace is not None and self.asked:
                self._end_calls(self.workspace, {b.id for b in self.asked.values()})

    def _end_calls(self, workspace: Workspace, over: Collection[str]) -> None:
        """Calls are over, whether or not it can be said now what they did."""
        with self._noting():
            self._catch_up(workspace, over)
            self.asked.clear()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Take a note of what fails, and go on."""
        try:
            yield
        except BacktrailError as error:
            self._host.complain("not captured", str(error))

    # --- events of calls -----------------------------------------------------------------

    def recorded(self, ended: Iterable[Ended], events: Collection[Event] = ()) -> None:
        """These events are in the log. What a call did that none of them names is owed all the
        same: one that was there before does not say it.
        """
        named = [id for event in events for id in named_in(event)]
        for one in ended:
            if one.bracket is None:
                continue
            if one.bracket.id not in named:
                if one.files and "after" in one.files:
                    self.owe_call(one.bracket, "interrupted", one.files)
            elif self.workspace is not None:
                self.workspace.recorded(one.bracket)

    # --- turns ---------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """What changes from here on is the turn's, unless it uses tools."""
        workspace = self.watched()
        if self.folder.importing and self.folder.is_partial(0):
            return
        with self.lock:
            if workspace is not None and self.tree is not None and self._turn is None:
                bracket = self._turn = workspace.open(self.log, "turn")
                self.under_way[bracket.id] = bracket

    def end_turn(self) -> list[Ended]:
        """The turn is over: what it did is owed. `report_missed` is to follow the append."""
        bracket, self._turn = self._turn, None
        if self.asked:
            self.look(over=True)
        ended = [] if bracket is None else [self.end(bracket)]
        for one in ended:
            if one.details:
                event = NewEvent("action", {"name": "turn", **one.details})
                self.queue.put(event, None if one.failure else one.bracket)
        return ended

    # --- calls without an end ------------------------------------------------------------

    def end_all(self) -> None:
        """Every call is over: the directory is let go of."""
        workspace = self.workspace
        if workspace is None or not (self.under_way or self.unseen):
            return
        with self._noting():
            self.end_orphans(workspace)
            self.tree = workspace.scan(self.log, self._store)
        self._end_calls(workspace, set(self.under_way))

    def end_orphans(self, workspace: Workspace) -> None:
        """Owe what calls did that a crash left open, or a session that was closed."""
        for bracket in workspace.orphans(self._id, self.unseen, self._store):
            self._end_left(workspace, bracket)
        self.unseen.clear()

    def _end_left(self, workspace: Workspace, bracket: Bracket, *, late: bool = True) -> None:
        """End a call that has no other end, and owe what it did, unless the log has it."""
        if bracket.ended and is_recorded(bracket, self._store.read(self._id, reverse=True)):
            workspace.drop(bracket)
            return
        files = bracket.files
        if files is None:
            _, done = workspace.end(bracket, self.log, self._store, late=late)
            files = done.to_dict() if done is not None else None
        else:
            workspace.keep(bracket, files, Runner(os.getpid(), own_birth(os.getpid())))
        self.unseen.discard(bracket.id)
        if files is not None:
            # Two processes may do this at once: the store takes one id only once.
            over = self.shared and bracket.ended
            self.owe_call(bracket, "" if over else "interrupted", files, bracket.id)
            self.tree = bytes.fromhex(files["after"])

    def leave(self) -> None:
        """Keep what is owed for the next process that opens the session.

        The caller keeps others from appending.
        """
        if self.workspace is not None:
            with self._noting():
                for event, bracket in self.queue.take():
                    if bracket is not None:
                        self.workspace.keep(bracket, event.data["files"], NOBODY)
