"""Messages as agent frameworks keep them: into every format, and shown to people."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from backtrail import Session
from backtrail.events import Format, NewEvent
from backtrail.events.calls import answers_in, calls_in
from backtrail.events.messages import format_of
from backtrail.formats.messages import convert
from backtrail.formats.parts import Text, answers_of, shown_in

FORMATS: tuple[Format, ...] = get_args(Format)
ASKED: dict[str, list[dict[str, Any]]] = {
    "langchain": [
        {"type": "human", "content": "two files?"},
        {
            "type": "ai",
            "content": "I look",
            "tool_calls": [
                {"name": "read", "args": {"path": "a"}, "id": "c1", "type": "tool_call"},
                {"name": "read", "args": {"path": "b"}, "id": "c2", "type": "tool_call"},
            ],
        },
        {"type": "tool", "content": "A", "tool_call_id": "c1"},
        {"type": "tool", "content": "gone", "tool_call_id": "c2", "status": "error"},
        {"type": "ai", "content": "one"},
    ],
    "gemini": [
        {"role": "user", "parts": [{"text": "two files?"}]},
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True},
                {"text": "I look"},
                {"functionCall": {"id": "c1", "name": "read", "args": {"path": "a"}}},
                {"functionCall": {"id": "c2", "name": "read", "args": {"path": "b"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "read", "response": {"result": "A"}}},
                {"functionResponse": {"id": "c2", "name": "read", "response": {"error": "gone"}}},
            ],
        },
        {"role": "model", "parts": [{"text": "one"}]},
    ],
    "converse": [
        {"role": "user", "content": [{"text": "two files?"}]},
        {
            "role": "assistant",
            "content": [
                {"text": "I look"},
                {"toolUse": {"toolUseId": "c1", "name": "read", "input": {"path": "a"}}},
                {"toolUse": {"toolUseId": "c2", "name": "read", "input": {"path": "b"}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "c1", "content": [{"text": "A"}]}},
                {
                    "toolResult": {
                        "toolUseId": "c2",
                        "content": [{"text": "gone"}],
                        "status": "error",
                    }
                },
            ],
        },
        {"role": "assistant", "content": [{"text": "one"}]},
    ],
    "pydantic-ai": [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "two files?"}]},
        {
            "kind": "response",
            "parts": [
                {"part_kind": "thinking", "content": "hm"},
                {"part_kind": "text", "content": "I look"},
                {
                    "part_kind": "tool-call",
                    "tool_name": "read",
                    "args": {"path": "a"},
                    "tool_call_id": "c1",
                },
                {
                    "part_kind": "tool-call",
                    "tool_name": "read",
                    "args": '{"path":"b"}',
                    "tool_call_id": "c2",
                },
            ],
        },
        {
            "kind": "request",
            "parts": [
                {
                    "part_kind": "tool-return",
                    "tool_name": "read",
                    "content": "A",
                    "tool_call_id": "c1",
                },
                {
                    "part_kind": "retry-prompt",
                    "tool_name": "read",
                    "content": "gone",
                    "tool_call_id": "c2",
                },
            ],
        },
        {"kind": "response", "parts": [{"part_kind": "text", "content": "one"}]},
    ],
}


def written(source: str, to: Format) -> list[dict[str, Any]]:
    """The conversation of a framework in another format."""
    return convert([(message, source) for message in ASKED[source]], to)  # type: ignore[misc]


@pytest.mark.parametrize("source", ASKED)
@pytest.mark.parametrize("to", FORMATS)
def test_every_format_says_the_same(source: str, to: Format) -> None:
    """Its words, its calls and what answered them, from each into each and on to OpenAI's."""
    messages = written(source, to)
    if source == to:
        assert messages == ASKED[source]
    chat = convert([(message, to) for message in messages], "openai")
    assert [m["role"] for m in chat] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [m["content"] for m in chat] == ["two files?", "I look", "A", "gone", "one"]
    calls = [call for message in chat for call in calls_in(message)]
    assert [(call.id, call.name) for call in calls] == [("c1", "read"), ("c2", "read")]
    assert [call.arguments for call in calls] == ['{"path":"a"}', '{"path":"b"}']


@pytest.mark.parametrize("source", ASKED)
def test_it_is_shown_without_being_converted(source: str) -> None:
    """Words, calls and answers are found in a message as it is."""
    messages = ASKED[source]
    shown = [part.text for m in messages for part in shown_in(m) if isinstance(part, Text)]
    assert [text for text in shown if text not in ("A", "gone")] == ["two files?", "I look", "one"]
    answers = [one for message in messages for one in answers_of(message)]
    assert [one.call_id for one in answers] == ["c1", "c2"]
    assert answers[0].text.endswith("A") or "A" in answers[0].text
    assert [call.id for m in messages for call in calls_in(m)] == ["c1", "c2"]
    assert [id for m in messages for id in sorted(answers_in(m))] == ["c1", "c2"]
    assert {format_of(message) for message in messages} == {source}


@pytest.mark.parametrize("source", ASKED)
def test_a_call_without_a_result_is_answered(source: str) -> None:
    """In the spelling of the call, where a process ended before the tool did."""
    with Session.create("memory:") as session:
        for message in ASKED[source][:2]:
            kind = "user_message" if message is ASKED[source][0] else "assistant_message"
            data = {"message": message, "format": source}
            session.store.append(session.id, [NewEvent(kind, data)])
        messages = session.messages()
        assert {id for m in messages for id in answers_in(m)} == {"c1", "c2"}
        assert {format_of(message) for message in messages} == {source}
        assert len(session.messages(format="openai")) == 4
