"""Paths as text and back. On disk they are bytes; in events and for people they are text.

Nearly every path is UTF-8 without a backslash and stands as it is. In any other, a
backslash is doubled and a byte that is no UTF-8 is written `\\xff`, so that no two paths
look the same and each can be read back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from itertools import count

from ..errors import Unsafe

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One path or several, as a caller may name them."""

LONGEST = 255
"""Bytes of a name, on nearly every file system."""

_ESCAPED = r"\\(\\|x[89a-f][0-9a-f])"
"""What `shown` writes; a byte below 0x80 is text, so `\\x41` stands for itself."""


def shown(path: bytes) -> str:
    """A path as text."""
    try:
        text = path.decode()
        if "\\" not in text:
            return text
    except UnicodeDecodeError:
        text = path.decode("utf-8", "surrogateescape")
    return (
        text.replace("\\", "\\\\")
        .encode("utf-8", "surrogateescape")
        .decode("utf-8", "backslashreplace")
    )


def one_line(name: str) -> str:
    """A path as text on one line: a new line or a tab in it is shown and not obeyed."""
    return name.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def hidden(text: str) -> bytes:
    """The path that `shown` made this text of."""
    if "\\" not in text:
        return text.encode()

    def plain(match: re.Match[str]) -> str:
        what = match.group(1)
        return "\\" if what == "\\" else chr(0xDC00 + int(what[1:], 16))

    return re.sub(_ESCAPED, plain, text).encode("utf-8", "surrogateescape")


def meant(
    root: bytes, path: str | bytes | os.PathLike[str], is_known: Callable[[bytes], bool]
) -> bytes:
    """`inside`, for a caller that may have copied the path from what `shown` made of it.

    The text stands for itself where a file of that very name is known.
    """
    named = inside(root, path)
    text = os.fspath(path)
    if isinstance(text, bytes) or "\\" not in text or is_known(named):
        return named
    return inside(root, hidden(text))


def inside(root: bytes, path: str | bytes | os.PathLike[str]) -> bytes:
    """A path that a caller named, relative to the root; `Unsafe` if it leads out of it."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise Unsafe(f"{path!r} is no path: no file has such a name") from None
    if b"\0" in raw:
        raise Unsafe(f"{path!r} is no path: no file has such a name")
    full = os.path.normpath(os.path.join(root, raw))
    if full == root:
        return b""
    if not full.startswith(root.rstrip(b"/") + b"/"):
        # The root is a real path; the caller may have come to it by a link.
        folder, name = os.path.split(full)
        full = os.path.join(os.path.realpath(folder), name)
        if not full.startswith(root.rstrip(b"/") + b"/"):
            raise Unsafe(f"{os.fsdecode(raw)} is outside the workspace {os.fsdecode(root)}")
    return full[len(root.rstrip(b"/")) + 1 :]


def several(paths: Paths) -> Iterable[str | os.PathLike[str]]:
    """Paths that a caller names; one alone is a list of one, not of its letters."""
    return [paths] if isinstance(paths, (str, bytes, os.PathLike)) else paths


def beside(path: bytes, suffix: bytes, is_free: Callable[[bytes], bool]) -> bytes:
    """A free path in the same folder: the name with a suffix, cut to what a name may have."""
    above, slash, name = path.rpartition(b"/")
    for number in count(1):
        end = suffix if number == 1 else suffix + b"-%d" % number
        found = above + slash + _cut(name, LONGEST - len(end)) + end
        if is_free(found):
            return found
    raise AssertionError


def _cut(name: bytes, length: int) -> bytes:
    """The beginning of a name, without half a letter at its end."""
    if len(name) <= length:
        return name
    while length and name[length] & 0xC0 == 0x80:
        length -= 1
    return name[:length]


class Anywhere(list[str]):
    """Paths that an agent's tool names, of which some may lie outside of the workspace.

    Of a caller's own list that is a mistake, and refused; an agent's tool runs all the same.
    """


def declared(root: bytes, paths: Paths) -> tuple[list[bytes] | None, list[str]]:
    """The paths that a call says it will touch: below the root, and outside of it.

    The first are relative to the root, None for anything. Behind a link it is the target that
    changes, so that counts too.
    """
    found: dict[bytes, None] = {}
    outside: dict[str, None] = {}
    for path in several(paths):
        try:
            named = inside(root, path)
        except Unsafe:
            outside[shown(os.path.realpath(os.path.join(root, os.fsencode(path))))] = None
            continue
        found[named] = None
        full = os.path.join(root, named)
        real = os.path.realpath(full)
        if real == root:
            return None, list(outside)
        if real.startswith(root.rstrip(b"/") + b"/"):
            found[real[len(root.rstrip(b"/")) + 1 :]] = None
        else:
            outside[shown(real)] = None
    return list(found), list(outside)


RESTORING = "unfinished"
"""The name that is beside the catalogue while it has the journal of a restore."""

RESERVED = b".backtrail-tmp-"
"""How the names begin that a restore builds new things under; an id follows."""

_RESERVED = re.escape(RESERVED) + rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def is_reserved(name: bytes) -> bool:
    """Whether a name is one that a restore uses: such a thing is in no tree."""
    return name.startswith(RESERVED) and re.fullmatch(_RESERVED, name) is not None
