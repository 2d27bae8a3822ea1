"""What a turn says is what was said to the user: no reasoning, no calls, no attachments.

The oracle is the text that the test had the model say, in the words of each provider.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

import backtrail
from backtrail import Delta, Session
from backtrail.agent.loop import Loop
from backtrail.agent.models.base import Reply
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.subagents import spawn
from backtrail.agent.tools import tools_named
from backtrail.events import Format, Json
from backtrail.events.messages import speech_of
from backtrail.session.turns import LiveTurn

from .agent.servers import Answer, AnthropicServer, OpenAIServer
from .agent.test_turns import call, calling

SECRET = "SECRET-REASONING"
PICTURE = base64.b64encode(b"a picture" * 40).decode()
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
ITEM = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"x": 1}'}


def said(*blocks: Json) -> dict[str, Json]:
    return {"role": "assistant", "content": list(blocks)}


def words(text: str, kind: str = "text") -> dict[str, Json]:
    return {"type": kind, "text": text}


MODEL: dict[str, tuple[Json, str]] = {
    "chat": ({"role": "assistant", "content": "Hi."}, "Hi."),
    "chat-reasons": (
        {
            "role": "assistant",
            "content": "Hi.",
            "reasoning_content": SECRET,
            "reasoning_details": [{"type": "reasoning.text", "text": SECRET}],
            "tool_calls": [CALL],
        },
        "Hi.",
    ),
    "chat-only-calls": ({"role": "assistant", "content": None, "tool_calls": [CALL]}, ""),
    "chat-refuses": ({"role": "assistant", "content": None, "refusal": "No."}, "No."),
    "chat-parts": (said(words("Hel"), words("lo.")), "Hello."),
    "responses": (said(words("Hel", "output_text"), words("lo.", "output_text")), "Hello."),
    "responses-refuses": (said({"type": "refusal", "refusal": "No."}), "No."),
    "responses-reasons": (
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": SECRET}],
            "content": [{"type": "reasoning_text", "text": SECRET}],
        },
        "",
    ),
    "responses-calls": (ITEM, ""),
    "anthropic": (
        said(
            {"type": "thinking", "thinking": SECRET, "signature": "c2ln"},
            words("It is "),
            {**words("blue"), "citations": [{"cited_text": SECRET}]},
            words("."),
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"x": SECRET}},
        ),
        "It is blue.",
    ),
    "anthropic-searches": (
        said(
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": SECRET}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s1",
                "content": [{"type": "web_search_result", "title": SECRET}],
            },
            words("Found."),
        ),
        "Found.",
    ),
    "gemini": (
        {"role": "model", "parts": [{"text": SECRET, "thought": True}, {"text": "Hi."}]},
        "Hi.",
    ),
}

USER: dict[str, Json] = {
    "chat": [
        words("look"),
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PICTURE}},
        words("well"),
    ],
    "responses": [
        words("look", "input_text"),
        {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
        {"type": "input_file", "filename": "a.pdf", "file_data": PICTURE},
        words("well", "input_text"),
    ],
    "anthropic": [
        words("look"),
        {"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": PICTURE}},
        {
            "type": "document",
            "title": "a title",
            "source": {"type": "text", "media_type": "text/plain", "data": PICTURE},
        },
        words("well"),
    ],
}


@pytest.mark.parametrize("message, text", MODEL.values(), ids=MODEL)
def test_the_words_of_a_model(message: Json, text: str) -> None:
    """Its text parts, pieces of one text."""
    assert speech_of(message) == text


@pytest.mark.parametrize("content", USER.values(), ids=USER)
def test_the_words_of_a_user(content: Json) -> None:
    """What an agent is given as the prompt, and what a turn's changes are listed under."""
    heard: list[str] = []

    def agent(turn: LiveTurn) -> Iterator[Json]:
        heard.append(turn.prompt)
        yield {"role": "assistant", "content": "ok"}

    with Session.open("memory:", agent=agent) as s:
        s.send(content)
    assert heard == ["look\nwell"]


@pytest.mark.parametrize("message, text", MODEL.values(), ids=MODEL)
def test_a_result_says_what_the_model_said(message: Json, text: str) -> None:
    """Where the last message has no words, the last one that has some is the answer."""
    before = {"role": "assistant", "content": "Before."}
    with Session.open("memory:", agent=lambda turn: [before, message]) as s:
        assert s.send("go", id="r").text == (text or "Before.")
        assert s.send("go", id="r").text == (text or "Before.")


def test_an_answer_in_several_items() -> None:
    """Items of one response are one answer, behind a tool's result another begins."""

    def item(text: str) -> dict[str, Json]:
        return {"type": "message", "role": "assistant", "content": [words(text, "output_text")]}

    thought = MODEL["responses-reasons"][0]
    output = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    items = [item("I look."), ITEM, output, thought, item("It is "), thought, item("blue.")]
    with Session.open("memory:", agent=lambda turn: items) as s:
        assert s.send("go").text == "It is blue."
    # Parts of one message, as some programs hand them on, bear its id.
    parts = [{"id": "msg_1", **said(words(text))} for text in ("It is ", "blue.")]
    with Session.open("memory:", agent=lambda turn: parts) as s:
        assert s.send("go").text == "It is blue."


@pytest.mark.parametrize("format", ["openai", "anthropic"])
def test_a_subagent_hands_on_its_words(format: Format) -> None:
    """Its parent's model is sent what the subagent said, and not what it thought."""
    thinking = {
        "openai": {"role": "assistant", "content": "Two.", "reasoning_content": SECRET},
        "anthropic": said(
            {"type": "thinking", "thinking": SECRET, "signature": "c2ln"}, words("Tw"), words("o.")
        ),
    }
    task = call("t1", "task", description="count", prompt="How many?")
    replies: list[Json] = [calling(task), Reply(thinking[format]), "It is two."]
    if format == "anthropic":
        block = {"type": "tool_use", "id": "t1", "name": "task"}
        input = {"description": "count", "prompt": "How many?"}
        replies[0] = said({**block, "input": input})
    model = ScriptedModel(replies, format)
    loop = Loop(model, tools_named("all"), Permissions("trusted"), spawn=spawn)
    with Session.open("memory:", agent=loop) as s:
        assert s.send("go").text == "It is two."
    sent = str(model.requests[-1].messages)
    assert "Two." in sent and SECRET not in sent


def test_what_servers_stream_is_what_is_answered(tmp_path: Path) -> None:
    """The text deltas of a stream, joined, are the text of the answer, with both protocols."""
    with OpenAIServer() as server:
        answer = {"role": "assistant", "content": "Hi.", "reasoning_content": SECRET}
        server.script(answer, answer)
        options: dict[str, Json] = {"base_url": server.url, "api_key": "k"}
        asked = backtrail.query("hi", provider="openai", model="m", **options)
        assert asked.text == "Hi."
        with Session.open("memory:", agent="openai:m", agent_options=options) as s:
            reported = [d for d in s.stream("hi", id="r") if isinstance(d, Delta)]
            assert "".join(d.data["text"] for d in reported if d.type == "text_delta") == "Hi."
            assert s.send("hi", id="r").text == "Hi."
    with AnthropicServer() as other:
        blocks = [
            {"type": "thinking", "thinking": SECRET, "signature": "c2ln"},
            words("It is "),
            words("blue."),
        ]
        other.script(Answer(said(*blocks)))
        options = {"base_url": other.url, "api_key": "k"}
        assert backtrail.query("hi", provider="anthropic", model="m", **options).text == (
            "It is blue."
        )
