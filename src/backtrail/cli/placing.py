"""`relocate`: a session's folder is somewhere else now."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from ..errors import NotFound
from .call import Call
from .diffs import print_files, summary
from .options import session_option
from .verbs import Command


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="else this folder")
    session_option(parser)


def _run(call: Call) -> None:
    folder = Path(call.arguments.folder).expanduser().resolve()
    if not folder.is_dir():
        raise NotFound(f"{folder} is not a folder")
    # The session is not in this folder yet, so the latest here would be another one.
    session = call.session(call.arguments.session or "latest")
    before = session.info().cwd
    found = session.relocate(folder)
    if call.out.as_json:
        moved = {"session": session.id, "from": before, "to": str(folder)}
        call.out.data({**moved, **found.to_dict()})
        return
    call.out.line(f"session {session.id} is in {folder} now; it was in {before}")
    if found:
        call.out.line(f"its files differ from those it knew: {summary(found.files)}")
        print_files(call.out, found.files, "  ")


COMMANDS = {
    "relocate": Command(
        _options,
        _run,
        """
        cd new/place && backtrail relocate --session 019a8b2c-1234
        backtrail relocate ../new/place -s latest
        """,
        about="For a folder that was moved, or made anew at the same place. Without a session:\n"
        "the latest of all folders.",
    )
}
