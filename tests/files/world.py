"""A workspace to play with: random edits by several hands, and an independent look at it."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where files are in memory, if anywhere: hundreds of histories would wait for a disk."""

Seen = dict[str, tuple[str, int, bytes]]
"""What is there: path to kind, mode and content."""


def look(root: Path) -> Seen:
    """The workspace as the operating system shows it, without any code under test."""
    found: Seen = {}
    if not root.exists():
        return found
    for folder, directories, files in os.walk(root):
        for name in [*directories, *files]:
            path = Path(folder, name)
            status = path.lstat()
            mode = stat.S_IMODE(status.st_mode)
            key = str(path.relative_to(root))
            if stat.S_ISLNK(status.st_mode):
                found[key] = ("link", 0, os.fsencode(os.readlink(path)))
            elif stat.S_ISDIR(status.st_mode):
                found[key] = ("directory", mode, b"")
            else:
                found[key] = ("file", mode, path.read_bytes())
    return found


@dataclass(frozen=True)
class Edit:
    """One change of the files."""

    verb: Literal["write", "append", "delete", "mkdir", "link", "chmod", "rename"]
    path: str
    text: str = ""
    mode: int = 0o644
    to: str = ""


PATHS = ["a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "f/g"]


def edits() -> st.SearchStrategy[Edit]:
    """Random edits that often meet each other."""
    return st.builds(
        Edit,
        verb=st.sampled_from(
            ["write", "write", "append", "delete", "mkdir", "link", "chmod", "rename"]
        ),
        path=st.sampled_from(PATHS),
        text=st.sampled_from(["1\n", "2\n", "one\ntwo\n", "", "no newline"]),
        mode=st.sampled_from([0o600, 0o644, 0o755, 0o4755, 0o700]),
        to=st.sampled_from(PATHS),
    )


def _clear(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _make_room(root: Path, path: Path) -> None:
    """Directories above, whatever was there before."""
    for parent in reversed(path.relative_to(root).parents):
        at = root / parent
        if at.is_symlink() or not at.is_dir():
            _clear(at)
            at.mkdir()


def do(root: Path, edit: Edit) -> None:
    """Carry out an edit, as rough tools do: what is in the way goes."""
    path = root / edit.path
    if edit.verb == "delete":
        _clear(path)
        return
    if edit.verb == "chmod":
        if path.exists() and not path.is_symlink():
            path.chmod(edit.mode | (0o700 if path.is_dir() else 0))
        return
    if edit.verb == "rename":
        target = root / edit.to
        inside = edit.to.startswith(edit.path + "/") or edit.path.startswith(edit.to + "/")
        if (path.exists() or path.is_symlink()) and edit.to != edit.path and not inside:
            _make_room(root, target)
            _clear(target)
            if path.exists() or path.is_symlink():
                path.rename(target)
        return
    _make_room(root, path)
    if edit.verb == "append" and path.is_file() and not path.is_symlink():
        with path.open("a") as file:
            file.write(edit.text)
        return
    _clear(path)
    if edit.verb == "mkdir":
        path.mkdir()
    elif edit.verb == "link":
        path.symlink_to(edit.text.strip() or "nowhere")
    else:
        path.write_text(edit.text)


@dataclass
class Writers:
    """Who wrote last what is on the disk."""

    last: dict[str, str] = field(default_factory=dict)
    ever: list[tuple[str, str, object]] = field(default_factory=list)

    def note(self, before: Seen, after: Seen, who: str) -> None:
        """Whatever differs was written by `who`."""
        for path in after:
            if before.get(path) != after[path]:
                self.last[path] = who
                self.ever.append((who, path, after[path]))
        for path in set(before) - set(after):
            self.last.pop(path, None)

    def newest(self, path: str, besides: tuple[str, ...]) -> object:
        """What was written last at a path, by all but some."""
        found = [content for who, at, content in self.ever if at == path and who not in besides]
        return found[-1] if found else None
