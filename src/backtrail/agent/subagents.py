"""Subagents: the tool `task` runs the loop once more, with a conversation of its own.

It is a log under the parent's session, `subagents/<id>`, with the prompt, the messages, the
result and what it used up. It never may do more than its parent, and a failing one is a
tool error. A log that cannot be written does not fail it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import BacktrailError
from ..events import Event, Format, Json, NewEvent, new_id
from ..events.calls import answer_to, told_of
from ..events.calls import repair as repaired
from ..events.messages import answer_in, as_message, format_of, kind_of
from ..formats.messages import convert
from ..session.live import Failed, LiveTurn, Reading
from ..session.turns import Ask, Do, End, ExitReason, Job, Limits, Pause, Run, Said, check_job
from .compaction import Compaction
from .tools import ToolFailed

if TYPE_CHECKING:
    from .loop import Loop


def spawn(turn: LiveTurn, parent: Loop, prompt: str, description: str, call_id: str) -> str:
    """Run a subagent to its end; its answer."""
    if parent.depth >= parent.task_depth:
        raise ToolFailed(f"subagents may be {parent.task_depth} deep at the most")
    return Child(turn, parent, prompt, description, call_id).run()


class ChildTurn(LiveTurn):
    """The turn of a subagent: its conversation is in memory, what it uses is its parent's."""

    def __init__(self, parent: LiveTurn, prompt: str, limits: Limits) -> None:
        message = {"role": "user", "content": prompt}
        event = Event(0, new_id(), "", "user_message", {"message": message})
        super().__init__(
            parent.session, event, limits, parent.is_over, parent.model, parent.driver,
            parent.recall,
        )  # fmt: skip
        self.parent = parent
        self.is_compacted = False
        self.spoken: list[dict[str, Json]] = [message]

    def messages(self, format: Format | None = None) -> list[dict[str, Json]]:
        if format is None:
            return list(self.spoken)
        return repaired(convert([(m, format_of(m)) for m in self.spoken], format))

    def recalled(self, format: Format) -> list[dict[str, Json]]:
        """The same."""
        return self.messages(format)

    def said(self) -> list[dict[str, Json]]:
        return self.spoken[1:]

    def spent(self) -> ExitReason | None:
        return super().spent() or self.parent.spent()


class Child:
    """A subagent at work: carries out what its loop asks for, in the thread of the tool."""

    def __init__(
        self, turn: LiveTurn, parent: Loop, prompt: str, description: str, call_id: str
    ) -> None:
        self.id = f"subagent_{new_id()[-12:]}"
        limits = Limits(parent.max_turns, seconds=parent.task_seconds)
        self._parent = turn
        self._turn = ChildTurn(turn, prompt, limits)
        above = parent.hooks.session_id or turn.session.id
        hooks = replace(parent.hooks, session_id=self.id, parent_session_id=above)
        # Its window is its parent's, but its conversation is not in the log to be compacted.
        self._loop = replace(
            parent, depth=parent.depth + 1, hooks=hooks, compaction=Compaction(), limits=Limits()
        )
        self._end = End("end_turn")
        self._log = f"subagents/{self.id}"
        about = {"prompt": prompt, "description": description, "call": call_id}
        self._note("start", {**about, "depth": self._loop.depth})
        self._note("message", {"message": self._turn.spoken[0]})

    def run(self) -> str:
        """The answer; `ToolFailed` if there is none."""
        try:
            text = self._answer()
        except BaseException as error:
            known = isinstance(error, ToolFailed)
            why = str(error) if known else f"{type(error).__name__}: {error}"
            self._note("result", {"ok": False, "error": why, **self._used()})
            if not isinstance(error, Exception):
                raise
            raise ToolFailed(f"the subagent failed: {why}") from error
        self._note("result", {"ok": True, "text": text, **self._used()})
        return text

    def _used(self) -> dict[str, Json]:
        cost = self._turn.cost_usd
        return {"usage": self._turn.usage} | ({} if cost is None else {"cost_usd": cost})

    def _answer(self) -> str:
        flow = self._loop(self._turn)
        answer: Json = None
        try:
            while True:
                self._check()
                failed = isinstance(answer, Failed)
                item = flow.throw(answer.error) if failed else flow.send(answer)
                answer = self._do(item)
                if isinstance(item, End):
                    break
        except StopIteration:
            pass
        finally:
            flow.close()
        if self._end.reason != "end_turn":
            raise ToolFailed(f"it ended with {self._end.reason}: {self._end.error or 'no answer'}")
        return answer_in((kind_of(message), message) for message in self._turn.spoken)

    def _check(self) -> None:
        """Its own time is up: a tool error. The parent's: the turn ends."""
        self._parent.check()
        left = self._turn.left()
        if left is not None and left <= 0:
            raise ToolFailed(f"it took over {self._turn.limits.seconds:g} seconds")

    def _do(self, item: object) -> Json:
        """Carry out one request of the loop."""
        if isinstance(item, Said):
            self._turn.count(item.usage, item.cost_usd)
            self._parent.count_extra(item.usage, item.cost_usd)
            self._say(item.message)
        elif isinstance(item, Ask):
            return self._ask(item)
        elif isinstance(item, Run):
            return [self._run_job(job) for job in item.jobs]
        elif isinstance(item, Do):
            return _tried(lambda: self._wait(item.later) if item.later else item.now())
        elif isinstance(item, Pause):
            end = time.monotonic() + item.seconds
            while (left := end - time.monotonic()) > 0:
                self._check()
                time.sleep(min(left, 0.05))
        elif isinstance(item, End):
            self._end = item
        return None

    def _wait(self, make: Json) -> Json:
        return self._turn.driver.wait_for(make)

    def _ask(self, ask: Ask) -> Json:
        reading = Reading(lambda: ask.model.stream(ask.request))
        try:
            while True:
                part = reading.next(self._check)
                if isinstance(part, Failed) or not hasattr(part, "text"):
                    return part
        finally:
            reading.close()

    def _run_job(self, job: Job) -> Json:
        """Run one tool; what it raises is its result."""
        failed = False
        try:
            check_job(job, self._parent.cancelled())
            result = self._wait(job.run) if job.is_async else job.run()
        except Exception as error:
            result, failed = told_of(error), True
        text = result if isinstance(result, str) else _text(result)
        asking = next(m for m in reversed(self._turn.spoken) if m.get("role") == "assistant")
        self._say(answer_to(job.call.id, asking, text, failed=failed))
        return text

    def _say(self, message: Json) -> None:
        given = as_message(message)
        self._turn.spoken.append(given)
        self._note("message", {"message": given})

    def _note(self, kind: str, data: dict[str, Json]) -> None:
        # Not buffered: a log that fails must not fail the session when it is closed.
        session = self._parent.session
        try:
            session.store.append(session.id, [NewEvent(kind, data)], log=self._log)
        except BacktrailError as error:
            session._complain(self._log, str(error))


def _text(result: Json) -> str:
    import msgspec

    return "" if result is None else msgspec.json.encode(result).decode()


def _tried(fn: Callable[[], Json]) -> Json:
    try:
        return fn()
    except Exception as error:
        return Failed(error)
