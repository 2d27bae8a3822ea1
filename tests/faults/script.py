"""Scripts of store operations, what they must leave behind, and what a store shows.

A script is data, so the process that is killed and the one that checks agree on it without
talking: the killed one only reports how many operations were acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

from backtrail.events import MAIN_LOG, Json, NewEvent, SessionInfo
from backtrail.stores.base import Store

Row = tuple[int, str, dict[str, Json]]
"""An event as it is compared: number, id, data."""

PURGED: dict[str, Json] = {"purged": True}


@dataclass
class Content:
    """What a session holds."""

    title: str | None = None
    logs: dict[str, list[Row]] = field(default_factory=lambda: {MAIN_LOG: []})


State = dict[str, Content]


@dataclass(frozen=True)
class Step:
    """One operation on a store."""

    verb: Literal["create", "append", "update", "delete", "purge", "flush"]
    session: str = ""
    name: str = ""
    count: int = 1
    size: int = 20
    log: str = MAIN_LOG
    base: tuple[str, int] | None = None
    seqs: Collection[int] = ()

    def events(self) -> list[NewEvent]:
        """The events of an append; the same each time it is asked."""
        return [
            NewEvent("test.event", body(f"{self.name}-{at}", self.size), id=f"{self.name}-{at}")
            for at in range(1, self.count + 1)
        ]

    def run(self, store: Store) -> None:
        """Do it."""
        if self.verb == "create":
            info = SessionInfo(self.session, title="new")
            if self.base is not None:
                parent, seq = self.base
                info = SessionInfo(
                    self.session, title="new", parent_id=parent, relation="fork", fork_seq=seq
                )
            store.create(info, base=self.base)
        elif self.verb == "append":
            store.append(self.session, self.events(), log=self.log)
        elif self.verb == "update":
            store.update(self.session, title=self.name)
        elif self.verb == "delete":
            store.delete(self.session)
        elif self.verb == "purge":
            store.purge(self.session, self.seqs, log=self.log)
        else:
            store.flush()

    def apply(self, state: State) -> State:
        """The state after it."""
        state = deepcopy(state)
        if self.verb == "create":
            made = Content("new")
            if self.base is not None:
                parent, seq = self.base
                made.logs[MAIN_LOG] = [row for row in state[parent].logs[MAIN_LOG] if row[0] <= seq]
            state[self.session] = made
        elif self.verb == "append":
            rows = state[self.session].logs.setdefault(self.log, [])
            last = rows[-1][0] if rows else 0
            for seq, event in enumerate(self.events(), last + 1):
                rows.append((seq, str(event.id), dict(event.data)))
        elif self.verb == "update":
            state[self.session].title = self.name
        elif self.verb == "delete":
            del state[self.session]
        elif self.verb == "purge":
            # The scripts purge only what every fork of the session shares.
            mine = {row[1] for row in state[self.session].logs[self.log]}
            for content in state.values():
                if self.log in content.logs:
                    content.logs[self.log] = [
                        (seq, id, PURGED if seq in self.seqs and id in mine else data)
                        for seq, id, data in content.logs[self.log]
                    ]
        return state


def body(name: str, size: int) -> dict[str, Json]:
    """Data with what is hard on a line format: escapes, other scripts, keys of the format."""
    return {"name": name, "text": 'é\n"{"seq":1,"crc":"0"}\u2028' + "x" * size}


def after(script: list[Step], count: int) -> State:
    """The state after the first `count` operations."""
    state: State = {}
    for step in script[:count]:
        state = step.apply(state)
    return state


def observe(store: Store) -> State:
    """What a store shows, read forward; logs without an event are left out."""
    state: State = {}
    for info in store.sessions():
        content = Content(info.title)
        for log in store.logs(info.id):
            rows = [(event.seq, event.id, event.data) for event in store.read(info.id, log=log)]
            if rows or log == MAIN_LOG:
                content.logs[log] = rows
        state[info.id] = content
    return state


# --- the scripts -------------------------------------------------------------------------


def _append(session: str, name: str, count: int = 1, size: int = 20, log: str = MAIN_LOG) -> Step:
    return Step("append", session, name, count, size, log)


SCRIPTS: dict[str, list[Step]] = {
    "singles": [
        Step("create", "a"),
        *[_append("a", f"one{at}", size=at * 37) for at in range(12)],
    ],
    "batches": [
        Step("create", "a"),
        *[_append("a", f"lot{at}", count=at % 5 + 2, size=at * 11) for at in range(10)],
        _append("a", "big", count=3, size=40_000),
        _append("a", "end"),
    ],
    "side logs": [
        Step("create", "a"),
        *[
            _append("a", f"side{at}", at % 3 + 1, log=log)
            for at, log in enumerate(["transcript", "subagents/x", MAIN_LOG, "subagents/y"] * 2)
        ],
    ],
    "records": [
        Step("create", "a"),
        _append("a", "first", 2),
        *[Step("update", "a", f"title {at}") for at in range(6)],
        _append("a", "last"),
        Step("update", "a", "the end"),
    ],
    "forks": [
        Step("create", "a"),
        _append("a", "lot", 5),
        Step("create", "b", base=("a", 3)),
        _append("b", "own", 2),
        _append("a", "more"),
        Step("create", "c", base=("b", 4)),
        _append("c", "own2"),
        Step("delete", "a"),
        _append("b", "still", 2),
    ],
    "deleting": [
        Step("create", "a"),
        _append("a", "one", 2),
        _append("a", "side", log="transcript"),
        Step("create", "b"),
        _append("b", "keep"),
        Step("delete", "a"),
        Step("create", "a"),
        _append("a", "again", 3),
        Step("delete", "b"),
    ],
    "purging": [
        Step("create", "a"),
        _append("a", "lot", 4),
        _append("a", "side", 2, log="transcript"),
        Step("create", "b", base=("a", 4)),
        _append("b", "own"),
        Step("purge", "a", seqs=(2, 3)),
        _append("a", "more", 2),
        Step("purge", "a", seqs=(1,), log="transcript"),
        _append("a", "side2", log="transcript"),
    ],
    "flushing": [
        Step("create", "a"),
        *[step for at in range(4) for step in (_append("a", f"f{at}", at + 1), Step("flush"))],
    ],
}
"""Between them every verb that changes a store, in the orders that matter."""


SETUP = [Step("create", "a"), Step("append", "a", "first", 3), Step("update", "a", "old")]

REFUSED = {
    "append": Step("append", "a", "single"),
    "batch": Step("append", "a", "lot", 4, size=300),
    "side log": Step("append", "a", "side", 2, log="subagents/x"),
    "create": Step("create", "b"),
    "fork": Step("create", "b", base=("a", 2)),
    "update": Step("update", "a", "new"),
    "purge": Step("purge", "a", seqs=(2,)),
    "delete": Step("delete", "a"),
}
"""Operations that a disk may refuse, on a store with `SETUP` in it."""
