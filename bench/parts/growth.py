"""How what a verb costs grows with a session, and with a store."""

from __future__ import annotations

from typing import Any

from ..goals import Goal
from ..running import Contender
from .base import Column, Part, Sizes

_EVENTS = (
    *("resume", "open", "latest", "append", "extend", "record", "info", "update", "end"),
    *("messages", "history", "events", "tail", "state", "as_map", "pending", "branches"),
    *("tool", "turn", "send", "stream", "proceed", "answer", "give_up", "log", "subagent"),
    *("changes", "diff", "not_captured", "relocate", "subscribe", "follow"),
    *("checkpoint", "delete_checkpoint", "checkpoints", "undo_preview", "undo_redo"),
    *("rewind_preview", "rewind", "fork", "fork_middle", "resume_middle", "search", "verify"),
)
_SESSIONS = (
    *("sessions", "sessions_limit", "latest", "key", "resume", "create", "update", "search"),
    *("verify", "delete"),
)


def _commands(session: str, point: str) -> dict[str, list[list[str]]]:
    """Verbs of the command line; one that would leave a mark is followed by its opposite."""
    on, twin = ["--session", session], f"twin of {session}"
    back, again = ["undo", *on, "--yes"], ["redo", *on, "--yes"]
    bundle, written = ["-o", "../copy.bundle", "--force"], ["-o", "/dev/null", "--force"]
    return {
        "status": [["status", session]],
        "ls": [["ls"]],
        "ls --all": [["ls", "--all"]],
        "show": [["show", session]],
        "log": [["log", session]],
        "diff": [["diff", "0", *on]],
        "tree": [["tree"]],
        "search": [["search", "nowhere", "--all"]],
        "stats": [["stats"]],
        "checkpoint": [["checkpoint", *on]],
        "rewind --dry-run": [["rewind", point, *on, "--dry-run"]],
        "rewind, undo": [["rewind", point, *on, "--scope", "conversation", "--yes"], back],
        "undo --dry-run": [["undo", *on, "--dry-run"]],
        "undo, redo": [back, again],
        "fork, delete": [["fork", *on, "--title", twin], ["delete", twin, "--yes"]],
        "resume": [["resume", session]],
        "export --html": [["export", session, "--html", *written]],
        "export --jsonl": [["export", session, "--jsonl", *written]],
        "export --markdown": [["export", session, "--markdown", *written]],
        "export --bundle, import, delete": [
            ["export", session, "--bundle", *bundle],
            ["import", "../copy.bundle", "--as", "copy"],
            ["delete", "copy", "--yes"],
        ],
        "rename": [["rename", "a title", *on]],
        "tag": [["tag", "good", *on]],
        "pin, pin --undo": [["pin", session], ["pin", session, "--undo"]],
        "archive, archive --undo": [["archive", session], ["archive", session, "--undo"]],
        "relocate": [["relocate", *on]],
        "purge --dry-run": [["purge", "--text", "nowhere at all", "--dry-run"]],
        "gc --dry-run": [["gc", "--dry-run"]],
        "verify": [["verify"]],
        "doctor": [["doctor"]],
    }


_ONE = _commands("long", "100") | {
    "restore, undo": [
        ["restore", "note.txt", "--session", "long", "--yes"],
        ["undo", "--session", "long", "--yes"],
    ]
}
_MANY = _commands("s0", "2") | {
    "status": [["status"]],
    "record": [["record", "--", "true"]],
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
        for name, words in _ONE.items()
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
            "and forks, on an uncounted one. Those of the command line are whole processes; "
            "what its opposite follows is timed with it. Left out is what reads no log (`emit`, "
            "`cancel`, `close`, `config`, `completion`, `hooks`, `demo`) and what others stand "
            "for: `chat` is `send`, `watch` is `follow`, and `hook` has a part of its own."
        ),
    )  # fmt: skip


def stores_part(sizes: Sizes) -> Part:
    """More and more sessions in one store."""
    _, _, few, many = sizes.stores

    def on(name: str, store: str, task: str, verb: Any, counts: tuple[int, ...]) -> Contender:
        shared = {"store": store, "sizes": list(counts)}
        compared = [few, many] if many in counts else [counts[0], few]
        job = {"task": task, "verb": verb, "times": sizes.few, "compared": compared, **shared}
        # The others look at theirs, so that a first look needs one of its own.
        dataset = {"task": "prepare_sessions", "unseen": task == "first", **shared}
        slow = task != "first"
        return Contender(f"{name}, {store}", "ours", "growth", job, dataset=dataset, slow=slow)

    made = [on(verb, "sqlite", "sessions", verb, sizes.stores) for verb in _SESSIONS]
    made += [on(verb, "file", "sessions", verb, sizes.stores[:3]) for verb in _SESSIONS]
    made += [
        on(f"first {verb}", "sqlite", "first", verb, sizes.stores)
        for verb in ("search", "sessions")
    ]
    made += [
        on(f"backtrail {name}", "sqlite", "command", words, sizes.stores)
        for name, words in _MANY.items()
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
            "The second call of each verb; a first one is on a store not looked at yet. JSONL, "
            f"a folder a session, goes up to {few:,}, compared with {sizes.stores[0]:,}. Verbs of "
            "the command line are whole processes, in the folder of every fiftieth session."
        ),
    )  # fmt: skip
