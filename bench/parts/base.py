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
    async_appends: int = 2_000
    async_sessions: int = 100
    async_rounds: int = 7
    async_seconds: float = 3.0
    tree: int = 20_000
    tree_large: int = 50_000
    project: int = 2_000
    events: tuple[int, ...] = (2_000, 20_000, 200_000, 1_000_000)
    stores: tuple[int, ...] = (20, 200, 2_000, 20_000)
    copied: int = 7_000
    rewound: int = 1_000
    blamed: tuple[int, int] = (2_000, 200)  # lines, turns
    searched: int = 1_000_000
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
    async_appends=200,
    async_sessions=20,
    async_rounds=2,
    async_seconds=0.3,
    tree=1_000,
    tree_large=2_000,
    project=500,
    events=(200, 600, 2_000, 4_000),
    stores=(20, 60, 100, 200),
    copied=700,
    rewound=210,
    blamed=(300, 20),
    searched=20_000,
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
    """One thing measured: the contenders, what is shown, what should hold."""

    name: str
    title: str
    contenders: tuple[Contender, ...]
    columns: tuple[Column, ...]
    goals: tuple[Goal, ...] = ()
    note: str = ""
