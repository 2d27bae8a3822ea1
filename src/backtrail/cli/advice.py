"""What to do about files that were kept from going back: commands that work as they are printed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from ..frozen import dataclass
from .hints import hint
from .wording import brief, plural

if TYPE_CHECKING:
    from ..session import Session
    from ..views import FileChange, Rewind
    from .call import Call

_MOST = 5
_FACTS = ("since", "between")


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice that works for a file that was kept, and the command that makes it.

    `why` says why the session's changes cannot be taken out of it; empty where they can.
    `action` is what happens to it then.
    """

    path: str
    command: str
    why: str = ""
    action: str = "merge"


def decisions(call: Call, session: Session, result: Rewind) -> list[Decision]:
    """For each file that was kept what can be done about it, as a preview finds."""
    from ..files.names import hidden

    earlier = session.store.read(session.id, until=result.cut, reverse=True) if result.cut else ()
    # A checkpoint may stand for any earlier event.
    point = next((event.seq for event in earlier if event.kind != "checkpoint"), None)
    if point is None:
        return []
    root = os.path.realpath(session.info().root or ".")
    paths = {file.path: os.fsdecode(hidden(file.path)) for file in result.conflicts}

    def plan(choice: Literal["merge", "overwrite"]) -> tuple[dict[str, FileChange], bool]:
        full = [f"{root}/{path}" for path in paths.values()]
        found = session.rewind(
            point, scope="files", paths=full, on_conflict=choice, dry_run=True, force=True
        )
        busy = any(warning.endswith("unless by force") for warning in found.warnings)
        return {file.path: file for file in found.files}, busy

    merged, busy = plan("merge")
    held = [path for path in paths if path in merged and merged[path].action == "conflict"]
    written, _ = plan("overwrite") if held else ({}, busy)
    found: list[Decision] = []
    for path, name in paths.items():
        words = [_from_here(root, name), "--at", str(point), "--on-conflict"]
        last = [*(["--force"] if busy else []), *(["--yes"] if _is_sure(call) else [])]
        if path not in held:
            command = hint(call, "restore", *words, "merge", *last, session=session.id)
            found.append(Decision(path, command))
        elif path in written and written[path].acts:
            command = hint(call, "restore", *words, "overwrite", *last, session=session.id)
            because = merged[path].no_merge or merged[path].reason
            found.append(Decision(path, command, because, written[path].action))
    return found


def advise(call: Call, kept: list[FileChange], found: list[Decision]) -> None:
    """Say how to decide on what was kept."""
    it = "it" if len(kept) == 1 else "them"
    call.out.note(f"{plural(len(kept), 'file')} kept, {_because(kept, it)}.")
    merges = [one for one in found if not one.why]
    if merges:
        them = "it" if len(merges) == 1 else "them"
        _list(call, merges, f"To take the session's changes out of {them}, leaving what others "
                            "wrote:")  # fmt: skip
        call.out.note("`aside` or `overwrite` in place of `merge` decide otherwise")
    others = [one for one in found if one.why]
    for one in others[:_MOST]:
        does = "deletes it" if one.action == "delete" else "makes it as it was then"
        _list(call, [one], f"{brief(one.path, 200)} cannot be merged: {one.why}. This {does}, with "
                           "all that others wrote in it; `undo` brings that back:")  # fmt: skip
    if len(others) > _MOST:
        call.out.note(f"… and so on for {len(others) - _MOST} more; --json lists all")


def _because(kept: list[FileChange], it: str) -> str:
    """Why files were kept, as far as it is known."""
    if all(file.code in _FACTS for file in kept):
        return f"because somebody else changed {it}"
    if any(file.code == "later" for file in kept):
        return "for the reasons above"
    return f"because somebody else may have changed {it}"


def _list(call: Call, found: list[Decision], words: str) -> None:
    call.out.note(words)
    for one in found[:_MOST]:
        call.out.note(f"  {one.command}")
    if len(found) > _MOST:
        call.out.note(f"  … and so on for {len(found) - _MOST} more; --json lists all")


def _from_here(root: str, path: str) -> str:
    """A path below the root as a person types it here."""
    here = os.path.realpath(".")
    if here == root or here.startswith(root.rstrip("/") + "/"):
        path = os.path.relpath(f"{root}/{path}", here)
    return f"./{path}" if path.startswith("-") else path


def _is_sure(call: Call) -> bool:
    return bool(getattr(call.arguments, "yes", False))
