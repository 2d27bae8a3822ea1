"""`backtrail hooks`: install, check or remove the hooks of agents that people run themselves."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .allow import refuse_agents
from .output import Output
from .plan import print_rows, rows_json
from .verbs import NOT_DONE, Command, Usage, yes_option
from .wording import ago

if TYPE_CHECKING:
    from ..exchange.hooks.dialects import Dialect
    from ..exchange.hooks.install import Change, Scope
    from ..exchange.hooks.installed import Installed
    from ..session.uncaptured import Row
    from .call import Call

AGENTS = ("claude-code", "codex", "gemini")


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("install", "status", "uninstall"))
    parser.add_argument("agent", nargs="?", choices=AGENTS, help="which agent; status: all")
    where = parser.add_mutually_exclusive_group()
    for name, what in (
        ("user", "in your own settings, for all projects (the default)"),
        ("project", "in the settings of this project, for all who work on it"),
        ("local", "in your own settings for this project (Claude Code only)"),
    ):
        where.add_argument(f"--{name}", dest="scope", action="store_const", const=name, help=what)
    parser.add_argument("--dry-run", action="store_true", help="only show the change")
    yes_option(parser)


def _run(call: Call) -> int:
    from ..exchange.hooks.dialects import DIALECTS
    from ..exchange.hooks.install import check_inside, settings_file

    arguments = call.arguments
    if arguments.action == "status":
        return _status(call)
    if arguments.agent is None:
        raise Usage(f"which agent? `backtrail hooks {arguments.action} {'|'.join(AGENTS)}`")
    dialect = DIALECTS[arguments.agent]
    scope: Scope = arguments.scope or "user"
    if scope != "user":
        check_inside(settings_file(dialect, scope, Path.cwd()), Path.cwd())
    if arguments.action == "install":
        return _install(call, dialect, scope)
    return _uninstall(call, dialect, scope)


# --- installing --------------------------------------------------------------------------


def _install(call: Call, dialect: Dialect, scope: Scope) -> int:
    from ..exchange.hooks.install import (
        advice,
        apply,
        own_command,
        plan_install,
        settings_file,
        warning,
    )

    project = Path.cwd()
    path = settings_file(dialect, scope, project)
    command = own_command(dialect)
    change = plan_install(dialect, path, command, call.settings.hook_wait)
    program = shlex.split(command)[0]
    notes = advice(dialect, path, program, project)
    copy: Literal["make", "leave"] = "make" if _is_first(change, dialect) else "leave"
    before = warning(scope, change, program)
    if before is not None:
        call.out.note(f"note: {before}")
    shared = scope == "project"
    done = _carried_out(call, change, "install", lambda: apply(change, copy, shared=shared))
    stands = done or not (change.is_needed or call.arguments.dry_run)
    baseline = stands and _begin_baseline(call, project)
    if call.out.as_json:
        _data(call, dialect, scope, change, done, notes=notes, command=command)
        return 0
    if not change.is_needed:
        call.out.line(f"the hooks for {dialect.title} are in {path} already")
    for note in notes:
        call.out.note(f"note: {note}")
    if baseline:
        call.out.note("the first import of this project runs in the background")
    if done:
        call.out.line("")
        call.out.line(f"new sessions of {dialect.title} are recorded from now on:")
        call.out.line(f"  backtrail hooks status {dialect.agent}   are they working?")
        call.out.line("  backtrail                        what happened here")
        call.out.line("  backtrail rewind                 go back")
    return _code(call, change, done)


def _is_first(change: Change, dialect: Dialect) -> bool:
    """Whether the file has nothing of ours, so that a copy of it is worth keeping."""
    from ..exchange.hooks.entries import find_ours

    before = change.before
    return before is not None and (
        not before.strip() or not find_ours(before, str(change.path), dialect.agent)
    )


def _begin_baseline(call: Call, project: Path) -> bool:
    """Read the project for the first time, in the background; False if there is no need."""
    from ..errors import BacktrailError, Unsafe
    from ..exchange.hooks.first_import import go_on
    from ..files.depot import Depot
    from ..files.workspace.roots import chosen_root, refuse_broad

    try:
        refuse_broad(str(project))
        project = Path(chosen_root(str(project), call.settings).path)
        depot = Depot.of(call.store)
        try:
            workspace = depot.workspace(project, call.store)
            try:
                needed = workspace.is_new()
            finally:
                workspace.close()
        finally:
            depot.close()
        if needed:
            go_on(call.store, str(project))
        return needed
    except Unsafe:
        # No project: there is nothing to import.
        return False
    except BacktrailError as error:
        call.out.note(f"note: {error}")
        return False


def _uninstall(call: Call, dialect: Dialect, scope: Scope) -> int:
    from ..exchange.hooks.install import apply, plan_uninstall, settings_file

    refuse_agents(call, "hooks uninstall")
    path = settings_file(dialect, scope, Path.cwd())
    change = plan_uninstall(dialect, path)
    done = _carried_out(call, change, "uninstall", lambda: apply(change, "drop"))
    if call.out.as_json:
        _data(call, dialect, scope, change, done)
    elif not change.is_needed:
        call.out.line(f"there are no hooks of ours for {dialect.title} in {path}")
    elif done:
        call.out.line(f"removed; sessions of {dialect.title} stay as they are")
    return _code(call, change, done)


def _carried_out(call: Call, change: Change, what: str, act: _Act) -> bool:
    """Show a change, ask, and make it; False if it was not made."""
    if not change.is_needed:
        return False
    if not call.out.as_json:
        _show(call.out, change)
    if call.arguments.dry_run:
        return False
    if not call.confirm(f"{what} this?"):
        call.out.note("nothing was changed")
        return False
    act()
    return True


def _code(call: Call, change: Change, done: bool) -> int:
    """The exit code: 1 where the person said no."""
    return 0 if done or not change.is_needed or call.arguments.dry_run else NOT_DONE


def _show(out: Output, change: Change) -> None:
    for line in change.diff():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        out.line(line, "bold" if line[:3] in ("+++", "---") else style)


def _data(
    call: Call, dialect: Dialect, scope: Scope, change: Change, done: bool, **more: object
) -> None:
    call.out.data(
        {
            "agent": dialect.agent,
            "scope": scope,
            "path": str(change.path),
            "changed": done,
            "needed": change.is_needed,
            "diff": change.diff(),
            **more,
        }
    )


# --- status ------------------------------------------------------------------------------


def _status(call: Call) -> int:
    from ..exchange.hooks.installed import folder_here, installed, recent

    agent = call.arguments.agent
    folder, trouble = folder_here(call.settings.store)
    found = installed(agent, Path.cwd(), call.settings.hook_wait)
    misses = recent(folder, agent)
    lost, rows = ([], []) if trouble is not None else _not_captured(call)
    wrong = trouble is not None or any(one.problem for one in found)
    off = call.settings.why_unrecorded(Path.cwd())
    if call.out.as_json:
        last = misses[-1]._asdict() if misses else None
        call.out.data(
            {
                "installed": [one.to_dict() for one in found],
                "misses": {"count": len(misses), "last": last},
                "not_captured": rows_json(rows),
                "limit": call.settings.hook_timeout,
                "on": off is None,
                "problem": trouble,
                "warnings": list(call.settings.warnings),
            }
        )
        return 1 if wrong else 0
    _print_installed(call, found)
    for warning in call.settings.warnings:
        call.out.line(warning, "yellow")
    if off is not None:
        call.out.line(f"hooks are switched off here, {off}: nothing is recorded", "yellow")
    if trouble is not None:
        call.out.line(f"the store cannot be opened: {trouble}", "red")
    if misses:
        call.out.line("")
        call.out.line(f"{len(misses)} missed; the last:")
        for miss in misses[-5:]:
            what = " ".join(part for part in (miss.agent, miss.event, miss.tool) if part)
            call.out.line(f"  {ago(miss.ts)}  {what}: {miss.why}")
    elif not lost:
        call.out.line("nothing was missed")
    if lost:
        # What is merely left out, such as packages, is no business of hooks.
        print_rows(call.out, lost, "hooks status")
    return 1 if wrong else 0


def _not_captured(call: Call) -> tuple[list[Row], list[Row]]:
    """What the calls of the latest session here missed, and all that is not captured there."""
    from ..errors import BacktrailError
    from ..session.uncaptured import logged, whole
    from .nearby import around

    try:
        _, info = around(call.store)
        return ([], []) if info is None else (logged(call.store, info), whole(call.store, info))
    except BacktrailError:
        # What is wrong with the store is reported elsewhere.
        return [], []


def _print_installed(call: Call, found: list[Installed]) -> None:
    if not found:
        which = call.arguments.agent or "claude-code|codex|gemini"
        call.out.line(f"no hooks are installed here: `backtrail hooks install {which}`")
    for one in found:
        word = "works" if one.problem is None else "FAILS"
        took = f", {one.seconds * 1000:.0f} ms" if one.seconds is not None else ""
        style = "green" if one.problem is None else "red"
        call.out.spans((word, style), (f"  {one.agent} ({one.scope}{took})  {one.path}", ""))
        if one.problem is not None:
            call.out.line(f"       {one.problem}")
        if one.missing and one.command:
            missing = ", ".join(one.missing)
            call.out.line(f"       without {missing}: install again to have all")
        if one.outdated is not None:
            call.out.line(f"       {one.outdated}", "yellow")


if TYPE_CHECKING:
    from collections.abc import Callable

    _Act = Callable[[], None]

COMMANDS = {
    "hooks": Command(
        _options,
        _run,
        """backtrail hooks install claude-code
        backtrail hooks install claude-code --local --dry-run
        backtrail hooks status
        backtrail hooks uninstall claude-code --yes""",
        "With hooks, sessions of an agent that you run in a terminal are recorded here, with the\n"
        "files before and after each call that can write. The settings are changed only after\n"
        "you have seen the change, and go back to what they were when the hooks are removed.",
    )
}
