"""What recording a turn costs, and how soon a delta is heard."""

from __future__ import annotations

from ..goals import Goal
from ..running import Contender
from .base import Column, Part, Sizes

FILES = 2_000
STORES = (("JSONL", "file"), ("SQLite", "sqlite"))


def turn_part(sizes: Sizes) -> Part:
    def call(tool: str, store: str) -> Contender:
        job = {"task": "turn", "tool": tool, "store": dict(STORES)[store], "n": FILES}
        name = f"{tool} recorded, {store}"
        return Contender(name, "ours", "agent_turn", job)

    def delta(name: str, task: str) -> Contender:
        job = {"task": task, "store": "sqlite", "times": sizes.many * 6}
        return Contender(name, "ours", "agent_turn", job)

    thread, task = "delta to a thread", "delta to a task"
    goals = []
    for store, _ in STORES:
        name = f"bash recorded, {store}"
        goals += [
            Goal("shell call / (2 scans + 4 ms)", name, "growth", at_most=1),
            Goal("edit in ms", f"edit recorded, {store}", "ms", at_most=3),
        ]
    return Part(
        name="turn",
        title=f"Recording a turn: ten calls that change one of {FILES:,} files each",
        contenders=(
            *(call(tool, store) for store, _ in STORES for tool in ("bash", "edit")),
            delta(thread, "delta"),
            delta(task, "delta_async"),
        ),
        columns=(
            Column("ms", "ms a call, a delta"),
            Column("p99", "p99 ms"),
            Column("scan", "scan ms"),
            Column("growth", "of what is allowed", 2),
            Column("turn", "turn ms", 1),
            Column("null", "turn on null: ms", 1),
        ),
        goals=(
            *goals,
            Goal("delta in ms", thread, "ms", at_most=1),
            Goal("delta in ms", task, "ms", at_most=1),
        ),
        note=(
            "The same scripted turn of the built-in agent, ten times a call and its result, runs "
            "on the store and on `null:`. The difference, divided by ten, is what recording a call "
            "costs, with all else that the turn records. A shell call is allowed two scans, "
            "measured in the same process with nothing changed, each after a shell, and 4 ms; an "
            "edit, which declares its path, 3 ms. A delta is timed from the agent to a subscriber."
        ),
    )
