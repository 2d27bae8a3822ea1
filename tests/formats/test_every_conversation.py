"""Conversion: rules that hold for every conversation."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backtrail.events import Format, Json
from backtrail.formats.messages import convert
from backtrail.formats.parts import as_arguments, as_object
from tests.formats.rules import check
from tests.formats.scripts import FORMATS, Tagged, facts, spell
from tests.formats.strategies import Script, tidy, untidy

PAIRS = [(a, b) for a in FORMATS for b in FORMATS if a != b]


def accepted(reported: Tagged, to: Format) -> list[dict[str, Json]]:
    """Converted, checked against the provider's rules, and the given ones left alone."""
    before = copy.deepcopy(reported)
    out = convert(reported, to)
    assert reported == before
    check(to, out)
    return out


@pytest.mark.parametrize("source,to", PAIRS)
@settings(max_examples=50)
@given(script=tidy())
def test_there_and_back(source: Format, to: Format, script: Script) -> None:
    """X to Y to X keeps texts, names, arguments, results, ids and their order."""
    given_messages = [message for message, _ in spell(*script, [source])]
    there = accepted([(m, source) for m in given_messages], to)
    assert facts(there) == facts(given_messages)
    back = accepted([(m, to) for m in there], source)
    assert facts(back) == facts(given_messages)


@pytest.mark.parametrize("to", FORMATS)
@settings(max_examples=50)
@given(script=untidy(), formats=st.lists(st.sampled_from(FORMATS), min_size=1, max_size=5))
def test_any_mix_is_accepted(to: Format, script: Script, formats: list[Format]) -> None:
    """Whatever was recorded, in whatever mix, the provider takes what comes out."""
    reported = spell(*script, formats)
    if any(format == to for _, format in reported):
        # What is native stays as it is, even where its provider would refuse it.
        reported = [(message, format) for message, format in reported if format != to]
    accepted(reported, to)


def test_a_stray_result_does_not_part_others_from_their_calls() -> None:
    """A message answers one call and another that is not there; more answers come behind it."""

    def call(id: str) -> dict[str, Json]:
        return {"type": "tool_use", "id": id, "name": "look", "input": {}}

    def answer(id: str) -> dict[str, Json]:
        return {"type": "tool_result", "tool_use_id": id, "content": "seen"}

    reported: list[dict[str, Json]] = [
        {"role": "assistant", "content": [call("a"), call("b")]},
        {"role": "user", "content": [answer("a"), answer("gone")]},
        {"role": "user", "content": [answer("b")]},
    ]
    out = accepted([(message, "anthropic") for message in reported], "openai")
    assert [message["role"] for message in out] == ["assistant", "tool", "tool", "user"]


@pytest.mark.parametrize("to", FORMATS)
@settings(max_examples=50)
@given(script=tidy(), formats=st.lists(st.sampled_from(FORMATS), min_size=1, max_size=5))
def test_a_tidy_mix_keeps_all_facts(to: Format, script: Script, formats: list[Format]) -> None:
    """Native and foreign messages side by side are one valid conversation."""
    reported = spell(*script, formats)
    out = convert(reported, to)
    if any(format != to for _, format in reported):
        check(to, out)
    assert facts(out) == facts([message for message, _ in reported])


_TEXTS = st.recursive(
    st.sampled_from(["", "x", "{}", "[]", "1", '{"a": 1}', '{"_raw": 2}', '{"a": "\\ud800"}']),
    lambda inner: inner.map(lambda text: json.dumps({"_raw": text})),
    max_leaves=4,
)


@given(_TEXTS)
def test_arguments_survive_anthropic(text: str) -> None:
    """Any text is an object at Anthropic and the same value after; wrappings do not mix."""
    value = as_object(text)
    back = as_arguments(value)
    assert as_object(back) == value
    if text.startswith("{") and not text.startswith('{"a": "'):
        assert json.loads(back) == json.loads(text)
    elif text:
        assert back == text
