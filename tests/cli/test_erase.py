"""What erases is for the person: an agent cannot remove its traces in a plain command."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.stores import open_store

from .stage import CODE, Stage

VERBS = {
    "delete": ["delete", "work", "--yes"],
    "purge": ["purge", "work", "--yes"],
    "purge a path": ["purge", "--path", "readme.md", "--yes"],
    "gc": ["gc", "--now"],
    "seal": ["verify", "--seal"],
    "repair": ["doctor", "--repair"],
    "uninstall": ["hooks", "uninstall", "claude-code", "--yes"],
    "allow": ["config", "allow"],
}
MARKS = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CODEX_SANDBOX", "CODEX_THREAD_ID", "GEMINI_CLI",
         "CURSOR_AGENT", "AI_AGENT")  # fmt: skip


def traces(stage: Stage) -> tuple[object, ...]:
    """What an agent's traces are: events, contents, hooks, allowances."""
    with open_store(stage.url) as store:
        events = [event.id for info in store.sessions() for event in store.read(info.id)]
    blobs = sorted(p.name for p in (stage.folder / "store").rglob("*") if p.suffix == ".db")
    hooks = stage.folder / ".claude" / "settings.json"
    return events, blobs, hooks.exists() and hooks.read_bytes()


@pytest.fixture
def guarded(worked: Stage) -> Stage:
    """A session of two turns, and installed hooks."""
    assert worked.run("hooks", "install", "claude-code", "--yes").code == 0
    return worked


def own_file(stage: Stage) -> Path:
    path = stage.folder / "config" / "backtrail" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_an_agents_mark_refuses_it(guarded: Stage, verb: str) -> None:
    """Nothing is changed; the message names the agent, and what the person can do."""
    before = traces(guarded)
    ran = guarded.run(*VERBS[verb], CLAUDECODE="1")
    assert ran.code == 1
    assert "Claude Code (CLAUDECODE is set)" in ran.err and "agents_may_erase" in ran.err
    assert traces(guarded) == before
    ran = guarded.run(*VERBS[verb], "--json", CLAUDECODE="1")
    assert ran.json["error"]["code"] == "error"


@pytest.mark.parametrize("mark", MARKS)
def test_every_agent_is_known(worked: Stage, mark: str) -> None:
    """By what it sets for the commands that it runs."""
    assert worked.run("delete", "work", "--yes", **{mark: "x"}).code == 1  # type: ignore[arg-type]
    assert worked.run("delete", "work", "--dry-run", **{mark: "x"}).code == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["delete", "gc", "uninstall"])
def test_only_the_persons_own_file_allows_it(guarded: Stage, verb: str) -> None:
    """Neither the project's nor the environment, which the agent sets itself."""
    (guarded.project / ".backtrail.toml").write_text("agents_may_erase = true\n")
    ran = guarded.run(*VERBS[verb], CLAUDECODE="1", BACKTRAIL_AGENTS_MAY_ERASE="1")
    assert ran.code == 1 and "cannot be set by a project" in ran.err
    own_file(guarded).write_text("agents_may_erase = true\n")
    assert guarded.run(*VERBS[verb], CLAUDECODE="1").code == 0


@pytest.mark.parametrize("where", ["machine", "store"])
@pytest.mark.parametrize("verb", ["delete", "gc", "uninstall"])
def test_an_open_call_refuses_it(guarded: Stage, verb: str, where: str, tmp_path: Path) -> None:
    """Of a process above, without any mark; also where the agent hides the registry."""
    hide = f"BACKTRAIL_STATE={shlex.quote(str(tmp_path / 'hidden'))} " if where == "store" else ""
    program = f"{shlex.quote(sys.executable)} -c {shlex.quote(CODE)}"
    line = f"{hide}{program} {shlex.join(VERBS[verb])} --json > {tmp_path}/out; true"
    events = traces(guarded)[0]
    assert guarded.run("record", "--", "sh", "-c", line).code == 0
    ran = json.loads((tmp_path / "out").read_text())
    assert "the open call" in ran["error"]["message"]
    assert isinstance(events, list)
    with open_store(guarded.url) as store:
        assert [event.id for event in store.read("work")] == events


def test_it_is_refused_as_long_as_the_call_is_open(worked: Stage) -> None:
    """By a process above; afterwards the person may clean up."""
    with Session.open(worked.url, "other", cwd=worked.project) as s:
        s.append({"role": "user", "content": "go"})
        with s.tool("bash"):
            assert worked.run("delete", "work", "--yes").code == 1
        assert worked.run("delete", "work", "--yes").code == 0
