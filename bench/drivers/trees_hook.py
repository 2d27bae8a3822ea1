"""Hooks as an agent calls them: a process for each event, timed from start to end."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from protocol import Absent, Job, Numbers, serve
from trees import build, edit, milliseconds, some_files, tree_of

ROUNDS = 9


class Agent:
    """Claude Code's side of its hooks: events on stdin, and a transcript that grows."""

    def __init__(self, job: Job) -> None:
        self.root = tree_of(job)
        self.folder = Path(job["folder"])
        self.transcript = self.folder / "transcript.jsonl"
        self.env = {
            **os.environ,
            "HOME": str(self.folder),
            "BACKTRAIL_STORE": f"sqlite:///{self.folder}/store.db",
            # The first import of a large tree takes longer than a hook may.
            "BACKTRAIL_HOOK_TIMEOUT": "1000",
        }
        self._last: str | None = None
        self._calls = 0

    def hook(self, event: str, **fields: Any) -> float:
        """Milliseconds of one hook."""
        known = {
            "session_id": "bench",
            "transcript_path": str(self.transcript),
            "cwd": str(self.root),
            "hook_event_name": event,
        }
        given = json.dumps({**known, **fields}).encode()
        command = [str(Path(sys.executable).parent / "backtrail"), "hook", "claude-code"]
        return milliseconds(lambda: _run(command, given, self.env))

    def call(self, paths: list[Path]) -> tuple[float, float]:
        """A shell call that changes these files: the hook before it, and the one after it."""
        self._calls += 1
        id = f"toolu_{self._calls}"
        fields = {"tool_name": "Bash", "tool_input": {"command": "…"}, "tool_use_id": id}
        before = self.hook("PreToolUse", **fields)
        edit(paths, f"call {self._calls}")
        block = {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "…"}}
        self._write("assistant", [block])
        # A file written a moment ago is looked at twice by careful tools.
        time.sleep(0.05)
        after = self.hook("PostToolUse", tool_response={"stdout": ""}, **fields)
        self._write("user", [{"type": "tool_result", "tool_use_id": id, "content": "done"}])
        return before, after

    def prompt(self) -> float:
        """A person says something."""
        self._calls += 1
        return self.hook("UserPromptSubmit", prompt="go on", prompt_id=f"p{self._calls}")

    def _write(self, role: str, content: list[dict[str, Any]]) -> None:
        line = {
            "type": role,
            "uuid": str(uuid.uuid4()),
            "parentUuid": self._last,
            "sessionId": "bench",
            "timestamp": "2026-01-01T00:00:00.000Z",
            "message": {"id": f"msg_{self._calls}", "role": role, "content": content},
        }
        self._last = str(line["uuid"])
        with self.transcript.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def hooks(job: Job) -> Numbers:
    """Hooks in a project of `n` files that is known already."""
    build(job)
    agent = Agent(job)
    agent.hook("SessionStart", source="startup")
    agent.prompt()
    agent.call([])
    still = [agent.call([]) for _ in range(ROUNDS)]
    paths = some_files(agent.root)
    changed = [agent.call(paths) for _ in range(ROUNDS)]
    if not agent_recorded(agent, ROUNDS):
        raise ValueError("not every call was recorded")
    bare = [sys.executable, "-c", "pass"]
    pairs = [(agent.call([])[0], milliseconds(lambda: _run(bare, b"", agent.env))) for _ in still]
    return {
        "ratio": statistics.median(hook for hook, _ in pairs)
        / statistics.median(python for _, python in pairs),
        "before": statistics.median(before for before, _ in still),
        "after": statistics.median(after for _, after in still),
        "changed": statistics.median(after for _, after in changed),
        "prompt": statistics.median(agent.prompt() for _ in range(ROUNDS)),
    }


def status(job: Job) -> Numbers:
    """`backtrail status` beside `git status`, in turn, in a project that both know."""
    build(job)
    agent = Agent(job)
    agent.hook("SessionStart", source="startup")
    agent.prompt()
    agent.call([])
    git = ["git", f"--git-dir={job['folder']}/shadow", f"--work-tree={agent.root}"]
    for words in (["init", "-q"], ["add", "-A"]):
        _run([*git, *words], b"", dict(os.environ))
    tool = [str(Path(sys.executable).parent / "backtrail"), "status"]
    ours, others = [], []
    for _ in range(ROUNDS + 1):
        ours.append(milliseconds(lambda: _shown(tool, agent)))
        others.append(milliseconds(lambda: _shown([*git, "status"], agent)))
    mine, theirs = statistics.median(ours[1:]), statistics.median(others[1:])
    return {"before": mine, "bare": theirs, "ratio": mine / theirs}


def _shown(command: list[str], agent: Agent) -> None:
    subprocess.run(command, env=agent.env, cwd=agent.root, check=True, capture_output=True)


def agent_recorded(agent: Agent, calls: int) -> bool:
    """Whether the log has an event with files for so many calls."""
    from backtrail import open_store

    with open_store(agent.env["BACKTRAIL_STORE"]) as store:
        (info,) = store.sessions()
        found = [e for e in store.read(info.id, kinds=("action",)) if "after" in e.data["files"]]
        return len(found) == calls


def idle(job: Job) -> Numbers:
    """Hooks that have nothing to do, beside an interpreter that has nothing to do."""
    job = {**job, "n": 0}
    agent = Agent(job)
    if job["off"]:
        agent.env["BACKTRAIL_HOOKS"] = "off"
    bare = [sys.executable, "-c", "pass"]
    ours, others = [], []
    for _ in range(ROUNDS + 1):
        ours.append(agent.hook("PreToolUse", tool_name="Read", tool_input={}, tool_use_id="x"))
        others.append(milliseconds(lambda: _run(bare, b"", agent.env)))
    hook, python = statistics.median(ours[1:]), statistics.median(others[1:])
    return {"before": hook, "bare": python, "over": hook - python}


def git(job: Job) -> Numbers:
    """What shadow-git tools run at each point: two commands, timed together."""
    build(job)
    root = tree_of(job)
    command = ["git", f"--git-dir={job['folder']}/shadow", f"--work-tree={root}"]
    try:
        _run([*command, "init", "-q"], b"", dict(os.environ))
    except FileNotFoundError as error:
        raise Absent("git is not installed") from error

    def snapshot() -> None:
        _run([*command, "add", "-A"], b"", dict(os.environ))
        _run([*command, "write-tree"], b"", dict(os.environ))

    snapshot()
    snapshot()
    still = statistics.median(milliseconds(snapshot) for _ in range(ROUNDS))
    paths, changed = some_files(root), []
    for n in range(ROUNDS):
        edit(paths, f"git {n}")
        time.sleep(0.05)
        changed.append(milliseconds(snapshot))
    return {"before": still, "after": still, "changed": statistics.median(changed)}


def _run(command: list[str], given: bytes, env: dict[str, str]) -> None:
    done = subprocess.run(command, input=given, env=env, capture_output=True)
    if done.returncode or (done.stdout and "write-tree" not in command):
        raise ValueError(f"{command[0]}: exit code {done.returncode}, {done.stderr.decode()}")


if __name__ == "__main__":
    serve(hooks, idle, git, status)
