"""Make the picture of the terminal in the README: `python docs/picture.py`.

An agent whose model is a script works on a small project, as in `backtrail demo`. Then real
commands run on a real terminal, and what they print becomes an SVG that loads nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

from backtrail.cli.demo import Stage, agent
from backtrail.cli.output import Output

COLUMNS = 84
COMMANDS = (
    "backtrail",
    "backtrail rewind --last --yes",
    "tail -n 1 notes.md",
)

TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>Backtrail on a terminal</title>
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own template fetches fonts from the network; this one takes what the reader has."""


def work(stage: Stage) -> None:
    """Two turns of an agent, and an edit by a person in between."""
    with agent(stage) as session:
        session.send("Ask for the name.")
        with (stage.project / "notes.md").open("a", encoding="utf-8") as notes:
            notes.write("Mine: ask Monday about the token.\n")
        session.send("Modernise the project.")


def on_terminal(stage: Stage, line: str) -> str:
    """Run a command on a terminal; what it printed, colours included."""
    words = shlex.split(line)
    if words[0] == "backtrail":
        words = [sys.executable, "-P", "-m", "backtrail", *words[1:]]
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    hidden = ("NO_COLOR", "COLUMNS", "BACKTRAIL_COLOR")
    environment = {k: v for k, v in stage.environment().items() if k not in hidden}
    with subprocess.Popen(
        words,
        cwd=stage.project,
        env={**environment, "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        printed = _all_of(ours)
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"`{line}` failed:\n{printed}")
    return printed.replace("\r\n", "\n")


def _all_of(fd: int) -> str:
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError as error:
            # How Linux says that nobody is at the other end any more.
            if error.errno != errno.EIO:
                raise
            piece = b""
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)


def picture() -> str:
    """The SVG."""
    stage = Stage.build(Output())
    try:
        work(stage)
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            console = Console(
                record=True, width=COLUMNS, file=nowhere, force_terminal=True,
                color_system="truecolor", legacy_windows=False,
            )  # fmt: skip
            for line in COMMANDS:
                console.print(Text.assemble(("$ ", "green"), (line, "bold")))
                console.print(Text.from_ansi(on_terminal(stage, line).rstrip("\n")))
                console.print()
            return console.export_svg(
                title="backtrail", code_format=TEMPLATE, unique_id="backtrail"
            )
    finally:
        shutil.rmtree(stage.folder)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg")
    target.write_text(picture(), encoding="utf-8")
