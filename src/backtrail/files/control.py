"""Names that no tree may bring: those of version control, and the marker of a store. Pure.

Whoever can write `.git/config` or `.hg/hgrc` runs commands: at the next `git status`, by a
prompt that shows the branch, by an editor. So no tree may bring such a name, as a file, a link
or a directory, in whatever spelling a file system takes for it: another case, code points that
HFS+ leaves out, NTFS's short names, dots and spaces at the end, streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

CONTROL = frozenset({b".git", b".hg", b".svn", b".jj", b".bzr", b".pijul", b"_darcs"})
CONTROL_FILES = frozenset({b".git", b".fslckout", b"_FOSSIL_"})

_FOLDED = frozenset(name.decode().casefold() for name in CONTROL | CONTROL_FILES)
_SHORT = r"(?:git|hg|svn|jj|bzr|pijul|fslcko)~[0-9]+"
_IGNORED = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF]
)
"""What HFS+ leaves out where it compares names."""


def is_control(name: bytes) -> bool:
    """Whether a name is, or on some file system means, one of version control."""
    # Nearly every name ends here; a tree has many.
    if name[:1] not in _FIRST and b"~" not in name and b"\\" not in name:
        return False
    return _is_folded(name)


_FIRST = frozenset([b".", b"_", *(bytes([byte]) for byte in range(0x80, 0x100))])


@lru_cache(4096)
def _is_folded(name: bytes) -> bool:
    text = name.decode("utf-8", "surrogateescape").translate(_IGNORED).casefold()
    for part in text.split("\\"):
        plain = part.partition(":")[0].rstrip(". ")
        if plain in _FOLDED or ("~" in plain and re.fullmatch(_SHORT, plain)):
            return True
    return False


MARKER = b".backtrail-store"
"""The file that marks the folder of a store. It is in no tree, whether it marks one or not."""


def is_marker(name: bytes) -> bool:
    """Whether a name is, or on some file system means, that of the marker of a store."""
    return name[:1] == b"." and name.lower() == MARKER


def control_in(path: bytes) -> bytes | None:
    """The first name of version control in a path, with what is above it; None without one."""
    at = 0
    for name in path.split(b"/"):
        if is_control(name):
            return path[: at + len(name)]
        at += len(name) + 1
    return None


def is_bare(names: Iterable[bytes]) -> bool:
    """Whether git takes a directory with these names for a repository without a worktree."""
    found = {name.decode("utf-8", "surrogateescape").translate(_IGNORED).casefold()
             for name in names}  # fmt: skip
    return "head" in found and ({"objects", "refs"} <= found or "commondir" in found)
