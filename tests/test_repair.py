"""Tool calls without a result: reported, and repaired in every provider's spelling."""

from __future__ import annotations

import copy
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.events import Json
from backtrail.events.calls import INTERRUPTED, answers_in, calls_in, pending, repair

Shape = Literal["openai", "anthropic", "responses"]
Messages = list[dict[str, Json]]
SHAPES: tuple[Shape, ...] = ("openai", "anthropic", "responses")


def user(text: str) -> dict[str, Json]:
    """A message of the user, the same everywhere."""
    return {"role": "user", "content": text}


def asking(shape: Shape, ids: list[str]) -> Messages:
    """A model that calls tools."""
    if shape == "openai":
        calls = [
            {"id": id, "type": "function", "function": {"name": "t", "arguments": "{}"}}
            for id in ids
        ]
        return [{"role": "assistant", "content": None, "tool_calls": calls}]
    if shape == "anthropic":
        blocks: Messages = [{"type": "text", "text": "let me see"}]
        blocks += [{"type": "tool_use", "id": id, "name": "t", "input": {}} for id in ids]
        return [{"role": "assistant", "content": blocks}]
    return [{"type": "function_call", "call_id": id, "name": "t", "arguments": "{}"} for id in ids]


def answering(shape: Shape, ids: list[str]) -> Messages:
    """The results of tools."""
    if shape == "openai":
        return [{"role": "tool", "tool_call_id": id, "content": f"did {id}"} for id in ids]
    if shape == "anthropic":
        blocks = [{"type": "tool_result", "tool_use_id": id, "content": f"did {id}"} for id in ids]
        return [{"role": "user", "content": blocks}] if ids else []
    return [{"type": "function_call_output", "call_id": id, "output": f"did {id}"} for id in ids]


@st.composite
def conversations(draw: st.DrawFn, shape: Shape, complete: bool = False) -> Messages:
    """Turns with calls, of which a crash may have taken any results."""
    messages: Messages = []
    for turn in range(draw(st.integers(0, 4))):
        messages.append(user(f"question {turn}"))
        for round in range(draw(st.integers(0, 2))):
            ids = [f"call-{turn}-{round}-{n}" for n in range(draw(st.integers(1, 3)))]
            kept = ids if complete else [id for id in ids if draw(st.booleans())]
            messages += asking(shape, ids) + answering(shape, kept)
            if kept != ids:
                break
        else:
            messages.append({"role": "assistant", "content": f"answer {turn}"})
    return messages


def unanswered(shape: Shape, messages: Messages) -> list[str]:
    """The calls a provider would refuse: not answered right behind their message."""
    refused: list[str] = []
    for index, message in enumerate(messages):
        open_calls = [call.id for call in calls_in(message)]
        answered: set[str] = set()
        for later in messages[index + 1 :]:
            if shape == "responses" and "role" in later:
                break
            if shape != "responses" and not answers_in(later):
                break
            answered |= answers_in(later)
            if shape == "anthropic":
                kinds = [block["type"] for block in later["content"]]
                assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result")
                break
        refused += [call for call in open_calls if call not in answered]
    return refused


def words(messages: Messages) -> list[str]:
    """Every text, question and result that is not made up, in order."""
    found: list[str] = []

    def collect(value: Json) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if key in ("text", "content", "output"):
                    collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)
        elif isinstance(value, str) and value != INTERRUPTED:
            found.append(value)

    collect(messages)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@given(st.data())
def test_repair_answers_every_call(shape: Shape, data: st.DataObject) -> None:
    """A provider accepts the result; nothing that was said is lost, moved or changed."""
    messages = data.draw(conversations(shape))
    before = copy.deepcopy(messages)
    repaired = repair(messages)
    assert messages == before
    assert pending(repaired) == []
    assert unanswered(shape, repaired) == []
    assert words(repaired) == words(messages)
    assert repair(repaired) == repaired


@pytest.mark.parametrize("shape", SHAPES)
@given(st.data())
def test_repair_of_a_complete_conversation_is_the_identity(
    shape: Shape, data: st.DataObject
) -> None:
    """Where every call has its result, nothing is touched."""
    messages = data.draw(conversations(shape, complete=True))
    assert repair(messages) == messages
    assert pending(messages) == []


@pytest.mark.parametrize("shape", SHAPES)
@given(st.data())
def test_pending_are_the_calls_without_a_result(shape: Shape, data: st.DataObject) -> None:
    """In order, with name and arguments."""
    messages = data.draw(conversations(shape))
    answered = {id for message in messages for id in answers_in(message)}
    asked = [call for message in messages for call in calls_in(message)]
    assert pending(messages) == [call for call in asked if call.id not in answered]


@pytest.mark.parametrize(
    ("shape", "result"),
    [
        ("openai", {"role": "tool", "tool_call_id": "b", "content": INTERRUPTED}),
        ("responses", {"type": "function_call_output", "call_id": "b", "output": INTERRUPTED}),
    ],
)
def test_repair_spells_results_like_the_call(shape: Shape, result: dict[str, Json]) -> None:
    """A missing result stands behind those that are there."""
    messages = [user("go"), *asking(shape, ["a", "b"]), *answering(shape, ["a"]), user("on")]
    assert repair(messages) == [*messages[:-1], result, user("on")]


def test_repair_puts_results_into_the_users_message() -> None:
    """Anthropic takes all results in the one message behind the calls, before any text."""
    messages = [user("go"), *asking("anthropic", ["a", "b"]), user("never mind")]
    repaired = repair(messages)
    assert repaired[:2] == messages[:2]
    (last,) = repaired[2:]
    assert [block["type"] for block in last["content"]] == ["tool_result", "tool_result", "text"]
    assert [block.get("tool_use_id") for block in last["content"]] == ["a", "b", None]
    assert all(block["is_error"] for block in last["content"][:2])


@pytest.mark.parametrize(
    "call",
    [
        {"type": "custom_tool_call", "call_id": "a", "name": "t", "input": "x"},
        {"role": "assistant", "tool_calls": [{"id": "a", "name": "t", "args": "x"}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "name": "t", "arguments": "x"}]},
    ],
    ids=str,
)
def test_calls_of_other_spellings_are_known(call: dict[str, Json]) -> None:
    """Custom tools, and frameworks that spell calls flat."""
    (found,) = calls_in(call)
    assert found.to_dict() == {"id": "a", "name": "t", "arguments": "x"}
    assert pending([call]) == [found]
    assert pending(repair([call])) == []
