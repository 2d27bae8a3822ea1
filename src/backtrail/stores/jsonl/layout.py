"""Where things are in a JSONL session's folder; no name or link leads out of it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from ...errors import InvalidId, Unsafe
from ...events import MAIN_LOG, check_log
from ..notes import note_name

MAIN_FILE = f"{MAIN_LOG}.jsonl"


def clear(path: Path) -> None:
    """Remove what is in a session's folder, links as links, and nothing above it."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                clear(Path(entry.path))
                os.rmdir(entry.path)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)


def is_session(path: str | Path) -> bool:
    """Whether `path` is a folder, not a link to one, that has a main log."""
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return False
        return stat.S_ISREG(os.lstat(f"{path}/{MAIN_FILE}").st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def log_path(folder: Path, log: str) -> Path:
    """The file of a log, from its checked name."""
    if log == MAIN_LOG:
        return folder / MAIN_FILE
    *parents, name = check_log(log).split("/")
    path = folder.joinpath(*map(_as_folder, parents), f"{name}.jsonl")
    if "/" in log:
        for above in path.relative_to(folder).parents:
            if (folder / above).is_symlink():
                raise Unsafe(
                    f"log `{log}` of session `{folder.name}` lies behind a link: remove it"
                )
    return path


def _as_folder(part: str) -> str:
    """A part of a log's name as a folder that no file of the session can be."""
    taken = part in ("lock", "lease") or part.endswith((".json", ".jsonl"))
    return f"{part}%" if taken else part


def log_names(folder: str | Path, prefix: str = "") -> list[str]:
    """The logs in a folder, sorted; names that no log can have are left out."""
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner = f"{prefix}{entry.name.removesuffix('%')}/"
                with suppress(FileNotFoundError):
                    names.extend(log_names(entry.path, inner))
            elif entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False):
                try:
                    if entry.name != MAIN_FILE and not entry.stat().st_size:
                        # Made for a first event that was refused.
                        continue
                except FileNotFoundError:
                    # Removed meanwhile.
                    continue
                name = prefix + entry.name.removesuffix(".jsonl")
                try:
                    names.append(check_log(name))
                except InvalidId:
                    continue
    return sorted(names)


def scope_folder(scope: str) -> str:
    """A scope as one path component that no other scope shares."""
    name = "".join(
        char if char.isascii() and char.isalnum() else "".join(f"%{b:02X}" for b in char.encode())
        for char in scope
    )
    return name if len(name) <= 200 else f"{name[:100]}-{note_name(scope)}"
