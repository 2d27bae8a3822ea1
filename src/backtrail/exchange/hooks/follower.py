"""An agent's session as one of ours, for the length of one hook: mirrored, written to, ended.

The conversation comes from the agent's transcript, the files from the hooks. Where there is
no transcript to mirror, prompts, calls and answers are what hooks report.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ...errors import BacktrailError, NotFound, Unsafe
from ...events import NewEvent
from ...files.changes.brackets import Ended, Grab, report_missed
from ...files.changes.host import Folder, Host, NotWatched
from ...files.changes.shared import SharedRecorder
from ...files.names import declared as below
from ...files.workspace.firstimport import PARTIAL
from ..shapes import text_in
from .fields import Fields, await_words, clipped, is_note, user_message
from .first_import import awaited, forget_wait, is_there
from .identify import identify

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...events import Event, Json
    from ...files.changes.brackets import Bracket, Process
    from ...files.workspace.snapshot import Log
    from ...files.workspace.workspace import Workspace
    from ...settings import Settings
    from ...stores.base import Store
    from .dialects import Dialect

UNSEEN = "the beginning of the call was not seen"
"""What an event says whose call has no bracket."""


class Patience(NamedTuple):
    """How long a hook works on the first import, and how long a call of it waits for that.

    `allow` moves the hook's own limit, so that a wait does not count.
    """

    work: float
    wait: float
    allow: Callable[[float], None]


class Follower:
    """One agent's session in a store, for the length of one hook.

    `begins` and `makes` are as `identify` takes them.
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
        """The files that a prompt reports to the agent: they are other than it thinks."""
        self._patience = patience
        self._now = time.time()
        found, self.is_new, self.is_left = identify(
            store, dialect, fields, settings, patience.work, begins=begins, makes=makes
        )
        self.id = found.id
        self.cwd = found.cwd or fields.cwd
        self.root = found.root or self.cwd
        host = Host(self._folder, self._last_tree, self._refused, self._missed, self._complain)
        folder = Folder(store, self.id, host, first_import=self._is_imported)
        self.files = SharedRecorder(folder)
        branch = folder.branch() if self.is_new else None
        if branch:
            store.update(self.id, metadata={"git_branch": branch})

    @property
    def _is_mirrored(self) -> bool:
        """Whether the conversation comes from a transcript; some agents can be set to keep none."""
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

    def end_calls(self) -> None:
        """What the agent left under way is over; the session says so, and nothing else."""
        self.files.end_agent(None)
        self._append([])

    def close(self) -> None:
        """Let go of the files; what a failing store did not take is kept for the next hook."""
        try:
            self.files.leave()
        finally:
            self.files.folder.close()

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
            from ...files.changes.reversal import Reversals

            if Reversals(self.store, self.id).is_over():
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
        text = self.fields.prompt
        if self._is_mirrored and is_note(self.dialect.agent, text):
            # The agent goes on by itself: its transcript has it.
            return
        id = self.fields.event_id
        if id is not None and self._is_known(id):
            # Typed while a turn is under way, and of that turn: its calls go on.
            self.outdated = self._outdated()
            return
        self.files.end_agent("", running_in)
        details = self._look()
        self.outdated = self._outdated()
        message, format = user_message(self.dialect.agent, text)
        data = {"message": message, "format": format, **self._source(), **details}
        self._append([NewEvent("user_message", data, id=id)])

    def _outdated(self) -> list[str]:
        try:
            return self.files.outdated()
        except BacktrailError as error:
            self._complain("not reported", str(error))
            return []

    def _is_known(self, id: str) -> bool:
        try:
            return bool(self.store.find(self.id, id))
        except NotFound:
            return False

    def _source(self) -> dict[str, Json]:
        """Where the event stands in the record of an agent whose conversation hooks report."""
        if self.dialect.has_transcript or self.fields.agent:
            return {}
        from ..gemini.format import source

        return source(self.fields.session, self.fields.transcript)

    def _go_back(self) -> bool:
        """Append the rewinds that the agent made in its own chat; whether there was one."""
        fields = self.fields
        if self.dialect.has_transcript or self.is_left:
            return False
        from ..gemini.format import turns_since_stamp

        went_back = False
        try:
            for event in turns_since_stamp(self.store, self.id, fields.session, fields.transcript):
                self._append([event])
                went_back = went_back or event.kind == "rewound"
        except BacktrailError as error:
            self.troubles.append(f"the record of the chat was not read: {error}")
        return went_back

    def before(self) -> None:
        """A tool is about to run."""
        from ...files.changes.brackets import Runner
        from .processes import agent_process

        if self._go_back():
            # The files went back, too, and the call comes after that.
            self._look()
            self._append([])
        fields = self.fields
        paths, _ = self._declared()
        if paths == []:
            # All it touches lies outside.
            return
        sought = fields.sought
        agent = fields.agent, self.dialect.agent, sought.given, sought.gist
        begun = self.files.begin(
            fields.tool, fields.call, paths,
            runner=Runner(*agent_process(), *agent), wait=self._patience.wait,
        )  # fmt: skip
        if isinstance(begun, Grab):
            from .small_files import keep_grab

            keep_grab(self.store, self.id, fields.call or f"{fields.tool} {sought.given}", begun)
        self._append([])
        self.files.beat()

    def asked(self) -> None:
        """A person is asked whether a tool may run."""
        self.files.ask(self.fields.sought)

    def denied(self) -> None:
        """Drop a call that may not run; what changed meanwhile is not its own."""
        bracket = self.files.find(self.fields.sought)
        if bracket is not None:
            self.files.drop(bracket)

    def failed(self) -> None:
        """A tool is done, and failed."""
        self.after(failed=True)

    def after(self, *, failed: bool = False) -> None:
        """A tool is done."""
        fields = self.fields
        failed = failed or fields.failed
        ended = self._ended()
        files = ended.files
        outside = [] if failed else self._declared()[1]
        if files is None and not outside and self._is_mirrored:
            return
        data: dict[str, Json] = {"name": fields.tool, "input": clipped(fields.given)}
        more = {"call": fields.call, "agent": fields.agent, "error": failed}
        data |= {name: value for name, value in more.items() if value}
        data |= {**self._source(), **ended.details}
        if outside:
            data["files"] = {**(files or {}), "outside": outside}
        if not self._is_mirrored:
            data["result"] = clipped(fields.raw.get("tool_response"))
        bracket = ended.bracket if files is not None and "after" in files else None
        if bracket is not None:
            # The call itself stands before what it did.
            self.mirror()
        try:
            stored = self._append([NewEvent("action", data, id=bracket.id if bracket else None)])
        except BaseException:
            self.files.recorded([ended])
            raise
        self.files.recorded([ended], stored)
        report_missed([ended], self._missed)

    def _ended(self) -> Ended:
        """What the call did to the files."""
        fields, workspace = self.fields, self.files.watched()
        if workspace is None:
            return Ended(None, {})
        sought = fields.sought
        bracket = self.files.find(sought)
        if bracket is not None:
            ran_from = fields.ran_from(self._now) if bracket.question else None
            return self.files.end(bracket, ran_from)
        if self._declared()[0] == []:
            return Ended(None, {})
        from .small_files import take_grab

        grab = take_grab(self.store, self.id, fields.call or f"{fields.tool} {sought.given}")
        if grab is not None:
            return self.files.end(grab)
        return Ended(None, {"files": {"missed": PARTIAL if workspace.is_new() else UNSEEN}})

    def _declared(self) -> tuple[list[bytes] | None, list[str]]:
        """The paths that the tool names: those below the root, and those outside of it.

        Of the first, None stands for anything.
        """
        paths = self.fields.declared(self.cwd)
        workspace = self.files.watched()
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
        answer, transcript = self.fields.answer, self.fields.transcript
        if answer and transcript and (self._is_mirrored or self._is_first_turn):
            await_words(answer, transcript)
        self.mirror()
        self.files.end_agent("", running_in, late=False)
        events: list[NewEvent] = []
        if answer and not self._is_mirrored:
            message = {"role": "assistant", "content": answer}
            events.append(NewEvent("assistant_message", {"message": message, "format": "openai"}))
        kinds = ("user_message", "turn_end")
        last = next(self.store.read(self.id, kinds=kinds, reverse=True, limit=1), None)
        if last is not None and last.kind == "user_message":
            self._append([])
            data = {"turn": last.seq, "reason": reason, **self._net()}
            events.append(NewEvent("turn_end", data))
        self._append(events)

    def _net(self) -> dict[str, Json]:
        """What the turn did to the files, counted for lists."""
        from ...session.filepoints import last_turn, net_of

        workspace = self.files.workspace
        prompt, events = last_turn(self.store, self.id)
        if prompt is None or workspace is None or not any("files" in e.data for e in events):
            return {}
        return net_of(self.store, self.id, workspace.get, events)

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
        # What it put back by itself is distinguished from what others change once it is gone.
        self.files.look(prompt=True)
        reason = text_in(self.fields.raw, "reason") or "other"
        last = next(self.store.read(self.id, reverse=True, limit=1), None)
        # Gemini CLI says it several times.
        is_noted = last is not None and last.kind == "session_end"
        # An agent's daemon says it late: calls that end with it must not move the session up.
        events = [] if is_noted else [NewEvent("session_end", {"reason": reason})]
        self._append(events, since=last.ts if last else None)
        forget_wait(self.store, self.id)

    # --- how -----------------------------------------------------------------------------

    def _append(self, events: list[NewEvent], since: str | None = None) -> list[Event]:
        """Append, behind what is owed of the files, which happened `since`."""
        owed = self.files.queue.waiting
        if any(event.id is not None for event, _ in owed):
            for event, _ in list(owed):
                self.store.append(self.id, [_dated(event, since)])
                self.files.settle(1)
        owed = self.files.queue.waiting
        batch = [*(_dated(event, since) for event, _ in owed), *events]
        stored = self.store.append(self.id, batch) if batch else []
        self.files.settle(len(owed))
        return stored[len(owed) :]

    def mirror(self) -> None:
        """Take over what is new in the transcript, and in a subagent's."""
        if not self._is_mirrored:
            return
        from ..foreign import mirror, mirror_side

        transcript, side = self.fields.transcript, self.fields.side
        try:
            if transcript is not None:
                mirror(self.store, self.id, transcript, self.dialect.agent)
            if side is not None:
                mirror_side(self.store, self.id, self.fields.agent, side)
        except (BacktrailError, OSError) as error:
            self.troubles.append(f"the transcript was not mirrored: {error}")


def _dated(event: NewEvent, ts: str | None) -> NewEvent:
    """An event with a time, if one is given and it has none of its own."""
    if ts is None or event.ts is not None:
        return event
    return NewEvent(event.kind, event.data, id=event.id, follows=event.follows, ts=ts)


def running_in(bracket: Bracket) -> Process | None:
    """The process that a call is still running in, if there is one."""
    from .processes import running

    return running(bracket.pid, bracket.gist, bracket.since) if bracket.gist else None
