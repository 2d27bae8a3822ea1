"""A session with an agent: turns from prompt to durable result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backtrail import NotFound, Session
from backtrail.agent.loop import Loop
from backtrail.agent.models.base import ModelFailed, Reply
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.tools import tools_named
from backtrail.errors import InvalidData, Unsupported
from backtrail.events import Json
from backtrail.session.turns import LiveTurn, Result
from tests.talking import kinds


def calling(*calls: tuple[str, str, dict[str, Json]]) -> dict[str, Json]:
    """A reply that asks for tools."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
            for id, n, a in calls
        ],
    }


def saying(text: str) -> dict[str, Json]:
    return {"role": "assistant", "content": text}


def loop(*replies: Json, **options: Json) -> Loop:
    permissions = options.pop("permissions", Permissions("trusted"))
    return Loop(ScriptedModel(list(replies)), tools_named("all"), permissions, **options)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    (tmp_path / "project").mkdir()
    sessions: list[Session] = []

    def make(agent: object, id: str = "s", **options: Json) -> Session:
        url = f"sqlite:///{tmp_path}/store.db"
        cwd = tmp_path / "project"
        sessions.append(Session.open(url, id, cwd=cwd, agent=agent, **options))  # type: ignore[arg-type]
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


def test_ten_lines_are_an_agent(opened: Callable[..., Session]) -> None:
    """Sync and async ones; each message is in the log before the next step."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        yield saying(f"you said {turn.prompt}")
        assert turn.messages()[-1] == saying(f"you said {turn.prompt}")

    async def other(turn: LiveTurn):  # type: ignore[no-untyped-def]
        yield saying(f"awaited {turn.prompt}")

    session = opened(agent)
    result = session.send("hello")
    assert (result.text, result.exit_reason) == ("you said hello", "end_turn")
    assert session.info().exit_reason == "end_turn"
    assert opened(other, "t").send("hello").text == "awaited hello"


def test_roles_of_a_turn_with_a_tool(opened: Callable[..., Session], tmp_path: Path) -> None:
    """User, assistant, tool, assistant; what the tools did to the files is known."""
    calls = calling(
        ("1", "write", {"path": "a.txt", "content": "hey\n"}),
        ("2", "bash", {"command": "echo b > b.txt"}),
    )
    session = opened(loop(calls, saying("done")))
    result = session.send("go")
    assert [m["role"] for m in session.messages()] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert result.files == ["a.txt", "b.txt"]
    assert kinds(session)[-1] == "turn_end"
    session.undo()
    assert os.listdir(tmp_path / "project") == []


def test_a_known_id_returns_the_recorded_result(opened: Callable[..., Session]) -> None:
    """The model is not asked again."""
    session = opened(loop(saying("once")))
    first = session.send("go", id="r1")
    again = session.send("go", id="r1")
    assert (
        (again.text, again.messages) == (first.text, first.messages) == ("once", [saying("once")])
    )


def test_transient_failures_are_tried_again(opened: Callable[..., Session]) -> None:
    """Others end the turn with an error, which is recorded; the session goes on."""
    busy = ModelFailed("busy", transient=True, retry_after=0.01)
    session = opened(loop(busy, busy, saying("at last"), ModelFailed("bad request"), saying("ok")))
    assert session.send("one").text == "at last"
    failed = session.send("two")
    assert (failed.exit_reason, failed.error) == ("error", "bad request")
    assert session.send("three").text == "ok"


def test_limits_end_a_turn(opened: Callable[..., Session]) -> None:
    """By rounds, and by what a reply says."""
    ls = calling(("1", "bash", {"command": "true"}))
    session = opened(loop(*[ls] * 5))
    assert session.send("go", max_turns=2).exit_reason == "max_turns"
    cut = Reply(saying("half a"), stop_reason="max_tokens")
    assert opened(loop(cut), "t").send("go").exit_reason == "max_tokens"


@pytest.mark.parametrize("content", [None, 5, "", [], {}])
def test_nothing_that_is_no_message_is_sent(opened: Callable[..., Session], content: Json) -> None:
    """A provider would refuse it from then on; so it is not in the log."""
    s = opened(loop(saying("x")))
    with pytest.raises(InvalidData):
        s.send(content)
    assert s.info().turn_count == 0


@pytest.mark.parametrize("limit", [{"max_turns": "x"}, {"max_turns": 1.5}, {"budget": "x"}])
def test_limits_that_are_none(opened: Callable[..., Session], limit: dict[str, Json]) -> None:
    """They are refused before anything is said."""
    s = opened(loop(saying("x")))
    with pytest.raises(InvalidData):
        s.send("go", **limit)
    assert s.info().turn_count == 0


def test_a_budget_without_a_price_is_reported(opened: Callable[..., Session]) -> None:
    """Dollars limit nothing where the model's price is unknown."""
    used = {"input_tokens": 1, "output_tokens": 1}
    s = opened(loop(Reply(saying("x"), used), Reply(saying("y"), used)))
    s.send("go")
    assert s.problems == []
    s.send("go", budget=0.01)
    assert [(problem.what, "price" in problem.detail) for problem in s.problems] == [
        ("budget", True)
    ]


def test_what_may_not_run_goes_to_the_model(opened: Callable[..., Session]) -> None:
    """Denied, unknown and malformed calls are results, not crashes."""
    bad = calling(("1", "bash", {"command": "rm -rf /"}), ("2", "nothing", {}))
    bad["tool_calls"].append(
        {"id": "3", "type": "function", "function": {"name": "bash", "arguments": "{"}}
    )
    session = opened(loop(bad, saying("sorry"), permissions=Permissions("plan")))
    assert session.send("go").text == "sorry"
    notified = {m["tool_call_id"]: m["content"] for m in session.messages() if m["role"] == "tool"}
    assert "phase_gated" in notified["1"]
    assert "no tool `nothing`" in notified["2"]
    assert "not JSON" in notified["3"]


def test_an_agent_that_raises_ends_the_turn(opened: Callable[..., Session]) -> None:
    """Recorded; the session goes on."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        yield saying("working")
        if turn.prompt == "break":
            raise ZeroDivisionError("no")

    session = opened(agent)
    with pytest.raises(ZeroDivisionError):
        session.send("break")
    ended = next(session.events(reverse=True, limit=1))
    assert (ended.data["reason"], ended.data["error"]) == ("error", "ZeroDivisionError: no")
    assert session.send("again").exit_reason == "end_turn"


def test_streaming_gives_deltas_and_events(opened: Callable[..., Session]) -> None:
    """To the caller, and to all subscribers."""
    session = opened(loop(saying("a few words")))
    with session.subscribe() as listening:
        items = list(session.stream("go"))
        text = "".join(i.data["text"] for i in items if getattr(i, "type", "") == "text_delta")
        assert text == "a few words"
        assert getattr(items[-1], "type", "") == "done"
        heard = listening.get(timeout=1)
        assert getattr(heard, "kind", "") == "user_message"


def test_no_agent_is_said(opened: Callable[..., Session]) -> None:
    """As is nothing to proceed with."""
    with pytest.raises(Unsupported, match="no agent"):
        opened(None).send("hello")
    session = opened(loop(saying("x")), "t")
    session.send("go")
    with pytest.raises(NotFound):
        session.proceed()


def test_an_agent_of_another_package_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It registers a factory in the documented entry-point group."""
    (tmp_path / "elsewhere.py").write_text(
        "def opened(provider, model, options):\n"
        "    return lambda turn: [{'role': 'assistant', 'content': f'{provider} {model}'}]\n"
    )
    about = tmp_path / "elsewhere-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[backtrail.agents]\nparrot = elsewhere:opened\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Session.open("memory:", agent="parrot:grey") as s:
        assert s.send("hello").text == "parrot grey"


CHILD = """
import sys, time
from tests.agent.test_sending import calling, loop, saying
from backtrail import Session
first = calling(("1", "bash", {"command": "echo once >> ran"}))
second = calling(("2", "bash", {"command": "echo second >> ran; touch waiting; sleep 61.73"}))
with Session.open(sys.argv[1], "s", cwd=sys.argv[2], agent=loop(first, second)) as s:
    s.send("go", id="r1")
"""


def test_a_killed_turn_is_finished_by_another_process(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    """No tool with a result runs again, every message is there, and the files can go back."""
    project = tmp_path / "project"
    session = opened(loop(saying("finished")))
    command = [sys.executable, "-c", CHILD, session.store.url, str(project)]
    child = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    for _ in range(600):
        if (project / "waiting").exists():
            break
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    subprocess.run(["pkill", "-f", "sleep 61.73"], check=False)
    assert [call.id for call in session.pending()] == ["2"]
    result: Result = session.send("go", id="r1")
    assert result.text == "finished"
    assert (project / "ran").read_text() == "once\nsecond\n"
    notified = [m["content"] for m in session.messages() if m["role"] == "tool"]
    assert notified[1].startswith("interrupted")
    session.undo()
    assert os.listdir(project) == []
