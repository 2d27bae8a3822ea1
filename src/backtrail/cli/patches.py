"""Differences of files for people: a line for each file, or the lines in colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._startup.frozen import replace
from ..files.names import one_line
from .output import Output, clean, shortened
from .wording import lines, mode_change, things

if TYPE_CHECKING:
    from rich.text import Text

    from ..files.differences import FileDiff

LETTERS = {
    "added": "A",
    "deleted": "D",
    "modified": "M",
    "renamed": "R",
    "mode": "M",
    "type": "T",
    "not captured": "?",
}
STYLES = {"A": "green", "D": "red", "M": "yellow", "R": "cyan", "T": "yellow", "?": "dim"}

_PLUS, _MINUS = "on #0f2a17", "on #331416"
_MOST = 200_000
"""Characters of a diff above which syntax is not coloured: it would take long."""


def print_files(out: Output, files: Sequence[FileDiff], indent: str = "") -> None:
    """A line for each file: how it changed, and by how many lines."""
    for file in files:
        letter = LETTERS[file.status]
        moved = file.old_path if letter == "?" else None
        name = file.path if file.old_path in (None, moved) else f"{file.old_path} → {file.path}"
        changed = file.insertions or file.deletions
        notes = [lines(file.insertions, file.deletions)] if changed else []
        if file.modes:
            notes.append(mode_change(file.modes))
        if file.status in ("not captured", "type"):
            notes.append("not captured" if letter == "?" else "another kind of file")
        if moved is not None:
            notes.append(f"moved from {one_line(moved)}")
        told = f"  {', '.join(notes)}" if notes else ""
        shown = f"  {one_line(name)}{'/' if file.folder else ''}"
        out.spans((indent, ""), (letter, STYLES[letter]), (shown, ""), (told, "dim"))


def summary(files: Sequence[FileDiff]) -> str:
    """How much changed, such as "2 files, +10 −3"."""
    plus, minus = sum(f.insertions for f in files), sum(f.deletions for f in files)
    return f"{things(file.folder for file in files)}, {lines(plus, minus)}"


def print_diff(out: Output, files: Sequence[FileDiff], indent: str = "") -> None:
    """The changed lines, as git shows them; in colour on a terminal."""
    from ..files.differences import Diff

    for file in files:
        for line in str(Diff([replace(file, text="")])).splitlines():
            out.line(f"{indent}{line}", "bold")
        if file.text and out.in_color and len(file.text) <= _MOST:
            for shown in _highlighted(file.path, file.text):
                out.console.print(shown, soft_wrap=True)
            continue
        # Not splitlines: a form feed or a lone \r in a line of code ends no line of a diff.
        for line in file.text.removesuffix("\n").split("\n") if file.text else ():
            out.line(f"{indent}{line}", _style(line))


def _style(line: str) -> str:
    if line.startswith(("--- ", "+++ ")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")


def _highlighted(path: str, text: str) -> list[Text]:
    """The lines of a diff in the colours of their language, on green or red."""
    from rich.syntax import Syntax
    from rich.text import Text

    raw = [clean(shortened(line)) for line in text.removesuffix("\n").split("\n")]
    body = [at for at, line in enumerate(raw) if at > 1 and line[:1] in ("+", "-", " ")]
    code = "\n".join(raw[at][1:] for at in body)
    syntax = Syntax(code, Syntax.guess_lexer(path, code), theme="ansi_dark")
    coloured = syntax.highlight(code).split("\n", allow_blank=True)
    found = [Text(line, _style(line)) for line in raw]
    for at, line in zip(body, coloured, strict=False):
        mark = raw[at][:1]
        whole = Text(mark, {"+": "green", "-": "red"}.get(mark, "")) + line
        if mark in "+-":
            whole.stylize_before(_PLUS if mark == "+" else _MINUS)
        found[at] = whole
    return found
