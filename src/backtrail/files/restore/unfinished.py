"""Restores that a crash cut short, as a process that opens or reads a session finds them.

A mark beside the contents says that some restore has begun and none of these is known to be
over: so opening a session looks at one name, and at the catalogue only where there is it.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

from ...errors import BacktrailError, SessionBusy
from ...events import Problem
from ...stores.base import Store
from ...stores.wrapper import unwrapped
from ..names import RESTORING, shown
from ..workspace.machine import identity_at

if TYPE_CHECKING:
    from ..changes.brackets import Place
    from ..changes.catalogue import Catalogue

LOG = "files"

UNDER_WAY = "under way"
"""What a session's problem is called where a restore is at work now."""

CUT_SHORT = "restore"
"""What it is called where one was cut short, or was finished and left something to say."""


def is_marked(store: Store) -> bool:
    """Whether a restore may have been cut short in any directory that a store watches over."""
    contents = unwrapped(store).contents
    return contents is not None and os.access(f"{contents}/{RESTORING}", os.F_OK)


def at_opening(
    store: Store, session_id: str, *, files: bool, cwd: str | os.PathLike[str] | None = None
) -> list[Problem]:
    """Finish a restore that was cut short in a session's folder; what is to be said of it.

    A caller that does not watch over the `files` only says that it is not finished. `cwd` is where
    a caller says that the folder is now.
    """
    if not is_marked(store):
        return []
    info = store.info(session_id)
    root = info.root or info.cwd
    if cwd is not None and (root is None or not os.path.isdir(root)):
        root = os.fspath(cwd)
    if root is None:
        return []
    if not files:
        return [Problem(session_id, LOG, CUT_SHORT, note) for note in found(store, root)]
    return [Problem(session_id, LOG, what, detail) for what, detail in finish(store, root)]


def finish(store: Store, root: str) -> list[tuple[str, str]]:
    """Finish the restores of a directory, and of those above and below, that were cut short.

    No process is waited for: where one is at work now, it is named.
    """
    if not is_marked(store):
        return []
    from ..depot import opened

    left: list[tuple[str, str]] = []
    with opened(store) as depot:
        try:
            for path, _ in _concerning(depot.catalogue, root):
                if path is None:
                    # It is not there, or another one is: the next use of it says so.
                    continue
                with closing(depot.workspace(path, store)) as here:
                    try:
                        here.recover(store, wait=0)
                        left += [(CUT_SHORT, note) for note in here.problems]
                    except SessionBusy as busy:
                        text = f"a rewind of {here.path} is under way by {busy.owner}"
                        left.append((UNDER_WAY, text))
        except BacktrailError as error:
            left.append((CUT_SHORT, f"a restore of {root} was cut short: {error}"))
    return left


def found(store: Store, root: str) -> list[str]:
    """What a mere reader says: the restores of a directory that are not finished, or under way."""
    if not is_marked(store):
        return []
    from ..depot import opened

    with opened(store) as depot:
        try:
            places = [place for _, place in _concerning(depot.catalogue, root)]
        except BacktrailError as error:
            return [str(error)]
    return [described(shown(place.path)) for place in places]


def described(path: str) -> str:
    """That a restore of a directory is not finished, in words."""
    return (
        f"a rewind of {path} is not finished: files and conversation are between two states until "
        "the session is opened there (`backtrail status`)"
    )


def _concerning(catalogue: Catalogue, root: str) -> list[tuple[str | None, Place]]:
    """The restores that were cut short in, above or below a directory, and where each is now."""
    found: list[tuple[str | None, Place]] = []
    here = os.fsencode(os.path.realpath(root))
    which = identity_at(here)
    for place in catalogue.unfinished():
        if which is not None and which.is_same(place.identity):
            # Perhaps it was moved.
            found.append((os.fsdecode(here), place))
        elif _is_in(here, place.path) or _is_in(place.path, here):
            there = identity_at(place.path)
            same = there is not None and there.is_same(place.identity)
            found.append((os.fsdecode(place.path) if same else None, place))
    return found


def _is_in(path: bytes, other: bytes) -> bool:
    return path == other or path.startswith(other.rstrip(b"/") + b"/")
