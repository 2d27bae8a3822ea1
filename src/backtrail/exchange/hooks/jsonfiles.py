"""JSON files that people keep by hand: changed in place, all else left byte for byte.

Nothing is written anew that need not be: members are put in behind the last one and taken
out again as text, in the file's own indentation. Comments stay where the agent that reads the
file takes them. What else is not plain JSON (trailing commas, doubled keys) is refused with its
place, since it would be lost.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path as File

from ..._startup.frozen import NamedTuple
from ...errors import InvalidData
from ...events import Json
from ...stores.disk.fs import failed

_decoder = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(r"\n([ \t]+)\S")
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_VISIBLE = re.compile(r"[^\r\n]")

COMMENTED = ("gemini",)
"""Agents whose settings may have comments."""

Path = tuple[str | int, ...]
"""The way to a value: names of members and numbers of elements."""


class Member(NamedTuple):
    """Where a member of an object, or an element of an array, stands in the text."""

    key: str | int
    start: int
    value: int
    end: int


def read(path: File) -> str | None:
    """The text of a file; None if there is none, `InvalidData` if it is no text."""
    try:
        # Whatever else has that name, such as a pipe, might be waited for without end.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidData(f"{path} is no file: look what it is, and move it away")
            # As bytes: reading as text would change the ends of lines.
            return file.read().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidData(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise failed(error, f"read {path}") from error


def blanked(text: str) -> str:
    """The text with spaces for comments: everything else is at the same place."""

    def blank(found: re.Match[str]) -> str:
        return found[0] if found[0][0] == '"' else _VISIBLE.sub(" ", found[0])

    return _COMMENT.sub(blank, text) if "/" in text else text


def parsed(text: str, name: str, agent: str = "") -> dict[str, Json]:
    """The object in a file; `InvalidData` with the place where it is none.

    Comments are taken where the agent takes them. A blank file is an empty object.
    """
    if not text.strip():
        return {}
    text = blanked(text) if agent in COMMENTED else text

    def once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidData(f"{name}: the key `{twice}` stands twice in one object: remove one")
        return found

    try:
        value = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        comment = text[error.pos : error.pos + 2] in ("//", "/*")
        why = "a comment" if comment else error.msg
        raise InvalidData(
            f"{name}, line {error.lineno}, column {error.colno}: {why}; only plain JSON can be "
            "changed without loss: mend the file, or put the hooks in by hand"
        ) from error
    except RecursionError as error:
        raise InvalidData(f"{name}: nested too deep") from error
    if not isinstance(value, dict):
        raise InvalidData(f"{name}: there should be an object, not a {type(value).__name__}")
    return value


def members(text: str, at: int) -> list[Member]:
    """The members of the object, or the elements of the array, that begins at `at`."""
    is_object = text[at] == "{"
    found: list[Member] = []
    place = _skip(text, at + 1)
    while text[place] not in "}]":
        start = place
        key: str | int = len(found)
        if is_object:
            key, place = _decoder.raw_decode(text, place)
            place = _skip(text, _skip(text, place) + 1)
        _, end = _decoder.raw_decode(text, place)
        found.append(Member(key, start, place, end))
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return found


def located(text: str, path: Path) -> Member:
    """The value at the end of a path that is there."""
    found = Member("", 0, _skip(text, 0), len(text))
    for key in path:
        found = next(m for m in members(text, found.value) if m.key == key)
    return found


def added(text: str, path: Path, key: str | None, value: Json) -> str:
    """The text with a member (or, without a key, an element) behind those at `path`."""
    plain = blanked(text)
    home = located(plain, path)
    inside = members(plain, home.value)
    unit = _unit(plain)
    if unit is None:
        written = json.dumps(value, ensure_ascii=False)
        lead = separator = ""
    else:
        # The text's own lines show how deep this is; where it has none, the path does.
        depth = unit * (len(path) + 1)
        written = json.dumps(value, ensure_ascii=False, indent=unit).replace("\n", f"\n{depth}")
        lead, separator = f"\n{depth}", f"\n{unit * len(path)}"
    if key is not None:
        written = f"{json.dumps(key, ensure_ascii=False)}: {written}"
    if inside:
        end = inside[-1].end
        # A comment that ends the line of the last member stays there.
        until = plain.find("\n", end) if lead else end
        until = end if until < 0 or plain[end:until].strip() else until
        beside = text[end:until].rstrip()
        return f"{text[:end]},{beside}{lead or ' '}{written}{text[end + len(beside) :]}"
    close = plain.index("}" if text[home.value] == "{" else "]", home.value)
    inner = text[home.value + 1 : close].rstrip()
    return f"{text[: home.value + 1]}{inner}{lead}{written}{separator}{text[close:]}"


def removed(text: str, path: Path) -> str:
    """The text without the member or element at `path`."""
    *above, key = path
    plain = blanked(text)
    inside = members(plain, located(plain, tuple(above)).value)
    at = next(n for n, member in enumerate(inside) if member.key == key)
    member = inside[at]
    if at > 0:
        end = inside[at - 1].end
        return text[:end] + _comments(text, plain, end, member.start).rstrip() + text[member.end :]
    if len(inside) > 1:
        start = inside[1].start
        kept = _comments(text, plain, member.end, start).lstrip()
        return text[: member.start] + kept + text[start:]
    home = located(plain, tuple(above))
    close = _skip(plain, member.end)
    kept = text[home.value + 1 : member.start] + text[member.end : close]
    return text[: home.value + 1] + (kept if kept.strip() else "") + text[close:]


def is_bare(text: str, path: Path) -> bool:
    """Whether an object or array has nothing in it, not even a comment."""
    value = located(blanked(text), path)
    return not text[value.value + 1 : value.end - 1].strip()


def _comments(text: str, plain: str, start: int, end: int) -> str:
    """The comments between two members, with the space around them; empty if there are none."""
    comma = plain.index(",", start)
    kept = text[start:comma] + text[comma + 1 : end]
    return kept if kept.strip() else ""


def _unit(text: str) -> str | None:
    """How the file indents one level; None if it is all on one line."""
    if "\n" not in text.strip():
        return None if text.strip() not in ("", "{}") else "  "
    found = _INDENT.search(text)
    return found.group(1) if found else "  "


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
