"""What is for the person alone: to let a stranger's session write, and to erase traces.

An agent that runs as the person can do what the person can. This is no wall: it keeps an agent
from removing, in one plain command, what would show or take back what it did.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ..errors import BacktrailError, Unsafe

if TYPE_CHECKING:
    from .call import Call


T = TypeVar("T")


def allow_option(parser: ArgumentParser) -> None:
    """Do not ask whether a stranger's session may write here."""
    parser.add_argument(
        "--allow",
        action="store_true",
        help="let a session that came from a bundle write into its folder, now and later",
    )


def with_allowance(call: Call, go: Callable[[], T]) -> T:
    """Go; where the folder is not allowed yet, let the person decide and go again."""
    from ..session.fileplans import NotAllowed
    from ..settings.allowance import allow

    try:
        return go()
    except NotAllowed as refused:
        given = call.arguments
        if not getattr(given, "allow", False):
            if getattr(given, "yes", False) or not call.out.can_ask:
                raise
            answer = call.out.ask(f"Let strangers' sessions write into {refused.folder}? [y/N]")
            if answer.lower() not in ("y", "yes"):
                raise
        refuse_agents(call, f"{call.verb} --allow")
        call.out.note(f"allowed from now on: {allow(refused.folder)}")
        return go()


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
    from ..files.restore.repairs import listed

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
