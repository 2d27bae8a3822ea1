"""What a session appends and shows: messages, records, side logs, totals, views."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from backtrail import InvalidData, Message, NotFound, Session, ToolCall
from backtrail.events import KINDS, Json
from backtrail.events.calls import INTERRUPTED
from backtrail.stores import open_store

from .talking import assistant, calling, kinds, result, talk, texts, user


class Answer(BaseModel):
    """A provider's object, as its SDK returns it."""

    role: str = "assistant"
    content: str
    refusal: str | None = None


# --- appending ---------------------------------------------------------------------------


def test_append_takes_mappings_messages_and_models(url: str) -> None:
    """All three are stored as the provider would spell them."""
    with Session.create(url) as s:
        first = s.append({"role": "user", "content": "hi", "x-extra": [1, None]})
        s.append(Message("tool", "42", tool_call_id="c1"))
        s.append(Answer(content="hello"))
        assert first.kind == "user_message"
        assert first.data["format"] == "openai"
        assert s.messages() == [
            {"role": "user", "content": "hi", "x-extra": [1, None]},
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
            {"role": "assistant", "content": "hello"},
        ]
        assert kinds(s)[1:] == ["user_message", "tool_result", "assistant_message"]


def test_append_refuses_what_is_no_message(url: str) -> None:
    """Nothing is written of it."""
    with Session.create(url) as s:
        for given in ("hi", 3, {"content": "who?"}, {"role": "user", "content": float("nan")}):
            with pytest.raises(InvalidData):
                s.append(given)
        assert s.info().head == 1
        event = s.append({"content": "who?"}, kind="user_message")
        assert event.kind == "user_message"


def test_append_of_a_known_id_returns_the_event_that_has_it(url: str) -> None:
    """A retry is safe."""
    with Session.create(url) as s:
        first = s.append(user("one"), id="req-1")
        s.append(assistant("two"))
        assert s.append(user("other"), id="req-1") == first
        assert texts(s) == ["one", "two"]


def test_append_keeps_the_time_it_is_given(url: str) -> None:
    """Imports bring their own."""
    with Session.create(url) as s:
        assert s.append(user("x"), ts="2020-01-02T03:04:05.678Z").ts == "2020-01-02T03:04:05.678Z"
        with pytest.raises(InvalidData):
            s.append(user("x"), ts="yesterday")


def test_what_the_caller_changes_later_does_not_show(url: str) -> None:
    """The log holds what was said, not the object."""
    with Session.create(url) as s:
        message = user("one")
        s.append(message)
        message["content"] = "changed"
        s.messages()[0]["content"] = "changed too"
        assert texts(s) == ["one"]


def test_extend_takes_a_whole_conversation(url: str) -> None:
    """Frameworks hand back everything; only what is new is appended, in one batch."""
    with Session.create(url, system_prompt="P") as s:
        first = s.extend([user("one"), assistant("re: one")])
        assert [event.kind for event in first] == ["user_message", "assistant_message"]
        whole = [*s.messages(), user("two"), assistant("re: two")]
        assert len(s.extend(whole)) == 2
        assert s.extend(whole) == []
        assert s.extend(whole[1:]) == []
        assert s.extend([]) == []
        assert texts(s) == ["P", "one", "re: one", "two", "re: two"]


def test_extend_takes_the_repaired_view_back(url: str) -> None:
    """A loop is shown "interrupted" results; handing them back repeats nothing."""
    with Session.create(url) as s:
        s.extend([user("one"), calling("c1"), user("two")])
        shown = s.messages()
        assert len(shown) == 4
        s.extend([*shown, assistant("re: two")])
        assert [message["role"] for message in s.messages(repair=False)] == [
            *("user", "assistant", "user", "assistant")
        ]


def test_extend_is_all_or_nothing(url: str) -> None:
    """One bad message keeps out the whole batch."""
    with Session.create(url) as s:
        with pytest.raises(InvalidData):
            s.extend([user("one"), {"role": "user", "content": "\ud800"}])
        assert s.messages() == []


def test_record_keeps_a_kind_of_the_caller(url: str) -> None:
    """It is in the log and not in the conversation."""
    with Session.create(url) as s:
        event = s.record("my.kind", {"n": 1}, id="mine")
        assert s.record("my.kind", {"n": 2}, id="mine") == event
        assert s.record("bare").data == {}
        assert s.messages() == []
        assert [e.data for e in s.events(kinds=["my.kind"])] == [{"n": 1}]


def test_record_refuses_the_kinds_of_the_library(url: str) -> None:
    """A made-up rewind or message would break the history."""
    with Session.create(url) as s:
        for kind in KINDS:
            with pytest.raises(InvalidData, match=kind):
                s.record(kind, {})
        assert s.info().head == 1


# --- totals and the record ---------------------------------------------------------------


def test_usage_and_cost_are_summed(url: str) -> None:
    """Beside the message or in it, under one set of names; a rewind does not give it back."""
    with Session.create(url) as s:
        assert s.info().cost_usd is None
        s.append(user("one"))
        s.append(assistant("a"), usage={"prompt_tokens": 10, "completion_tokens": 2}, cost_usd=0.5)
        s.append({**assistant("b"), "usage": {"input_tokens": 5, "output_tokens": 1}})
        s.record("my.bill", {"cost_usd": 0.25})
        s.rewind(0)
        s.append(assistant("c"), usage={"input_tokens": 1}, cost_usd=0)
        info = s.info()
        assert info.usage == {"input_tokens": 16, "output_tokens": 3}
        assert info.cost_usd == 0.75


def test_counts_are_those_of_the_history(url: str) -> None:
    """What a rewind left behind is not counted."""
    with Session.create(url) as s:
        events = talk(s, "one", "two", "three")
        assert (s.info().message_count, s.info().turn_count) == (6, 3)
        s.rewind(events[1])
        assert (s.info().message_count, s.info().turn_count) == (2, 1)
        s.undo()
        assert (s.info().message_count, s.info().turn_count) == (6, 3)


def test_update_changes_the_record(url: str) -> None:
    """Metadata and tags merge; None and False remove."""
    with Session.create(url, title="old", metadata={"a": 1}, tags=["x"]) as s:
        info = s.update(title="new", metadata={"b": 2, "a": None}, tags=["y"])
        assert (info.title, info.metadata, sorted(info.tags)) == ("new", {"b": 2}, ["x", "y"])
        assert s.update(tags={"x": False}).tags == ["y"]
        assert s.info() == s.store.info(s.id)
        with pytest.raises(InvalidData):
            s.update(head=99)


# --- views -------------------------------------------------------------------------------


def test_messages_come_in_the_format_asked_for(url: str) -> None:
    """As stored, or as a provider takes them; the same format is the identity."""
    with Session.create(url) as s:
        s.extend([user("one"), calling("c1"), result("c1", "42")])
        assert s.messages(format="openai") == s.messages()
        blocks = s.messages(format="anthropic")
        assert blocks[0] == {"role": "user", "content": "one"}
        assert blocks[1]["content"][0]["type"] == "tool_use"
        assert blocks[2]["content"][0]["tool_use_id"] == "c1"
        items = s.messages(format="responses")
        assert [item.get("type", "message") for item in items] == [
            *("message", "function_call", "function_call_output")
        ]
        with pytest.raises(InvalidData):
            s.messages(format="morse")  # type: ignore[arg-type]


def test_a_message_keeps_the_format_it_came_in(url: str) -> None:
    """Signed reasoning goes back to its provider as it was."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    said = {"role": "assistant", "content": [thinking, {"type": "text", "text": "yes"}]}
    with Session.create(url) as s:
        s.append(user("one"))
        event = s.append(said)
        assert event.data["format"] == "anthropic"
        assert s.messages(format="anthropic")[1] == said
        assert "thinking" not in str(s.messages(format="openai"))


def test_an_open_call_is_pending_and_answered_in_the_view(url: str) -> None:
    """After a crash providers still take the conversation; the log is not touched."""
    with Session.create(url) as s:
        s.extend([user("one"), calling("c1", "bash")])
        head = s.info().head
        assert s.pending() == [ToolCall("c1", "bash", "{}")]
        assert s.messages()[-1] == {"role": "tool", "tool_call_id": "c1", "content": INTERRUPTED}
        assert len(s.messages(repair=False)) == 2
        assert len(s.messages(format="anthropic")) == 3
        assert s.info().head == head
        s.append(result("c1"))
        assert s.pending() == []
        assert s.messages() == s.messages(repair=False)


def test_state_is_all_a_loop_needs(url: str) -> None:
    """Messages, usage, turns and open calls."""
    with Session.create(url) as s:
        s.append(user("one"))
        s.append(calling("c1"), usage={"input_tokens": 3})
        state = s.state()
        assert state.session_id == s.id
        assert state.messages == s.messages()
        assert state.usage == {"input_tokens": 3}
        assert state.turn_count == 1
        assert state.pending == s.pending()


def test_as_map_names_the_last_words(url: str) -> None:
    """None where nothing was said."""
    with Session.create(url) as s:
        empty: Json = None
        assert s.as_map() == {
            "session_id": s.id,
            "messages": [],
            "last_user": empty,
            "last_assistant": empty,
        }
        talk(s, "one", "two")
        shown = s.as_map()
        assert shown["last_user"] == user("two")
        assert shown["last_assistant"] == assistant("re: two")
        assert shown["messages"] == s.messages()


def test_events_are_the_whole_log(url: str) -> None:
    """In order, newest first, bounded, by kind."""
    with Session.create(url) as s:
        events = talk(s, "one", "two")
        s.rewind(events[1])
        seqs = [event.seq for event in s.events()]
        assert seqs == list(range(1, s.info().head + 1))
        assert [e.seq for e in s.events(reverse=True)] == seqs[::-1]
        assert [e.seq for e in s.events(after=2, until=4)] == [3, 4]
        assert [e.seq for e in s.events(limit=2, reverse=True)] == seqs[:-3:-1]
        assert [e.kind for e in s.events(kinds=["rewound"])] == ["rewound"]
        assert [e.seq for e in s.history()] == [1, 2, 3, 6]


def test_a_purged_message_leaves_a_conversation_that_providers_take(url: str) -> None:
    """The words are gone, and so is a result whose call is gone."""
    with Session.create(url) as s:
        events = s.extend([user("secret"), calling("c1"), result("c1"), assistant("end")])
        s.store.purge(s.id, [events[0].seq, events[1].seq])
        assert s.messages() == [user("[purged]"), assistant("[purged]"), assistant("end")]


# --- side logs ---------------------------------------------------------------------------


def test_side_logs_stand_beside_the_conversation(url: str) -> None:
    """Raw streams and subagents have logs of their own; one reads what one wrote."""
    with Session.create(url, "s") as s:
        raw = s.log("transcript")
        queued = raw.append({"delta": "a"})
        assert queued.seq == 0
        raw.append({"delta": "b"}, kind="chunk", id="b")
        raw.append({"delta": "b"}, kind="chunk", id="b")
        s.subagent("a1").append({"text": "hi"})
        assert [(e.seq, e.kind, e.data["delta"]) for e in raw.read()] == [
            (1, "entry", "a"),
            (2, "chunk", "b"),
        ]
        assert [e.seq for e in raw.tail(1)] == [2]
        assert [e.seq for e in raw.read(after=1, limit=5)] == [2]
        raw.flush()
        assert s.messages() == []
    with Session.open(url, "s") as s:
        assert s.store.logs("s") == ["messages", "subagents/a1", "transcript"]
        assert [e.data for e in s.subagent("a1").read()] == [{"text": "hi"}]
        assert s.log("nothing").tail(3) == []


def test_closing_writes_what_side_logs_hold(url: str) -> None:
    """The buffer is drained, also where the caller owns the store."""
    with open_store(url) as store:
        with Session.create(store, "s") as s:
            for number in range(600):
                s.log("transcript").append({"n": number})
        entries = [e.data["n"] for e in store.read("s", log="transcript")]
        assert entries == list(range(600))


def test_the_main_log_is_no_side_log(url: str) -> None:
    """What is written there beside the session would be in the conversation, unchecked."""
    with Session.create(url, "s") as s:
        talk(s, "one")
        before = list(s.events())
        with pytest.raises(InvalidData, match="main log"):
            s.log("messages").append({"message": {"role": "user", "content": "forged"}})
        assert list(s.log("messages").read()) == list(s.events()) == before


def test_a_side_log_leaves_signals_to_the_host(disk_url: str) -> None:
    """Asking for one changes no handler, and a normal exit still writes what it holds."""
    script = f"""
import signal
from backtrail import Session
s = Session.create({disk_url!r}, "s")
s.log("transcript").append({{"n": 1}})
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open_store(disk_url) as store:
        assert [e.data for e in store.read("s", log="transcript")] == [{"n": 1}]


def test_side_logs_are_not_in_a_fork(url: str) -> None:
    """A fork begins with the conversation alone."""
    with Session.create(url, "s") as s:
        s.log("transcript").append({"n": 1})
        with s.fork() as fork:
            assert list(fork.log("transcript").read()) == []


# --- repr --------------------------------------------------------------------------------


@dataclass
class _Bare:
    """Something that is no message."""


def test_errors_name_what_they_got(url: str) -> None:
    """A caller sees at once what was wrong."""
    with Session.create(url, "s") as s:
        assert "s" in repr(s)
        with pytest.raises(InvalidData, match="_Bare"):
            s.append(_Bare())
        with pytest.raises(NotFound, match="`s`"):
            s.rewind("ghost")
