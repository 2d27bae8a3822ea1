"""A person at the real Gemini CLI, by real keys: the conversation is what its model is sent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..agent.servers.base import Answer
from ..programs import needs
from .running import SUMMARY, Model, script
from .scenes import Scene, obey

pytestmark = needs("gemini", script(), terminal=True, seconds=120)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Model() as model:
        yield Scene(tmp_path, model)


def test_an_interrupt_and_a_new_chat(scene: Scene) -> None:
    """Esc in a command, and on; `/clear` begins another session."""
    with scene.open("--yolo") as terminal:
        scene.ask(terminal, "run echo x > early.txt; sleep 20; echo x > late.txt")
        terminal.until((scene.world.project / "early.txt").exists, what="the command")
        time.sleep(0.5)
        terminal.press("Escape")
        terminal.wait("Request cancelled")
        scene.say(terminal, "write a.txt one")
        first = scene.latest().key
        assert scene.said() == scene.sent()
        assert [said.split(" ")[0] for said in scene.sent()] == ["run", "write"]
        scene.command(terminal, "/clear", lambda screen: "write a.txt" not in screen)
        scene.say(terminal, "write b.txt bee")
    assert scene.said() == scene.sent() == ["write b.txt bee"]
    assert scene.latest().key != first and len(scene.world.sessions()) == 2
    assert scene.world.run("undo", "--yes").returncode == 0
    assert sorted(scene.files()) == ["a.txt", "early.txt"]
    with scene.world.session(first or "") as session:
        session.rewind(before=next(session.events(kinds=("user_message",))), scope="files")
    assert scene.files() == {}
    assert scene.world.misses() == []


def test_going_on_with_the_latest(scene: Scene) -> None:
    """`--resume latest` in a new window is the same session; a window opened in vain is none."""
    with scene.open("--yolo") as terminal:
        scene.say(terminal, "write a.txt one")
    with scene.open("--yolo"):
        pass
    with scene.open("--yolo", "--resume", "latest") as terminal:
        scene.say(terminal, "write b.txt bee")
    assert scene.said() == scene.sent() == ["write a.txt one", "write b.txt bee"]
    (listed,) = json.loads(scene.world.run("ls", "--json").stdout)["sessions"]
    assert listed["turn_count"] == 2
    assert scene.world.run("undo", "--yes").returncode == 0
    assert scene.files() == {"a.txt": "one\n"}
    assert scene.world.misses() == []


def test_two_at_once_one_of_them_below(scene: Scene) -> None:
    """Each has its own words and files; one that runs in a subfolder works on the project."""
    below = scene.world.project / "below"
    below.mkdir()
    with scene.open("--yolo") as one, scene.open("--yolo", cwd=below) as two:
        scene.say(one, "write a.txt one")
        first = scene.latest()
        scene.say(two, "run echo x > ../b.txt")
        second = scene.latest()
        scene.ask(one, "run sleep 2; echo y > c.txt")
        scene.say(two, "run echo z > d.txt")
        assert scene.said(second.key) == scene.sent()
        one.until(lambda: scene.count("turn_end") == 4, what="the other's end")
    assert scene.said(first.key) == ["write a.txt one", "run sleep 2; echo y > c.txt"]
    assert (first.root, second.root) == (str(scene.world.project),) * 2
    assert (first.cwd, second.cwd) == (str(scene.world.project), str(below))
    with scene.world.session(second.key or "") as session:
        session.rewind(before=next(session.events(kinds=("user_message",))), scope="files")
    assert scene.files().keys() == {"a.txt", "c.txt"}
    assert scene.world.misses() == []


def test_a_command_left_in_the_background(scene: Scene) -> None:
    """The turn goes on without it; what it writes later is in the log before the next prompt."""
    with scene.open("--yolo") as terminal:
        scene.say(terminal, "leave sleep 2; echo x > later.txt")
        terminal.until((scene.world.project / "later.txt").exists, what="the command")
        scene.say(terminal, "just two")
    assert scene.said() == scene.sent()
    ran = scene.world.events(scene.latest().key or "", "files_changed", "action")
    assert any("after" in event.data.get("files", {}) for event in ran)
    assert scene.world.misses() == []


def test_a_summary(scene: Scene) -> None:
    """`/compress`: the model is sent a summary and the last words, and ours goes back there."""
    usage = {"promptTokenCount": 90_000, "candidatesTokenCount": 7, "totalTokenCount": 90_007}
    answer = obey(scene.world.project)
    scene.model._script.clear()
    scene.model.script(*[lambda body: Answer(answer(body), usage=usage)] * 20)
    with scene.open("--yolo") as terminal:
        for text in ("write a.txt one", "just two", "just three"):
            scene.say(terminal, text)
        scene.command(terminal, "/compress", lambda screen: "compressed from" in screen)
        scene.say(terminal, "just four")
    assert SUMMARY in scene.model.heard()
    kept = scene.sent()[:-1]
    assert kept == ["just two", "just three"]
    key = scene.latest().key or ""
    (summary,) = scene.world.events(key, "compaction")
    prompts = scene.world.events(key, "user_message")
    assert SUMMARY in summary.data["summary"]["content"]
    assert prompts[0].seq < summary.data["until"] < prompts[1].seq
    done = scene.world.run("rewind", "--last", "--yes")
    assert done.returncode == 0, done.stdout
    native = scene.latest().metadata["native"]["id"]
    scene.gemini.say("just five", "--resume", native)
    assert SUMMARY in scene.model.heard() and scene.sent() == [*kept, "just five"]
    assert scene.world.misses() == []
