"""Scripts of conversations for Hypothesis, tidy and untidy."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import strategies as st

from tests.formats.scripts import Round, Step, Tool

_LETTERS = st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs"))
WORDS = st.text(_LETTERS, min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
MAYBE = st.one_of(st.just(""), WORDS)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
_OBJECTS = st.dictionaries(WORDS, _VALUES, max_size=3).map(json.dumps)
_BROKEN = st.sampled_from(['{"path": "a', "ls -l", "[1, 2]", "null", '"text"', "NaN"])

Script = tuple[str, list[Round]]


@st.composite
def tidy(draw: st.DrawFn) -> Script:
    """What a careful agent leaves: every call has a legal id of its own and a result."""
    return draw(MAYBE), draw(_rounds(_tidy_tool(), late=st.just("")))


@st.composite
def unanswered(draw: st.DrawFn) -> Script:
    """Tidy but for results that never came, or came after the user spoke again."""
    tool = _tidy_tool(result=st.none() | WORDS)
    return draw(MAYBE), draw(_rounds(tool, late=MAYBE))


@st.composite
def untidy(draw: st.DrawFn) -> Script:
    """Anything seen in the wild: repeated and odd ids, blank texts, the assistant first."""
    ids = st.sampled_from(["call_0", "call_1", "functions.Bash:0", "x" * 90, "toolu_01-a"])
    blank = st.sampled_from(["", " ", "\n"]) | WORDS
    tool = st.builds(
        Tool, ids, WORDS, _OBJECTS | _BROKEN | st.just(""), st.none() | blank, st.booleans()
    )
    rounds = _rounds(tool, late=MAYBE, text=blank, user=MAYBE, first=MAYBE)
    return draw(MAYBE), draw(rounds)


def _tidy_tool(result: st.SearchStrategy[str | None] = WORDS) -> st.SearchStrategy[Tool]:
    return st.builds(Tool, st.just(""), WORDS, _OBJECTS | _BROKEN, result, st.booleans())


@st.composite
def _rounds(
    draw: st.DrawFn,
    tool: st.SearchStrategy[Tool],
    *,
    late: st.SearchStrategy[str],
    text: st.SearchStrategy[str] = MAYBE,
    user: st.SearchStrategy[str] = WORDS,
    first: st.SearchStrategy[str] = WORDS,
) -> list[Round]:
    rounds: list[Round] = []
    for number in range(draw(st.integers(1, 3))):
        steps: list[Step] = []
        for _ in range(draw(st.integers(0, 2))):
            tools = tuple(_numbered(draw(st.lists(tool, min_size=1, max_size=3)), draw))
            steps.append(Step(draw(text), tools, draw(MAYBE), draw(late)))
        steps.append(Step(draw(WORDS), (), draw(MAYBE)))
        if number == 0 and draw(st.booleans()):
            steps.pop()
        rounds.append(Round(draw(user if number else first), tuple(steps)))
    return rounds


def _numbered(tools: Sequence[Tool], draw: st.DrawFn) -> list[Tool]:
    """Tools with an id each: a fresh one where none is set, none twice in one step."""
    numbered: dict[str, Tool] = {}
    for tool in tools:
        name = tool.id or f"call_{draw(st.uuids()).hex[:12]}"
        numbered[name] = Tool(name, tool.name, tool.arguments, tool.result, tool.is_error)
    return list(numbered.values())
