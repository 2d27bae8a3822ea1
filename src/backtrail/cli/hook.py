"""`backtrail hook AGENT`: what installed hooks call. Prints nothing and exits 0."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from .call import Call
    from .verbs import Command

_ABOUT = """Takes one event of an agent as JSON on stdin. `backtrail hooks install` has agents call
it; people have no need to. It prints nothing and always exits 0: what goes wrong is noted, and
`backtrail hooks status` lists it."""


def endpoint(arguments: Sequence[str]) -> int:
    """Serve one event of the agent that is named."""
    from ..exchange.hooks.dialects import DIALECTS

    if len(arguments) == 1 and arguments[0] in DIALECTS:
        _serve(arguments[0])
    # Only people come here, and they shall have a parser's help and errors.
    from .program import run

    code = run(["hook", *arguments])
    # To an agent, 2 means to block what it is about to do.
    return 1 if code == 2 else code


def _serve(agent: str) -> None:
    import gc

    # A process this short leaves its garbage to the system: looking for it takes 10 ms.
    gc.disable()
    from ..exchange.hooks.endpoint import serve

    try:
        answer = serve(agent)
        if answer:
            sys.stdout.write(answer)
            sys.stdout.flush()
    finally:
        # Without waiting for the interpreter to tidy up, and whatever happened.
        os._exit(0)


def _options(parser: ArgumentParser) -> None:
    from ..exchange.hooks.dialects import DIALECTS

    parser.add_argument("agent", choices=sorted(DIALECTS), help="the agent that the event is of")


def _run(call: Call) -> int:
    _serve(call.arguments.agent)
    return 0


def __getattr__(name: str) -> dict[str, Command]:
    # The table's classes load a parser, which a hook has no use for.
    if name != "COMMANDS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .verbs import Command

    return {"hook": Command(_options, _run, "backtrail hook claude-code < event.json", _ABOUT)}
