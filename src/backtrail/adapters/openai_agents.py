"""OpenAI Agents SDK: its `Session` on a Backtrail store.

    session = BacktrailSession("chat-1", store="sqlite:///agent.db", cwd=".")
    await Runner.run(agent, "fix the tests", session=session, hooks=session.hooks())

Each item is one message of the main log, kept as it was given. `pop_item` and `clear_session`
erase nothing: they are rewinds, and `undo` takes them back. The hooks bracket every tool call,
so that `rewind`, `undo` and `fork` take the files along.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

from ..errors import AlreadyExists, Conflict, InvalidData, NotFound
from ..events import MESSAGE_KINDS, Format, Json, NewEvent, timestamp
from ..events.messages import Page, kind_of, page_of
from ..formats.messages import convert
from ..session.keywords import SessionOptions
from ..session.points import Target
from ..session.session import Session
from ..session.threads import run
from ..session.views import Rewind
from ..stores.base import Store
from . import needs
from ._bridge import Brackets, Bridge, exact, ids_for, newest_first

with needs("openai-agents"):
    from agents import RunHooks
    from agents.memory import SessionSettings

if TYPE_CHECKING:
    from agents import Agent, RunContextWrapper, Tool
    from agents.items import TResponseInputItem

_TRIES = 100

FORMAT: Format = "responses"

EXACT = "backtrail_exact"
"""In a stored item that no JSON says exactly: the item as JSON text, escaped."""


class BacktrailSession:
    """A conversation of the OpenAI Agents SDK, durable and rewindable.

    `session_id` is any text; it is also found as the `key` "openai:<session_id>". The id of a
    session of any origin may be given, too: what others wrote is read in OpenAI's format.
    With a `cwd`, files are captured; give `hooks()` to the runner. A store passed in stays open.
    """

    def __init__(
        self, session_id: str, store: Store | str | None = None, *,
        cwd: str | os.PathLike[str] | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if isinstance(session_settings, dict):
            session_settings = SessionSettings(**session_settings)
        self.session_id = session_id
        self.session_settings: SessionSettings | None = session_settings or SessionSettings()
        self._bridge = Bridge(store, "openai", cwd=cwd)

    # --- the protocol --------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The conversation, or the latest `limit` items of it, oldest first."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        return await run(self._items, limit)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, all or nothing."""
        self._bridge.check_open()
        if items:
            events = [_event(item) for item in items]
            await run(self._write, events)

    async def pop_item(self) -> TResponseInputItem | None:
        """Take back the newest item and return it. It stays in the log; `undo` brings it back."""
        return await run(self._pop)

    async def clear_session(self) -> None:
        """Begin anew, from nothing. What was said stays in the log; `undo` brings it back."""
        await run(self._clear)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Put other items in the place of all: what the SDK does to compact a conversation."""
        events = [_rewound(0, {"cleared": True}), *(_event(item) for item in items)]
        await run(self._write, events)
        return True

    # --- going back ----------------------------------------------------------------------

    async def rewind(self, to: Target | None = None, **options: Any) -> Rewind:
        """Continue from an earlier point, files included; see `backtrail.Session.rewind`."""
        return await run(lambda: self.open().rewind(to, **options))

    async def undo(self, **options: Any) -> Rewind:
        """Take back the last turn, pop or rewind that is not undone yet, files included."""
        return await run(lambda: self.open().undo(**options))

    async def redo(self, **options: Any) -> Rewind:
        """Take back the last undo, if nothing was said or done since."""
        return await run(lambda: self.open().redo(**options))

    async def fork(
        self, session_id: str, at: Target | None = None, **options: Unpack[SessionOptions]
    ) -> BacktrailSession:
        """A new session that begins with this one's items, up to `at` or to now."""
        return await run(self._fork, session_id, at, options)

    def open(self) -> Session:
        """The Backtrail session, for all else that it can: checkpoints, diff, blame, events."""
        return self._bridge.session(self._bridge.ensure(self.session_id, own=True))

    def hooks(self, inner: RunHooks[Any] | None = None) -> BacktrailHooks:
        """Hooks for the runner that bracket each tool call; `inner` are hooks of your own."""
        return BacktrailHooks(self, inner)

    def close(self) -> None:
        """Let go of the session, and of the store where it was opened here."""
        self._bridge.close()

    # --- inside --------------------------------------------------------------------------

    def _found(self) -> str | None:
        return self._bridge.find(self.session_id, own=True)

    def _write(self, events: list[NewEvent]) -> None:
        """Write to the session; an error of one that was deleted meanwhile names it."""
        id = self._bridge.ensure(self.session_id, own=True)
        try:
            self._bridge.append(id, events)
        except NotFound:
            self._bridge.forget(self.session_id)
            raise

    def _pages(self) -> Iterator[Page]:
        id = self._found()
        if id is None:
            return
        try:
            yield from self._bridge.store.pages(id)
        except NotFound:
            self._bridge.forget(self.session_id)

    def _items(self, limit: int | None) -> list[TResponseInputItem]:
        self._bridge.check_open()
        if limit == 0:
            return []
        said = None if limit is None or limit < 0 else self._tail(limit)
        if said is None:
            said = [one for page in reversed([*self._pages()]) for one in _said_in(page)]
        items: list[Any] = [_item(item) for item in convert(said, FORMAT)]
        return items if limit is None or limit < 0 else items[-limit:]

    def _tail(self, limit: int) -> list[tuple[dict[str, Json], Format]] | None:
        """The last messages; None if others wrote some of them.

        Those are converted as a whole: calls and answers belong together.
        """
        id = self._found()
        found: list[tuple[dict[str, Json], Format]] = []
        if id is None:
            return found
        try:
            for event in newest_first(self._bridge.store, id, limit + 1):
                found += _said_in(page_of([event]))
                if found and found[-1][1] != FORMAT:
                    return None
                if len(found) == limit:
                    break
        except NotFound:
            self._bridge.forget(self.session_id)
            return []
        return found[::-1]

    def _pop(self) -> TResponseInputItem | None:
        for _ in range(_TRIES):
            id = self._found()
            if id is None:
                return None
            try:
                return self._popped(id)
            except Conflict:
                continue
        raise Conflict(f"others append to session `{self.session_id}` all the time: try again")

    def _popped(self, id: str) -> TResponseInputItem | None:
        head = 0
        for event in newest_first(self._bridge.store, id):
            head = head or event.seq
            if event.kind not in MESSAGE_KINDS:
                continue
            items = [_item(item) for item in convert(_said_in(page_of([event])), FORMAT)]
            if items:
                back = _rewound(event.previous, {"target": event.seq, "before": True})
                self._bridge.append(id, [back], expected=head)
                popped: Any = items[-1]
                return popped
        return None

    def _clear(self) -> None:
        if self._found() is not None:
            self._write([_rewound(0, {"cleared": True})])

    def _fork(
        self, session_id: str, at: Target | None, options: SessionOptions
    ) -> BacktrailSession:
        bridge = self._bridge
        if bridge.find(session_id, own=True) is not None:
            raise AlreadyExists(f"there is a session `{session_id}` already")
        keyed: SessionOptions = {"key": bridge.key(session_id), **options}
        names = ids_for(session_id)
        made = self.open().fork(at, session_id=names[0] if names else None, **keyed)
        cwd = options.get("cwd") or bridge.cwd
        made.close()
        return BacktrailSession(
            session_id, bridge.store, cwd=cwd, session_settings=self.session_settings
        )


class BacktrailHooks(RunHooks[Any]):
    """Run hooks that bracket each tool call of a session; calls others' hooks, too."""

    def __init__(self, session: BacktrailSession, inner: RunHooks[Any] | None = None) -> None:
        self._session = session
        self._inner = inner or RunHooks[Any]()
        self._brackets = Brackets()

    async def on_tool_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool
    ) -> None:
        """A tool call begins."""
        given = getattr(context, "tool_arguments", None)
        await run(lambda: self._brackets.begin(
            self._session.open(), _call_of(context, tool), tool.name, _arguments(given)
        ))  # fmt: skip
        await self._inner.on_tool_start(context, agent, tool)

    async def on_tool_end(
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object
    ) -> None:
        """A tool call is over."""
        await run(self._brackets.end, _call_of(context, tool), str(result))
        await self._inner.on_tool_end(context, agent, tool, result)

    async def on_llm_start(self, context: Any, agent: Any, *args: Any) -> None:
        """The model is asked: calls that were cut short are over by now."""
        await run(self._brackets.end_all)
        await self._inner.on_llm_start(context, agent, *args)

    async def on_llm_end(self, *args: Any) -> None:
        """The model has answered."""
        await self._inner.on_llm_end(*args)

    async def on_agent_start(self, *args: Any) -> None:
        """An agent begins."""
        await self._inner.on_agent_start(*args)

    async def on_agent_end(self, *args: Any) -> None:
        """An agent has its result."""
        await run(self._brackets.end_all)
        await self._inner.on_agent_end(*args)

    async def on_handoff(self, *args: Any) -> None:
        """Another agent goes on."""
        await self._inner.on_handoff(*args)


def _call_of(context: object, tool: Tool) -> str:
    """What names a call: the model's id, where the context has it."""
    return getattr(context, "tool_call_id", None) or tool.name


def _arguments(given: object) -> Json:
    if not isinstance(given, str):
        return None
    try:
        return json.loads(given)
    except ValueError:
        return given


# --- items -------------------------------------------------------------------------------


def _event(item: TResponseInputItem) -> NewEvent:
    """The event that holds an item."""
    shown, text = exact(item)
    if not isinstance(shown, dict):
        raise InvalidData(f"an item is a dictionary, not {type(item).__name__}")
    data: dict[str, Json] = {"message": shown, "format": FORMAT}
    if text is not None:
        shown[EXACT] = text
    return NewEvent(_kind(shown), data)


def _kind(item: dict[str, Json]) -> str:
    try:
        return kind_of(item)
    except InvalidData:
        answers = str(item.get("type")).endswith("_response")
        return "tool_result" if answers else "assistant_message"


def _said_in(page: Page) -> list[tuple[dict[str, Json], Format]]:
    """The messages in a page of the history; what is damaged or purged is none."""
    return [
        (said.message, said.format)
        for kind, said in zip(page.kinds, page.said, strict=True)
        if kind in MESSAGE_KINDS and isinstance(said.message, dict)
    ]


def _item(stored: dict[str, Json]) -> dict[str, Json]:
    """An item as it was given."""
    if EXACT not in stored:
        return stored
    given: dict[str, Json] = json.loads(stored[EXACT])
    return given


def _rewound(to: int, data: dict[str, Json]) -> NewEvent:
    """The event that takes the conversation back to `to`, and no file."""
    return NewEvent(
        "rewound", {"to": to, "mode": "mine", "scope": "conversation", **data}, follows=to
    )


# --- moving in ---------------------------------------------------------------------------


def import_sessions(
    path: str | os.PathLike[str], store: Store | str | None = None, *,
    sessions_table: str = "agent_sessions", messages_table: str = "agent_messages",
) -> list[str]:  # fmt: skip
    """Take the sessions of an `SQLiteSession` file into a store; the ids they have there.

    The file is only read. Taken in again, only what is new is added. Items that are no JSON are
    left out, as the SDK leaves them out.
    """
    import sqlite3

    place = os.fspath(path)
    if not Path(place).exists():
        raise NotFound(f"no file {place}")
    bridge = Bridge(store, "openai")
    found: list[str] = []
    try:
        with closing(sqlite3.connect(f"file:{quote(place)}?mode=ro", uri=True)) as file:
            names = file.execute(f"SELECT session_id FROM {sessions_table} ORDER BY rowid")
            for (name,) in names.fetchall():
                rows = file.execute(
                    f"SELECT id, message_data, created_at FROM {messages_table}"
                    " WHERE session_id = ? ORDER BY id",
                    (name,),
                )
                events = [event for row in rows for event in _imported(*row)]
                id = bridge.ensure(name, own=True)
                bridge.append(id, events)
                found.append(id)
    finally:
        bridge.close()
    return found


def _imported(number: int, text: str, at: str) -> Iterator[NewEvent]:
    """The event of a stored row; none where it is damaged."""
    try:
        event = _event(json.loads(text))
    except (ValueError, TypeError):
        return
    yield NewEvent(event.kind, event.data, id=f"sqlite:{number}", ts=timestamp(at))
