"""Subagents: a loop inside a tool call, with a log of its own under the parent's session.

The parent sees its answer, and nothing else. What it does to files is inside the parent's
call, and so is the parent's. It never may do more than its parent, and a failing one is a
tool error. A log that cannot be written does not fail it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ..calls import answer_to
from ..errors import BacktrailError
from ..events import Json, new_id
from ..messages import as_message, text_of
from ..turns import Ask, LiveTurn, Pause
from .models.base import Reply
from .tools import ToolFailed

if TYPE_CHECKING:
    from .loop import Loop

DEPTH = 5
"""How deep subagents may have subagents."""

SECONDS = 1800.0
"""How long one may take."""


def spawn(turn: LiveTurn, parent: Loop, prompt: str, description: str = "") -> str:
    """Run a subagent to its end; its answer."""
    if parent.depth >= DEPTH:
        raise ToolFailed(f"subagents may be {DEPTH} deep at the most")
    child = Child(turn, replace(parent, depth=parent.depth + 1), prompt, description)
    return child.run()


class Child:
    """A subagent at work: its conversation is in memory, and in its log."""

    def __init__(self, turn: LiveTurn, loop: Loop, prompt: str, description: str) -> None:
        self.id = f"subagent_{new_id()[-12:]}"
        self._turn = turn
        self._loop = loop
        self._log = turn.session.subagent(self.id)
        self._messages: list[dict[str, Json]] = []
        self._usage: dict[str, int] = {}
        self._began = time.monotonic()
        self._note("start", {"prompt": prompt, "description": description})
        self._say({"role": "user", "content": prompt})

    def run(self) -> str:
        """The answer; `ToolFailed` if there is none."""
        try:
            text = self._answer()
        except ToolFailed as error:
            self._note("result", {"ok": False, "error": str(error), "usage": self._usage})
            raise
        self._note("result", {"ok": True, "text": text, "usage": self._usage})
        return text

    def _answer(self) -> str:
        for _ in range(self._loop.max_turns):
            if self._turn.cancelled():
                raise ToolFailed("the turn was cancelled")
            if time.monotonic() - self._began > SECONDS:
                raise ToolFailed(f"the subagent took over {SECONDS:g} seconds")
            reply = self._ask()
            self._say(reply.message)
            jobs = self._loop.jobs_for(self._turn, reply.message)
            if not jobs:
                return text_of(reply.message)
            for job in jobs:
                failed = job.refused is not None
                try:
                    result = job.refused if failed else job.run()
                except Exception as error:
                    result, failed = f"{type(error).__name__}: {error}", True
                text = result if isinstance(result, str) else str(result)
                self._say(answer_to(job.call.id, reply.message, text, failed=failed))
        raise ToolFailed("the subagent did not come to an end")

    def _ask(self) -> Reply:
        """Call the model, with the loop's patience."""
        flow = self._loop.replies(self._turn, list(self._messages))
        answer: Json = None
        try:
            while True:
                item = flow.send(answer)
                answer = self._do(item)
        except StopIteration as stop:
            reply: Reply = stop.value
            for name, number in reply.usage.items():
                self._usage[name] = self._usage.get(name, 0) + number
            self._turn.count(reply.usage, None)
            return reply
        except BacktrailError as error:
            raise ToolFailed(f"the subagent's model failed: {error}") from error

    def _do(self, item: object) -> Json:
        if isinstance(item, Ask):
            return next(part for part in item.model.stream(item.request) if hasattr(part, "usage"))
        if isinstance(item, Pause):
            time.sleep(item.seconds)
        return None

    def _say(self, message: Json) -> None:
        given = as_message(message)
        self._messages.append(given)
        self._note("message", {"message": given})

    def _note(self, kind: str, data: dict[str, Json]) -> None:
        try:
            self._log.append(data, kind=kind)
        except BacktrailError as error:
            self._turn.session._complain("subagent", str(error))
