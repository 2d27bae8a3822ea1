"""Loading, the tail, listing and forking."""

from __future__ import annotations

from typing import Any

from ..goals import Goal
from ..running import POWER, Contender, Job, Kind
from .base import Column, Part, Sizes
from .writing import (
    ADK,
    ADVANCED,
    JSONL,
    LANGGRAPH,
    SQLITE,
    SQLITE_SESSION,
    STORES,
    STRANDS,
)

CLAUDE = "claude-agent-sdk"
PLAIN = f"{LANGGRAPH}, plain dictionaries"
PEERS = (SQLITE_SESSION, ADVANCED, LANGGRAPH, CLAUDE)
SLOWEST = (ADK, STRANDS)
OPENAI = (SQLITE_SESSION, ADVANCED)

_DRIVER = {
    SQLITE_SESSION: "peer_openai",
    ADVANCED: "peer_openai",
    STRANDS: "peer_strands",
    ADK: "peer_adk",
    LANGGRAPH: "peer_langgraph",
    PLAIN: "peer_langgraph",
    CLAUDE: "peer_claude",
}


def _on_log(
    name: str, kind: Kind, driver: str, task: str, n: int, *, slow: bool = False, **more: Any
) -> Contender:
    """A contender that reads a log of `n` messages, which its driver prepares once."""
    shared: Job = {key: more[key] for key in ("store", "advanced", "plain") if key in more}
    dataset: Job = {"task": "prepare_log", "n": n, **shared}
    job: Job = {"task": task, "n": n, **more}
    return Contender(name, kind, driver, job, dataset=dataset, slow=slow)


def _peer(
    prefix: str, name: str, task: str, n: int, *, slow: bool = False, **more: Any
) -> Contender:
    if name == ADVANCED:
        more["advanced"] = True
    if name == PLAIN:
        more["plain"] = True
    return _on_log(f"{prefix} {name}", "peer", _DRIVER[name], task, n, slow=slow, **more)


# --- load --------------------------------------------------------------------------------


def load_part(sizes: Sizes) -> Part:
    n = sizes.log
    own = []
    for name, store in STORES:
        own += [
            _on_log(f"load {name}", "ours", "ours", "load", n, store=store),
            _on_log(f"load {name}, Store.read", "ours", "ours", "load_store", n, store=store),
        ]
    limits = [
        _on_log("load mmap + decode", "limit", "limits", "load_mmap", n),
        _on_log("load line by line + decode", "limit", "limits", "load_lines", n),
        _on_log("load SQLite rows + decode", "limit", "limits", "load_sqlite", n),
    ]
    peers = [_peer("load", name, "load", n) for name in (*PEERS, PLAIN)]
    if sizes.all_peers:
        peers += [_peer("load", name, "load", n, slow=True) for name in SLOWEST]
    openai = tuple(f"load {name}" for name in OPENAI)
    least = tuple(limit.name for limit in limits)
    goals = []
    for name, store in STORES:
        ours = f"load {name}"
        goals += [
            Goal("load, time", ours, "ms", openai, at_most=0.65 if store == "sqlite" else 0.9),
            Goal("load, memory", ours, "mb", openai, at_most=0.7),
            Goal("load, memory", ours, "mb", least, at_most=1.3),
        ]
    return Part(
        name="load",
        title=f"Load {n:,} messages in a fresh process",
        contenders=(*own, *peers, *limits),
        columns=(Column("ms", "ms"), Column("mb", "MB added")),
        goals=tuple(goals),
        note=(
            "Opening counts, importing does not. Memory is the peak of the resident set less "
            "what it was before. The page cache is warm. The limit of memory is the limit "
            "that adds the least. LangGraph keeps messages as objects; a graph whose state "
            "holds plain dictionaries is shown too, and no goal is set against it."
        ),
    )


# --- tail --------------------------------------------------------------------------------


def tail_part(sizes: Sizes) -> Part:
    made = []
    for n, tag in ((sizes.log, "tail"), (sizes.log_short, "short tail")):
        times = {"times": sizes.many}
        for name, store in STORES:
            made.append(_on_log(f"{tag} {name}", "ours", "ours", "tail", n, store=store, **times))
        made.append(_peer(tag, SQLITE_SESSION, "tail", n, **times))
        if n == sizes.log:
            rest = (ADVANCED, LANGGRAPH, CLAUDE, *(SLOWEST if sizes.all_peers else ()))
            made += [_peer(tag, name, "tail", n, slow=True, times=1) for name in rest]
        for name, task in (("raw file", "tail_file"), ("raw SQLite", "tail_sqlite")):
            made.append(_on_log(f"{tag} {name}", "limit", "limits", task, n, **times))
    peer = (f"tail {SQLITE_SESSION}",)
    goals = []
    for name, limit in ((JSONL, "tail raw file"), (SQLITE, "tail raw SQLite")):
        ours = f"tail {name}"
        goals += [
            Goal("open + tail(20)", ours, "ms", peer, at_most=0.4),
            Goal("open + tail(20)", ours, "ms", (limit,), at_most=4),
            Goal("open + tail(20), long / short", ours, "ms", (f"short {ours}",), at_most=1.5),
        ]
    return Part(
        name="tail",
        title=f"Open + tail(20) of {sizes.log:,} messages, and of {sizes.log_short:,} (short)",
        contenders=tuple(made),
        columns=(Column("ms", "ms"), Column("first", "first in the process, ms")),
        goals=tuple(goals),
        note=(
            "Each call opens the store again. Flat means: a long log costs what a short one does. "
            "Peers that read everything to find the tail run one round."
        ),
    )


# --- list --------------------------------------------------------------------------------


_STATS = "one stat a session, as many as JSONL"


def list_part(sizes: Sizes) -> Part:
    def one(
        name: str, kind: Kind, driver: str, task: str, times: int, store: str | None = None,
        n: int | None = None,
    ) -> Contender:  # fmt: skip
        shared: Job = {"n": n or (sizes.folders if store == "file" else sizes.sessions)}
        if store is not None:
            shared["store"] = store
        dataset = {"task": "prepare_sessions", **shared}
        return Contender(
            name, kind, driver, {"task": task, "times": times, **shared}, dataset=dataset
        )

    made = []
    for name, store in STORES:
        times = sizes.few if store == "file" else sizes.many
        made.append(one(f"list {name}", "ours", "ours", "list_sessions", sizes.few, store))
        made.append(one(f"latest {name}", "ours", "ours", "latest", times, store))
    made += [
        one(f"list {ADK}", "peer", "peer_adk", "list_sessions", sizes.few),
        one(f"list {CLAUDE}", "peer", "peer_claude", "list_all", 1),
        one(f"latest {CLAUDE}", "peer", "peer_claude", "latest", sizes.many),
        one(f"list {CLAUDE}, as many as JSONL", "peer", "peer_claude", "list_all", 1,
            n=sizes.folders),
        one(_STATS, "limit", "ours", "stats", sizes.many, "file"),
        one("list indexed query", "limit", "limits", "list_sessions", sizes.few),
        one("latest indexed query", "limit", "limits", "latest", sizes.many),
    ]  # fmt: skip
    ours, last = f"list {SQLITE}", f"latest {SQLITE}"
    goals = (
        Goal("list sessions", ours, "ms", (f"list {ADK}",), at_most=0.2),
        Goal("list sessions", ours, "ms", ("list indexed query",), at_most=2),
        Goal("latest of a directory", last, "ms", (f"latest {CLAUDE}",), at_most=1 / 30),
        Goal("latest of a directory", last, "ms", ("latest indexed query",), at_most=4),
        Goal("list sessions", f"list {JSONL}", "ms", (f"list {CLAUDE}, as many as JSONL",),
             at_most=1),
        Goal("latest of a directory", f"latest {JSONL}", "ms", (_STATS,), at_most=3),
    )  # fmt: skip
    return Part(
        name="list",
        title=f"List {sizes.sessions:,} sessions of 50 directories, and the latest of one",
        contenders=tuple(made),
        columns=(Column("ms", "ms"), Column("first", "first in the process, ms")),
        goals=goals,
        note=(
            "Each session has ten messages, those of google-adk and of the queries none. "
            "Opening counts in every call. claude-agent-sdk is not asked about git worktrees. "
            f"JSONL, a folder a session, has {sizes.folders:,} sessions."
        ),
    )


# --- fork --------------------------------------------------------------------------------


def fork_part(sizes: Sizes) -> Part:
    made = []
    for n, tag in ((sizes.fork, "fork"), (sizes.fork_short, "short fork")):
        spot: Job = {"at": n // 2, "times": sizes.many // 2}
        for name, store in STORES:
            label = f"{tag} {name}"
            more = {"store": store, "durability": "synced", **spot}
            made.append(_on_log(label, "ours", "ours", "fork", n, **more))
        made.append(_on_log(f"{tag} one row", "limit", "limits", "fork_row", n, **spot))
        copy = f"{tag} file copy"
        made.append(_on_log(copy, "limit", "limits", "fork_copy", n, **spot))
        spot["times"] = sizes.few
        if n == sizes.fork:
            made += [_peer(tag, name, "fork", n, **spot) for name in (ADVANCED, CLAUDE)]
    peer = (f"fork {ADVANCED}",)
    goals = (
        Goal("fork in the middle", f"fork {SQLITE}", "ms", peer, at_most=1 / 50),
        Goal("fork, long / short", f"fork {SQLITE}", "ms", (f"short fork {SQLITE}",), at_most=1.5),
        Goal("fork in the middle", f"fork {JSONL}", "ms", peer, at_most=1 / 5),
        Goal("fork in the middle", f"fork {JSONL}", "ms", ("fork file copy",), at_most=2),
    )
    return Part(
        name="fork",
        title=(
            f"Fork in the middle of {sizes.fork:,} messages, and of {sizes.fork_short:,} (short)"
        ),
        contenders=tuple(made),
        columns=(Column("ms", "ms"), Column("first", "first in the process, ms")),
        goals=goals,
        note=f"Ours, one row and file copy survive {POWER}; claude-agent-sdk's fork does not.",
    )


# --- search ------------------------------------------------------------------------------


def search_part(sizes: Sizes) -> Part:
    n = sizes.searched
    names = {"ours": "Store.search", "rank": "bare FTS5", "newest": "bare FTS5, newest first"}
    made: tuple[tuple[str, Kind], ...] = (("ours", "ours"), ("rank", "limit"), ("newest", "limit"))
    return Part(
        name="search",
        title=f"Find words in {n:,} messages of {max(1, n // 10_000)} sessions",
        contenders=tuple(
            Contender(
                names[who],
                kind,
                "wording",
                {"task": "search", "n": n, "who": who},
                dataset={"task": "prepare", "n": n},
            )
            for who, kind in made
        ),
        columns=(Column("ms", "ms"), Column("slowest", "slowest query, ms")),
        goals=(
            Goal("search", names["ours"], "ms", (names["rank"],), at_most=3.0),
            Goal("search", names["ours"], "ms", (names["newest"],)),
        ),
        note=(
            "Nine queries for 20 hits each, medians added up: a word of every second message, "
            "rarer ones, a beginning, words in a row, two words, none. A bare query of FTS5, by "
            "its rank or the newest first, gives snippets from a table that has nothing "
            "but the texts; ours decodes and checks the events, too."
        ),
    )
