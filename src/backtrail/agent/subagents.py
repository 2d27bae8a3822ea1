"""Subagents: the tool `task` runs the loop once more, with a conversation of its own.

It is a log under the parent's session, `subagents/<id>`, with the prompt, the messages, the
result and what it used up. It never may do more than its parent, and a failing one is a
tool error. A log that cannot be written does not fail it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import BacktrailError
from ..events import Event, Format, Json, NewEvent, new_id
from ..events.calls import error_text
from ..events.calls import repair as repaired
from ..events.messages import answer_in, format_of, kind_of
from ..formats.messages import convert
from ..session.drive import carry_out
from ..session.listeners import Delta
from ..session.liveturn import LiveTurn
from ..session.toolcalls import result_event
from ..session.turns import Append, Do, End, ExitReason, Job, Limits, check_job, engine
from .compaction import Compaction
from .tools import ToolFailed

if TYPE_CHECKING:
    from .loop import Loop


def spawn(turn: LiveTurn, parent: Loop, prompt: str, description: str, call_id: str) -> str:
    """Run a subagent to its end; its answer."""
    if parent.depth >= parent.task_depth:
        raise ToolFailed(f"subagents may be {parent.task_depth} deep at the most")
    return Child(turn, parent, prompt, description, call_id).answer()


class ChildTurn(LiveTurn):
    """The turn of a subagent: its conversation is in memory, what it uses is its parent's."""

    def __init__(self, parent: LiveTurn, prompt: str, limits: Limits) -> None:
        message = {"role": "user", "content": prompt}
        event = Event(0, new_id(), "", "user_message", {"message": message})
        super().__init__(
            parent.log, parent.capture, event, limits, parent.is_over, parent.model, parent.host,
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

    def count(self, usage: Mapping[str, int] | None, cost_usd: float | None) -> None:
        super().count(usage, cost_usd)
        self.parent.count_extra(usage, cost_usd)

    def check(self) -> None:
        """Its own time is up: a tool error. The parent's: the turn ends."""
        self.parent.check()
        left = self.left()
        if left is not None and left <= 0:
            raise ToolFailed(f"it took over {self.limits.seconds:g} seconds")


class Child:
    """A subagent at work, in the thread of the tool: where its turn is recorded."""

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
        self._log = f"subagents/{self.id}"
        about = {"prompt": prompt, "description": description, "call": call_id}
        self._note("start", {**about, "depth": self._loop.depth})
        self._note("message", {"message": self._turn.spoken[0]})

    def answer(self) -> str:
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
        turn = self._turn
        for _ in carry_out(turn, engine(turn, self._loop, None), self):
            pass
        if turn.end.reason != "end_turn":
            raise ToolFailed(f"it ended with {turn.end.reason}: {turn.end.error or 'no answer'}")
        return answer_in((kind_of(message), message) for message in turn.spoken)

    # --- what its turn needs -------------------------------------------------------------

    def notify(self, delta: Delta) -> None:
        """Only its answer is for the listeners of its parent."""

    def append(self, request: Append) -> Event:
        """Add a message to its conversation, and to its log."""
        new = request.event
        message = new.data["message"]
        self._turn.spoken.append(message)
        self._note("message", {"message": message})
        return Event(0, new_id(), "", new.kind, dict(new.data))

    def run(self, jobs: list[Job]) -> list[Event]:
        """Run tools, one after another: what one does is the parent's call's own."""
        return [self._run_job(job) for job in jobs]

    def _run_job(self, job: Job) -> Event:
        """Run one tool; what it raises is its result."""
        details: dict[str, Json] = {"name": job.call.name}
        try:
            check_job(job, self._parent.cancelled())
            result = self._turn.host.wait_for(job.run) if job.is_async else job.run()
        except Exception as error:
            result, details["error"] = error_text(error), True
        asking = next(m for m in reversed(self._turn.spoken) if m.get("role") == "assistant")
        return self.append(Append(result_event(job.call.id, asking, result, details)))

    def do(self, request: Do) -> Json:
        """Call something for the loop."""
        return self._turn.host.wait_for(request.later) if request.later else request.now()

    def finish(self, turn: LiveTurn, end: End) -> Event:
        """It is over; its log says so with its answer."""
        turn.finished = True
        return Event(0, new_id(), "", "turn_end", {"reason": end.reason})

    def _note(self, kind: str, data: dict[str, Json]) -> None:
        # Not buffered: a log that fails must not fail the session when it is closed.
        log = self._turn.log
        try:
            log.store.append(log.id, [NewEvent(kind, data)], log=self._log)
        except BacktrailError as error:
            log.complain(self._log, str(error))
