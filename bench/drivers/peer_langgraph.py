"""langgraph-checkpoint-sqlite: SqliteSaver, the whole message list in each checkpoint."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from protocol import Job, Numbers, check, messages, repeated, serve, timed_appends, timed_load

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}


def facts(job: Job) -> Numbers:
    name = "langgraph-checkpoint-sqlite"
    return {"version": f"{name} {version(name)}"}


def spelled(message: dict[str, Any]) -> BaseMessage:
    """The message as graphs keep it: `add_messages` turns dictionaries into these."""
    content = message["content"]
    if message["role"] == "user":
        return HumanMessage(content)
    if message["role"] == "tool":
        return ToolMessage(content, tool_call_id=message["tool_call_id"])
    calls = [
        {
            "name": call["function"]["name"],
            "args": json.loads(call["function"]["arguments"]),
            "id": call["id"],
        }
        for call in message.get("tool_calls", ())
    ]
    return AIMessage(content, tool_calls=calls)


def conversation(job: Job) -> list[Any]:
    found = messages(job)
    return found if job.get("plain") else [spelled(message) for message in found]


def opened(job: Job) -> Any:
    return SqliteSaver.from_conn_string(os.path.join(job["folder"], "checkpoints.db"))


def put(saver: SqliteSaver, config: dict[str, Any], state: list[Any]) -> dict[str, Any]:
    """One step of a graph: a checkpoint whose channel holds the conversation so far."""
    step = len(state)
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": state}
    checkpoint["channel_versions"] = {"messages": f"{step:032}.0"}
    metadata = {"source": "loop", "step": step, "parents": {}}
    return saver.put(config, checkpoint, metadata, {"messages": f"{step:032}.0"})


def stored(saver: SqliteSaver) -> list[Any]:
    return saver.get_tuple(CONFIG).checkpoint["channel_values"]["messages"]


def append(job: Job) -> Numbers:
    state: list[Any] = []
    config = CONFIG
    with opened(job) as saver:
        saver.setup()

        def one(message: Any) -> None:
            nonlocal config
            state.append(message)
            config = put(saver, config, state)

        numbers = timed_appends(one, conversation(job))
    with opened(job) as saver:
        check(len(stored(saver)), job["n"])
    return numbers


def prepare_log(job: Job) -> Numbers:
    with opened(job) as saver:
        put(saver, CONFIG, conversation(job))
    return {}


def load(job: Job) -> Numbers:
    def everything() -> list[Any]:
        with opened(job) as saver:
            return stored(saver)

    return timed_load(everything, job["n"])


def tail(job: Job) -> Numbers:
    def last() -> None:
        with opened(job) as saver:
            check(len(stored(saver)[-20:]), 20)

    return repeated(last, job["times"])


if __name__ == "__main__":
    serve(facts, append, prepare_log, load, tail)
