"""Whether an agent runs us: what erases its traces is for the person.

An agent that runs as the person can do what the person can. This is no wall: it keeps an agent
from removing, in one plain command, what would show or take back what it did.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import BacktrailError, Unsafe

if TYPE_CHECKING:
    from .call import Call

MARKS = {
    "CLAUDECODE": "Claude Code",
    "CLAUDE_CODE_ENTRYPOINT": "Claude Code",
    "CODEX_SANDBOX": "Codex",
    "CODEX_SANDBOX_NETWORK_DISABLED": "Codex",
    "CODEX_THREAD_ID": "Codex",
    "CODEX_CI": "Codex",
    "GEMINI_CLI": "Gemini CLI",
    "CURSOR_AGENT": "Cursor",
    "OPENCODE": "opencode",
    "GOOSE_TERMINAL": "Goose",
    "AUGMENT_AGENT": "Augment",
    "AMP_CURRENT_THREAD_ID": "Amp",
    "ANTIGRAVITY_AGENT": "Antigravity",
    "AI_AGENT": "an agent",
}
"""What agents set in the environment of the commands that they run."""

_FAR = 64


def refuse_agents(call: Call, what: str | None = None) -> None:
    """`Unsafe` if an agent's own call runs this verb, and the person did not allow it.

    Only what the person's own file says counts: an agent sets its environment itself.
    """
    from ..settings import user_path

    if getattr(call.arguments, "dry_run", False):
        return
    agent = running_agent(call)
    if agent is not None and not call.settings.agents_may_erase:
        raise Unsafe(
            f"`backtrail {what or call.verb}` is for the person, and {agent} runs it: nothing was "
            f"changed. Run it yourself, or set `agents_may_erase = true` in {user_path()}"
        )


def running_agent(call: Call) -> str | None:
    """Which agent's call we run in, with how that is known; None if in none."""
    for mark, name in MARKS.items():
        if os.environ.get(mark):
            return f"{name} ({mark} is set)"
    from ..files.changes.opencalls import listed

    above = set(_ancestors())
    try:
        for one in listed(call.store):
            if one.lives and one.pid in above:
                return f"the open call `{one.name}` (of process {one.pid})"
    except BacktrailError:
        # A store that cannot be read knows of no call; the verb itself says what is wrong.
        return None
    return None


def _ancestors() -> Iterator[int]:
    """The processes above us, the nearest first."""
    from ..exchange.hooks.processes import parent_of

    at: int = os.getppid()
    for _ in range(_FAR):
        if at <= 1:
            return
        yield at
        at = parent_of(at)
