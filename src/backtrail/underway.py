"""The calls of a session that are under way, and what is to be told of them.

A call is one bracket, or several in a row: at a point that somebody may come back to, what
it did so far is told, and it goes on in a new bracket. What is to be told waits until the
next append takes it along, and only then does its bracket go. So a crash loses none of it:
an orphan is told with its session's next event. The event names its bracket, so none is told
twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from .errors import BacktrailError
from .events import Event, Json, NewEvent
from .files.brackets import NOBODY, Bracket, Runner, is_told, named_in, own_birth
from .options import SessionOptions
from .stores.base import Store
from .workplace import Workplace

if TYPE_CHECKING:
    from .files.workspace import Workspace


class Ended(NamedTuple):
    """A call that is over: its last bracket, and what it did to the files, if anything.

    With `failure`, the files could not be looked at.
    """

    bracket: Bracket
    files: dict[str, Json] | None
    failure: BacktrailError | None = None


class Underway(Workplace):
    """A conversation with a directory in which calls are under way.

    `_open` has the bracket that each call is in now, by the one that it began with.
    `_spans` are those that a message opened, by the call's id. `_unseen` are the brackets of
    calls that are over, whose end could not be looked at. Who changes these holds `_watch`.
    """

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *, owns: bool, at: int | None
    ) -> None:
        super().__init__(store, session_id, options, owns=owns, at=at)
        self._open: dict[str, Bracket] = {}
        self._spans: dict[str, Bracket] = {}
        self._unseen: set[str] = set()
        self._telling: list[tuple[NewEvent, Bracket | None]] = []
        self._queue = threading.Lock()

    def after_fork(self) -> None:
        """Leave to the parent what is to be told, too."""
        super().after_fork()
        self._queue = threading.Lock()
        self._telling = []

    # --- telling -------------------------------------------------------------------------

    def _append(self, events: list[NewEvent], *, expected: int | None = None) -> list[Event]:
        """Append, behind what is to be told of the files."""
        if not self._telling:
            return super()._append(events, expected=expected)
        with self._mutex:
            if any(event.id is not None for event, _ in self._telling):
                expected = self._tell_alone(expected)
            told = [event for event, _ in self._telling]
            stored = super()._append([*told, *events], expected=expected)
            self._forget(len(told))
        return stored[len(told) :]

    def _tell_alone(self, expected: int | None) -> int | None:
        """Append what waits, one by one; the head that is to be expected then.

        Where another process was quicker to tell of a call, that is skipped, and nothing must
        hang on it.
        """
        while self._telling:
            stored = super()._append([self._telling[0][0]], expected=expected)
            expected = None if expected is None else stored[0].seq
            self._forget(1)
        return expected

    def _forget(self, count: int) -> None:
        """The first of what waits is in the log, and the brackets are not needed any more.

        They go when there is time: what is stored must not fail here.
        """
        with self._queue:
            told, self._telling = self._telling[:count], self._telling[count:]
        for _, bracket in told:
            if bracket is not None and self._workspace is not None:
                self._workspace.told(bracket)

    def _tell(self, event: NewEvent, bracket: Bracket | None) -> None:
        """Have the next append tell this; then the bracket is not needed any more.

        It waits until it is in the log, and only who holds the mutex of appends takes it from
        what waits. So nobody who appends after this gets in front of it.
        """
        with self._queue:
            self._telling.append((event, bracket))

    def _tell_call(
        self, bracket: Bracket, how: str, files: dict[str, Json], id: str | None = None
    ) -> None:
        """Have it told what a call did that does not tell it itself, or not now."""
        files = {**files, "brackets": [bracket.id]}
        data: dict[str, Json] = {"name": bracket.name, how: True, "files": files}
        if bracket.call:
            data["call"] = bracket.call
        self._tell(NewEvent("action", data, id=id), bracket)

    def _tell_others(self, tree: bytes) -> None:
        """Have it told what changed since this session last looked, and was none of its calls."""
        known = self._tree_known()
        if known is not None and known != tree:
            files = {"before": known.hex(), "after": tree.hex()}
            self._tell(NewEvent("files_changed", {"files": files}), None)

    # --- calls under way -----------------------------------------------------------------

    def _catch_up(
        self, workspace: Workspace, over: Collection[str] = (), *, before: int | None = None
    ) -> bool:
        """Have it told what calls under way did so far, as the last scan found it.

        They go on, but for those that are `over`. Only changes that came `before` the
        transition of this number are new. Whether there is something to tell.
        """
        told = False
        for first, bracket in list(self._open.items()):
            # A fork of the process leaves the calls of its parent alone.
            if bracket.pid != os.getpid() or (before is not None and bracket.opened >= before):
                continue
            split = workspace.catalogue.split(workspace.place.n, bracket, over=first in over)
            if first in over:
                del self._open[first]
            elif split is not None and split.later is not None:
                self._open[first] = split.later
            done = workspace.so_far(bracket, self._log_name, split) if split else None
            if done is not None:
                how = "interrupted" if first in over else "so_far"
                self._tell_call(bracket, how, done.to_dict())
                told = True
        return told

    def _end_spans(self) -> None:
        """The conversation went elsewhere: calls of messages that have no result get none."""
        with self._watch:
            workspace = self._workspace
            if workspace is None or not self._spans:
                return
            try:
                self._catch_up(workspace, {bracket.id for bracket in self._spans.values()})
                self._spans.clear()
            except BacktrailError as error:
                # It did go there.
                self._complain("not captured", str(error))

    def _drop_span(self, id: str | None) -> None:
        """A call has a bracket of its own: the one that its message opened is not needed."""
        with self._watch:
            bracket = self._spans.pop(id, None) if id is not None else None
            if bracket is not None:
                self._drop_call(bracket)

    def _drop_call(self, bracket: Bracket) -> None:
        """Forget a call that is under way."""
        with self._watch:
            now = self._open.pop(bracket.id, None)
            if now is not None and self._workspace is not None:
                self._workspace.drop(now)

    def _ended(self, bracket: Bracket) -> Ended:
        """A call ends now. Its event is to tell what it did; `_are_told` or `_untold` follows."""
        with self._watch:
            now, workspace = self._open.get(bracket.id), self._workspace
            if now is None or workspace is None:
                # The session was closed meanwhile, and the call was left to who opens it next.
                return Ended(bracket, None)
            try:
                tree, done = workspace.end(now, self._log_name, self.store, told=False)
            except BaseException as failure:
                # The next look ends it.
                self._unseen.add(now.id)
                if not isinstance(failure, BacktrailError):
                    raise
                return Ended(now, {"missed": str(failure)}, failure)
            finally:
                del self._open[bracket.id]
            if done is None:
                # What changed all the same is somebody else's, and told with the next look.
                return Ended(now, None)
            self._tree = tree
            return Ended(now, {**done.to_dict(), "brackets": [now.id]})

    def _say_missed(self, ended: Iterable[Ended]) -> None:
        """Raise where the files could not be looked at, or go on, as the caller chose."""
        for one in ended:
            if one.failure is not None:
                self._missed(one.failure)

    def _are_told(self, ended: Iterable[Ended], events: list[Event]) -> None:
        """These events are in the log. One that was there before does not tell of a call now."""
        named = [id for event in events for id in named_in(event)]
        for one in ended:
            if one.bracket.id not in named:
                self._untold([one])
            elif self._workspace is not None:
                self._workspace.told(one.bracket)

    def _untold(self, ended: Iterable[Ended]) -> None:
        """The events of these calls were not stored: what they did is told all the same."""
        for bracket, files, _ in ended:
            if files and "after" in files:
                self._tell_call(bracket, "interrupted", files)

    def _taken_back(self, calls: Collection[str]) -> list[Ended]:
        """What calls did that is not told yet: their results tell it after all.

        Only what is last of all, since changes are told in the order of time.
        """
        found: list[Ended] = []
        with self._mutex, self._queue:
            while self._telling:
                event, bracket = self._telling[-1]
                own = bracket is not None and bracket.call in calls and event.id is None
                if bracket is None or not own or "interrupted" not in event.data:
                    break
                self._telling.pop()
                found.insert(0, Ended(bracket, event.data["files"]))
        return found

    # --- calls that nobody ends ----------------------------------------------------------

    def _let_go(self) -> None:
        self._leave_calls()
        super()._let_go()

    def _leave_calls(self) -> None:
        """Calls that are still open end here; who opens the session next tells of them."""
        with self._watch:
            self._end_all()
            workspace = self._workspace
            if workspace is None or not self._telling:
                return
            with self._mutex, self._queue:
                telling, self._telling = self._telling, []
            try:
                for event, bracket in telling:
                    if bracket is not None:
                        workspace.keep(bracket, event.data["files"], NOBODY)
            except BacktrailError as error:
                self._complain("not captured", str(error))

    def _end_all(self) -> None:
        """Every call is over: the directory is let go of."""
        workspace = self._workspace
        if workspace is None or not (self._open or self._unseen):
            return
        try:
            self._end_orphans(workspace)
            self._tree = workspace.scan(self._log_name, self.store)
        except BacktrailError as error:
            self._complain("not captured", str(error))
        try:
            self._catch_up(workspace, set(self._open))
            self._spans.clear()
        except BacktrailError as error:
            self._complain("not captured", str(error))

    def _end_orphans(self, workspace: Workspace) -> None:
        """Have it told what calls did that a crash left open, or a session that was closed."""
        for bracket in workspace.orphans(self.id, self._unseen):
            if bracket.ended and is_told(bracket, self.store.read(self.id, reverse=True)):
                workspace.drop(bracket)
                continue
            files = bracket.files
            if files is None:
                _, done = workspace.end(bracket, self._log_name, self.store, told=False)
                files = done.to_dict() if done is not None else None
            else:
                workspace.keep(bracket, files, Runner(os.getpid(), own_birth(os.getpid())))
            self._unseen.discard(bracket.id)
            if files is not None:
                # Two processes may do this at once: the store takes one id only once.
                self._tell_call(bracket, "interrupted", files, bracket.id)
                self._tree = bytes.fromhex(files["after"])
        self._unseen.clear()
