"""AsyncSession: a session for asyncio and trio.

It has the names and signatures of `Session` and works on the same stores. Store calls run
in worker threads (`threads.py`), so the loop is never blocked.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Literal, Self, Unpack

from ..events import Checkpoint, Event, Format, Json, Problem, SessionInfo
from ..events.calls import ToolCall
from ..events.history import Branch
from ..events.messages import message_event
from ..files.changes.blame import BlameLine
from ..files.differences import Diff
from ..files.restore.conflicts import Decisions
from ..stores.base import Store
from .aio_drive import Turning
from .aio_parts import AsyncParts, AsyncStream, AsyncSubscription, AsyncTurn
from .fileplans import Mode, Scope
from .filepoints import TurnChanges
from .keywords import SessionOptions, checked, folder
from .listeners import Delta
from .parts import Parts
from .points import Target
from .session import Session
from .threads import AsyncSideLog, Follow, Pages, finish, patient, read, run
from .toolcalls import Call
from .turns import Content, Limits, Result, Retry, limits_of
from .views import Rewind, State, end_event, own_event, user_message


class AsyncSession:
    """One conversation. Made by `create`, `open`, `resume`, `latest` or `fork`.

    Any task of the loop it was made in may use it; turns are served one after another.
    """

    def __init__(self, session: Session, wait: float = 0.0) -> None:
        self._session = session
        self._parts = AsyncParts(session.parts, wait)

    # --- beginning -----------------------------------------------------------------------

    @classmethod
    async def create(
        cls, store: Store | str | None = None, session_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:  # fmt: skip
        """A new session; an id that exists is `AlreadyExists`."""
        given = checked("create", options)
        return await cls._begun(lambda more: Session.create(store, session_id, **more), given)

    @classmethod
    async def open(
        cls, store: Store | str | None = None, session_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:  # fmt: skip
        """The session with this id or `key`, resumed if it exists, else created."""
        given = checked("open", options)
        return await cls._begun(lambda more: Session.open(store, session_id, **more), given)

    @classmethod
    async def resume(
        cls, store: Store | str | None, session_id: str, at: Target | None = None,
        replay_last_user_turn: bool = False, **options: Unpack[SessionOptions],
    ) -> Self:  # fmt: skip
        """A session that exists, to go on with; see `Session.resume`."""
        given = checked("resume", options)
        return await cls._begun(
            lambda more: Session.resume(store, session_id, at, replay_last_user_turn, **more), given
        )

    @classmethod
    async def latest(
        cls, store: Store | str | None = None, **options: Unpack[SessionOptions]
    ) -> Self:
        """The newest session of `cwd`, by default the current directory."""
        given = checked("latest", options)
        return await cls._begun(lambda more: Session.latest(store, **more), given)

    @classmethod
    async def _begun(
        cls, begin: Callable[[SessionOptions], Session], options: SessionOptions
    ) -> Self:
        wait = options.get("wait", 0.0)
        given: SessionOptions = {**options, "wait": 0.0}
        made: list[Session] = []
        try:
            await patient(lambda: run(lambda: made.append(begin(given))), wait)
            return cls(made[0], wait)
        except BaseException:
            if made:
                await finish(made[0].close)
            raise

    async def fork(
        self, at: Target | None = None, *, session_id: str | None = None,
        into: str | os.PathLike[str] | None = None, copy_checkpoints: bool = False,
        **options: Unpack[SessionOptions],
    ) -> Self:  # fmt: skip
        """A new session that begins with this one's history, up to `at` or to now."""

        fork = partial(self._session.fork, at, session_id=session_id)
        place = None if into is None else folder(into)

        def begin(more: SessionOptions) -> Session:
            return fork(into=place, copy_checkpoints=copy_checkpoints, **more)

        return await self._begun(begin, checked("fork", {"wait": self._parts.wait, **options}))

    # --- what it is ----------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The session's id."""
        return self._session.id

    @property
    def store(self) -> Store:
        """The store it lives in."""
        return self._session.store

    @property
    def parts(self) -> Parts:
        """What it is made of."""
        return self._session.parts

    @property
    def agent(self) -> Callable[..., object] | str | None:
        """The callable that answers a turn."""
        return self._session.agent

    @property
    def problems(self) -> list[Problem]:
        """What a failing store did not take, with `on_error="record"`."""
        return self._session.problems

    # --- writing -------------------------------------------------------------------------

    async def append(
        self, message: object, *, id: str | None = None, kind: str | None = None,
        format: Format | None = None, usage: Mapping[str, Json] | None = None,
        cost_usd: float | None = None, ts: str | None = None,
    ) -> Event:  # fmt: skip
        """Append one message; see `Session.append`."""
        event = message_event(message, id, kind, format, usage, cost_usd, ts)
        return (await self._parts.append([event]))[0]

    async def extend(self, messages: Sequence[object]) -> list[Event]:
        """Append several messages as one batch, or what is new in a whole conversation."""
        return await self._parts.write(self._session.extend, messages)

    async def record(
        self, kind: str, data: Mapping[str, Json] | None = None, *, id: str | None = None
    ) -> Event:
        """Append an event of your own kind."""
        return (await self._parts.append([own_event(kind, data, id)]))[0]

    async def answer(self, call_id: str, result: object) -> Event:
        """Settle a call that has no result with what came of it; see `Session.answer`."""
        return await self._parts.write(self._session.answer, call_id, result)

    async def give_up(self, call_id: str) -> Event:
        """Settle a call that has no result as interrupted."""
        return await self._parts.write(self._session.give_up, call_id)

    async def update(self, **changes: Json) -> SessionInfo:
        """Change title, key, model, agent_name, cwd, tags or metadata."""
        return await run(self._session.update, **changes)

    async def end(self, reason: str = "end_turn") -> Event:
        """Note that the session is over, and why. It can be resumed all the same."""
        return (await self._parts.append([end_event(reason)]))[0]

    @asynccontextmanager
    async def turn(
        self, content: str | list[Json] | Mapping[str, Json], *, id: str | None = None
    ) -> AsyncIterator[AsyncTurn]:
        """One turn around any code, also one that was begun before; see `Session.turn`."""
        turns, session = self.parts.turns, self._session
        async with self._parts.driving():
            turn = await self._parts.write(turns.begin, session, user_message(content), id)
            try:
                yield AsyncTurn(self, turn)
            except BaseException as error:
                await finish(partial(turns.end, turn, error))
                raise
            else:
                await finish(partial(turns.end, turn, None))
            finally:
                self._parts.notify()

    async def send(
        self, content: Content, *, id: str | None = None, retry: Retry = "errors",
        model: str | None = None, max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> Result:  # fmt: skip
        """Say something and run the turn to its end; see `Session.send`."""
        begin = self.parts.driver.saying(content, id, retry)
        return await Turning(self._parts, begin, model, limits_of(max_turns, budget)).finished()

    def stream(
        self, content: Content, *, id: str | None = None, retry: Retry = "errors",
        model: str | None = None, max_turns: int | None = None,
        budget: float | Limits | None = None,
    ) -> AsyncStream:  # fmt: skip
        """`send`, giving every delta and event as it comes; the last is a delta "done".

        A caller that leaves it early closes it (`async with`, or `contextlib.aclosing`), which
        ends the turn. One that is only forgotten is ended by the next turn, or with the session.
        """
        begin = self.parts.driver.saying(content, id, retry)
        return AsyncStream(Turning(self._parts, begin, model, limits_of(max_turns, budget)))

    async def proceed(
        self, *, pending: Literal["fail", "retry"] = "fail", model: str | None = None,
        max_turns: int | None = None, budget: float | Limits | None = None,
    ) -> Result:  # fmt: skip
        """Finish a turn that a crash cut short; see `Session.proceed`."""
        begin = self.parts.driver.proceeding(pending)
        return await Turning(self._parts, begin, model, limits_of(max_turns, budget)).finished()

    async def cancel(self) -> None:
        """End the turn under way, with `interrupted`; tools that run are stopped."""
        self._session.cancel()
        if self._parts.stoppable is not None:
            self._parts.stoppable.cancel()

    def tool(
        self, name: str, input: Json = None, *, id: str | None = None,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> AbstractAsyncContextManager[Call]:  # fmt: skip
        """A bracket around a tool call; see `Session.tool`."""
        return self._parts.tool(name, input, id, paths)

    def log(self, name: str) -> AsyncSideLog:
        """A side log, such as "transcript"; its appends are buffered."""
        return AsyncSideLog(self._session.log(name))

    def subagent(self, id: str) -> AsyncSideLog:
        """The log of a subagent."""
        return self.log(f"subagents/{id}")

    # --- going back ----------------------------------------------------------------------

    async def checkpoint(
        self, label: str | None = None, *, at: Target | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Checkpoint:  # fmt: skip
        """Mark a point to go back to: now, or the event `at`."""
        return await self._parts.write(self._session.checkpoint, label, at=at, metadata=metadata)

    async def delete_checkpoint(self, target: Target) -> Checkpoint:
        """Delete a checkpoint; see `Session.delete_checkpoint`."""
        return await self._parts.write(self._session.delete_checkpoint, target)

    async def rewind(
        self, to: Target | None = None, *, before: Target | None = None,
        turn: Event | int | str | None = None, scope: Scope = "both",
        mode: Mode = "mine", paths: Collection[str] | None = None,
        on_conflict: Decisions | None = None, dry_run: bool = False, force: bool = False,
        expected: str | None = None,
    ) -> Rewind:  # fmt: skip
        """Continue from an earlier point: `to` keeps that event, `before` drops it too."""
        rewind = partial(self._session.rewind, to, before=before, turn=turn, scope=scope, mode=mode)
        move = partial(rewind, paths=paths, on_conflict=on_conflict, force=force, expected=expected)
        return await self._move(move, dry_run)

    async def undo(
        self, *, on_conflict: Decisions = "keep", dry_run: bool = False, force: bool = False,
        expected: str | None = None,
    ) -> Rewind:  # fmt: skip
        """Take back the last turn or rewind that is not undone yet, files included."""
        undo = partial(self._session.undo, on_conflict=on_conflict, force=force, expected=expected)
        return await self._move(undo, dry_run)

    async def redo(
        self, *, on_conflict: Decisions = "keep", dry_run: bool = False, force: bool = False,
        expected: str | None = None,
    ) -> Rewind:  # fmt: skip
        """Take back the last undo, if nothing was said or done since."""
        redo = partial(self._session.redo, on_conflict=on_conflict, force=force, expected=expected)
        return await self._move(redo, dry_run)

    async def _move(self, move: Callable[..., Rewind], dry_run: bool) -> Rewind:
        if dry_run:
            return await run(move, dry_run=True)
        async with self._parts.driving():
            return await self._parts.write(move)

    # --- reading -------------------------------------------------------------------------

    async def info(self) -> SessionInfo:
        """The session's record."""
        return await read(self._session.info)

    async def messages(
        self, format: Format | None = None, *, repair: bool = True
    ) -> list[dict[str, Json]]:
        """The conversation as it stands; see `Session.messages`."""
        return await read(self._session.messages, format, repair=repair)

    async def history(self) -> list[Event]:
        """The live path through the main log, oldest first."""
        return await read(self._session.history)

    def events(
        self, *, after: int = 0, until: int | None = None, limit: int | None = None,
        reverse: bool = False, kinds: Collection[str] | None = None,
    ) -> AsyncIterator[Event]:  # fmt: skip
        """Everything in the main log, the abandoned too."""
        read = partial(self._session.events, after=after, until=until, limit=limit)
        return Pages(partial(read, reverse=reverse, kinds=kinds))

    async def pending(self) -> list[ToolCall]:
        """Tool calls that have no result yet."""
        return await read(self._session.pending)

    async def state(self) -> State:
        """Messages, usage, turns and open calls, for a loop of your own."""
        return await read(self._session.state)

    async def as_map(self) -> dict[str, Json]:
        """The conversation as `session_id`, `messages`, `last_user`, `last_assistant`."""
        return await read(self._session.as_map)

    async def branches(self) -> list[Branch]:
        """Ways the conversation went and was taken back from."""
        return await read(self._session.branches)

    async def checkpoints(self) -> list[Checkpoint]:
        """The session's checkpoints, oldest first."""
        return await read(self._session.checkpoints)

    def follow(self, after: int | None = None) -> AsyncIterator[Event]:
        """Events as they come, from any process, until the session is closed.

        Without `after`, what this session object appends counts from now on, what others
        append from the first step on.
        """
        return Follow(self.parts.log, after)

    # --- files ---------------------------------------------------------------------------

    async def diff(
        self, a: Target | None = None, b: Target | None = None, *,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> Diff:  # fmt: skip
        """What differs in the files between two points; see `Session.diff`."""
        return await read(self._session.diff, a, b, paths=paths)

    async def blame(
        self, path: str | os.PathLike[str], at: Target | None = None
    ) -> list[BlameLine]:
        """The author of each line of a file; see `Session.blame`."""
        return await read(self._session.blame, path, at)

    async def changes(self) -> list[TurnChanges]:
        """What happened to the files, turn by turn: by which call, or by others."""
        return await read(self._session.changes)

    async def not_captured(self) -> list[tuple[str, str, int]]:
        """What the last scan did not keep: path, reason, size."""
        return await read(self._session.not_captured)

    async def relocate(self, cwd: str | os.PathLike[str] | None = None) -> Diff:
        """Take another directory as the session's workspace; see `Session.relocate`."""
        return await run(self._session.relocate, None if cwd is None else folder(cwd))

    # --- listening -----------------------------------------------------------------------

    def subscribe(self, size: int = 256, *, after: int | None = None) -> AsyncSubscription:
        """Every event and delta of this session object from now on, or `after` a `seq`.

        Close it, or use it in an `async with` block.
        """
        return AsyncSubscription(self._parts, size, after)

    async def emit(self, delta: Delta) -> None:
        """Hand a delta to the subscribers; it is not stored."""
        await self._parts.write(self._session.emit, delta)

    # --- ending --------------------------------------------------------------------------

    async def close(self) -> None:
        """Let go of the session. Writes nothing but what is still buffered or not saved."""
        try:
            await finish(self._session.close)
        finally:
            self._parts.notify()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._session)[1:]}"
