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
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ...errors import BacktrailError
from ...events import Event, Json, NewEvent
from ...events.history import BACK, newest_look, tree_of
from ...stores.base import Store
from ..names import shown
from ..workspace.firstimport import PARTIAL
from .brackets import NOBODY, Bracket, Runner, is_recorded, named_in, own_birth
from .host import FirstImport, Folder, Host
from .owed import Ended, Grab, Owed, Queue

if TYPE_CHECKING:
    from ..workspace.snapshot import Log
    from ..workspace.workspace import Workspace
    from .reversal import Reversal

_LIFE = ("session_end", "session_resume", "user_message")
"""Kinds that say whether an agent is at a session."""


class Recorder:
    """Watches over a session's directory, and says in events what happened there.

    The calls under way are those that began here.
    """

    shared = False
    """Whether several processes record one session, as hooks do: see `SharedRecorder`."""

    def __init__(
        self, store: Store, session_id: str, host: Host, *,
        force: bool = False, background: bool = False,
        progress: Callable[[int], None] | None = None, first_import: FirstImport | None = None,
    ) -> None:  # fmt: skip
        self.folder = Folder(
            store, session_id, host, force=force, background=background, progress=progress,
            first_import=first_import,
        )  # fmt: skip
        self.tree: bytes | None = None
        """The state of the directory as this session last saw it."""
        self.under_way: dict[str, Bracket] = {}
        """The bracket that each call is in now, by the one that it began with."""
        self.asked: dict[str, Bracket] = {}
        """The calls that a message opened, by the model's id of the call."""
        self._store = store
        self._id = session_id
        self._host = host
        self._turn: Bracket | None = None
        self._unseen: set[str] = set()
        self._queue = Queue()

    def after_fork(self) -> None:
        """Leave to the parent what is owed, too."""
        self.folder.after_fork()
        self._queue = Queue()

    @property
    def lock(self) -> threading.RLock:
        """Held while what is known about calls changes."""
        return self.folder.lock

    @property
    def log(self) -> Log:
        """The session's log, as contents name it that it relies on."""
        return self.folder.log

    @property
    def workspace(self) -> Workspace | None:
        """The workspace, if it is open."""
        return self.folder.opened

    def known_tree(self) -> bytes | None:
        """The state that this session knows last, from its log where it has not looked yet."""
        if self.tree is None:
            self.tree = self._host.known()
        return self.tree

    # --- what is owed --------------------------------------------------------------------

    def owed(self) -> list[Owed]:
        """What is to be appended, in order. Those with an id are appended alone: where another
        process was quicker they are skipped, and nothing must hang on them.
        """
        return self._queue.waiting

    def settle(self, count: int) -> None:
        """The first events that were owed are in the log, and their brackets go.

        They go when there is time: what is stored must not fail here.
        """
        for _, bracket in self._queue.take(count):
            if bracket is not None and self.workspace is not None:
                self.workspace.recorded(bracket)

    def owe(self, event: NewEvent, bracket: Bracket | None) -> None:
        """Have the next append take an event along; then the bracket is not needed any more."""
        self._queue.put(event, bracket)

    def _owe_call(
        self, bracket: Bracket, how: dict[str, Json], files: dict[str, Json],
        id: str | None = None,
    ) -> None:  # fmt: skip
        """Owe what a call did that no event of its own says, or not now."""
        self.owe(self._call_event(bracket, how, files, id), bracket)

    def _call_event(
        self, bracket: Bracket, how: dict[str, Json], files: dict[str, Json],
        id: str | None = None,
    ) -> NewEvent:  # fmt: skip
        data: dict[str, Json] = {"name": bracket.name, **how, **self._details(bracket, files)}
        data |= {"call": bracket.call} if bracket.call else {}
        data |= {"agent": bracket.agent} if bracket.agent else {}
        return NewEvent("action", data, id=bracket.id if self.shared else id)

    def _owe_others(
        self, workspace: Workspace, tree: bytes, besides: str = "", *, prompt: bool = False
    ) -> None:
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
        if rebound and here is not None:
            differing = here.differing(known, tree)
            if differing:
                self._host.complain("moved", f"{here.path} is another directory: {differing}")
        for event in self._others(known, tree, back):
            self.owe(event, None)

    def _others(self, known: bytes, tree: bytes, back: Reversal | None) -> list[NewEvent]:
        found: list[NewEvent] = []
        files: dict[str, Json] = {"before": known.hex(), "after": tree.hex()}
        if back is None or back.others:
            more = {"foreign": [shown(path) for path in sorted(back.back)]} if back else {}
            found.append(NewEvent("files_changed", self._details(None, files | more)))
        if back is not None:
            more = {"foreign": [shown(path) for path in sorted(back.others)]}
            more = more if back.others else {}
            data = {BACK: back.to, **self._details(None, files | more)}
            found.append(NewEvent("files_changed", data))
        return found

    def has_agent(self) -> bool:
        """Whether the session is that of an agent with a record, and a rewind, of its own."""
        return self._agent() is not None

    def _agent(self) -> str | None:
        native = self._store.record(self._id).metadata.get("native")
        return str(native.get("agent")) if isinstance(native, dict) else None

    def is_over(self) -> bool:
        """Whether the agent has left the session: what changes then is not its doing."""
        for event in self._store.read(self._id, reverse=True, kinds=_LIFE):
            # A session that a person opens here is not thereby open in the agent.
            if event.kind != "session_resume" or "by" in event.data:
                return event.kind == "session_end"
        return False

    def put_back(
        self, workspace: Workspace, tree: bytes, owed: Sequence[NewEvent] = ()
    ) -> Reversal | None:
        """What the session's agent put back by itself since the last look.

        The events that are `owed` count as recorded. While a call of the session is open, whatever
        changes is perhaps the call's.
        """
        known = self._known_behind(owed)
        if known is None or known == tree or not self.has_agent():
            return None
        over = {b.id for b in workspace.orphans(self._id, self._unseen, self._store)}
        if any(not b.ended and b.id not in over for b in self._mine(workspace)):
            return None
        return self._reversal(workspace, known, tree, owed)

    def foresee_back(
        self, workspace: Workspace, tree: bytes, owed: Sequence[NewEvent]
    ) -> list[NewEvent]:
        """What going back would record of the agent's own, behind what is `owed` already."""
        known, back = self._known_behind(owed), self.put_back(workspace, tree, owed)
        return [] if known is None or back is None else self._others(known, tree, back)

    def _known_behind(self, owed: Sequence[NewEvent]) -> bytes | None:
        """The state that is known once `owed` is recorded. A preview keeps it nowhere: until the
        deed others may append.
        """
        trees = (tree_of(_as_event(one)) for one in reversed(owed))
        newest = next((tree for tree in trees if tree is not None), None)
        return newest or self.tree or self._host.known()

    def _reversal(
        self, workspace: Workspace, known: bytes, tree: bytes, owed: Sequence[NewEvent] = ()
    ) -> Reversal | None:
        from .reversal import MEANS, reversal

        means = MEANS.get(self._agent() or "")
        if means is None or self.is_over():
            return None
        logged = self._store.read(self._id, reverse=True)
        newest_first = chain(map(_as_event, reversed(owed)), logged)
        get, ours = workspace.blobs.get, self._restored_since_look(workspace, tree)
        return reversal(get, newest_first, known, tree, means, ours)

    def _restored_since_look(self, workspace: Workspace, tree: bytes) -> Collection[bytes]:
        """The paths that are as rewinds left them which this session has not seen yet."""
        from .reversal import Since, left_so, restores

        last = newest_look(self._store.read(self._id, reverse=True))
        if last is None:
            return ()
        info = self._store.record(self._id)
        found = restores(self._store, info, Since(last.seq, last.ts))
        return left_so(workspace.blobs.get, found, tree)

    def _details(
        self, bracket: Bracket | None, files: dict[str, Json] | None,
        state: dict[str, Json] | None = None,
    ) -> dict[str, Json]:  # fmt: skip
        """What an event says about the files: what changed, or the `state` they are in.

        Every event that carries files gets it here.
        """
        stamp = bracket.stamp if bracket is not None else {}
        if not stamp and self.workspace is not None:
            stamp = self.workspace.stamp()
        where: dict[str, Json] = {"workspace": stamp} if stamp else {}
        if files is None:
            return {**state, **where} if state else {}
        said = files if bracket is None else {**files, "brackets": [bracket.id]}
        return {"files": said, **where}

    # --- looking -------------------------------------------------------------------------

    def look(self, *, over: bool = False, prompt: bool = False) -> dict[str, Json]:
        """Scan: what the next event says about the files; empty where none are captured.

        What calls under way did so far is owed, and they go on; with `over`, those that
        messages opened end. Ignore rules that changed are in force from a `prompt` on.
        """
        workspace = self.folder.workspace()
        if workspace is None:
            return {}
        with self.lock:
            ended = {bracket.id for bracket in self.asked.values()} if over else set()
            try:
                if self.folder.is_partial(0):
                    return self._details(None, {"missed": PARTIAL})
                self.end_orphans(workspace)
                chosen = self.folder.is_chosen
                adopt = prompt or self._starts()
                tree = workspace.scan(self.log, self._store, rebind=chosen, adopt=adopt)
                owes = self._catch_up(workspace, ended)
            except BacktrailError as error:
                self._host.missed(error)
                return self._details(None, {"missed": str(error)})
            if over:
                self.asked.clear()
            for note in workspace.problems:
                self._host.complain("restore", note)
            self.folder.fresh = False
            if not owes:
                self._owe_others(workspace, tree, prompt=prompt)
            self.tree = tree
            head = workspace.head()
            return self._details(None, None, {"tree": tree.hex()} | ({"git": head} if head else {}))

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
        for first, bracket in self._going(workspace):
            if before is not None and bracket.opened >= before:
                continue
            split = workspace.catalogue.split(workspace.place.n, bracket, over=first in over)
            if first in over:
                del self.under_way[first]
            elif split is not None and split.later is not None:
                self.under_way[first] = split.later
            done = workspace.so_far(bracket, self.log, split) if split else None
            if done is not None:
                how = "interrupted" if first in over else "so_far"
                self._owe_call(bracket, {how: True}, done.to_dict())
                owes = True
        return owes

    def catch_up_elsewhere(self, workspace: Workspace) -> None:
        """Owe what this session's calls in other processes did so far; they go on."""
        with self.lock:
            workspace.scan(self.log, self._store)
            here = {bracket.id for bracket in self.under_way.values()}
            for bracket in self._mine(workspace):
                if bracket.ended or bracket.id in here:
                    continue
                split = workspace.catalogue.split(workspace.place.n, bracket, over=False)
                done = workspace.so_far(bracket, self.log, split) if split else None
                if done is not None:
                    self._owe_call(bracket, {"so_far": True}, done.to_dict(), bracket.id)

    def foresee(self, workspace: Workspace, *, force: bool) -> list[NewEvent]:
        """What going back would find owed, by `force` or not; no call ends, splits or goes.

        In the order in which `end_orphans`, `look` and `catch_up_elsewhere` owe it.
        """
        with self.lock:
            tree = workspace.glance(self.log, self._store)
            over = workspace.orphans(self._id, self._unseen, self._store)
            on = [bracket for _, bracket in self._going(workspace)]
            if force:
                known = {bracket.id for bracket in on}
                on += [b for b in self._mine(workspace) if b.id not in known and not b.ended]
            passed = {bracket.id for bracket in over}
            seen: set[str] = set()
            found = [one.event for one in self.owed()]
            for bracket in [*over, *(one for one in on if one.id not in passed)]:
                if bracket.ended and is_recorded(bracket, self._store.read(self._id, reverse=True)):
                    continue
                files = bracket.files
                if files is None:
                    late = bracket.id in passed
                    done = workspace.foreseen(bracket, tree, self._store, seen, late=late)
                    files = done.to_dict() if done is not None else None
                seen.add(bracket.id)
                if files is not None:
                    how = "interrupted" if bracket.id in passed else "so_far"
                    found.append(self._call_event(bracket, {how: True}, files))
            return found

    def _going(self, workspace: Workspace) -> list[tuple[str, Bracket]]:
        """The calls under way, by the bracket that each began with."""
        # A fork of the process leaves the calls of its parent alone.
        pid = os.getpid()
        return [(first, bracket) for first, bracket in self.under_way.items() if bracket.pid == pid]

    def _mine(self, workspace: Workspace) -> list[Bracket]:
        open_now = workspace.catalogue.brackets(workspace.place.n)
        return [bracket for bracket in open_now if bracket.owner == self._id]

    # --- calls ---------------------------------------------------------------------------

    def begin(
        self, name: str, call: str | None, paths: list[bytes] | None, *,
        runner: Runner | None = None, wait: float = 0,
    ) -> Bracket | Grab | None:  # fmt: skip
        """A call begins: its bracket; None if it is not captured.

        Before the first import is done, the paths that it declares are kept as they are. A
        call that declares none waits for the import, `wait` seconds at most.
        """
        workspace = self.folder.workspace()
        if workspace is None:
            return None
        try:
            if self.folder.is_partial(0 if paths is not None else wait):
                return Grab(workspace.grab(self.log, paths), paths) if paths is not None else None
        except BacktrailError as error:
            self._host.missed(error)
            return None
        with self.lock:
            workspace = self.folder.workspace()
            return None if workspace is None else self._begun(workspace, name, call, paths, runner)

    def _begun(
        self, workspace: Workspace, name: str, call: str | None, paths: list[bytes] | None,
        runner: Runner | None,
    ) -> Bracket | None:  # fmt: skip
        def opened(rebind: bool) -> Bracket:
            return workspace.begin(
                self.log, name, call, paths, self._store, rebind=rebind, runner=runner,
                adopt=paths is None and self._starts(),
            )  # fmt: skip

        try:
            self.drop_turn()
            bracket = opened(self.folder.is_chosen)
            if workspace.left_open or self._unseen:
                # They end before another begins, so that what they did is theirs.
                workspace.drop(bracket)
                self.end_orphans(workspace)
                bracket = opened(False)
        except BacktrailError as error:
            self._host.missed(error)
            return None
        self.folder.fresh = False
        try:
            owes = self._catch_up(workspace, before=bracket.opened)
        except BacktrailError as error:
            workspace.drop(bracket)
            self._host.missed(error)
            return None
        if not owes:
            self._owe_others(workspace, bracket.tree, bracket.id)
        self.tree = bracket.tree
        self.under_way[bracket.id] = bracket
        return bracket

    def end(self, begun: Bracket | Grab, ran_from: float | None = None) -> Ended:
        """A call is over: what its event says, which `recorded` or `unrecorded` follows.

        Where a person was asked before it ran, `ran_from` is since when it did, if known.
        """
        if isinstance(begun, Grab):
            return self._grabbed(begun)
        with self.lock:
            now, workspace = self.under_way.get(begun.id), self.workspace
            if now is None or workspace is None:
                # The session was closed meanwhile, and the call was left to the next process that
                # opens it.
                return Ended(begun, {})
            if now.files is not None:
                # Another process found it over, and kept what it had done by then.
                del self.under_way[begun.id]
                return Ended(now, self._details(now, now.files))
            try:
                tree, done = workspace.end(
                    now, self.log, self._store, recorded=False, ran_from=ran_from
                )
            except BaseException as failure:
                # The next look ends it.
                self._unseen.add(now.id)
                workspace.meetings.beat(now.mark)
                if not isinstance(failure, BacktrailError):
                    raise
                return Ended(now, self._details(None, {"missed": str(failure)}), failure)
            finally:
                del self.under_way[begun.id]
            if done is None:
                # What changed all the same is not its own, and owed with the next look.
                return Ended(now, {})
            self.tree = tree
            return Ended(now, self._details(now, done.to_dict()))

    def _grabbed(self, grab: Grab) -> Ended:
        """What a call without a bracket did to the paths it declared."""
        if self.workspace is None:
            return Ended(None, {})
        after = self.workspace.grab(self.log, grab.paths)
        if after == grab.before:
            return Ended(None, {})
        files = {"before": grab.before.hex(), "after": after.hex(), "partial": True}
        return Ended(None, self._details(None, files))

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
            bracket = self.asked.pop(id, None) if id is not None else None
            if bracket is not None:
                self.drop(bracket)

    def end_asked(self) -> None:
        """The conversation went elsewhere: calls of messages that have no result get none."""
        with self.lock:
            if self.workspace is None or not self.asked:
                return
            try:
                self._catch_up(self.workspace, {bracket.id for bracket in self.asked.values()})
                self.asked.clear()
            except BacktrailError as error:
                # It did go there.
                self._host.complain("not captured", str(error))

    # --- events of calls -----------------------------------------------------------------

    def say_missed(self, ended: Iterable[Ended]) -> None:
        """Raise where the files could not be looked at, or go on, as the session chose."""
        for one in ended:
            if one.failure is not None:
                self._host.missed(one.failure)

    def recorded(self, ended: Iterable[Ended], events: list[Event]) -> None:
        """These events are in the log. One that was there before does not say what a call did."""
        named = [id for event in events for id in named_in(event)]
        for one in ended:
            if one.bracket is None:
                continue
            if one.bracket.id not in named:
                self.unrecorded([one])
            elif self.workspace is not None:
                self.workspace.recorded(one.bracket)

    def unrecorded(self, ended: Iterable[Ended]) -> None:
        """The events of these calls were not stored: what they did is owed all the same."""
        for one in ended:
            if one.bracket is not None and one.files and "after" in one.files:
                self._owe_call(one.bracket, {"interrupted": True}, one.files)

    def taken_back(self, calls: Collection[str]) -> list[Ended]:
        """What calls did that is owed yet: their results say it after all.

        The caller keeps others from appending.
        """
        return self._queue.take_back(calls)

    # --- turns ---------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """What changes from here on is the turn's, unless it uses tools."""
        workspace = self.folder.workspace()
        if self.folder.is_partial(0):
            return
        with self.lock:
            if workspace is not None and self.tree is not None and self._turn is None:
                bracket = self._turn = workspace.open(self.log, "turn")
                self.under_way[bracket.id] = bracket

    def end_turn(self) -> list[Ended]:
        """The turn is over: what it did is owed. `say_missed` is to follow the append."""
        bracket, self._turn = self._turn, None
        if self.asked:
            self.look(over=True)
        ended = [] if bracket is None else [self.end(bracket)]
        for one in ended:
            if one.details:
                event = NewEvent("action", {"name": "turn", **one.details})
                self.owe(event, None if one.failure else one.bracket)
        return ended

    def drop_turn(self) -> None:
        """The turn uses tools: what no call claims is not its own."""
        bracket, self._turn = self._turn, None
        if bracket is not None:
            self.drop(bracket)

    # --- calls without an end ------------------------------------------------------------

    def end_all(self) -> None:
        """Every call is over: the directory is let go of."""
        workspace = self.workspace
        if workspace is None or not (self.under_way or self._unseen):
            return
        try:
            self.end_orphans(workspace)
            self.tree = workspace.scan(self.log, self._store)
        except BacktrailError as error:
            self._host.complain("not captured", str(error))
        try:
            self._catch_up(workspace, set(self.under_way))
            self.asked.clear()
        except BacktrailError as error:
            self._host.complain("not captured", str(error))

    def end_orphans(self, workspace: Workspace) -> None:
        """Owe what calls did that a crash left open, or a session that was closed."""
        for bracket in workspace.orphans(self._id, self._unseen, self._store):
            self._end_left(workspace, bracket)
        self._unseen.clear()

    def _end_left(self, workspace: Workspace, bracket: Bracket, *, late: bool = True) -> None:
        """End a call that has no other end, and owe what it did, unless the log has it."""
        if bracket.ended and is_recorded(bracket, self._store.read(self._id, reverse=True)):
            workspace.drop(bracket)
            return
        files = bracket.files
        if files is None:
            _, done = workspace.end(bracket, self.log, self._store, recorded=False, late=late)
            files = done.to_dict() if done is not None else None
        else:
            workspace.keep(bracket, files, Runner(os.getpid(), own_birth(os.getpid())))
        self._unseen.discard(bracket.id)
        if files is not None:
            # Two processes may do this at once: the store takes one id only once.
            over = self.shared and bracket.ended
            self._owe_call(bracket, {} if over else {"interrupted": True}, files, bracket.id)
            self.tree = bytes.fromhex(files["after"])

    def leave(self) -> None:
        """Keep what is owed for the next process that opens the session.

        The caller keeps others from appending.
        """
        workspace = self.workspace
        if workspace is None or not self.owed():
            return
        owed = self._queue.take()
        try:
            for event, bracket in owed:
                if bracket is not None:
                    workspace.keep(bracket, event.data["files"], NOBODY)
        except BacktrailError as error:
            self._host.complain("not captured", str(error))

    def close(self) -> None:
        """Save what is known, and let go of the directory."""
        self.folder.close()


def _as_event(event: NewEvent) -> Event:
    """An event that is not in the log yet."""
    return Event(0, "", "", event.kind, dict(event.data))
