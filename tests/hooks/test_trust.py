"""Hooks that are installed, and whether the agent will run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backtrail.exchange.codex.trust import hash_of
from backtrail.exchange.hooks.dialects import DIALECTS
from backtrail.exchange.hooks.entries import group_for

from .calling import World


def trusted(path: Path, *, hashes: bool = True) -> str:
    """What Codex writes into its settings when a person trusts our hooks."""
    hooks = json.loads(path.read_text())["hooks"]
    lines: list[str] = []
    for event, groups in hooks.items():
        label = "".join(f"_{c.lower()}" if c.isupper() else c for c in event)[1:]
        found = hash_of(event, groups[0], 0) if hashes else "sha256:0"
        lines += [f'[hooks.state."{path}:{label}:0:0"]', f'trusted_hash = "{found}"']
    return "\n".join(lines) + "\n"


def test_status_says_whether_codex_runs_them(world: World) -> None:
    """Not before they are trusted, not after they changed, not where hooks are off."""

    def problem() -> str:
        done = world.run("hooks", "status", "codex", "--json")
        (row,) = json.loads(done.stdout)["installed"]
        assert done.returncode == (0 if row["problem"] is None else 1)
        return str(row["problem"])

    world.run("hooks", "install", "codex", "--yes")
    path = world.home / ".codex" / "hooks.json"
    config = path.with_name("config.toml")
    assert "does not trust the hooks SessionStart, " in problem()
    config.write_text(trusted(path))
    assert problem() == "None"
    config.write_text(trusted(path, hashes=False))
    assert "changed since" in problem()
    config.write_text(trusted(path).replace("\n[", "\nenabled = false\n["))
    assert "is switched off in Codex" in problem()
    config.write_text("[features]\nhooks = false\n" + trusted(path))
    assert "switched off in" in problem()
    config.write_text("[broken")
    assert "cannot be read" in problem()


def test_codex_trusts_a_project_first(world: World) -> None:
    """Then its hooks."""
    world.run("hooks", "install", "codex", "--project", "--yes")
    path = world.project / ".codex" / "hooks.json"
    config = world.home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(trusted(path))
    assert "only if you trust it" in world.run("hooks", "status", "codex").stdout
    project = f'[projects."{world.project}"]\ntrust_level = "trusted"\n'
    config.write_text(project + trusted(path))
    done = world.run("hooks", "status", "codex")
    assert done.returncode == 0, done.stdout


def test_a_hook_is_known_to_codex_by_a_hash() -> None:
    """As Codex itself makes it, which these are from."""
    hook = {"type": "command", "command": "/opt/x/bin/backtrail hook codex"}
    plain = {"hooks": [{**hook, "timeout": 10}]}
    assert hash_of("PreToolUse", plain, 0) == (
        "sha256:e9a771ace38a3ad7026f02bf1bc991c708d5bbd80c669f52f53576ae77d09710"
    )
    more = {**hook, "timeout": 5, "statusMessage": "é looking"}
    matched = {"matcher": "^Bash$", "hooks": [hook, more]}
    assert [hash_of("PreToolUse", matched, number) for number in (0, 1)] == [
        "sha256:47855fdb28ae088c3ba7b9ee5b9e35bfb33db4d090e0812dbcfd9d7232acdb97",
        "sha256:6432fba9c0b542c5302e8078d053edfd856a32c05677d718b392dcc9c7c480c0",
    ]


def test_codex_cuts_some_hooks_short() -> None:
    """And complains of those that ask for longer."""
    dialect = DIALECTS["codex"]
    asked = {
        event: group_for(dialect, event, "x")["hooks"][0]["timeout"] for event in dialect.events
    }
    assert [event for event, seconds in asked.items() if seconds <= 3] == [
        "Interrupt",
        "SessionEnd",
    ]


@pytest.mark.parametrize("config", [{"enabled": False}, {"disabled": ["backtrail"]}])
def test_status_says_whether_gemini_runs_them(world: World, config: dict[str, object]) -> None:
    """It has a switch for all, and one for each."""
    world.run("hooks", "install", "gemini", "--yes")
    assert world.run("hooks", "status", "gemini").returncode == 0
    path = world.home / ".gemini" / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hooksConfig": config}))
    done = world.run("hooks", "status", "gemini")
    assert (done.returncode, "switched off" in done.stdout) == (1, True)


@pytest.mark.parametrize("place", ["home/.claude/settings.json", ".claude/settings.local.json"])
def test_status_says_whether_claude_code_runs_them(world: World, place: str) -> None:
    """It has one switch for all hooks, in any of its settings; the nearest counts."""
    world.run("hooks", "install", "claude-code", "--yes")
    file = world.root / place if place.startswith("home") else world.project / place
    file.parent.mkdir(exist_ok=True)
    ran = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**ran, "disableAllHooks": True}))
    done = world.run("hooks", "status")
    assert (done.returncode, str(file) in done.stdout) == (1, True), done.stdout
    (world.project / ".claude").mkdir(exist_ok=True)
    (world.project / ".claude/settings.local.json").write_text('{"disableAllHooks": false}')
    assert world.run("hooks", "status").returncode == 0
