"""The built-in agent: ask the model, run its tools, until it stops.

The loop is a plain generator. It yields what was said and requests (`Ask`, `Run`, `Pause`),
which the session's driver carries out, sync or async. It keeps no conversation: each round
asks the log, so a turn can be finished by another process.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec

from ..calls import ToolCall, pending
from ..events import Format, Json
from ..formats.messages import convert
from ..messages import format_of
from ..turns import Ask, End, ExitReason, Job, LiveTurn, Pause, Run, Said
from .compaction import Compaction
from .hooks import Hooks, Veto
from .models.base import Model, ModelFailed, Reply, Request, ToolSpec
from .models.prices import cost
from .permissions import Permissions
from .tools import Context, Tool, ToolFailed, check_input, watched_paths

Flow = Generator[Json, Json, None]

_STOPPED: dict[str, ExitReason] = {"max_tokens": "max_tokens", "stop_sequence": "stop_sequence"}


class Spawner(Protocol):
    """Runs a subagent for the `task` tool."""

    def __call__(self, turn: LiveTurn, agent: Loop, prompt: str, description: str, /) -> str:
        """The subagent's answer."""


@dataclass(slots=True)
class Loop:
    """An agent: a model, its tools, and what it may do."""

    model: Model
    tools: Sequence[Tool] = ()
    permissions: Permissions = field(default_factory=Permissions)
    hooks: Hooks = field(default_factory=Hooks)
    compaction: Compaction = field(default_factory=Compaction)
    max_turns: int = 50
    retries: int = 4
    roots: tuple[Path, ...] = ()
    tool_timeout: float = 120.0
    max_tokens: int | None = None
    temperature: float | None = None
    spawn: Spawner | None = None
    depth: int = 0

    def __call__(self, turn: LiveTurn) -> Flow:
        """Answer one turn."""
        try:
            self.hooks.call("on_prompt", turn, prompt=turn.prompt)
        except Veto as veto:
            yield End("error", f"refused: {veto}")
            return
        left = turn.limits.max_turns or self.max_turns
        # Calls that were left open are run before the model is asked again.
        waiting = pending(turn.session.messages(repair=False))
        if waiting:
            yield self._jobs(turn, waiting)
        while True:
            reason = turn.spent()
            if reason is None and left <= 0:
                reason = "max_turns"
            if reason is not None:
                yield End(reason)
                return
            left -= 1
            yield from self.compaction.before(self, turn)
            try:
                reply = yield from self._reply(self.request(turn))
            except ModelFailed as failed:
                self.hooks.tell("on_error", turn, error=str(failed))
                yield End("error", str(failed))
                return
            yield self._said(reply)
            calls = pending([reply.message])
            if calls:
                yield self._jobs(turn, calls)
            elif reply.stop_reason in _STOPPED:
                yield End(_STOPPED[reply.stop_reason])
                return
            elif self._may_stop(turn, reply):
                return

    # --- the model -----------------------------------------------------------------------

    def replies(
        self, turn: LiveTurn, messages: list[dict[str, Json]]
    ) -> Generator[Json, Json, Reply]:
        """Ask the model about a conversation that is in no log, as a subagent does."""
        shown = convert([(message, format_of(message)) for message in messages], self.model.format)
        return self._reply(self._asked(shown))

    def _reply(self, request: Request) -> Generator[Json, Json, Reply]:
        """Ask the model, again after a transient failure."""
        for attempt in range(self.retries + 1):
            failed: ModelFailed
            try:
                reply: Reply = yield Ask(self.model, request)
                return reply
            except ModelFailed as error:
                failed = error
            if not failed.transient or attempt == self.retries:
                raise failed
            wait = failed.retry_after
            if wait is None:
                wait = min(30.0, 0.5 * 2**attempt) * (0.5 + random.random() / 2)
            yield Pause(wait)
        raise AssertionError("unreachable")

    def request(self, turn: LiveTurn) -> Request:
        """What the model is asked: the view of the conversation, and the tools."""
        return self._asked(self.compaction.view(turn, self.model.format))

    def _asked(self, messages: list[dict[str, Json]]) -> Request:
        system, messages = _system(messages, self.model.format)
        specs = [ToolSpec(tool.name, tool.description, tool.schema) for tool in self.tools]
        return Request(messages, system, specs, self.max_tokens, (), self.temperature)

    def _said(self, reply: Reply) -> Said:
        name = reply.model or self.model.name
        return Said(reply.message, reply.usage, cost(name, reply.usage), name)

    def _may_stop(self, turn: LiveTurn, reply: Reply) -> bool:
        self.hooks.tell("on_stop", turn, message=reply.message)
        return True

    # --- tools ---------------------------------------------------------------------------

    def jobs_for(self, turn: LiveTurn, message: dict[str, Json]) -> list[Job]:
        """The calls in a message as jobs."""
        return self._jobs(turn, calls).jobs if (calls := pending([message])) else []

    def _jobs(self, turn: LiveTurn, calls: Sequence[ToolCall]) -> Run:
        """The calls as jobs; side by side only if none may touch what another does."""
        context = self.context(turn)
        jobs = [self._job(turn, context, call) for call in calls]
        declared = [path for job in jobs for path in job.paths or ()]
        apart = all(job.paths is not None for job in jobs) and len(declared) == len(set(declared))
        return Run(jobs, parallel=apart or len(jobs) == 1)

    def _job(self, turn: LiveTurn, context: Context, call: ToolCall) -> Job:
        """A call as a job: checked, permitted, its paths declared; else refused."""
        tool = next((tool for tool in self.tools if tool.name == call.name), None)
        if tool is None:
            return Job(call, _nothing, [], f"there is no tool `{call.name}`")
        try:
            input = check_input(tool, _arguments(call))
            decision = self.permissions.check(tool, input, context)
            if not decision.allowed:
                reason = f"{decision.code}: {decision.reason or 'not allowed'}"
                return Job(call, _nothing, [], reason)
            self.hooks.call("before_tool", turn, tool=tool.name, input=input)
            paths = watched_paths(tool, context, input)
        except (ToolFailed, Veto) as error:
            return Job(call, _nothing, [], str(error))

        def run() -> Json:
            result = tool.run(context, input)
            if tool.is_async:
                from ..awaiting import awaited

                result = awaited(result)
            self.hooks.tell("after_tool", turn, tool=tool.name, input=input, result=result)
            return result

        return Job(replace(call, arguments=input), run, paths)

    def context(self, turn: LiveTurn) -> Context:
        """What a tool may use in this turn."""
        cwd = Path(turn.workspace or ".").resolve()
        spawn = self.spawn

        def subagent(prompt: str, description: str = "") -> str:
            assert spawn is not None
            return spawn(turn, self, prompt, description)

        return Context(
            cwd=cwd,
            roots=(cwd, *self.roots),
            cancelled=turn.cancelled,
            session_id=turn.session.id,
            timeout=self.tool_timeout,
            spawn=subagent if spawn is not None else None,
        )


def _nothing() -> Json:
    return None


def _arguments(call: ToolCall) -> Json:
    """A call's arguments as JSON; a model may have sent text that is none."""
    given = call.arguments
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given) if given.strip() else {}
    except msgspec.MsgspecError as error:
        raise ToolFailed(f"the arguments are not JSON: {error}") from error


def _system(
    messages: list[dict[str, Json]], format: Format
) -> tuple[str | None, list[dict[str, Json]]]:
    """The system prompt apart from the messages, where the provider wants it so."""
    if format != "anthropic" or not messages or messages[0].get("role") != "system":
        return None, messages
    content = messages[0].get("content")
    return (content if isinstance(content, str) else str(content)), messages[1:]
