"""A turn in the log: how it is found or begun, how it ends, and what came of it.

A turn ends with a `turn_end` event that says why; a turn without one was cut short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from typing import get_args

from .._startup.frozen import dataclass
from ..errors import BacktrailError, Conflict, InvalidData, NotFound, Unsupported
from ..events import Event, Json, NewEvent, decode_data, encode_data
from ..events.calls import INTERRUPTED, ToolCall, calls_in, pending
from ..events.history import RETRY_OF, spent
from ..events.messages import answer_in, message_event
from ..stores.base import Store
from .filepoints import events_behind, paths_changed
from .live import LiveTurn, add_cost, add_usage, resolve_agent, since
from .log import Turn
from .options import SessionOptions
from .recall import Recall
from .rewind import Rewinding
from .turns import End, Result, Retry, end_by, was_cut_short
from .views import user_message
from .watching import result_event

CANCELLED = "interrupted: the turn ended before this tool call returned a result"
"""What a call is answered whose turn was cancelled or failed."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A turn that is about to run, or how it ended if it has."""

    event: Event
    agent: Callable[[LiveTurn], Json] | None = None
    ended: Event | None = None
    is_new: bool = False


class TurnLog(Rewinding):
    """A session with an agent, and its turns as the log has them."""

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *, owns: bool, at: int | None
    ) -> None:
        super().__init__(store, session_id, options, owns=owns, at=at)
        self._close_agent: Callable[[], None] | None = None
        self._new_turn()

    def after_fork(self) -> None:
        super().after_fork()
        self._new_turn()

    # --- loops of one's own --------------------------------------------------------------

    @contextmanager
    def turn(
        self, content: str | list[Json] | Mapping[str, Json], *, id: str | None = None
    ) -> Iterator[Turn]:
        """One turn around any code: appends the user's message, holds the lease.

        A known `id` goes on with its turn, as `send` does: the turn tells whether it `is_new`
        and whether it has `ended`, by then or in the block. A block that is left ends it, with
        its error if it raised one. What changes in the files until then is the turn's own, as
        long as no `tool` is used in it: then only what the tools do is.
        """
        with self._driving():
            turn = self._begin_turn(user_message(content), id)
            try:
                yield turn
            except BaseException as error:
                self._end_turn(turn, error)
                raise
            self._end_turn(turn, None)

    def _begin_turn(self, message: dict[str, Json], id: str | None) -> Turn:
        self._check_open()
        known = self._known_turn(id, message) if id is not None else None
        ended = known is not None and self._end_to_stay(known, "errors") is not None
        if known is not None and (ended or self._is_last(known)):
            self._take_over(answer=False)
            turn = Turn(self, known, is_new=False, ended=ended)
        else:
            turn = Turn(self, self._say(message, id, known))
        self._recorder.begin_turn()
        return turn

    def _end_turn(self, turn: Turn, error: BaseException | None) -> None:
        """Record how a block was left; what it raised is what the caller must know."""
        try:
            self._end_bracket()
            if not (turn.ended or self._closed):
                self._note_end(turn.event, End("end_turn") if error is None else end_by(error))
                turn.ended = True
        except BacktrailError:
            if error is None:
                raise

    def answer(self, call_id: str, result: object) -> Event:
        """Settle a call that has no result with what came of it: text, JSON, or blocks.

        `NotFound` if no call of that id waits for a result; `pending` lists those that do.
        """
        return self._settle_call(call_id, result, failed=False)

    def give_up(self, call_id: str) -> Event:
        """Settle a call that has no result as interrupted: it is not known how far it came."""
        return self._settle_call(call_id, INTERRUPTED, failed=True)

    def _settle_call(self, call_id: str, result: object, *, failed: bool) -> Event:
        self._check_open()
        self._take_over(answer=False)
        while True:
            head = next((event.seq for event in self.store.read(self.id, reverse=True, limit=1)), 0)
            messages = self.messages(repair=False)
            waiting = [call for call in pending(messages) if call.id == call_id]
            if not waiting:
                raise NotFound(f"no call `{call_id}` of session `{self.id}` waits for a result")
            settled = _answering(messages, waiting[-1], result, failed=failed)
            try:
                return self._append([settled], expected=head)[0]
            except Conflict:
                # Another process went on meanwhile, and may have settled it.
                continue

    # --- beginning -----------------------------------------------------------------------

    def _open_send(self, message: dict[str, Json], id: str | None, retry: Retry) -> Opened:
        """Find the turn, or begin it: the user's message is in the log then."""
        if retry not in get_args(Retry):
            raise InvalidData(f"retry is 'errors' or 'never', not {retry!r}")
        self._new_turn()
        known = self._known_turn(id, message) if id is not None else None
        if known is not None:
            ended = self._end_to_stay(known, retry)
            if ended is not None:
                return Opened(known, None, ended)
            if retry == "never" and not self._is_last(known):
                raise Conflict(f"the turn `{id}` was left unfinished, and the session went on")
        agent = self._resolved_agent()
        if known is not None and self._is_last(known):
            self._take_over()
            return Opened(known, agent)
        self._answer_pending(INTERRUPTED)
        return Opened(self._say(message, id, known), agent, is_new=True)

    def _say(self, message: dict[str, Json], id: str | None, known: Event | None) -> Event:
        """Append what the user says: for the first time, or as another attempt at its turn."""
        if known is None:
            return self.append(message, id=id)
        new = message_event(message)
        first = known.data.get(RETRY_OF, known.id)
        return self._append([NewEvent(new.kind, {**new.data, RETRY_OF: first})])[0]

    def _take_over(self, *, answer: bool = True) -> None:
        """Go on with a turn that another process may have left in the midst of a call.

        What that call did to the files is in the log then, as part of the turn.
        """
        workspace = self._watched()
        if workspace is not None:
            try:
                with self._recorder.lock:
                    self._recorder.end_orphans(workspace)
            except BacktrailError as error:
                self._missed(error)
            self._append_owed([])
        if answer:
            self._answer_pending(INTERRUPTED)

    def _open_proceed(self, pending: str) -> Opened:
        """Find the turn that is not finished."""
        if pending not in ("fail", "retry"):
            raise InvalidData(f"pending is 'fail' or 'retry', not {pending!r}")
        self._new_turn()
        event = self._last_turn()
        if event is None or self._end_of(event) is not None:
            raise NotFound(f"session `{self.id}` has no turn to finish")
        agent = self._resolved_agent()
        self._take_over(answer=pending == "fail")
        return Opened(event, agent)

    def _new_turn(self) -> None:
        """What was kept for the last turn does not count: a purge, say, shows in no new event."""
        self._cancelled = threading.Event()
        self._recall = Recall(self)

    def _known_turn(self, id: str, message: dict[str, Json]) -> Event | None:
        """The newest attempt at the turn with this id; None if the id is not known.

        `Conflict` if it is known for something else than `message`.
        """
        known = next((_waiting(new) for new in self._unsaved if new.id == id), None)
        try:
            known = known or self.store.find(self.id, id)
        except NotFound:
            return None
        if known.kind != "user_message":
            raise Conflict(f"event `{id}` of session `{self.id}` is no user's message")
        if not self._is_said_in(known, message):
            raise Conflict(
                f"the id `{id}` of session `{self.id}` was given to another message: "
                "a new message needs a new id"
            )
        if self._end_to_stay(known, "errors") is not None:
            return known
        first = known.data.get(RETRY_OF, known.id)
        return next((e for e in self._newest_first(known) if e.data.get(RETRY_OF) == first), known)

    def _newest_first(self, turn: Event) -> Iterator[Event]:
        """What users said after a turn, wherever in the log."""
        yield from (_waiting(new) for new in reversed(self._unsaved) if new.kind == turn.kind)
        if turn.seq:
            yield from self.events(after=turn.seq, kinds=(turn.kind,), reverse=True)

    def _is_said_in(self, event: Event, message: dict[str, Json]) -> bool:
        """Whether this is what an event's user said; of one that was purged nobody knows."""
        known = event.data.get("message")
        given = message_event(message).data
        kept = decode_data(encode_data(self.store.kept(given)))["message"]
        return not isinstance(known, dict) or _content_of(known) == _content_of(kept)

    def _end_to_stay(self, turn: Event, retry: Retry) -> Event | None:
        """How a turn ended, unless it is to run again."""
        ended = self._end_of(turn) or self._end_of(turn, live=False)
        if ended is not None and retry == "errors" and was_cut_short(ended):
            return None
        return ended

    def _is_last(self, turn: Event) -> bool:
        last = self._last_turn()
        return last is not None and last.id == turn.id

    def _last_turn(self) -> Event | None:
        for new in reversed(self._unsaved):
            if new.kind == "user_message":
                return _waiting(new)
        if self._at == 0:
            return None
        said = (e for e in self.store.walk(self.id, until=self._at) if e.kind == "user_message")
        return next(said, None)

    def _end_of(self, turn: Event, *, live: bool = True) -> Event | None:
        """The event that ended a turn, if it ended; in the history, or in all that was."""
        ends = since(self, turn) if live else self.events(after=turn.seq, kinds=("turn_end",))
        names = (turn.seq or turn.id, turn.id)
        found = [e for e in ends if e.kind == "turn_end" and e.data.get("turn") in names]
        return found[-1] if found else None

    def _answer_pending(self, text: str) -> None:
        """Answer calls that have no result, in the log."""
        messages = self._recall.stored()
        for call in pending(messages):
            self._append([_answering(messages, call, text, failed=True)])

    def _resolved_agent(self) -> Callable[[LiveTurn], Json]:
        if self.agent is None:
            raise Unsupported(
                "the session has no agent: give `agent=`, or append messages yourself"
            )
        if not callable(self.agent):
            name = self.agent
            if isinstance(name, str) and name.endswith(":"):
                name += self.info().model or ""
            self.agent = resolve_agent(name, self._agent_options)
            self._close_agent = getattr(self.agent, "close", None)
        return self.agent

    # --- the end -------------------------------------------------------------------------

    def _finish(self, turn: LiveTurn, end: End) -> Event:
        """Record how a turn ended; a call is left open only by an agent that means to."""
        turn.finished = True
        if end.reason in ("interrupted", "error"):
            self._cancelled.set()
            self._answer_pending(CANCELLED)
        return self._note_end(turn.event, end, usage=turn.extra_usage, cost_usd=turn.extra_cost)

    def _note_end(self, turn: Event, end: End, **more: Json) -> Event:
        data: dict[str, Json] = {"turn": turn.seq or turn.id, "reason": end.reason}
        data |= {name: value for name, value in {"error": end.error, **more}.items() if value}
        follows = self._before(turn) if end.refused else None
        return self._append([NewEvent("turn_end", data, follows=follows)])[0]

    def _before(self, turn: Event) -> int | None:
        """What a turn continued from; None while its message could not be stored."""
        try:
            return (turn if turn.seq else self.store.find(self.id, turn.id)).previous
        except NotFound:
            return None

    def _result_of(self, turn: Event, ended: Event) -> Result:
        """The result of a turn, as the log has it."""
        usage: dict[str, int] = {}
        cost: float | None = None
        events = since(self, turn, ended.seq or None)
        for event in events:
            add_usage(usage, spent(event.data))
            cost = add_cost(cost, event.data.get("cost_usd"))
        said = [(e.kind, e.data["message"]) for e in events if _is_message(e)]
        text, messages = answer_in(said), [message for _, message in said]
        reason, error = ended.data.get("reason", "end_turn"), ended.data.get("error")
        paths = self._paths_of(turn, events)
        return Result(text, messages, usage, paths, reason, cost, error, turn)

    def _paths_of(self, turn: Event, events: list[Event]) -> list[str]:
        """The paths that the calls of a turn changed; `events` are the live ones of it."""
        if turn.seq == 0:
            return []
        newest = self._recent[-1].seq if self._recent else 0
        if not events or [e.seq for e in events] != list(range(turn.seq + 1, newest + 1)):
            behind = events_behind(self.store, self.id, turn.seq)
            events = list(takewhile(lambda event: event.kind != "user_message", behind))
        # In a new process nobody may have looked at files yet, and perhaps nobody has to.
        workspace = self._watched() if any("files" in event.data for event in events) else None
        return sorted(paths_changed(workspace.get, events)) if workspace is not None else []


def _answering(
    messages: list[dict[str, Json]], call: ToolCall, result: object, *, failed: bool
) -> NewEvent:
    """The event that settles a call of these messages."""
    asking = (m for m in reversed(messages) if any(c.id == call.id for c in calls_in(m)))
    details: dict[str, Json] = {"name": call.name} | ({"error": True} if failed else {})
    return result_event(call.id, next(asking, {}), result, details)


def _waiting(new: NewEvent) -> Event:
    """An event that is not stored yet."""
    return Event(0, new.id or "", "", new.kind, dict(new.data))


def _content_of(message: dict[str, Json]) -> Json:
    """What a user's message says, whichever of the ways to spell a text it uses."""
    content = message.get("content", message)
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _is_message(event: Event) -> bool:
    return isinstance(event.data.get("message"), dict)
