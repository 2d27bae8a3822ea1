"""What each tool of a `ToolNode` does to the files, recorded in the session of its thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...session import threads
from .saver import BacktrailSaver

if TYPE_CHECKING:
    from ...session.session import Session


class Files:
    """Brackets around tool calls: `ToolNode(tools, wrap_tool_call=f, awrap_tool_call=f.later)`.

    The calls of a thread then are actions of its session, each with what it changed below
    `cwd`, so that a rewind takes conversation and files together.
    """

    def __init__(self, saver: BacktrailSaver, cwd: str | os.PathLike[str]) -> None:
        self._saver = saver
        self._cwd = Path(cwd)
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def session(self, thread_id: str) -> Session:
        """The session of a thread, with its files."""
        with self._lock:
            found = self._sessions.get(thread_id)
            if found is None:
                found = self._saver.session(thread_id, cwd=self._cwd, lease=None)
                self._sessions[thread_id] = found
            return found

    def close(self) -> None:
        """Let go of the sessions."""
        with self._lock:
            while self._sessions:
                self._sessions.popitem()[1].close()

    def __call__(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a tool within a bracket."""
        with self._call(request) as call:
            result = handler(request)
            call.result = _said(result)
        return result

    async def later(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same for asynchronous tools."""
        bracket = self._call(request)
        call = await threads.run(bracket.__enter__)
        try:
            result = await handler(request)
            call.result = _said(result)
        except BaseException as error:
            failure = error
            await threads.run(bracket.__exit__, type(failure), failure, None)
            raise
        await threads.run(bracket.__exit__, None, None, None)
        return result

    def _call(self, request: Any) -> Any:
        thread_id = str(request.runtime.config["configurable"]["thread_id"])
        given = request.tool_call
        return self.session(thread_id).tool(given["name"], dict(given["args"]))


def _said(result: Any) -> str:
    text = getattr(result, "text", None)
    return text if isinstance(text, str) else type(result).__name__
