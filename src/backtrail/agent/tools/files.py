"""The tools for single files: read, write, edit."""

from __future__ import annotations

import base64
import os
import re
import stat
from typing import BinaryIO

from ...events import Json
from .paths import Place, mark_of, places, real_path
from .tool import Context, ToolFailed, tool_from

TEXT_LIMIT = 20 * 1024 * 1024
"""Bytes above which a file is not edited, nor searched."""

IMAGE_LIMIT = 5 * 1024 * 1024
LINE_LIMIT = 2000
_LOOK = 8192

_IMAGES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)


def looks_binary(start: bytes) -> bool:
    """Whether a file that starts so is no text."""
    return b"\0" in start[:_LOOK]


# --- read ----------------------------------------------------------------------------------


def read(ctx: Context, path: str, offset: int = 1, limit: int = 2000) -> Json:
    """Read a file: its lines with their numbers. Images are shown as such.

    Args:
        path: The file, relative to the working directory.
        offset: The number of the first line to show, from 1.
        limit: How many lines to show.
    """
    with places(ctx) as opened:
        place = opened.find(path)
        with os.fdopen(place.open(), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_LOOK)
            for sign, kind in _IMAGES:
                if sign.match(start):
                    return _image(path, kind, start + file.read(IMAGE_LIMIT), size)
            if looks_binary(start):
                raise ToolFailed(f"`{path}` is a binary file of {size:,} bytes; it is no text")
            file.seek(0)
            return _numbered(ctx, path, file, max(1, offset), max(1, limit))


def _image(path: str, kind: str, content: bytes, size: int) -> Json:
    if size > IMAGE_LIMIT:
        raise ToolFailed(f"`{path}` is an image of {size:,} bytes; at most {IMAGE_LIMIT:,} fit")
    data = base64.b64encode(content).decode()
    return [{"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}]


def _numbered(ctx: Context, path: str, file: BinaryIO, offset: int, limit: int) -> str:
    """The lines asked for, as many as fit; said if there are more, and where to go on."""
    shown: list[str] = []
    number, room = 0, ctx.output_limit
    while line := file.readline(4 * LINE_LIMIT):
        number += 1
        long = _skip_line(file) if not line.endswith(b"\n") else 0
        if number % 1000 == 0 and ctx.cancelled():
            raise ToolFailed("cancelled")
        if number < offset:
            continue
        text = _shown(line, long)
        room -= len(text) + 8
        if len(shown) == limit or (room < 0 and shown):
            shown.append(f"(there is more: go on with offset={number})")
            return "\n".join(shown)
        shown.append(f"{number:6}\t{text}")
    if not shown:
        end = f"has {number} lines" if number else "is empty"
        return f"(`{path}` {end})"
    return "\n".join(shown)


def _skip_line(file: BinaryIO) -> int:
    """Read on to the end of a line that is too long; how many bytes that was."""
    skipped = 0
    while part := file.readline(1 << 16):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _shown(line: bytes, skipped: int) -> str:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    if skipped or len(text) > LINE_LIMIT:
        return f"{text[:LINE_LIMIT]}… (line cut)"
    return text


# --- write and edit ------------------------------------------------------------------------


def as_bytes(text: str, what: str) -> bytes:
    """Text as it is written to a file."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolFailed(f"{what} holds a half character (a lone surrogate)") from error


def write(ctx: Context, path: str, content: str) -> str:
    """Write a whole file; its directories are made, an old file is replaced.

    Args:
        path: The file, relative to the working directory.
        content: All of its content.
    """
    data = as_bytes(content, "the content")
    with places(ctx) as opened:
        place = opened.find(path)
        status = place.status()
        if status is not None and not stat.S_ISREG(status.st_mode):
            what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a plain file"
            raise ToolFailed(f"`{path}` is {what}")
        place.make_parents()
        place.put(place.stage(data, status))
    done = "Replaced" if status is not None else "Created"
    return f"{done} `{path}`: {len(data):,} bytes."


def edit(
    ctx: Context, path: str, old_string: str, new_string: str, replace_all: bool = False
) -> str:
    """Replace text in a file. The old text must be there exactly once, unless all are meant.

    Args:
        path: The file, relative to the working directory.
        old_string: The text to replace, exactly as it is in the file, without line numbers.
        new_string: What to put there.
        replace_all: Replace every occurrence.
    """
    old, new = as_bytes(old_string, "`old_string`"), as_bytes(new_string, "`new_string`")
    if not old:
        raise ToolFailed("`old_string` is empty; use `write` for a whole file")
    if old == new:
        raise ToolFailed("`old_string` and `new_string` are the same: there is nothing to do")
    with places(ctx) as opened:
        place = opened.find(path)
        before, status = place.read(TEXT_LIMIT)
        after, count = replaced(path, before, old, new, replace_all)
        replace_unchanged(place, after, status)
    return f"Edited `{path}`: {count} replacement{'s' if count > 1 else ''}."


def replaced(path: str, text: bytes, old: bytes, new: bytes, every: bool) -> tuple[bytes, int]:
    """The text with `old` replaced, and how often; line endings stay those of the text.

    A model writes `\\n`. In a text whose lines end with `\\r\\n` that is what it means.
    """
    crlf = text.count(b"\r\n")
    if crlf and (crlf == text.count(b"\n") or old not in text):
        as_crlf = _with_crlf(old)
        if as_crlf in text:
            old, new = as_crlf, _with_crlf(new)
    count = text.count(old) if every else _occurrences(text, old)
    if count == 0:
        raise ToolFailed(f"`old_string` is not in `{path}`: 0 matches. Read the file again")
    if count > 1 and not every:
        raise ToolFailed(
            f"`old_string` is in `{path}` more than once: {count} matches. "
            "Give more of the text around it, or set `replace_all`"
        )
    return text.replace(old, new), count


def _with_crlf(text: bytes) -> bytes:
    return re.sub(rb"\r?\n", b"\r\n", text)


def _occurrences(text: bytes, part: bytes) -> int:
    """How often a part is there, overlapping ones too."""
    count, at = 0, text.find(part)
    while at >= 0:
        count += 1
        at = text.find(part, at + 1)
    return count


def replace_unchanged(place: Place, content: bytes, status: os.stat_result) -> None:
    """Write a file that was read before, if it is still the same."""
    staged = place.stage(content, status)
    if mark_of(place.status()) != mark_of(status):
        place.drop(staged)
        raise ToolFailed(f"`{place.shown}` was changed meanwhile: read it again")
    place.put(staged)


def path_of(ctx: Context, input: dict[str, Json]) -> list[str]:
    """The one path that a call is about."""
    path = input.get("path", ".")
    if not isinstance(path, str):
        raise ToolFailed("`path` must be text")
    return [real_path(ctx, path)]


READ = tool_from(read, kind="read", paths=path_of)
WRITE = tool_from(write, kind="edit", paths=path_of)
EDIT = tool_from(edit, kind="edit", paths=path_of)
