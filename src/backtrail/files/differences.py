"""What differs between two trees, as people read it: per file, with lines and renames."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from .._startup.frozen import dataclass, field
from ..errors import Damaged, NotFound
from ..events import AsDict, Json
from .names import one_line, shown
from .restore.plan import Step, renames, within
from .textdiff import line_counts, unified
from .trees import Difference, Entry, Get, diff_trees

Status = Literal["added", "deleted", "modified", "renamed", "mode", "type", "not captured"]
"""How a path differs; `type`: a file, link or directory became another of these."""


@dataclass(frozen=True, slots=True)
class FileDiff(AsDict):
    """How one path differs. `insertions` and `deletions` are lines, `text` a unified diff.

    `old_path` is where a renamed file was, or what is not captured and moved; `modes` are
    octal, before and after; `folder` says that the path is a directory, and no file before or
    after.
    """

    path: str
    status: Status
    insertions: int = 0
    deletions: int = 0
    old_path: str | None = None
    modes: tuple[str, str] | None = None
    text: str = ""
    folder: bool = False


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two states of a workspace. As text, a unified diff."""

    files: list[FileDiff] = field(default_factory=list)

    @property
    def insertions(self) -> int:
        """Lines added, over all files."""
        return sum(file.insertions for file in self.files)

    @property
    def deletions(self) -> int:
        """Lines removed, over all files."""
        return sum(file.deletions for file in self.files)

    def to_dict(self) -> dict[str, Json]:
        """The diff as JSON."""
        row: dict[str, Json] = msgspec.to_builtins(self)
        row.update(insertions=self.insertions, deletions=self.deletions)
        return row

    def __bool__(self) -> bool:
        return bool(self.files)

    def __str__(self) -> str:
        return "".join(map(_printed, self.files))


def diff(
    get: Get, before: bytes | None, after: bytes | None, paths: Collection[bytes] | None = None,
    besides: Collection[bytes] = (),
) -> Diff:  # fmt: skip
    """What leads from one tree to another; directories show only where they are all there is.

    Nothing is said of what is `besides`.
    """
    differing = diff_trees(get, before, after)
    found = [d for d in differing if within(d.path, paths) and d.path not in besides]
    return described(get, found)


def described(get: Get, found: Iterable[Difference]) -> Diff:
    """Differences for people: moves as one line, directories only if empty or changed."""
    found, things = _with_moves(list(found))
    moves = renames(found)
    came = {path for path, before, _ in found if before is None and path in moves}
    files = [
        FileDiff(shown(difference.path), "not captured", old_path=shown(things[difference.path]))
        if difference.path in things
        else _described(
            get, difference, moves[difference.path] if difference.path in came else None
        )
        for difference in found
        if not (difference.path in moves and difference.path not in came)
        and not _only_holds(difference, found)
    ]
    return Diff(files)


def _with_moves(found: list[Difference]) -> tuple[list[Difference], dict[bytes, bytes]]:
    """Differences without what left a path for another, and where that came from, by its path."""
    if all(entry is None or entry.kept for _, *both in found for entry in both):
        return found, {}
    from .restore.moves import things_moved

    things = things_moved(found)
    left = set(things.values())
    # What is there now, if anything, came to a free place.
    left_out = [
        d if d.path not in left or d.path in things else d._replace(before=None) for d in found
    ]
    return [d for d in left_out if d.before or d.after], things


def paths_of(found: Iterable[Difference]) -> set[str]:
    """The paths of differences, both names of what moved; directories as in `described`."""
    found = list(found)
    return {shown(difference.path) for difference in found if not _only_holds(difference, found)}


def _only_holds(difference: Difference, found: list[Difference]) -> bool:
    """Whether a directory came or went only because of what is in it."""
    kinds = {entry.kind for entry in (difference.before, difference.after) if entry}
    if kinds != {"directory"} or (difference.before and difference.after):
        return False
    below = difference.path + b"/"
    return any(other.path.startswith(below) for other in found)


def _described(get: Get, difference: Difference, origin: bytes | None) -> FileDiff:
    path, before, after = difference
    name, old_name = shown(path), shown(origin) if origin is not None else None
    if old_name is not None:
        return FileDiff(name, "renamed", old_path=old_name)
    old, new = _content(get, before), _content(get, after)
    plus, minus = line_counts(old or b"", new or b"")
    modes = modes_of(before, after)
    try:
        text = unified(old, new, name, name)
    except ValueError:
        text = ""
    if _is_given_up(before, old) or _is_given_up(after, new):
        plus, minus, text = 0, 0, f"the content of {name} was given up\n"
    return FileDiff(
        name, _status(before, after), plus, minus, None, modes, text, is_folder(before, after)
    )


def modes_of(before: Entry | None, after: Entry | None) -> tuple[str, str] | None:
    """The modes that a path had and has, in octal; None where they are the same."""
    if before is None or after is None or before.kind != after.kind or before.mode == after.mode:
        return None
    return f"{before.mode:o}", f"{after.mode:o}"


def is_folder(before: Entry | None, after: Entry | None) -> bool:
    """Whether a path is a directory, and no file before or after."""
    return {entry.kind for entry in (before, after) if entry is not None} == {"directory"}


def _is_given_up(entry: Entry | None, content: bytes | None) -> bool:
    return entry is not None and entry.kind == "file" and content is None


def _status(before: Entry | None, after: Entry | None) -> Status:
    if (before and not before.kept) or (after and not after.kept):
        return "not captured"
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    if before.kind != after.kind:
        return "type"
    return "modified" if before.value != after.value and before.kind != "directory" else "mode"


def _content(get: Get, entry: Entry | None) -> bytes | None:
    """What a diff shows of an entry: a file's bytes, or the text of a link."""
    if entry is None or not entry.kept or entry.kind == "directory":
        return None
    if entry.kind == "link":
        return entry.value
    try:
        return get(entry.value)
    except (NotFound, Damaged):
        return None


def _printed(file: FileDiff) -> str:
    new = one_line(file.path)
    old = one_line(file.old_path) if file.old_path else new
    lines = [f"diff a/{old} b/{new}\n"]
    if file.status == "renamed":
        lines.append(f"rename from {old}\nrename to {new}\n")
    elif file.old_path:
        lines.append(f"{file.status} {new}, moved from {old}\n")
    elif file.status != "modified":
        lines.append(f"{file.status} {new}\n")
    if file.modes:
        lines.append(f"old mode {file.modes[0]}\nnew mode {file.modes[1]}\n")
    return "".join([*lines, file.text])


def step_counts(get: Get, step: Step) -> tuple[int, int]:
    """Lines a step adds and removes."""
    if step.action == "skip":
        return 0, 0
    return line_counts(_content(get, step.before) or b"", _content(get, step.after) or b"")
