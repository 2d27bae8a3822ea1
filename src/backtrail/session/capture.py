"""Capturing what a session does: a tree with every user's message, a bracket around every call.

What happens to the files is the recorder's, which appends nothing. Here its events are appended,
each in front of what comes after it, and it hears of the calls that messages ask for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BacktrailError, Closed, DiskLow, NotFound, Unsupported
from ..events import Event, Json, NewEvent
from ..events.calls import answers_in, pending
from ..files.changes.attribution import joined
from ..files.changes.brackets import Ended, Grab, report_missed
from ..files.changes.host import Folder, Host, NotWatched
from ..files.changes.recorder import Recorder
from ..files.names import Anywhere, declared, inside, several
from ..files.workspace.firstimport import PARTIAL
from ..files.workspace.firstimport import WAIT as BASELINE_WAIT
from ..stores import due
from ..stores.batches import Call as Queued
from ..stores.memory import NullStore
from ..stores.queue import Job
from ..stores.wrapper import unwrapped
from .filepoints import last_tree
from .keywords import FilesOption
from .log import SessionLog, unstored
from .toolcalls import Call, asks, ending_event

if TYPE_CHECKING:
    from ..files.changes.brackets import Bracket
    from ..files.workspace.workspace import Workspace

NOT_CAPTURED = "the call was not captured"
"""What an event says whose call could not be given a bracket."""

_PASSING = frozenset({"user_message", "turn_end", "session_end"})
"""Kinds of events with which a turn begins or ends."""


class Capture:
    """What happens in a session goes into its log, with what it did to the files.

    `cwd` is the directory that is worked in, `root` the one that is watched over, if it is to be
    captured and the session has one.
    """

    def __init__(
        self, log: SessionLog, *, cwd: str | os.PathLike[str] | None = None,
        files: FilesOption = True, progress: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        self.cwd = cwd
        self.root: str | None = None
        self.files: FilesOption = files
        host = Host(self._where, self.last_tree, self._refused, self.missed, log.complain)
        self.recorder = Recorder(
            Folder(log.store, log.id, host, force=files == "force",
                   background=files == "background", progress=progress)
        )  # fmt: skip
        self._log = log
        self._store, self._id = log.store, log.id
        self._unstored: set[str] = set()
        # Why calls of messages have no bracket, by the model's id of the call.
        self._unopened: dict[str, str] = {}

    def after_fork(self) -> None:
        self.recorder.after_fork()

    # --- the directory -------------------------------------------------------------------

    def _where(self) -> str:
        """The directory to capture; `NotWatched` if there is none."""
        self._log.check_open()
        if not self.files or isinstance(unwrapped(self._store), NullStore):
            raise NotWatched("files are not captured in this session")
        if self.root is None:
            info = self._store.record(self._id)
            self.root, self.cwd = info.root or info.cwd, info.cwd
        if self.root is None:
            raise NotWatched("the session has no `cwd`, so no files are captured")
        return self.root

    def last_tree(self) -> bytes | None:
        """The newest tree that the log has."""
        return last_tree(self._store, self._id)

    @property
    def workspace(self) -> Workspace | None:
        """The workspace, if it is open."""
        return self.recorder.workspace

    def watched(self) -> Workspace | None:
        """The workspace, opened when first needed; None where files are not captured."""
        folder = self.recorder.folder
        return folder.opened or folder.workspace()

    def needed(self) -> Workspace:
        """The workspace, its first import done; `Unsupported` where files are not captured."""
        self._log.check_open()
        workspace = self.watched()
        self.is_partial(None)
        if workspace is None:
            raise Unsupported(self.unwatched)
        return workspace

    @property
    def unwatched(self) -> str:
        """Why files are not captured."""
        return self.recorder.folder.unwatched or "files are not captured in this session"

    def is_partial(self, wait: float | None) -> bool:
        """Whether the first import still runs, after waiting for it."""
        folder = self.recorder.folder
        return folder.importing and folder.is_partial(wait)

    def directory(self) -> str | None:
        """The directory that is worked in: the root of what is watched over, or one below it."""
        if self.cwd is None:
            self.cwd = self._store.record(self._id).cwd
        return None if self.cwd is None else os.fspath(self.cwd)

    def rebind(self, cwd: str) -> None:
        """Take another directory from here on; it must be there, or nothing is watched over."""
        if self.files and not isinstance(self._store, NullStore) and not Path(cwd).is_dir():
            raise NotFound(f"{cwd} is not a directory: session `{self._id}` is not moved there")
        self.cwd = self.root = cwd
        self.recorder.folder.rebound = True

    def close(self) -> None:
        """Let go of the directory, after the log was closed."""
        self.let_go()
        if self.files:
            due.start(unwrapped(self._store))

    def let_go(self) -> None:
        """Calls that are still open end here; the next one to open the session records them."""
        with self.recorder.lock:
            self.recorder.end_all()
            with self._log.mutex:
                self.recorder.leave()
        self.recorder.folder.close()

    # --- what goes wrong -----------------------------------------------------------------

    def _refused(self, error: BacktrailError) -> None:
        """The directory cannot be captured."""
        self._log.complain("not captured", str(error))

    def missed(self, error: BacktrailError) -> None:
        """A scan failed: raise, or say so and go on, as the caller chose.

        Too little free space never stops a conversation; it only stops the capture.
        """
        if self._log.on_error == "raise" and not isinstance(error, DiskLow):
            raise error
        self._log.complain("not captured", str(error))
        if isinstance(error, DiskLow):
            due.start(unwrapped(self._store))
        if callable(self._log.on_error):
            self._log.on_error(error)

    # --- appending -----------------------------------------------------------------------

    def append(
        self, events: list[NewEvent], *, expected: int | None = None, spans: bool = True
    ) -> list[Event]:
        """Append, with the tree at a user's message; calls in messages open brackets."""
        recorder, ended = self.recorder, list[Ended]()
        spans = spans and recorder.folder.unwatched is None
        asks = spans and any(event.kind == "assistant_message" for event in events)
        given = {event.id for event in events if event.id is not None} if asks else set()
        head = self._log.head() if given and self.watched() is not None else 0
        try:
            if recorder.asked or recorder.queue.waiting or self._unopened:
                events = [self._answered(event, ended) for event in events]
            if any(event.kind in _PASSING for event in events):
                events = self._passed(events)
            stored = self.record(events, expected=expected)
        except BaseException:
            recorder.recorded(ended)
            raise
        if ended:
            recorder.recorded(ended, stored)
        if asks:
            self._open_asked(self._added(stored, given, head) if given else stored)
        return stored

    def enqueue(
        self, events: list[NewEvent], job: Job[Queued, list[Event]], *, spans: bool = True
    ) -> bool:
        """Have the store's queue append these, if that is all there is to do; never waits."""
        if not self._log.mutex.acquire(blocking=False):
            return False
        try:
            return self._is_simple(events, spans) and self._log.enqueue(events, job)
        finally:
            self._log.mutex.release()

    def _is_simple(self, events: list[NewEvent], spans: bool) -> bool:
        """Whether these have nothing to do with files."""
        recorder = self.recorder
        if recorder.asked or recorder.queue.waiting or self._unopened:
            return False
        if recorder.folder.unwatched is not None:
            return True
        # Files are captured, or it is not known yet whether they are.
        kinds = {"assistant_message", *_PASSING} if spans else _PASSING
        return not any(event.kind in kinds for event in events)

    def flush(self) -> None:
        """Append what is owed of the files."""
        self.record([])

    def record(self, events: list[NewEvent], *, expected: int | None = None) -> list[Event]:
        """Append, behind what is owed of the files."""
        recorder = self.recorder
        if not recorder.queue.waiting:
            return self._log.append(events, expected=expected)
        with self._log.mutex:
            if any(event.id is not None for event, _ in recorder.queue.waiting):
                while owed := recorder.queue.waiting:
                    one = self._log.append([owed[0].event], expected=expected)
                    expected = None if expected is None else one[0].seq
                    recorder.settle(1)
            first = [event for event, _ in recorder.queue.waiting]
            stored = self._log.append([*first, *events], expected=expected)
            recorder.settle(len(first))
        return stored[len(first) :]

    def _passed(self, events: list[NewEvent]) -> list[NewEvent]:
        """A turn begins or ends: the user's message with the tree of this moment.

        A call of a message that has no result yet gets none: it is over.
        """
        speaks = any(event.kind == "user_message" for event in events)
        if not (speaks or self.recorder.asked) or self.watched() is None:
            return events
        if not self._log.is_known(events):
            details = self.look(over=True, prompt=speaks)
            events = [_detailed(event, details) for event in events]
        return events

    def look(self, *, over: bool = False, prompt: bool = False) -> dict[str, Json]:
        """Scan: what the next event says about the files. It takes along what else is owed."""
        return self.recorder.look(over=over, prompt=prompt)

    # --- calls in messages ---------------------------------------------------------------

    def _added(self, stored: list[Event], given: set[str], head: int) -> list[Event]:
        """Those events that were not there before: one that is known asks for no call anew.

        `given` are the ids that a caller chose, `head` is the head before. An event without
        a number is not stored yet, and may be given again before it is.
        """
        before = self._unstored
        self._unstored = before | {e.id for e in stored if e.id in given and not e.seq}
        return [
            event
            for event in stored
            if event.id not in given or (event.seq > head if event.seq else event.id not in before)
        ]

    def _open_asked(self, events: list[Event]) -> None:
        """A bracket for each call that messages ask for and do not answer themselves.

        The messages are stored, so nothing is raised here: a caller that repeats one would have
        it twice. The result says that its call was not captured.
        """
        messages = [e.data["message"] for e in events if isinstance(e.data.get("message"), dict)]
        for call in pending(messages) if self.watched() is not None else ():
            self._unopened.pop(call.id, None)
            try:
                begun = self.begin_call(Call(call.name, None, call.id), None)
            except BacktrailError as error:
                self._log.complain("not captured", str(error))
                self._unopened[call.id] = str(error)
                begun = None
            if begun is None:
                why = PARTIAL if self.recorder.folder.baseline else NOT_CAPTURED
                self._unopened.setdefault(call.id, why)
            with self.recorder.lock:
                # An id that comes again is another call: some models count anew.
                self.recorder.drop_asked(call.id)
                if begun is not None and not isinstance(begun, Grab):
                    self.recorder.asked[call.id] = begun

    def _answered(self, event: NewEvent, ended: list[Ended]) -> NewEvent:
        """A result with what its call did to the files, where a message opened the bracket.

        The calls that it ends are added to `ended`.
        """
        recorder, message = self.recorder, event.data.get("message")
        if event.kind != "tool_result" or not isinstance(message, dict):
            return event
        answered, first = answers_in(message), len(ended)
        if recorder.queue.waiting:
            with self._log.mutex:
                ended += recorder.queue.take_back(answered)
        for id in sorted(answered):
            with recorder.lock:
                bracket = recorder.asked.pop(id, None)
            if bracket is not None:
                ended.append(recorder.end(bracket))
            elif (why := self._unopened.pop(id, None)) is not None:
                ended.append(Ended(None, {"files": {"missed": why}}))
        over = [one for one in ended[first:] if one.files]
        report_missed(ended[first:], self.missed)
        if not over:
            return event
        files = joined([one.files for one in over if one.files])
        data = {**event.data, **over[-1].details, "files": files}
        return NewEvent(event.kind, data, event.id, event.follows, event.ts)

    # --- calls ---------------------------------------------------------------------------

    @contextmanager
    def tool(
        self,
        name: str,
        input: Json = None,
        *,
        id: str | None = None,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> Iterator[Call]:
        """A bracket around a tool call; see `Session.tool`."""
        call = Call(name, input, id)
        self.recorder.drop_asked(id)
        begun = self.begin_call(call, paths)
        try:
            yield call
        except BaseException as error:
            with suppress(Closed):
                self.end_call(call, begun, error)
            raise
        self.end_call(call, begun, None)

    def _full(
        self, paths: Collection[str | os.PathLike[str]]
    ) -> Collection[str | os.PathLike[str]]:
        """The paths of a tool, which it means from the directory that it works in."""
        place = self.directory()
        if place is None or place == self.root:
            return paths
        return [Path(place, path) for path in several(paths)]

    def begin_call(
        self, call: Call, paths: Collection[str | os.PathLike[str]] | None
    ) -> Bracket | Grab | None:
        """A call begins: its bracket; None if it is not captured."""
        self._log.check_open()
        workspace = self.watched()
        if workspace is None:
            return None
        named = None
        if paths is not None:
            full = self._full(paths)
            if not isinstance(paths, Anywhere):
                for path in several(full):
                    inside(workspace.root, path)
            named, call.outside = declared(workspace.root, full)
        begun = self.recorder.begin(call.name, call.id or call.of, named, wait=BASELINE_WAIT)
        try:
            self.flush()
        except BaseException:
            if begun is not None:
                self.recorder.drop(begun)
            raise
        return begun

    def end_call(
        self, call: Call, begun: Bracket | Grab | None, error: BaseException | None
    ) -> None:
        """A call is over: its result is in the log, with what it did to the files."""
        recorder = self.recorder
        if begun is not None:
            ended = recorder.end(begun)
        else:
            why = PARTIAL if recorder.folder.baseline else NOT_CAPTURED
            ended = Ended(None, {"files": {"missed": why}} if self.workspace else {})
        details = ended.details
        if call.outside and error is None:
            details = {**details, "files": {**(ended.files or {}), "outside": call.outside}}
        if call.only_files and not details:
            return
        asking = {} if call.id is None else self._asking(call.id)
        try:
            event = self.record([ending_event(call, asking, details, error)])[0]
        except BaseException:
            recorder.recorded([ended])
            raise
        recorder.recorded([ended], [event])
        report_missed([ended], self.missed)
        call.event = event

    def _asking(self, call_id: str) -> dict[str, Json]:
        """The message that asks for a call; empty if there is none."""
        log = self._log
        known = chain(map(unstored, reversed(log.unsaved)), reversed(list(log.recent)))
        turn = takewhile(lambda event: event.kind != "user_message", log.walk())
        found = (event for event in chain(known, turn) if asks(event, call_id))
        return next((dict(event.data["message"]) for event in found), {})

    def end_turn(self) -> None:
        """What changed in a turn without tools is in the log."""
        ended = self.recorder.end_turn()
        self.flush()
        report_missed(ended, self.missed)


def _detailed(event: NewEvent, details: dict[str, Json]) -> NewEvent:
    """A user's message with what is known about the files at that moment."""
    if event.kind != "user_message" or "tree" in event.data:
        return event
    return NewEvent(event.kind, {**event.data, **details}, event.id, event.follows, event.ts)
