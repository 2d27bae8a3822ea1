"""A person at the real Codex, by real keys: the conversation is what its model is sent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..programs import needs
from .running import Model, binary
from .scenes import SUMMARY, Scene

pytestmark = needs("codex", binary(), terminal=True, seconds=120)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Model() as model:
        yield Scene(tmp_path, model)


def test_esc_esc_takes_a_turn_back(scene: Scene) -> None:
    """The turn is a branch; its files stay, since Codex leaves them, and go back with ours."""
    with scene.open() as terminal:
        scene.say(terminal, "run echo one > a.txt")
        scene.say(terminal, "run echo two > b.txt")
        for _ in range(6):
            # The first one may be lost, or come too early to be the first of two.
            if "rewind" not in terminal.screen():
                terminal.press("Escape")
                time.sleep(0.7)
        terminal.wait("rewind", 5)
        terminal.press("Enter")
        terminal.wait("Conversation reverted")
        scene.say(terminal, "just three")
    assert scene.said() == scene.sent() == ["run echo one > a.txt", "just three"]
    (tree,) = json.loads(scene.world.run("tree", "--json").stdout)["trees"]
    assert [node["kind"] for node in tree["below"]] == ["branch"]
    assert sorted(scene.files()) == ["a.txt", "b.txt"]
    first = scene.world.events(scene.latest().key or "", "user_message")[0]
    done = scene.world.run("rewind", "--before", str(first.seq), "--yes")
    assert (done.returncode, scene.files()) == (0, {}), done.stdout
    assert scene.world.misses() == []


def test_a_new_chat_and_an_interrupt(scene: Scene) -> None:
    """`/new` begins another session; Esc in a command ends a turn."""
    with scene.open() as terminal:
        scene.say(terminal, "run echo one > a.txt")
        first = scene.latest().key
        scene.command(terminal, "/new", lambda screen: "Use current Git worktree" in screen)
        terminal.press("Enter")
        terminal.until(lambda: "a.txt" not in terminal.screen(), what="the new chat")
        scene.ask(terminal, "run echo x > early.txt; sleep 3; echo x > late.txt")
        terminal.until((scene.world.project / "early.txt").exists, what="the command")
        time.sleep(0.5)
        terminal.press("Escape")
        terminal.until(lambda: scene.count("turn_end") == 2, what="the interrupt")
        scene.say(terminal, "just three")
    assert scene.latest().key != first
    assert scene.said() == scene.sent()
    assert [said.split(" ")[0] for said in scene.sent()] == ["run", "just"]
    assert scene.said(first) == ["run echo one > a.txt"]
    assert scene.world.misses() == []


def test_a_summary(scene: Scene) -> None:
    """`/compact`: after it the model is sent the summary, and after our rewind it still is."""
    with scene.open() as terminal:
        scene.say(terminal, "run echo one > a.txt")
        scene.command(terminal, "/compact", lambda screen: "Context compacted" in screen)
        scene.say(terminal, "just two")
    kept = spoken(scene.heard())[:-1]
    assert SUMMARY in json.dumps(kept) and "done with echo" not in json.dumps(kept)
    events = scene.world.events(scene.latest().key or "", "compaction", "user_message")
    assert [event.kind for event in events] == ["user_message", "compaction", "user_message"]
    assert SUMMARY in json.dumps(events[1].data)
    done = scene.world.run("rewind", "--last", "--yes")
    native = scene.latest().metadata["native"]["id"]
    assert f"codex resume {native}" in done.stdout
    scene.codex.resume(native, "just three")
    assert spoken(scene.heard())[:-1] == kept
    assert scene.world.misses() == []


def spoken(items: list[dict[str, Any]]) -> list[str]:
    """The words that a model is sent, without what Codex adds anew."""
    texts = [
        part["text"]
        for item in items if item["type"] == "message" and item["role"] != "developer"
        for part in item["content"] if "text" in part
    ]  # fmt: skip
    return [text for text in texts if not text.startswith("<")]


def test_going_on_with_the_last(scene: Scene) -> None:
    """`codex resume --last` is the same session; a window opened in vain is none."""
    with scene.open() as terminal:
        scene.say(terminal, "run echo one > a.txt")
    with scene.open():
        time.sleep(1)
    with scene.open("resume", "--last") as terminal:
        scene.say(terminal, "run echo two > b.txt")
    assert scene.said() == scene.sent() == ["run echo one > a.txt", "run echo two > b.txt"]
    (listed,) = json.loads(scene.world.run("ls", "--json").stdout)["sessions"]
    assert listed["turn_count"] == 2
    assert scene.world.run("undo", "--yes").returncode == 0
    assert scene.files() == {"a.txt": "one\n"}
    assert scene.world.misses() == []


def test_two_at_once_one_of_them_below(scene: Scene) -> None:
    """Each has its own words and files; one that runs in a subfolder works on the project."""
    below = scene.world.project / "below"
    below.mkdir()
    with scene.open() as one, scene.open(cwd=below) as two:
        scene.say(one, "run echo one > a.txt")
        first = scene.latest()
        scene.say(two, "run echo x > ../b.txt")
        second = scene.latest()
        assert scene.said(second.key) == scene.sent()
        scene.say(one, "run echo y > c.txt")
        assert scene.said(first.key) == scene.sent()
    assert (first.root, second.root) == (str(scene.world.project),) * 2
    assert (first.cwd, second.cwd) == (str(scene.world.project), str(below))
    with scene.world.session(second.key or "") as session:
        session.rewind(before=next(session.events(kinds=("user_message",))), scope="files")
    assert sorted(scene.files()) == ["a.txt", "c.txt"]
    assert scene.world.misses() == []


def test_a_command_that_goes_on_behind_the_turn(scene: Scene) -> None:
    """Codex goes on while it runs; what it writes later is in the log before the next prompt."""
    with scene.open() as terminal:
        scene.say(terminal, "leave sleep 2; echo x > later.txt")
        terminal.until((scene.world.project / "later.txt").exists, what="the command")
        time.sleep(0.5)
        scene.say(terminal, "just two")
    assert scene.said() == scene.sent()
    ran = scene.world.events(scene.latest().key or "", "files_changed", "action")
    assert any("after" in event.data.get("files", {}) for event in ran)
    assert scene.world.misses() == []


def test_the_old_window_after_a_rewind(scene: Scene) -> None:
    """Its model is still sent what was taken back, and is informed that files are others now."""
    with scene.open() as terminal:
        scene.say(terminal, "run echo one > a.txt")
        scene.say(terminal, "run echo two > a.txt")
        done = scene.world.run("rewind", "--last", "--yes")
        assert done.returncode == 0, done.stdout
        scene.say(terminal, "just three")
        assert json.dumps(scene.heard()).count("a.txt; read them again") == 1
        assert scene.said() == scene.sent() and len(scene.sent()) == 3
    assert (scene.world.project / "a.txt").read_text() == "one\n"
    assert scene.world.misses() == []


def test_switched_off_while_it_runs(scene: Scene) -> None:
    """Codex's daemon has the environment of its start; the person's own file counts each time."""
    own = scene.world.home / ".config" / "backtrail" / "config.toml"
    own.parent.mkdir(parents=True)
    with scene.open() as terminal:
        own.write_text(f'hooks_off = ["{scene.world.project}"]\n')
        scene.ask(terminal, "run echo one > a.txt")
        terminal.wait("done with echo")
        # Its last hook comes after the answer, and is part of the work.
        terminal.wait("Worked for")
        assert scene.world.sessions() == []
        own.unlink()
        scene.say(terminal, "run echo two > b.txt")
    assert scene.world.run("undo", "--yes").returncode == 0
    assert scene.files() == {"a.txt": "one\n"}
    assert scene.world.misses() == []
