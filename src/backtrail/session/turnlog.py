"""A turn in the log: how it is found or begun, how it ends, and what came of it.

A turn ends with a `turn_end` event that says why; a turn without one was cut short.
While one is under way the conversation only grows: `Recall` keeps what was read of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, get_args

from .._startup.frozen import dataclass, replace
from ..errors import BacktrailError, Conflict, InvalidData, NotFound, Unsupported
from ..events import MESSAGE_KINDS, Event, Format, Json, NewEvent, decode_data, encode_data
from ..events.calls import INTERRUPTED, pending
from ..events.calls import repair as repaired
from ..events.history import spent
from ..events.messages import Page, answer_in, message_event, page_of
from ..events.operations import RETRY_OF
from ..formats.messages import convert
from .capture import Capture
from .filepoints import events_behind, net_of, paths_changed
from .liveturn import Agent, LiveTurn, add_cost, add_usage, resolve_agent
from .log import SessionLog, unstored
from .toolcalls import settling_event
from .turns import End, Result, Retry, end_by, was_cut_short
from .views import conversation

if TYPE_CHECKING:
    from .session import Session


CANCELLED = "interrupted: the turn ended before this tool call returned a result"
"""What a call is answered whose turn was cancelled or failed."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A turn that is about to run, or how it ended if it has."""

    event: Event
    agent: Agent | None = None
    ended: Event | None = None
    is_new: bool = False


class Turn:
    """A turn under way: what was said, and what is appended to it.

    `is_new` says whether it was said just now; else another process, or this one, began with
    it. One that has `ended` needs no work any more.
    """

    def __init__(
        self, session: Session, event: Event, *, is_new: bool = True, ended: bool = False
    ) -> None:
        self.session = session
        self.event = event
        self.is_new = is_new
        self.ended = ended

    def append(self, message: object, **details: Json) -> Event:
        """Append one message of the turn; see `Session.append`."""
        return self.session.append(message, **details)

    def extend(self, messages: Sequence[object]) -> list[Event]:
        """Append messages, or what is new in a whole conversation."""
        return self.session.extend(messages)

    def messages(self) -> list[dict[str, Json]]:
        """The whole conversation, this turn included."""
        return self.session.messages()


class TurnLog:
    """The turns of a session, as its log has them. `agent` answers them, if there is one."""

    def __init__(
        self, log: SessionLog, capture: Capture, agent: Agent | str | None = None,
        agent_options: Mapping[str, Json] | None = None,
    ) -> None:  # fmt: skip
        self.agent = agent
        self.agent_options = agent_options or {}
        self.close_agent: Callable[[], None] | None = None
        self._log = log
        self._capture = capture
        self._recorder = capture.recorder
        self._store, self._id = log.store, log.id
        self.new_turn()

    # --- loops of one's own --------------------------------------------------------------

    def begin(self, session: Session, message: dict[str, Json], id: str | None) -> Turn:
        """Find the turn of a block, or begin it; it is one of `session`."""
        self._log.check_open()
        known = self._known_turn(id, message) if id is not None else None
        ended = known is not None and self._end_to_stay(known, "errors") is not None
        if known is not None and (ended or self._is_last(known)):
            self._take_over(answer=False)
            turn = Turn(session, known, is_new=False, ended=ended)
        else:
            turn = Turn(session, self._say(message, id, known))
        self._recorder.begin_turn()
        return turn

    def end(self, turn: Turn, error: BaseException | None) -> None:
        """Record how a block was left; what it raised is what the caller must know."""
        try:
            self._capture.end_turn()
            if not (turn.ended or self._log.closed):
                self._note_end(turn.event, End("end_turn") if error is None else end_by(error))
                turn.ended = True
        except BacktrailError:
            if error is None:
                raise

    def settle(self, call_id: str, result: object, *, failed: bool) -> Event:
        """Settle a call that has no result; see `Session.answer` and `Session.give_up`."""
        self._log.check_open()
        self._take_over(answer=False)
        while True:
            head = self._log.head()
            messages = self._log.from_call(call_id)
            waiting = [call for call in pending(messages) if call.id == call_id]
            if not waiting:
                raise NotFound(f"no call `{call_id}` of session `{self._id}` waits for a result")
            settled = settling_event(messages, waiting[-1], result, failed=failed)
            try:
                return self._capture.append([settled], expected=head)[0]
            except Conflict:
                # Another process went on meanwhile, and may have settled it.
                continue

    # --- beginning -----------------------------------------------------------------------

    def open_send(self, message: dict[str, Json], id: str | None, retry: Retry) -> Opened:
        """Find the turn, or begin it: the user's message is in the log then."""
        if retry not in get_args(Retry):
            raise InvalidData(f"retry is 'errors' or 'never', not {retry!r}")
        self.new_turn()
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
            return self._capture.append([message_event(message, id)])[0]
        new = message_event(message)
        first = known.data.get(RETRY_OF, known.id)
        return self._capture.append([NewEvent(new.kind, {**new.data, RETRY_OF: first})])[0]

    def _take_over(self, *, answer: bool = True) -> None:
        """Go on with a turn that another process may have left in the midst of a call.

        What that call did to the files is in the log then, as part of the turn.
        """
        workspace = self._capture.watched()
        if workspace is not None:
            try:
                with self._recorder.lock:
                    self._recorder.end_orphans(workspace)
            except BacktrailError as error:
                self._capture.missed(error)
            self._capture.flush()
        if answer:
            self._answer_pending(INTERRUPTED)

    def open_proceed(self, pending: str) -> Opened:
        """Find the turn that is not finished."""
        if pending not in ("fail", "retry"):
            raise InvalidData(f"pending is 'fail' or 'retry', not {pending!r}")
        self.new_turn()
        event = self._last_turn()
        if event is None or self._end_of(event) is not None:
            raise NotFound(f"session `{self._id}` has no turn to finish")
        agent = self._resolved_agent()
        self._take_over(answer=pending == "fail")
        return Opened(event, agent)

    def new_turn(self) -> None:
        """What was kept for the last turn does not count: a purge, say, shows in no new event."""
        self.cancelled = threading.Event()
        self.recall = Recall(self._log)

    def _known_turn(self, id: str, message: dict[str, Json]) -> Event | None:
        """The newest attempt at the turn with this id; None if the id is not known.

        `Conflict` if it is known for something else than `message`.
        """
        known = next((unstored(new) for new in self._log.unsaved if new.id == id), None)
        try:
            known = known or self._store.find(self._id, id)
        except NotFound:
            return None
        if known.kind != "user_message":
            raise Conflict(f"event `{id}` of session `{self._id}` is no user's message")
        if not self._is_said_in(known, message):
            raise Conflict(
                f"the id `{id}` of session `{self._id}` was given to another message: "
                "a new message needs a new id"
            )
        if self._end_to_stay(known, "errors") is not None:
            return known
        first = known.data.get(RETRY_OF, known.id)
        return next((e for e in self._newest_first(known) if e.data.get(RETRY_OF) == first), known)

    def _newest_first(self, turn: Event) -> Iterator[Event]:
        """What users said after a turn, wherever in the log."""
        yield from (unstored(new) for new in reversed(self._log.unsaved) if new.kind == turn.kind)
        if turn.seq:
            yield from self._log.events(after=turn.seq, kinds=(turn.kind,), reverse=True)

    def _is_said_in(self, event: Event, message: dict[str, Json]) -> bool:
        """Whether this is what an event's user said; of a purged one it is not known."""
        known = event.data.get("message")
        given = message_event(message).data
        kept = decode_data(encode_data(self._store.kept(given)))["message"]
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
        for new in reversed(self._log.unsaved):
            if new.kind == "user_message":
                return unstored(new)
        return next((e for e in self._log.walk() if e.kind == "user_message"), None)

    def _end_of(self, turn: Event, *, live: bool = True) -> Event | None:
        """The event that ended a turn, if it ended; in the history, or in all that was."""
        log = self._log
        ends = log.since(turn) if live else log.events(after=turn.seq, kinds=("turn_end",))
        names = (turn.seq or turn.id, turn.id)
        found = [e for e in ends if e.kind == "turn_end" and e.data.get("turn") in names]
        return found[-1] if found else None

    def _answer_pending(self, text: str) -> None:
        """Answer calls that have no result, in the log."""
        messages = self.recall.stored()
        for call in pending(messages):
            self._capture.append([settling_event(messages, call, text, failed=True)])

    def _resolved_agent(self) -> Agent:
        if self.agent is None:
            raise Unsupported(
                "the session has no agent: give `agent=`, or append messages yourself"
            )
        if not callable(self.agent):
            name = self.agent
            if isinstance(name, str) and name.endswith(":"):
                name += self._store.info(self._id).model or ""
            self.agent = resolve_agent(name, self.agent_options)
            self.close_agent = getattr(self.agent, "close", None)
        return self.agent

    # --- the end -------------------------------------------------------------------------

    def finish(self, turn: LiveTurn, end: End) -> Event:
        """Record how a turn ended; a call is left open only by an agent that means to."""
        turn.finished = True
        if end.reason in ("interrupted", "error"):
            self.cancelled.set()
            self._answer_pending(CANCELLED)
        return self._note_end(turn.event, end, usage=turn.extra_usage, cost_usd=turn.extra_cost)

    def _note_end(self, turn: Event, end: End, **more: Json) -> Event:
        data: dict[str, Json] = {"turn": turn.seq or turn.id, "reason": end.reason}
        data |= {name: value for name, value in {"error": end.error, **more}.items() if value}
        data |= self._net(turn)
        follows = self._before(turn) if end.refused else None
        return self._capture.append([NewEvent("turn_end", data, follows=follows)])[0]

    def _net(self, turn: Event) -> dict[str, Json]:
        """What a turn did to the files, counted for lists; nothing where nothing was captured."""
        events = self._log.since(turn)
        workspace = self._capture.workspace
        if workspace is None or not any("files" in event.data for event in events):
            return {}
        return net_of(self._store, self._id, workspace.get, events)

    def _before(self, turn: Event) -> int | None:
        """What a turn continued from; None while its message could not be stored."""
        try:
            return (turn if turn.seq else self._store.find(self._id, turn.id)).previous
        except NotFound:
            return None

    def result_of(self, turn: Event, ended: Event) -> Result:
        """The result of a turn, as the log has it."""
        usage: dict[str, int] = {}
        cost: float | None = None
        events = self._log.since(turn, ended.seq or None)
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
        newest = self._log.recent[-1].seq if self._log.recent else 0
        if not events or [e.seq for e in events] != list(range(turn.seq + 1, newest + 1)):
            behind = events_behind(self._store, self._id, turn.seq)
            events = list(takewhile(lambda event: event.kind != "user_message", behind))
        # In a new process no call may have looked at files yet, and perhaps none has to.
        captured = any("files" in event.data for event in events)
        workspace = self._capture.watched() if captured else None
        return sorted(paths_changed(workspace.get, events)) if workspace is not None else []


def _content_of(message: dict[str, Json]) -> Json:
    """What a user's message says, whichever of the ways to spell a text it uses."""
    content = message.get("content", message)
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _is_message(event: Event) -> bool:
    return isinstance(event.data.get("message"), dict)


class Recall:
    """Reads a log's messages again and again. They are shared: treat them as read-only."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self.forget()

    def forget(self) -> None:
        """Keep nothing: the turn is over."""
        self._entries: list[tuple[dict[str, Json], Format]] = []
        self._head = 0
        self._compacted = False

    def messages(self, format: Format) -> list[dict[str, Json]]:
        """What `Session.messages(format)` gives."""
        if not self._is_current():
            return self._log.messages(format)
        return repaired(convert(self._entries, format))

    def stored(self) -> list[dict[str, Json]]:
        """What `Session.messages(repair=False)` gives, with what others appended just now."""
        if not self._is_current(alone=False):
            return self._log.messages(repair=False)
        return [message for message, _ in self._entries]

    def was_compacted(self) -> bool:
        """Whether a compaction is in the conversation as it was last read."""
        if self._head:
            return self._compacted
        if any(event.kind == "compaction" for event in self._log.unsaved):
            return True
        return next(iter(self._log.events(kinds=("compaction",), limit=1)), None) is not None

    def _is_current(self, *, alone: bool = True) -> bool:
        """Bring what is kept up to date; False if the log alone does not say.

        What others append right behind our own events is seen with the next of ours, if we
        may take it that we are `alone`.
        """
        log = self._log
        if log.unsaved or log.prompt or log.at is not None:
            # Not all of it is in the log, or not all of the log counts.
            self.forget()
            return False
        if not (self._head and self._grow(alone)):
            self._read()
        return True

    def _grow(self, alone: bool) -> bool:
        """Add what is new; False if it does not simply come after what is known."""
        new = (alone and self._own()) or self._others()
        if any(event.seq != at for at, event in enumerate(new, self._head + 1)):
            return False
        if not all(map(_simply_follows, new)):
            return False
        if new:
            self._entries += conversation(self._noted([page_of(new)]))
            self._head = new[-1].seq
        return True

    def _own(self) -> list[Event]:
        """What is new, if this session appended it right behind what is known.

        What others append later shows as a gap before the next of our own.
        """
        new = [event for event in list(self._log.recent) if event.seq > self._head]
        if not new or new[0].seq != self._head + 1:
            return []
        # As a store gives them: the appending caller may change what they hold.
        return [replace(event, data=decode_data(encode_data(event.data))) for event in new]

    def _others(self) -> list[Event]:
        # From the end: a log is not searched for where the new ones begin.
        read = self._log.store.read(self._log.id, after=self._head, reverse=True)
        return list(read)[::-1]

    def _read(self) -> None:
        store, id = self._log.store, self._log.id
        last = next(iter(store.read(id, reverse=True, limit=1)), None)
        self.forget()
        if last is None:
            return
        until = last.seq
        if last.kind == "rewound" and last.previous < until:
            # What was taken back lies right before: it is not even looked at.
            until = last.previous
        if until:
            self._entries = conversation(self._noted(store.pages(id, until=until)))
        self._head = last.seq

    def _noted(self, pages: Iterable[Page]) -> Iterator[Page]:
        for page in pages:
            self._compacted = self._compacted or "compaction" in page.kinds
            yield page


def _simply_follows(event: Event) -> bool:
    if event.follows is not None or event.kind in ("system_message", "lost"):
        return False
    return event.kind not in MESSAGE_KINDS or isinstance(event.data.get("message"), dict)
