"""`convert`: a conversation in the format of one provider, whatever it was stored in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from .._startup.frozen import replace
from .._startup.hashing import sha256
from ..errors import InvalidData
from ..events import Format, Json
from ..events.calls import answers_in, calls_in, repair
from ..events.messages import format_of
from . import anthropic, converse, gemini, langchain, openai, pydantic_ai, responses
from .parts import Call, Part, Result, Role, Text, Turn

_READ: dict[str, Callable[[Mapping[str, Json]], list[Turn]]] = {
    "openai": openai.to_turns,
    "responses": responses.to_turns,
    "anthropic": anthropic.to_turns,
    "langchain": langchain.to_turns,
    "gemini": gemini.to_turns,
    "converse": converse.to_turns,
    "pydantic-ai": pydantic_ai.to_turns,
}
_WRITE: dict[str, Callable[[Sequence[Turn]], list[dict[str, Json]]]] = {
    "openai": openai.from_turns,
    "responses": responses.from_turns,
    "anthropic": anthropic.from_turns,
    "langchain": langchain.from_turns,
    "gemini": gemini.from_turns,
    "converse": converse.from_turns,
    "pydantic-ai": pydantic_ai.from_turns,
}
_LEGAL_ID = {
    "openai": re.compile(r".{1,64}", re.DOTALL),
    "responses": re.compile(r".{1,64}", re.DOTALL),
    "anthropic": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "converse": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    **dict.fromkeys(("langchain", "gemini", "pydantic-ai"), re.compile(r".{1,256}", re.DOTALL)),
}


def convert(
    messages: Sequence[tuple[dict[str, Json], Format]], to: Format
) -> list[dict[str, Json]]:
    """The conversation as the provider of `to` accepts it.

    Messages stored in `to` stay exactly as they are; if all are, nothing is looked at.
    Others are converted. Where formats mix, a call without a result gets an "interrupted"
    one, results move to where the provider wants them, and neighbours are joined if the
    provider demands it. `docs/reference/formats.md` says what each direction loses.
    """
    if to not in _WRITE:
        raise InvalidData(f"`{to}` is not a format: use {', '.join(_WRITE)}")
    if all(format == to for _, format in messages):
        return [message for message, _ in messages]
    formats = {id(message): format for message, format in messages}
    turns: list[Turn] = []
    for message in repair([message for message, _ in messages]):
        # What repair added is not among the given ones; its spelling shows its format.
        format = formats.get(id(message)) or format_of(message)
        if format == to or (to == "anthropic" and format == "openai" and anthropic.is_own(message)):
            turns.append(Turn(_native_role(message), native=message))
        else:
            turns += _READ[format](message)
    return _WRITE[to](_paired(turns, to))


def _native_role(message: Mapping[str, Json]) -> Role:
    if answers_in(message):
        return "tool"
    role = message.get("role", "assistant")
    return openai.ROLES.get(role, "user") if isinstance(role, str) else "user"


def _paired(turns: list[Turn], to: Format) -> list[Turn]:
    """Turns whose ids the provider takes, and whose results all answer a call.

    A result without a call, or a second one for the same call, is refused by providers;
    it becomes something the user says.
    """
    ids = _Ids(turns, to)
    paired: list[Turn] = []
    stray: list[Part] = []
    for turn in turns:
        if stray and turn.role != "tool":
            # Not before all results are written: nothing may stand between these and their calls.
            paired.append(Turn("user", tuple(stray)))
            stray = []
        if turn.native is not None:
            ids.pass_by(turn.native)
            paired.append(turn)
            continue
        parts: list[Part] = []
        for part in turn.parts:
            if isinstance(part, Call):
                parts.append(ids.call(part))
            elif isinstance(part, Result):
                answer = ids.result(part)
                if answer:
                    parts.append(answer)
                else:
                    stray += [Text(f"Result of tool call {part.call_id}:"), *part.said()]
            else:
                parts.append(part)
        paired += [Turn(turn.role, tuple(parts))] if parts else []
    return [*paired, Turn("user", tuple(stray))] if stray else paired


class _Ids:
    """Call ids on their way into a format: legal there, unique, the same in call and result."""

    def __init__(self, turns: Sequence[Turn], to: Format) -> None:
        native = [turn.native for turn in turns if turn.native is not None]
        self.legal = _LEGAL_ID[to]
        self.answered = {answer for message in native for answer in answers_in(message)}
        self.used = {call.id for message in native for call in calls_in(message)}
        self.open: dict[str, Call] = {}

    def pass_by(self, message: Mapping[str, Json]) -> None:
        """Note the calls and answers of a message that stays as it is."""
        custom = message.get("type") == "custom_tool_call"
        for call in calls_in(message):
            self.open[call.id] = Call(call.id, call.name, "", custom)
        for answer in answers_in(message):
            self.open.pop(answer, None)

    def call(self, call: Call) -> Call:
        """The call under an id that the format allows."""
        fitting = call.id
        # A result that stays as it is names its call, so that call keeps its id.
        if call.id not in self.answered:
            count = 0
            while fitting in self.used or not self.legal.fullmatch(fitting):
                count += 1
                mark = sha256(f"{call.id}\n{count}".encode(errors="replace")).hexdigest()
                fitting = re.sub(r"[^a-zA-Z0-9_-]", "_", call.id)[:51] + "_" + mark[:12]
        self.used.add(fitting)
        self.open[call.id] = replace(call, id=fitting)
        return self.open[call.id]

    def result(self, result: Result) -> Result | None:
        """The result under the id of its call; None if no call waits for it."""
        call = self.open.pop(result.call_id, None)
        return replace(result, call_id=call.id, custom=call.custom) if call else None
