"""Mirroring a live transcript into the session that hooks write to.

Hooks note prompts and what happened to files, as it happens. What was said comes from the
agent's own transcript, which lags behind. Each call of `mirror` takes in the whole lines that
are new. A prompt that a hook noted is not said again. Two processes may do so at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from ..stores.base import Store
from .foreign import reader_of
from .intake import Taken
from .jsonlines import read_lines, size_of
from .records import update
from .transcript import position

Agent = Literal["claude-code", "codex", "gemini"]
"""The agents that hooks know."""


class Mirrored(Protocol):
    """What is needed of a session; a hook has no time to open a whole one."""

    @property
    def store(self) -> Store:
        """The store it is in."""

    @property
    def id(self) -> str:
        """Its id."""


def mirror(session: Mirrored, transcript: Path, agent: Agent) -> int:
    """Take in what is new in a transcript and its subagents'; the number of events appended.

    Nothing new costs a look at the end of the log and at the size of each file. A transcript
    that is not there yet is empty. Gemini's is not understood: nothing is taken in.
    """
    if agent == "gemini":
        return 0
    reader = reader_of(agent)
    store, id = session.store, session.id
    length = size_of(transcript)
    if length is None:
        return 0
    start = position(store, id, reader.native_id(transcript))
    taken = Taken()
    if length != start:
        taken = reader.take_main(store, id, transcript, final=False)
        if taken.lines:
            lines = read_lines(transcript, start if length > start else 0, final=False)
            told = reader.facts_in(lines)
            # Where it runs is known from the hook.
            told.cwd = None
            update(store, store.info(id), told)
    return taken.events + reader.take_sides(store, id, transcript, final=False).events


def mirror_side(session: Mirrored, name: str, rollout: Path) -> int:
    """Take in what is new in the rollout of a subagent of Codex's; the number of events."""
    from .codex import sessions as codex

    if size_of(rollout) is None:
        return 0
    return codex.take_side(session.store, session.id, name, rollout, final=False).events
