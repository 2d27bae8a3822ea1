"""Commands that are printed for people to type, and work as they are printed.

Each is quoted for a shell and has the options of this run, so that it means the same session in
the same store. `decisions` are those for files that were kept from going back.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from .._startup.frozen import dataclass
from .._startup.shell import joined
from ..errors import NotFound
from ..files.names import one_line
from .wording import brief, things

if TYPE_CHECKING:
    from ..events import Checkpoint
    from ..files.restore.conflicts import OnConflict
    from ..session.fileplans import Mode
    from ..session.session import Session
    from ..session.views import FileChange, Rewind
    from .call import Call


_MOST = 5
_FACTS = ("since", "between")


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice that works for a file that was kept, and the command that makes it.

    `why` says why the session's changes cannot be taken out of it; empty where they can.
    `does` is what the command does then. Where nothing works, both are empty.
    """

    path: str
    command: str
    why: str = ""
    does: str = ""


_TRIES: tuple[tuple[OnConflict, Mode], ...] = (
    ("merge", "mine"),
    ("overwrite", "mine"),
    ("keep", "exact"),
    ("aside", "mine"),
)
"""What may work, the one that leaves most first."""


def decisions(
    call: Call, session: Session, result: Rewind, turn: int | None = None
) -> list[Decision]:
    """For each file that was kept what can be done about it, as a preview finds.

    `turn` is the prompt of the one turn that was to be taken out.
    """
    from ..files.names import hidden

    earlier = session.store.read(session.id, until=result.cut, reverse=True) if result.cut else ()
    # A checkpoint may stand for any earlier event.
    point = next((event.seq for event in earlier if event.kind != "checkpoint"), None)
    if point is None and turn is None:
        return []
    root = os.path.realpath(session.info().root or ".")
    names = {file.path: os.fsdecode(hidden(file.path)) for file in result.conflicts}
    found: dict[str, Decision] = {}
    whys: dict[str, str] = {}
    for choice, mode in _TRIES:
        left = [path for path in names if path not in found]
        if not left or (mode == "exact" and turn is not None):
            continue
        full = [f"{root}/{names[path]}" for path in left]
        try:
            plan = session.rewind(
                None if turn else point, turn=turn, scope="files", mode=mode, paths=full,
                on_conflict=choice, dry_run=True, force=True,
            )  # fmt: skip
        except NotFound:
            # All of that point is not known, as the last resort needs it.
            continue
        if mode == "exact" and plan.error is not None:
            continue
        last = ["--force"] if any(one.endswith("unless by force") for one in plan.warnings) else []
        last += ["--yes"] if _is_sure(call) else []
        how = ["--mode", "exact"] if mode == "exact" else ["--on-conflict", choice]
        files = {file.path: file for file in plan.files}
        for path in left:
            does = _does(choice, path, plan, whys.get(path, ""))
            if does is None:
                file = files.get(path)
                whys.setdefault(path, file.no_merge or file.reason if file else "")
                continue
            name = _from_here(root, names[path])
            if turn is None:
                words = ["restore", name, "--at", str(point), *how, *last]
            else:
                words = ["rewind", "--turn", str(turn), *how, *last, "--", name]
            command = hint(call, *words, session=session.id)
            found[path] = Decision(path, command, whys.get(path, ""), does)
    none = {path: Decision(path, "", whys[path]) for path in names if path not in found}
    return [(found | none)[path] for path in names]


def _does(choice: OnConflict, path: str, plan: Rewind, why: str) -> str | None:
    """What a try does to a path, in words; None where it leaves it as it is."""
    from ..files.restore.conflicts import FOLDER, GONE

    file = next((file for file in plan.files if file.path == path), None)
    if choice == "merge":
        return None if file is not None and file.action == "conflict" else ""
    if choice == "aside":
        beside = any(one.acts and one.reason == f"beside {path}" for one in plan.files)
        return "write what was there then beside it" if beside else None
    if file is None or not file.acts:
        return None
    then = "put back what was there then"
    if why == FOLDER:
        folder = "remove the folder with all that is in it"
        return folder if file.action == "delete" else f"{folder} and {then}"
    if file.action == "delete":
        return "delete it, with whatever others wrote in it"
    return then if why == GONE else f"{then} and remove whatever others made of it since"


def advise(call: Call, kept: list[FileChange], found: list[Decision]) -> None:
    """Say how to decide on what was kept."""
    it = "it" if len(kept) == 1 else "them"
    call.out.note(f"{things(file.folder for file in kept)} kept, {_because(kept, it)}.")
    merges = [one for one in found if one.command and not one.why]
    if merges:
        them = "it" if len(merges) == 1 else "them"
        _list(call, merges, f"To take the session's changes out of {them}, leaving what others "
                            "wrote:")  # fmt: skip
        call.out.note("`aside` or `overwrite` in place of `merge` decide otherwise")
    others = [one for one in found if one.why or not one.command]
    for one in others[:_MOST]:
        why = (
            f"{brief(one_line(one.path), 200)} cannot be merged: {one_line(one.why)}".removesuffix(
                ": "
            )
        )
        if one.command:
            _list(call, [one], f"{why}. To {one.does} (`undo` takes that back):")
        else:
            call.out.note(f"{why}. No command puts back what was there then.")
    if len(others) > _MOST:
        call.out.note(f"… and so on for {len(others) - _MOST} more; --json lists all")


def _because(kept: list[FileChange], it: str) -> str:
    """Why files were kept, as far as it is known."""
    if all(file.code in _FACTS for file in kept):
        return f"because others changed {it}"
    if any(file.code in ("later", "held") for file in kept):
        return "for the reasons above"
    return f"because others may have changed {it}"


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


_BY_PLACE = frozenset({"log", "resume", "show"})
"""Verbs that take the session as an argument; the others have `--session`."""


def hint(call: Call, verb: str, *words: str, session: str | None = None) -> str:
    """The command that runs a verb on a session; as short as it may be for people."""
    if call.verb == "chat" and verb != "restore":
        return " ".join((f"/{verb}", *words))
    given = call.arguments
    options: list[str] = []
    named = getattr(given, "session", None) not in (None, "latest")
    if session is not None and (call.out.as_json or named):
        options += [session] if verb in _BY_PLACE else ["--session", session]
    if getattr(given, "store", None):
        options += ["--store", given.store]
    at = words.index("--") if "--" in words else len(words)
    return joined(["backtrail", verb, *words[:at], *options, *words[at:]])


def point_name(call: Call, session: Session, point: Checkpoint) -> str:
    """What finds a checkpoint again: its label if that means it and nothing else, else its id."""
    label = point.label
    if label and label.isprintable() and not label.startswith("-"):
        with suppress(NotFound):
            if call.point(session, label).id == point.id:
                return label
    return point.id
