"""Tool calls and their results in messages of any format. Pure.

A provider refuses a conversation with a call that has no result. After a crash there may be
one: `pending` finds it, `repair` answers it in the view, the log stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .._startup.frozen import dataclass
from ..errors import BacktrailError
from . import AsDict, Json
from .messages import mappings

INTERRUPTED = "interrupted: the process ended before this tool call returned a result"
"""What a repaired view says in place of a result that never came."""


@dataclass(frozen=True, slots=True)
class ToolCall(AsDict):
    """A tool call as a model asked for it, whatever the provider's spelling."""

    id: str
    name: str
    arguments: Json = None


def calls_in(message: Mapping[str, Json]) -> list[ToolCall]:
    """The tool calls in one message of any format."""
    found: list[ToolCall] = []
    if message.get("type") in ("function_call", "custom_tool_call"):
        arguments = message.get("arguments", message.get("input"))
        found.append(ToolCall(str(message.get("call_id")), str(message.get("name")), arguments))
    for call in mappings(message.get("tool_calls")):
        function = call.get("function", call.get("custom"))
        if isinstance(function, Mapping):
            name, arguments = function.get("name"), function.get("arguments", function.get("input"))
        else:
            name, arguments = call.get("name"), call.get("args", call.get("arguments"))
        found.append(ToolCall(str(call.get("id")), str(name), arguments))
    for block in mappings(message.get("content")):
        if block.get("type") == "tool_use":
            found.append(ToolCall(str(block.get("id")), str(block.get("name")), block.get("input")))
        elif isinstance(use := block.get("toolUse"), Mapping):
            id = str(use.get("toolUseId"))
            found.append(ToolCall(id, str(use.get("name")), use.get("input")))
    if "parts" in message:
        found += [one for part in mappings(message["parts"]) if (one := _call_of_part(part))]
    return found


def _call_of_part(part: Mapping[str, Json]) -> ToolCall | None:
    """The call in a part of Gemini's, where ids are rare, or of pydantic-ai's."""
    call = part.get("functionCall") or part.get("function_call")
    if isinstance(call, Mapping):
        name = str(call.get("name"))
        return ToolCall(str(call.get("id") or name), name, call.get("args"))
    if part.get("part_kind") == "tool-call":
        name = str(part.get("tool_name"))
        return ToolCall(str(part.get("tool_call_id") or name), name, part.get("args"))
    return None


def _answered_by_part(part: Mapping[str, Json]) -> str | None:
    answer = part.get("functionResponse") or part.get("function_response")
    if isinstance(answer, Mapping):
        return str(answer.get("id") or answer.get("name"))
    if part.get("part_kind") in ("tool-return", "retry-prompt") and part.get("tool_name"):
        return str(part.get("tool_call_id") or part.get("tool_name"))
    return None


def answers_in(message: Mapping[str, Json]) -> set[str]:
    """The ids of the tool calls that one message answers."""
    found: set[str] = set()
    if isinstance(message.get("tool_call_id"), str):
        found.add(message["tool_call_id"])
    kind = message.get("type")
    if isinstance(kind, str) and kind.endswith("_call_output"):
        found.add(str(message.get("call_id")))
    for block in mappings(message.get("content")):
        if block.get("type") == "tool_result":
            found.add(str(block.get("tool_use_id")))
        elif isinstance(answer := block.get("toolResult"), Mapping):
            found.add(str(answer.get("toolUseId")))
    if "parts" in message:
        found.update(id for part in mappings(message["parts"]) if (id := _answered_by_part(part)))
    return found


def pending(messages: Iterable[Mapping[str, Json]]) -> list[ToolCall]:
    """The tool calls of a conversation that have no result, in order.

    An answer is for the newest open call of its id: some models count anew in every turn.
    """
    waiting: list[ToolCall] = []
    for message in messages:
        waiting.extend(calls_in(message))
        for answered in answers_in(message):
            for at in range(len(waiting) - 1, -1, -1):
                if waiting[at].id == answered:
                    del waiting[at]
                    break
    return waiting


def _in_order(messages: list[dict[str, Json]]) -> int:
    """How many messages at the start of a plain chat surely need no repair.

    Every view asks, and nearly always it is all of them, so this is quick.
    """
    waiting: set[str] = set()
    good = 0
    for at, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            answered = message.get("tool_call_id")
            if type(answered) is not str or answered not in waiting:
                return good
            waiting.remove(answered)
            continue
        if waiting or role not in _PLAIN_ROLES or type(message.get("content")) is list:
            return good
        good = at
        calls = message.get("tool_calls")
        if calls:
            if not isinstance(calls, list):
                return good
            ids = [call.get("id") if isinstance(call, dict) else None for call in calls]
            waiting = {id for id in ids if isinstance(id, str)}
            if len(waiting) < len(calls):
                return good
    return good if waiting else len(messages)


_PLAIN_ROLES = frozenset({"user", "assistant", "system", "developer"})


def repair(messages: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """The conversation with a result right behind every call, as providers demand.

    A call that never got a result gets an "interrupted" one, in the spelling of the call.
    A result that came late, because something was said meanwhile, moves up to its call.
    Ids may come again in later calls: some servers count them anew in each turn.
    Given messages are not changed, and a conversation in order comes back equal.
    """
    good = _in_order(messages)
    if good == len(messages):
        return messages
    return messages[:good] + _repair(messages[good:])


def _repair(messages: list[dict[str, Json]]) -> list[dict[str, Json]]:
    # A group is a message, or the items of one answer of a model, and the results behind it.
    groups: list[list[dict[str, Json]]] = []
    waiting: dict[str, _Asked] = {}
    missing: list[_Asked] = []
    ours: set[int] = set()
    for message in messages:
        rest: dict[str, Json] | None = message
        answered = [waiting.pop(call) for call in sorted(answers_in(message)) if call in waiting]
        late = [asked for asked in answered if asked.group is not groups[-1]]
        for asked in late:
            answer, rest = _take_answer(rest or message, asked.call.id)
            ours.add(id(answer))
            asked.group.append(answer)
        if rest is None:
            continue
        calls = calls_in(rest)
        again = [waiting.pop(call.id) for call in calls if call.id in waiting]
        missing += again
        if len(late) < len(answered) or (groups and not again and _goes_on(groups[-1][-1], rest)):
            groups[-1].append(rest)
        else:
            groups.append([rest])
        waiting |= {call.id: _Asked(call, rest, groups[-1]) for call in calls}
    for asked in [*missing, *waiting.values()]:
        answer = answer_to(asked.call.id, asked.message, INTERRUPTED, failed=True)
        ours.add(id(answer))
        asked.group.append(answer)
    return _joined(groups, ours)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call that waits for its result: where it was made, and where its result belongs."""

    call: ToolCall
    message: Mapping[str, Json]
    group: list[dict[str, Json]]


def _goes_on(last: Mapping[str, Json], message: Mapping[str, Json]) -> bool:
    """Whether a message is more of the same answer of a model, in items or in blocks.

    Chat messages never are: there, results stand behind each single message.
    """
    kind = message.get("type")
    item = isinstance(kind, str) and (kind == "reasoning" or kind.endswith("_call"))
    blocks = message.get("role") == "assistant" and isinstance(message.get("content"), list)
    chat = "tool_calls" in last or "tool_calls" in message
    return (item or blocks) and not chat and not answers_in(last)


def _take_answer(
    message: dict[str, Json], call_id: str
) -> tuple[dict[str, Json], dict[str, Json] | None]:
    """The result of a call out of a message, and what is left of that message."""
    blocks = mappings(message.get("content"))
    mine = [block for block in blocks if block.get("tool_use_id") == call_id]
    if not mine or len(mine) == len(blocks):
        return message, None
    left = [block for block in blocks if block.get("tool_use_id") != call_id]
    return {"role": "user", "content": mine}, {**message, "content": left}


def error_text(error: BaseException) -> str:
    """An error as the result of a call: ours say all, others need their names."""
    return str(error) if isinstance(error, BacktrailError) else f"{type(error).__name__}: {error}"


def answer_to(
    call_id: str, message: Mapping[str, Json], content: Json, *, failed: bool = False
) -> dict[str, Json]:
    """A result for a call, spelled as the message that holds the call."""
    if message.get("type") in ("function_call", "custom_tool_call"):
        kind = f"{message['type']}_output"
        return {"type": kind, "call_id": call_id, "output": content}
    if "parts" in message:
        return _answer_in_parts(call_id, message, content, failed=failed)
    blocks = mappings(message.get("content"))
    if any("toolUse" in block for block in blocks):
        answer = {"toolUseId": call_id, "content": [{"text": str(content)}]}
        status = "error" if failed else "success"
        return {"role": "user", "content": [{"toolResult": {**answer, "status": status}}]}
    if message.get("type") in ("ai", "AIMessageChunk"):
        answer = {"type": "tool", "tool_call_id": call_id, "content": content}
        return {**answer, "status": "error"} if failed else answer
    if not any(block.get("type") == "tool_use" and block.get("id") == call_id for block in blocks):
        return {"role": "tool", "tool_call_id": call_id, "content": content}
    answer = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    return {"role": "user", "content": [{**answer, "is_error": True} if failed else answer]}


def _answer_in_parts(
    call_id: str, message: Mapping[str, Json], content: Json, *, failed: bool
) -> dict[str, Json]:
    """The same in the parts of Gemini's messages, or of pydantic-ai's."""
    name = next((call.name for call in calls_in(message) if call.id == call_id), call_id)
    if message.get("kind") == "response":
        part = {"part_kind": "tool-return", "tool_name": name, "tool_call_id": call_id}
        outcome = {"outcome": "failed"} if failed else {}
        return {"kind": "request", "parts": [{**part, "content": content, **outcome}]}
    response = {"error" if failed else "result": content}
    answer = {"id": call_id, "name": name, "response": response}
    return {"role": "user", "parts": [{"functionResponse": answer}]}


def _joined(groups: list[list[dict[str, Json]]], ours: set[int]) -> list[dict[str, Json]]:
    """The messages in order; results we put there share the user's message, results first.

    Anthropic takes all results of a message's calls in the one message behind it.
    """
    joined: list[dict[str, Json]] = []
    for message in (message for group in groups for message in group):
        last = joined[-1] if joined else {}
        touched = id(last) in ours or id(message) in ours
        if touched and _takes_results(last) and _takes_results(message):
            blocks = [*_as_blocks(last.get("content")), *_as_blocks(message.get("content"))]
            blocks.sort(key=lambda block: block.get("type") != "tool_result")
            joined[-1] = {**last, **message, "content": blocks}
            ours.add(id(joined[-1]))
        else:
            joined.append(message)
    return joined


def _takes_results(message: Mapping[str, Json]) -> bool:
    """Whether this is a message of the user that is not spelled as only OpenAI does."""
    known = ("text", "image", "document", "search_result", "tool_result")
    blocks = _as_blocks(message.get("content"))
    if "parts" in message:
        return False
    return message.get("role") == "user" and all(block.get("type") in known for block in blocks)


def _as_blocks(content: Json) -> list[Mapping[str, Json]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return mappings(content)


def is_shown(result: Json) -> bool:
    """Whether a result is not text but something to look at, as blocks of a message."""
    blocks = result if isinstance(result, list) else []
    kinds = [block.get("type") for block in blocks if isinstance(block, dict)]
    return "image" in kinds and all(kind in ("text", "image") for kind in kinds)
