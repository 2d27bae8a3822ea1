"""`gc`: contents of files that nothing relies on go."""

from __future__ import annotations

from argparse import ArgumentParser

from .call import Call
from .erase import refuse_agents
from .verbs import Command
from .wording import plural, size


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only tell what would go")
    parser.add_argument(
        "--now", action="store_true", help="also what was written in the last hour; see below"
    )


def _run(call: Call) -> None:
    from ..files import Collected, collect
    from ..files.cleaning import has_contents
    from ..files.garbage import GRACE

    refuse_agents(call)
    dry = call.arguments.dry_run
    if not has_contents(call.store):
        if call.out.as_json:
            call.out.data(Collected((), 0, 0, 0, 0, (), False, 0, 0, False, dry).to_dict())
        else:
            call.out.note("this store has no contents of files")
        return
    with call.out.busy("collecting"):
        done = collect(call.store, grace=0 if call.arguments.now else GRACE, dry_run=dry)
    if call.out.as_json:
        call.out.data(done.to_dict())
        return
    would = "would remove" if dry else "removed"
    call.out.line(f"{would} {plural(done.blobs, 'content')}, {size(done.bytes)} before compression")
    if done.sessions:
        call.out.line(f"of {plural(len(done.sessions), 'deleted session')}")
    given = "would be given up" if dry else "were given up"
    if done.calls:
        call.out.line(f"{plural(done.calls, 'call')} that crashed over a week ago {given}")
    if done.points:
        call.out.line(f"{plural(done.points, 'old automatic point')} {given} for the budget")
    call.out.line(f"{size(done.used)} of {size(done.budget)} used")
    if done.held:
        call.out.note("nothing can go while a tree is damaged: `backtrail verify` tells which")
    if done.over_budget:
        call.out.note("over the budget, so no files are captured: delete sessions or raise it")
    for problem in done.problems:
        call.out.note(f"{problem.session_id}: {problem.what}: {problem.detail}")


COMMANDS = {
    "gc": Command(
        _options,
        _run,
        """
        backtrail gc --dry-run
        backtrail gc
        """,
        about="Sessions go on meanwhile. What was written in the last hour is spared, because\n"
        "somebody may be about to rely on it; use --now only when nothing else runs.",
    )
}
