"""A session of the real `codex` goes on with the real `codex` of another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..cli.test_elsewhere import all_of
from ..hooks.calling import World
from ..programs import needs
from .running import Codex, Model, binary, runs

pytestmark = needs("codex", binary())


def heard(model: Model) -> list[dict[str, Any]]:
    """The last request without what Codex itself adds, such as about the machine."""
    return [
        item
        for item in model.requests[-1]["input"]
        if not (item["type"] == "message" and item["role"] != "assistant" and _is_noted(item))
    ]


def _is_noted(item: dict[str, Any]) -> bool:
    text: str = item["content"][0]["text"]
    return item["role"] == "developer" or text.startswith("<")


def test_codex_goes_on_elsewhere(tmp_path: Path, model: Model) -> None:
    """Its model is sent what the other one was sent; nothing of the other machine changes."""
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    there, here = (Codex(World(tmp_path / name), model) for name in ("there", "here"))
    model.script(runs("echo one > a.txt", "1"), "the first turn is done")
    native = there.say("the first prompt")
    model.script("the second turn is done")
    there.resume(native, "the second prompt")
    sent = heard(model)
    assert any(item.get("call_id") == "call_1" for item in sent)
    assert there.world.run("import", "codex").returncode == 0
    bundle = tmp_path / "theirs.bundle"
    assert there.world.run("export", "-o", str(bundle)).returncode == 0

    before = all_of(there.world.root)
    work = tmp_path / "here" / "work"
    done = here.world.run("import", str(bundle), "--into", str(work))
    assert done.returncode == 0, done.stderr
    line = here.world.run("resume", done.stdout.strip()).stdout.strip()
    found = line.rpartition(" ")[2]
    assert line == f"cd {work} && codex resume {found}" and found != native
    model.script("the third turn is done")
    here.resume(found, "the third prompt", cwd=work)
    last = heard(model)
    assert last[: len(sent)] == sent
    said = [item["content"][0]["text"] for item in last[len(sent) :]]
    assert said == ["the second turn is done", "the third prompt"]
    assert str(there.world.root) not in json.dumps(model.requests[-1]["input"][-3:])
    assert all_of(there.world.root) == before
