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


def spread(name: str) -> str:
    return f"{name}, 32 sessions"


def asynchronous(name: str) -> str:
    return f"{name}, AsyncSession"


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

    def one(name: str, store: str, **more: int) -> Contender:
        job = {"task": "append_threads", "store": store, "durability": "synced", **count, **more}
        return Contender(name, "ours", "ours", job, POWER)

    own = [
        contender
        for name, store in STORES
        for contender in (
            one(threaded(name), store),
            one(spread(threaded(name)), store, sessions=sizes.threads),
        )
    ]
    row = "append, synced, 32 threads"
    goals = [Goal(row, spread(threaded(SQLITE)), "rate", (GROUP,), at_least=0.4)]
    for name in (threaded(JSONL), threaded(SQLITE), spread(threaded(JSONL))):
        goals.append(Goal(row, name, "rate", (GROUP,)))
    goals.append(Goal(row, spread(threaded(SQLITE)), "rate", (ALONE,)))
    return Part(
        name="threads",
        title="Append, 32 writers of one session, and of one each, synced",
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
            "Many writers share one transaction and one sync in SQLite. In JSONL each session is a "
            "file, with syncs of its own. The limit is bare lines, written to one file in groups."
        ),
    )


def async_part(sizes: Sizes) -> Part:
    job: Job = {
        "task": "append_async",
        "n": sizes.async_appends,
        "sessions": sizes.async_sessions,
        "appends": 20,
        "rounds": sizes.async_rounds,
        "seconds": sizes.async_seconds,
    }
    own = [
        Contender(asynchronous(name), "ours", "asynchronous", {**job, "store": store}, CRASH)
        for name, store in STORES
    ]
    goals = []
    for name, times in ((SQLITE, 3), (JSONL, 7)):
        goals += [
            Goal("async append / append, p50", asynchronous(name), "times", at_most=times),
            Goal("100 sessions in a loop / one thread", asynchronous(name), "share", at_least=0.6),
            Goal("loop late p99.9, ms", asynchronous(name), "late", at_most=5),
            Goal("the same, lock held 5 of 20 ms", asynchronous(name), "late_locked", at_most=5),
        ]
    return Part(
        name="async",
        title=f"AsyncSession beside Session, {sizes.async_sessions} sessions in one loop",
        contenders=tuple(own),
        columns=(
            Column("p50", "p50 µs"),
            Column("plain_p50", "Session p50 µs"),
            Column("times", "times", 2),
            Column("rate", "a second", 0),
            Column("plain_rate", "Session, one thread", 0),
            Column("share", "share", 2),
            Column("idle", "idle p99.9 ms"),
            Column("late", "late p99.9 ms"),
            Column("late_locked", "lock held: late p99.9 ms"),
        ),
        goals=tuple(goals),
        note=(
            "Both in one process and in turn. Late is how much later than it should a ticker of "
            "1 ms wakes while all sessions append, idle the same without them; then another "
            "process holds the database's lock, or that of one session, for 5 of every 20 ms. An "
            "async append is two switches of "
            "threads: where the processor sleeps when idle, they are most of its time."
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
