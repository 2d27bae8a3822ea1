"""`ls`: sessions, of this folder or of all."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from ..exchange.shelf import ARCHIVED, PINNED, is_empty, is_within
from ..session.titles import FORK, title_of
from .call import Call
from .nearby import around, titled
from .verbs import Command, number_option
from .wording import ago, moment, money, plural, short

if TYPE_CHECKING:
    from ..events import SessionInfo

SHOWN = 30
"""Sessions that are listed unless a number is given."""


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="sessions of every folder")
    parser.add_argument("--project", metavar="DIR", help="sessions of this folder and below it")
    parser.add_argument("--since", metavar="TIME", help="changed since, such as 2026-04-26 or 3d")
    parser.add_argument("--until", metavar="TIME", help="changed until")
    parser.add_argument("--tag", metavar="TAG", help="with this tag")
    parser.add_argument("--model", metavar="TEXT", help="with this in the name of the model")
    parser.add_argument("--branch", metavar="NAME", help="made on this git branch")
    parser.add_argument("--agent", metavar="NAME", help="of this agent, such as claude-code")
    parser.add_argument("--archived", action="store_true", help="archived ones too")
    number_option(parser, f"at most so many; else {SHOWN}, 0 for all")


def _run(call: Call) -> None:
    folder = _folder(call)
    found = chosen(call, folder)
    limit = SHOWN if call.arguments.number is None else call.arguments.number
    shown = found[:limit] if limit > 0 else found
    if call.out.as_json:
        rows = [titled(call.store, info) for info in shown]
        call.out.data({"folder": str(folder) if folder else None, "sessions": rows})
        return
    if not shown:
        more = "; `backtrail ls --all` lists those of other folders" if folder else ""
        call.out.note(f"no {_wanted(call)}sessions{f' in {folder}' if folder else ''}{more}")
        return
    call.out.table(
        ["session", "changed", "title", "agent", "turns", "cost", "tags"]
        + ([] if _is_plain(shown, folder) else ["folder"]),
        [_row(call, info, folder if _is_plain(shown, folder) else None) for info in shown],
        right=["turns", "cost"],
        styles={"session": "cyan", "changed": "dim", "tags": "yellow", "folder": "dim"},
    )
    if len(shown) < len(found):
        call.out.note(f"{plural(len(found) - len(shown), 'more session')}: `-n 0` shows all")


def _wanted(call: Call) -> str:
    """The word "such " where filters were given."""
    given = call.arguments
    filters = (given.since, given.until, given.tag, given.model, given.branch, given.agent)
    return "such " if any(filters) else ""


def _folder(call: Call) -> Path | None:
    """The folder whose sessions are wanted; None: any."""
    if call.arguments.project is not None:
        return Path(call.arguments.project).expanduser().resolve()
    return None if call.arguments.all else around(call.store)[0]


def chosen(call: Call, folder: Path | None) -> list[SessionInfo]:
    """The sessions that all filters let through, pinned ones first."""
    wanted = call.arguments
    infos = call.store.sessions(
        tag=wanted.tag,
        after=moment(wanted.since) if wanted.since else None,
        before=moment(wanted.until) if wanted.until else None,
    )
    found = [
        info
        for info in infos
        if info.relation != "subagent"
        and not is_empty(call.store, info)
        and (folder is None or is_within(info, folder))
        and (wanted.archived or wanted.tag == ARCHIVED or ARCHIVED not in info.tags)
        and (wanted.model is None or wanted.model.lower() in (info.model or "").lower())
        and (wanted.branch is None or info.metadata.get("git_branch") == wanted.branch)
        and (wanted.agent is None or info.agent_name == wanted.agent)
    ]
    return sorted(found, key=lambda info: PINNED not in info.tags)


def _is_plain(infos: list[SessionInfo], folder: Path | None) -> bool:
    """Whether all belong to the folder itself, so that it need not be shown."""
    return folder is not None and all(info.cwd == str(folder) for info in infos)


def _row(call: Call, info: SessionInfo, folder: Path | None) -> list[str]:
    name = title_of(call.store, info)
    if info.relation == "fork" and not name.startswith(FORK):
        name = f"{FORK} {name}"
    tags = sorted(info.tags, key=lambda tag: tag != PINNED)
    row = [
        short(info.id),
        ago(info.updated_at),
        name,
        info.agent_name or info.model or "",
        str(info.turn_count),
        money(info.cost_usd),
        " ".join(tags),
    ]
    return row if folder else [*row, info.cwd or ""]


COMMANDS = {
    "ls": Command(
        _options,
        _run,
        """
        backtrail ls
        backtrail ls --all --since 7d
        backtrail ls --agent claude-code --branch main --json
        """,
        about="Newest first, pinned ones before all. Archived ones are hidden, and those in which\n"
        "an agent was opened and nothing was said.",
    )
}
