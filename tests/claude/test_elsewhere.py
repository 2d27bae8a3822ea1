"""A session of the real `claude` goes on with the real `claude` of another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..cli.test_elsewhere import all_of
from ..hooks.calling import World
from ..programs import needs
from .running import Claude, Model, binary, calls

pytestmark = needs("claude", binary())


def machine(folder: Path, model: Model) -> Claude:
    """A machine with Claude Code and our hooks in its settings."""
    made = Claude(World(folder), model)
    done = made.world.run("hooks", "install", "claude-code", "--yes")
    assert done.returncode == 0, done.stderr
    return made


def heard(request: dict[str, Any]) -> list[tuple[str, str]]:
    """What a request says: the speaker, and the words, calls and results.

    Claude's own notes are left out, such as the one about the machine that it runs on.
    """
    found: list[tuple[str, str]] = []
    for message in request["messages"]:
        if message["role"] == "system":
            continue
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            plain = {name: held for name, held in block.items() if name != "cache_control"}
            if not str(plain.get("text", "")).lstrip().startswith("<system-reminder>"):
                found.append((message["role"], json.dumps(plain, sort_keys=True)))
    return found


def test_claude_goes_on_elsewhere(tmp_path: Path, model: Model) -> None:
    """Its model is sent what the other one was sent; nothing of the other machine changes."""
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    there, here = (machine(tmp_path / name, model) for name in ("there", "here"))
    a = str(there.world.project / "a.txt")
    model.script(
        calls("Write", {"file_path": a, "content": "one\n"}, "1"),
        calls("Read", {"file_path": a}, "2"),
        "the first turn is done",
    )
    id = there.say("the first prompt")["session_id"]
    model.script("the second turn is done")
    there.say("the second prompt", "--resume", id)
    sent = heard(model.requests[-1])
    assert any("toolu_2" in text for _, text in sent)
    bundle = tmp_path / "theirs.bundle"
    assert there.world.run("export", "-o", str(bundle)).returncode == 0

    before = all_of(there.world.root)
    work = tmp_path / "here" / "work"
    done = here.world.run("import", str(bundle), "--into", str(work))
    assert done.returncode == 0, done.stderr
    line = here.world.run("resume", done.stdout.strip()).stdout.strip()
    native = line.rpartition(" ")[2]
    assert line == f"cd {work} && claude --resume {native}" and native != id
    model.script("the third turn is done")
    ran = here.say("the third prompt", "--resume", native, cwd=work)
    assert (ran["session_id"], ran["result"]) == (native, "the third turn is done")
    last = heard(model.requests[-1])
    assert last[: len(sent)] == sent
    assert [json.loads(text).get("text") for _, text in last[len(sent) :]] == [
        "the second turn is done",
        "the third prompt",
    ]
    assert all_of(there.world.root) == before
    assert "the third prompt" in here.world.run("show", done.stdout.strip()).stdout
