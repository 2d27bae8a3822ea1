"""Lists of messages become sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from backtrail import Conflict, InvalidData, Session, Store, open_store
from backtrail.exchange.lists import import_messages

Json = Any

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = [
    {"role": "system", "content": "be nice"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    {"role": "assistant", "content": "done"},
]
ANTHROPIC = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
]
RESPONSES = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "ok"},
]


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store that stays open through a test."""
    with open_store(url) as place:
        yield place


def encoded(value: Json) -> bytes:
    """A value as a file holds it."""
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("messages", "format"),
    [(CHAT, "openai"), (ANTHROPIC, "anthropic"), (RESPONSES, "responses")],
    ids=["openai", "anthropic", "responses"],
)
@pytest.mark.parametrize("shape", ["list", "lines", "body"])
def test_messages_are_stored_as_they_are(
    store: Store, messages: list[Json], format: Any, shape: str
) -> None:
    """As a list, one a line, or in a request; the format follows from them."""
    if shape == "list":
        content = encoded(messages)
    elif shape == "lines":
        content = b"\n".join(map(encoded, messages)) + b"\n"
    else:
        content = encoded({"input" if format == "responses" else "messages": messages})
    done = import_messages(store, content, title="T")
    with Session.resume(store, done.session_id, files=False) as s:
        assert s.messages(repair=False) == messages
        assert s.messages(format) == messages
        assert s.info().title == "T"
        kinds = {event.data.get("format") for event in s.events()} - {None}
        assert kinds == {format}


def test_the_same_list_is_the_same_session(store: Store) -> None:
    """However it is spelled as JSON."""
    first = import_messages(store, encoded(CHAT))
    again = import_messages(store, json.dumps(CHAT, indent=3).encode())
    assert (again.session_id, again.created, again.events) == (first.session_id, False, 0)


def test_a_list_with_a_key_may_grow(store: Store) -> None:
    """Only what is new is appended; another list under the key is refused."""
    import_messages(store, encoded(CHAT[:2]), key="case")
    done = import_messages(store, encoded(CHAT), key="case")
    assert (done.created, done.events) == (False, 3)
    with Session.open(store, key="case", files=False) as s:
        assert s.messages(repair=False) == CHAT
    with pytest.raises(Conflict, match="--key"):
        import_messages(store, encoded(ANTHROPIC), key="case")


def test_the_system_prompt_of_a_request_is_pinned(store: Store) -> None:
    """It stands beside the messages there."""
    body = {"model": "m", "system": [{"type": "text", "text": "be nice"}], "messages": ANTHROPIC}
    done = import_messages(store, encoded(body))
    assert import_messages(store, encoded(body)).events == 0
    info = store.info(done.session_id)
    assert info.model == "m"
    with Session.resume(store, done.session_id, files=False) as s:
        assert s.messages()[0] == {"role": "system", "content": "be nice"}
        s.rewind(0)
        assert s.messages()[0] == {"role": "system", "content": "be nice"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON|nothing"),
        (b"nonsense", "not JSON"),
        (b'{"role":"user","content":"x"}\nnonsense', "line 2"),
        (b"3", "single JSON value"),
        (b"{}", "neither"),
        (b"[]", "no messages"),
        (b"[3]", "message 1 is no object"),
        (b'[{"role":"user","content":"x"},{"role":"wizard","content":"x"}]', "message 2"),
        (b'[{"role":"user","content":' + b"[" * 300 + b"]" * 300 + b"}]", "message 1"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_what_is_no_list_is_refused_with_a_reason(store: Store, content: bytes, why: str) -> None:
    """And nothing is written."""
    with pytest.raises(InvalidData, match=why):
        import_messages(store, content)
    assert store.sessions() == []


def test_a_format_can_be_said(store: Store) -> None:
    """Plain text is the same in all formats; an unknown name is refused."""
    plain = [{"role": "user", "content": "hi"}]
    done = import_messages(store, encoded(plain), wanted="anthropic")
    (event,) = store.read(done.session_id, kinds=("user_message",))
    assert event.data["format"] == "anthropic"
    with pytest.raises(InvalidData, match="not a format"):
        import_messages(store, encoded(plain), wanted="latin")  # type: ignore[arg-type]


def test_a_dry_run_writes_nothing(store: Store) -> None:
    """It says what would come."""
    done = import_messages(store, encoded(CHAT), dry_run=True)
    assert (done.created, done.lines, done.events) == (True, 5, 0)
    assert store.sessions() == []
