"""`delete` and `purge`: both show first what will go, and ask."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidData, NotFound
from ..session.titles import title_of
from .allow import refuse_agents
from .call import Call
from .nearby import here
from .verbs import NOT_DONE, SESSION, Command, Usage, yes_option
from .wording import ago, brief, plural, short

if TYPE_CHECKING:
    from ..events import SessionInfo


def _delete_options(parser: ArgumentParser) -> None:
    parser.add_argument("sessions", nargs="+", metavar="SESSION", help=SESSION.split("; ")[0])
    parser.add_argument("--dry-run", action="store_true", help="only show what would go")
    yes_option(parser)


def _delete(call: Call) -> int:
    refuse_agents(call)
    infos = list({info.id: info for info in map(call.info, call.arguments.sessions)}.values())
    if not call.out.as_json:
        for info in infos:
            _preview(call, info)
    if not call.arguments.dry_run:
        if not call.confirm(f"Delete {plural(len(infos), 'session')}?"):
            call.out.note("nothing was deleted")
            return NOT_DONE
        for info in infos:
            with call.store.lease(info.id):
                call.store.delete(info.id)
    if call.out.as_json:
        rows = [info.to_dict() for info in infos]
        call.out.data({"dry_run": call.arguments.dry_run, "sessions": rows})
    elif not call.arguments.dry_run:
        call.out.line(f"deleted {plural(len(infos), 'session')}")
        call.out.note(
            "contents of their files go later, or with `backtrail gc`; `purge` erases all"
        )
    return 0


def _preview(call: Call, info: SessionInfo) -> None:
    facts = f"{plural(info.turn_count, 'turn')}, {info.cwd or 'no folder'}, {ago(info.updated_at)}"
    call.out.line(
        f"{short(info.id)}  {title_of(call.store, info) or '(nothing said yet)'}  {facts}"
    )
    forks = [other for other in call.store.sessions(parent=info.id) if other.relation == "fork"]
    if forks:
        call.out.line(f"  {plural(len(forks), 'fork')} of it keep what they share", "dim")


# --- purge -------------------------------------------------------------------------------


def _purge_options(parser: ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", metavar="SESSION", help=SESSION.split("; ")[0])
    parser.add_argument(
        "--path", metavar="PATH", help="every content captured there, in this project"
    )
    parser.add_argument(
        "--everywhere", action="store_true", help="that path in every project of the store"
    )
    parser.add_argument("--text", metavar="TEXT", help="all that holds it; - reads it from stdin")
    parser.add_argument("--dry-run", action="store_true", help="only show what would go")
    yes_option(parser)


def _purge(call: Call) -> int:
    from ..files.contents.purge import purge
    from ..files.depot import is_shared

    wanted = call.arguments
    if wanted.path is not None and wanted.text is not None:
        raise Usage("a purge is of a --path or of a --text, not of both")
    if wanted.session is None and wanted.path is None and wanted.text is None:
        raise Usage("say what to purge: a SESSION, --path PATH or --text TEXT")
    if wanted.everywhere and (wanted.path is None or wanted.session is not None):
        raise Usage("--everywhere is for a --path, and for no single session")
    refuse_agents(call)
    info = call.info(wanted.session) if wanted.session is not None else None
    text = _text(wanted.text)
    wanted.path = _meant(call, info, wanted.path)
    events, sessions = _extent(call, info, text, wanted.path)
    if not call.out.as_json:
        _print_extent(call, info, events, sessions)
    if wanted.dry_run:
        if call.out.as_json:
            call.out.data({"dry_run": True, "events": events, "sessions": sessions})
        return 0
    if not call.confirm("Erase this for good? It cannot be undone."):
        call.out.note("nothing was purged")
        return NOT_DONE
    with call.out.busy("erasing"):
        done = purge(call.store, info.id if info else None, path=wanted.path, text=text)
    if call.out.as_json:
        call.out.data({"dry_run": False, **done.to_dict()})
        return 0
    call.out.line(
        f"purged {plural(done.events, 'event')} of {plural(len(done.sessions), 'session')} and "
        f"{plural(done.blobs, 'content')} of files"
    )
    for path in done.present:
        call.out.note(f"{path} still holds it: delete it there, then purge again")
    for problem in done.problems:
        call.out.note(f"{problem.what}: {problem.detail}")
    if is_shared(call.store):
        call.out.note(
            "beyond reach: the server's log, replicas, backups, rows until its VACUUM, older "
            "versions of objects; a machine that is off drops its copy when it is used"
        )
    return 0


def _text(given: str | None) -> str | None:
    """The text to erase. A secret on the command line would stay in the shell's history."""
    if given != "-":
        return given
    text = sys.stdin.read().removesuffix("\n")
    if not text:
        raise InvalidData("there was no text on stdin")
    return text


def _extent(
    call: Call, info: SessionInfo | None, text: str | None, path: str | None
) -> tuple[int, list[str]]:
    """How many events of which sessions would go; of a path, the sessions that have it."""
    import msgspec

    if path is not None:
        from ..files.contents.purge import sessions_with

        return 0, sessions_with(call.store, path, info.id if info else None)
    infos = [info] if info is not None else call.store.sessions()
    needle = None if text is None else msgspec.json.encode(text)[1:-1]
    count = 0
    found: list[str] = []
    for one in infos:
        here = 0
        for log in call.store.logs(one.id):
            for event in call.store.read(one.id, log=log):
                here += needle is None or needle in msgspec.json.encode(event.data)
        if here:
            count += here
            found.append(one.id)
    return count, found


def _meant(call: Call, info: SessionInfo | None, path: str | None) -> str | None:
    """The path as the shell means it: a file of this project.

    Of a session in another place, and with `--everywhere`, it is relative to the workspace.
    """
    if path is None or call.arguments.everywhere:
        return path
    place = here()
    infos = [info] if info is not None else call.store.sessions()
    if any(one.root is not None and place.is_relative_to(one.root) for one in infos):
        return str(Path(place, path))
    if info is None and not Path(path).is_absolute():
        raise NotFound(
            f"no session was recorded in {place}, so there is no {path} to purge here: `cd` into "
            "the project, or say `--everywhere` to mean that path in every project"
        )
    return path


def _print_extent(call: Call, info: SessionInfo | None, events: int, sessions: list[str]) -> None:
    wanted = call.arguments
    if wanted.path is not None:
        where = "this session" if info else plural(len(sessions), "session")
        call.out.line(f"Every content that was captured at {wanted.path}, in {where}.")
    elif wanted.text is not None:
        call.out.line(
            f"{plural(events, 'event')} of {plural(len(sessions), 'session')} that hold the text, "
            "and every content of a file that does."
        )
    elif info is not None:
        call.out.line(f"The session {brief(title_of(call.store, info), 60)} ({short(info.id)}):")
        call.out.line(f"{plural(events, 'event')}, also in its forks, and contents of its files.")


COMMANDS = {
    "delete": Command(
        _delete_options,
        _delete,
        """
        backtrail delete 019a8b2c-1234
        backtrail delete 019a8b2c-1234 "plan B" --yes
        """,
        about="Forks keep what they share with a deleted session.",
    ),
    "purge": Command(
        _purge_options,
        _purge,
        """
        backtrail purge 019a8b2c-1234
        backtrail purge --path .env
        backtrail purge --path .env --everywhere    in every project of the store
        backtrail purge --text - < secret.txt
        """,
        about="Leaves nothing to be read: not in logs, forks, contents, search index or free "
        "pages.\nThis cannot be undone.",
    ),
}
