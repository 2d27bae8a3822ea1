"""Letting a stranger's session write into a folder: asked once, or said by `--allow`."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

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
    from ..session.strangers import NotAllowed
    from ..settings.allowance import allow
    from .erase import refuse_agents

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
