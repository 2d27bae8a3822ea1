"""The words of a workspace's line of time: its place, the calls under way, what changed."""

from __future__ import annotations

import os
from functools import cache
from typing import NamedTuple

import msgspec

from ..events import Json
from .roots import Identity


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
