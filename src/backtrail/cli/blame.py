"""`blame`: which prompt and call wrote each line of a file."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from .rewind import path_of
from .verbs import Command, session_option
from .wording import short

if TYPE_CHECKING:
    from ..files.changes.blame import BlameLine
    from .call import Call

_STYLES = {"agent": "cyan", "shared": "yellow", "uncertain": "yellow", "others": "dim"}


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file")
    parser.add_argument("--at", metavar="POINT", help="as it was then; else as it is now")
    session_option(parser)


def _run(call: Call) -> None:
    session = call.session(call.arguments.session)
    at = None if call.arguments.at is None else call.point(session, call.arguments.at)
    lines = session.blame(path_of(session.info(), call.arguments.file), at)
    if call.out.as_json:
        rows = [line.to_dict() for line in lines]
        call.out.data({"session": session.id, "file": call.arguments.file, "lines": rows})
        return
    several = len({line.session_id for line in lines if line.session_id}) > 1
    labels = [_label(line, several=several) for line in lines]
    broad, digits = max(map(len, labels), default=0), len(str(len(lines)))
    with call.out.paged():
        for line, label in zip(lines, labels, strict=True):
            style = _STYLES.get(line.author, "red")
            call.out.spans(
                (label.ljust(broad), style), (f"  {line.line:>{digits}}  ", "dim"), (line.text, "")
            )
    if not lines:
        call.out.note("the file is empty")


def _label(line: BlameLine, *, several: bool) -> str:
    """The author of a line in words."""
    if line.session_id is None:
        return line.author
    turn = f"prompt {line.turn}" if line.turn is not None else f"event {line.event}"
    parts = [short(line.session_id) if several else "", turn, line.tool or "", line.agent or ""]
    label = "  ".join(filter(None, parts))
    return label if line.author == "agent" else f"{line.author}: {label}"


COMMANDS = {
    "blame": Command(
        _options,
        _run,
        """
        backtrail blame app.py
        backtrail blame app.py --at @-2
        backtrail blame app.py --json
        """,
        about="Over all sessions of the folder, through renames; lines that a rewind brought back\n"
        "keep their first author. `others` are people and programs that no session recorded,\n"
        "`shared` calls of several sessions, `uncertain` a call or perhaps a person meanwhile;\n"
        "`unknown` is what contents that were given up would say. `backtrail rewind --turn N`\n"
        "takes back what one prompt did.",
    )
}
