"""strands-agents: FileSessionManager, one file a message."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from protocol import (
    Job,
    Numbers,
    check,
    messages,
    repeated,
    serve,
    timed_appends,
    timed_load,
)
from strands.session.file_session_manager import FileSessionManager
from strands.types.session import SessionAgent, SessionMessage

SESSION, AGENT = "bench", "agent"


def facts(job: Job) -> Numbers:
    return {"version": f"strands-agents {version('strands-agents')}"}


def spelled(message: dict[str, Any]) -> dict[str, Any]:
    """The message as strands spells it."""
    if message["role"] == "tool":
        result = {
            "toolUseId": message["tool_call_id"],
            "status": "success",
            "content": [{"text": message["content"]}],
        }
        return {"role": "user", "content": [{"toolResult": result}]}
    content: list[dict[str, Any]] = [{"text": message["content"]}]
    for call in message.get("tool_calls", ()):
        function = call["function"]
        use = {"toolUseId": call["id"], "name": function["name"]}
        content.append({"toolUse": {**use, "input": json.loads(function["arguments"])}})
    return {"role": message["role"], "content": content}


def opened(job: Job) -> FileSessionManager:
    return FileSessionManager(session_id=SESSION, storage_dir=job["folder"])


def append(job: Job) -> Numbers:
    items = list(enumerate(map(spelled, messages(job))))
    manager = opened(job)
    manager.create_agent(SESSION, SessionAgent(AGENT, {}, {}))

    def one(item: tuple[int, dict[str, Any]]) -> None:
        index, message = item
        manager.create_message(SESSION, AGENT, SessionMessage.from_message(message, index))

    numbers = timed_appends(one, items)
    check(len(opened(job).list_messages(SESSION, AGENT)), job["n"])
    return numbers


def prepare_log(job: Job) -> Numbers:
    manager = opened(job)
    manager.create_agent(SESSION, SessionAgent(AGENT, {}, {}))
    for index, message in enumerate(map(spelled, messages(job))):
        manager.create_message(SESSION, AGENT, SessionMessage.from_message(message, index))
    return {}


def load(job: Job) -> Numbers:
    def everything() -> list[Any]:
        found = opened(job).list_messages(SESSION, AGENT)
        return [message.to_message() for message in found]

    return timed_load(everything, job["n"])


def tail(job: Job) -> Numbers:
    def last() -> None:
        found = opened(job).list_messages(SESSION, AGENT, offset=job["n"] - 20)
        check(len(found), 20)

    return repeated(last, job["times"])


if __name__ == "__main__":
    serve(facts, append, prepare_log, load, tail)
