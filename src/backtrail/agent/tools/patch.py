"""The tool that applies a patch to several files: all of it, or nothing.

Every hunk is held against the files first. Then all new files are written beside their
places, and only then take them; if one cannot, those before it are put back.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from ...events import Json
from .files import TEXT_LIMIT, as_bytes
from .patching import Change, apply_hunks, parse
from .paths import Place, Places, mark_of, places
from .tool import Context, ToolFailed, tool_from

_EXECUTABLE = 0o111


@dataclass(slots=True)
class _Draft:
    """A place that a patch touches: what is there, and what shall be."""

    place: Place
    status: os.stat_result | None
    before: bytes | None
    after: bytes | None
    mode: int | None = None
    staged: bytes | None = None


class _Drafts:
    """The files as they will be, while a patch is held against them."""

    def __init__(self, opened: Places) -> None:
        self._opened = opened
        self._known: dict[str, _Draft] = {}

    def at(self, path: str, *, follow: bool = True) -> _Draft:
        """The draft for a path."""
        place = self._opened.find(path, follow=follow)
        known = self._known.get(place.full)
        if known is None:
            status = place.status()
            content: bytes | None = None
            if status is not None:
                if stat.S_ISLNK(status.st_mode):
                    raise ToolFailed(f"`{path}` is a link; a patch changes plain files only")
                content, status = place.read(TEXT_LIMIT)
            known = self._known[place.full] = _Draft(place, status, content, content)
        return known

    def changed(self) -> list[_Draft]:
        """Those that are not what they were, deletions last."""
        found = [d for d in self._known.values() if d.after != d.before or d.mode is not None]
        return sorted(found, key=lambda draft: draft.after is None)


def apply_patch(ctx: Context, patch: str) -> str:
    """Change several files at once: all of the patch is applied, or nothing.

    The patch is a unified diff, or of the form
    *** Begin Patch
    *** Add File: path      (each line of the new file starts with +)
    *** Update File: path   (optionally followed by *** Move to: path)
    @@ a line above the change, such as a function's head
     three lines before it, each starting with a space
    -old line
    +new line
     three lines after it
    *** Delete File: path
    *** End Patch

    Args:
        patch: The whole patch.
    """
    changes = parse(patch)
    lines: list[str] = []
    with places(ctx) as opened:
        drafts = _Drafts(opened)
        for change in changes:
            lines.append(_draft(drafts, change))
        _carry_out(drafts.changed())
    return "\n".join(lines)


def _draft(drafts: _Drafts, change: Change) -> str:
    """Enter one change into the drafts; what it does, in words."""
    if change.kind == "add":
        draft = drafts.at(change.path)
        if draft.after is not None:
            raise ToolFailed(f"`{change.path}` exists already: update it")
        draft.after = as_bytes(apply_hunks(change, ""), f"`{change.path}`")
        draft.mode = change.mode
        return f"Added `{change.path}`."
    moves = change.kind == "delete" or change.to is not None
    draft = drafts.at(change.path, follow=not moves)
    if draft.after is None:
        raise ToolFailed(f"`{change.path}` does not exist")
    text = draft.after.decode("utf-8", "surrogateescape")
    if change.kind == "delete":
        if change.hunks and apply_hunks(change, text):
            raise ToolFailed(f"`{change.path}` is not what the patch deletes: read it again")
        draft.after = None
        return f"Deleted `{change.path}`."
    content = _encoded(change, apply_hunks(change, text))
    mode = _mode(change, draft)
    if change.to is None:
        draft.after, draft.mode = content, mode
        return f"Updated `{change.path}`."
    target = drafts.at(change.to)
    if target.after is not None:
        raise ToolFailed(f"`{change.to}` exists already: `{change.path}` cannot move there")
    # A file that moves keeps its mode and owner.
    target.status, target.after, target.mode = draft.status, content, mode
    draft.after = None
    return f"Moved `{change.path}` to `{change.to}`."


def _encoded(change: Change, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ToolFailed(f"the patch of `{change.path}` holds a half character") from error


def _mode(change: Change, draft: _Draft) -> int | None:
    """The mode of a file whose patch says whether it can be run; else None."""
    if change.mode is None or draft.status is None:
        return None
    now = stat.S_IMODE(draft.status.st_mode)
    if change.mode & _EXECUTABLE:
        return now | (now & 0o444) >> 2
    return now & ~_EXECUTABLE


def _carry_out(drafts: list[_Draft]) -> None:
    """Write all of it; on any failure put back what was there."""
    made: list[tuple[Place, bytes]] = []
    done: list[_Draft] = []
    try:
        for draft in drafts:
            if draft.after is not None:
                made += [(draft.place, path) for path in draft.place.make_parents()]
                draft.staged = draft.place.stage(draft.after, draft.status, draft.mode)
        for draft in drafts:
            _check_unchanged(draft)
        for draft in drafts:
            done.append(draft)
            if draft.staged is not None:
                draft.place.put(draft.staged)
                draft.staged = None
            else:
                draft.place.drop()
    except BaseException:
        _take_back(drafts, done, made)
        raise


def _check_unchanged(draft: _Draft) -> None:
    expected = draft.status if draft.before is not None else None
    if mark_of(draft.place.status()) != mark_of(expected):
        raise ToolFailed(f"`{draft.place.shown}` was changed meanwhile: read it again")


def _take_back(drafts: list[_Draft], done: list[_Draft], made: list[tuple[Place, bytes]]) -> None:
    for draft in drafts:
        if draft.staged is not None:
            draft.place.drop(draft.staged)
    for draft in reversed(done):
        is_as_before = mark_of(draft.place.status()) == mark_of(draft.status)
        if draft.before is None:
            if draft.place.status() is not None:
                draft.place.drop()
        elif not is_as_before:
            draft.place.put(draft.place.stage(draft.before, draft.status))
    for place, path in reversed(made):
        place.root.directories.forget(path)
        fd, name = place.root.directories.parent(path)
        os.rmdir(name, dir_fd=fd)


def paths_of(ctx: Context, input: dict[str, Json]) -> list[str]:
    """Every path that a patch touches."""
    patch = input.get("patch")
    if not isinstance(patch, str):
        raise ToolFailed("`patch` must be text")
    found: dict[str, None] = {}
    with places(ctx) as opened:
        for change in parse(patch):
            moves = change.kind == "delete" or change.to is not None
            found[opened.find(change.path, follow=not moves).full] = None
            if change.to is not None:
                found[opened.find(change.to).full] = None
    return list(found)


APPLY_PATCH = tool_from(apply_patch, kind="edit", paths=paths_of)
