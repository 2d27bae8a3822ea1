"""PostgreSQL for sessions, contents there or on S3: ratios of one server, of one run."""

from __future__ import annotations

from ..goals import Goal
from ..running import Contender
from .base import Column, Part, Sizes

_ROWS = (
    ("append, 1 connection, against a bare synced INSERT", "append_1", None, 0.75),
    ("append, 32 connections, against a bare synced INSERT", "append_32", None, 0.6),
    ("append while another process follows, 32 writers", "followed", None, 0.85),
    ("fork of 900 against a copy of them", "fork", None, 30.0),
    ("fork of 900 against a fork of 9", "fork_flat", 1.5, None),
    ("bytes stored per event / its JSON", "bytes", 0.8, None),
    ("append, 20 times the events", "append_later", None, 0.8),
    ("first snapshot to S3: packs against an object each", "packs", None, 15.0),
    ("resume elsewhere from S3 against materialize from the local store", "elsewhere", 3.0, None),
)


def shared_part(sizes: Sizes) -> Part:
    """One server for each row, in a process of its own."""
    job = {"n": sizes.append // 10, "files": sizes.project, "threads": sizes.threads}
    made = [
        Contender(title, "ours", "shared", {"task": metric, **job}) for title, metric, *_ in _ROWS
    ]
    return Part(
        name="shared",
        title="PostgreSQL and S3, ratios",
        contenders=tuple(made),
        columns=(
            Column("ratio", "ratio", 2),
            Column("ours", "ours", 2),
            Column("other", "the other", 2),
        ),
        goals=tuple(
            Goal(title, title, "ratio", at_most=most, at_least=least)
            for title, _, most, least in _ROWS
        ),
        note=(
            "Server, clients and bucket are on this machine; the server syncs each commit. Rates "
            "are a second, other figures ms or bytes. The bucket is an emulator in Python."
        ),
    )
