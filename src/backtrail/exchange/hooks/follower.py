"""An agent's session as one of ours: found or made, mirrored, ended.

The conversation comes from the agent's transcript, the files from the hooks. Where there is
no transcript to mirror, prompts, calls and answers are what hooks tell.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ...errors import AlreadyExists, BacktrailError, NotFound, Unsafe
from ...events import NewEvent, SessionInfo, new_id
from ...files.changes.folder import Host, NotWatched
from ...files.changes.owed import Ended, Grab
from ...files.changes.shared import SharedRecorder
from ...files.names import declared as below
from ...files.workspace.baseline import PARTIAL
from .baseline import awaited, forget_wait, is_there
from .dialects import Dialect, declared, digest_of, gist_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...events import Event, Json
    from ...files.changes.brackets import Bracket
    from ...files.changes.sought import Process, Sought
    from ...files.workspace.snapshot import Log
    from ...files.workspace.workspace import Workspace
    from ...settings import Settings
    from ...stores.base import Store

UNSEEN = "the beginning of the call was not seen"
"""What an event says whose call has no bracket."""

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
    """The agent's session was left after a rewind, or was never recorded, and says nothing new."""


class Patience(NamedTuple):
    """How long a hook works on the first import, and how long a call of it waits for that.

    `allow` moves the hook's own limit, so that a wait does not count.
    """

    work: float
    wait: float
    allow: Callable[[float], None]


class Follower:
    """One agent's session in a store, for the length of one hook.

    `begins` says that something begins with the event, a turn or a call. Otherwise a session
    that was left after a rewind is no session any more: `LeftBehind`. But a call that was under
    way then is still that session's: `is_left`. Without `makes`, an unknown session stays so.
    """

    def __init__(
        self, store: Store, dialect: Dialect, fields: Fields, settings: Settings,
        patience: Patience, *, begins: bool, makes: bool = True,
    ) -> None:  # fmt: skip
        self.store = store
        self.dialect = dialect
        self.fields = fields
        self.troubles: list[str] = []
        self.outdated: list[str] = []
        """The files that a prompt tells the agent of: they are other than it thinks."""
        self._settings = settings
        self._patience = patience
        self._now = time.time()
        self._begins = begins
        self.is_left = False
        known = self._found() or self._gone_on()
        if known is None and not makes:
            raise LeftBehind
        found, self.is_new = known or self._made()
        self.id = found.id
        self.cwd = found.cwd or fields.cwd
        self.root = found.root or self.cwd
        host = Host(self._folder, self._last_tree, self._refused, self._missed, self._complain)
        self.files = SharedRecorder(store, self.id, host, first_import=self._is_imported)
        branch = self.files.folder.branch() if self.is_new else None
        if branch:
            store.update(self.id, metadata={"git_branch": branch})

    @property
    def _key(self) -> str:
        return f"{self.dialect.agent}:{self.fields.session}"

    @property
    def _is_mirrored(self) -> bool:
        """Whether the conversation comes from a transcript; agents can be told to keep none."""
        paths = (self.fields.transcript, self.fields.side)
        if self.is_left:
            return False
        return self.dialect.has_transcript and any(path and path.is_file() for path in paths)

    @property
    def _is_first_turn(self) -> bool:
        """Whether no turn has ended, so that an agent may have yet to make its transcript."""
        if not self.dialect.has_transcript or self.is_left:
            return False
        return next(self.store.read(self.id, kinds=("turn_end",), limit=1), None) is None

    def _found(self) -> tuple[SessionInfo, bool] | None:
        known = self.store.sessions(key=self._key, limit=1)
        return (known[0], False) if known else None

    def _gone_on(self) -> tuple[SessionInfo, bool] | None:
        """The fork for a session that was left after a rewind, and goes on all the same."""
        from ..records import Found, has_left, known

        fields = self.fields
        found = Found(self.dialect.agent, fields.session, fields.transcript or Path())
        left = known(self.store, found)
        if left is None or not has_left(left, found):
            return None
        if not self._begins:
            if not self._has_open(left.id):
                raise LeftBehind
            self.is_left = True
            return left, False
        from ..leaving import gone_on

        return gone_on(self.store, left, found), False

    def _has_open(self, session_id: str) -> bool:
        """Whether a call of a session is under way."""
        from ...files.depot import Depot

        depot = Depot.of(self.store)
        try:
            calls = depot.catalogue.calls()
            return any(call.owner == session_id and not call.ended for call in calls)
        finally:
            depot.close()

    def end_calls(self) -> None:
        """What the agent left under way is over; the session says so, and nothing else."""
        self.files.end_agent(None)
        self._append([])

    def _made(self) -> tuple[SessionInfo, bool]:
        from ...files.workspace.project import chosen_root

        fields = self.fields
        # A project that takes too long to count is too large, as the record says.
        root = chosen_root(fields.cwd, self._settings, seconds=self._patience.work)
        native = {"agent": self.dialect.agent, "id": fields.session}
        native |= {"path": str(fields.transcript)} if fields.transcript else {}
        model = fields.raw.get("model")
        info = SessionInfo(
            id=new_id(),
            key=self._key,
            cwd=fields.cwd,
            root=root.path,
            agent_name=self.dialect.agent,
            model=model if isinstance(model, str) else None,
            metadata={"native": native, **root.refused()},
        )
        try:
            self.store.create(info)
        except AlreadyExists:
            # Another hook was quicker.
            found = self._found()
            if found is None:
                raise
            return found
        made = self.store.info(info.id)
        self.store.append(info.id, [NewEvent("session_start", {"info": made.to_dict()})])
        return made, True

    def close(self) -> None:
        """Let go of the files; what a failing store did not take is kept for the next hook."""
        try:
            self.files.leave()
        finally:
            self.files.close()

    # --- what the recorder asks for ------------------------------------------------------

    def _folder(self) -> str:
        if not Path(self.root).is_dir():
            raise NotWatched(f"{self.root} is not a directory, so no files are captured")
        return self.root

    def _is_imported(self, workspace: Workspace, log: Log, wait: float) -> bool:
        """Whether the first import is done, after working on it or waiting for it."""
        work, _, allow = self._patience
        if not wait or not workspace.is_new():
            return is_there(self.store, workspace, log, work)
        began = time.monotonic()
        allow(wait)
        try:
            return awaited(self.store, workspace, log, wait)
        finally:
            allow(time.monotonic() - began - wait)

    def _last_tree(self) -> bytes | None:
        from ...events.history import newest_tree

        return newest_tree(self.store.read(self.id, reverse=True))

    def _refused(self, error: BacktrailError) -> None:
        # A home folder is no project, and no trouble either.
        if not isinstance(error, Unsafe):
            self._missed(error)

    def _missed(self, error: BacktrailError) -> None:
        self._complain("not captured", str(error))

    def _complain(self, what: str, detail: str) -> None:
        if detail not in self.troubles:
            self.troubles.append(detail)

    def _look(self) -> dict[str, Json]:
        """What a message says about the files."""
        return self.files.look(prompt=True) or {"files": {"missed": self.files.folder.unwatched}}

    # --- what happens --------------------------------------------------------------------

    def start(self) -> None:
        """The agent begins or goes on with a session."""
        if self.is_new:
            details = self._look()
            if "tree" in details:
                # A point to go back to, before anything was said.
                data = {"at": 1, "label": None, "metadata": {}, **details}
                self._append([NewEvent("checkpoint", data)])
        elif self.fields.raw.get("source") == "resume":
            if self.files.is_over():
                # Whatever changed since the agent left is not its own.
                self.files.look()
            self._append([NewEvent("session_resume", {"by": self.dialect.agent})])

    def prompt(self) -> None:
        """A person says something: the transcript so far, then the message with the files."""
        if self.fields.agent:
            # What a subagent is asked is no turn: its parent asks.
            return
        self.mirror()
        self._go_back()
        said = self.fields.raw.get("prompt")
        text = said if isinstance(said, str) else ""
        if self._is_mirrored and is_note(self.dialect.agent, text):
            # The agent goes on by itself: its transcript has it.
            return
        id = _event_id(self.fields.prompt_id)
        if id is not None and self._is_known(id):
            # Typed while a turn is under way, and of that turn: its calls go on.
            self.outdated = self._outdated()
            return
        self.files.end_agent("", running_in)
        details = self._look()
        self.outdated = self._outdated()
        message, format = _user_message(self.dialect.agent, text)
        data = {"message": message, "format": format, **self._source(), **details}
        self._append([NewEvent("user_message", data, id=id)])

    def _outdated(self) -> list[str]:
        try:
            return self.files.outdated()
        except BacktrailError as error:
            self._complain("not told", str(error))
            return []

    def _is_known(self, id: str) -> bool:
        try:
            return bool(self.store.find(self.id, id))
        except NotFound:
            return False

    def _source(self) -> dict[str, Json]:
        """Where the event stands in the record of an agent whose conversation hooks tell."""
        if self.dialect.has_transcript or self.fields.agent:
            return {}
        from ..gemini.chats import source

        return source(self.fields.session, self.fields.transcript)

    def _go_back(self) -> bool:
        """Follow what such an agent did to its chat by itself; whether it went back."""
        fields = self.fields
        if self.dialect.has_transcript or self.is_left:
            return False
        from ..gemini.chats import turns_of_chat

        went_back = False
        try:
            for event in turns_of_chat(self.store, self.id, fields.session, fields.transcript):
                self._append([event])
                went_back = went_back or event.kind == "rewound"
        except BacktrailError as error:
            self.troubles.append(f"the record of the chat was not read: {error}")
        return went_back

    def before(self, runner: tuple[int, int]) -> None:
        """A tool is about to run."""
        from ...files.changes.brackets import Runner

        if self._go_back():
            # The files went back, too, and the call comes after that.
            self._look()
            self._append([])
        fields = self.fields
        paths, _ = self._declared()
        if paths == []:
            # All it touches lies outside.
            return
        sought = self._sought()
        process = Runner(*runner, fields.agent, self.dialect.agent, sought.given, sought.gist)
        begun = self.files.begin(
            fields.tool, fields.call, paths, runner=process, wait=self._patience.wait
        )
        if isinstance(begun, Grab):
            from .grabs import keep

            keep(self.store, self.id, fields.call or f"{fields.tool} {sought.given}", begun)
        self._append([])
        self.files.beat()

    def asked(self) -> None:
        """A person is asked whether a tool may run."""
        self.files.ask(self._sought())

    def denied(self) -> None:
        """A tool may not run: whatever changed meanwhile is not its own."""
        bracket = self.files.find(self._sought())
        if bracket is not None:
            self.files.drop(bracket)

    def _sought(self) -> Sought:
        """The call that the event is about."""
        from ...files.changes.sought import Sought

        fields = self.fields
        # Gemini CLI says in the details what the question is about.
        given = fields.given if fields.given is not None else fields.raw.get("details")
        whole = ""
        if not fields.call:
            import json

            whole = digest_of(json.dumps(given, sort_keys=True))
        return Sought(fields.tool, fields.call, fields.agent, whole, gist_of(given))

    def after(self, *, failed: bool = False) -> None:
        """A tool is done."""
        fields = self.fields
        failed = failed or _failed(fields.raw.get("tool_response"))
        ended = self._ended()
        files = ended.files
        outside = [] if failed else self._declared()[1]
        if files is None and not outside and self._is_mirrored:
            return
        data: dict[str, Json] = {"name": fields.tool, "input": _clipped(fields.given)}
        data |= {"call": fields.call} if fields.call else {}
        data |= {"agent": fields.agent} if fields.agent else {}
        data |= {"error": True} if failed else {}
        data |= self._source()
        data |= ended.details
        if outside:
            data["files"] = {**(files or {}), "outside": outside}
        if not self._is_mirrored:
            data["result"] = _clipped(fields.raw.get("tool_response"))
        told = ended.bracket if files is not None and "after" in files else None
        if told is not None:
            # The call itself stands before what it did.
            self.mirror()
        try:
            stored = self._append([NewEvent("action", data, id=told.id if told else None)])
        except BaseException:
            self.files.unrecorded([ended])
            raise
        self.files.recorded([ended], stored)
        self.files.say_missed([ended])

    def _ended(self) -> Ended:
        """What the call did to the files."""
        fields, workspace = self.fields, self.files.folder.workspace()
        if workspace is None:
            return Ended(None, {})
        sought = self._sought()
        bracket = self.files.find(sought)
        if bracket is not None:
            ran_from = None
            if bracket.question:
                from .timing import ran_from as since

                ran_from = since(fields.raw, fields.side or fields.transcript, self._now)
            return self.files.end(bracket, ran_from)
        if self._declared()[0] == []:
            return Ended(None, {})
        from .grabs import take

        grab = take(self.store, self.id, fields.call or f"{fields.tool} {sought.given}")
        if grab is not None:
            return self.files.end(grab)
        return Ended(None, {"files": {"missed": PARTIAL if workspace.is_new() else UNSEEN}})

    def _declared(self) -> tuple[list[bytes] | None, list[str]]:
        """The paths that the tool names: those below the root, and those outside of it.

        Of the first, None stands for anything.
        """
        paths = declared(self.fields.tool, self.fields.given, self._where())
        workspace = self.files.folder.workspace()
        if paths is None or workspace is None:
            return None, []
        found, outside = below(workspace.root, paths)
        return None if found and b"" in found else found, outside

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
        transcript = self.fields.transcript
        if isinstance(answer, str) and transcript and (self._is_mirrored or self._is_first_turn):
            self._await(answer, transcript)
        self.mirror()
        self.files.end_agent("", running_in, late=False)
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
            self.files.end_agent(agent, running_in, late=False)
            self._append([])
        self.mirror()

    def end(self) -> None:
        """The agent leaves the session."""
        self.mirror()
        self.files.end_agent(None, running_in)
        # What it put back by itself is told from what others change once it is gone.
        self.files.look(prompt=True)
        reason = self.fields.raw.get("reason")
        reason = reason if isinstance(reason, str) and reason else "other"
        last = next(self.store.read(self.id, reverse=True, limit=1), None)
        # Gemini CLI says it several times.
        told = last is not None and last.kind == "session_end"
        # An agent's daemon says it late: calls that end with it must not move the session up.
        events = [] if told else [NewEvent("session_end", {"reason": reason})]
        self._append(events, since=last.ts if last else None)
        forget_wait(self.store, self.id)

    # --- how -----------------------------------------------------------------------------

    def _where(self) -> str:
        """The directory that a tool's relative paths begin at."""
        cwd = self.fields.raw.get("cwd")
        return cwd if isinstance(cwd, str) and cwd.startswith("/") else self.cwd

    def _append(self, events: list[NewEvent], since: str | None = None) -> list[Event]:
        """Append, behind what is owed of the files, which happened `since`."""
        owed = self.files.owed()
        if any(event.id is not None for event, _ in owed):
            for event, _ in list(owed):
                self.store.append(self.id, [_dated(event, since)])
                self.files.settle(1)
        owed = self.files.owed()
        batch = [*(_dated(event, since) for event, _ in owed), *events]
        stored = self.store.append(self.id, batch) if batch else []
        self.files.settle(len(owed))
        return stored[len(owed) :]

    def mirror(self) -> None:
        """Take over what is new in the transcript, and in a subagent's."""
        if not self._is_mirrored:
            return
        from ..mirror import mirror, mirror_side

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
            last = tail(transcript, 4 * len(words[1]) + 20_000)
            if any(word in last for word in words):
                return
            time.sleep(_STEP)


def _dated(event: NewEvent, ts: str | None) -> NewEvent:
    """An event with a time, if one is given and it has none of its own."""
    if ts is None or event.ts is not None:
        return event
    return NewEvent(event.kind, event.data, id=event.id, follows=event.follows, ts=ts)


def running_in(bracket: Bracket) -> Process | None:
    """The process that a call is still running in, if there is one."""
    from .processes import running

    return running(bracket.pid, bracket.gist, bracket.since) if bracket.gist else None


def tail(path: Path, size: int) -> bytes:
    """The end of a file; nothing where it cannot be read."""
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


def is_note(agent: str, text: str) -> bool:
    """Whether an agent tells itself something, such as that a task in the background is done."""
    if agent != "claude-code":
        return False
    from ..claude_code import format as claude_code

    return claude_code.is_note(text)


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
