"""PostgreSQL for sessions, contents there or on S3: ratios of one server, of one run."""

from __future__ import annotations

from ..goals import Goal
from ..running import Contender
from .base import Column, Part, Sizes

# Title, the emulator of S3 if it takes one, task, and what the ratio is at most or at least.
_ROWS = (
    ("append, 1 connection, against a bare synced INSERT", "", "append_1", None, 0.75),
    ("append, 32 connections, against a bare synced INSERT", "", "append_32", None, 0.6),
    ("append while another process follows, 32 writers", "", "followed", None, 0.85),
    ("append, five times the events", "", "append_later", None, 0.8),
    ("fork of 900 against a fork of 9", "", "fork_flat", 1.5, None),
    ("bytes stored per event / its JSON", "", "size", 0.8, None),
    ("first snapshot to S3: an object each against packs, moto", "moto", "packs", None, 15.0),
    ("first snapshot to S3: an object each against packs, ministack", "ministack", "packs",
     None, 15.0),
    ("resume elsewhere from S3 against materialize from a local store",
     "ministack", "elsewhere", 3.0, None),
)  # fmt: skip

# The peer, its title, and how often our append goes into its: here, and 11 ms away.
_PEERS = (
    ("openai", "SQLAlchemySession", 2.0, 5.0),
    ("adk", "ADK DatabaseSessionService", 4.0, 8.0),
    ("langgraph", "LangGraph PostgresSaver", 5.0, 2.5),
)


def shared_part(sizes: Sizes) -> Part:
    """One server for each row, in a process of its own."""
    job = {"files": sizes.project, "threads": sizes.threads, "seconds": sizes.append / 10_000}
    made: list[Contender] = []
    goals: list[Goal] = []

    def row(title: str, most: float | None, least: float | None, contender: Contender) -> None:
        made.append(contender)
        goals.append(Goal(title, title, "ratio", at_most=most, at_least=least))

    for title, emulator, task, most, least in _ROWS:
        more = {"task": task, "events": sizes.append * 500, "emulator": emulator, **job}
        driver = "shared_files" if emulator else "shared"
        contender = Contender(title, "ours", driver, more, slow=task == "append_later")
        row(title, most, least, contender)
    for peer, name, near, far in _PEERS:
        for task, n, title, least in (
            ("append_peer", sizes.append // 10, f"append: {name} against ours", near),
            ("append_far", 100, f"append, 11 ms away: {name} against ours", far),
            ("load_peer", sizes.append // 10, f"load: {name} against ours", 1.0),
        ):
            contender = Contender(
                title, "ours", "shared", {"task": task, "n": n, "peer": peer}, starts=peer
            )
            row(title, None, least, contender)
    title = "a copy of 900 items by SQLAlchemySession against a fork"
    task = {"task": "fork_peer", "n": 1000, "peer": "openai"}
    row(title, None, 30.0, Contender(title, "ours", "shared", task, starts="openai"))
    return Part(
        name="shared",
        title="PostgreSQL and S3, ratios",
        contenders=tuple(made),
        columns=(
            Column("ratio", "ratio", 2),
            Column("ours", "ours", 2),
            Column("other", "the other", 2),
        ),
        goals=tuple(goals),
        note=(
            "Server, clients and bucket are on this machine; the server syncs each commit. Rates "
            "are a second, other figures ms or bytes. The bucket is an emulator in Python."
        ),
    )
