"""Conversations as scripts, spelled in each format without the library's help."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from backtrail.events import Format, Json

FORMATS: tuple[Format, ...] = ("openai", "responses", "anthropic")

Tagged = list[tuple[dict[str, Json], Format]]
"""Messages with the format each is in, as `convert` takes them."""


@dataclass(frozen=True)
class Tool:
    """A call and its result; None: the result never came."""

    id: str
    name: str
    arguments: str
    result: str | None
    is_error: bool = False


@dataclass(frozen=True)
class Step:
    """One answer of a model: some words, some calls. `late`: the user spoke before results."""

    text: str
    tools: tuple[Tool, ...] = ()
    thought: str = ""
    late: str = ""


@dataclass(frozen=True)
class Round:
    """What the user says, and what follows."""

    user: str
    steps: tuple[Step, ...]


def spell(system: str, rounds: Sequence[Round], formats: Sequence[Format]) -> Tagged:
    """The script; each message takes the next of `formats`, over and over."""
    reported: Tagged = []

    def format() -> Format:
        return formats[len(reported) % len(formats)]

    if system:
        reported.append((say("system", system, format()), format()))
    for turn in rounds:
        if turn.user:
            reported.append((say("user", turn.user, format()), format()))
        for step in turn.steps:
            chosen = format()
            reported += [(message, chosen) for message in answer(step, chosen)]
            if step.late:
                reported.append((say("user", step.late, format()), format()))
            chosen = format()
            reported += [(message, chosen) for message in results(step, chosen)]
    return reported


def say(role: str, text: str, format: Format) -> dict[str, Json]:
    """A message of plain text."""
    if format == "responses":
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
    if format == "anthropic":
        return {"role": role, "content": [{"type": "text", "text": text}]}
    return {"role": role, "content": text}


def answer(step: Step, format: Format) -> list[dict[str, Json]]:
    """What the model said, as its provider sends it."""
    if format == "openai":
        calls = [
            {"id": t.id, "type": "function", "function": {"name": t.name, "arguments": t.arguments}}
            for t in step.tools
        ]
        message: dict[str, Json] = {"role": "assistant", "content": step.text or None}
        message |= {"tool_calls": calls} if calls else {}
        message |= {"reasoning_content": step.thought} if step.thought else {}
        return [message] if calls or step.text else []
    if format == "responses":
        items: list[dict[str, Json]] = []
        if step.thought:
            items.append(
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
            )
        items += [say("assistant", step.text, format)] if step.text else []
        for t in step.tools:
            call = {"call_id": t.id, "name": t.name, "arguments": t.arguments}
            items.append({"type": "function_call", "id": "fc_1", **call})
        return items
    blocks: list[dict[str, Json]] = []
    if step.thought and (step.text or step.tools):
        blocks.append({"type": "thinking", "thinking": step.thought, "signature": "EqQB"})
    blocks += [{"type": "text", "text": step.text}] if step.text else []
    for t in step.tools:
        given = parsed(t.arguments)
        given = given if isinstance(given, dict) else {"_raw": t.arguments}
        blocks.append({"type": "tool_use", "id": t.id, "name": t.name, "input": given})
    return [{"role": "assistant", "content": blocks}] if blocks else []


def results(step: Step, format: Format) -> list[dict[str, Json]]:
    """What the tools said."""
    given = [(tool, tool.result) for tool in step.tools if tool.result is not None]
    if format == "openai":
        return [{"role": "tool", "tool_call_id": t.id, "content": text} for t, text in given]
    if format == "responses":
        kind = "function_call_output"
        return [{"type": kind, "call_id": t.id, "output": text} for t, text in given]
    blocks = []
    for t, text in given:
        block = {"type": "tool_result", "tool_use_id": t.id, "content": text}
        blocks.append(block | ({"is_error": True} if t.is_error and text else {}))
    return [{"role": "user", "content": blocks}] if blocks else []


def facts(messages: Sequence[dict[str, Json]]) -> list[tuple[Json, ...]]:
    """All that was said, called and answered, in order, whatever the spelling."""
    found: list[tuple[Json, ...]] = []
    for message in messages:
        role = "system" if message.get("role") == "developer" else message.get("role")
        kind = message.get("type")
        if kind == "function_call":
            arguments = parsed(message["arguments"])
            found.append(("call", message["call_id"], message["name"], arguments))
        elif kind == "function_call_output":
            found.append(("result", message["call_id"], words(message["output"])))
        elif role == "tool":
            found.append(("result", message["tool_call_id"], words(message["content"])))
        elif role:
            found += _content_facts(role, message.get("content"))
        for call in message.get("tool_calls", ()):
            function = call["function"]
            arguments = parsed(function["arguments"])
            found.append(("call", call["id"], function["name"], arguments))
    return found


def _content_facts(role: str, content: Json) -> list[tuple[Json, ...]]:
    found: list[tuple[Json, ...]] = []
    if isinstance(content, str):
        return [(role, content)]
    for block in content or ():
        if block["type"] == "tool_use":
            found.append(("call", block["id"], block["name"], unwrapped(block["input"])))
        elif block["type"] == "tool_result":
            found.append(("result", block["tool_use_id"], words(block.get("content", ""))))
        elif "text" in block:
            found.append((role, block["text"]))
    return found


def words(content: Json) -> str:
    """Text of a result."""
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content)


def parsed(text: str) -> Json:
    """Arguments as a JSON value, or as they are where they are no object."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def unwrapped(given: dict[str, Json]) -> Json:
    """Anthropic's input as the arguments it stands for, for scripts without a `_raw` of theirs."""
    return given["_raw"] if set(given) == {"_raw"} else given
