"""Patterns of paths: `*` and `?` stay within a name, `**` spans directories, `{a,b}` is either."""

from __future__ import annotations

import re
from functools import lru_cache

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
