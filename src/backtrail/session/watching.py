"""Watching over a session's directory: a tree with every user's message, and a bracket
around every call.

What happens to the files is the recorder's; here its events are appended, and it hears of the
calls that messages ask for.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import BacktrailError, Closed, DiskLow, InvalidData, NotFound, Unsupported
from ..events import Event, Json, NewEvent, Problem
from ..events.calls import answer_to, answers_in, calls_in, is_shown, pending, told_of
from ..events.messages import message_event
from ..files.changes.attribution import joined
from ..files.changes.folder import Host, NotWatched
from ..files.changes.owed import Ended, Grab
from ..files.changes.recorder import Recorder
from ..files.names import Anywhere, declared, inside, several
from ..files.workspace.baseline import PARTIAL
from ..files.workspace.baseline import WAIT as BASELINE_WAIT
from ..stores import due
from ..stores.base import Store
from ..stores.batches import Call as Queued
from ..stores.null import NullStore
from ..stores.queue import Job
from ..stores.wrapper import unwrapped
from .filepoints import last_tree
from .log import Conversation
from .options import SessionOptions
from .points import head_of

if TYPE_CHECKING:
    from ..files.changes.brackets import Bracket
    from ..files.workspace.snapshot import Log
    from ..files.workspace.workspace import Workspace

NOT_CAPTURED = "the call was not captured"
"""What an event says whose call could not be given a bracket."""

_PASSING = frozenset({"user_message", "turn_end", "session_end"})
"""Kinds of events with which a turn begins or ends."""


class Call:
    """A call under way. Set `result`; it goes into the event that ends the call.

    With `only_files`, a call that leaves the files as they were leaves no event.
    """

    def __init__(self, name: str, input: Json, id: str | None) -> None:
        self.name = name
        self.input = input
        self.id = id
        self.result: object = None
        self.only_files = False
        self.event: Event | None = None
        self.outside: list[str] = []


class Watching(Conversation, ABC):
    """A conversation whose directory is watched over, if it has one and is to capture it."""

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *, owns: bool, at: int | None
    ) -> None:
        super().__init__(store, session_id, options, owns=owns, at=at)
        self._cwd = options.get("cwd")
        self._root: str | None = None
        self._files = options.get("files", True)
        self._recorder = Recorder(
            store, session_id,
            Host(self._where, self._last_tree, self._refused, self._missed, self._complain),
            force=self._files == "force", background=self._files == "background",
            progress=options.get("progress"),
        )  # fmt: skip
        self._last: Event | None = None
        self._unstored: set[str] = set()
        # Why calls of messages have no bracket, by the model's id of the call.
        self._unopened: dict[str, str] = {}

    def after_fork(self) -> None:
        super().after_fork()
        self._recorder.after_fork()

    # --- the directory -------------------------------------------------------------------

    def _where(self) -> str:
        """The directory to capture; `NotWatched` if there is none."""
        self._check_open()
        if not self._files or isinstance(unwrapped(self.store), NullStore):
            raise NotWatched("files are not captured in this session")
        if self._root is None:
            info = self.store.record(self.id)
            self._root, self._cwd = info.root or info.cwd, info.cwd
        if self._root is None:
            raise NotWatched("the session has no `cwd`, so no files are captured")
        return self._root

    def _last_tree(self) -> bytes | None:
        return last_tree(self.store, self.id)

    @property
    def _log_name(self) -> Log:
        return self._recorder.log

    @property
    def _workspace(self) -> Workspace | None:
        """The workspace, if it is open."""
        return self._recorder.workspace

    def _watched(self) -> Workspace | None:
        """The workspace, opened when first needed; None where files are not captured."""
        return self._recorder.folder.workspace()

    def _needed(self) -> Workspace:
        self._check_open()
        workspace = self._watched()
        self._partial(None)
        if workspace is None:
            raise Unsupported(self._unwatched)
        return workspace

    @property
    def _unwatched(self) -> str:
        """Why files are not captured."""
        return self._recorder.folder.unwatched or "files are not captured in this session"

    def _partial(self, wait: float | None) -> bool:
        """Whether the first import still runs, after waiting for it."""
        return self._recorder.folder.is_partial(wait)

    def _directory(self) -> str | None:
        """The directory that is worked in: the root of what is watched over, or one below it."""
        if self._cwd is None:
            self._cwd = self.store.record(self.id).cwd
        return None if self._cwd is None else os.fspath(self._cwd)

    def _rebind(self, cwd: str) -> None:
        """Take another directory from here on; it must be there, or nothing is watched over."""
        if self._files and not isinstance(self.store, NullStore) and not Path(cwd).is_dir():
            raise NotFound(f"{cwd} is not a directory: session `{self.id}` is not moved there")
        self._cwd = self._root = cwd
        self._recorder.folder.rebound = True

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._let_go()
        if self._files:
            due.start(unwrapped(self.store))

    def _let_go(self) -> None:
        """Calls that are still open end here; whoever opens the session next records them."""
        with self._recorder.lock:
            self._recorder.end_all()
            with self._mutex:
                self._recorder.leave()
        self._recorder.close()

    # --- what goes wrong -----------------------------------------------------------------

    def _complain(self, what: str, detail: str, log: str = "files") -> None:
        """Note something that went wrong and stopped nothing."""
        problem = Problem(self.id, log, what, detail)
        if problem not in self.problems:
            self.problems.append(problem)

    def _refused(self, error: BacktrailError) -> None:
        """The directory cannot be captured."""
        self._complain("not captured", str(error))

    def _missed(self, error: BacktrailError) -> None:
        """A scan failed: raise, or say so and go on, as the caller chose.

        Too little free space never stops a conversation; it only stops the capture.
        """
        if self._on_error == "raise" and not isinstance(error, DiskLow):
            raise error
        self._complain("not captured", str(error))
        if isinstance(error, DiskLow):
            due.start(unwrapped(self.store))
        if callable(self._on_error):
            self._on_error(error)

    # --- appending -----------------------------------------------------------------------

    def _append(
        self, events: list[NewEvent], *, expected: int | None = None, spans: bool = True
    ) -> list[Event]:
        """Append, with the tree at a user's message; calls in messages open brackets."""
        recorder, ended = self._recorder, list[Ended]()
        asks = spans and any(event.kind == "assistant_message" for event in events)
        given = {event.id for event in events if event.id is not None} if asks else set()
        head = self._head_now() if given and self._watched() is not None else 0
        try:
            if recorder.asked or recorder.owed() or self._unopened:
                events = [self._answered(event, ended) for event in events]
            if any(event.kind in _PASSING for event in events):
                events = self._passed(events)
            stored = self._append_owed(events, expected=expected)
        except BaseException:
            recorder.unrecorded(ended)
            raise
        if ended:
            recorder.recorded(ended, stored)
        self._note_last(stored)
        if asks:
            self._open_asked(self._added(stored, given, head) if given else stored)
        return stored

    def _is_simple(self, events: list[NewEvent], spans: bool) -> bool:
        recorder = self._recorder
        if recorder.asked or recorder.owed() or self._unopened:
            return False
        if recorder.folder.unwatched is None:
            # Files are captured, or nobody has looked yet whether they are.
            kinds = {"assistant_message", *_PASSING} if spans else _PASSING
            if any(event.kind in kinds for event in events):
                return False
        return super()._is_simple(events, spans)

    def _landed(self, job: Job[Queued, list[Event]]) -> None:
        super()._landed(job)
        if isinstance(job.outcome, list):
            self._note_last(job.outcome)

    def _note_last(self, stored: list[Event]) -> None:
        self._last = next((e for e in stored if e.kind == "assistant_message"), self._last)

    def _append_owed(self, events: list[NewEvent], *, expected: int | None = None) -> list[Event]:
        """Append, behind what is owed of the files."""
        recorder = self._recorder
        if not recorder.owed():
            return super()._append(events, expected=expected)
        with self._mutex:
            if any(event.id is not None for event, _ in recorder.owed()):
                while owed := recorder.owed():
                    one = super()._append([owed[0].event], expected=expected)
                    expected = None if expected is None else one[0].seq
                    recorder.settle(1)
            first = [event for event, _ in recorder.owed()]
            stored = super()._append([*first, *events], expected=expected)
            recorder.settle(len(first))
        return stored[len(first) :]

    def _passed(self, events: list[NewEvent]) -> list[NewEvent]:
        """A turn begins or ends: the user's message with the tree of this moment.

        A call of a message that has no result yet gets none: it is over.
        """
        speaks = any(event.kind == "user_message" for event in events)
        if not (speaks or self._recorder.asked) or self._watched() is None:
            return events
        if not self._repeats(events):
            details = self._look(over=True, prompt=speaks)
            events = [_detailed(event, details) for event in events]
        return events

    def _repeats(self, events: list[NewEvent]) -> bool:
        """Whether all of this is in the log already, as when a request is tried again."""
        if any(event.id is None for event in events):
            return False
        return all(self._is_known(event.id or "") for event in events)

    def _look(self, *, over: bool = False, prompt: bool = False) -> dict[str, Json]:
        """Scan: what the next event says about the files. It takes along what else is owed."""
        return self._recorder.look(over=over, prompt=prompt)

    # --- calls in messages ---------------------------------------------------------------

    def _head_now(self) -> int:
        self._check_open()
        return head_of(self.store, self.id)

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

        The messages are stored, so nothing is raised here: a caller who repeats one would have
        it twice. The result says that its call was not captured.
        """
        messages = [e.data["message"] for e in events if isinstance(e.data.get("message"), dict)]
        for call in pending(messages) if self._watched() is not None else ():
            self._unopened.pop(call.id, None)
            try:
                begun = self._begin_call(Call(call.name, None, call.id), None)
            except BacktrailError as error:
                self._complain("not captured", str(error))
                self._unopened[call.id] = str(error)
                begun = None
            if begun is None:
                why = PARTIAL if self._recorder.folder.baseline else NOT_CAPTURED
                self._unopened.setdefault(call.id, why)
            with self._recorder.lock:
                # An id that comes again is another call: some models count anew.
                self._recorder.drop_asked(call.id)
                if begun is not None and not isinstance(begun, Grab):
                    self._recorder.asked[call.id] = begun

    def _answered(self, event: NewEvent, ended: list[Ended]) -> NewEvent:
        """A result with what its call did to the files, where a message opened the bracket.

        The calls that it ends are added to `ended`.
        """
        recorder, message = self._recorder, event.data.get("message")
        if event.kind != "tool_result" or not isinstance(message, dict):
            return event
        answered, first = answers_in(message), len(ended)
        if recorder.owed():
            with self._mutex:
                ended += recorder.taken_back(answered)
        for id in sorted(answered):
            with recorder.lock:
                bracket = recorder.asked.pop(id, None)
            if bracket is not None:
                ended.append(recorder.end(bracket))
            elif (why := self._unopened.pop(id, None)) is not None:
                ended.append(Ended(None, {"files": {"missed": why}}))
        over = [one for one in ended[first:] if one.files]
        recorder.say_missed(ended[first:])
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
        """A bracket around a tool call: what it does to the files is its own.

        With the `id` of a model's call, its result is appended as a `tool_result`; without,
        as an `action`. An exception becomes an error result, is recorded, and goes on up.
        A tool that knows which `paths` it will touch says so, from the session's `cwd`: then
        only these are looked at, and only these are its own.
        """
        call = Call(name, input, id)
        self._recorder.drop_asked(id)
        begun = self._begin_call(call, paths)
        try:
            yield call
        except BaseException as error:
            with suppress(Closed):
                self._end_call(call, begun, error)
            raise
        self._end_call(call, begun, None)

    def _full(
        self, paths: Collection[str | os.PathLike[str]]
    ) -> Collection[str | os.PathLike[str]]:
        """The paths of a tool, which it means from the directory that it works in."""
        place = self._directory()
        if place is None or place == self._root:
            return paths
        return [Path(place, path) for path in several(paths)]

    def _begin_call(
        self, call: Call, paths: Collection[str | os.PathLike[str]] | None
    ) -> Bracket | Grab | None:
        self._check_open()
        workspace = self._watched()
        if workspace is None:
            return None
        named = None
        if paths is not None:
            full = self._full(paths)
            if not isinstance(paths, Anywhere):
                for path in several(full):
                    inside(workspace.root, path)
            named, call.outside = declared(workspace.root, full)
        begun = self._recorder.begin(call.name, call.id, named, wait=BASELINE_WAIT)
        try:
            self._append_owed([])
        except BaseException:
            if begun is not None:
                self._recorder.drop(begun)
            raise
        return begun

    def _end_call(
        self, call: Call, begun: Bracket | Grab | None, error: BaseException | None
    ) -> None:
        recorder = self._recorder
        if begun is not None:
            ended = recorder.end(begun)
        else:
            why = PARTIAL if recorder.folder.baseline else NOT_CAPTURED
            ended = Ended(None, {"files": {"missed": why}} if self._workspace else {})
        details = ended.details
        if call.outside and error is None:
            details = {**details, "files": {**(ended.files or {}), "outside": call.outside}}
        if call.only_files and not details:
            return
        try:
            event = self._append_owed([self._told(call, details, error)])[0]
        except BaseException:
            recorder.unrecorded([ended])
            raise
        recorder.recorded([ended], [event])
        recorder.say_missed([ended])
        call.event = event

    def _told(self, call: Call, carried: dict[str, Json], error: BaseException | None) -> NewEvent:
        """The event that ends a call."""
        failed = error is not None
        result = _as_json(call.result) if error is None else told_of(error)
        details: dict[str, Json] = {"name": call.name, **carried}
        if failed:
            details["error"] = True
        if call.id is None:
            return NewEvent("action", {**details, "input": _as_json(call.input), "result": result})
        return result_event(call.id, self._asking(call.id), result, details)

    def _asking(self, call_id: str) -> dict[str, Json]:
        """The message that asks for a call; empty if there is none."""
        if self._last is not None and _asks(self._last, call_id):
            return dict(self._last.data["message"])
        for event in self.store.walk(self.id, until=self._at) if self._at != 0 else ():
            if _asks(event, call_id):
                return dict(event.data["message"])
            if event.kind == "user_message":
                break
        return {}

    # --- turns ---------------------------------------------------------------------------

    @abstractmethod
    def _driving(self) -> AbstractContextManager[None]:
        """Turns and rewinds: one at a time in this process, one driver in all."""

    def _end_bracket(self) -> None:
        """What changed in a turn without tools is in the log."""
        ended = self._recorder.end_turn()
        self._append_owed([])
        self._recorder.say_missed(ended)


def _asks(event: Event, call_id: str) -> bool:
    """Whether an event's message asks for a call."""
    message = event.data.get("message")
    return isinstance(message, dict) and any(c.id == call_id for c in calls_in(message))


def result_event(
    call_id: str, asking: dict[str, Json], result: object, details: dict[str, Json]
) -> NewEvent:
    """The event with the result of a call that the message `asking` asks for."""
    result = _as_json(result)
    if is_shown(result):
        # Only Anthropic has a word for an image in a result; a view converts it.
        asked: dict[str, Json] = {"content": [{"type": "tool_use", "id": call_id}]}
        answer = answer_to(call_id, asked, result)
    else:
        content = result if isinstance(result, str) else msgspec.json.encode(result).decode()
        content = "" if result is None else content
        answer = answer_to(call_id, asking, content, failed=details.get("error") is True)
    event = message_event(answer, kind="tool_result")
    return NewEvent(event.kind, {**event.data, **details})


def _detailed(event: NewEvent, details: dict[str, Json]) -> NewEvent:
    """A user's message with what is known about the files at that moment."""
    if event.kind != "user_message" or "tree" in event.data:
        return event
    return NewEvent(event.kind, {**event.data, **details}, event.id, event.follows, event.ts)


def _as_json(value: object) -> Json:
    """A value as an event can hold it; what JSON has no word for, as text."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, InvalidData):
        return str(value)


def show_life(session: Watching) -> None:
    """The session's calls in this process are at work: what changed until now is theirs."""
    session._recorder.beat()


def foreseen(session: Watching) -> list[Event]:
    """What calls did that are over and that nobody ended, as it will be told; none ends by it.

    And what the session's agent put back by itself.
    """
    workspace, recorder = session._watched(), session._recorder
    if workspace is None:
        return []
    left = workspace.orphans(session.id, (), session.store)
    owed = recorder.foresee(workspace, force=False) if left else []
    if recorder.has_agent():
        now = workspace.glance(recorder.log, session.store)
        owed += recorder.foresee_back(workspace, now, owed)
    head = session._head_now()
    return [Event(n, "", "", one.kind, dict(one.data)) for n, one in enumerate(owed, head + 1)]
