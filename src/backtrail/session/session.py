"""Session: one conversation on a store, as people hold it. Each verb is one of its parts'."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Self, Unpack

from ..events import Checkpoint, Event, Format, Json, SessionInfo
from ..events.calls import INTERRUPTED, ToolCall, pending
from ..events.calls import repair as repaired
from ..events.history import Branch, branches
from ..events.messages import as_message, message_event
from ..files.changes.blame import BlameLine
from ..files.differences import Diff
from ..files.restore.conflicts import Decisions, OnConflict
from ..stores.base import Store
from . import begin
from .fileplans import Mode, Scope, Wish
from .filepoints import TurnChanges
from .keywords import SessionOptions, checked
from .listeners import Delta, Subscription
from .log import SideLog
from .parts import Parts
from .points import Target
from .toolcalls import Call
from .turnlog import Turn
from .turns import Content, Limits, Result, Retry
from .views import Rewind, State, beyond, end_event, mapped, may_begin, own_event, user_message


class Session:
    """One conversation. Made by `create`, `open`, `resume`, `latest` or `fork`.

    May be used from several threads; turns are served one after another.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.id = parts.log.id
        self.store = parts.log.store
        self.problems = parts.log.problems
        parts.driver.session = self

    @property
    def agent(self) -> Callable[..., object] | str | None:
        """What answers a turn: a callable, or "provider:model"."""
        return self.parts.turns.agent

    @agent.setter
    def agent(self, agent: Callable[..., object] | str | None) -> None:
        self.parts.turns.agent = agent

    # --- beginning -----------------------------------------------------------------------

    @classmethod
    def create(
        cls, store: Store | str | None = None, session_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:  # fmt: skip
        """A new session; an id that exists is `AlreadyExists`."""
        return cls(begin.created(store, session_id, checked("create", options)))

    @classmethod
    def open(
        cls, store: Store | str | None = None, session_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:  # fmt: skip
        """The session with this id or `key`, resumed if it exists, else created."""
        return cls(begin.opened(store, session_id, checked("open", options)))

    @classmethod
    def resume(
        cls, store: Store | str | None, session_id: str, at: Target | None = None,
        replay_last_user_turn: bool = False, **options: Unpack[SessionOptions],
    ) -> Self:  # fmt: skip
        """A session that exists, to go on with.

        `at` shows the history up to that event, and the first append continues from there.
        `replay_last_user_turn` does so from the last user message, so that it can be
        answered again; where there is none, the history is empty.
        """
        given, replay = checked("resume", options), replay_last_user_turn
        return cls(begin.resumed(store, session_id, at, given, replay=replay))

    @classmethod
    def latest(cls, store: Store | str | None = None, **options: Unpack[SessionOptions]) -> Self:
        """The newest session of `cwd`, by default the current directory.

        Forks count, subagents do not. `NotFound` if there is none.
        """
        return cls(begin.latest(store, checked("latest", options)))

    def fork(
        self, at: Target | None = None, *, session_id: str | None = None,
        into: str | os.PathLike[str] | None = None, copy_checkpoints: bool = False,
        **options: Unpack[SessionOptions],
    ) -> Self:  # fmt: skip
        """A new session that begins with this one's history, up to `at` or to now.

        It works in the same directory, with the files as they are; with `into`, in that new
        directory, which gets the files as they were at that point.
        """
        return type(self)(begin.forked(self.parts, at, session_id, into, copy_checkpoints, options))

    # --- writing -------------------------------------------------------------------------

    def append(
        self, message: object, *, id: str | None = None, kind: str | None = None,
        format: Format | None = None, usage: Mapping[str, Json] | None = None,
        cost_usd: float | None = None, ts: str | None = None,
    ) -> Event:  # fmt: skip
        """Append one message: a mapping, a `Message`, or anything with `model_dump()`.

        A known `id` is not appended again; the event that has it is returned.
        """
        event = message_event(message, id, kind, format, usage, cost_usd, ts)
        return self.parts.capture.append([event])[0]

    def extend(self, messages: Sequence[object]) -> list[Event]:
        """Append several messages as one batch, all or nothing.

        A list that begins with the whole present conversation, as frameworks return it,
        adds only what is new.
        """
        given = [as_message(message) for message in messages]
        if not given:
            return []
        if may_begin(given, self.parts.log.pages()):
            given = beyond(self.messages(repair=False), given)
        return self.parts.capture.append([message_event(message) for message in given])

    def record(
        self, kind: str, data: Mapping[str, Json] | None = None, *, id: str | None = None
    ) -> Event:
        """Append an event of your own kind."""
        return self.parts.capture.append([own_event(kind, data, id)])[0]

    def update(self, **changes: Json) -> SessionInfo:
        """Change title, key, model, agent_name, cwd, tags or metadata."""
        self.parts.log.check_open()
        return self.store.update(self.id, **changes)

    def end(self, reason: str = "end_turn") -> Event:
        """Note that the session is over, and why. It can be resumed all the same."""
        return self.parts.capture.append([end_event(reason)])[0]

    def log(self, name: str) -> SideLog:
        """A side log, such as "transcript"; its appends are buffered.

        A process that a signal ends loses what it appended in the last quarter of a second;
        `close`, `flush` and a normal exit write it.
        """
        return self.parts.log.side(name)

    def subagent(self, id: str) -> SideLog:
        """The log of a subagent."""
        return self.log(f"subagents/{id}")

    def tool(
        self, name: str, input: Json = None, *, id: str | None = None,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> AbstractContextManager[Call]:  # fmt: skip
        """A bracket around a tool call: what it does to the files is its own.

        With the `id` of a model's call, its result is appended as a `tool_result`; without,
        as an `action`. An exception becomes an error result, is recorded, and goes on up.
        A tool that knows which `paths` it will touch says so, from the session's `cwd`: then
        only these are looked at, and only these are its own.
        """
        return self.parts.capture.tool(name, input, id=id, paths=paths)

    # --- turns ---------------------------------------------------------------------------

    @contextmanager
    def turn(
        self, content: str | list[Json] | Mapping[str, Json], *, id: str | None = None
    ) -> Iterator[Turn]:
        """One turn around any code: appends the user's message, holds the lease.

        A known `id` goes on with its turn, as `send` does: the turn says whether it `is_new`
        and whether it has `ended`, by then or in the block. A block that is left ends it, with
        its error if it raised one. What changes in the files until then is the turn's own, as
        long as no `tool` is used in it: then only what the tools do is.
        """
        turns = self.parts.turns
        with self.parts.lease.driving():
            turn = turns.begin(self, user_message(content), id)
            try:
                yield turn
            except BaseException as error:
                turns.end(turn, error)
                raise
            turns.end(turn, None)

    def send(
        self, content: Content, *, id: str | None = None, retry: Retry = "errors",
        model: str | None = None, max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Result:  # fmt: skip
        """Say something and run the turn to its end.

        A known `id` returns the recorded result. If its turn failed or was cut short, it runs
        again (`retry="errors"`): it goes on where it is the last turn, and is said anew at the
        head where it is not. Calls that have results never run again, and neither does a turn
        that a person cancelled. With `retry="never"` only a last turn without an end goes on.
        Another message under a known id is `Conflict`. `max_turns` limits
        how often the model is asked, `budget` what it may cost in dollars; `Limits` also
        have tokens and seconds.
        """
        driver = self.parts.driver
        return driver.finished(driver.saying(content, id, retry), model, max_turns, budget)

    def stream(
        self, content: Content, *, id: str | None = None, retry: Retry = "errors",
        model: str | None = None, max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Iterator[Delta | Event]:  # fmt: skip
        """`send`, giving every delta and event as it comes; the last is a delta "done".

        It may be left early, which ends the turn, and gone on with in another thread.
        """
        driver = self.parts.driver
        return driver.streamed(driver.saying(content, id, retry), model, max_turns, budget)

    def proceed(
        self, *, pending: Literal["fail", "retry"] = "fail", model: str | None = None,
        max_turns: int | None = None, budget: float | Limits | None = None,
    ) -> Result:  # fmt: skip
        """Finish a turn that a crash cut short, from the head, without a new message.

        No tool that has a result runs again. Calls that began and have none are answered
        "interrupted", or with "retry" left for the agent to run. `NotFound` if no turn is
        unfinished.
        """
        driver = self.parts.driver
        return driver.finished(driver.proceeding(pending), model, max_turns, budget)

    def cancel(self) -> None:
        """End the turn under way, with `interrupted`; tools that run are stopped."""
        self.parts.driver.cancel()

    def answer(self, call_id: str, result: object) -> Event:
        """Settle a call that has no result with what came of it: text, JSON, or blocks.

        `NotFound` if no call of that id waits for a result; `pending` lists those that do.
        """
        return self.parts.turns.settle(call_id, result, failed=False)

    def give_up(self, call_id: str) -> Event:
        """Settle a call that has no result as interrupted: it is not known how far it came."""
        return self.parts.turns.settle(call_id, INTERRUPTED, failed=True)

    # --- going back ----------------------------------------------------------------------

    def checkpoint(
        self, label: str | None = None, *, at: Target | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Checkpoint:  # fmt: skip
        """Mark a point to go back to: now, or the event `at`.

        The same point, label, metadata and files give the same checkpoint.
        """
        return self.parts.checkpoints.add(label, at, metadata)

    def checkpoints(self) -> list[Checkpoint]:
        """The session's checkpoints, oldest first.

        A fork lists its own, and its parent's if it was made with `copy_checkpoints`.
        """
        return self.parts.checkpoints.all()

    def delete_checkpoint(self, target: Target) -> Checkpoint:
        """Delete a checkpoint: it is listed no more, and names no point to go back to.

        The log keeps it, with an event behind it that says so. Other points and operations stay
        as they are. What only the checkpoint kept of the files can be collected, and its label
        no longer keeps its contents from the budget. `NotFound` if it is none of this session's.
        """
        return self.parts.checkpoints.delete(target)

    def rewind(
        self, to: Target | None = None, *, before: Target | None = None,
        turn: Event | int | str | None = None, scope: Scope = "both",
        mode: Mode = "mine", paths: Collection[str] | None = None,
        on_conflict: Decisions | None = None, dry_run: bool = False, force: bool = False,
        expected: str | None = None,
    ) -> Rewind:  # fmt: skip
        """Continue from an earlier point: `to` keeps that event, `before` drops it too.

        Files go back as well. Mode "mine" undoes what this session changed after the point
        and leaves what others changed alone; "exact" makes the files equal to that point.
        `paths` takes only these. Nothing is erased: what is left behind stays as a branch, and
        `undo` takes the rewind back. With `dry_run`, only say what it would do; with its `plan` as
        `expected`, `Conflict` if that is not so any more. Conflicts are decided alike or by path.

        With `turn`, the number of a prompt or its event, that one turn is taken out of the files;
        conversation and later changes stay, conflicts are merged if nothing else is decided.

        While a call of another session is under way in that directory, above or below it, files
        do not go back: `SessionBusy`. By `force` they do; what that call did so far of this
        session's goes back with them, and what it does later is still its own.
        """
        otherwise: OnConflict = "keep" if turn is None else "merge"
        wish = Wish(scope, mode, paths, on_conflict or otherwise, force, expected, otherwise)
        return self.parts.rewinder.rewind(to, before, wish, turn=turn, dry_run=dry_run)

    def undo(
        self, *, on_conflict: Decisions = "keep", dry_run: bool = False, force: bool = False,
        expected: str | None = None,
    ) -> Rewind:  # fmt: skip
        """Take back the last turn or rewind that is not undone yet, files included.

        Directly after an undo that kept conflicts, another choice than "keep" finishes that
        undo: it decides on what was kept, and takes back nothing older.
        """
        return self.parts.rewinder.undo(
            on_conflict, dry_run=dry_run, force=force, expected=expected
        )

    def redo(
        self, *, on_conflict: Decisions = "keep", dry_run: bool = False, force: bool = False,
        expected: str | None = None,
    ) -> Rewind:  # fmt: skip
        """Take back the last undo, if nothing was said or done since."""
        return self.parts.rewinder.redo(
            on_conflict, dry_run=dry_run, force=force, expected=expected
        )

    # --- reading -------------------------------------------------------------------------

    def info(self) -> SessionInfo:
        """The session's record."""
        return self.parts.log.info()

    def messages(
        self, format: Format | None = None, *, repair: bool = True
    ) -> list[dict[str, Json]]:
        """The conversation as it stands, as stored or in a provider's format.

        A tool call that never got a result is answered "interrupted", unless `repair` is
        off: providers refuse an open one.
        """
        return self.parts.log.messages(format, repair=repair)

    def history(self) -> list[Event]:
        """The live path through the main log, oldest first."""
        return self.parts.log.history()

    def events(
        self, *, after: int = 0, until: int | None = None, limit: int | None = None,
        reverse: bool = False, kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:  # fmt: skip
        """Everything in the main log, the abandoned too."""
        return self.parts.log.events(after, until, limit, reverse=reverse, kinds=kinds)

    def pending(self) -> list[ToolCall]:
        """Tool calls that have no result yet."""
        return pending(self.messages(repair=False))

    def state(self) -> State:
        """Messages, usage, turns and open calls, for a loop of your own."""
        info, messages = self.info(), self.messages(repair=False)
        open_calls = pending(messages)
        return State(self.id, repaired(messages), info.usage, info.turn_count, open_calls)

    def as_map(self) -> dict[str, Json]:
        """The conversation as `session_id`, `messages`, `last_user`, `last_assistant`."""
        return mapped(self.id, self.messages())

    def branches(self) -> list[Branch]:
        """Ways the conversation went and was taken back from."""
        return branches(self.events())

    def follow(self, after: int | None = None) -> Iterator[Event]:
        """Events as they come, from any process, until the session is closed."""
        return self.parts.log.follow(after)

    # --- files ---------------------------------------------------------------------------

    def diff(
        self, a: Target | None = None, b: Target | None = None, *,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> Diff:  # fmt: skip
        """What differs in the files between two points; without `b`, between `a` and now.

        Without `a`, from the beginning of the session.
        """
        return self.parts.browser.diff(a, b, paths)

    def blame(self, path: str | os.PathLike[str], at: Target | None = None) -> list[BlameLine]:
        """The author of each line of a file, as it is now or was `at` a point.

        Over all sessions of the root in this store, and through renames. Lines that come back
        keep their first author. `NotFound` where no file with lines is there.
        """
        return self.parts.browser.blame(path, at)

    def changes(self) -> list[TurnChanges]:
        """What happened to the files, turn by turn: by which call, or by others."""
        return self.parts.browser.changes()

    def not_captured(self) -> list[tuple[str, str, int]]:
        """All that is not captured: path, reason, size.

        What the last scan did not keep; and with the size 0, calls that were missed, contents
        that are lost, and paths outside of the workspace that tools named.
        """
        return self.parts.browser.not_captured()

    def relocate(self, cwd: str | os.PathLike[str] | None = None) -> Diff:
        """Take `cwd`, or what is at the session's root now, as its workspace from here on.

        The folder that the agent runs in moves along, if there is such a one in it.
        Calls under way end here, and what they did in the old place is recorded. Returns how
        its files differ from those the session knew last.
        """
        return self.parts.browser.relocate(cwd)

    # --- listening and ending ------------------------------------------------------------

    def subscribe(self, size: int = 256, *, after: int | None = None) -> Subscription:
        """Every event and delta of this session object from now on.

        A late listener names the `seq` `after` which to catch up from the log. Close it, or use
        it in a `with` block. A slow listener loses deltas, never events.
        """
        return self.parts.log.subscribe(size, after)

    def emit(self, delta: Delta) -> None:
        """Hand a delta to the subscribers; it is not stored."""
        self.parts.log.listeners.put(delta)

    def close(self) -> None:
        """Let go of the session. Writes nothing but what is still buffered or not saved."""
        self.parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self.id} on {self.store.url or type(self.store).__name__}>"
