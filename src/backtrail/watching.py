"""Watching over a session's directory: a tree with every user's message, and a bracket
around every call.

Whatever an agent does to the files, by whatever means, lies between two scans, and the
event of the call carries the trees before and after it. What others did in between is a
`files_changed` event. Nothing changed means no event and no new tree.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from .calls import answer_to, answers_in, calls_in, pending, told_of
from .conversation import Turn
from .errors import BacktrailError, InvalidData
from .events import Event, Json, NewEvent, timestamp
from .files.attribution import joined
from .files.baseline import PARTIAL
from .files.baseline import WAIT as BASELINE_WAIT
from .files.brackets import Bracket
from .files.names import declared
from .messages import message_event
from .options import SessionOptions
from .stores.base import Store
from .views import user_message
from .workplace import Workplace

if TYPE_CHECKING:
    from .files.workspace import Workspace

_RECENT = 200


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


class Watching(Workplace):
    """A conversation whose directory is watched over."""

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *, owns: bool, at: int | None
    ) -> None:
        super().__init__(store, session_id, options, owns=owns, at=at)
        self._open_calls = 0
        self._turn_bracket: Bracket | None = None
        self._spans: dict[str, Bracket] = {}
        self._untold: list[Bracket] = []
        self._own: set[str] = set()
        self._later: dict[str, Bracket] = {}
        self._last: Event | None = None

    # --- scanning ------------------------------------------------------------------------

    def _append(
        self, events: list[NewEvent], *, expected: int | None = None, spans: bool = True
    ) -> list[Event]:
        """Append, with the tree at a user's message; calls in messages open brackets."""
        if self._spans:
            events = [self._with_span(event) for event in events]
        owed: list[NewEvent] = []
        speaks = any(event.kind == "user_message" for event in events)
        if speaks and self._watched() is not None and not self._repeats(events):
            owed, details = self._look()
            events = [_detailed(event, details) for event in events]
        stored = super()._append([*owed, *events], expected=expected)[len(owed) :]
        self._drop_told()
        self._last = next((e for e in stored if e.kind == "assistant_message"), self._last)
        if spans and any(event.kind == "assistant_message" for event in stored):
            self._open_spans(stored)
        return stored

    def _repeats(self, events: list[NewEvent]) -> bool:
        """Whether all of this is in the log already, as when a request is tried again."""
        if any(event.id is None for event in events):
            return False
        return all(self._is_known(event.id or "") for event in events)

    def _look(self) -> tuple[list[NewEvent], dict[str, Json]]:
        """Scan: the events that are owed now, and what the next event says about the files."""
        workspace = self._watched()
        if workspace is None:
            return [], {}
        if self._partial(0):
            return [], {"files": {"missed": PARTIAL}}
        with self._watch:
            try:
                owed = self._ended_orphans(workspace)
                tree = workspace.scan(self._log_name, self.store, rebind=self._fresh)
            except BacktrailError as error:
                self._missed(error)
                return [], {"files": {"missed": str(error)}}
            for note in workspace.problems:
                self._complain("restore", note)
            self._fresh = False
            owed += self._by_others(tree)
            self._tree = tree
            head = workspace.head()
            return owed, {"tree": tree.hex()} | ({"git": head} if head else {})

    def _by_others(self, tree: bytes) -> list[NewEvent]:
        """The event for what changed since this session last looked, outside its calls."""
        known = self._tree_known()
        if known is None or known == tree or self._open_calls:
            return []
        return [NewEvent("files_changed", {"files": {"before": known.hex(), "after": tree.hex()}})]

    def _end_orphans(self, workspace: Workspace) -> None:
        """Note what calls did that a crash left open, before something builds on it."""
        if workspace.orphans(self.id):
            with self._watch:
                ended = self._ended_orphans(workspace)
            self._append(ended)

    def _ended_orphans(self, workspace: Workspace) -> list[NewEvent]:
        """Calls that a crash left open end now, with what they did to the files."""
        ended: list[NewEvent] = []
        for bracket in workspace.orphans(self.id):
            if bracket.ended and self._is_told(bracket):
                workspace.drop(bracket)
                continue
            tree, done = workspace.end(bracket, self._log_name, self.store, told=False)
            if done is not None:
                self._untold.append(bracket)
                data = {"name": bracket.name, "interrupted": True, "files": done.to_dict()}
                if bracket.call:
                    data["call"] = bracket.call
                ended.append(NewEvent("action", data))
                self._tree = tree
        return ended

    def _so_far(self, workspace: Workspace, begun: Bracket) -> list[NewEvent]:
        """What calls under way did before another began, so that the log has it in order."""
        told: list[NewEvent] = []
        for bracket in workspace.catalogue.brackets(workspace.place.n):
            # Others may drive the same session, and end their calls themselves.
            if bracket.id not in self._own or bracket.opened >= begun.opened or bracket.ended:
                continue
            later = workspace.catalogue.go_on(workspace.place.n, bracket)
            self._later[bracket.id] = later
            self._own.add(later.id)
            _, done = workspace.end(bracket, self._log_name, self.store, told=False)
            if done is not None:
                self._untold.append(bracket)
                data = {"name": bracket.name, "so_far": True, "files": done.to_dict()}
                if bracket.call:
                    data["call"] = bracket.call
                told.append(NewEvent("action", data))
        return told

    def _newest(self, bracket: Bracket) -> Bracket:
        """The bracket in which a call went on, which is over now."""
        self._own.discard(bracket.id)
        while bracket.id in self._later:
            bracket = self._later.pop(bracket.id)
            self._own.discard(bracket.id)
        return bracket

    def _is_told(self, bracket: Bracket) -> bool:
        """Whether what a call did is in the log: its process died soon after that.

        Looks at all that came since the call began, and at some more: clocks are set, too.
        """
        before, began = bracket.tree.hex(), timestamp(bracket.since)
        for n, event in enumerate(self.store.read(self.id, reverse=True)):
            files = event.data.get("files")
            if isinstance(files, dict) and files.get("before") == before:
                return bool(event.data.get("name") == bracket.name)
            if n >= _RECENT and event.ts < began:
                break
        return False

    def _drop_told(self) -> None:
        """Calls whose events are stored now need no bracket."""
        if self._untold and self._workspace is not None:
            with self._watch:
                untold, self._untold = self._untold, []
            for bracket in untold:
                self._workspace.drop(bracket)

    # --- calls in messages ---------------------------------------------------------------

    def _open_spans(self, events: list[Event]) -> None:
        """A bracket for each call that messages ask for and do not answer themselves."""
        messages = [e.data["message"] for e in events if isinstance(e.data.get("message"), dict)]
        for call in pending(messages) if self._watched() is not None else ():
            bracket = self._begin_call(Call(call.name, None, call.id), None)
            if bracket is not None:
                self._spans[call.id] = bracket

    def _with_span(self, event: NewEvent) -> NewEvent:
        """A result with what its call did to the files, where a message opened the bracket."""
        message = event.data.get("message")
        if event.kind != "tool_result" or not isinstance(message, dict):
            return event
        ids = [id for id in sorted(answers_in(message)) if id in self._spans]
        ended = [self._ended(self._spans.pop(id)) for id in ids]
        found = [files for _, files in ended if files]
        self._untold += [bracket for bracket, _ in ended]
        if not found or "files" in event.data:
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
            self._end_call(call, bracket, error)
            raise
        self._end_call(call, bracket, None)

    def _drop_span(self, id: str | None) -> None:
        """A call has a bracket of its own: the one that its message opened is not needed."""
        bracket = self._spans.pop(id, None) if id is not None else None
        if bracket is not None and self._workspace is not None:
            self._drop_bracket(self._workspace, bracket)

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
            try:
                self._retire_turn(workspace)
                owed = self._ended_orphans(workspace)
                bracket = workspace.begin(
                    self._log_name, call.name, call.id, named, self.store, rebind=self._fresh
                )
            except BacktrailError as error:
                self._missed(error)
                return None
            self._fresh = False
            owed += self._by_others(bracket.tree)
            self._tree = bracket.tree
            self._open_calls += 1
            self._own.add(bracket.id)
            try:
                owed += self._so_far(workspace, bracket) if self._open_calls > 1 else []
            except BacktrailError as error:
                self._drop_bracket(workspace, bracket)
                self._missed(error)
                return None
        try:
            super()._append(owed)
        except BaseException:
            self._drop_bracket(workspace, bracket)
            raise
        self._drop_told()
        return bracket

    def _drop_bracket(self, workspace: Workspace, bracket: Bracket) -> None:
        with self._watch:
            self._open_calls -= 1
            workspace.drop(self._newest(bracket))

    def _end_call(self, call: Call, bracket: Bracket | None, error: BaseException | None) -> None:
        if bracket is None:
            files = self._grabbed(call)
        else:
            bracket, files = self._ended(bracket)
        if call.only_files and not files:
            return
        try:
            call.event = super()._append([self._told(call, files, error)])[0]
        except BaseException:
            if files and bracket is not None and self._workspace is not None:
                self._workspace.drop(bracket)
            raise
        if files and bracket is not None and self._workspace is not None:
            self._workspace.told(bracket)

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

    def _ended(self, bracket: Bracket) -> tuple[Bracket, dict[str, Json] | None]:
        """A call ends now: its newest bracket, and what it did to the files, for its event."""
        workspace = self._workspace
        assert workspace is not None
        with self._watch:
            self._open_calls -= 1
            bracket = self._newest(bracket)
            try:
                tree, done = workspace.end(bracket, self._log_name, self.store, told=False)
            except BacktrailError as failure:
                self._missed(failure)
                return bracket, {"missed": str(failure)}
            if done is None:
                # What changed all the same is somebody else's, and told with the next look.
                return bracket, None
            self._tree = tree
            return bracket, done.to_dict()

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
        if _is_shown(result):
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
                self._turn_bracket = workspace.open(self._log_name, "turn")

    def _end_turn(self) -> None:
        with self._watch:
            bracket, self._turn_bracket = self._turn_bracket, None
            if bracket is None:
                return
            self._open_calls += 1
            bracket, files = self._ended(bracket)
        if files:
            super()._append([NewEvent("action", {"name": "turn", "files": files})])
            if self._workspace is not None:
                self._workspace.drop(bracket)

    def _retire_turn(self, workspace: Workspace) -> None:
        """The turn uses tools: what nobody claims is not its own."""
        bracket, self._turn_bracket = self._turn_bracket, None
        if bracket is not None:
            workspace.drop(bracket)


def _is_shown(result: Json) -> bool:
    """Whether a result is not text but something to look at, as blocks of a message."""
    blocks = result if isinstance(result, list) else []
    kinds = {block.get("type") for block in blocks if isinstance(block, dict)}
    return "image" in kinds and kinds <= {"text", "image"}


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
