"""`verify`: everything in a store is read, and what is wrong is reported."""

from __future__ import annotations

from argparse import ArgumentParser

from .allow import refuse_agents
from .call import Call
from .verbs import DAMAGED, Command


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("url", nargs="?", metavar="STORE", help="the same as --store")
    parser.add_argument(
        "--seal",
        action="store_true",
        help="give events of an earlier version, which have no check sum, one",
    )


def _run(call: Call) -> int:
    from ..files import verify
    from ..files.contents.verify import UNFINISHED

    if call.arguments.url is not None:
        call.arguments.store = call.arguments.url
    with call.out.busy("reading"):
        # First: what cannot be read is left out, and is a problem from then on.
        if call.arguments.seal:
            refuse_agents(call, "verify --seal")
        sealed = call.store.seal() if call.arguments.seal else 0
        unsealed = call.store.seal(dry_run=True)
        problems = verify(call.store)
    if call.out.as_json:
        rows = [problem.to_dict() for problem in problems]
        counts = {"sealed": sealed, "unsealed": unsealed}
        call.out.data({"store": call.store.url, "problems": rows, **counts})
    else:
        for problem in problems:
            where = "/".join(filter(None, (problem.session_id, problem.log)))
            call.out.line(f"{where}: {problem.what}: {problem.detail}")
        count = len(problems)
        call.out.note(f"{count} problem{'' if count == 1 else 's'} in {call.store.url}")
        if sealed:
            call.out.note(f"{sealed} event{'' if sealed == 1 else 's'} sealed")
        if unsealed:
            call.out.note(
                f"{unsealed} event{'' if unsealed == 1 else 's'} of an earlier version have no "
                "check sum: changes in them are not noticed until `backtrail verify --seal`"
            )
    return DAMAGED if any(problem.what != UNFINISHED for problem in problems) else 0


COMMANDS = {
    "verify": Command(
        _options,
        _run,
        """
        backtrail verify
        backtrail verify file:backup
        backtrail verify --json
        backtrail verify --seal
        """,
        about="Reads every log and all contents of files. The exit code is 6 if there is damage.",
    )
}
