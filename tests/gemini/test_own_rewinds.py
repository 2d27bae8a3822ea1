"""Gemini's own `/rewind` and `/restore`, by real keys: what is live is what the model is sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..programs import needs
from ..terminal import Terminal
from .running import Model, script
from .scenes import Scene

pytestmark = needs("gemini", script(), terminal=True, seconds=120)


def by_turn(scene: Scene) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """What happened to the files, turn by turn."""
    with scene.world.session(scene.latest().key or "") as session:
        return [
            (turn.prompt, [(call.by, [file.path for file in call.files]) for call in turn.calls])
            for turn in session.changes()
        ]


def shape(body: dict[str, Any]) -> list[tuple[str, str]]:
    """What the model is sent: words, calls and results, without what is added anew each time."""
    found = []
    for content in body["contents"]:
        for part in content["parts"]:
            if "text" in part and not part["text"].startswith("<session_context>"):
                found.append((content["role"], part["text"]))
            elif "functionCall" in part:
                found.append(("call", json.dumps(part["functionCall"]["args"], sort_keys=True)))
            elif "functionResponse" in part:
                found.append(("result", json.dumps(part["functionResponse"]["response"])))
    return found


def saved(scene: Scene) -> list[Path]:
    """The checkpoints that Gemini CLI has made, one before each call that writes."""
    return sorted((scene.world.home / ".gemini" / "tmp").glob("*/checkpoints/*.json"))


def allow(scene: Scene, terminal: Terminal, text: str) -> None:
    """Say something, and allow the call that comes of it."""
    ended = scene.count("turn_end")
    scene.ask(terminal, text)
    terminal.wait("Apply this change")
    # It is made while Gemini asks; allowed at once, the call gets none.
    terminal.until(lambda: len(saved(scene)) > ended, what="the checkpoint")
    terminal.press("Enter")
    terminal.until(lambda: scene.count("turn_end") > ended, what=text)


def resumed(stdout: str) -> str:
    found = re.search(r"gemini --resume ([0-9a-f-]{36})", stdout)
    assert found is not None, stdout
    return found[1]


def test_rewinding_and_reverting(tmp_path: Path, model: Model) -> None:
    """The rewound turn is a branch, its files went back by the session itself, and so do we."""
    scene = Scene(tmp_path, model)
    with scene.open("--yolo") as terminal:
        for text in ("write a.txt one", "write a.txt two", "write b.txt bee"):
            scene.say(terminal, text)
        before = shape(model.requests[2])[:-1]
        scene.command(terminal, "/rewind", lambda screen: "Stay at current position" in screen)
        # The last entry is for the result of the call, the one before it the prompt.
        for chosen in ("● No files have been changed", "● write b.txt bee"):
            terminal.press("Up")
            terminal.wait(chosen)
        terminal.press("Enter")
        terminal.wait("● 1. Rewind conversation and revert")
        terminal.press("Enter")
        terminal.until(lambda: "b.txt" not in scene.files(), what="the revert")
        terminal.wait("* write b.txt bee")
        scene.say(terminal, "just four")
    assert scene.said() == scene.sent() == ["write a.txt one", "write a.txt two", "just four"]
    (tree,) = json.loads(scene.world.run("tree", "--json").stdout)["trees"]
    assert [node["kind"] for node in tree["below"]] == ["branch"]
    changed = [call for _, calls in by_turn(scene) for call in calls]
    assert ("others", ["b.txt"]) not in changed and ("going back", ["b.txt"]) in changed
    # Now ours: to before the second prompt, conversation and files, in a session of Gemini's own.
    second = scene.world.events(scene.latest().key or "", "user_message")[1]
    done = scene.world.run("rewind", "--before", str(second.seq), "--yes", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = json.loads(done.stdout)
    assert (ran["conflicts"], scene.files()) == ([], {"a.txt": "one\n"})
    native = resumed(ran["resume"])
    scene.gemini.say("just six", "--resume", native)
    assert shape(model.requests[-1]) == [*before, ("user", "just six")]
    assert scene.said(f"gemini:{native}") == ["write a.txt one", "just six"]
    assert scene.world.misses() == []


def test_restoring_a_call(tmp_path: Path, model: Model) -> None:
    """The chat goes back into an earlier turn, files too, and the call runs again in that turn."""
    scene = Scene(tmp_path, model, checkpointing={"enabled": True})
    with scene.open() as terminal:
        for text in ("write a.txt one", "write b.txt bee"):
            allow(scene, terminal, text)
        again = f"/restore {saved(scene)[0].stem}"
        scene.command(terminal, again, lambda screen: "Restored project" in screen)
        terminal.until(lambda: scene.count("action") == 3, what="the call again")
        scene.ask(terminal, "just four")
        terminal.until(lambda: scene.count("turn_end") == 3, what="the answer")
    assert scene.files() == {"a.txt": "one\n"}
    assert scene.said() == scene.sent() == ["write a.txt one", "just four"]
    first, *_ = by_turn(scene)
    wrote = [call for call in first[1] if call[0] == "write_file"]
    assert wrote == [("write_file", ["a.txt"])] * 2
    assert "others" not in [by for _, calls in by_turn(scene) for by, _ in calls]
    done = scene.world.run("rewind", "--before", "3", "--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)["conflicts"]) == (0, []), done.stdout
    assert scene.files() == {}
    assert scene.world.misses() == []
