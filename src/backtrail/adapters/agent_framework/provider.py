"""Agent Framework's history provider on a store, and a middleware for files."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_framework import (
    AgentSession,
    FunctionInvocationContext,
    FunctionMiddleware,
    HistoryProvider,
    Message,
    SessionContext,
)
from agent_framework._sessions import filter_new_messages

from ...errors import Conflict, NotFound
from ...events import Event, NewEvent
from ...session.points import head_of
from ...session.session import Session
from ...session.threads import finish, run
from ...stores.base import Store
from .._bridge import Brackets, Bridge
from .messages import CONFIRMS, DRAFT, confirmation, message_event, message_of

if TYPE_CHECKING:
    from agent_framework import SupportsAgentRun

_NAMELESS = "default"
_TRIES = 50


class BacktrailHistoryProvider(HistoryProvider):
    """The messages of Agent Framework's sessions, durable and rewindable.

    With a `cwd`, files are captured: hand `middleware()` to the agent. Then a prompt is in the log
    as soon as its run begins, and counts once the run is saved. A store passed in stays open.
    """

    def __init__(
        self, store: Store | str | None = None, *, cwd: str | os.PathLike[str] | None = None,
        source_id: str = "backtrail", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(source_id, **options)
        self._bridge = Bridge(store, "agent-framework", cwd=cwd)
        self.store = self._bridge.store

    def middleware(self) -> BacktrailMiddleware:
        """A middleware for the agent that brackets each function call."""
        return BacktrailMiddleware(self)

    def open(self, session_id: str) -> Session:
        """The Backtrail session of one of theirs: undo, checkpoints, diff, blame, events."""
        return self._bridge.session(self._bridge.ensure(session_id, own=True))

    def close(self) -> None:
        """Let go of sessions, and of the store where it was opened here."""
        self._bridge.close()

    # --- the contract --------------------------------------------------------------------

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """The conversation, oldest first."""
        return await run(self._messages, session_id or _NAMELESS)

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *,
        state: dict[str, Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Append messages, all or nothing; of a conversation given whole, what is new in it."""
        if messages:
            await run(self._save, session_id or _NAMELESS, list(messages))

    async def before_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext,
        state: dict[str, Any],
    ) -> None:  # fmt: skip
        """Load the history; with files, keep the prompt at once, and the files as they are."""
        await super().before_run(agent=agent, session=session, context=context, state=state)
        if self._bridge.cwd is not None and self.store_inputs and context.input_messages:
            name = context.session_id or _NAMELESS
            await run(self._draft, name, list(context.input_messages))

    # --- inside --------------------------------------------------------------------------

    def _messages(self, name: str) -> list[Message]:
        id = self._bridge.find(name, own=True)
        if id is None:
            return []
        try:
            return [message_of(event) for event in self._back(id)][::-1]
        except NotFound:
            self._bridge.forget(name)
            return []

    def _back(self, id: str, until: int | None = None) -> Iterator[Event]:
        """The messages that count, newest first."""
        confirmed: set[int] = set()
        for event in self.store.walk(id, until=until) if until != 0 else ():
            confirmed.update(event.data.get(CONFIRMS, ()))
            if "message" in event.data and (DRAFT not in event.data or event.seq in confirmed):
                yield event

    def _save(self, name: str, messages: list[Message]) -> None:
        id = self._bridge.ensure(name, own=True)
        for _ in range(_TRIES):
            try:
                head = head_of(self.store, id)
                known: list[Message] = []
                for event in self._back(id, head):
                    known.append(message_of(event))
                    if len(known) > len(messages):
                        break
                new = filter_new_messages(known[::-1], messages)
                if new:
                    self._bridge.append(id, self._batch(id, head, new), expected=head)
                return
            except Conflict:
                continue
            except NotFound:
                self._bridge.forget(name)
                raise
        raise Conflict(f"others append to session `{name}` all the time: try again")

    def _batch(self, id: str, head: int, new: list[Message]) -> list[NewEvent]:
        """What is to be appended: prompts that are there already only count from now on."""
        drafts = self._drafts(id, head)
        rows = [message_event(one) for one in new]
        same = 0
        for draft, row in zip(drafts, rows, strict=False):
            if draft.data.get("message") != row.data["message"]:
                break
            same += 1
        follows = drafts[same].previous if same < len(drafts) else None
        batch = [confirmation([one.seq for one in drafts[:same]])] if same else []
        batch += rows[same:]
        if follows is not None:
            first = batch[0]
            batch[0] = NewEvent(first.kind, first.data, first.id, follows, first.ts)
        return batch

    def _drafts(self, id: str, head: int) -> list[Event]:
        """The prompts that do not count yet, behind the last message that does."""
        if self._bridge.cwd is None:
            return []
        found: list[Event] = []
        for event in self.store.walk(id, until=head) if head else ():
            if CONFIRMS in event.data or ("message" in event.data and DRAFT not in event.data):
                break
            found += [event] if DRAFT in event.data else []
        return found[::-1]

    def _draft(self, name: str, messages: list[Message]) -> None:
        id = self._bridge.ensure(name, own=True)
        old = self._drafts(id, head_of(self.store, id))
        batch = [message_event(one, draft=True) for one in messages]
        if old:
            # What a run said that was never saved is left behind.
            first = batch[0]
            batch[0] = NewEvent(first.kind, first.data, follows=old[0].previous)
        self._bridge.append(id, batch)


class BacktrailMiddleware(FunctionMiddleware):
    """Brackets around function calls: what a call did to the files goes back with it."""

    def __init__(self, provider: BacktrailHistoryProvider) -> None:
        self._provider = provider

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        """Call the function in a bracket."""
        name = context.session.session_id if context.session is not None else None
        if name is None:
            await call_next()
            return
        brackets = Brackets()
        id = str(context.metadata.get("call_id") or id_of(context))
        session = await run(self._provider.open, name)
        given = context.arguments
        shown = dict(given) if isinstance(given, dict) else str(given)
        await run(brackets.begin, session, id, context.function.name, shown)
        try:
            await call_next()
        except BaseException as error:
            await finish(partial(brackets.end, id, None, error))
            raise
        await run(brackets.end, id, str(context.result))


def id_of(context: FunctionInvocationContext) -> str:
    """What names a call where the framework does not say its id."""
    return f"{context.function.name}-{id(context):x}"
