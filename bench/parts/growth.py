"""How what a verb costs grows with a session, and with a store."""

from __future__ import annotations

from typing import Any

from ..goals import Goal
from ..running import Contender
from .base import Column, Part, Sizes

_EVENTS = (
    *("resume", "append", "extend", "record", "info", "messages", "history", "tail", "pending"),
    *("events", "as_map", "tool", "turn", "log", "end", "changes", "diff", "subscribe"),
    *("state", "branches", "checkpoint", "delete_checkpoint", "checkpoints", "not_captured"),
    *("undo_preview", "undo_redo", "rewind_preview", "rewind", "fork", "fork_middle"),
    *("resume_middle", "update", "verify"),
)
_SESSIONS = (
    *("sessions", "sessions_limit", "latest", "key", "resume", "create", "update", "search"),
    *("verify", "delete"),
)
_COMMANDS = {
    "status": ["status"],
    "ls": ["ls"],
    "show": ["show", "long", "--json"],
    "log": ["log", "long", "--json"],
    "search": ["search", "nowhere", "--json"],
    "tree": ["tree", "--json"],
    "stats": ["stats", "--json"],
    "diff": ["diff", "0", "--session", "long", "--json"],
    "checkpoint": ["checkpoint", "--session", "long", "--json"],
    "rename": ["rename", "a title", "--session", "long", "--json"],
    "rewind --dry-run": ["rewind", "100", "--session", "long", "--dry-run", "--json"],
    "gc --dry-run": ["gc", "--dry-run", "--json"],
    "export": ["export", "long", "--jsonl", "-o", "/dev/null", "--force"],
    "undo --dry-run": ["undo", "--session", "long", "--dry-run", "--json"],
    "verify": ["verify", "--json"],
}


def growth_part(sizes: Sizes) -> Part:
    """One session of more and more events."""
    short, _, long, _ = sizes.events

    def on(name: str, store: str, task: str, verb: Any, counts: tuple[int, ...]) -> Contender:
        shared = {"store": store, "sizes": list(counts)}
        job = {"task": task, "verb": verb, "times": sizes.few, "compared": [short, long], **shared}
        dataset = {"task": "prepare_events", **shared}
        return Contender(f"{name}, {store}", "ours", "growth", job, dataset=dataset, slow=True)

    made = [on(verb, "sqlite", "events", verb, sizes.events) for verb in _EVENTS]
    made += [on(verb, "file", "events", verb, sizes.events[:3]) for verb in _EVENTS]
    made += [
        on(f"backtrail {name}", "sqlite", "command", words, sizes.events)
        for name, words in _COMMANDS.items()
    ]
    flat = [
        Goal(f"{what}, {long:,} events against {short:,}", f"{verb}, sqlite", "times", at_most=2)
        for what, verb in (
            ("extend of two", "extend"),
            ("first append after a resume", "append"),
            ("fork at the head", "fork"),
        )
    ]
    most = f"{sizes.events[3]:,} events"
    return Part(
        name="growth",
        title="One session: how the cost of a verb grows, in ms",
        contenders=tuple(made),
        columns=(
            *(Column(f"at_{at}", f"{n:,} events", span=False) for at, n in enumerate(sizes.events)),
            Column("times", f"{long:,} / {short:,}", 2, span=False),
        ),
        goals=(
            *flat,
            Goal(f"undo's preview, {most}", "undo_preview, sqlite", "at_3", ("messages, sqlite",),
                 at_most=0.5),
        ),
        note=(
            "Each verb on a session that was just resumed; of `append`, `extend`, `record`, `info` "
            "and forks, on one that nobody counted. Those of the command line are whole processes."
        ),
    )  # fmt: skip


def stores_part(sizes: Sizes) -> Part:
    """More and more sessions in one store."""
    _, _, few, many = sizes.stores

    def on(name: str, store: str, task: str, verb: str, counts: tuple[int, ...]) -> Contender:
        shared = {"store": store, "sizes": list(counts)}
        compared = [few, many] if many in counts else [counts[0], few]
        job = {"task": task, "verb": verb, "times": sizes.few, "compared": compared, **shared}
        dataset = {"task": "prepare_sessions", **shared}
        slow = task == "sessions"
        return Contender(f"{name}, {store}", "ours", "growth", job, dataset=dataset, slow=slow)

    made = [on(verb, "sqlite", "sessions", verb, sizes.stores) for verb in _SESSIONS]
    made += [on(verb, "file", "sessions", verb, sizes.stores[:3]) for verb in _SESSIONS]
    made += [
        on(f"first {verb}", "sqlite", "first", verb, sizes.stores)
        for verb in ("search", "sessions")
    ]
    return Part(
        name="stores",
        title="Many sessions of five messages: how the cost of a verb grows, in ms",
        contenders=tuple(made),
        columns=(
            *(Column(f"at_{at}", f"{n:,} sessions", span=False)
              for at, n in enumerate(sizes.stores)),
            Column("times", f"{many:,} / {few:,}", 2, span=False),
            Column("each", "the same for each session", 2, span=False),
        ),
        goals=(
            Goal(f"first search, for each session, {many:,} against {few:,}",
                 "first search, sqlite", "each", at_most=1.3),
        ),
        note=(
            "The second call of each verb; a first one is on a store that nobody looked at. JSONL, "
            f"a folder a session, goes up to {few:,}, compared with {sizes.stores[0]:,}."
        ),
    )  # fmt: skip
