"""Scripted models, and recorded sessions as tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from backtrail import Conflict, Session, Unsupported
from backtrail.agent.models.base import Delta, ModelFailed, Reply, Request, ToolSpec, open_model
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.events import Format

from .conftest import Talk, failure_of, notified, reply_of

pytest_plugins = ["pytester"]

HI = {"role": "user", "content": "hi"}
HELLO = Request([HI])
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    ],
}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "contents"}


def test_replies_come_in_order(talk: Talk) -> None:
    """Text, messages, whole replies, failures, and functions of the request."""
    whole = Reply({"role": "assistant", "content": "whole"}, {"input_tokens": 3}, "max_tokens")
    model = ScriptedModel(
        [
            "just some words",
            CALL,
            whole,
            ModelFailed("busy", transient=True),
            lambda request: f"you said {request.messages[-1]['content']}",
        ]
    )
    words, call, reply, failure, echo = talk(model, *[HELLO] * 5)
    assert notified(words) == "just some words"
    assert not isinstance(words, ModelFailed) and len(words) == 3
    assert reply_of(call).message == CALL and reply_of(call).stop_reason == "tool_use"
    assert reply_of(reply).usage == {"input_tokens": 3}
    assert reply_of(reply).stop_reason == "max_tokens"
    assert failure_of(failure).transient
    assert notified(echo) == "you said hi"
    assert model.left == 0


def test_requests_are_kept_as_they_were(talk: Talk) -> None:
    """What is added to the list of messages later is not in them."""
    messages = [HI]
    model = ScriptedModel(["a"])
    request = Request(messages, tools=[ToolSpec("read")])
    talk(model, request)
    messages.append(ANSWER)
    assert model.requests == [Request([HI], tools=[ToolSpec("read")])]


@pytest.mark.parametrize("format", ["openai", "anthropic"])
def test_thinking_is_reported(talk: Talk, format: Format) -> None:
    """In either format."""
    message: dict[str, Any] = {"role": "assistant", "content": "b", "reasoning_content": "a"}
    if format == "anthropic":
        blocks = [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}]
        message = {"role": "assistant", "content": blocks}
    (outcome,) = talk(ScriptedModel([message], format), HELLO)
    assert not isinstance(outcome, ModelFailed)
    assert outcome[:-1] == [Delta("thinking_delta", "a"), Delta("text_delta", "b")]


def test_words_are_spelled_in_the_format() -> None:
    """As a message that the format's provider would give."""
    reply = list(ScriptedModel(["x"], "anthropic").stream(HELLO))[-1]
    assert isinstance(reply, Reply)
    assert reply.message["content"] == [{"type": "text", "text": "x"}]


def test_more_than_was_scripted_is_an_error() -> None:
    """That says how much there was."""
    model = open_model("scripted", "mine", replies=["a"])
    list(model.stream(HELLO))
    with pytest.raises(Conflict, match="`mine` was asked for reply 2, but there are 1"):
        list(model.stream(HELLO))


def test_delays() -> None:
    """Before each piece; in an event loop the caller says how to wait."""
    before = time.monotonic()
    list(ScriptedModel(["x" * 24], delay=0.01).stream(HELLO))
    assert time.monotonic() - before >= 0.03

    async def main(model: ScriptedModel) -> None:
        with anyio.move_on_after(0.05) as scope:
            async for _ in model.astream(HELLO):
                pass
        assert scope.cancelled_caught

    anyio.run(main, ScriptedModel(["x" * 80], delay=0.02, sleep=anyio.sleep))
    with pytest.raises(Unsupported, match="sleep"):
        anyio.run(main, ScriptedModel(["x"], delay=0.02))


# --- recorded sessions -------------------------------------------------------------------


def recorded(url: str, id: str = "s") -> None:
    """A session with one turn of a call and its result, a detour, and an end."""
    with Session.create(url, id, model="m-1", system_prompt="be brief") as s:
        s.append(HI)
        s.append(CALL, usage={"prompt_tokens": 5, "completion_tokens": 2})
        kept = s.append(ANSWER)
        s.append({"role": "assistant", "content": "a wrong way"})
        s.rewind(kept)
        s.append({"role": "assistant", "content": "all done"})


def test_a_session_becomes_a_script(disk_url: str, talk: Talk) -> None:
    """What the assistant said, in order, on the path that is live."""
    recorded(disk_url)
    model = ScriptedModel.from_session(disk_url, "s")
    assert (model.name, model.format) == ("m-1", "openai")
    first, second = talk(model, HELLO, Request([HI, CALL, ANSWER]))
    assert reply_of(first).message == CALL
    assert reply_of(first).usage == {"input_tokens": 5, "output_tokens": 2}
    assert notified(second) == "all done"


@pytest.mark.parametrize(
    ("more", "difference"),
    [
        ([HI, CALL, {**ANSWER, "content": "other contents"}], "message 3 .*'contents'.*'other"),
        (
            [HI, CALL, ANSWER, {"role": "assistant", "content": "all done"}, HI],
            "message 5 is not in it: user 'hi'",
        ),
        ([HI], "the recorded one up to message 1"),
    ],
)
def test_a_run_that_leaves_the_record_shows_where(
    tmp_path: Path, more: list[dict[str, Any]], difference: str
) -> None:
    """If it asks for more than was recorded."""
    url = f"sqlite:///{tmp_path}/s.db"
    recorded(url)
    model = ScriptedModel.from_session(url, "s")
    for _ in range(2):
        list(model.stream(HELLO))
    system = {"role": "system", "content": "be brief"}
    with pytest.raises(Conflict, match=rf"session `s` was asked for reply 3.* 2 .*{difference}"):
        list(model.stream(Request([system, *more])))


@pytest.mark.parametrize("format", ["openai", "anthropic"])
def test_a_session_can_be_replayed_in_another_format(tmp_path: Path, format: Format) -> None:
    """For an agent that has changed its provider since."""
    url = f"file:{tmp_path}/store"
    recorded(url)
    model = ScriptedModel.from_session(url, "s", format=format)
    reply = list(model.stream(HELLO))[-1]
    assert isinstance(reply, Reply) and reply.stop_reason == "tool_use"
    assert ("tool_calls" in reply.message) is (format == "openai")


def test_the_fixture_wants_every_reply_asked_for(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """A run that stops short of the record has changed as well."""
    url = f"sqlite:///{tmp_path}/s.db"
    recorded(url)
    pytester.makeconftest("from backtrail.testing.replay import replay")
    pytester.makepyfile(
        f"""
        from backtrail.agent.models.base import Request

        def ask(replay, times):
            model = replay({url!r}, "s")
            for _ in range(times):
                list(model.stream(Request([{{"role": "user", "content": "hi"}}])))

        def test_all(replay): ask(replay, 2)
        def test_fewer(replay): ask(replay, 1)
        def test_more(replay): ask(replay, 3)
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=2, failed=1, errors=1)
    done.stdout.fnmatch_lines(["*asked for 1 of 2 recorded replies*"])
