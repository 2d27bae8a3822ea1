"""Any text as the name of a log, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail.errors import InvalidId
from backtrail.events import MAIN_LOG, NewEvent, SessionInfo, check_log

TEXTS = st.lists(st.text(max_size=30) | st.text("-_./:a", max_size=60), min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("agent-1", "agent-1"),
        ("child:1b|x", "child_3a1b_7cx"),
        ("a_b", "a__b"),
        ("", "_."),
        ("-x", "_2dx"),
        ("../etc", "_2e_2e_2fetc"),
        ("é", "_c3_a9"),
        (MAIN_LOG, "_6dessages"),
    ],
)
def test_names_can_be_read(text: str, name: str) -> None:
    """Letters, digits and inner hyphens stay as they are; the main log's name is free."""
    assert backtrail.log_name(text) == name
    assert backtrail.log_texts(name) == (text,)


@given(TEXTS)
def test_every_text_comes_back(texts: list[str]) -> None:
    """The name is one that stores take, and the texts come back from it."""
    name = backtrail.log_name(*texts)
    assert check_log(name) == name != MAIN_LOG
    assert backtrail.log_texts(name) == tuple(texts)


@given(st.text("a-_:", min_size=70, max_size=110))
def test_long_texts_take_several_parts(text: str) -> None:
    """A text longer than one part of a name comes back, too."""
    assert backtrail.log_texts(backtrail.log_name("x", text, "y")) == ("x", text, "y")


@given(st.text("ab0_-./", max_size=40))
def test_no_two_names_for_one_text(name: str) -> None:
    """What `log_texts` takes is what `log_name` makes; everything else is refused."""
    try:
        texts = backtrail.log_texts(name)
    except InvalidId:
        return
    assert backtrail.log_name(*texts) == name


def test_what_is_too_long_or_nothing_is_refused() -> None:
    """A name has at most 512 characters, and one text."""
    for texts in ((), ("x" * 600,)):
        with pytest.raises(InvalidId):
            backtrail.log_name(*texts)


def test_a_store_takes_the_names(url: str) -> None:
    """A log of each name is a log of its own."""
    names = sorted(backtrail.log_name(text) for text in ("a", "a/b", "a.jsonl", "", "messages"))
    with backtrail.open_store(url) as store:
        store.create(SessionInfo(id="s"))
        for name in names:
            store.append("s", [NewEvent("note", {"log": name})], log=name)
        assert store.logs("s") == sorted([*names, MAIN_LOG])
        for name in names:
            assert [event.data["log"] for event in store.read("s", log=name)] == [name]
