"""Gemini CLI goes back by itself, as its record of the chat says; and goes back with us."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backtrail import Unsupported, open_store
from backtrail.exchange.gemini.format import Chat, atoms
from backtrail.exchange.native import write_session

from .calling import Agent, World

NATIVE = "5f0c0f6e-1111-4222-8333-944445555666"


class Gemini:
    """Gemini CLI as hooks and its record show it; `model` is what its model would be sent."""

    def __init__(self, world: World) -> None:
        self.agent = Agent(world, "gemini", NATIVE)
        self.home = world.home / ".gemini"
        chats = self.home / "tmp" / "project" / "chats"
        chats.mkdir(parents=True)
        known = {"projects": {str(world.project): "project"}}
        (self.home / "projects.json").write_text(json.dumps(known))
        self.path = chats / f"session-2026-01-01T00-00-{NATIVE[:8]}.jsonl"
        self.agent.more = {"transcript_path": str(self.path)}
        self.model: list[dict[str, Any]] = []
        self._line({"sessionId": NATIVE, "projectHash": "x", "kind": "main"})
        context = [{"text": "<session_context>\nwhere we are"}]
        self._line({"$set": {"messages": [_message("user", context)], "lastUpdated": "now"}})
        self.agent.hook("SessionStart", source="startup")

    def _line(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _add(self, side: str, content: Any, **more: Any) -> dict[str, Any]:
        message = _message(side, content) | more
        self.model.append(message)
        self._line(message)
        return message

    def prompt(self, text: str) -> str:
        ran = self.agent.hook("BeforeAgent", prompt=text)
        self._add("user", [{"text": text}])
        return ran

    def call(self, path: Path, text: str) -> None:
        """A call of a tool, whose result Gemini notes twice, when the hooks are through."""
        message = self._add("gemini", "")
        given = {"file_path": str(path), "content": text}
        self.hooks(path, text)
        id = f"write_file-{len(self.model)}"
        answer = {
            "functionResponse": {"id": id, "name": "write_file", "response": {"output": "ok"}}
        }
        call = {"id": id, "name": "write_file", "args": given, "result": [answer]}
        message["toolCalls"] = [call]
        self._line(message)
        self._add("user", [answer])

    def hooks(self, path: Path, text: str) -> None:
        fields = {
            "tool_name": "write_file",
            "tool_input": {"file_path": str(path), "content": text},
        }
        self.agent.hook("BeforeTool", **fields)
        path.write_text(text)
        self.agent.hook("AfterTool", tool_response={"llmContent": "ok"}, **fields)

    def answer(self, text: str) -> None:
        self._add("gemini", text)
        self.agent.hook("AfterAgent", prompt_response=text)

    def turn(self, text: str, path: Path) -> None:
        self.prompt(text)
        self.call(path, f"{text}\n")
        self.answer(f"done {text}")

    def rewind(self, to: Callable[[dict[str, Any]], bool]) -> None:
        """`/rewind` to before the last message that is meant."""
        at = max(n for n, message in enumerate(self.model) if to(message))
        self._line({"$rewindTo": self.model[at]["id"]})
        del self.model[at:]
        self._line({"$set": {"messages": self.model, "lastUpdated": "now"}})

    def restore(self, count: int, again: str) -> None:
        """`/restore`: the messages get new ids, and those of the call have no result."""
        kept = [{**message, "id": str(uuid.uuid4())} for message in self.model[:count]]
        call = {"functionCall": {"id": again, "name": "write_file", "args": {}}}
        self.model = [*kept, _message("gemini", [call])]
        self._line({"$set": {"messages": self.model, "lastUpdated": "now"}})


def _message(side: str, content: Any) -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "timestamp": "t", "type": side, "content": content}


def is_prompt(text: str) -> Callable[[dict[str, Any]], bool]:
    return lambda message: message["content"] == [{"text": text}]


def is_result(message: dict[str, Any]) -> bool:
    return message["type"] == "user" and "functionResponse" in message["content"][0]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def gemini(world: World) -> Gemini:
    return Gemini(world)


def said(world: World, native: str = NATIVE) -> list[str]:
    with world.session(f"gemini:{native}") as session:
        return [message["content"] for message in session.messages(format="openai")]


def turns(world: World) -> list[list[tuple[str, list[str]]]]:
    with world.session(f"gemini:{NATIVE}") as session:
        return [
            [(call.by, [file.path for file in call.files]) for call in turn.calls]
            for turn in session.changes()
        ]


def names(world: World) -> list[str]:
    return sorted(path.name for path in world.project.iterdir())


def test_a_rewind_is_followed(world: World, gemini: Gemini) -> None:
    """By the next prompt: a branch, and files that it reverted are its own going back."""
    for name in "abc":
        gemini.turn(name, world.project / name)
    gemini.rewind(is_prompt("b"))
    (world.project / "b").unlink()
    (world.project / "c").unlink()
    gemini.prompt("d")
    gemini.answer("done d")
    assert said(world) == ["a", "done a", "d", "done d"]
    (back,) = world.events(f"gemini:{NATIVE}", "rewound")
    assert (back.data["scope"], back.data["events_dropped"]) == ("conversation", 8)
    assert sorted(by for calls in turns(world) for by, _ in calls) == [
        "going back", *["write_file"] * 3
    ]  # fmt: skip
    (world.project / "mine").write_text("mine\n")
    gemini.prompt("e")
    assert len(world.events(f"gemini:{NATIVE}", "rewound")) == 1
    done = world.run("rewind", "--before", "3", "--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)["conflicts"]) == (0, [])
    assert names(world) == ["mine"]
    assert world.misses() == []


def test_the_whole_of_it_and_again(world: World, gemini: Gemini) -> None:
    """To before the first prompt; and then once more, with what was said since."""
    gemini.turn("a", world.project / "a")
    gemini.turn("b", world.project / "b")
    gemini.rewind(is_prompt("a"))
    gemini.turn("c", world.project / "c")
    assert said(world) == ["c", "done c"]
    gemini.turn("d", world.project / "d")
    gemini.rewind(is_prompt("d"))
    gemini.turn("e", world.project / "e")
    assert said(world) == ["c", "done c", "e", "done e"]
    assert world.misses() == []


def test_a_rewind_within_a_turn(world: World, gemini: Gemini) -> None:
    """To the result of a call: calls before it stay, the answer and what came after go."""
    gemini.prompt("a")
    for name in ("one", "two"):
        gemini.call(world.project / name, name)
    gemini.answer("done a")
    gemini.rewind(is_result)
    gemini.prompt("b")
    with world.session(f"gemini:{NATIVE}") as session:
        kinds = [event.kind for event in session.history() if event.kind != "files_changed"]
    assert kinds[2:] == ["user_message", "action", "action", "rewound", "user_message"]


def test_a_call_that_is_restored(world: World, gemini: Gemini) -> None:
    """It runs again in the turn that it was part of, with no prompt before it."""
    gemini.turn("a", world.project / "a")
    gemini.turn("b", world.project / "b")
    for name in "ab":
        (world.project / name).unlink()
    gemini.restore(1, "write_file-2")
    gemini.hooks(world.project / "a", "a\n")
    assert said(world) == ["a"]
    first = [call for call in turns(world)[0] if call[0] == "write_file"]
    assert first == [("write_file", ["a"])] * 2
    assert "others" not in [by for calls in turns(world) for by, _ in calls]
    gemini.prompt("c")
    assert said(world) == ["a", "c"]
    assert world.misses() == []


def test_a_chat_that_is_resumed(world: World, gemini: Gemini) -> None:
    """Its record may be begun anew in the same file: empty, and then what it was."""
    for name in "ab":
        gemini.turn(name, world.project / name)
    gemini._line({"sessionId": NATIVE, "projectHash": "x", "kind": "main"})
    context = _message("user", [{"text": "<session_context>\nwhere we are"}])
    gemini._line({"$set": {"messages": [context], "lastUpdated": "now"}})
    gemini._line({"$set": {"messages": [context, *gemini.model], "lastUpdated": "now"}})
    gemini.turn("c", world.project / "c")
    assert said(world) == ["a", "done a", "b", "done b", "c", "done c"]
    assert world.events(f"gemini:{NATIVE}", "rewound") == []


def summed_up(gemini: Gemini, kept: list[dict[str, Any]]) -> None:
    """`/compress`: a summary, what Gemini CLI puts behind it, and the last messages."""
    said = _message("user", [{"text": "<state_snapshot>in short"}])
    known = _message("gemini", [{"text": "Got it. Thanks for the additional context!"}])
    again = [{**message, "id": str(uuid.uuid4())} for message in kept]
    gemini.model = [said, known, *again]
    gemini._line({"$set": {"messages": gemini.model, "lastUpdated": "now"}})


@pytest.mark.parametrize("keeps", [True, False])
def test_a_summary_is_no_rewind(world: World, gemini: Gemini, keeps: bool) -> None:
    """It is a compaction, up to the words that the chat still has; a rewind is found behind it."""
    for name in "ab":
        gemini.turn(name, world.project / name)
    second = world.events(f"gemini:{NATIVE}", "user_message")[1]
    summed_up(gemini, gemini.model[4:] if keeps else [])
    gemini.turn("c", world.project / "c")
    (event,) = world.events(f"gemini:{NATIVE}", "compaction")
    assert event.data["summary"]["content"] == "<state_snapshot>in short"
    assert event.data["until"] == (second.seq - 1 if keeps else event.seq - 1)
    assert world.events(f"gemini:{NATIVE}", "rewound") == []
    before = list(gemini.model)
    gemini.turn("d", world.project / "d")
    gemini.rewind(is_prompt("d"))
    gemini.turn("e", world.project / "e")
    assert said(world)[-4:] == ["c", "done c", "e", "done e"]
    _, path, _ = written(world)
    assert chat(path) == atoms(before)


def test_a_summary_and_a_rewind_at_once(world: World, gemini: Gemini) -> None:
    """Both before the next prompt."""
    for name in "abc":
        gemini.turn(name, world.project / name)
    summed_up(gemini, gemini.model[4:])
    gemini.rewind(is_prompt("c"))
    gemini.turn("d", world.project / "d")
    assert said(world) == ["a", "done a", "b", "done b", "d", "done d"]
    with world.session(f"gemini:{NATIVE}") as session:
        kinds = [event.kind for event in session.history()]
    assert kinds.count("compaction") == 1 and kinds.count("rewound") == 1


# --- with us -----------------------------------------------------------------------------


def written(world: World) -> tuple[str, Path, str]:
    """What a rewind to before the last prompt writes: id, record, and what is reported."""
    done = world.run("rewind", "--last", "--yes", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = json.loads(done.stdout)
    return ran["native"]["id"], Path(ran["native"]["path"]), ran["resume"]


def chat(path: Path) -> list[tuple[str, str]]:
    found = Chat()
    for line in path.read_text().splitlines():
        found.take(json.loads(line))
    return atoms(found.records)


def test_a_new_session_has_what_was_kept(world: World, gemini: Gemini) -> None:
    """What the model had before the prompt, each result once; the old session is as it was."""
    gemini.turn("a", world.project / "a")
    before = list(gemini.model)
    gemini.turn("b", world.project / "b")
    old = gemini.path.read_bytes()
    native, path, line = written(world)
    assert line == f"cd {world.project} && gemini --resume {native}"
    assert chat(path) == atoms(before)
    header, *records = map(json.loads, path.read_text().splitlines())
    assert header["sessionId"] == native and path.parent == gemini.path.parent
    assert [one["type"] for one in records] == ["user", "gemini", "gemini"]
    assert gemini.path.read_bytes() == old and path.stat().st_mode & 0o777 == 0o600
    assert names(world) == ["a"]
    # The old window goes on in a fork, and its model learns what went back.
    assert "b; read them again" in gemini.prompt("c")
    assert said(world) == ["a", "done a", "b", "done b", "c"]
    assert said(world, native) == ["a", "done a"]


def test_a_rewind_that_leaves_a_prompt(world: World, gemini: Gemini) -> None:
    """Without an answer: neither the calls nor the words that came after it."""
    gemini.turn("a", world.project / "a")
    gemini.turn("b", world.project / "b")
    seq = world.events(f"gemini:{NATIVE}", "user_message")[1].seq
    done = world.run("rewind", str(seq), "--yes", "--json")
    path = Path(json.loads(done.stdout)["native"]["path"])
    assert chat(path)[-1] == ("user", "b")
    assert [side for side, _ in chat(path)] == ["user", "result", "gemini", "user"]


def test_nothing_said_is_nothing_to_resume(world: World, gemini: Gemini) -> None:
    gemini.turn("a", world.project / "a")
    _, path, line = written(world)
    assert line == f"cd {world.project} && gemini" and not path.exists()
    assert world.run("resume").stdout.strip() == line


def test_going_back_in_the_new_one(world: World, gemini: Gemini) -> None:
    """To a prompt that the new session has from the old one."""
    for name in "abc":
        gemini.turn(name, world.project / name)
    native, path, _ = written(world)
    gemini.agent = Agent(world, "gemini", native, {"transcript_path": str(path)})
    gemini.path = path
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    gemini.model = [line for line in lines if "type" in line]
    gemini.turn("d", world.project / "d")
    gemini.rewind(is_prompt("b"))
    gemini.turn("e", world.project / "e")
    assert said(world, native) == ["a", "done a", "e", "done e"]


def test_without_a_place_for_it(world: World, gemini: Gemini) -> None:
    """Where Gemini CLI was never used, that is said, and the rewind is done."""
    gemini.turn("a", world.project / "a")
    gemini.turn("b", world.project / "b")
    (gemini.home / "projects.json").unlink()
    done = world.run("rewind", "--last", "--yes", "--json")
    ran = json.loads(done.stdout)
    assert (done.returncode, ran["applied"]) == (1, True)
    assert "never used in" in ran["native_error"] and "resume" not in ran


def test_without_its_record(world: World, gemini: Gemini) -> None:
    """Then it is what hooks reported; no path that came with the session is read or written."""
    gemini.turn("a", world.project / "a")
    gemini.turn("b", world.project / "b")
    gemini.path.unlink()
    _, path, _ = written(world)
    assert chat(path) == [("user", "a"), ("gemini", "done a")]
    native = world.sessions()[0].metadata["native"]["id"]
    with world.session(f"gemini:{native}") as session, pytest.raises(Unsupported):
        write_session(session, into_cwd=str(world.home))
    with open_store(world.url) as store:
        assert store.verify() == []
