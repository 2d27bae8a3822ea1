"""Strands' session repository on a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from strands.session import SessionRepository
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage

from ...errors import AlreadyExists, Conflict, InvalidData, NotFound
from ...events import MAIN_LOG, Event, Json, NewEvent
from ...events.lognames import log_name
from ...session.session import Session as Own
from ...stores.base import Store
from .._bridge import Bridge, newest_first
from .._values import packed, unpacked

if TYPE_CHECKING:
    from strands.multiagent import MultiAgentBase

    from .hooks import BacktrailHooks

AGENT, UPDATE, MULTI = "strands_agent", "strands_update", "strands_multi_agent"
"""Kinds of events: what is known of an agent, a message's new words, the state of many agents."""

STRANDS = "strands"
"""In the data of an event: what Strands keeps beside the message."""

EXACT = "exact"
"""In the data of an event: its message, where JSON cannot say it exactly."""

_TRIES = 50


class BacktrailSessionRepository(SessionRepository):
    """Sessions of Strands agents, durable and rewindable. A store passed in stays open."""

    def __init__(
        self, store: Store | str | None = None, *, cwd: str | os.PathLike[str] | None = None
    ) -> None:
        self._bridge = Bridge(store, "strands", cwd=cwd)
        self.store = self._bridge.store
        self._logs: dict[tuple[str, str], str] = {}

    def hooks(self, session_id: str) -> BacktrailHooks:
        """Hooks for an agent that bracket its tool calls."""
        from .hooks import BacktrailHooks

        return BacktrailHooks(self, session_id)

    def open(self, session_id: str) -> Own:
        """The Backtrail session of one of Strands': undo, checkpoints, diff, blame, events."""
        return self._bridge.session(self._known(session_id))

    def close(self) -> None:
        """Let go of sessions, and of the store where it was opened here."""
        self._bridge.close()

    # --- sessions ------------------------------------------------------------------------

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """A new session; an id that exists is an error."""
        row: dict[str, Json] = {**session.to_dict(), "session_type": session.session_type.value}
        try:
            self._bridge.make(session.session_id, metadata={"session": row})
        except AlreadyExists as error:
            raise SessionException(f"Session {session.session_id} already exists") from error
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """The session, or None."""
        id = self._bridge.find(session_id, own=True)
        if id is None:
            return None
        try:
            row = self.store.record(id).metadata.get("session")
        except NotFound:
            self._bridge.forget(session_id)
            return None
        if not isinstance(row, dict):
            return None
        return Session.from_dict({**row, "session_id": session_id})

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Delete a session with all its agents."""
        if not self._bridge.delete(session_id):
            raise SessionException(f"Session {session_id} does not exist")
        self._logs = {key: log for key, log in self._logs.items() if key[0] != session_id}

    def _known(self, session_id: str) -> str:
        found = self._bridge.find(session_id, own=True)
        if found is None:
            raise SessionException(f"Session {session_id} does not exist")
        return found

    # --- agents --------------------------------------------------------------------------

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """An agent of a session; the first has the main log."""
        id = self._known(session_id)
        new = NewEvent(AGENT, {STRANDS: packed(asdict(session_agent), str)})
        for _ in range(_TRIES):
            log = self._log(session_id, session_agent.agent_id)
            head = self._head(id, MAIN_LOG)
            try:
                if log is None and self._main_agent(id) is None:
                    self._bridge.append(id, [new], expected=head)
                    return
                log = log or self._side(session_agent.agent_id)
                self._append(id, log, new)
                return
            except Conflict:
                continue
            except NotFound as error:
                self._bridge.forget(session_id)
                raise SessionException(f"Session {session_id} does not exist") from error
        raise SessionException(f"others write to session {session_id} all the time: try again")

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """What is known of an agent, as the history has it; None if there is none."""
        found = self._agent(session_id, agent_id)
        return None if found is None else _agent_of(found)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """What is known of an agent now; when it was created stays."""
        before = self._agent(session_id, session_agent.agent_id)
        if before is None:
            raise SessionException(
                f"Agent {session_agent.agent_id} in session {session_id} does not exist"
            )
        session_agent.created_at = _agent_of(before).created_at
        id, log = self._place(session_id, session_agent.agent_id)
        self._append(id, log, NewEvent(AGENT, {STRANDS: packed(asdict(session_agent), str)}))

    def _agent(self, session_id: str, agent_id: str) -> Event | None:
        id = self._bridge.find(session_id, own=True)
        log = None if id is None else self._log(session_id, agent_id)
        if id is None or log is None:
            return None
        return next((event for event in self._walk(id, log) if event.kind == AGENT), None)

    def _place(self, session_id: str, agent_id: str) -> tuple[str, str]:
        """Where an agent's messages are; an error names what is not there."""
        id = self._known(session_id)
        log = self._log(session_id, agent_id)
        if log is None:
            raise SessionException(f"Agent {agent_id} in session {session_id} does not exist")
        return id, log

    def _log(self, session_id: str, agent_id: str) -> str | None:
        """The log of an agent, None if there is no such agent."""
        known = self._logs.get((session_id, agent_id))
        if known is not None:
            return known
        id = self._known(session_id)
        main = self._main_agent(id)
        side = self._side(agent_id)
        log = MAIN_LOG if main == agent_id else side if side in self.store.logs(id) else None
        if log is not None:
            self._logs[session_id, agent_id] = log
        return log

    def _main_agent(self, id: str) -> str | None:
        first = next(self.store.read(id, kinds=(AGENT,), limit=1), None)
        return None if first is None else _agent_of(first).agent_id

    def _side(self, agent_id: str) -> str:
        return f"subagents/{log_name(agent_id)}"

    # --- messages ------------------------------------------------------------------------

    def create_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Append a message; another one under its number is an error, the same one is fine."""
        id, log = self._place(session_id, agent_id)
        number = session_message.message_id
        for _ in range(_TRIES):
            head = self._head(id, log)
            there = self._message(id, log, number)
            if there is not None:
                if _decoded(there) == session_message:
                    return
                raise SessionException(
                    f"Message {number} of agent {agent_id} in session {session_id} was written by"
                    " another writer: make the session manager anew, and try again"
                )
            new = _encoded(session_message, f"msg:{number}")
            try:
                stored = self._append(id, log, new, expected=head)
                if stored.seq <= head:
                    # One of that number was taken back by a rewind.
                    new = _encoded(session_message, f"msg:{number}:{head}")
                    self._append(id, log, new, expected=head)
                return
            except Conflict:
                continue
            except NotFound as error:
                self._bridge.forget(session_id)
                raise SessionException(f"Session {session_id} does not exist") from error
        raise SessionException(f"others write to session {session_id} all the time: try again")

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **kwargs: Any
    ) -> SessionMessage | None:
        """A message, or None."""
        if self._bridge.find(session_id, own=True) is None:
            return None
        log = self._log(session_id, agent_id)
        if log is None:
            return None
        id = self._known(session_id)
        found = self._message(id, log, message_id)
        if found is None:
            return None
        return self._updated(id, log, {message_id: found})[0]

    def update_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Give a message other words. If they redact it, its own are erased for good."""
        id, log = self._place(session_id, agent_id)
        there = self._message(id, log, session_message.message_id)
        if there is None:
            raise SessionException(f"Message {session_message.message_id} does not exist")
        before = self._updated(id, log, {session_message.message_id: there})[0]
        session_message.created_at = before.created_at
        kept = session_message
        if session_message.redact_message is not None:
            kept = SessionMessage(
                session_message.redact_message, session_message.message_id,
                session_message.redact_message, before.created_at, session_message.updated_at,
            )  # fmt: skip
        new = _encoded(kept, None)
        self._append(id, log, NewEvent(UPDATE, new.data))
        if session_message.redact_message is not None:
            self.store.purge(id, [there.seq], log=log)

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0,
        **kwargs: Any,
    ) -> list[SessionMessage]:  # fmt: skip
        """The messages by their numbers, from the oldest on."""
        id, log = self._place(session_id, agent_id)
        found: dict[int, Event] = {}
        for event in self._walk(id, log):
            number = _number(event)
            if number is not None and event.kind != UPDATE:
                found.setdefault(number, event)
        rows = self._updated(id, log, dict(sorted(found.items())))
        return rows[offset:] if limit is None else rows[offset : offset + limit]

    def _message(self, id: str, log: str, number: int) -> Event | None:
        """The message of a number in the history."""
        for event in newest_first(self.store, id, 2, log=log):
            found = _number(event)
            if found is not None and event.kind != UPDATE:
                if found == number:
                    return event
                if found < number:
                    return None
        return None

    def _updated(self, id: str, log: str, found: dict[int, Event]) -> list[SessionMessage]:
        """Messages with the words that they were given later."""
        for event in self.store.read(id, log=log, kinds=(UPDATE,)):
            number = _number(event)
            if number in found and found[number].seq < event.seq:
                found[number] = event
        return [_decoded(event) for event in found.values()]

    # --- many agents ---------------------------------------------------------------------

    def create_multi_agent(
        self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any
    ) -> None:
        """Keep the state of several agents."""
        id = self._known(session_id)
        state = {"id": multi_agent.id, **multi_agent.serialize_state()}
        log = f"multi/{log_name(multi_agent.id)}"
        self._append(id, log, NewEvent(MULTI, {STRANDS: packed(state, str)}))

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str, **kwargs: Any
    ) -> dict[str, Any] | None:
        """The state of several agents, or None."""
        id = self._bridge.find(session_id, own=True)
        if id is None:
            return None
        log = f"multi/{log_name(multi_agent_id)}"
        newest = next(self.store.read(id, log=log, reverse=True, limit=1), None)
        if newest is None:
            return None
        state: dict[str, Any] = unpacked(newest.data[STRANDS])
        return state

    def update_multi_agent(
        self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any
    ) -> None:
        """The state of several agents now."""
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise SessionException(
                f"MultiAgent state {multi_agent.id} in session {session_id} does not exist"
            )
        self.create_multi_agent(session_id, multi_agent)

    # --- logs ----------------------------------------------------------------------------

    def _walk(self, id: str, log: str) -> Iterator[Event]:
        """The history of a log, newest first."""
        yield from self.store.walk(id, log=log)

    def _head(self, id: str, log: str) -> int:
        newest = next(self.store.read(id, log=log, reverse=True, limit=1), None)
        return newest.seq if newest else 0

    def _append(self, id: str, log: str, new: NewEvent, *, expected: int | None = None) -> Event:
        if log == MAIN_LOG:
            return self._bridge.append(id, [new], expected=expected)[-1]
        return self.store.append(id, [new], log=log, expected=expected)[-1]


def _agent_of(event: Event) -> SessionAgent:
    return SessionAgent(**unpacked(event.data[STRANDS]))


def _number(event: Event) -> int | None:
    """The number of the message that an event holds; None if it holds none.

    What was purged still has its number in its id.
    """
    about = event.data.get(STRANDS)
    number = about.get("message_id") if isinstance(about, dict) else None
    if number is None and event.id.startswith("msg:") and event.data.get("purged"):
        number = int(event.id.split(":")[1])
    return number if isinstance(number, int) else None


def _encoded(message: SessionMessage, id: str | None) -> NewEvent:
    """The event that holds a message."""
    row: dict[str, Any] = message.to_dict()
    said = row.pop("message")
    data: dict[str, Json] = {"message": said, "format": "converse", STRANDS: packed(row, str)}
    given = packed({"m": message.message, "r": message.redact_message}, str)
    if given != {"m": said, "r": row["redact_message"]}:
        data[EXACT] = given
        data["message"] = packed(said, str)
    metadata = said.get("metadata") if isinstance(said, dict) else None
    usage = metadata.get("usage") if isinstance(metadata, dict) else None
    if isinstance(usage, dict):
        names = {"inputTokens": "input_tokens", "outputTokens": "output_tokens"}
        data["usage"] = {ours: usage[name] for name, ours in names.items() if name in usage}
    return NewEvent(_kind(said), data, id=id)


def _kind(said: Json) -> str:
    if said.get("role") == "assistant":
        return "assistant_message"
    blocks = said.get("content") or ()
    is_answer = any("toolResult" in block for block in blocks if isinstance(block, dict))
    return "tool_result" if is_answer else "user_message"


def _decoded(event: Event) -> SessionMessage:
    """The message that an event holds."""
    row = event.data.get(STRANDS)
    if not isinstance(row, dict):
        raise InvalidData(f"event {event.seq} holds no message of Strands: it was purged")
    fields: dict[str, Any] = unpacked(row)
    if EXACT in event.data:
        given = unpacked(event.data[EXACT])
        return SessionMessage(**{**fields, "message": given["m"], "redact_message": given["r"]})
    return SessionMessage.from_dict({**fields, "message": event.data["message"]})
