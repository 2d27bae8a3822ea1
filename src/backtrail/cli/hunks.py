"""A diff for people: lines that came and went in colour, changed words marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..files.differences import notes, printed
from ..files.patches import match
from .output import Output

if TYPE_CHECKING:
    from ..files.differences import FileDiff

_MOST = 1_000_000
"""Characters of all files above which words are not compared any more: it would take long."""

_LONGEST = 2000
"""Characters of a line above which its words are not compared."""

_WORD = r"\w+|\s+|."
_STYLES = {"+": "green", "-": "red", "@": "cyan"}

Part = tuple[int, int]
"""A piece of a line, from one character to another."""


def print_diff(out: Output, files: Sequence[FileDiff], indent: str = "") -> None:
    """The changed lines, as git writes them; in colour on a terminal, as they are in a pipe."""
    if not (out.is_terminal or indent):
        # A program reads it, such as `git apply`.
        for file in files:
            out.raw(printed(file))
        return
    left = _MOST
    for file in files:
        for line in (notes(file) + file.header).splitlines():
            out.line(f"{indent}{line}", "bold")
        # Not splitlines: a form feed or a lone \r in a line of code ends no line of a diff.
        lines = file.text.removesuffix("\n").split("\n") if file.text else []
        left -= len(file.text)
        marked = _changed_words(lines) if out.in_color and left > 0 else {}
        for at, line in enumerate(lines):
            out.spans((indent, ""), *_spans(line, marked.get(at, ())))


def show_files(out: Output, files: Sequence[FileDiff]) -> None:
    """A diff alone on the screen, until the person leaves it."""
    with out.paged(stay=True):
        if files:
            print_diff(out, files)
        else:
            out.line("no file changed", "dim")


def _style(line: str) -> str:
    if line.startswith(("--- ", "+++ ", "diff --git ")):
        return "bold"
    return _STYLES.get(line[:1], "")


def _spans(line: str, parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    style = _style(line)
    at = 0
    for first, end in parts:
        yield line[at:first], style
        yield line[first:end], f"{style} reverse"
        at = end
    yield line[at:], style


def _changed_words(lines: Sequence[str]) -> dict[int, list[Part]]:
    """Where lines that stand for each other differ, by the place of the line."""
    found: dict[int, list[Part]] = {}
    gone: list[int] = []
    came: list[int] = []
    for at, line in enumerate([*lines[2:], "@"], 2):
        if line[:1] == "-" and not came:
            gone.append(at)
        elif line[:1] == "+":
            came.append(at)
        else:
            if len(gone) == len(came):
                for old, new in zip(gone, came, strict=True):
                    found[old], found[new] = _differing(lines[old], lines[new])
            gone, came = ([at], []) if line[:1] == "-" else ([], [])
    return found


def _differing(old: str, new: str) -> tuple[list[Part], list[Part]]:
    """The words of two lines that are not in the other; nothing where most are not."""
    if max(len(old), len(new)) > _LONGEST:
        return [], []
    a, b = ([word.encode() for word in re.findall(_WORD, line[1:])] for line in (old, new))
    places = match(a, b)
    kept = {place for place in places if place >= 0}
    same = sum(len(a[place]) for place in kept)
    if 2 * same < max(len(old), len(new)) - 1:
        return [], []
    return _parts(a, [at in kept for at in range(len(a))]), _parts(b, [p >= 0 for p in places])


def _parts(words: Sequence[bytes], kept: Sequence[bool]) -> list[Part]:
    found: list[Part] = []
    at = 1
    for word, is_kept in zip(words, kept, strict=True):
        end = at + len(word.decode())
        if not is_kept:
            if found and found[-1][1] == at:
                found[-1] = found[-1][0], end
            else:
                found.append((at, end))
        at = end
    return found
