"""Repair: every call gets a result where its provider wants it, in every format."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings

from backtrail.events import Format, Json
from backtrail.events.calls import INTERRUPTED, answers_in, calls_in, pending, repair
from tests.formats.rules import check
from tests.formats.scripts import FORMATS, Round, Step, Tool, facts, spell
from tests.formats.strategies import Script, tidy, unanswered

A = Tool("a", "read", '{"path": "x"}', "one")
B = Tool("b", "list", "{}", "two")
C = Tool("c", "grep", "{}", "three")
LOST_A, LOST_B, LOST_C = (Tool(t.id, t.name, t.arguments, None) for t in (A, B, C))
DONE = Step("done")

CASES: dict[str, list[Round]] = {
    "at the very end": [Round("go", (Step("", (LOST_A,)),))],
    "at the end after words": [Round("go", (Step("Looking.", (LOST_A,), "hm"),))],
    "all of several": [Round("go", (Step("", (LOST_A, LOST_B, LOST_C)),))],
    "first of several": [Round("go", (Step("", (LOST_A, B, C)), DONE))],
    "middle of several": [Round("go", (Step("", (A, LOST_B, C)), DONE))],
    "last of several, then the user": [Round("go", (Step("", (A, B, LOST_C)),)), Round("so?", ())],
    "in the middle": [Round("go", (Step("", (LOST_A,)),)), Round("so?", (Step("", (B,)), DONE))],
    "twice": [
        Round("go", (Step("x", (A, LOST_B)),)),
        Round("so?", (Step("", (LOST_C,)),)),
        Round("well?", (DONE,)),
    ],
    "a call after a call": [Round("go", (Step("", (A, LOST_B)), Step("", (C,)), DONE))],
    "late": [Round("go", (Step("", (A, B), late="hurry"), DONE))],
    "late and lost": [Round("go", (Step("", (A, LOST_B, C), late="hurry"), DONE))],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format", FORMATS)
def test_cases(case: str, format: Format) -> None:
    """Only what is missing is added, and the provider accepts the outcome."""
    reported = [message for message, _ in spell("", CASES[case], [format])]
    before = copy.deepcopy(reported)
    lost = [call.id for call in pending(reported)]
    out = repair(reported)
    assert reported == before
    check(format, out)
    assert pending(out) == []
    added = [fact for fact in facts(out) if fact not in facts(reported)]
    assert added == [("result", call_id, INTERRUPTED) for call_id in lost]
    assert sorted(map(str, facts(reported) + added)) == sorted(map(str, facts(out)))


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=50)
@given(script=tidy())
def test_a_conversation_in_order_stays(format: Format, script: Script) -> None:
    """Repair changes nothing where nothing is missing."""
    reported = [message for message, _ in spell(*script, [format])]
    assert repair(reported) == reported


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=50)
@given(script=unanswered())
def test_any_conversation(format: Format, script: Script) -> None:
    """Whatever is missing or late, the provider accepts the outcome; twice is as once."""
    reported = [message for message, _ in spell(*script, [format])]
    out = repair(reported)
    if format == "anthropic":
        out = _alternating(out)
    check(format, out)
    assert repair(out) == out
    assert {call.id for call in pending(reported)} == {
        fact[1] for fact in facts(out) if fact[0] == "result" and fact[2] == INTERRUPTED
    }


def _alternating(messages: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Neighbours of one role joined, as Anthropic does itself with what the caller sends."""
    joined: list[dict[str, Json]] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"]:
            content = [*joined[-1]["content"], *message["content"]]
            joined[-1] = {"role": message["role"], "content": content}
        else:
            joined.append(message)
    return joined


def test_ids_that_come_again() -> None:
    """A server that counts calls anew in each turn: each call is judged by itself."""
    again = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    call = {"role": "assistant", "content": None, "tool_calls": [again]}
    result = {"role": "tool", "tool_call_id": "call_0", "content": "1"}
    user = {"role": "user", "content": "go"}
    first_lost = repair([user, call, user, call, result])
    last_lost = repair([user, call, result, user, call])
    check("openai", first_lost)
    check("openai", last_lost)
    assert [m["content"] for m in first_lost if m["role"] == "tool"] == [INTERRUPTED, "1"]
    assert [m["content"] for m in last_lost if m["role"] == "tool"] == ["1", INTERRUPTED]


def test_custom_calls_get_their_own_output() -> None:
    """A custom tool's call is answered by a custom tool's output."""
    call = {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"}
    out = repair([{"role": "user", "content": "go"}, call])
    check("responses", out)
    assert out[-1]["type"] == "custom_tool_call_output"


def test_results_in_another_spelling() -> None:
    """A result counts in any format, so a mixed log is repaired too."""
    blocks = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in "ab"]
    call = {"role": "assistant", "content": blocks}
    result = {"role": "tool", "tool_call_id": "a", "content": "one"}
    out = repair([call, result])
    assert out[:2] == [call, result]
    assert answers_in(out[2]) == {"b"} and len(out) == 3


def test_the_users_words_stay_behind_the_results() -> None:
    """Anthropic takes results and words in one message, results first; pictures stay too."""
    call = {"role": "assistant", "content": [
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
    ]}  # fmt: skip
    picture = {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}}
    said = {"role": "user", "content": [picture, {"type": "text", "text": "and?"}], "odd": 1}
    out = repair([{"role": "user", "content": "go"}, call, said])
    check("anthropic", out)
    assert [block["type"] for block in out[2]["content"]] == ["tool_result", "image", "text"]
    assert out[2]["odd"] == 1


def test_one_answer_in_several_messages() -> None:
    """Logs that keep one block a message are whole: nothing moves between their calls."""
    blocks = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in "ab"]
    reported: list[dict[str, Json]] = [
        {"role": "assistant", "content": [block]} for block in blocks
    ]
    for name in "ab":
        answer = {"type": "tool_result", "tool_use_id": name, "content": name}
        reported.append({"role": "user", "content": [answer]})
    assert repair(reported) == reported
    assert [call.id for message in reported for call in calls_in(message)] == ["a", "b"]
