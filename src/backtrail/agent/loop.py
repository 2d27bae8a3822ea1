"""The built-in agent: ask the model, run its tools, until it stops.

The loop is a plain generator. It yields what was said and requests (`Ask`, `Run`, `Pause`,
`Do`), which the session's driver carries out, sync or async. It keeps no conversation: each
round asks the log, so a turn can be finished by another process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Protocol

import msgspec

from ..errors import Unsupported
from ..events import Format, Json
from ..events.calls import ToolCall, answers_in, calls_in, pending
from ..events.messages import speech_of
from ..session.listeners import Delta
from ..session.liveturn import LiveTurn
from ..session.turns import Append, Ask, Do, End, ExitReason, Job, Limits, Pause, Run, Said
from .compaction import Compaction
from .hooks import Hooks, Veto
from .models.base import Model, ModelFailed, Reply, Request, ToolSpec
from .models.prices import cost
from .permissions import Decision, Permissions
from .tools import Context, Tool, ToolFailed, check_input, watched_paths

Step = Said | Ask | Run | Pause | Do | End | Append | Delta
"""What the loop yields; a driver carries it out, and sends what came of it."""

Flow = Generator[Step, object, None]

_STOPPED: dict[str, ExitReason] = {"max_tokens": "max_tokens", "stop_sequence": "stop_sequence"}

LONGEST_WAIT = 60.0
"""Seconds; a server that asks for a longer pause is not waited for."""


class Spawner(Protocol):
    """Runs a subagent for the `task` tool."""

    def __call__(
        self, turn: LiveTurn, agent: Loop, prompt: str, description: str, call_id: str, /
    ) -> str:
        """The subagent's answer."""


@dataclass(slots=True)
class Loop:
    """An agent: a model, its tools, and what it may do.

    `max_tokens` is how long one reply may be, `limits` what a turn may use up in all where
    `send` says nothing else. `opener` opens another model by name, for `send(model=…)`.
    """

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
    limits: Limits = field(default_factory=Limits)
    opener: Callable[[str], Model] | None = None
    task_depth: int = 5
    task_seconds: float = 1800.0
    others: dict[str, Model] = field(default_factory=dict)
    closed: bool = False

    def __call__(self, turn: LiveTurn) -> Flow:
        """Answer one turn."""
        if self.closed and self.opener is not None:
            # The session that shared it goes on with connections of its own.
            self.model, self.closed = self.opener(self.model.name), False
        turn.limits = turn.limits.over(self.limits).over(Limits(max_turns=self.max_turns))
        try:
            yield from self._with_model(turn.model)._answer(turn)
        except Exception as error:
            self.hooks.notify("on_error", turn, error=f"{type(error).__name__}: {error}")
            raise

    def _answer(self, turn: LiveTurn) -> Flow:
        said = turn.said()
        if not said:
            try:
                self.hooks.start(turn)
                self.hooks.call("on_prompt", turn, prompt=turn.prompt)
            except Veto as veto:
                yield End("error", f"refused: {veto}", refused=True)
                return
        # A turn that was cut short: its open calls are run, its last word may be said.
        waiting = pending(said)
        if waiting:
            yield from self._run(turn, waiting)
        elif said and _is_answer(said[-1]):
            yield from self._stop(turn, said[-1], _stop_reason(turn))
            return
        yield from self._rounds(turn)

    def _rounds(self, turn: LiveTurn) -> Flow:
        for _ in range(turn.limits.max_turns or 0):
            reason = turn.spent()
            if reason is not None:
                yield End(reason)
                return
            yield from self.compaction.before(self, turn)
            try:
                reply = yield from self._reply(self.request(turn))
            except ModelFailed as failed:
                self.hooks.notify("on_error", turn, error=str(failed))
                yield End("error", str(failed))
                return
            yield self._said(reply)
            calls = calls_in(reply.message)
            if not calls:
                yield from self._stop(turn, reply.message, reply.stop_reason)
                return
            yield from self._run(turn, calls)
        yield End(turn.spent() or "max_turns")

    def _stop(self, turn: LiveTurn, message: dict[str, Json], reason: str) -> Flow:
        self.hooks.notify("on_stop", turn, message=message)
        yield End(_STOPPED.get(reason, "end_turn"))

    # --- the model -----------------------------------------------------------------------

    def _with_model(self, name: str | None) -> Loop:
        """This loop, on the model that a caller named."""
        if name is None or name == self.model.name:
            return self
        if name not in self.others:
            if self.opener is None:
                raise Unsupported(f"this agent has its own model, and cannot open `{name}`")
            self.others[name] = self.opener(name)
        return replace(self, model=self.others[name])

    def _reply(self, request: Request) -> Generator[Step, object, Reply]:
        """Ask the model, again after a transient failure."""
        for attempt in range(self.retries + 1):
            failed: ModelFailed
            try:
                reply = yield Ask(self.model, request)
                assert isinstance(reply, Reply)
                return reply
            except ModelFailed as error:
                failed = error
            wait = failed.retry_after
            if wait is None:
                wait = min(30.0, 0.5 * 2**attempt) * (0.5 + random.random() / 2)
            if not failed.transient or attempt == self.retries or wait > LONGEST_WAIT:
                raise failed
            # What listeners had of the failed answer does not count.
            yield Delta("retry", {"error": str(failed), "seconds": wait, "attempt": attempt + 1})
            yield Pause(wait)
        raise AssertionError("unreachable")

    def request(self, turn: LiveTurn) -> Request:
        """What the model is asked: the view of the conversation, and the tools."""
        return self.asked(self.compaction.view(turn, self.model.format))

    def asked(self, messages: list[dict[str, Json]]) -> Request:
        """A request with these messages."""
        system, messages = _system(_in_order(messages), self.model.format)
        specs = [ToolSpec(tool.name, tool.description, tool.schema) for tool in self.tools]
        return Request(messages, system, specs, self.max_tokens, (), self.temperature)

    def _said(self, reply: Reply) -> Said:
        name = reply.model or self.model.name
        stopped = reply.stop_reason if reply.stop_reason in _STOPPED else None
        return Said(reply.message, reply.usage, cost(name, reply.usage), name, stopped)

    # --- tools ---------------------------------------------------------------------------

    def _run(self, turn: LiveTurn, calls: Sequence[ToolCall]) -> Flow:
        """Run calls; side by side only if none may touch what another does."""
        tools = [self._tool(call) for call in calls]
        if all(tool is None or tool.kind in ("read", "edit") for tool in tools):
            jobs = []
            for call in calls:
                jobs.append((yield from self._job(turn, call)))
            declared = [path for job in jobs for path in job.paths or ()]
            yield Run(jobs, parallel=len(declared) == len(set(declared)))
            return
        # One may change what the next is allowed to do, so each is looked at in its turn.
        for call in calls:
            job = yield from self._job(turn, call)
            yield Run([job])

    def _tool(self, call: ToolCall) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == call.name), None)

    def _job(self, turn: LiveTurn, call: ToolCall) -> Generator[Step, object, Job]:
        """A call as a job: checked, permitted, its paths declared; else refused."""
        tool = self._tool(call)
        if tool is None:
            return Job(call, _nothing, [], f"there is no tool `{call.name}`")
        context = self.context(turn, call.id)
        try:
            input = check_input(tool, _arguments(call))
            call = replace(call, arguments=input)
            decision = yield from self._decision(turn, tool, input, context)
            if not decision.allowed:
                reason = f"{decision.code}: {decision.reason or 'not allowed'}"
                return Job(call, _nothing, [], reason)
            paths = watched_paths(tool, context, input)
            self.hooks.call("before_tool", turn, tool=tool.name, input=input, call_id=call.id)
        except (ToolFailed, Veto) as error:
            return Job(call, _nothing, [], str(error))
        run = self._runner(turn, tool, context, call)
        return Job(call, run, paths, is_async=tool.is_async)

    def _decision(
        self, turn: LiveTurn, tool: Tool, input: dict[str, Json], context: Context
    ) -> Generator[Step, object, Decision]:
        reason = turn.spent()
        if reason is not None:
            return Decision(False, "budget_exceeded", f"the turn is over: {reason}")
        check = self.permissions
        asks_later = iscoroutinefunction(check.can_use_tool)
        try:
            decision = yield Do(
                lambda: check.check(tool, input, context),
                (lambda: check.acheck(tool, input, context)) if asks_later else None,
            )
        except Unsupported:
            raise
        except Exception as error:
            # Without an answer there is no consent.
            why = f"`can_use_tool` failed: {type(error).__name__}: {error}"
            return Decision(False, "unknown", why)
        assert isinstance(decision, Decision)
        return decision

    def _runner(
        self, turn: LiveTurn, tool: Tool, context: Context, call: ToolCall
    ) -> Callable[[], Json]:
        about = {"tool": tool.name, "input": call.arguments, "call_id": call.id}

        def run() -> Json:
            try:
                result = tool.run(context, call.arguments)
            except Exception as error:
                self.hooks.notify("after_tool", turn, **about, result=None, error=str(error))
                raise
            self.hooks.notify("after_tool", turn, **about, result=result, error=None)
            return result

        async def run_later() -> Json:
            try:
                result = await tool.run(context, call.arguments)
            except Exception as error:
                self.hooks.notify("after_tool", turn, **about, result=None, error=str(error))
                raise
            self.hooks.notify("after_tool", turn, **about, result=result, error=None)
            return result

        return run_later if tool.is_async else run

    def context(self, turn: LiveTurn, call_id: str = "") -> Context:
        """What a tool may use in this turn."""
        cwd = Path(turn.workspace or ".").resolve()
        spawn = self.spawn

        def subagent(prompt: str, description: str = "") -> str:
            assert spawn is not None
            return spawn(turn, self, prompt, description, call_id)

        return Context(
            cwd=cwd,
            roots=(cwd, *self.roots),
            cancelled=turn.is_over,
            session_id=turn.session.id,
            timeout=self.tool_timeout,
            spawn=subagent if spawn is not None else None,
        )

    # --- ending --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the models' connections."""
        for model in self._given_up():
            model.close()

    async def aclose(self) -> None:
        """`close`, for models that were used asynchronously."""
        for model in self._given_up():
            await model.aclose()

    def _given_up(self) -> list[Model]:
        models = [self.model, *self.others.values()]
        self.others.clear()
        self.closed = True
        return models


def _nothing() -> Json:
    return None


def _is_answer(message: dict[str, Json]) -> bool:
    return message.get("role") == "assistant" and not calls_in(message)


def _stop_reason(turn: LiveTurn) -> str:
    """Why the model stopped when it last said something."""
    said = turn.session.history()[-8:]
    last = [event for event in said if event.kind == "assistant_message"]
    return str(last[-1].data.get("stop_reason", "end_turn")) if last else "end_turn"


def _arguments(call: ToolCall) -> Json:
    """A call's arguments as JSON; a model may have sent text that is none."""
    given = call.arguments
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given) if given.strip() else {}
    except msgspec.MsgspecError as error:
        raise ToolFailed(f"the arguments are not JSON: {error}") from error


def _in_order(messages: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Results in the order of their calls, whichever came first: a request is the same then."""
    found: list[dict[str, Json]] = []
    order: dict[str, int] = {}
    start = 0
    for message in [*messages, {}]:
        if not (answers_in(message) and _only_answers(message)):
            found[start:] = sorted(found[start:], key=lambda m: _place(m, order))
            order = {call.id: n for n, call in enumerate(calls_in(message))}
            start = len(found) + 1
        elif isinstance(blocks := message.get("content"), list):
            message = {**message, "content": sorted(blocks, key=lambda b: _rank(b, order))}
        found.append(message)
    return found[:-1]


def _rank(block: dict[str, Json], order: dict[str, int]) -> int:
    return order.get(str(block.get("tool_use_id")), len(order))


def _place(message: dict[str, Json], order: dict[str, int]) -> int:
    return min((order.get(id, len(order)) for id in answers_in(message)), default=-1)


def _only_answers(message: dict[str, Json]) -> bool:
    content = message.get("content")
    blocks = content if message.get("role") == "user" and isinstance(content, list) else ()
    return all(isinstance(b, dict) and b.get("type") == "tool_result" for b in blocks)


def _system(
    messages: list[dict[str, Json]], format: Format
) -> tuple[str | None, list[dict[str, Json]]]:
    """The system prompt apart from the messages, where the provider wants it so."""
    if format != "anthropic" or not messages or messages[0].get("role") != "system":
        return None, messages
    return speech_of(messages[0]), messages[1:]
