"""The flows that were asked for, as they were written down: resume, replay, leave nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backtrail import NotFound, Session
from backtrail.agent.loop import Loop
from backtrail.events import Json
from backtrail.stores import open_store

from .servers import OpenAIServer
from .test_turns import call, calling, ends, roles, saying

Opened = Callable[..., Session]


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def opened(server: OpenAIServer, tmp_path: Path) -> Iterator[Opened]:
    """`Session.open`, `resume` and so on, with a model on the server."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    sessions: list[Session] = []

    def make(how: str, *arguments: Json, **options: Json) -> Session:
        given: dict[str, Json] = {
            "provider": "ollama", "model": "qwen2.5-coder", "tools": "all", "cwd": work,
            "phase": "trusted", "agent_options": {"base_url": server.url}, **options,
        }  # fmt: skip
        sessions.append(getattr(Session, how)(*arguments, **given))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


def sent(server: OpenAIServer, at: int = -1) -> list[tuple[str, Json]]:
    """Role and content of each message in a request."""
    return [(m["role"], m.get("content")) for m in server.requests[at]["messages"]]


def test_resume_and_go_on_with_the_whole_history(
    opened: Opened, server: OpenAIServer, url: str
) -> None:
    """In another process, days later: the model sees all that was said."""
    server.script(
        calling(call("1", "glob", pattern="*.nothing")), "Nothing.", "As I said: nothing."
    )
    with opened("open", url, "deploy-123", system_prompt="Be brief.") as s:
        s.send("look around")
        before = s.messages()
    with opened("resume", url, "deploy-123") as s:
        assert s.messages() == before
        assert s.send("and?").text == "As I said: nothing."
    assert server.requests[-1]["messages"] == [*before, {"role": "user", "content": "and?"}]
    assert server.refused == []
    with opened("latest", url) as s:
        assert s.id == "deploy-123"
        assert s.as_map()["last_assistant"] == saying("As I said: nothing.")
        assert s.as_map()["last_user"] == {"role": "user", "content": "and?"}


def test_a_history_may_be_handed_over(opened: Opened, server: OpenAIServer, url: str) -> None:
    """Messages of one session begin the next; the same id resumes."""
    server.script("one", "two", "three")
    with opened("open", url, "a") as s:
        s.send("first")
        history = s.messages()
    with opened("open", url, "b", messages=history) as s:
        s.send("second")
    assert sent(server) == [("user", "first"), ("assistant", "one"), ("user", "second")]
    with opened("open", url, "a", messages=history) as s:
        assert s.messages() == history
        s.send("third")
        assert len(s.messages()) == 4


def test_the_last_turn_is_answered_again(opened: Opened, server: OpenAIServer, url: str) -> None:
    """`replay_last_user_turn` drops the answer; `proceed` gives another."""
    look = calling(call("1", "glob", pattern="*.nothing"))
    server.script("hello", look, "a bad answer", "a better answer")
    with opened("open", url, "s") as s:
        s.send("hi")
        s.send("the question", id="q")
    with opened("resume", url, "s", replay_last_user_turn=True) as s:
        assert roles(s) == ["user", "assistant", "user"]
        again = s.proceed()
        assert again.text == "a better answer"
        assert again.messages == [saying("a better answer")]
        assert roles(s) == ["user", "assistant", "user", "assistant"]
        assert s.send("the question", id="q").text == "a better answer"
        assert len(s.branches()) == 1
    asked = [("user", "hi"), ("assistant", "hello"), ("user", "the question")]
    assert sent(server) == asked
    with opened("resume", url, "s") as s:
        assert s.messages()[-1] == saying("a better answer")
        with pytest.raises(NotFound):
            s.proceed()


def test_another_question_in_place_of_the_last(
    opened: Opened, server: OpenAIServer, url: str
) -> None:
    """Resume at an earlier event, and what came behind it is not sent."""
    server.script("one", "two", "three")
    with opened("open", url, "s") as s:
        first = s.send("first").event
        s.send("second")
        assert first is not None
        answer = next(e for e in s.events(after=first.seq) if e.kind == "assistant_message")
    with opened("resume", url, "s", at=answer.seq) as s:
        s.send("another")
    assert sent(server) == [("user", "first"), ("assistant", "one"), ("user", "another")]


def test_a_rewind_is_what_the_model_sees(opened: Opened, server: OpenAIServer, url: str) -> None:
    """At once, in the live session; and so is undo."""
    server.script("one", "two", "three", "four")
    with opened("open", url, "s") as s:
        s.send("first")
        second = s.send("second").event
        assert second is not None
        s.rewind(before=second)
        s.send("third")
        assert sent(server) == [("user", "first"), ("assistant", "one"), ("user", "third")]
        s.undo()
        s.undo()
        s.send("fourth")
        assert ("user", "second") in sent(server)
        assert ends(s) == ["end_turn"] * 4


def test_without_a_store_the_model_is_sent_the_same(
    opened: Opened, server: OpenAIServer, tmp_path: Path
) -> None:
    """Three turns on `null:`, with `persist=False`, and on SQLite: request by request."""
    write = calling(call("1", "write", path="a.txt", content="hey\n"))
    read = calling(call("2", "read", path="a.txt"), call("3", "glob", pattern="*.txt"))
    turns = ["write it", "read it", "thanks"]
    requests: list[list[Json]] = []
    places: list[tuple[str, dict[str, Json]]] = [
        ("null:", {}),
        ("null:", {"persist": False}),
        (f"sqlite:///{tmp_path}/s.db", {}),
        (f"file:{tmp_path}/store", {}),
    ]
    for url, options in places:
        work = tmp_path / "work"
        for path in work.iterdir():
            path.unlink()
        server.script(write, "Written.", read, "It says hey.", "You are welcome.")
        server.requests.clear()
        with opened("open", url, "s", system_prompt="Be brief.", **options) as s:
            for text in turns:
                assert s.send(text).exit_reason == "end_turn"
            assert s.info().turn_count == 3
        requests.append(list(server.requests))
    assert requests[0] == requests[1] == requests[2] == requests[3]
    assert len(requests[0]) == 5
    assert server.refused == []


def test_leaving_nothing_leaves_nothing(
    opened: Opened, server: OpenAIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file anywhere but those that the tools made."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home))
    server.script(calling(call("1", "write", path="a.txt", content="hey\n")), "Written.")
    with opened("open", None, "s", persist=False) as s:
        result = s.send("go")
        assert (result.text, result.files) == ("Written.", [])
    assert list(home.iterdir()) == []
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["a.txt"]


def test_two_sessions_of_one_id_take_turns(opened: Opened, server: OpenAIServer, url: str) -> None:
    """The second one sees what the first one said."""
    server.script("one", "two")
    with opened("open", url, "s") as a, opened("open", url, "s") as b:
        a.send("first")
        b.send("second")
        assert sent(server) == [("user", "first"), ("assistant", "one"), ("user", "second")]
        assert a.messages() == b.messages()


def test_a_fork_has_the_same_agent(opened: Opened, server: OpenAIServer, url: str) -> None:
    """It outlives its parent, whose connections are closed."""
    server.script("one", "two", "three")
    with open_store(url) as store, opened("open", store, "s") as s:
        s.send("first")
        fork = s.fork()
        s.close()
        assert fork.send("second").text == "two"
        assert sent(server) == [("user", "first"), ("assistant", "one"), ("user", "second")]
        fork.close()
        assert isinstance(fork.agent, Loop)
        fork.agent.close()
