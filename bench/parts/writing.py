"""Appending: one writer, many threads, and what an event loop feels of it."""

from __future__ import annotations

from ..goals import Goal
from ..running import CRASH, NOTHING, POWER, Contender, Job
from .base import Column, Part, Sizes

JSONL, SQLITE = "Backtrail JSONL", "Backtrail SQLite"
STORES = ((JSONL, "file"), (SQLITE, "sqlite"))

SQLITE_SESSION = "openai-agents SQLiteSession"
ADVANCED = "openai-agents AdvancedSQLiteSession"
STRANDS = "strands-agents FileSessionManager"
ADK = "google-adk SqliteSessionService"
LANGGRAPH = "langgraph SqliteSaver"
PEERS = (SQLITE_SESSION, ADVANCED, STRANDS, ADK, LANGGRAPH)

WRITE = "encode + write"
ENQUEUE = "encode + enqueue"
WRITE_SYNC = "encode + write + fdatasync"
ROW = "SQLite WAL NORMAL, 1 row"
GROUP = "group commit, 32 threads"
ALONE = SQLITE_SESSION + ", 1 task"
CONCURRENT = SQLITE_SESSION + ", 32 tasks"


def synced(name: str) -> str:
    return f"{name}, synced"


def buffered(name: str) -> str:
    return f"{name}, Buffered"


def threaded(name: str) -> str:
    return f"{name}, synced, 32 threads"


def append_part(sizes: Sizes) -> Part:
    return Part(
        name="append",
        title="Append, one writer, one message a call",
        contenders=(*_own(sizes), *_peers(sizes), *_limits(sizes)),
        columns=(
            Column("n", "messages", 0, span=False),
            Column("p50", "p50 µs"),
            Column("p99", "p99 µs"),
            Column("rate", "a second", 0),
            Column("growth", "last tenth / first", 2, span=False),
        ),
        goals=tuple(_append_goals()),
        note=(
            "p50 and p99 are what the caller waits. The rate includes a final flush. "
            "Slow peers append fewer messages."
        ),
    )


def _own(sizes: Sizes) -> list[Contender]:
    def one(name: str, task: str, survives: str, **job: str) -> Contender:
        return Contender(name, "ours", "ours", {"task": task, "n": sizes.append, **job}, survives)

    made = []
    for name, store in STORES:
        made += [
            one(name, "append", CRASH, store=store),
            one(f"{name}, Session.append", "append_session", CRASH, store=store),
            one(buffered(name), "append_buffered", NOTHING, store=store),
            one(synced(name), "append", POWER, store=store, durability="synced"),
        ]
    return made


def _peers(sizes: Sizes) -> list[Contender]:
    def one(name: str, driver: str, n: int, survives: str, **job: bool) -> Contender:
        return Contender(name, "peer", driver, {"task": "append", "n": n, **job}, survives)

    return [
        one(SQLITE_SESSION, "peer_openai", sizes.append, POWER),
        one(ADVANCED, "peer_openai", sizes.append_slow, POWER, advanced=True),
        one(STRANDS, "peer_strands", sizes.append, CRASH),
        one(ADK, "peer_adk", sizes.append_slow, POWER),
        one(LANGGRAPH, "peer_langgraph", sizes.append_whole, POWER),
    ]


def _limits(sizes: Sizes) -> list[Contender]:
    def one(name: str, task: str, survives: str, **job: str | int) -> Contender:
        full: Job = {"task": task, "n": sizes.append, **job}
        return Contender(name, "limit", "limits", full, survives)

    rows = [
        one(
            f"SQLite WAL {level}, {batch} row{'s' * (batch > 1)}",
            "sqlite_rows",
            f"{survives}, each {batch}" if batch > 1 else survives,
            synchronous=level,
            batch=batch,
        )
        for level, survives in (("NORMAL", CRASH), ("FULL", POWER))
        for batch in (1, 100)
    ]
    return [
        one(WRITE, "encode_write", CRASH),
        one(ENQUEUE, "encode_enqueue", NOTHING),
        one(WRITE_SYNC, "write_sync", POWER),
        *rows,
    ]


def _append_goals() -> list[Goal]:
    goals = []
    for name, peer, limit, times in ((JSONL, 1 / 20, WRITE, 5), (SQLITE, 1 / 8, ROW, 2)):
        goals += [
            Goal("append, written", name, "p50", PEERS, at_most=peer),
            Goal("append, written", name, "p50", (limit,), at_most=times),
        ]
    for name, _ in STORES:
        goals += [
            Goal("append, queued", buffered(name), "p50", PEERS, at_most=1 / 20),
            Goal("append, queued", buffered(name), "p50", (ENQUEUE,), at_most=3),
        ]
    for name, _ in STORES:
        goals += [
            Goal("append, synced", synced(name), "p50", (SQLITE_SESSION,), at_most=0.7),
            Goal("append, synced", synced(name), "p50", (WRITE_SYNC,), at_most=1.5),
        ]
    goals += [Goal("append, last tenth / first", name, "growth", at_most=1.2) for name, _ in STORES]
    return goals


def threads_part(sizes: Sizes) -> Part:
    count: Job = {"n": sizes.append, "threads": sizes.threads}
    own = tuple(
        Contender(
            threaded(name),
            "ours",
            "ours",
            {"task": "append_threads", "store": store, "durability": "synced", **count},
            POWER,
        )
        for name, store in STORES
    )
    goals = []
    for name, _ in STORES:
        row = "append, synced, 32 threads"
        goals += [
            Goal(row, threaded(name), "rate", (ALONE,), at_least=10),
            Goal(row, threaded(name), "rate", (CONCURRENT,)),
            Goal(row, threaded(name), "rate", (GROUP,), at_least=0.4),
        ]
    return Part(
        name="threads",
        title="Append, 32 writers of one session, synced",
        contenders=(
            *own,
            Contender(ALONE, "peer", "peer_openai", {"task": "append", "n": sizes.append}, POWER),
            Contender(
                CONCURRENT, "peer", "peer_openai", {"task": "append_threads", **count}, POWER
            ),
            Contender(GROUP, "limit", "limits", {"task": "group_commit", **count}, POWER),
        ),
        columns=(
            Column("n", "messages", 0, span=False),
            Column("rate", "a second", 0),
            Column("p50", "p50 µs"),
            Column("p99", "p99 µs"),
        ),
        goals=tuple(goals),
        note=(
            "Many writers share one sync. The goal is ten times the rate of SQLiteSession with one "
            "writer. With as many tasks of one event loop it is faster; that ratio is shown, too."
        ),
    )


def loop_part(sizes: Sizes) -> Part:
    job: Job = {
        "task": "event_loop",
        "n": sizes.loop_appends,
        "sessions": sizes.loop_sessions,
        "idle": sizes.loop_idle,
    }
    own = tuple(
        Contender(f"{name}, AsyncSession", "ours", "ours", {**job, "store": store}, CRASH)
        for name, store in STORES
    )
    many, appends = sizes.loop_sessions, sizes.loop_appends
    return Part(
        name="loop",
        title=f"{many} sessions in one event loop, {appends} appends each",
        contenders=(
            *own,
            Contender(f"{SQLITE_SESSION}, event loop", "peer", "peer_openai", job, POWER),
        ),
        columns=(
            Column("p99", "late p99 ms"),
            Column("max", "late max ms"),
            Column("idle_p99", "idle p99 ms"),
            Column("idle_max", "idle max ms"),
            Column("rate", "appends a second", 0),
        ),
        note=(
            "A ticker should wake every millisecond. Late is how much later it wakes while all "
            "sessions append, idle the same without them. There is no goal."
        ),
    )
