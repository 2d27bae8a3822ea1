"""A wide world for histories: things that are not captured, odd names, two roots, two stores.

Every content is a token of its own, so the test knows who wrote each line. What it expects
is a plain dictionary of the files, looked at without any code under test.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st

LIMIT = 64
"""Bytes above which a file is not captured here."""

Seen = dict[bytes, tuple[str, int, bytes]]
"""What is there: path to kind, mode and content."""

Verb = Literal["write", "append", "grow", "delete", "mkdir", "link", "chmod", "rename", "fifo"]

LONG = "n" * 255
ODD = os.fsdecode(b"odd \xff\\x41\n")
OPAQUE = ("node_modules", ".git")
PATHS = [
    "a", "b", ODD, LONG, "d/x", "d/e/z", "pkg/m", "pkg/n", "node_modules", ".git",
    "node_modules/t", ".git/t", "d/node_modules/q",
]  # fmt: skip
NESTED = ["pkg/m", "pkg/n", "pkg/in/o", "pkg/node_modules/p"]
TARGETS = ["a", "b", "moved/g", "pkg/n"]


@dataclass(frozen=True)
class Edit:
    """One change; `where` and `to` are numbers, as each hand has other paths."""

    verb: Verb
    where: int
    to: int = 0
    mode: int = 0o644


def edits() -> st.SearchStrategy[Edit]:
    verbs: list[Verb] = ["write", "write", "append", "append", "grow", "delete", "mkdir"]
    verbs += ["link", "chmod", "rename", "rename", "fifo"]
    return st.builds(
        Edit, st.sampled_from(verbs), st.integers(0, 12), st.integers(0, 3),
        st.sampled_from([0o600, 0o644, 0o755, 0o4755, 0o444, 0o000]),
    )  # fmt: skip


def look(root: Path) -> Seen:
    """The files as the system shows them."""
    found: Seen = {}
    todo = [os.fsencode(root)]
    while todo:
        folder = todo.pop()
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            key = os.path.relpath(path, os.fsencode(root))
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                found[key] = ("link", 0, os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                found[key] = ("directory", mode, b"")
                todo.append(path)
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    found[key] = ("file", mode, file.read())
            else:
                found[key] = ("pipe", mode, b"")
    return found


def tokens(content: bytes) -> set[bytes]:
    """The tokens in a content, one a line."""
    return {line.strip() for line in content.split(b"\n") if line.strip()}


def not_captured(seen: Seen) -> set[bytes]:
    """The tokens that lie where nothing is captured: by a name, or in what is too large."""
    found: set[bytes] = set()
    for path, (kind, _, content) in seen.items():
        above = path.split(b"/")[:-1]
        hidden = any(os.fsencode(name) in above for name in OPAQUE)
        if kind == "file" and (hidden or len(content) > LIMIT):
            found |= tokens(content)
    return found


def present(seen: Seen) -> set[bytes]:
    """All tokens that are there."""
    return {token for _, _, content in seen.values() for token in tokens(content)}


@dataclass
class Hands:
    """Carries edits out, and remembers who wrote which token."""

    root: Path
    authors: dict[bytes, str] = field(default_factory=dict)
    last: dict[bytes, str] = field(default_factory=dict)
    left: list[tuple[str, bytes, object]] = field(default_factory=list)
    count: int = 0

    def do(self, who: str, edit: Edit, paths: list[str]) -> None:
        path = self.root / paths[edit.where % len(paths)]
        if edit.verb == "delete":
            _clear(path)
        elif edit.verb == "chmod":
            if path.exists() and not path.is_symlink():
                path.chmod(edit.mode | (0o700 if path.is_dir() else 0))
        elif edit.verb == "rename":
            self._rename(path, TARGETS[edit.to] if paths is PATHS else "pkg/n")
        else:
            self._make(who, edit, path)

    def _rename(self, path: Path, to: str) -> None:
        target = self.root / to
        inside = any(part in OPAQUE for part in path.relative_to(self.root).parts[:-1])
        if inside or target == path or not (path.exists() or path.is_symlink()):
            return
        for above in reversed(target.relative_to(self.root).parents):
            (self.root / above).mkdir(exist_ok=True)
        _clear(target)
        path.rename(target)

    def _make(self, who: str, edit: Edit, path: Path) -> None:
        for above in reversed(path.relative_to(self.root).parents):
            at = self.root / above
            if at.is_symlink() or not at.is_dir():
                _clear(at)
                at.mkdir()
        text = self._token(who)
        if edit.verb == "append" and path.is_file() and not path.is_symlink():
            with path.open("ab") as file:
                file.write(text)
            return
        _clear(path)
        if edit.verb == "mkdir":
            path.mkdir()
        elif edit.verb == "fifo":
            os.mkfifo(path)
        elif edit.verb == "link":
            path.symlink_to(os.fsdecode(text.strip()))
        else:
            path.write_bytes(text * (1 if edit.verb != "grow" else LIMIT))

    def _token(self, who: str) -> bytes:
        self.count += 1
        token = f"{who}-{self.count}".encode()
        self.authors[token] = who
        return token + b"\n"

    def note(self, who: str, before: Seen, after: Seen) -> None:
        """Whatever differs was written by `who`."""
        for path in after:
            if before.get(path) != after[path]:
                self.last[path] = who
                self.left.append((who, path, after[path]))
        for path in before.keys() - after.keys():
            self.last.pop(path, None)

    def others(self, seen: Seen, mine: str) -> Iterator[tuple[bytes, set[bytes]]]:
        """The files that others wrote last, and did not merely bring back, with their tokens."""
        for path, (kind, mode, content) in seen.items():
            last = self.last.get(path, mine)
            if last in (mine, "both") or kind == "directory":
                continue
            own = [what for who, at, what in self.left if at == path and who in (mine, "both")]
            if own and own[-1] == (kind, mode, content):
                continue
            theirs = {t for t in tokens(content) if self.authors.get(t, mine) not in (mine, "both")}
            yield path, theirs


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists() or path.is_symlink():
        path.unlink()
