"""What there is to import from other agents, and importing it, one session after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

import msgspec

from ..errors import BacktrailError, InvalidData, StoreFailed
from ..stores.base import Store
from .claude_code import sessions as claude_code
from .codex import sessions as codex
from .intake import Progress
from .records import Found, Imported, natives

Agent = Literal["claude-code", "codex"]
"""The agents whose sessions can be imported."""


def find(agent: Agent, path: Path | None = None) -> list[Found]:
    """The sessions of an agent, in a file or folder or where it keeps them; oldest first."""
    try:
        if agent == "claude-code":
            return [_judged(one, claude_code.config_dir()) for one in claude_code.find(path)]
        if agent == "codex":
            return [_judged(one, codex.codex_home()) for one in codex.find(path)]
    except OSError as error:
        if isinstance(error, BacktrailError):
            raise
        raise StoreFailed(f"cannot look for sessions: {error}") from error
    raise InvalidData(f"`{agent}` is no agent known here: use {' or '.join(get_args(Agent))}")


def _judged(found: Found, home: Path) -> Found:
    """What was found, and whether it lies in the agent's own folder."""
    own = found.path.resolve().is_relative_to(home.resolve())
    return msgspec.structs.replace(found, own=own)


def import_found(
    store: Store,
    found: Iterable[Found],
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Iterator[Imported]:
    """Import sessions, or say what that would do; one that fails does not stop the others."""
    others = natives(store)
    for one in found:
        take = claude_code.import_session if one.agent == "claude-code" else codex.import_session
        try:
            yield take(store, one, dry_run=dry_run, progress=progress, others=others)
        except OSError as error:
            # Files come and go while their agents work; a failing store is told the same way.
            yield Imported(one.agent, one.id, str(one.path), "", error=str(error))
        except BacktrailError as error:
            yield Imported(one.agent, one.id, str(one.path), "", error=str(error))
