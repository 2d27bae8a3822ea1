"""Compaction: the view shrinks, the log keeps everything, and a rewind takes it back."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import Delta, NewEvent, Session
from backtrail.agent.compaction import PROMPT, Compaction
from backtrail.agent.loop import Loop
from backtrail.agent.models.base import ModelFailed, Reply, Request
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.tools import tools_named
from backtrail.events import Format, Json
from backtrail.events.calls import pending
from backtrail.stores import open_store
from tests.talking import kinds
from tests.test_failing import Flaky

from .servers import Answer, AnthropicServer, OpenAIServer
from .test_turns import call, calling, saying

LONG = "word " * 100
NOTE = "[What was said before, in short]"


def is_asked_for(request: Request) -> bool:
    """Whether a request asks for a summary."""
    last = request.messages[-1]["content"]
    return bool(last == PROMPT or (isinstance(last, list) and PROMPT in str(last[-1])))


def answering(request: Request) -> str:
    """Long answers, short summaries."""
    return "in short" if is_asked_for(request) else LONG


def talker(window: int = 800, keep: int = 3, format: Format = "openai", **more: Json) -> Loop:
    model = ScriptedModel([answering] * 99, format)
    return Loop(model, compaction=Compaction(window, keep=keep), **more)


def counted(message: Json, body: dict[str, Json]) -> Answer:
    """An answer of a server that counts a token for four bytes of what it was sent."""
    read, written = len(str(body["messages"])) // 4, len(str(message)) // 4
    names = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    if "max_tokens" in body:
        names = {"input_tokens": read, "output_tokens": written}
    return Answer(message, names)


def requests(loop: Loop) -> list[Request]:
    assert isinstance(loop.model, ScriptedModel)
    return loop.model.requests


def said(request: Request) -> str:
    return str(request.messages)


def test_the_view_shrinks_and_the_log_does_not(url: str) -> None:
    """The system prompt, a summary, and the newest messages are sent."""
    loop = talker()
    with Session.open(url, "s", agent=loop, system_prompt="Be brief.") as s:
        for n in range(8):
            assert s.send(f"question {n}").text == LONG
        assert kinds(s).count("compaction") >= 1
        assert len([m for m in s.messages() if m["role"] == "user"]) == 8
    assert max(len(said(request)) for request in requests(loop)) < 5000
    last = requests(loop)[-1].messages
    assert last[0] == {"role": "system", "content": "Be brief."}
    assert last[1] == {"role": "user", "content": f"{NOTE}\nin short"}
    assert last[-1] == {"role": "user", "content": "question 7"}
    assert "question 0" not in said(requests(loop)[-1])


def test_a_summary_covers_the_one_before_it() -> None:
    """Nothing is forgotten that was in the first."""
    loop = talker()
    with Session.open("memory:", agent=loop) as s:
        for n in range(14):
            s.send(f"question {n}")
        assert kinds(s).count("compaction") >= 2
    asked = [request for request in requests(loop) if is_asked_for(request)]
    assert NOTE not in said(asked[0])
    assert all(NOTE in said(request) for request in asked[1:])
    assert said(requests(loop)[-1]).count(NOTE) == 1


def test_a_rewind_past_it_takes_it_back(url: str) -> None:
    """The whole conversation is sent again; a rewind to behind it keeps it."""
    loop = talker()
    with Session.open(url, "s", agent=loop) as s:
        for n in range(6):
            s.send(f"question {n}")
        (first, *_) = (e for e in s.events() if e.kind == "compaction")
        before = [e for e in s.events() if e.kind == "user_message" and e.seq < first.seq]
        s.rewind(before=before[-1])
        s.send("again")
        request = next(r for r in reversed(requests(loop)) if "again" in said(r))
        # It may have been compacted anew, from all that was said.
        assert any("question 0" in said(r) for r in requests(loop)[-2:])
        assert "in short" in said(request) or "question 0" in said(request)
    wide = talker(100_000)
    with Session.open(url, "s", agent=wide) as s:
        s.rewind(before=before[1])
        s.send("and again")
    assert [m["content"] for m in requests(wide)[0].messages] == ["question 0", LONG, "and again"]


def test_pinned_messages_stay() -> None:
    """And so does the prompt of the turn, however long that takes."""
    loop = talker()
    with Session.open("memory:", "s", agent=loop) as s:
        pin = {"role": "user", "content": "Never touch prod."}
        s.store.append(
            "s", [NewEvent("user_message", {"message": pin, "format": "openai", "pinned": True})]
        )
        for n in range(8):
            s.send(f"question {n}")
        assert "compaction" in kinds(s)
    last = requests(loop)[-1].messages
    assert pin in last
    assert "question 0" not in str(last)


def test_a_long_turn_is_compacted_within() -> None:
    """No call is parted from its result, and the task is not forgotten."""

    def reply(request: Request) -> Json:
        if is_asked_for(request):
            return "in short"
        asked = len(model.requests)
        return saying("done") if asked > 14 else calling(call(f"c{asked}", "say"))

    def say() -> str:
        """Say much."""
        return LONG

    model = ScriptedModel([reply] * 30)
    loop = Loop(model, tools_named([say]), Permissions("trusted"), compaction=Compaction(800))
    with Session.open("memory:", agent=loop) as s:
        assert s.send("the task itself").text == "done"
        assert "compaction" in kinds(s)
        assert s.pending() == []
    for request in model.requests:
        assert pending(request.messages) == []
        assert "the task itself" in said(request)
    assert len(model.requests[-1].messages) < 14


@pytest.mark.parametrize("binding", [False, True])
def test_by_the_rules_of_anthropic(binding: bool) -> None:
    """Tools are named, users begin, thoughts stay with their calls or go."""
    with AnthropicServer(binding=binding) as server:
        count = 0

        def answer(body: dict[str, Json]) -> Json:
            nonlocal count
            count += 1
            if PROMPT in str(body["messages"][-1]):
                return "in short"
            thought = {"type": "thinking", "thinking": f"{count} {LONG}", "signature": f"s{count}="}
            use = {"type": "tool_use", "id": f"t{count}", "name": "say", "input": {}}
            blocks = [{"type": "text", "text": "ok"}] if count > 14 else [thought, use]
            return counted({"role": "assistant", "content": blocks}, body)

        def say() -> str:
            """Say much."""
            return LONG

        server.script(*[answer] * 30)
        options = {"base_url": server.url, "api_key": "k", "window": 1500}
        with Session.open(
            "memory:", agent="anthropic:claude-x", tools=[say], phase="trusted",
            agent_options=options, system_prompt="Be brief.",
        ) as s:  # fmt: skip
            done = s.send("the task itself")
            assert (done.exit_reason, done.error) == ("end_turn", None)
            assert "compaction" in kinds(s)
            assert s.send("more").exit_reason == "end_turn"
        refused = [why for why in server.refused if "bound to a different" not in why]
        assert refused == []
        assert all(body["system"] for body in server.requests)


def test_over_http_with_openai() -> None:
    """The same rules as for any request."""
    with OpenAIServer(strict=True) as server:

        def answer(body: dict[str, Json]) -> Json:
            # The summary is counted with the server's own numbers.
            return "in short" if body["messages"][-1]["content"] == PROMPT else counted(LONG, body)

        server.script(*[answer] * 30)
        options = {"base_url": server.url, "window": 800}
        with Session.open("memory:", agent="vllm:gpt-4o-mini", agent_options=options) as s:
            results = [s.send(f"question {n}") for n in range(8)]
            assert {result.exit_reason for result in results} == {"end_turn"}
            (first, *_) = (e for e in s.events() if e.kind == "compaction")
            assert first.data["usage"]["input_tokens"] == 20
            assert first.data["cost_usd"] > 0
            total = s.info().cost_usd
            summed = sum(result.cost_usd or 0 for result in results)
            assert summed == pytest.approx(total)
        assert server.refused == []


@pytest.mark.parametrize("reported, expected", [(40, 0), (700, 1)])
def test_it_goes_by_what_the_provider_counted(reported: int, expected: int) -> None:
    """However many bytes that is: few may be many tokens, and many few."""
    text = LONG * 10 if reported < 700 else "no"
    usage = {"input_tokens": reported, "output_tokens": 9}

    def reply(request: Request) -> Reply:
        # What is asked for after a compaction is short again.
        short = NOTE in said(request) or is_asked_for(request)
        return Reply(saying(text), {**usage, "input_tokens": 30} if short else usage)

    model = ScriptedModel([reply] * 99)
    with Session.open("memory:", agent=Loop(model, compaction=Compaction(800, keep=3))) as s:
        for n in range(8):
            s.send(f"q{n}")
        assert kinds(s).count("compaction") == expected
    assert sum(map(is_asked_for, model.requests)) == expected


@pytest.mark.parametrize(
    "format, usage, expected",
    [
        ("anthropic", {"input_tokens": 9, "cache_read_tokens": 300, "cache_write_tokens": 400}, 1),
        ("openai", {"input_tokens": 600, "cache_read_tokens": 590}, 0),
        ("openai", {"input_tokens": 600, "output_tokens": 300, "reasoning_tokens": 290}, 0),
        ("openai", {"input_tokens": 600, "output_tokens": 300}, 1),
    ],
)
def test_cached_tokens_and_thoughts(format: Format, usage: Json, expected: int) -> None:
    """Anthropic counts cached input apart, OpenAI within; thoughts do not come again."""
    model = ScriptedModel([Reply(saying("ok"), usage)] * 30, format)
    with Session.open("memory:", agent=Loop(model, compaction=Compaction(800, keep=3))) as s:
        for n in range(4):
            s.send(f"q{n}")
        assert min(1, kinds(s).count("compaction")) == expected


def test_what_no_reply_has_counted_is_estimated() -> None:
    """A long result is noticed before it is sent; a picture is not taken for words."""
    few = {"input_tokens": 20, "output_tokens": 2}
    loop = Loop(ScriptedModel([Reply(saying("ok"), few)] * 30), compaction=Compaction(800, keep=3))
    with Session.open("memory:", agent=loop) as s:
        for _ in range(4):
            s.send(LONG)
        s.send(LONG * 6)
        assert kinds(s).count("compaction") == 1
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 90_000}}
    for usage in (few, {}):
        model = ScriptedModel([Reply(saying("ok"), usage)] * 30)
        with Session.open("memory:", agent=Loop(model, compaction=Compaction(800, keep=3))) as s:
            for _ in range(6):
                s.send([{"type": "text", "text": "look"}, picture])
            assert "compaction" not in kinds(s)


def test_no_listener_hears_the_summary() -> None:
    """It is no answer to anybody."""
    loop = talker()
    with Session.open("memory:", agent=loop) as s:
        words = ""
        for n in range(8):
            for item in s.stream(f"question {n}"):
                if isinstance(item, Delta) and item.type == "text_delta":
                    words += item.data["text"]
        assert "compaction" in kinds(s)
        assert "in short" not in words
        assert not any("in short" in str(m) for m in s.messages())


@pytest.mark.parametrize(
    "failed", [ModelFailed("too long"), Reply(calling(call("1", "t"))), saying("")], ids=str
)
def test_without_a_summary_all_is_sent(failed: Json) -> None:
    """A model that fails, or calls tools instead, loses nothing."""

    def reply(request: Request) -> Json:
        return failed if is_asked_for(request) else LONG

    model = ScriptedModel([reply] * 99)
    with Session.open("memory:", agent=Loop(model, compaction=Compaction(800, keep=3))) as s:
        for n in range(6):
            assert s.send(f"question {n}").exit_reason == "end_turn"
        assert "compaction" not in kinds(s)
    assert "question 0" in said(model.requests[-1])


def test_without_a_window_there_is_none() -> None:
    """Without being asked for."""
    loop = Loop(ScriptedModel([LONG] * 20))
    with Session.open("memory:", agent=loop) as s:
        for n in range(20):
            s.send(f"question {n}")
        assert "compaction" not in kinds(s)
    assert len(requests(loop)[-1].messages) == 39


def test_a_resumed_session_goes_on_with_the_short_view(tmp_path: Path) -> None:
    """The summary is in the log; so is all that it stands for."""
    url = f"sqlite:///{tmp_path}/s.db"
    with Session.open(url, "s", agent=talker()) as s:
        for n in range(8):
            s.send(f"question {n}")
    loop = talker()
    with Session.open(url, "s", agent=loop) as s:
        s.send("one more")
        assert len(s.messages()) == 18
    assert NOTE in said(requests(loop)[0])


def test_a_store_that_fails_keeps_no_summary_back() -> None:
    """With `on_error="record"` the view shrinks all the same."""
    with open_store("memory:") as inner:
        store = Flaky(inner)
        loop = talker()
        with Session.create(store, "s", agent=loop, on_error="record") as s:
            store.broken = True
            for n in range(8):
                assert s.send(f"question {n}").exit_reason == "end_turn"
            assert NOTE in said(requests(loop)[-1])
            assert "question 0" not in said(requests(loop)[-1])
            store.broken = False
        with Session.open(store, "s") as s:
            assert kinds(s).count("turn_end") == 8
