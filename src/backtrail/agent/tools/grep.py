"""The tools that look for files: glob by name, grep by content.

They walk by descriptors, follow no links, and do not enter what a scan does not: version
control, installed packages, caches, stores of ours.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from ...files.beneath import DIRECTORY, FILE
from ...files.names import is_reserved, shown
from ...files.trees import MARKER
from ...files.workspace.ignore import opaque_name, stores_among
from .files import TEXT_LIMIT, looks_binary, path_of
from .paths import Place, places, short
from .tool import Context, ToolFailed, tool_from

_DEPTH = 200
_LINE = 500


@dataclass(slots=True)
class Found:
    """A file that a walk came to: its open directory, and its path below the start."""

    directory: int
    name: bytes
    path: bytes


def walk(ctx: Context, place: Place) -> Iterator[Found]:
    """All files and links below a directory, in the order of their names."""
    deadline = time.monotonic() + ctx.timeout
    fd = os.open(b".", DIRECTORY, dir_fd=place.listing())
    try:
        yield from _below(ctx, fd, b"", deadline, 0)
    finally:
        os.close(fd)


def _below(ctx: Context, fd: int, path: bytes, deadline: float, depth: int) -> Iterator[Found]:
    if ctx.cancelled():
        raise ToolFailed("cancelled")
    if time.monotonic() > deadline:
        raise ToolFailed(f"the search took more than {ctx.timeout:g} s: search a smaller part")
    directories: list[bytes] = []
    files: list[bytes] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            (directories if entry.is_dir(follow_symlinks=False) else files).append(name)
    names = {*directories, *files}
    ours = stores_among(fd, names) if MARKER in names else set()
    inner = {name for name in directories if _enters(fd, name, names) and depth < _DEPTH}
    shown = inner.union(name for name in files if not is_reserved(name))
    for name in sorted(shown - ours):
        if name not in inner:
            yield Found(fd, name, path + name)
            continue
        try:
            below = os.open(name, DIRECTORY, dir_fd=fd)
        except OSError:
            # It is gone, a link by now, or not ours to read.
            continue
        try:
            yield from _below(ctx, below, path + name + b"/", deadline, depth + 1)
        finally:
            os.close(below)


def _enters(fd: int, name: bytes, beside: set[bytes]) -> bool:
    def within(inner: bytes) -> bool:
        try:
            os.stat(name + b"/" + inner, dir_fd=fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    return not is_reserved(name) and not opaque_name(name, beside.__contains__, within)


def _prefix(ctx: Context, place: Place, path: str) -> str:
    """What goes before the paths that a search finds here; it must be a directory."""
    status = place.status()
    if status is None:
        raise ToolFailed(f"`{path}` does not exist")
    if not stat.S_ISDIR(status.st_mode):
        raise ToolFailed(f"`{path}` is not a directory")
    home = short(ctx, place.full)
    return "" if home == "." else f"{home}/"


# --- glob ----------------------------------------------------------------------------------


def glob(ctx: Context, pattern: str, path: str = ".", limit: int = 1000) -> str:
    """List files by name. `*` stays within a name, `**` spans directories: `src/**/*.py`.

    Args:
        pattern: The pattern, relative to `path`. `{a,b}` and `[abc]` are understood.
        path: The directory to look in.
        limit: How many to list.
    """
    wanted = compiled(pattern)
    found: list[str] = []
    with places(ctx) as opened:
        place = opened.find(path)
        prefix = _prefix(ctx, place, path)
        for item in walk(ctx, place):
            name = shown(item.path)
            if wanted.fullmatch(name):
                if len(found) == max(1, limit):
                    found.append(f"(there are more than {limit})")
                    break
                found.append(prefix + name)
    return "\n".join(found) or "(no files match)"


# --- grep ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Report:
    """What a search found so far, and how much more fits."""

    output: Literal["content", "files", "count"]
    around: int
    limit: int
    room: int
    lines: list[str] = field(default_factory=list)
    matches: int = 0
    full: bool = False

    def add(self, line: str) -> None:
        self.room -= len(line) + 1
        self.full = self.full or self.room < 0
        if not self.full:
            self.lines.append(line)


def grep(
    ctx: Context,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    ignore_case: bool = False,
    context: int = 0,
    output: Literal["content", "files", "count"] = "content",
    limit: int = 200,
) -> str:
    """Search the lines of files for a regular expression (Python's).

    Binary files, version control and installed packages are left out.

    Args:
        pattern: The regular expression.
        path: The directory or file to search.
        glob: Only files of such a name, as `*.py` or `src/**/*.{js,ts}`.
        ignore_case: Whether upper and lower case are the same.
        context: How many lines around each match to show.
        output: Matching lines, only the names of the files, or the number of matches in each.
        limit: How many matches to show, or files.
    """
    try:
        wanted = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolFailed(f"the pattern is no regular expression: {error}") from error
    names = compiled(glob, anywhere=True) if glob else None
    report = _Report(output, max(0, context), max(1, limit), ctx.output_limit)
    with places(ctx) as opened:
        place = opened.find(path)
        for name, content in _contents(ctx, place, path, names):
            _search(report, name, content, wanted)
            if report.full:
                report.lines.append("(there is more: narrow the search)")
                break
    return "\n".join(report.lines) or "(no matches)"


def _contents(
    ctx: Context, place: Place, path: str, names: re.Pattern[str] | None
) -> Iterator[tuple[str, bytes]]:
    status = place.status()
    if status is not None and stat.S_ISREG(status.st_mode):
        content, _ = place.read(TEXT_LIMIT)
        if looks_binary(content):
            raise ToolFailed(f"`{path}` is a binary file")
        yield short(ctx, place.full), content
        return
    prefix = _prefix(ctx, place, path)
    for item in walk(ctx, place):
        name = shown(item.path)
        if names is None or names.fullmatch(name):
            content = _text(item)
            if content:
                yield prefix + name, content


def _text(item: Found) -> bytes:
    """The content of a text file of reasonable size; empty for anything else."""
    try:
        fd = os.open(item.name, FILE, dir_fd=item.directory)
    except OSError:
        # A link, gone, or not ours to read.
        return b""
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > TEXT_LIMIT:
            return b""
        start = file.read(8192)
        return b"" if looks_binary(start) else start + file.read(TEXT_LIMIT)


def _search(report: _Report, name: str, content: bytes, wanted: re.Pattern[str]) -> None:
    lines = content.decode("utf-8", "replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    hits = [n for n, line in enumerate(lines) if wanted.search(line.rstrip("\r"))]
    if not hits:
        return
    if report.output != "content":
        if report.matches == report.limit:
            report.full = True
            return
        report.matches += 1
        report.add(name if report.output == "files" else f"{name}:{len(hits)}")
        return
    if len(hits) > report.limit - report.matches:
        hits = hits[: report.limit - report.matches]
        _show(report, name, lines, hits)
        report.full = True
        return
    report.matches += len(hits)
    _show(report, name, lines, hits)


def _show(report: _Report, name: str, lines: list[str], hits: list[int]) -> None:
    """The matching lines, with those around them; `--` where lines are left out."""
    matching = set(hits)
    last = -2
    for hit in hits:
        first = max(last + 1, hit - report.around, 0)
        if report.around and report.lines and first > last + 1:
            report.add("--")
        for n in range(first, min(len(lines), hit + report.around + 1)):
            sign = ":" if n in matching else "-"
            text = lines[n].rstrip("\r")
            text = text if len(text) <= _LINE else f"{text[:_LINE]}…"
            report.add(f"{name}{sign}{n + 1}{sign}{text}")
            last = n


GLOB = tool_from(glob, kind="read", paths=path_of)
GREP = tool_from(grep, kind="read", paths=path_of)


_CHOICES = 200


@lru_cache(maxsize=256)
def compiled(pattern: str, *, anywhere: bool = False) -> re.Pattern[str]:
    """A pattern for whole relative paths.

    With `anywhere`, a pattern without a slash is held against the last name, wherever it
    is, as in a `.gitignore`.
    """
    choices = _choices(pattern.removeprefix("./"))
    return re.compile("|".join(_one(choice, anywhere) for choice in choices), re.DOTALL)


def matches(pattern: str, path: str, *, anywhere: bool = False) -> bool:
    """Whether a relative path is one of those meant."""
    return compiled(pattern, anywhere=anywhere).fullmatch(path) is not None


def _choices(pattern: str) -> list[str]:
    """The patterns that one with braces stands for."""
    done: list[str] = []
    todo = [pattern]
    while todo and len(done) + len(todo) < _CHOICES:
        text = todo.pop()
        found = re.search(r"\{([^{}]*,[^{}]*)\}", text)
        if found is None:
            done.append(text)
        else:
            before, after = text[: found.start()], text[found.end() :]
            todo += [before + part + after for part in found[1].split(",")]
    return done + todo


def _one(pattern: str, anywhere: bool) -> str:
    start = "(?:.*/)?" if anywhere and "/" not in pattern else ""
    names = pattern.split("/")
    parts: list[str] = [start]
    for number, name in enumerate(names):
        last = number == len(names) - 1
        if name == "**":
            parts.append(".*" if last else "(?:[^/]+/)*")
        else:
            parts.append(_name(name) + ("" if last else "/"))
    return "".join(parts)


def _name(name: str) -> str:
    found: list[str] = []
    at = 0
    while at < len(name):
        sign = name[at]
        at += 1
        if sign == "*":
            while name[at : at + 1] == "*":
                at += 1
            found.append("[^/]*")
        elif sign == "?":
            found.append("[^/]")
        elif sign == "[" and (end := name.find("]", at + 1)) > 0:
            inner = name[at:end].replace("\\", r"\\").replace("[", r"\[")
            negated = inner.startswith(("!", "^"))
            found.append(f"(?!/)[{'^' if negated else ''}{inner[1:] if negated else inner}]")
            at = end + 1
        else:
            found.append(re.escape(sign))
    return "".join(found)
