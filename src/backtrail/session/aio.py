"""AsyncSession: a session for asyncio and trio.

It has the names and signatures of `Session` and works on the same stores. Store calls run
in worker threads (`aio_threads.py`), so the loop is never blocked.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import ParamSpec, Self, TypeVar, Unpack

import anyio

from ..events import Checkpoint, Event, Format, Json, NewEvent, Problem, SessionInfo
from ..events.calls import ToolCall
from ..events.history import Branch
from ..events.messages import message_event
from ..files.restore.conflicts import OnConflict
from ..stores.base import Store
from .aio_files import AsyncFiles
from .aio_listeners import AsyncSubscription
from .aio_stream import AsyncSending
from .filepoints import Mode, Scope
from .listeners import Delta
from .log import Turn, end_event, own_event
from .options import SessionOptions, checked, folder
from .points import Target
from .session import Session
from .threads import (
    AsyncSideLog,
    Follow,
    Loop,
    Pages,
    append,
    finish,
    patient,
    read,
    run,
    this_loop,
)
from .views import Rewind, State, user_message

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSession(AsyncFiles, AsyncSending):
    """One conversation. Made by `create`, `open`, `resume`, `latest` or `fork`.

    Any task of the loop it was made in may use it; turns are served one after another.
    """

    def __init__(self, session: Session, wait: float = 0.0) -> None:
        self._session = session
        self._wait = wait
        # Not a lock: a stream that is dropped may be closed by another task.
        self._turns = anyio.Semaphore(1)
        self._driver: int | None = None
        self._loop: Loop | None = None
        self._line = anyio.Lock()
        self._news: anyio.Event | None = None

    # --- beginning -----------------------------------------------------------------------

    @classmethod
    async def create(
        cls,
        store: Store | str | None = None,
        session_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """A new session; an id that exists is `AlreadyExists`."""
        given = checked("create", options)
        return await cls._begun(lambda more: Session.create(store, session_id, **more), given)

    @classmethod
    async def open(
        cls,
        store: Store | str | None = None,
        session_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """The session with this id or `key`, resumed if it exists, else created."""
        given = checked("open", options)
        return await cls._begun(lambda more: Session.open(store, session_id, **more), given)

    @classmethod
    async def resume(
        cls,
        store: Store | str | None,
        session_id: str,
        at: Target | None = None,
        replay_last_user_turn: bool = False,
        **options: Unpack[SessionOptions],
    ) -> Self:
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
        self,
        at: Target | None = None,
        *,
        session_id: str | None = None,
        into: str | os.PathLike[str] | None = None,
        copy_checkpoints: bool = False,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """A new session that begins with this one's history, up to `at` or to now."""

        fork = partial(self._session.fork, at, session_id=session_id)
        place = None if into is None else folder(into)

        def begin(more: SessionOptions) -> Session:
            return fork(into=place, copy_checkpoints=copy_checkpoints, **more)

        return await self._begun(begin, checked("fork", {"wait": self._wait, **options}))

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
    def agent(self) -> Callable[..., Json] | str | None:
        """The callable that answers a turn."""
        return self._session.agent

    @property
    def problems(self) -> list[Problem]:
        """What a failing store did not take, with `on_error="record"`."""
        return self._session.problems

    # --- writing -------------------------------------------------------------------------

    async def append(
        self,
        message: object,
        *,
        id: str | None = None,
        kind: str | None = None,
        format: Format | None = None,
        usage: Mapping[str, Json] | None = None,
        cost_usd: float | None = None,
        ts: str | None = None,
    ) -> Event:
        """Append one message; see `Session.append`."""
        event = message_event(message, id, kind, format, usage, cost_usd, ts)
        return (await self._append([event]))[0]

    async def extend(self, messages: Sequence[object]) -> list[Event]:
        """Append several messages as one batch, or what is new in a whole conversation."""
        return await self._write(self._session.extend, messages)

    async def record(
        self, kind: str, data: Mapping[str, Json] | None = None, *, id: str | None = None
    ) -> Event:
        """Append an event of your own kind."""
        return (await self._append([own_event(kind, data, id)]))[0]

    async def answer(self, call_id: str, result: object) -> Event:
        """Settle a call that has no result with what came of it; see `Session.answer`."""
        return await self._write(self._session.answer, call_id, result)

    async def give_up(self, call_id: str) -> Event:
        """Settle a call that has no result as interrupted."""
        return await self._write(self._session.give_up, call_id)

    async def update(self, **changes: Json) -> SessionInfo:
        """Change title, key, model, agent_name, cwd, tags or metadata."""
        return await run(self._session.update, **changes)

    async def end(self, reason: str = "end_turn") -> Event:
        """Note that the session is over, and why. It can be resumed all the same."""
        return (await self._append([end_event(reason)]))[0]

    async def _append(self, events: list[NewEvent], *, spans: bool = True) -> list[Event]:
        if self._loop is None:
            self._loop = this_loop()
        try:
            return await append(self._loop, self._line, self._session, events, spans=spans)
        finally:
            self._tell()

    async def _write(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn` in a worker thread, and wake those who listen to this session."""
        try:
            return await run(fn, *args, **kwargs)
        finally:
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()

    def _next_news(self) -> anyio.Event:
        """What is set when there is something new; made only where somebody listens."""
        if self._news is None:
            self._news = anyio.Event()
        return self._news

    @asynccontextmanager
    async def turn(
        self, content: str | list[Json] | Mapping[str, Json], *, id: str | None = None
    ) -> AsyncIterator[AsyncTurn]:
        """One turn around any code, also one that was begun before; see `Session.turn`."""
        session = self._session
        async with self._driving():
            turn = await self._write(session._begin_turn, user_message(content), id)
            try:
                yield AsyncTurn(self, turn)
            except BaseException as error:
                await finish(partial(session._end_turn, turn, error))
                raise
            else:
                await finish(partial(session._end_turn, turn, None))
            finally:
                self._tell()

    @asynccontextmanager
    async def _driving(self) -> AsyncIterator[None]:
        """Turns and rewinds: one task at a time; a task may rewind within its own turn."""
        task = anyio.get_current_task().id
        if self._driver == task:
            yield
            return
        async with self._turns:
            lease = ExitStack()
            try:
                await patient(
                    lambda: run(lambda: lease.enter_context(self._session._leased(0))),
                    self._wait,
                )
                self._driver = task
                yield
            finally:
                self._driver = None
                await finish(lease.close)

    def log(self, name: str) -> AsyncSideLog:
        """A side log, such as "transcript"; its appends are buffered."""
        return AsyncSideLog(self._session.log(name))

    def subagent(self, id: str) -> AsyncSideLog:
        """The log of a subagent."""
        return self.log(f"subagents/{id}")

    # --- going back ----------------------------------------------------------------------

    async def checkpoint(
        self,
        label: str | None = None,
        *,
        at: Target | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Checkpoint:
        """Mark a point to go back to: now, or the event `at`."""
        return await self._write(self._session.checkpoint, label, at=at, metadata=metadata)

    async def delete_checkpoint(self, target: Target) -> Checkpoint:
        """Delete a checkpoint; see `Session.delete_checkpoint`."""
        return await self._write(self._session.delete_checkpoint, target)

    async def rewind(
        self,
        to: Target | None = None,
        *,
        before: Target | None = None,
        scope: Scope = "both",
        mode: Mode = "mine",
        paths: Collection[str] | None = None,
        on_conflict: OnConflict = "keep",
        dry_run: bool = False,
        force: bool = False,
    ) -> Rewind:
        """Continue from an earlier point: `to` keeps that event, `before` drops it too."""
        rewind = partial(self._session.rewind, to, before=before, scope=scope, mode=mode)
        move = partial(rewind, paths=paths, on_conflict=on_conflict, force=force)
        return await self._move(move, dry_run)

    async def undo(
        self, *, on_conflict: OnConflict = "keep", dry_run: bool = False, force: bool = False
    ) -> Rewind:
        """Take back the last turn or rewind that is not undone yet, files included."""
        undo = partial(self._session.undo, on_conflict=on_conflict, force=force)
        return await self._move(undo, dry_run)

    async def redo(
        self, *, on_conflict: OnConflict = "keep", dry_run: bool = False, force: bool = False
    ) -> Rewind:
        """Take back the last undo, if nothing was said or done since."""
        redo = partial(self._session.redo, on_conflict=on_conflict, force=force)
        return await self._move(redo, dry_run)

    async def _move(self, move: Callable[..., Rewind], dry_run: bool) -> Rewind:
        if dry_run:
            return await run(move, dry_run=True)
        async with self._driving():
            return await self._write(move)

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
        self,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        kinds: Collection[str] | None = None,
    ) -> AsyncIterator[Event]:
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
        return Follow(self._session, after)

    # --- listening -----------------------------------------------------------------------

    def subscribe(self, size: int = 256, *, after: int | None = None) -> AsyncSubscription:
        """Every event and delta of this session object from now on, or `after` a `seq`.

        Close it, or use it in an `async with` block.
        """
        return AsyncSubscription(self, size, after)

    async def emit(self, delta: Delta) -> None:
        """Hand a delta to the subscribers; it is not stored."""
        await self._write(self._session.emit, delta)

    # --- ending --------------------------------------------------------------------------

    async def close(self) -> None:
        """Let go of the session. Writes nothing but what is still buffered or not saved."""
        try:
            await finish(self._session.close)
        finally:
            self._tell()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._session)[1:]}"


class AsyncTurn:
    """A turn under way: what was said, and what is appended to it."""

    def __init__(self, session: AsyncSession, turn: Turn) -> None:
        self.session = session
        self._turn = turn

    @property
    def event(self) -> Event:
        """What the user said."""
        return self._turn.event

    @property
    def is_new(self) -> bool:
        """Whether it was said just now."""
        return self._turn.is_new

    @property
    def ended(self) -> bool:
        """Whether it needs no work any more."""
        return self._turn.ended

    async def append(self, message: object, **details: Json) -> Event:
        """Append one message of the turn; see `Session.append`."""
        return await self.session.append(message, **details)

    async def extend(self, messages: Sequence[object]) -> list[Event]:
        """Append messages, or what is new in a whole conversation."""
        return await self.session.extend(messages)

    async def messages(self) -> list[dict[str, Json]]:
        """The whole conversation, this turn included."""
        return await self.session.messages()
