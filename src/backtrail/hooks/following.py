"""An agent's session as one of ours: found or made, mirrored, ended.

The conversation comes from the agent's transcript, the files from the hooks. Where there is
no transcript to mirror, prompts, calls and answers are what hooks tell.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import AlreadyExists, BacktrailError
from ..events import NewEvent, SessionInfo, new_id
from .bracketing import Files
from .dialects import Dialect, declared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..events import Json
    from ..stores.base import Store

_LONG = 20_000
_FLUSHED = 0.4
_STEP = 0.04


class Fields(NamedTuple):
    """What an event says, with anything of the wrong type left out."""

    session: str
    cwd: str
    transcript: Path | None
    side: Path | None
    prompt_id: str | None
    agent: str
    tool: str
    call: str | None
    given: Json
    raw: Mapping[str, Json]

    @classmethod
    def of(cls, event: Mapping[str, Json], dialect: Dialect) -> Fields:
        """The fields of an event."""

        def text(*names: str) -> str:
            found = (event.get(name) for name in names)
            return next((value for value in found if isinstance(value, str) and value), "")

        def file(name: str) -> Path | None:
            path = text(name)
            return Path(path) if path and "\0" not in path else None

        transcript, side = file("transcript_path"), file("agent_transcript_path")
        if dialect.agent == "codex" and text("agent_id") and side is None:
            # What a subagent does comes under its parent's name, with its own transcript.
            transcript, side = None, transcript
        return cls(
            text("session_id"),
            os.environ.get(dialect.project) or text("cwd") or str(Path.cwd()),
            transcript,
            side if dialect.agent == "codex" else None,
            text("prompt_id", "turn_id") or None,
            text("agent_id"),
            text("tool_name") or "tool",
            text("tool_use_id") or None,
            event.get("tool_input"),
            event,
        )


class LeftBehind(Exception):
    """The agent's session was left after a rewind, and says nothing new."""


class Follower:
    """One agent's session in a store, for the length of one hook.

    `begins` says that something begins with the event, a turn or a call. Otherwise a session
    that was left after a rewind is no session any more: `LeftBehind`.
    """

    def __init__(
        self, store: Store, dialect: Dialect, fields: Fields, patience: float, *, begins: bool
    ) -> None:
        self.store = store
        self.dialect = dialect
        self.fields = fields
        self.troubles: list[str] = []
        self._begins = begins
        self.id, self.is_new, cwd = self._found() or self._gone_on() or self._made()
        self.cwd = cwd
        self.files = Files(store, self.id, cwd, patience)
        branch = self.files.branch() if self.is_new else None
        if branch:
            store.update(self.id, metadata={"git_branch": branch})

    @property
    def _key(self) -> str:
        return f"{self.dialect.agent}:{self.fields.session}"

    @property
    def _is_mirrored(self) -> bool:
        """Whether the conversation comes from a transcript; agents can be told to keep none."""
        paths = (self.fields.transcript, self.fields.side)
        return self.dialect.has_transcript and any(path and path.is_file() for path in paths)

    def _found(self) -> tuple[str, bool, str] | None:
        known = self.store.sessions(key=self._key, limit=1)
        return (known[0].id, False, known[0].cwd or self.fields.cwd) if known else None

    def _gone_on(self) -> tuple[str, bool, str] | None:
        """The fork for a session that was left after a rewind, and goes on all the same."""
        from ..exchange.records import Found, has_left, known

        fields = self.fields
        found = Found(self.dialect.agent, fields.session, fields.transcript or Path())
        left = known(self.store, found)
        if left is None or not has_left(left, found):
            return None
        if not self._begins:
            raise LeftBehind
        from ..exchange.leaving import gone_on

        fork = gone_on(self.store, left, found)
        return fork.id, False, fork.cwd or fields.cwd

    def _made(self) -> tuple[str, bool, str]:
        fields = self.fields
        native = {"agent": self.dialect.agent, "id": fields.session}
        native |= {"path": str(fields.transcript)} if fields.transcript else {}
        model = fields.raw.get("model")
        info = SessionInfo(
            id=new_id(),
            key=self._key,
            cwd=fields.cwd,
            agent_name=self.dialect.agent,
            model=model if isinstance(model, str) else None,
            metadata={"native": native},
        )
        try:
            self.store.create(info)
        except AlreadyExists:
            # Another hook was quicker.
            found = self._found()
            if found is None:
                raise
            return found
        start = NewEvent("session_start", {"info": self.store.info(info.id).to_dict()})
        self.store.append(info.id, [start])
        return info.id, True, fields.cwd

    def close(self) -> None:
        """Let go of the files, and keep what went wrong."""
        self.troubles += [note for note in self.files.troubles if note not in self.troubles]
        self.files.close()

    # --- what happens --------------------------------------------------------------------

    def start(self) -> None:
        """The agent begins or goes on with a session."""
        if self.is_new:
            owed, details = self.files.look()
            if "tree" in details:
                # A point to go back to, before anything was said.
                data = {"at": 1, "label": None, "metadata": {}, **details}
                self._append([*owed, NewEvent("checkpoint", data)])
        elif self.fields.raw.get("source") == "resume":
            self._append([NewEvent("session_resume", {"by": self.dialect.agent})])

    def prompt(self) -> None:
        """A person says something: the transcript so far, then the message with the files."""
        if self.fields.agent:
            # What a subagent is asked is no turn: its parent asks.
            return
        self.mirror()
        self.files.end_all()
        owed, details = self.files.look()
        said = self.fields.raw.get("prompt")
        text = said if isinstance(said, str) else ""
        message, format = _user_message(self.dialect.agent, text)
        data = {"message": message, "format": format, **details}
        event = NewEvent("user_message", data, id=_event_id(self.fields.prompt_id))
        self._append([*owed, event])

    def before(self, runner: tuple[int, int]) -> None:
        """A tool is about to run."""
        from ..files.brackets import Runner

        fields = self.fields
        paths = declared(fields.tool, fields.given, self._where())
        process = Runner(*runner, fields.agent)
        self._append(self.files.begin(fields.tool, fields.call, paths, process))

    def after(self, *, failed: bool = False) -> None:
        """A tool is done."""
        fields = self.fields
        paths = declared(fields.tool, fields.given, self._where())
        ended = self.files.end(fields.tool, fields.call, paths, fields.agent)
        files, bracket = ended
        if files is None and self._is_mirrored:
            return
        data: dict[str, Json] = {"name": fields.tool, "input": _clipped(fields.given)}
        data |= {"call": fields.call} if fields.call else {}
        data |= {"agent": fields.agent} if fields.agent else {}
        data |= {"error": True} if failed or _failed(fields.raw.get("tool_response")) else {}
        data |= {"files": files} if files else {}
        if not self._is_mirrored:
            data["result"] = _clipped(fields.raw.get("tool_response"))
        if files is not None and "after" in files:
            # The call itself stands before what it did.
            self.mirror()
        self._append([NewEvent("action", data, id=bracket.id if bracket else None)])
        self.files.told(ended)

    def stop(self) -> None:
        """The agent is done with a turn."""
        self._end_turn("end_turn")

    def interrupted(self) -> None:
        """A person stopped the agent in the middle of a turn."""
        self._end_turn("interrupted")

    def _end_turn(self, reason: str) -> None:
        answer = self.fields.raw.get("last_assistant_message")
        if answer is None:
            answer = self.fields.raw.get("prompt_response")
        if isinstance(answer, str) and self._is_mirrored and self.fields.transcript is not None:
            self._await(answer, self.fields.transcript)
        self.mirror()
        self.files.end_all()
        events: list[NewEvent] = []
        if isinstance(answer, str) and answer and not self._is_mirrored:
            message = {"role": "assistant", "content": answer}
            events.append(NewEvent("assistant_message", {"message": message, "format": "openai"}))
        kinds = ("user_message", "turn_end")
        last = next(self.store.read(self.id, kinds=kinds, reverse=True, limit=1), None)
        if last is not None and last.kind == "user_message":
            events.append(NewEvent("turn_end", {"turn": last.seq, "reason": reason}))
        self._append(events)

    def substop(self) -> None:
        """A subagent is done."""
        agent = self.fields.agent
        if agent:
            self.files.end_all(agent)
        self.mirror()

    def end(self) -> None:
        """The agent leaves the session."""
        self.mirror()
        self.files.end_all(None)
        reason = self.fields.raw.get("reason")
        reason = reason if isinstance(reason, str) and reason else "other"
        self._append([NewEvent("session_end", {"reason": reason})])

    # --- how -----------------------------------------------------------------------------

    def _where(self) -> str:
        """The directory that a tool's relative paths begin at."""
        cwd = self.fields.raw.get("cwd")
        return cwd if isinstance(cwd, str) and cwd.startswith("/") else self.cwd

    def _append(self, events: list[NewEvent]) -> None:
        if events:
            self.store.append(self.id, events)

    def mirror(self) -> None:
        """Take over what is new in the transcript, and in a subagent's."""
        if not self._is_mirrored:
            return
        from ..exchange.mirroring import mirror, mirror_side

        transcript, side = self.fields.transcript, self.fields.side
        try:
            if transcript is not None:
                mirror(self, transcript, self.dialect.agent)
            if side is not None:
                mirror_side(self, self.fields.agent, side)
        except (BacktrailError, OSError) as error:
            self.troubles.append(f"the transcript was not mirrored: {error}")

    def _await(self, answer: str, transcript: Path) -> None:
        """Wait a little for the last words to be in the transcript: agents write it later."""
        import json

        words = [json.dumps(answer, ensure_ascii=ascii)[1:-1].encode() for ascii in (False, True)]
        deadline = time.monotonic() + _FLUSHED
        while time.monotonic() < deadline:
            tail = _tail(transcript, 4 * len(words[1]) + 20_000)
            if any(word in tail for word in words):
                return
            time.sleep(_STEP)


def _tail(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read()
    except OSError:
        return b""


def _failed(response: Json) -> bool:
    """Whether a tool's response says that it failed; Gemini CLI has no event for that."""
    return isinstance(response, dict) and isinstance(response.get("error"), dict)


def _event_id(given: str | None) -> str | None:
    """A name that an event may have; None where the given one is none."""
    return given if given and len(given) <= 256 and given.isprintable() else None


def _user_message(agent: str, text: str) -> tuple[dict[str, Json], str]:
    if agent == "codex":
        content = [{"type": "input_text", "text": text}]
        return {"type": "message", "role": "user", "content": content}, "responses"
    return {"role": "user", "content": text}, "anthropic" if agent == "claude-code" else "openai"


def _clipped(value: Json, limit: int = _LONG) -> Json:
    """A value as an event keeps it: long texts are in the transcript and in the files."""
    if isinstance(value, str):
        if len(value) > limit:
            value = f"{value[:limit]}… ({len(value)} characters)"
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_clipped(item, limit // 2) for item in value[:1000]] if limit > 100 else "…"
    if isinstance(value, dict):
        items = list(value.items())[:1000]
        return {str(_clipped(k)): _clipped(v, limit // 2) for k, v in items} if limit > 100 else "…"
    return value
