"""Trees: a directory as a blob. Pure.

A tree lists what is in one directory: names (bytes), kinds, all twelve mode bits, digests.
It is encoded canonically, so equal directories have equal digests, and a whole workspace
state is one digest. What a scan did not enter (*opaque*) or did not keep (*skipped*) is in
the tree too: a restore must know to leave it alone.

    tree    = "BTT1" entry*                      entries sorted by name
    entry   = kind mode size name value          kind: one byte
              u8   u16  u64  u16+bytes u16+bytes

Some names no tree may bring: those of version control, and the marker of a store. A process that
can write `.git/config` or `.hg/hgrc` has commands run: at the next `git status`, by a prompt that
shows the branch, by an editor. So no tree may bring such a name, as a file, a link or a directory,
in whatever spelling a file system takes for it: another case, code points that HFS+ leaves out,
NTFS's short names, dots and spaces at the end, streams.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

from .._startup.frozen import NamedTuple
from .._startup.hashing import sha256
from ..errors import Damaged, NotFound
from .names import shown

MAGIC = b"BTT1"
_HEAD = struct.Struct(">BHQH")
_LENGTH = struct.Struct(">H")

_LONGEST_LINK = 4095
"""Bytes of a path without the zero at its end."""

Kind = Literal["file", "link", "directory", "opaque", "skipped"]

_CODES: dict[Kind, int] = {"file": 1, "link": 2, "directory": 3, "opaque": 4, "skipped": 5}
_KINDS: dict[int, Kind] = {code: kind for kind, code in _CODES.items()}


class Entry(NamedTuple):
    """One name in a directory.

    `value` is the digest of a file's bytes or of a directory's tree, a link's text, or the
    reason why something was not kept. `size` is that of a file.
    """

    kind: Kind
    mode: int
    size: int
    value: bytes

    @property
    def kept(self) -> bool:
        """Whether the content is in the store, so that it can be restored."""
        return self.kind in ("file", "link", "directory")


def alike(a: Entry | None, b: Entry | None) -> bool:
    """Whether two entries are the same thing; a directory's content is not its own."""
    if a is None or b is None:
        return a is b
    if a.kind == b.kind == "directory":
        return a.mode == b.mode
    return (a.kind, a.mode, a.value) == (b.kind, b.mode, b.value)


Tree = dict[bytes, Entry]
"""A directory: its names and what they are."""

Get = Callable[[bytes], bytes]
"""Fetches a blob by its digest."""


def digest_of(data: bytes) -> bytes:
    """The name of a blob."""
    return sha256(data).digest()


class Made(NamedTuple):
    """A tree, and the bytes of each of its entries, in order."""

    tree: Tree
    parts: dict[bytes, bytes]

    def encoded(self) -> bytes:
        """The canonical bytes of the directory."""
        return MAGIC + b"".join(self.parts.values())

    def changed(self, entries: Mapping[bytes, Entry | None]) -> Made:
        """The same with other entries; None is for what is gone."""
        tree, parts = dict(self.tree), dict(self.parts)
        for name, entry in entries.items():
            if entry is None:
                tree.pop(name, None)
                parts.pop(name, None)
            else:
                tree[name] = entry
                parts[name] = _encoded(name, entry)
        if not entries.keys() <= self.parts.keys():
            parts = dict(sorted(parts.items()))
        return Made(tree, parts)


NOTHING = Made({}, {})
"""A directory with nothing in it."""


def _encoded(name: bytes, entry: Entry) -> bytes:
    kind, mode, size, value = entry
    head = _HEAD.pack(_CODES[kind], mode, size, len(name))
    return head + name + _LENGTH.pack(len(value)) + value


def encode_tree(tree: Tree) -> bytes:
    """The canonical bytes of a directory."""
    return NOTHING.changed(tree).encoded()


def parse_tree(data: bytes) -> Tree:
    """The directory that `encode_tree` encoded; `Damaged` if it is not one.

    Names are checked: no data from a store may name a path outside its directory. What bears a
    name of version control is in it, so this is for what never writes a path; see `_read`.
    """
    if data[:4] != MAGIC:
        raise Damaged("not a tree: it does not begin as one")
    tree: Tree = {}
    at, end = 4, len(data)
    last = b""
    try:
        while at < end:
            code, mode, size, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            name = data[at : at + length]
            at += length
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            value = data[at : at + length]
            at += length
            if at > end:
                raise Damaged("not a tree: it ends too early")
            if name <= last:
                raise Damaged("a tree's names are not in order")
            tree[check_name(name)] = _checked(Entry(_KINDS[code], mode, size, value))
            last = name
    except (struct.error, KeyError) as error:
        raise Damaged(f"not a tree: {error}") from error
    return tree


def _checked(entry: Entry) -> Entry:
    """Return `entry` if a scan can have made it."""
    if entry.mode > 0o7777:
        raise Damaged(f"a tree has the mode {entry.mode:o}")
    if entry.kind in ("file", "directory") and len(entry.value) != 32:
        raise Damaged("a tree has a digest of another length")
    if entry.kind == "link" and not is_link_text(entry.value):
        raise Damaged(f"a tree has a link to {entry.value[:40]!r}, which no link can hold")
    return entry


def is_link_text(text: bytes) -> bool:
    """Whether a link can lead there: the system takes no other text."""
    return 0 < len(text) <= _LONGEST_LINK and b"\0" not in text


_decoded: dict[bytes, Tree] = {}
_DECODED = 2048


REFUSED = b"version control, which is never written"
"""The reason of an entry that a tree holds and that is treated as not captured."""


MARKS_A_STORE = b"the marker of a store, which is never written"


def _read(data: bytes) -> Tree:
    """A cached tree; treat the result as read-only.

    What bears a name of version control is opaque here: it can be shown, and not entered. So
    a session that has such a tree stays readable, and what plans a restore refuses it.
    """
    tree = _decoded.get(data)
    return remember(data, _harmless(parse_tree(data))) if tree is None else tree


def _harmless(tree: Tree) -> Tree:
    for name, entry in tree.items():
        if is_control(name) and entry.kept:
            tree[name] = Entry("opaque", entry.mode, 0, REFUSED)
        elif entry.kept and is_marker(name):
            tree[name] = Entry("opaque", entry.mode, 0, MARKS_A_STORE)
    return tree


def remember(data: bytes, tree: Tree) -> Tree:
    """Cache a tree that is not changed any more."""
    if len(_decoded) >= _DECODED:
        _decoded.clear()
    _decoded[data] = tree
    return tree


def check_name(name: bytes) -> bytes:
    """Return `name` if it is one component of a path."""
    # Most file systems take 255 bytes; one in user space may take 1,024.
    if not name or len(name) > 1024 or name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise Damaged(f"{name!r} is not a name in a directory")
    return name


EMPTY = encode_tree({})
EMPTY_DIGEST = bytes.fromhex("2cc4f01bd8aa8b44d4c40da011d29f4b1a7e69b33f134209db542a76ae986bff")
"""The digest of a directory with nothing in it."""


class Difference(NamedTuple):
    """One path that is not the same in two trees; None where there is nothing.

    A directory counts for itself (its being there, its mode), not for what is in it.
    """

    path: bytes
    before: Entry | None
    after: Entry | None


def diff_trees(get: Get, before: bytes | None, after: bytes | None) -> Iterator[Difference]:
    """What differs between two roots, parents before children; only changed parts are read.

    Where a directory became opaque, or an opaque one a directory, it is not known what
    happened to the things in it: they are not listed, and so never look deleted. Only what
    came from elsewhere is not what was there.
    """
    # A stack and not recursion: a directory may lie deeper than Python calls.
    stack = [_pairs(get, b"", before, after)] if before != after else []
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            continue
        path, was, now = step
        a = was.value if was is not None and was.kind == "directory" else None
        b = now.value if now is not None and now.kind == "directory" else None
        if a is None or b is None or was is None or now is None or was.mode != now.mode:
            yield Difference(path, was, now)
        if a != b and not (is_veil(was) or is_veil(now)):
            stack.append(_pairs(get, path + b"/", a, b))


def _pairs(get: Get, prefix: bytes, a: bytes | None, b: bytes | None) -> Iterator[Difference]:
    """The names that differ in two directories, in order."""
    old = _read(get(a)) if a is not None else {}
    new = _read(get(b)) if b is not None else {}
    # Trees that were made one from the other share what is the same: comparing that is quick.
    names = old.keys() - new.keys()
    names |= {name for name, entry in new.items() if old.get(name) != entry}
    for name in sorted(names):
        yield Difference(prefix + name, old.get(name), new.get(name))


def differing(get: Get, known: bytes, tree: bytes) -> str:
    """In which captured paths two states differ, for people; empty if in none.

    What neither has captured may be anything in both, and is never touched.
    """
    if known == tree:
        return ""
    try:
        paths = [
            path
            for path, *states in diff_trees(get, known, tree)
            if any(state is not None and state.kept for state in states)
        ]
    except (NotFound, Damaged):
        return "its content differs"
    few = ", ".join(shown(path) for path in paths[:3])
    count = "1 path differs" if len(paths) == 1 else f"{len(paths)} paths differ"
    return f"{count} ({few}{', …' if len(paths) > 3 else ''})" if paths else ""


UNREADABLE = b"unreadable: "
"""How a reason begins where the system does not let us look; what it says follows."""

MOVED_FROM = b", moved from "
"""How a reason goes on for what came from elsewhere; the place follows."""


def is_veil(entry: Entry | None) -> bool:
    """Whether what is there may be the directory that was."""
    return entry is not None and entry.kind == "opaque" and MOVED_FROM not in entry.value


def flatten(get: Get, root: bytes, prefix: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
    """Every path of a tree, parents before children."""
    stack = [(prefix, iter(_read(get(root)).items()))]
    while stack:
        above, entries = stack[-1]
        name, entry = next(entries, (b"", None))
        if entry is None:
            stack.pop()
            continue
        yield above + name, entry
        if entry.kind == "directory":
            stack.append((above + name + b"/", iter(_read(get(entry.value)).items())))


def look_up(get: Get, root: bytes | None, path: bytes) -> Entry | None:
    """What is at a path of a tree; None if nothing."""
    entry: Entry | None = None
    at = root
    for name in path.split(b"/"):
        if at is None:
            return None
        entry = _read(get(at)).get(name)
        at = entry.value if entry is not None and entry.kind == "directory" else None
    return entry


class Present:
    """What is at the paths of one tree; what was looked up once is known."""

    def __init__(self, get: Get, root: bytes) -> None:
        self._get = get
        self._root = Entry("directory", 0, 0, root)
        self._known: dict[bytes, Entry | None] = {}

    def at(self, path: bytes) -> Entry | None:
        """What is at a path; None if nothing."""
        todo: list[bytes] = []
        at = path
        while at and at not in self._known:
            todo.append(at)
            at = at.rpartition(b"/")[0]
        entry = self._known[at] if at else self._root
        for below in reversed(todo):
            if entry is not None:
                is_directory = entry.kind == "directory"
                name = below.rpartition(b"/")[2]
                entry = look_up(self._get, entry.value, name) if is_directory else None
            self._known[below] = entry
        return entry

    def names(self, directory: Entry) -> list[bytes]:
        """The names in a directory, in order."""
        return list(_read(self._get(directory.value)))


# --- names that no tree may bring --------------------------------------------------------


CONTROL = frozenset({b".git", b".hg", b".sl", b".svn", b".jj", b".bzr", b".pijul", b"_darcs"})
CONTROL_FILES = frozenset({b".git", b".fslckout", b"_FOSSIL_"})

CVS = b"CVS"
"""Only spelled like this: a folder of people's papers may be called otherwise."""

_FOLDED = frozenset(name.decode().casefold() for name in CONTROL | CONTROL_FILES)
_SHORT = r"(?:git|hg|sl|svn|jj|bzr|pijul|fslcko)~[0-9]+"
_IGNORED = (
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
"""What file systems leave out where they compare names: Unicode's default ignorable code points,
as ext4 and f2fs do in folders that fold case. Those of HFS+ are among them."""


def is_control(name: bytes) -> bool:
    """Whether a name is, or on some file system means, one of version control."""
    # Nearly every name ends here; a tree has many.
    if name[:1] not in _FIRST and b"~" not in name and b"\\" not in name:
        return name == CVS
    return _is_folded(name)


_FIRST = frozenset([b".", b"_", *(bytes([byte]) for byte in range(0x80, 0x100))])


@lru_cache(4096)
def _is_folded(name: bytes) -> bool:
    text = re.sub(_IGNORED, "", name.decode("utf-8", "surrogateescape")).casefold()
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
    """Whether git takes a directory with these names for a repository, or CVS for its own."""
    found = {name.decode("utf-8", "surrogateescape").translate(_IGNORED).casefold()
             for name in names}  # fmt: skip
    if {"root", "repository", "entries"} <= found:
        return True
    return "head" in found and ({"objects", "refs"} <= found or "commondir" in found)
