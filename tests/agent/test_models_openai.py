"""Chat completions: calls from pieces, odd servers, what goes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from backtrail.agent.models.base import Model, Reply, Request, ToolSpec, open_model
from backtrail.events.calls import calls_in

from .conftest import Talk, failure_of, notified, reply_of
from .servers import Answer, OpenAIServer

HI = {"role": "user", "content": "hi"}
READ = ToolSpec("read", "Reads a file.", {"type": "object", "properties": {"path": {}}})
PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def model_at(server: OpenAIServer, **options: object) -> Model:
    return open_model("vllm", "m-1", base_url=server.url, **options)


def call(id: str | None, name: str, arguments: str) -> dict[str, Any]:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if id is None else {"id": id, **made}


def calling(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def results(reply: Reply) -> list[dict[str, Any]]:
    made = calls_in(reply.message)
    return [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in made]


def then(*given: dict[str, Any]) -> Callable[[Sequence[Reply]], Request]:
    """The request that answers the calls of the last reply, and says some more."""

    def step(replies: Sequence[Reply]) -> Request:
        last = replies[-1]
        return Request([HI, last.message, *results(last), *given], tools=[READ])

    return step


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m-1", "choices": [choice]}


def test_a_request_is_spelled_as_the_api_wants_it(server: OpenAIServer, talk: Talk) -> None:
    """The system prompt first, tools as functions, usage asked for."""
    server.script("x")
    request = Request([HI], system="be brief", tools=[READ], temperature=0.5)
    talk(model_at(server), request)
    body = server.requests[0]
    assert body["messages"] == [{"role": "system", "content": "be brief"}, HI]
    assert body["tools"][0]["function"] == {
        "name": "read",
        "description": "Reads a file.",
        "parameters": READ.schema,
    }
    assert body["stream_options"] == {"include_usage": True}
    assert body["temperature"] == 0.5
    assert "max_tokens" not in body and "stop" not in body


def test_a_system_message_is_not_said_twice(server: OpenAIServer, talk: Talk) -> None:
    """It may stand among the messages already."""
    server.script("x")
    messages = [{"role": "system", "content": "be brief"}, HI]
    talk(model_at(server), Request(messages, system="be brief"))
    assert server.requests[0]["messages"] == messages


def test_usage_is_counted_under_our_names(server: OpenAIServer, talk: Talk) -> None:
    """What came from the cache and what was thought is lifted up."""
    server.script("x")
    usage = reply_of(talk(model_at(server), Request([HI]))[0]).usage
    assert usage["input_tokens"] == 20 and usage["output_tokens"] == 7
    assert usage["cache_read_tokens"] == 4 and usage["reasoning_tokens"] == 2


def test_a_server_may_count_nothing(talk: Talk) -> None:
    """Then there is no usage, and a reply all the same."""
    with OpenAIServer(usage=False) as server:
        server.script("x")
        assert reply_of(talk(model_at(server), Request([HI]))[0]).usage == {}


def test_parallel_calls_come_together_from_their_pieces(server: OpenAIServer, talk: Talk) -> None:
    """Arguments of both arrive in turn; each ends up with its own."""
    message = calling(
        call("c1", "read", '{"path": "a.txt"}'),
        call("c2", "read", '{"path": "some/where/else.txt"}'),
        content="Let me look.",
    )
    server.script(message, "fine")
    first, second = talk(model_at(server), Request([HI], tools=[READ]), then())
    reply = reply_of(first)
    assert reply.message == message
    assert reply.stop_reason == "tool_use"
    assert notified(first) == "Let me look." and notified(second) == "fine"
    assert server.refused == []


def test_a_call_without_words_has_no_content(server: OpenAIServer, talk: Talk) -> None:
    """As the API itself has it."""
    server.script(calling(call("c1", "read", "{}")))
    reply = reply_of(talk(model_at(server), Request([HI], tools=[READ]))[0])
    assert reply.message["content"] is None


@pytest.mark.parametrize("ids", [(None, None), ("", ""), ("same", "same")])
def test_calls_get_ids_of_their_own(server: OpenAIServer, talk: Talk, ids: tuple[Any, Any]) -> None:
    """Where a server gives none, or one for all; answers can then be distinguished."""
    server.script(calling(*(call(id, "read", "{}") for id in ids)), "fine")
    first, second = talk(model_at(server), Request([HI], tools=[READ]), then())
    made = [call.id for call in calls_in(reply_of(first).message)]
    assert len(set(made)) == 2 and all(made)
    assert notified(second) == "fine"


@pytest.mark.parametrize("index", [{"index": 0}, {}])
def test_calls_are_kept_apart_without_an_index(
    server: OpenAIServer, talk: Talk, index: dict[str, int]
) -> None:
    """Some servers send each call whole, with the index 0 or none."""
    pieces = [
        chunk({"tool_calls": [{**index, **call(id, "read", f'{{"path": "{id}"}}')}]})
        for id in ("a", "b")
    ]
    server.script(Answer(events=[*pieces, chunk({}, "stop")]))
    reply = reply_of(talk(model_at(server), Request([HI], tools=[READ]))[0])
    assert [(c.id, c.arguments) for c in calls_in(reply.message)] == [
        ("a", '{"path": "a"}'),
        ("b", '{"path": "b"}'),
    ]
    assert reply.stop_reason == "tool_use"


def test_a_name_that_is_repeated_is_one_name(server: OpenAIServer, talk: Talk) -> None:
    """And further fields of a call are kept, for the server that wants them back."""
    piece = {"index": 0, "id": "a", "function": {"name": "read", "arguments": "{"}}
    more = {"index": 0, "id": "a", "function": {"name": "read", "arguments": "}"}}
    signed = {"index": 0, "extra_content": {"google": {"thought_signature": "s"}}}
    events = [chunk({"tool_calls": [p]}) for p in (piece, more, signed)]
    server.script(Answer(events=[*events, chunk({}, "tool_calls")]))
    (made,) = reply_of(talk(model_at(server), Request([HI]))[0]).message["tool_calls"]
    assert made["function"] == {"name": "read", "arguments": "{}"}
    assert made["extra_content"] == {"google": {"thought_signature": "s"}}


@pytest.mark.parametrize("arguments", ['{"path": "a', "just words", "[1]"])
def test_malformed_arguments_are_kept_as_they_are(talk: Talk, arguments: str) -> None:
    """In the reply. A server that reads them gets them wrapped, so the conversation goes on."""
    for strict in (False, True):
        with OpenAIServer(strict=strict) as server:
            server.script(calling(call("c1", "read", arguments)), "fine")
            model = model_at(server, strict=strict)
            first, second = talk(model, Request([HI], tools=[READ]), then())
            assert calls_in(reply_of(first).message)[0].arguments == arguments
            assert notified(second) == "fine"
            sent = server.requests[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
            assert (sent == arguments) is strict


def test_no_arguments_are_an_empty_object(server: OpenAIServer, talk: Talk) -> None:
    """Some servers send no text at all for a tool without parameters."""
    server.script(calling(call("c1", "now", "")))
    reply = reply_of(talk(model_at(server), Request([HI], tools=[READ]))[0])
    assert calls_in(reply.message)[0].arguments == "{}"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_kept_and_sent_back(server: OpenAIServer, talk: Talk, name: str) -> None:
    """Under the server's own name for it."""
    message = {**calling(call("c1", "read", "{}")), name: "I should read the file"}
    server.script(message, "fine")
    first, _ = talk(model_at(server), Request([HI], tools=[READ]), then())
    assert notified(first, "thinking_delta") == "I should read the file"
    assert reply_of(first).message[name] == "I should read the file"
    assert server.requests[1]["messages"][1][name] == "I should read the file"


def test_openai_itself_is_not_sent_reasoning_of_others(talk: Talk) -> None:
    """It refuses fields that it does not know."""
    message = {"role": "assistant", "content": "hello", "reasoning_content": "hm"}
    with OpenAIServer(strict=True) as server:
        server.script("fine", "fine")
        request = Request([HI, message, HI], max_tokens=5)
        (fine,) = talk(model_at(server, strict=True), request)
        assert notified(fine) == "fine"
        assert server.requests[0]["max_completion_tokens"] == 5
        (refused,) = talk(model_at(server), request)
        assert failure_of(refused).status == 400


def test_reasoning_details_are_put_together(server: OpenAIServer, talk: Talk) -> None:
    """OpenRouter wants its blocks back whole."""
    kind = {"type": "reasoning.text", "index": 0}
    events = [
        chunk({"reasoning": "I ", "reasoning_details": [{**kind, "text": "I "}]}),
        chunk({"reasoning": "see", "reasoning_details": [{**kind, "text": "see"}]}),
        chunk({"reasoning_details": [{**kind, "signature": "sig"}]}),
        chunk({"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "x"}]}),
        chunk({"content": "ok"}, "stop"),
    ]
    server.script(Answer(events=events))
    message = reply_of(talk(model_at(server), Request([HI]))[0]).message
    assert message["reasoning_details"] == [
        {**kind, "text": "I see", "signature": "sig"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
    ]
    assert message["reasoning"] == "I see"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("tool_calls", "tool_use"),
    ],
)
def test_why_it_stopped(server: OpenAIServer, talk: Talk, finish: str, reason: str) -> None:
    """In one set of words."""
    server.script(Answer("x", stop_reason=finish))
    assert reply_of(talk(model_at(server), Request([HI]))[0]).stop_reason == reason


def test_a_stop_sequence_is_named_by_vllm(server: OpenAIServer, talk: Talk) -> None:
    """Others say only that the answer ended."""
    server.script(Answer(events=[chunk({"content": "a"}), chunk({}, "stop", stop_reason="END")]))
    request = Request([HI], stop=["END"])
    assert reply_of(talk(model_at(server), request)[0]).stop_reason == "stop_sequence"


def test_a_refusal_is_reported_and_kept(server: OpenAIServer, talk: Talk) -> None:
    """It can be sent back."""
    server.script({"role": "assistant", "refusal": "I will not"}, "fine")
    first, second = talk(
        model_at(server),
        Request([HI]),
        lambda replies: Request([HI, replies[-1].message, HI]),
    )
    reply = reply_of(first)
    assert reply.stop_reason == "refusal"
    assert reply.message == {"role": "assistant", "content": None, "refusal": "I will not"}
    assert notified(first) == "I will not" and notified(second) == "fine"


def test_an_answer_without_a_word_can_be_sent_back(server: OpenAIServer, talk: Talk) -> None:
    """It has empty text, not none."""
    server.script("", "fine")
    talk(model_at(server), Request([HI]), lambda r: Request([HI, r[-1].message, HI]))
    assert server.refused == []
    assert server.requests[1]["messages"][1] == {"role": "assistant", "content": ""}


def test_images_pass_through(server: OpenAIServer, talk: Talk) -> None:
    """As the caller spelled them."""
    image = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
    message = {"role": "user", "content": [{"type": "text", "text": "what?"}, image]}
    server.script("a dot")
    assert notified(talk(model_at(server), Request([message]))[0]) == "a dot"
    assert server.requests[0]["messages"] == [message]


def test_given_messages_are_not_changed(server: OpenAIServer, talk: Talk) -> None:
    """Whatever is done to them on the way out."""
    message = calling(call("c1", "read", "nonsense"))
    request = Request([HI, message, *results(Reply(message))], system="s", tools=[READ])
    server.script("x")
    talk(model_at(server), request)
    assert message == calling(call("c1", "read", "nonsense"))
    assert len(request.messages) == 3


@pytest.mark.parametrize(
    "messages",
    [
        [HI, calling(call("c1", "read", "{}"))],
        [HI, calling(call("c1", "read", "{}")), HI],
        [HI, {"role": "tool", "tool_call_id": "c1", "content": "x"}],
        [HI, {"role": "assistant", "content": None}],
        [HI, {"role": "robot", "content": "x"}],
        [],
    ],
    ids=["open call", "late answer", "answer to nobody", "nothing said", "role", "empty"],
)
def test_the_server_refuses_what_openai_refuses(
    server: OpenAIServer, messages: list[dict[str, Any]]
) -> None:
    """So that tests on it mean something; the script stays as it is."""
    server.script("never")
    model = model_at(server)
    with pytest.raises(Exception, match="400"):
        list(model.stream(Request(messages, tools=[READ])))
    model.close()
    assert len(server.refused) == server.left == 1
