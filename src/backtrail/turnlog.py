"""A turn in the log: how it is found or begun, how it ends, and what came of it.

A turn ends with a `turn_end` event that says why; a turn without one was cut short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from .agents import LiveTurn, add_cost, add_usage, resolve_agent, since
from .calls import INTERRUPTED, answer_to, calls_in, pending
from .errors import Conflict, InvalidData, NotFound, Unsupported
from .events import Event, Json, NewEvent
from .filepoints import events_behind, paths_changed
from .history import spent
from .messages import message_event, text_of
from .options import SessionOptions
from .recalling import Recall
from .rewinding import Rewinding
from .stores.base import Store
from .turns import End, Result

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

    # --- beginning -----------------------------------------------------------------------

    def _open_send(self, message: dict[str, Json], id: str | None) -> Opened:
        """Find the turn, or begin it: the user's message is in the log then."""
        self._new_turn()
        known = self._known_turn(id) if id is not None else None
        if known is not None:
            ended = self._end_of(known) or self._end_of(known, live=False)
            if ended is not None:
                return Opened(known, None, ended)
            last = self._last_turn()
            if last is None or last.id != known.id:
                raise Conflict(f"the turn `{id}` was left unfinished, and the session went on")
            agent = self._resolved_agent()
            self._answer_pending(INTERRUPTED)
            return Opened(known, agent)
        agent = self._resolved_agent()
        self._answer_pending(INTERRUPTED)
        return Opened(self.append(message, id=id), agent, is_new=True)

    def _open_proceed(self, pending: str) -> Opened:
        """Find the turn that is not finished."""
        if pending not in ("fail", "retry"):
            raise InvalidData(f"pending is 'fail' or 'retry', not {pending!r}")
        self._new_turn()
        event = self._last_turn()
        if event is None or self._end_of(event) is not None:
            raise NotFound(f"session `{self.id}` has no turn to finish")
        agent = self._resolved_agent()
        if pending == "fail":
            self._answer_pending(INTERRUPTED)
        return Opened(event, agent)

    def _new_turn(self) -> None:
        """What was kept for the last turn does not count: a purge, say, shows in no new event."""
        self._cancelled = threading.Event()
        self._recall = Recall(self)

    def _known_turn(self, id: str) -> Event | None:
        for new in self._unsaved:
            if new.id == id:
                return Event(0, id, "", new.kind, dict(new.data))
        try:
            event = self.store.find(self.id, id)
        except NotFound:
            return None
        if event.kind != "user_message":
            raise Conflict(f"event `{id}` of session `{self.id}` is no user's message")
        return event

    def _last_turn(self) -> Event | None:
        for new in reversed(self._unsaved):
            if new.kind == "user_message":
                return Event(0, new.id or "", "", new.kind, dict(new.data))
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
            asking = (m for m in reversed(messages) if any(c.id == call.id for c in calls_in(m)))
            answer = answer_to(call.id, next(asking, {}), text, failed=True)
            event = message_event(answer, kind="tool_result")
            self._append([NewEvent(event.kind, {**event.data, "name": call.name, "error": True})])

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
        data: dict[str, Json] = {
            "turn": turn.event.seq or turn.event.id,
            "reason": end.reason,
        }
        more = {"error": end.error, "usage": turn.extra_usage, "cost_usd": turn.extra_cost}
        data |= {name: value for name, value in more.items() if value}
        follows = self._before(turn.event) if end.refused else None
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
        text = ""
        events = since(self, turn, ended.seq or None)
        for event in events:
            add_usage(usage, spent(event.data))
            cost = add_cost(cost, event.data.get("cost_usd"))
            if event.kind == "assistant_message":
                text = text_of(event.data.get("message")) or text
        messages = [e.data["message"] for e in events if isinstance(e.data.get("message"), dict)]
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
