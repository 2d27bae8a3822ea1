"""Claude Agent SDK: transcripts as sessions, for `ClaudeAgentOptions(session_store=…)`.

A transcript is a session, found by its key, and its subagents' transcripts are side logs. An
entry is an event: its `message` is a message of the conversation, the rest is beside it. Its
`uuid` is the event's id, so catching up after a lost write appends what is missing and no more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .._startup.hashing import sha256
from ..errors import AlreadyExists, Damaged, NotFound
from ..events import MAIN_LOG, Event, Json, NewEvent, SessionInfo, encode_data, new_id
from ..events.lognames import log_name, log_texts
from ..session import threads
from ..stores.base import Store
from . import Place, needs

with needs("claude-sdk"):
    from claude_agent_sdk import (
        HookMatcher,
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
        fold_session_summary,
        project_key_for_directory,
    )

if TYPE_CHECKING:
    from ..session.session import Session

ENTRY = "claude.entry"
"""The kind of an entry that is no message."""

_KEY = "claude:"
_AGENTS = "subagents/"
_OTHERS = "claude/"
_SUMMARY = "claude_summary"

_WAIT = 1.0
_PAUSE = 0.02

_Name = tuple[str, str]


class BacktrailSessionStore:
    """Transcripts in a store of sessions: a Store, a URL, or None for the default store."""

    def __init__(self, store: Store | str | None = None) -> None:
        self._place = Place(store)
        self.store = self._place.store
        self._ids: dict[_Name, str] = {}
        self._open: dict[str, tuple[Session, AbstractContextManager[Any]]] = {}
        self._read: dict[str, int] = {}

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._place.close()

    # --- the protocol ------------------------------------------------------------------------

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append a batch; entries whose `uuid` is there already are left out."""
        if entries:
            await threads.run(self._append, key, [dict(entry) for entry in entries])

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """All entries in order, or None if nothing was ever appended."""
        return await threads.run(self._load, key)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project that have a main transcript."""
        found = await threads.run(self._infos, project_key)
        return [{"session_id": name, "mtime": _millis(info)} for name, info in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """What the SDK folds of each of them; only what is new is folded."""
        return await threads.run(self._summaries, project_key)

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with its subagents, or one subagent's transcript."""
        await threads.run(self._delete, key)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a session."""
        return await threads.run(self._subkeys, key)

    # --- the same, in a thread ---------------------------------------------------------------

    def _append(self, key: SessionKey, entries: Sequence[dict[str, Json]]) -> None:
        events = [_event(entry) for entry in entries]
        if any(event.id is None for event in events) and any(event.id for event in events):
            # Of a batch that is tried again, entries without an id are known by it.
            batch = sha256(encode_data({"entries": entries})).hexdigest()[:32]
            for number, event in enumerate(events):
                if event.id is None:
                    id = f"{batch}:{number}"
                    events[number] = NewEvent(event.kind, event.data, id=id)
        for again in (False, True):
            session_id = self._find(key) or self._make(key, entries)
            try:
                self.store.append(session_id, events, log=_log(key.get("subpath")), known="skip")
                return
            except NotFound:
                # Deleted by another process.
                self._ids.pop((key["project_key"], key["session_id"]), None)
                if again:
                    raise

    def _find(self, key: Mapping[str, Any]) -> str | None:
        name = (key["project_key"], key["session_id"])
        id = self._ids.get(name)
        if id is None:
            found = self.store.sessions(key=_key(*name), limit=1)
            if not found:
                return None
            id = self._ids[name] = found[0].id
        return id

    def _make(self, key: SessionKey, entries: Sequence[dict[str, Json]]) -> str:
        name = (key["project_key"], key["session_id"])
        cwd = next((e["cwd"] for e in entries if isinstance(e.get("cwd"), str) and e["cwd"]), None)
        about = {"project_key": name[0], "session_id": name[1]}
        info = SessionInfo(
            id=new_id(), key=_key(*name), cwd=cwd, agent_name="claude", metadata={"claude": about}
        )
        try:
            self.store.create(info)
        except AlreadyExists:
            return self._find(key) or self._make(key, entries)
        self._ids[name] = info.id
        return info.id

    def _load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        id = self._find(key)
        if id is None:
            return None
        try:
            events = self.store.read(id, log=_log(key.get("subpath")))
            found: list[Any] = [entry for event in events if (entry := _entry(id, event))]
        except NotFound:
            self._ids.pop((key["project_key"], key["session_id"]), None)
            return None
        return found or None

    def _infos(self, project_key: str) -> list[tuple[str, SessionInfo]]:
        found = []
        for info in self.store.sessions():
            about = info.metadata.get("claude")
            if isinstance(about, dict) and about.get("project_key") == project_key and info.head:
                found.append((str(about["session_id"]), info))
        return found

    def _summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        return [self._summary(project_key, *one) for one in self._infos(project_key)]

    def _summary(self, project_key: str, name: str, info: SessionInfo) -> SessionSummaryEntry:
        known = info.metadata.get(_SUMMARY) or {"seq": 0}
        before: SessionSummaryEntry | None = None
        if known["seq"]:
            before = {"session_id": name, "mtime": 0, "data": known["data"]}
        if before is None or known["seq"] < info.head:
            new: list[Any] = [
                entry
                for event in self.store.read(info.id, after=known["seq"], until=info.head)
                if (entry := _entry(info.id, event))
            ]
            key: SessionKey = {"project_key": project_key, "session_id": name}
            before = fold_session_summary(before, key, new)
            changed = {_SUMMARY: {"seq": info.head, "data": before["data"]}}
            self.store.update(info.id, metadata=changed)
        return {"session_id": name, "mtime": _millis(info), "data": before["data"]}

    def _delete(self, key: SessionKey) -> None:
        id = self._find(key)
        subpath = key.get("subpath")
        if id is None:
            return
        try:
            self.store.delete(id, log=None if subpath is None else _log(subpath))
        except NotFound:
            pass
        if subpath is None:
            self._ids.pop((key["project_key"], key["session_id"]), None)

    def _subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        id = self._find(key)
        try:
            logs = [] if id is None else self.store.logs(id)
        except NotFound:
            return []
        return [subpath for log in logs if (subpath := _subpath(log)) is not None]

    # --- sessions and files ------------------------------------------------------------------

    def session(self, session_id: str, cwd: str | os.PathLike[str], **options: Any) -> Session:
        """The session of a transcript, to look at, rewind and fork; made if there is none."""
        from ..session.session import Session

        key: SessionKey = {
            "project_key": project_key_for_directory(os.fspath(cwd)),
            "session_id": session_id,
        }
        id = self._find(key) or self._make(key, [{"cwd": os.fspath(cwd)}])
        return Session.resume(self.store, id, cwd=Path(cwd), **options)

    def hooks(self) -> dict[Any, list[HookMatcher]]:
        """For `ClaudeAgentOptions(hooks=…)`: what each tool does to the files is recorded."""
        return {
            "PreToolUse": [HookMatcher(hooks=[_hook(self._begin)])],
            "PostToolUse": [HookMatcher(hooks=[_hook(self._end)])],
            "PostToolUseFailure": [HookMatcher(hooks=[_hook(self._end)])],
        }

    def _begin(self, given: Mapping[str, Any], id: str) -> None:
        self._catch_up(given, id)
        session = self.session(given["session_id"], given["cwd"], lease=None)
        call = session.tool(given["tool_name"], dict(given.get("tool_input") or {}))
        call.__enter__()
        self._open[id] = (session, call)

    def _catch_up(self, given: Mapping[str, Any], id: str) -> None:
        """Append what was said before a call: what it does belongs behind that.

        The SDK hands entries over later, at the end of a turn, and they are known then. The
        program writes its transcript a moment after it asks, so that is waited for.
        """
        path = str(given.get("transcript_path") or "")
        mark, until = id.encode(), time.monotonic() + _WAIT
        while mark not in self._take(path, given) and time.monotonic() < until:
            time.sleep(_PAUSE)

    def _take(self, path: str, given: Mapping[str, Any]) -> bytes:
        """Append the new lines of a transcript; they, too, are returned."""
        begun = self._read.get(path, 0)
        try:
            with Path(path).open("rb") as file:
                file.seek(begun)
                data = file.read()
        except OSError:
            # Not there yet, or not to be read: the entries come from the SDK.
            return b""
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = begun + len(whole)
        entries = [entry for line in whole.splitlines() if (entry := _known_by_id(line))]
        if entries:
            name = project_key_for_directory(given["cwd"])
            self._append({"project_key": name, "session_id": given["session_id"]}, entries)
        return whole

    def _end(self, given: Mapping[str, Any], id: str) -> None:
        found = self._open.pop(id, None)
        if found is not None:
            session, call = found
            try:
                call.__exit__(None, None, None)
            finally:
                session.close()


def _hook(do: Callable[[Mapping[str, Any], str], None]) -> Callable[..., Awaitable[Any]]:
    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        await threads.run(do, given, tool_use_id or "")
        return {}

    return hook


def _key(project_key: str, session_id: str) -> str:
    return f"{_KEY}{project_key}/{session_id}"


def _millis(info: SessionInfo) -> int:
    return int(datetime.fromisoformat(info.updated_at).timestamp() * 1000)


# --- subpaths and logs -------------------------------------------------------------------


def _log(subpath: str | None) -> str:
    if subpath is None:
        return MAIN_LOG
    if subpath.startswith(_AGENTS):
        return _AGENTS + log_name(subpath.removeprefix(_AGENTS))
    return _OTHERS + log_name(subpath)


def _subpath(log: str) -> str | None:
    for prefix, before in ((_AGENTS, _AGENTS), (_OTHERS, "")):
        if log.startswith(prefix):
            return before + "/".join(log_texts(log.removeprefix(prefix)))
    return None


# --- entries and events ------------------------------------------------------------------


def _event(entry: dict[str, Json]) -> NewEvent:
    uuid = entry.get("uuid")
    id = uuid if isinstance(uuid, str) and uuid and uuid.isprintable() and len(uuid) < 200 else None
    message = entry.get("message")
    kind = _kind(entry, message)
    if kind is None:
        return NewEvent(ENTRY, {"claude": entry}, id=id)
    rest = {key: value for key, value in entry.items() if key != "message"}
    return NewEvent(kind, {"message": message, "format": "anthropic", "claude": rest}, id=id)


def _known_by_id(line: bytes) -> dict[str, Json] | None:
    """The entry of a line of a transcript, if it has a `uuid`."""
    try:
        entry = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("uuid"), str) else None


def _kind(entry: Mapping[str, Json], message: Json) -> str | None:
    """The kind of the message that an entry is; None if it is none for people."""
    if not isinstance(message, dict) or entry.get("isMeta") or "content" not in message:
        return None
    if entry.get("type") == "assistant":
        return "assistant_message"
    if entry.get("type") != "user":
        return None
    content = message["content"]
    blocks: Iterator[Json] = iter(content if isinstance(content, list) else ())
    is_result = any(isinstance(one, dict) and one.get("type") == "tool_result" for one in blocks)
    return "tool_result" if is_result else "user_message"


def _entry(session_id: str, event: Event) -> dict[str, Json] | None:
    """The entry that an event is; None if the event is one of ours."""
    data = event.data
    if "claude" in data:
        entry: dict[str, Json] = data["claude"]
        return {**entry, "message": data["message"]} if "message" in data else entry
    if data.get("purged"):
        raise Damaged(f"session `{session_id}`: event {event.seq} was purged")
    return None
