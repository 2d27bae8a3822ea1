"""What a part is, and how large a run is."""

from __future__ import annotations

from dataclasses import dataclass

from ..goals import Goal
from ..running import Contender


@dataclass(frozen=True)
class Sizes:
    """How much of everything; `QUICK` only shows that it works."""

    append: int = 10_000
    append_slow: int = 2_000
    append_whole: int = 400  # for those that write the whole conversation each time
    threads: int = 32
    log: int = 100_000
    log_short: int = 1_000
    sessions: int = 10_000
    folders: int = 2_000  # sessions that are a folder each take long to make and to remove
    fork: int = 10_000
    fork_short: int = 100
    loop_sessions: int = 200
    loop_appends: int = 20
    loop_idle: float = 2.0
    tree: int = 20_000
    tree_large: int = 50_000
    project: int = 2_000
    many: int = 50
    few: int = 5
    all_peers: bool = False


QUICK = Sizes(
    append=600,
    append_slow=200,
    append_whole=50,
    log=2_000,
    log_short=200,
    sessions=300,
    folders=200,
    fork=600,
    loop_sessions=20,
    loop_appends=5,
    loop_idle=0.2,
    tree=1_000,
    tree_large=2_000,
    project=500,
    many=5,
    few=2,
)


@dataclass(frozen=True)
class Column:
    """One metric of a table, and its unit."""

    metric: str
    title: str
    digits: int = 3
    span: bool = True
    """Whether the range over the rounds is shown."""


@dataclass(frozen=True)
class Part:
    """One thing measured: who takes part, what is shown, what should hold."""

    name: str
    title: str
    contenders: tuple[Contender, ...]
    columns: tuple[Column, ...]
    goals: tuple[Goal, ...] = ()
    note: str = ""
