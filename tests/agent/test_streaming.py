"""What a stream and its subscribers get: every delta and event, in order, and late ones too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Delta, Event, Session
from backtrail.agent.loop import Loop
from backtrail.agent.models.base import ModelFailed, Reply
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.tools import tools_named
from backtrail.events import Json
from backtrail.session.listeners import Subscription
from backtrail.session.turns import LiveTurn

from .servers import AnthropicServer, Failure, OpenAIServer
from .test_turns import call, calling, notified, saying

LOOK = calling(call("1", "glob", pattern="*.nothing"))


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def at(server: OpenAIServer, url: str = "memory:", **options: Json) -> Session:
    more = {"base_url": server.url}
    return Session.open(url, "s", agent="vllm:m", tools="all", agent_options=more, **options)


def heard(subscription: Subscription) -> list[Delta | Event]:
    """All that is queued."""
    items = []
    while (item := subscription.get(timeout=0.05)) is not None:
        items.append(item)
    return items


def deltas(items: list[Delta | Event], type: str) -> list[dict[str, Json]]:
    return [item.data for item in items if isinstance(item, Delta) and item.type == type]


def test_a_stream_gives_everything_in_order(server: OpenAIServer, tmp_path: Path) -> None:
    """Words as they come, then the message that is stored, then what it used; the tools."""
    thinking = {**LOOK, "reasoning_content": "let me look"}
    server.script(thinking, "Nothing is there.")
    with at(server, cwd=tmp_path, files=False) as s:
        items = list(s.stream("go"))
    order = [
        name for n, name in enumerate(notified(items)) if n == 0 or notified(items)[n - 1] != name
    ]
    assert order == [
        "user_message",
        "thinking_delta",
        "assistant_message",
        "usage",
        "message",
        "tool_call",
        "tool_result",
        "text_delta",
        "assistant_message",
        "usage",
        "message",
        "done",
    ]
    text = "".join(data["text"] for data in deltas(items, "text_delta"))
    assert text == "Nothing is there."
    assert "".join(d["text"] for d in deltas(items, "thinking_delta")) == "let me look"
    (asked,) = deltas(items, "tool_call")
    assert asked == {"id": "1", "name": "glob", "input": {"pattern": "*.nothing"}}
    (answered,) = deltas(items, "tool_result")
    results = [item for item in items if isinstance(item, Event) and item.kind == "tool_result"]
    assert answered == {"id": "1", "name": "glob", "seq": results[0].seq, "error": False}
    assert deltas(items, "usage")[0]["usage"]["cache_read_tokens"] == 4
    assert deltas(items, "message")[1]["message"] == saying("Nothing is there.")
    assert deltas(items, "done")[0]["exit_reason"] == "end_turn"
    assert deltas(items, "done")[0]["usage"]["input_tokens"] == 40


def test_thoughts_and_words_of_anthropic() -> None:
    """The same types of deltas."""
    with AnthropicServer() as server:
        thought = {"type": "thinking", "thinking": "hmm hmm", "signature": "EqQ="}
        answer = [thought, {"type": "text", "text": "So it is."}]
        server.script({"role": "assistant", "content": answer})
        options = {"base_url": server.url, "api_key": "k"}
        with Session.open("memory:", agent="anthropic:claude-x", agent_options=options) as s:
            items = list(s.stream("go"))
    assert "".join(d["text"] for d in deltas(items, "thinking_delta")) == "hmm hmm"
    assert "".join(d["text"] for d in deltas(items, "text_delta")) == "So it is."


def test_whatever_is_shown_is_in_the_log() -> None:
    """When a message or result is streamed, a reader of the store finds it."""
    model = ScriptedModel([LOOK, "done"])
    agent = Loop(model, tools_named("all"), Permissions("trusted"))
    with Session.open("memory:", agent=agent) as s:
        for item in s.stream("go"):
            seqs = {event.seq for event in s.events()}
            if isinstance(item, Event):
                assert item.seq in seqs
            elif item.type in ("message", "tool_result"):
                assert item.data["seq"] in seqs
            elif item.type == "done":
                assert [event.kind for event in s.events()][-1] == "turn_end"


def test_several_subscribers_hear_the_same(server: OpenAIServer) -> None:
    """Each all of it, also those that do not drive the turn."""
    server.script(LOOK, "A few words.")
    with at(server) as s, s.subscribe() as one, s.subscribe() as two:
        s.send("go")
        first, second = heard(one), heard(two)
        assert first == second
        names = set(notified(first))
        assert {"text_delta", "tool_call", "tool_result", "usage", "message", "done"} <= names
        assert {"user_message", "assistant_message", "turn_end"} <= names


def test_a_subscriber_in_another_thread_hears_it_as_it_comes() -> None:
    """Not when the turn is over."""
    gate = threading.Event()

    def agent(turn: LiveTurn) -> Iterator[Json]:
        yield Delta("text_delta", {"text": "a"})
        assert gate.wait(10)
        yield saying("ab")

    with Session.open("memory:", agent=agent) as s:
        got: list[str] = []

        def listen() -> None:
            with s.subscribe() as listening:
                ready.set()
                for item in listening:
                    if isinstance(item, Delta) and item.type == "text_delta":
                        got.append(item.data["text"])
                        gate.set()
                    if isinstance(item, Delta) and item.type == "done":
                        return

        ready = threading.Event()
        thread = threading.Thread(target=listen)
        thread.start()
        ready.wait(10)
        assert s.send("go").text == "ab"
        thread.join()
        assert got == ["a"]


def test_a_slow_listener_loses_deltas_and_no_event() -> None:
    """What did not fit is read from the log."""
    words = " ".join(["word"] * 200)
    with Session.open("memory:", agent=Loop(ScriptedModel([words]))) as s:
        with s.subscribe(size=4) as slow:
            s.send("go")
            items = heard(slow)
        assert slow.lost_deltas > 0
        kinds = [item.kind for item in items if isinstance(item, Event)]
        assert kinds == ["user_message", "assistant_message", "turn_end"]


def test_a_late_listener_catches_up_from_the_log() -> None:
    """`follow` gives what was, then what comes; a known id streams the recorded turn."""
    with Session.open("memory:", agent=Loop(ScriptedModel(["one", "two"]))) as s:
        s.send("first", id="r1")
        late = s.follow(after=0)
        seen = [next(late).kind for _ in range(4)]
        assert seen == ["session_start", "user_message", "assistant_message", "turn_end"]
        s.send("second")
        assert [next(late).kind for _ in range(3)] == seen[1:]
        with s.subscribe(size=2, after=1) as listener:
            s.emit(Delta("text_delta", {"text": "x"}))
            kinds = [item.kind for item in heard(listener) if isinstance(item, Event)]
        assert kinds == seen[1:] * 2
        recorded = list(s.stream("first", id="r1"))
        assert notified(recorded) == ["assistant_message", "turn_end", "done"]


def test_a_failed_turn_reports_its_error(server: OpenAIServer) -> None:
    """`error`, then `done`; a model's failure raises nothing."""
    server.script(Failure(400, "no such thing"))
    with at(server) as s:
        items = list(s.stream("go"))
    assert notified(items)[-2:] == ["error", "done"]
    assert "no such thing" in deltas(items, "error")[0]["error"]
    assert deltas(items, "done")[0]["exit_reason"] == "error"


def test_a_retry_is_reported() -> None:
    """So that a screen forgets half an answer."""
    busy = ModelFailed("busy", transient=True, retry_after=0.01)
    with Session.open("memory:", agent=Loop(ScriptedModel([busy, "fine"]))) as s:
        items = list(s.stream("go"))
    (again,) = deltas(items, "retry")
    assert again == {"error": "busy", "seconds": 0.01, "attempt": 1}


def test_a_cancelled_turn_says_that_it_is_over() -> None:
    """To the caller of the stream and to others."""
    with Session.open("memory:", agent=Loop(ScriptedModel(["a few words"]))) as s:
        with s.subscribe() as listening:
            items = []
            for item in s.stream("go"):
                items.append(item)
                if isinstance(item, Delta) and item.type == "text_delta":
                    s.cancel()
            assert deltas(items, "done")[0]["exit_reason"] == "interrupted"
            assert deltas(heard(listening), "done")[0]["exit_reason"] == "interrupted"
        assert [m["role"] for m in s.messages()] == ["user"]


def test_a_stream_that_is_left_notifies_subscribers() -> None:
    """The turn has ended for them as well."""
    s = Session.open("memory:", agent=Loop(ScriptedModel(["a few words"])))
    with s, s.subscribe() as listening:
        for item in s.stream("go"):
            if isinstance(item, Delta):
                break
        assert deltas(heard(listening), "done")[0]["exit_reason"] == "interrupted"


def test_usage_without_numbers_is_not_reported() -> None:
    """A server that counts nothing."""
    with Session.open("memory:", agent=Loop(ScriptedModel([Reply(saying("x"))]))) as s:
        items = list(s.stream("go"))
    assert deltas(items, "usage") == []
