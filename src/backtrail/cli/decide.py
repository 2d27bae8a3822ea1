"""Asking a person about each file in conflict: keep it, merge, write beside it, overwrite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..files.names import one_line
from .picker import choose
from .wording import brief

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..files.restore.conflicts import OnConflict
    from ..session.session import Session
    from ..session.views import FileChange, Rewind
    from .call import Call


def asked_for(call: Call) -> OnConflict | None:
    """What `--on-conflict` says; None where it was not given."""
    choice: OnConflict | None = getattr(call.arguments, "on_conflict", None)
    return choice


def decide(
    call: Call, session: Session, plan: Rewind, preview: Callable[[dict[str, OnConflict]], Rewind]
) -> dict[str, OnConflict]:
    """What the person wants done with each conflict of a plan; Enter alone keeps the file."""
    paths = [file.path for file in plan.conflicts]
    merged = {file.path: file for file in preview(dict.fromkeys(paths, "merge")).files}
    found: dict[str, OnConflict] = {}
    for file in plan.conflicts:
        found[file.path] = _asked(call, session, plan, file, merged.get(file.path, file))
    return found


def _asked(
    call: Call, session: Session, plan: Rewind, file: FileChange, merged: FileChange
) -> OnConflict:
    choices: list[OnConflict] = ["keep", "merge", "aside", "overwrite"]
    name = brief(one_line(file.path), 200)
    if merged.action == "conflict":
        choices.remove("merge")
        call.out.note(f"{name} cannot be merged: {one_line(merged.no_merge or merged.reason)}")
    words = [*choices, "diff"]
    named = ", ".join(f"[{word[0]}]{word[1:]}" for word in words[:-1])
    question = f"{name} ({one_line(file.reason)}): {named} or [d]iff?"
    while True:
        answer = choose(call.out, question, words)
        if answer != "diff":
            return next((word for word in choices if word == answer), "keep")
        show_difference(call, session, plan, file)


def show_difference(call: Call, session: Session, plan: Rewind, file: FileChange) -> None:
    """How a file in conflict differs from what it was at the point that is gone back to."""
    from .hunks import print_diff

    path = f"{session.info().root}/{file.path}"
    with call.out.paged():
        print_diff(call.out, session.diff(plan.cut or 0, paths=[path]).files)
