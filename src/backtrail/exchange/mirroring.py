"""Mirroring a live transcript into the session that hooks write to.

Hooks note prompts and what happened to files, as it happens. What was said comes from the
agent's own transcript, which lags behind. Each call of `mirror` takes in the whole lines that
are new. A prompt that a hook noted is not said again. Two processes may do so at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from ..stores.base import Store
from . import claude_code, codex
from .intake import Taken
from .reading import read_lines, size_of
from .records import update
from .transcripts import position

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
    store, id = session.store, session.id
    length = size_of(transcript)
    if length is None:
        return 0
    file = codex.native_id(transcript) if agent == "codex" else _name(transcript)
    start = position(store, id, file)
    taken = Taken()
    if length != start:
        taken = _take(session, transcript, agent)
        if taken.lines:
            lines = read_lines(transcript, start if length > start else 0, final=False)
            told = codex.facts_in(lines) if agent == "codex" else claude_code.facts_in(lines)
            # Where it runs is known from the hook.
            told.cwd = None
            update(store, store.info(id), told)
    if agent == "claude-code":
        taken.events += claude_code.take_sides(store, id, transcript, final=False).events
    return taken.events


def _take(session: Mirrored, transcript: Path, agent: Agent) -> Taken:
    if agent == "codex":
        return codex.take_main(session.store, session.id, transcript, final=False)
    return claude_code.take_main(session.store, session.id, transcript, final=False)


def _name(transcript: Path) -> str:
    return transcript.name.removesuffix(".jsonl")
