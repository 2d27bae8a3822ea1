"""claude-agent-sdk: reading, listing and forking transcripts. It has no call that appends."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    fork_session,
    get_session_messages,
    list_sessions,
    project_key_for_directory,
)
from protocol import (
    Job,
    Numbers,
    check,
    listed,
    messages,
    repeated,
    serve,
    talks,
    timed_load,
    wanted,
)

SESSION = "11111111-1111-4111-8111-111111111111"
TIME = "2026-01-01T00:00:00.000Z"


def facts(job: Job) -> Numbers:
    return {"version": f"claude-agent-sdk {version('claude-agent-sdk')}"}


def identity(number: int) -> str:
    return f"22222222-2222-4222-8222-{number:012x}"


def project(job: Job, cwd: str) -> Path:
    """The folder of a project's transcripts, inside the job's folder and not the home."""
    os.environ["CLAUDE_CONFIG_DIR"] = job["folder"]
    return Path(job["folder"]) / "projects" / project_key_for_directory(cwd)


def entry(message: dict[str, Any], number: int, session: str, cwd: str) -> dict[str, Any]:
    """The message as a line of a transcript."""
    content: Any = message["content"]
    role = "assistant" if message["role"] == "assistant" else "user"
    if message["role"] == "tool":
        call = message["tool_call_id"]
        content = [{"type": "tool_result", "tool_use_id": call, "content": content}]
    elif "tool_calls" in message:
        content = [{"type": "text", "text": content}]
        for call in message["tool_calls"]:
            use = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
            content.append({**use, "input": json.loads(call["function"]["arguments"])})
    return {
        "parentUuid": identity(number - 1) if number else None,
        "isSidechain": False,
        "cwd": cwd,
        "sessionId": session,
        "version": "2.0.0",
        "gitBranch": "main",
        "type": role,
        "message": {"role": role, "content": content},
        "uuid": identity(number),
        "timestamp": TIME,
    }


def write(job: Job, session: str, cwd: str, items: list[dict[str, Any]]) -> None:
    folder = project(job, cwd)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{session}.jsonl").open("w", encoding="utf-8") as file:
        for number, message in enumerate(items):
            line = json.dumps(
                entry(message, number, session, cwd), ensure_ascii=False, separators=(",", ":")
            )
            file.write(line + "\n")


def prepare_log(job: Job) -> Numbers:
    write(job, SESSION, wanted(job), messages(job))
    return {}


def load(job: Job) -> Numbers:
    project(job, wanted(job))

    def everything() -> list[Any]:
        found = get_session_messages(SESSION, directory=wanted(job))
        return [message.message for message in found]

    return timed_load(everything, job["n"])


def tail(job: Job) -> Numbers:
    project(job, wanted(job))

    def last() -> None:
        found = get_session_messages(SESSION, directory=wanted(job), limit=20, offset=job["n"] - 20)
        check(len(found), 20)

    return repeated(last, job["times"])


def prepare_sessions(job: Job) -> Numbers:
    for number, ((session, cwd, _, _), talk) in enumerate(
        zip(listed(job), talks(job), strict=True)
    ):
        write(job, session, cwd, talk)
        path = project(job, cwd) / f"{session}.jsonl"
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return {}


def list_all(job: Job) -> Numbers:
    project(job, wanted(job))
    return repeated(lambda: check(len(list_sessions()), job["n"]), job["times"])


def latest(job: Job) -> Numbers:
    """Without asking git for worktrees, which would start a process."""
    project(job, wanted(job))

    def newest() -> None:
        found = list_sessions(directory=wanted(job), limit=1, include_worktrees=False)
        check(len(found), 1)

    return repeated(newest, job["times"])


def fork(job: Job) -> Numbers:
    folder = project(job, wanted(job))
    made: list[str] = []

    def branch() -> None:
        at = identity(job["at"] - 1)
        made.append(fork_session(SESSION, wanted(job), up_to_message_id=at).session_id)

    def forget() -> None:
        path = folder / f"{made.pop()}.jsonl"
        with path.open("rb") as file:
            check(sum(1 for _ in file) - 1, job["at"])  # the last line is its title
        path.unlink()

    return repeated(branch, job["times"], forget)


if __name__ == "__main__":
    serve(facts, prepare_log, load, tail, prepare_sessions, list_all, latest, fork)
