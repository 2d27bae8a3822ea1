"""Commands that are printed for people to type.

Each is quoted for a shell and has the options that this run had, so that it means the same
session in the same store.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from .._startup.shell import joined
from ..errors import NotFound

if TYPE_CHECKING:
    from ..events import Checkpoint
    from ..session.session import Session
    from .call import Call

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
