"""The Messages API: blocks, thinking that goes back as it came, cache counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from backtrail.agent.models.anthropic import MAX_TOKENS
from backtrail.agent.models.base import Model, Reply, Request, ToolSpec, open_model
from backtrail.events.calls import calls_in

from .conftest import Talk, failure_of, notified, reply_of
from .servers import Answer, AnthropicServer

HI = {"role": "user", "content": "hi"}
READ = ToolSpec("read", "Reads a file.", {"type": "object", "properties": {"path": {}}})
THOUGHT = {"type": "thinking", "thinking": "I should read it", "signature": "EqQBCg=="}
HIDDEN = {"type": "redacted_thinking", "data": "EmwKAhgB"}


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


def model_at(server: AnthropicServer, **options: object) -> Model:
    return open_model("anthropic", "claude-x", base_url=server.url, api_key="k", **options)


def use(id: str, input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "read", "input": input}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def results(*ids: str) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": id, "content": "done"} for id in ids]
    return {"role": "user", "content": blocks}


def answering(**changes: Any) -> Callable[[Sequence[Reply]], Request]:
    """The request that answers the calls of the last reply."""

    def step(replies: Sequence[Reply]) -> Request:
        message = replies[-1].message
        answers = results(*(call.id for call in calls_in(message)))
        return Request(**{"messages": [HI, message, answers], "tools": [READ], **changes})

    return step


def test_a_request_is_spelled_as_the_api_wants_it(server: AnthropicServer, talk: Talk) -> None:
    """The system prompt apart, tools with their schema, a longest answer in any case."""
    server.script("x")
    talk(model_at(server), Request([HI], system="be brief", tools=[READ]))
    body = server.requests[0]
    assert body["system"] == "be brief" and body["messages"] == [HI]
    assert body["max_tokens"] == MAX_TOKENS
    assert body["tools"] == [
        {"name": "read", "description": "Reads a file.", "input_schema": READ.schema}
    ]
    assert "temperature" not in body


def test_a_system_message_goes_where_it_belongs(server: AnthropicServer, talk: Talk) -> None:
    """And fields that the API does not know stay here."""
    server.script("x")
    stored = {**said({"type": "text", "text": "hello"}), "id": "msg_0", "usage": {}}
    messages = [{"role": "system", "content": "be brief"}, HI, stored, HI]
    talk(model_at(server), Request(messages))
    assert server.requests[0]["system"] == "be brief"
    assert server.requests[0]["messages"][1] == said({"type": "text", "text": "hello"})


def test_usage_counts_the_cache_apart(server: AnthropicServer, talk: Talk) -> None:
    """What is counted last holds: output grows while the answer does."""
    server.script("x")
    assert reply_of(talk(model_at(server), Request([HI]))[0]).usage == {
        "input_tokens": 11,
        "output_tokens": 9,
        "cache_read_tokens": 40,
        "cache_write_tokens": 30,
    }


def test_thinking_goes_back_as_it_came(server: AnthropicServer, talk: Talk) -> None:
    """Signature, encrypted thinking and order; the server compares."""
    message = said(THOUGHT, HIDDEN, {"type": "text", "text": "Let me look."}, use("t1", {"a": 1}))
    server.script(message, "fine")
    first, second = talk(model_at(server), Request([HI], tools=[READ]), answering())
    reply = reply_of(first)
    assert reply.message == message
    assert reply.stop_reason == "tool_use"
    assert notified(first, "thinking_delta") == "I should read it"
    assert notified(first) == "Let me look." and notified(second) == "fine"
    assert server.requests[1]["messages"][1] == message


def test_thinking_that_is_kept_secret_has_a_signature_alone(
    server: AnthropicServer, talk: Talk
) -> None:
    """Newer models leave the words out; the block is needed all the same."""
    message = said({**THOUGHT, "thinking": ""}, use("t1", {}))
    server.script(message, "fine")
    first, second = talk(model_at(server), Request([HI], tools=[READ]), answering())
    assert reply_of(first).message == message
    assert notified(first, "thinking_delta") == "" and notified(second) == "fine"


def test_parallel_calls_and_their_inputs(server: AnthropicServer, talk: Talk) -> None:
    """Each input from its own pieces; no input is an empty object."""
    message = said(use("t1", {"path": "a.txt"}), use("t2", {"deep": [{"x": None}]}), use("t3", {}))
    server.script(message, "fine")
    first, second = talk(model_at(server), Request([HI], tools=[READ]), answering())
    assert reply_of(first).message == message
    assert notified(second) == "fine"


@pytest.mark.parametrize("text", ['{"path": "a', "[1, 2]", "words"])
def test_malformed_input_is_kept(server: AnthropicServer, talk: Talk, text: str) -> None:
    """Wrapped, since the API takes nothing but an object back."""
    server.script(said(use("t1", text)), "fine")
    first, second = talk(model_at(server), Request([HI], tools=[READ]), answering())
    assert calls_in(reply_of(first).message)[0].arguments == {"_raw": text}
    assert notified(second) == "fine"


def test_thinking_bound_elsewhere_is_left_out(talk: Talk) -> None:
    """After the system prompt has changed, the conversation goes on without it."""
    with AnthropicServer(binding=True) as server:
        server.script(said(THOUGHT, use("t1", {})), "same", "other")
        _, same, other = talk(
            model_at(server),
            Request([HI], system="a", tools=[READ]),
            answering(system="a"),
            lambda r: answering(system="b")(r[:1]),
        )
        assert notified(same) == "same" and notified(other) == "other"
        assert [len(body["messages"][1]["content"]) for body in server.requests[1:]] == [2, 2, 1]


def test_thinking_that_was_changed_is_refused(server: AnthropicServer, talk: Talk) -> None:
    """That is a mistake somewhere, and is not covered up."""
    server.script(said(THOUGHT, use("t1", {})))

    def changed(replies: Sequence[Reply]) -> Request:
        blocks = [{**THOUGHT, "thinking": "changed"}, use("t1", {})]
        return Request([HI, said(*blocks), results("t1")], tools=[READ])

    _, refused = talk(model_at(server), Request([HI], tools=[READ]), changed)
    assert failure_of(refused).status == 400 and not failure_of(refused).transient
    assert "signature" in str(refused)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("model_context_window_exceeded", "max_tokens"),
        ("stop_sequence", "stop_sequence"),
        ("refusal", "refusal"),
        ("something_new", "end_turn"),
    ],
)
def test_why_it_stopped(server: AnthropicServer, talk: Talk, stop: str, reason: str) -> None:
    """In one set of words."""
    server.script(Answer("x", stop_reason=stop))
    assert reply_of(talk(model_at(server), Request([HI]))[0]).stop_reason == reason


@pytest.mark.parametrize("blocks", [(), ({"type": "text", "text": "\n"},)])
def test_an_answer_without_a_word_can_be_sent_back(
    server: AnthropicServer, talk: Talk, blocks: Sequence[dict[str, Any]]
) -> None:
    """The API refuses an empty message, so it is left out."""
    server.script(said(*blocks), "fine")
    first, second = talk(
        model_at(server), Request([HI]), lambda r: Request([HI, r[-1].message, HI])
    )
    assert reply_of(first).message["content"] == []
    assert notified(second) == "fine"


def test_images_pass_through(server: AnthropicServer, talk: Talk) -> None:
    """In a message and in a result."""
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    image = {"type": "image", "source": source}
    shown = {"role": "user", "content": [image, {"type": "text", "text": "what?"}]}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [image]}
    messages = [shown, said(use("t1", {})), {"role": "user", "content": [result]}]
    server.script("a dot")
    assert notified(talk(model_at(server), Request(messages, tools=[READ]))[0]) == "a dot"
    assert server.requests[0]["messages"] == messages


def test_unknown_events_do_no_harm(server: AnthropicServer, talk: Talk) -> None:
    """The API may add some at any time."""
    start = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1}}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "new", "x": 1}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "y": 2}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}
    server.script(Answer(events=[start, {"type": "new_event"}, block, delta, end]))
    reply = reply_of(talk(model_at(server), Request([HI]))[0])
    assert reply.message["content"] == [{"type": "new", "x": 1}]


@pytest.mark.parametrize(
    "messages",
    [
        [HI, said(use("t1", {})), HI],
        [HI, said(use("t1", {}), use("t2", {})), results("t1")],
        [HI, results("t1")],
        [HI, said(use("t1", {})), {"role": "user", "content": [{"type": "text", "text": "x"}]}],
        [said({"type": "text", "text": "x"}), HI],
        [HI, said({"type": "text", "text": "x"})],
        [{"role": "user", "content": " "}],
        [HI, said(THOUGHT, {"type": "text", "text": "x"}), HI],
    ],
    ids=[
        "unanswered",
        "one of two",
        "answer to nobody",
        "words first",
        "assistant first",
        "assistant last",
        "blank",
        "made up thought",
    ],
)
def test_the_server_refuses_what_anthropic_refuses(
    server: AnthropicServer, messages: list[dict[str, Any]]
) -> None:
    """So that tests on it mean something; the script stays as it is."""
    server.script("never")
    model = model_at(server)
    with pytest.raises(Exception, match="400"):
        list(model.stream(Request(messages, tools=[READ])))
    model.close()
    assert len(server.refused) == server.left == 1
