"""`verify`: everything in a store is read, and what is wrong is told."""

from __future__ import annotations

from argparse import ArgumentParser

from .call import Call
from .verbs import Command

DAMAGED = 6


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("url", nargs="?", metavar="STORE", help="the same as --store")


def _run(call: Call) -> int:
    from ..files import verify

    if call.arguments.url is not None:
        call.arguments.store = call.arguments.url
    with call.out.busy("reading"):
        problems = verify(call.store)
    if call.out.as_json:
        rows = [problem.to_dict() for problem in problems]
        call.out.data({"store": call.store.url, "problems": rows})
    else:
        for problem in problems:
            where = "/".join(filter(None, (problem.session_id, problem.log)))
            call.out.line(f"{where}: {problem.what}: {problem.detail}")
        count = len(problems)
        call.out.note(f"{count} problem{'' if count == 1 else 's'} in {call.store.url}")
    return DAMAGED if problems else 0


COMMANDS = {
    "verify": Command(
        _options,
        _run,
        """
        backtrail verify
        backtrail verify file:backup
        backtrail verify --json
        """,
        about="Reads every log and all contents of files. The exit code is 6 if there is damage.",
    )
}
