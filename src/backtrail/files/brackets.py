"""The words of a workspace's line of time: its place, the calls under way, what changed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import msgspec

from ..events import Event, Json, timestamp
from .roots import Identity

_RECENT = 200


class Place(NamedTuple):
    """A workspace's identity: the directory itself, and where it is."""

    n: int
    identity: Identity
    path: bytes


class Bracket(msgspec.Struct, frozen=True):
    """A call under way: whose it is, and what it said it would touch (None: anything).

    `opened` is the number of the last transition before it, `tree` the state it began with,
    `name` and `call` say what it is, `pid` and `born` which process runs it, `agent` for
    which of the session's agents; empty is the main one.
    One that `ended` claims nothing more; it stays until what it did is in the log, and its
    process is the one that tells it. With `files`, that is found out already; where nobody's
    process is left to tell it, whoever opens the session next does. `named` says that the
    event names the bracket; events did not always do so.
    """

    id: str
    owner: str
    opened: int
    tree: bytes
    paths: list[bytes] | None
    since: float
    name: str = ""
    call: str | None = None
    pid: int = 0
    born: int = 0
    agent: str = ""
    ended: bool = False
    files: dict[str, Json] | None = None
    named: bool = False


class Runner(NamedTuple):
    """The process that runs a call, where it is not this one."""

    pid: int
    born: int
    agent: str = ""


NOBODY = Runner(0, 0)
"""Who runs a call that was left."""


class Transition(NamedTuple):
    """A change of the workspace between two scans, and the brackets open meanwhile."""

    n: int
    before: bytes
    after: bytes
    brackets: list[Bracket]


class Split(NamedTuple):
    """A call up to now: the newest state, what changed in the call, who is still at work.

    `later` is the bracket in which it goes on, if it does.
    """

    tree: bytes
    spans: list[Transition]
    open_now: set[str]
    later: Bracket | None


def is_dead(bracket: Bracket) -> bool:
    """Whether the process that ran a call is gone."""
    if bracket.pid == NOBODY.pid:
        return True
    if bracket.pid == os.getpid():
        return bracket.born != own_birth(bracket.pid)
    try:
        os.kill(bracket.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return bracket.born != born(bracket.pid)


def is_told(bracket: Bracket, newest_first: Iterable[Event]) -> bool:
    """Whether what a call did is in its log: its process died soon after that.

    Looks at all that came since the call began, and at some more: clocks are set, too.
    Events of earlier versions name no bracket: there, the newest with its trees counts.
    """
    before, began = bracket.tree.hex(), timestamp(bracket.since)
    for n, event in enumerate(newest_first):
        if n >= _RECENT and event.ts < began:
            break
        if event.id == bracket.id or bracket.id in named_in(event):
            return True
        files = event.data.get("files")
        if bracket.named or not isinstance(files, dict) or files.get("before") != before:
            continue
        # One that was left has surely not been told by its process.
        if bracket.files is None or event.ts >= began:
            return bool(event.data.get("name") == bracket.name)
    return False


def named_in(event: Event) -> list[Json]:
    """The ids of the brackets that an event tells of."""
    files = event.data.get("files")
    named = files.get("brackets") if isinstance(files, dict) else None
    return named if isinstance(named, list) else []


def born(pid: int) -> int:
    """When a process began, so that a number used again is not taken for the old process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


@cache
def own_birth(pid: int) -> int:
    """`born` of this process, asked for once; `pid` tells a fork of it apart."""
    return born(pid)
