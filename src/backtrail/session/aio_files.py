"""The files half of `AsyncSession`: brackets around calls, and what changed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial

from ..events import Json
from ..files.differences import Diff
from .filepoints import TurnChanges
from .options import folder
from .points import Target
from .session import Session
from .threads import finish, read, run
from .watching import Call


class AsyncFiles(ABC):
    """What a session knows about the files of its directory."""

    _session: Session

    @abstractmethod
    def _tell(self) -> None:
        """Wake those who listen to the session."""

    @asynccontextmanager
    async def tool(
        self,
        name: str,
        input: Json = None,
        *,
        id: str | None = None,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> AsyncIterator[Call]:
        """A bracket around a tool call; see `Session.tool`."""
        call = Call(name, input, id)
        await run(self._session._recorder.drop_asked, id)
        bracket = await run(self._session._begin_call, call, paths)
        try:
            yield call
        except BaseException as error:
            # A cancelled call is recorded too.
            await finish(partial(self._session._end_call, call, bracket, error))
            self._tell()
            raise
        await finish(partial(self._session._end_call, call, bracket, None))
        self._tell()

    async def diff(
        self,
        a: Target | None = None,
        b: Target | None = None,
        *,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> Diff:
        """What differs in the files between two points; see `Session.diff`."""
        return await read(self._session.diff, a, b, paths=paths)

    async def changes(self) -> list[TurnChanges]:
        """What happened to the files, turn by turn: by which call, or by others."""
        return await read(self._session.changes)

    async def not_captured(self) -> list[tuple[str, str, int]]:
        """What the last scan did not keep: path, reason, size."""
        return await read(self._session.not_captured)

    async def relocate(self, cwd: str | os.PathLike[str] | None = None) -> Diff:
        """Take another directory as the session's workspace; see `Session.relocate`."""
        return await run(self._session.relocate, None if cwd is None else folder(cwd))
