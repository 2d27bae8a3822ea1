"""`gc`: contents of files that nothing relies on go."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from ..session.titles import title_of
from .allow import refuse_agents
from .call import Call
from .output import clean
from .verbs import Command
from .wording import ago, brief, plural, short, size

if TYPE_CHECKING:
    from ..events import SessionInfo
    from ..files import Collected


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would go")
    parser.add_argument(
        "--now", action="store_true", help="also what was written in the last hour; see below"
    )
    parser.add_argument(
        "--retention",
        metavar="TIME",
        help="first remove sessions not touched for so long, such as 30d (else as set)",
    )
    parser.add_argument(
        "--log", action="store_true", help="only show what went so far, by retention or by itself"
    )


def _run(call: Call) -> None:
    from ..files import Collected, collect
    from ..files.depot import has_contents
    from ..stores.due import GRACE
    from ..stores.retention import sweep

    dry = call.arguments.dry_run
    if call.arguments.log:
        _print_log(call)
        return
    refuse_agents(call)
    given = call.arguments.retention
    retention = call.settings.text("retention") if given is None else given
    old = sweep(call.store, retention, dry_run=dry) if retention is not None else []
    done = Collected((), 0, 0, 0, 0, (), False, 0, 0, False, dry)
    if has_contents(call.store):
        with call.out.busy("collecting"):
            done = collect(call.store, grace=0 if call.arguments.now else GRACE, dry_run=dry)
    if call.out.as_json:
        rows = [info.to_dict() for info in old]
        call.out.data({**done.to_dict(), "retention": retention, "removed": rows})
        return
    _print_old(call, old, retention, dry)
    if not has_contents(call.store):
        call.out.note("this store has no contents of files")
        return
    _print(call, done, dry)


def _print_old(call: Call, old: list[SessionInfo], retention: str | None, dry: bool) -> None:
    """Say which sessions retention removed, or would."""
    would = "would remove" if dry else "removed"
    if old:
        call.out.line(f"{would} {plural(len(old), 'session')} not touched for {retention}:")
    for info in old:
        name = title_of(call.store, info) if dry else info.title or ""
        call.out.line(f"  {short(info.id)}  {ago(info.updated_at)}  {brief(name, 60)}".rstrip())


def _print_log(call: Call) -> None:
    """Say what went so far."""
    from ..stores.retention import read_gone

    rows = read_gone(call.store)
    if call.out.as_json:
        call.out.data({"log": rows})
        return
    for row in rows:
        removed, collected = row.get("removed"), row.get("collected")
        what = f"failed: {row.get('failed')}"
        if isinstance(removed, dict):
            what = f"session {removed.get('id')} ({row.get('after')}): {removed.get('title') or ''}"
        elif isinstance(collected, dict):
            what = f"{collected.get('blobs')} contents, {collected.get('bytes')} bytes"
        call.out.line(clean(f"{row.get('ts')}  {what}", newlines=False))
    if not rows:
        call.out.note("nothing went by itself so far")


def _print(call: Call, done: Collected, dry: bool) -> None:
    would = "would remove" if dry else "removed"
    call.out.line(f"{would} {plural(done.blobs, 'content')}, {size(done.bytes)} before compression")
    if done.sessions:
        are = "is" if len(done.sessions) == 1 else "are"
        # Deleted by a person, or given up before it began, as a recording without a way back.
        call.out.line(f"of {plural(len(done.sessions), 'session')} that {are} not in the store")
    given = "would be given up" if dry else "were given up"
    if done.calls:
        call.out.line(f"{plural(done.calls, 'call')} that crashed over a week ago {given}")
    if done.points:
        call.out.line(f"{plural(done.points, 'old automatic point')} {given} for the budget")
    call.out.line(f"{size(done.used)} of {size(done.budget)} used")
    if done.held:
        call.out.note("nothing can go while a tree is damaged: `backtrail verify` lists it")
    if done.over_budget:
        call.out.note("over the budget, so no files are captured: delete sessions or raise it")
        if not call.arguments.now:
            call.out.note("what was written in the last hour was spared: `backtrail gc --help`")
    for problem in done.problems:
        call.out.note(f"{problem.session_id}: {problem.what}: {problem.detail}")


COMMANDS = {
    "gc": Command(
        _options,
        _run,
        """
        backtrail gc --dry-run
        backtrail gc --retention 90d --dry-run
        backtrail gc
        backtrail gc --log
        """,
        about="Sessions go on meanwhile. What was written in the last hour is spared, because\n"
        "another session may be about to rely on it; use --now only when nothing else runs. It\n"
        "also runs by itself, in the background, after sessions were deleted and when room gets "
        "short.",
    )
}
