"""A turn that recalls the conversation sees what a session shows, whatever happens to the log."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import InvalidData, Session
from backtrail.agent.loop import Loop
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.files.contents.purge import purge
from backtrail.session.liveturn import LiveTurn
from backtrail.session.turnlog import Recall
from backtrail.session.turns import End
from tests.talking import calling, result


def test_what_is_recalled_is_what_is_shown(url: str) -> None:
    """Appends by this session and another, rewinds, undos, pinned prompts, open calls."""
    chance = random.Random(7)
    with Session.open(url, "s") as s, Session.resume(s.store, "s") as other:
        recall = Recall(s.parts.log)
        for step in range(200):
            match chance.randrange(9):
                case 0:
                    s.append({"role": "user", "content": f"ask {step}"})
                case 1 | 2:
                    s.append({"role": "assistant", "content": f"say {step}"})
                case 3:
                    s.append(calling(f"c{step}"))
                case 4:
                    other.append({"role": "tool", "tool_call_id": f"c{step - 1}", "content": "x"})
                case 5:
                    other.checkpoint(f"point {step}")
                case 6 if events := list(s.events(kinds=("user_message",))):
                    other.rewind(chance.choice(events))
                case 7 if any(s.events(kinds=("rewound",))):
                    s.undo()
                case _:
                    s.record("note", {"step": step})
            assert recall.messages("openai") == s.messages("openai")
            assert recall.messages("anthropic") == s.messages("anthropic")


def test_only_what_is_new_is_read(url: str) -> None:
    """However long the conversation is."""
    with Session.open(url, "s") as s:
        s.extend([{"role": "user", "content": f"{n}"} for n in range(50)])
        recall = Recall(s.parts.log)
        first = recall.messages("openai")
        s.append({"role": "assistant", "content": "more"})
        second = recall.messages("openai")
    assert second == [*first, {"role": "assistant", "content": "more"}]
    assert all(a is b for a, b in zip(first, second, strict=False))


def test_what_is_purged_after_a_failed_prompt_is_not_recalled(url: str) -> None:
    """The failed one had read the conversation already."""
    model = ScriptedModel(["ok", "ok"], "openai")
    with Session.open(url, "s", agent=Loop(model)) as s:
        s.send("my password is hunter2")
        with pytest.raises(InvalidData):
            s.send("bad \ud800 text")
        purge(s.store, text="hunter2")
        s.send("hello")
        assert "hunter2" not in str(model.requests[-1].messages)


def test_a_result_of_a_worker_is_seen_when_the_turn_fails(url: str) -> None:
    """The call is not answered a second time."""

    def agent(turn: LiveTurn) -> Iterator[object]:
        yield calling("c1")
        with Session.resume(turn.session.store, "s") as worker:
            worker.append(result("c1", "the worker's"))
        raise RuntimeError("the agent fails")

    with Session.open(url, "s", agent=agent) as s:
        with pytest.raises(RuntimeError):
            s.send("go")
        notified = [m["content"] for m in s.messages() if m["role"] == "tool"]
        assert notified == ["the worker's"]


def test_the_files_of_a_refused_turn_are_reported_again(url: str, tmp_path: Path) -> None:
    """Also by a session that has appended nothing itself."""
    root = tmp_path / "project"
    root.mkdir()

    def agent(turn: LiveTurn) -> Iterator[object]:
        with turn.tool("write", {}) as call:
            (root / "x").write_text("hi")
            call.result = "done"
        yield End("error", "not wanted", refused=True)

    with Session.open(url, "s", cwd=root, agent=agent) as s:
        assert s.send("go", id="one").files == ["x"]
        with Session.open(s.store, "s", cwd=root, agent=agent) as fresh:
            assert fresh.send("go", id="one").files == ["x"]
            fresh.rewind(0, dry_run=True)
            assert fresh.send("go", id="one").files == ["x"]
