"""Lines of code as data: each a list of spans, with the class of its syntax and changed words.

The page makes nodes of them. No text becomes HTML anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING

from ..exchange.export.page import visible

if TYPE_CHECKING:
    from ..events import Json

Span = tuple[str, str]
"""A class, perhaps empty, and a text."""

Row = list["Json"]
"""A line of a diff: mark, old number, new number, spans."""

_MOST = 200_000
"""Characters above which syntax is not coloured: it would take long."""

_LONGEST = 2_000
"""Characters of a line that are shown."""

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")

_CLASSES = (
    ("Comment", "c"), ("Keyword", "k"), ("String", "s"), ("Number", "n"), ("Name.Function", "f"),
    ("Name.Class", "f"), ("Name.Decorator", "d"), ("Name.Builtin", "b"), ("Name.Tag", "k"),
    ("Name.Attribute", "b"), ("Operator", "o"), ("Literal", "n"), ("Generic.Heading", "k"),
)  # fmt: skip
"""Classes of the page by the kinds of tokens that Pygments has, the first that fits."""


def lines(path: str, text: str) -> list[list[Span]]:
    """The lines of a text with the colours of their language."""
    plain = visible(text, len(text) + 1)
    if len(plain) > _MOST:
        return [[("", line[:_LONGEST])] for line in plain.split("\n")]
    return [list(line) for line in _coloured(path, plain)]


@lru_cache(64)
def _coloured(path: str, text: str) -> tuple[tuple[Span, ...], ...]:
    """A text is coloured once: windows of it, and both ways to look at a diff, share that."""
    found: list[list[Span]] = [[]]
    for kind, value in _tokens(path, text):
        pieces = value.split("\n")
        for at, piece in enumerate(pieces):
            if at:
                found.append([])
            if piece:
                found[-1].append((kind, piece[:_LONGEST]))
    return tuple(tuple(line) for line in found)


def _tokens(path: str, text: str) -> Iterator[Span]:
    from pygments.lexers import (  # type: ignore[import-untyped]
        get_lexer_for_filename,
    )
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    try:
        lexer = get_lexer_for_filename(path, stripnl=False, ensurenl=False)
    except ClassNotFound:
        yield "", text
        return
    for kind, value in lexer.get_tokens(text):
        name = str(kind).removeprefix("Token.")
        yield next((short for long, short in _CLASSES if name.startswith(long)), ""), value


# --- diffs -------------------------------------------------------------------------------


def diff_rows(path: str, text: str) -> list[Row]:
    """The rows of a unified diff of one file: lines by number, changed words marked."""
    rows = _parsed(text)
    _colour(path, rows)
    _mark_words(rows)
    return rows


def _parsed(text: str) -> list[Row]:
    rows: list[Row] = []
    old = new = 0
    for line in text.removesuffix("\n").split("\n") if text else ():
        mark, rest = line[:1], line[1:]
        hunk = _HUNK.match(line)
        if hunk is not None:
            old, new = int(hunk[1]), int(hunk[2])
            rows.append(["@", old, new, [("", visible(line))]])
        elif line.startswith(("--- ", "+++ ")) and not (old or new):
            continue
        elif mark == "\\":
            rows.append(["\\", None, None, [("", visible(line))]])
        elif mark in ("+", "-", " ") and (old or new):
            rows.append([
                mark, old if mark != "+" else None, new if mark != "-" else None, rest[:_LONGEST],
            ])  # fmt: skip
            old += mark != "+"
            new += mark != "-"
        elif line:
            # The content was given up, or is no text.
            rows.append(["\\", None, None, [("", visible(line))]])
    return rows


def _colour(path: str, rows: list[Row]) -> None:
    """Put spans where text is; of both sides, each as the text that it is part of."""
    for side in "-+":
        own = [row for row in rows if row[0] == side or (side == "+" and row[0] == " ")]
        spans = lines(path, "\n".join(row[3] for row in own)) if own else []
        for row, line in zip(own, spans, strict=False):
            row[3] = line
    for row in rows:
        if isinstance(row[3], str):
            row[3] = [("", visible(row[3]))]


def _mark_words(rows: list[Row]) -> None:
    """Mark the words that differ, in lines that took each other's place."""
    at = 0
    while at < len(rows):
        gone = at
        while at < len(rows) and rows[at][0] == "-":
            at += 1
        come = at
        while at < len(rows) and rows[at][0] == "+":
            at += 1
        if gone < come < at and come - gone <= 60 and at - come <= 60:
            for before, after in zip(rows[gone:come], rows[come:at], strict=False):
                _mark_pair(before, after)
        at = max(at, gone + 1)


def _mark_pair(before: Row, after: Row) -> None:
    a, b = _text(before[3]), _text(after[3])
    if max(len(a), len(b)) > 400:
        return
    x, y = _WORD.findall(a), _WORD.findall(b)
    matcher = SequenceMatcher(None, x, y, autojunk=False)
    if matcher.ratio() < 0.4:
        # Two other lines, of which each would be marked as a whole.
        return
    left: list[tuple[int, int]] = []
    right: list[tuple[int, int]] = []
    for tag, i, j, m, n in matcher.get_opcodes():
        if tag != "equal":
            left.append((len("".join(x[:i])), len("".join(x[:j]))))
            right.append((len("".join(y[:m])), len("".join(y[:n]))))
    before[3], after[3] = _cut(before[3], left), _cut(after[3], right)


def _text(spans: Sequence[Span]) -> str:
    return "".join(text for _, text in spans)


def _cut(spans: Sequence[Span], ranges: Sequence[tuple[int, int]]) -> list[Span]:
    """The spans, cut where ranges begin and end; those in a range have the class `w`, too."""
    edges = sorted({edge for one in ranges for edge in one})
    found: list[Span] = []
    start = 0
    for kind, text in spans:
        at, end = start, start + len(text)
        for edge in [*(e for e in edges if at < e < end), end]:
            is_in = any(first <= at and edge <= last for first, last in ranges)
            piece = text[at - start : edge - start]
            if piece:
                found.append((f"{kind} w".strip() if is_in else kind, piece))
            at = edge
        start = end
    return found
