"""ADK's session service on a store."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event as AdkEvent
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse

from ...errors import AlreadyExists, Conflict, NotFound
from ...events import Event, Json, NewEvent, SessionInfo
from ...session.points import head_of
from ...session.session import Session as Own
from ...session.threads import run
from ...stores.base import Store
from .._bridge import Bridge
from .records import ADK, DELTA, STATE, delta_of, loaded, pack, scoped, state_after, stored

if TYPE_CHECKING:
    from .plugin import BacktrailPlugin

KEYFRAME = 64
"""After so many events, one has the whole state."""

CREATED = "adk_created"
"""The kind of the event with which a session of ADK begins; it has the first state."""

SHARED = "adk_state"
"""The kind of an event that changes the state of an app or a user."""

_TAG = "adk"
_TRIES = 50


class BacktrailSessionService(BaseSessionService):
    """Sessions of ADK, durable and rewindable; `app:` and `user:` state in sessions of their own.

    With a `cwd`, files are captured: hand `plugin()` to the runner. A store passed in stays open.
    """

    def __init__(
        self, store: Store | str | None = None, *, cwd: str | os.PathLike[str] | None = None
    ) -> None:
        self._bridge = Bridge(store, "adk", cwd=cwd)
        self.store = self._bridge.store

    def plugin(self) -> BacktrailPlugin:
        """The plugin for the runner that brackets each tool call."""
        from .plugin import BacktrailPlugin

        return BacktrailPlugin(self)

    def open(self, app_name: str, user_id: str, session_id: str) -> Own:
        """The Backtrail session of one of ADK's: undo, checkpoints, diff, blame, events."""
        return self._bridge.session(self._known(app_name, user_id, session_id))

    def close(self) -> None:
        """Let go of sessions, and of the store where it was opened here."""
        self._bridge.close()

    # --- the contract --------------------------------------------------------------------

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:  # fmt: skip
        """A new session; an id that exists is `AlreadyExistsError`."""
        id = (session_id or "").strip() or str(uuid.uuid4())
        return await run(self._create, app_name, user_id, id, dict(state or {}))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:  # fmt: skip
        """The session with its events in order, or None."""
        return await run(self._get, app_name, user_id, session_id.strip(), config)

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """The sessions of an app, or of one user, without events; the oldest first."""
        return await run(self._list, app_name, user_id)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session; one that is not there is fine."""
        await run(self._bridge.delete, app_name, user_id, session_id.strip())

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The state that all sessions of a user share, without its prefix."""
        return await run(self._shared, "user:", app_name, user_id)

    async def append_event(self, session: Session, event: AdkEvent) -> AdkEvent:
        """Append an event, whole, if the session is as the store has it.

        `StaleSessionError` if others appended meanwhile, or a rewind was made; load it again. An
        event that is there already is not appended again.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        seq, is_new = await run(self._append, session, event)
        session._storage_update_marker = str(seq)
        session.last_update_time = event.timestamp
        if is_new or all(one.id != event.id for one in session.events):
            self._commit_event_to_session(session, event)
        return event

    # --- sessions ------------------------------------------------------------------------

    def _known(self, app: str, user: str, session: str) -> str:
        found = self._bridge.find(app, user, session)
        if found is None:
            raise SessionNotFoundError(f"Session {session} not found.")
        return found

    def _create(self, app: str, user: str, name: str, state: dict[str, Any]) -> Session:
        parts = scoped(state)
        at = time.time()
        own = parts[""]
        first = NewEvent(CREATED, {ADK: {}, DELTA: pack(own), STATE: pack(own), "time": at})
        about = {"app_name": app, "user_id": user, "session_id": name}
        try:
            id = self._bridge.make(app, user, name, metadata=about, first=[first], tags=[_TAG])
        except AlreadyExists as error:
            raise AlreadyExistsError(f"Session with id {name} already exists.") from error
        self._share(app, user, parts, f"created-{id}")
        return self._session(about, self._merged(app, user, own), [], at, head_of(self.store, id))

    def _get(
        self, app: str, user: str, name: str, config: GetSessionConfig | None
    ) -> Session | None:
        id = self._bridge.find(app, user, name)
        if id is None:
            return None
        try:
            history = self.store.history(id)
        except NotFound:
            self._bridge.forget(app, user, name)
            return None
        own = [event for event in history if ADK in event.data]
        wanted = [event for event in own if event.kind != CREATED]
        events = [one for one in map(loaded, _wanted(wanted, config)) if one is not None]
        state = self._merged(app, user, state_after(reversed(own)))
        about = {"app_name": app, "user_id": user, "session_id": name}
        return self._session(about, state, events, _time(own), _marker(own))

    def _session(
        self, about: dict[str, str], state: dict[str, Any], events: list[AdkEvent], at: float,
        marker: int,
    ) -> Session:  # fmt: skip
        made = Session(
            id=about["session_id"], app_name=about["app_name"], user_id=about["user_id"],
            state=state, last_update_time=at,
        )  # fmt: skip
        made.events = events
        made._storage_update_marker = str(marker)
        return made

    def _list(self, app: str, user: str | None) -> ListSessionsResponse:
        found: list[Session] = []
        shared: dict[str, dict[str, Any]] = {}
        for info in self._infos(app, user):
            about = {name: str(info.metadata[name]) for name in _ABOUT}
            newest = list(self._back(info.id))
            whose = about["user_id"]
            if whose not in shared:
                shared[whose] = self._merged(app, whose, {})
            state = {**state_after(newest), **shared[whose]}
            found.append(self._session(about, state, [], _time(newest[::-1]), _marker(newest[:1])))
        found.sort(key=lambda one: (one.last_update_time, one.user_id, one.id))
        return ListSessionsResponse(sessions=found)

    def _infos(self, app: str, user: str | None) -> Iterator[SessionInfo]:
        for info in self.store.sessions(tag=_TAG):
            about = info.metadata
            if about.get("app_name") == app and user in (None, about.get("user_id")):
                yield info

    def _back(self, id: str) -> Iterator[Event]:
        """The ADK events of the history, newest first, back to the whole state."""
        for event in self.store.walk(id):
            if ADK in event.data:
                yield event
                if STATE in event.data:
                    return

    # --- moving in -----------------------------------------------------------------------

    def take(
        self, app: str, user: str, name: str, state: dict[str, Any], batch: list[NewEvent]
    ) -> str:
        """Take in a session from elsewhere, or what is new in it; its id here."""
        id = self._bridge.find(app, user, name)
        if id is None:
            changed = {key for new in batch for key in scoped(_delta(new))[""]}
            self._create(app, user, name, {k: v for k, v in state.items() if k not in changed})
            id = self._known(app, user, name)
        if batch:
            self.store.append(id, batch)
        return id

    def take_shared(self, prefix: str, names: tuple[str, ...], state: dict[str, Any]) -> None:
        """Take in the state of an app or a user from elsewhere; what is here already stays."""
        new = {k: v for k, v in state.items() if k not in self._shared(prefix, *names)}
        if new:
            self._change(prefix, names, new, f"imported-{uuid.uuid4()}")

    # --- appending -----------------------------------------------------------------------

    def _append(self, session: Session, event: AdkEvent) -> tuple[int, bool]:
        app, user, name = session.app_name, session.user_id, session.id
        id = self._known(app, user, name)
        parts = scoped(event.actions.state_delta if event.actions else {})
        new = stored(event, {**(event.actions.state_delta if event.actions else {})})
        try:
            seq, is_new = self._appended(id, session, event, new)
        except NotFound as error:
            self._bridge.forget(app, user, name)
            raise SessionNotFoundError(f"Session {name} not found.") from error
        self._share(app, user, parts, event.id)
        return seq, is_new

    def _appended(
        self, id: str, session: Session, event: AdkEvent, new: NewEvent
    ) -> tuple[int, bool]:
        for _ in range(_TRIES):
            head = head_of(self.store, id)
            newest = next((one for one in self.store.walk(id, until=head) if ADK in one.data), None)
            if not _is_current(session, newest):
                return self._repeated(id, session, new), False
            batch = [self._with_state(id, new, head)]
            before = event.actions.rewind_before_invocation_id if event.actions else None
            try:
                if before:
                    head = self._rewind(id, before, head)
                last = self._bridge.append(id, batch, expected=head)[-1]
            except Conflict:
                continue
            if last.seq <= head:
                return self._repeated(id, session, new), False
            return last.seq, True
        raise StaleSessionError(f"others append to session {session.id} all the time: try again")

    def _repeated(self, id: str, session: Session, new: NewEvent) -> int:
        """The number of an event that is there already; `StaleSessionError` if it is not."""
        try:
            there = self.store.find(id, str(new.id))
        except NotFound:
            raise StaleSessionError(
                f"session {session.id} of user {session.user_id} in app {session.app_name} was"
                " changed since it was loaded: load it again, then append"
            ) from None
        if {**there.data, STATE: None, "tree": None, "workspace": None}.get(ADK) != new.data[ADK]:
            raise Conflict(f"session {session.id} has another event with the id {new.id}")
        return there.seq

    def _with_state(self, id: str, new: NewEvent, head: int) -> NewEvent:
        """An event with the whole state, now and then."""
        if head % KEYFRAME:
            return new
        state = state_after(self._back(id))
        state.update(scoped(_delta(new))[""])
        return NewEvent(new.kind, {**new.data, STATE: pack(state)}, new.id, ts=new.ts)

    def _rewind(self, id: str, invocation: str, head: int) -> int:
        """Go back before an invocation, with the files; the head behind that."""
        first = None
        for event in self.store.walk(id, until=head):
            row = event.data.get(ADK)
            if isinstance(row, dict) and row.get("invocationId") == invocation:
                first = event
        if first is None:
            return head
        if self._bridge.cwd is not None:
            self._bridge.session(id).rewind(before=first)
            return head_of(self.store, id)
        data: dict[str, Json] = {
            "to": first.previous, "mode": "mine", "scope": "conversation",
            "target": first.seq, "before": True,
        }  # fmt: skip
        back = NewEvent("rewound", data, follows=first.previous)
        return self.store.append(id, [back], expected=head)[-1].seq

    # --- what is shared ------------------------------------------------------------------

    def _merged(self, app: str, user: str, own: dict[str, Any]) -> dict[str, Any]:
        merged = dict(own)
        for prefix, names in (("app:", (app,)), ("user:", (app, user))):
            shared = self._shared(prefix, *names)
            merged.update({f"{prefix}{key}": value for key, value in shared.items()})
        return merged

    def _shared(self, prefix: str, *names: str) -> dict[str, Any]:
        id = self._bridge.find("", prefix, *names)
        if id is None:
            return {}
        return state_after(_until_state(self.store.read(id, reverse=True)), raw=True)

    def _share(self, app: str, user: str, parts: dict[str, dict[str, Any]], id: str) -> None:
        """Change the state of the app and of the user, once for each event."""
        for prefix, names in (("app:", (app,)), ("user:", (app, user))):
            delta = parts[prefix]
            if delta:
                self._change(prefix, names, delta, id)

    def _change(
        self, prefix: str, names: tuple[str, ...], delta: dict[str, Any], event_id: str
    ) -> None:
        of = self._bridge.ensure(
            "", prefix, *names, metadata={"state_of": list(names)}, named=False
        )
        for _ in range(_TRIES):
            head = head_of(self.store, of)
            data: dict[str, Json] = {ADK: {}, DELTA: pack(delta)}
            if head % KEYFRAME == 0:
                state = {**self._shared(prefix, *names), **delta}
                data[STATE] = pack(state)
            try:
                self.store.append(of, [NewEvent(SHARED, data, id=event_id)], expected=head)
                return
            except Conflict:
                continue
        raise Conflict(f"others change the state of {'/'.join(names)} all the time: try again")


_ABOUT = ("app_name", "user_id", "session_id")


def _delta(new: NewEvent) -> dict[str, Any]:
    return delta_of(Event(0, "", "", new.kind, dict(new.data)))


def _until_state(newest_first: Iterator[Event]) -> Iterator[Event]:
    for event in newest_first:
        yield event
        if STATE in event.data:
            return


def _is_current(session: Session, newest: Event | None) -> bool:
    """Whether a session object has seen the newest event of ADK."""
    marker = session._storage_update_marker
    if newest is None or marker is None:
        return newest is None or _time([newest]) <= session.last_update_time
    return marker == str(newest.seq)


def _marker(events: list[Event]) -> int:
    return events[-1].seq if events else 0


def _time(events: list[Event]) -> float:
    """When ADK's newest event was."""
    if not events:
        return 0.0
    data = events[-1].data
    row = data.get(ADK)
    at = data.get("time", row.get("timestamp") if isinstance(row, dict) else None)
    return float(at) if isinstance(at, (int, float)) else 0.0


def _wanted(events: list[Event], config: GetSessionConfig | None) -> list[Event]:
    """The events that a caller asks for."""
    if config is None:
        return events
    if config.after_timestamp is not None:
        events = [event for event in events if _time([event]) >= config.after_timestamp]
    if config.num_recent_events is not None:
        events = events[-config.num_recent_events :] if config.num_recent_events else []
    return events
