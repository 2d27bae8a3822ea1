"""AsyncSession: a session for asyncio and trio.

It has the names and signatures of `Session` and works on the same stores. Store calls run
in worker threads (`threads.py`), so the loop is never blocked. A method that does just what that
of `Session` does, in such a thread, is made of it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack

from ..events import Event, Format, Json, Problem, SessionInfo
from ..events.messages import message_event
from ..files.differences import Diff
from ..stores.base import Store
from .aio_drive import Turning
from .aio_parts import AsyncParts, AsyncStream, AsyncSubscription, AsyncTurn
from .keywords import SessionOptions, checked, folder
from .parts import Parts
from .points import Target
from .session import Session
from .threads import AsyncSideLog, Follow, Pages, finish, patient, read, run
from .toolcalls import Call
from .turns import Content, Limits, Result, Retry, limits_of
from .views import end_event, own_event, user_message

P = ParamSpec("P")
T = TypeVar("T")

Sync = Callable[Concatenate[Session, P], T]
Async = Callable[Concatenate["AsyncSession", P], Coroutine[Any, Any, T]]


def _reading(method: Sync[P, T]) -> Async[P, T]:
    """A method of `Session` that waits for no lock, in a worker thread."""

    @wraps(method)
    async def waited(self: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await read(method, self._session, *args, **kwargs)

    return waited


def _writing(method: Sync[P, T]) -> Async[P, T]:
    """A method of `Session` in a worker thread; listeners are woken."""

    @wraps(method)
    async def waited(self: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._parts.write(method, self._session, *args, **kwargs)

    return waited


def _moving(method: Sync[P, T]) -> Async[P, T]:
    """A way back: one task at a time, but for a preview."""

    @wraps(method)
    async def waited(self: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs.get("dry_run"):
            return await run(method, self._session, *args, **kwargs)
        async with self._parts.driving():
            return await self._parts.write(method, self._session, *args, **kwargs)

    return waited


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

    extend = _writing(Session.extend)

    async def record(
        self, kind: str, data: Mapping[str, Json] | None = None, *, id: str | None = None
    ) -> Event:
        """Append an event of your own kind."""
        return (await self._parts.append([own_event(kind, data, id)]))[0]

    answer = _writing(Session.answer)
    give_up = _writing(Session.give_up)

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

    checkpoint = _writing(Session.checkpoint)
    delete_checkpoint = _writing(Session.delete_checkpoint)
    rewind = _moving(Session.rewind)
    undo = _moving(Session.undo)
    redo = _moving(Session.redo)

    # --- reading -------------------------------------------------------------------------

    info = _reading(Session.info)
    messages = _reading(Session.messages)
    history = _reading(Session.history)

    def events(
        self, *, after: int = 0, until: int | None = None, limit: int | None = None,
        reverse: bool = False, kinds: Collection[str] | None = None,
    ) -> AsyncIterator[Event]:  # fmt: skip
        """Everything in the main log, the abandoned too."""
        read = partial(self._session.events, after=after, until=until, limit=limit)
        return Pages(partial(read, reverse=reverse, kinds=kinds))

    pending = _reading(Session.pending)
    state = _reading(Session.state)
    as_map = _reading(Session.as_map)
    branches = _reading(Session.branches)
    checkpoints = _reading(Session.checkpoints)

    def follow(self, after: int | None = None) -> AsyncIterator[Event]:
        """Events as they come, from any process, until the session is closed.

        Without `after`, what this session object appends counts from now on, what others
        append from the first step on.
        """
        return Follow(self.parts.log, after)

    # --- files ---------------------------------------------------------------------------

    diff = _reading(Session.diff)
    blame = _reading(Session.blame)
    changes = _reading(Session.changes)
    not_captured = _reading(Session.not_captured)

    async def relocate(self, cwd: str | os.PathLike[str] | None = None) -> Diff:
        """Take another directory as the session's workspace; see `Session.relocate`."""
        return await run(self._session.relocate, None if cwd is None else folder(cwd))

    # --- listening -----------------------------------------------------------------------

    def subscribe(self, size: int = 256, *, after: int | None = None) -> AsyncSubscription:
        """Every event and delta of this session object from now on, or `after` a `seq`.

        Close it, or use it in an `async with` block.
        """
        return AsyncSubscription(self._parts, size, after)

    emit = _writing(Session.emit)

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
