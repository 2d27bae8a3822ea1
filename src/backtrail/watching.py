"""Watching over a session's directory: a tree with every user's message, and a bracket
around every call.

Whatever an agent does to the files, by whatever means, lies between two scans, and the
event of the call carries the trees before and after it. What others did in between is a
`files_changed` event. Nothing changed means no event and no new tree.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

import msgspec

from .calls import answer_to, answers_in, calls_in, is_shown, pending, told_of
from .conversation import Turn
from .errors import BacktrailError, Closed, InvalidData
from .events import Event, Json, NewEvent
from .files.attribution import joined
from .files.baseline import PARTIAL
from .files.baseline import WAIT as BASELINE_WAIT
from .files.brackets import Bracket
from .files.names import declared
from .messages import message_event
from .options import SessionOptions
from .stores.base import Store
from .underway import Ended, Underway
from .views import user_message

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
        self.before: bytes | None = None
        self.paths: list[bytes] | None = None
        self.event: Event | None = None


class Watching(Underway, ABC):
    """A conversation whose directory is watched over."""

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *, owns: bool, at: int | None
    ) -> None:
        super().__init__(store, session_id, options, owns=owns, at=at)
        self._turn_bracket: Bracket | None = None
        self._last: Event | None = None
        self._unstored: set[str] = set()

    # --- scanning ------------------------------------------------------------------------

    def _append(
        self, events: list[NewEvent], *, expected: int | None = None, spans: bool = True
    ) -> list[Event]:
        """Append, with the tree at a user's message; calls in messages open brackets."""
        ended: list[Ended] = []
        asks = spans and any(event.kind == "assistant_message" for event in events)
        given = {event.id for event in events if event.id is not None} if asks else set()
        head = self._head_now() if given and self._watched() is not None else 0
        try:
            if self._spans or self._telling:
                events = [self._with_span(event, ended) for event in events]
            if any(event.kind in _PASSING for event in events):
                events = self._passed(events)
            stored = super()._append(events, expected=expected)
        except BaseException:
            self._untold(ended)
            raise
        if ended:
            self._are_told(ended, stored)
        self._last = next((e for e in stored if e.kind == "assistant_message"), self._last)
        if asks:
            self._open_spans(self._added(stored, given, head) if given else stored)
        return stored

    def _passed(self, events: list[NewEvent]) -> list[NewEvent]:
        """A turn begins or ends: the user's message with the tree of this moment.

        A call of a message that has no result yet gets none: it is over.
        """
        speaks = any(event.kind == "user_message" for event in events)
        if not (speaks or self._spans) or self._watched() is None:
            return events
        if not self._repeats(events):
            details = self._look(over=True)
            events = [_detailed(event, details) for event in events]
        return events

    def _repeats(self, events: list[NewEvent]) -> bool:
        """Whether all of this is in the log already, as when a request is tried again."""
        if any(event.id is None for event in events):
            return False
        return all(self._is_known(event.id or "") for event in events)

    def _look(self, *, over: bool = False) -> dict[str, Json]:
        """Scan: what the next event says about the files. It takes along what else is to tell.

        What calls under way did so far is told, and they go on; with `over`, those that
        messages opened end.
        """
        workspace = self._watched()
        if workspace is None:
            return {}
        if self._partial(0):
            return {"files": {"missed": PARTIAL}}
        with self._watch:
            ended = {bracket.id for bracket in self._spans.values()} if over else set()
            try:
                self._end_orphans(workspace)
                tree = workspace.scan(self._log_name, self.store, rebind=self._fresh)
                told = self._catch_up(workspace, ended)
            except BacktrailError as error:
                self._missed(error)
                return {"files": {"missed": str(error)}}
            if over:
                self._spans.clear()
            for note in workspace.problems:
                self._complain("restore", note)
            self._fresh = False
            if not told:
                self._tell_others(tree)
            self._tree = tree
            head = workspace.head()
            return {"tree": tree.hex()} | ({"git": head} if head else {})

    # --- calls in messages ---------------------------------------------------------------

    def _head_now(self) -> int:
        newest = next(self.events(reverse=True, limit=1), None)
        return newest.seq if newest else 0

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

    def _open_spans(self, events: list[Event]) -> None:
        """A bracket for each call that messages ask for and do not answer themselves."""
        messages = [e.data["message"] for e in events if isinstance(e.data.get("message"), dict)]
        for call in pending(messages) if self._watched() is not None else ():
            bracket = self._begin_call(Call(call.name, None, call.id), None)
            with self._watch:
                # An id that comes again is another call: some models count anew.
                self._drop_span(call.id)
                if bracket is not None:
                    self._spans[call.id] = bracket

    def _with_span(self, event: NewEvent, ended: list[Ended]) -> NewEvent:
        """A result with what its call did to the files, where a message opened the bracket.

        The calls that it ends are added to `ended`.
        """
        message = event.data.get("message")
        if event.kind != "tool_result" or not isinstance(message, dict):
            return event
        answered, first = answers_in(message), len(ended)
        if self._telling:
            ended += self._taken_back(answered)
        for id in sorted(answered):
            with self._watch:
                bracket = self._spans.pop(id, None)
            if bracket is not None:
                ended.append(self._ended(bracket))
        over = ended[first:]
        self._say_missed(over)
        found = [files for _, files, _ in over if files]
        if not found:
            return event
        data = {**event.data, "files": joined(found)}
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
        A tool that knows which `paths` it will touch says so: then only these are looked
        at, and only these are its own.
        """
        call = Call(name, input, id)
        self._drop_span(id)
        bracket = self._begin_call(call, paths)
        try:
            yield call
        except BaseException as error:
            with suppress(Closed):
                self._end_call(call, bracket, error)
            raise
        self._end_call(call, bracket, None)

    def _begin_call(
        self, call: Call, paths: Collection[str | os.PathLike[str]] | None
    ) -> Bracket | None:
        self._check_open()
        workspace = self._watched()
        if workspace is None:
            return None
        named = None if paths is None else declared(workspace.root, paths)
        if self._partial(0 if named is not None else BASELINE_WAIT):
            call.before = workspace.grab(self._log_name, named) if named is not None else None
            call.paths = named
            return None
        with self._watch:
            # Closed by another thread, it has let go of its calls.
            self._check_open()
            try:
                self._retire_turn()
                begin = partial(
                    workspace.begin, self._log_name, call.name, call.id, named, self.store
                )
                bracket = begin(rebind=self._fresh)
                if workspace.left_open or self._unseen:
                    # They end before another begins, so that what they did is theirs.
                    workspace.drop(bracket)
                    self._end_orphans(workspace)
                    bracket = begin()
            except BacktrailError as error:
                self._missed(error)
                return None
            self._fresh = False
            try:
                told = self._catch_up(workspace, before=bracket.opened)
            except BacktrailError as error:
                workspace.drop(bracket)
                self._missed(error)
                return None
            if not told:
                self._tell_others(bracket.tree)
            self._tree = bracket.tree
            self._open[bracket.id] = bracket
        try:
            super()._append([])
        except BaseException:
            self._drop_call(bracket)
            raise
        return bracket

    def _end_call(self, call: Call, bracket: Bracket | None, error: BaseException | None) -> None:
        ended = [] if bracket is None else [self._ended(bracket)]
        files = ended[0].files if ended else self._grabbed(call)
        if call.only_files and not files:
            return
        try:
            event = super()._append([self._told(call, files, error)])[0]
        except BaseException:
            self._untold(ended)
            raise
        self._are_told(ended, [event])
        self._say_missed(ended)
        call.event = event

    def _grabbed(self, call: Call) -> dict[str, Json] | None:
        """What a call without a bracket did to the paths it declared."""
        if self._workspace is None:
            return None
        if call.before is None or call.paths is None:
            return {"missed": PARTIAL if self._baseline else "the call was not captured"}
        after = self._workspace.grab(self._log_name, call.paths)
        if after == call.before:
            return None
        return {"before": call.before.hex(), "after": after.hex(), "partial": True}

    def _told(
        self, call: Call, files: dict[str, Json] | None, error: BaseException | None
    ) -> NewEvent:
        """The event that ends a call."""
        failed = error is not None
        result = _as_json(call.result) if error is None else told_of(error)
        details: dict[str, Json] = {"name": call.name} | ({"files": files} if files else {})
        if failed:
            details["error"] = True
        if call.id is None:
            return NewEvent("action", {**details, "input": _as_json(call.input), "result": result})
        if is_shown(result):
            # Only Anthropic has a word for an image in a result; a view converts it.
            asked: dict[str, Json] = {"content": [{"type": "tool_use", "id": call.id}]}
            answer = answer_to(call.id, asked, result)
        else:
            content = result if isinstance(result, str) else msgspec.json.encode(result).decode()
            content = "" if result is None else content
            answer = answer_to(call.id, self._asking(call.id), content, failed=failed)
        event = message_event(answer, kind="tool_result")
        return NewEvent(event.kind, {**event.data, **details})

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

    @contextmanager
    def turn(
        self, content: str | list[Json] | Mapping[str, Json], *, id: str | None = None
    ) -> Iterator[Turn]:
        """One turn around any code: appends the user's message, holds the lease.

        What changes in the files until its end is the turn's own, as long as no `tool` is
        used in it: then only what the tools do is.
        """
        with self._driving():
            turn = Turn(self, self.append(user_message(content), id=id))
            self._begin_turn()
            try:
                yield turn
            finally:
                self._end_turn()

    def _begin_turn(self) -> None:
        workspace = self._watched()
        if self._partial(0):
            return
        with self._watch:
            if workspace is not None and self._tree is not None and self._turn_bracket is None:
                bracket = self._turn_bracket = workspace.open(self._log_name, "turn")
                self._open[bracket.id] = bracket

    def _end_turn(self) -> None:
        bracket, self._turn_bracket = self._turn_bracket, None
        if self._spans:
            self._look(over=True)
        ended = [] if bracket is None else [self._ended(bracket)]
        for bracket, files, failure in ended:
            if files:
                told = NewEvent("action", {"name": "turn", "files": files})
                self._tell(told, None if failure else bracket)
        super()._append([])
        self._say_missed(ended)

    def _retire_turn(self) -> None:
        """The turn uses tools: what nobody claims is not its own."""
        bracket, self._turn_bracket = self._turn_bracket, None
        if bracket is not None:
            self._drop_call(bracket)


def _asks(event: Event, call_id: str) -> bool:
    """Whether an event's message asks for a call."""
    message = event.data.get("message")
    return isinstance(message, dict) and any(c.id == call_id for c in calls_in(message))


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
