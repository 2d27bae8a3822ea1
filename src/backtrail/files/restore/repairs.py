"""Repairs: open calls ended by hand, restores that were set aside, what killed processes left.

A restore that can never be finished is set aside so that it hinders no session. Here it is tried
once more, and given up if it fails again: what it took out of its place goes back there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from ..._startup.folders import state_folder
from ..._startup.frozen import NamedTuple
from ...errors import BacktrailError
from ...events import timestamp
from ...stores.base import Store
from ...stores.wrapper import store_name
from ..beneath import remove_tree
from ..changes.brackets import Bracket, Place, born, is_gone
from ..depot import Depot, has_contents, opened
from ..names import is_reserved, shown
from ..workspace.machine import Machine
from ..workspace.meetings import open_calls
from .journal import Recovery

_TEMPORARY = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}")
_OLD = 3600.0
"""Seconds after which no process works any more on what was left."""


def repair(store: Store) -> list[str]:
    """Finish or give up restores set aside, end open calls, remove strays; a line for each."""
    if not has_contents(store):
        return []
    done: list[str] = []
    with opened(store) as depot:
        for place in depot.catalogue.places():
            done += _restores(depot, place, store)
        done += end_all(store)
        roots = [Path(os.fsdecode(place.path)) for place in depot.catalogue.places()]
        done += _strays(depot, roots, store)
    return done


def _restores(depot: Depot, place: Place, store: Store) -> Iterator[str]:
    if depot.catalogue.set_aside_of(place.n) is None or not os.path.isdir(place.path):
        return
    with closing(depot.workspace(os.fsdecode(place.path), store)) as workspace:
        try:
            with workspace.locked(store, make=True, wide=True) as root:
                what = Recovery(workspace).finish_or_give_up(root, store)
            yield f"a restore in {shown(place.path)} was {what}"
        except (BacktrailError, OSError) as error:
            yield f"a restore in {shown(place.path)} cannot be repaired now: {error}"


def _strays(depot: Depot, roots: Iterable[Path], store: Store) -> Iterator[str]:
    """Remove copies of trees that were never finished, and temporary files of dead processes."""
    for folder in {root.parent for root in roots}:
        for path in _listed(folder):
            if is_reserved(os.fsencode(path.name)) and _is_old(path) and not path.is_symlink():
                remove_tree(path)
                if not path.exists():
                    yield f"removed {path}, a copy that was never finished"
    for folder in {depot.folder, *(place.parent for place in store.places)}:
        for path in _listed(folder):
            found = _TEMPORARY.fullmatch(path.name)
            if found and path.is_file() and _is_old(path) and _is_over(int(found[1])):
                path.unlink(missing_ok=True)
                yield f"removed {path}, which a killed process left"


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > _OLD
    except OSError:
        return False


def _is_over(pid: int) -> bool:
    """Whether no process has this number."""
    return is_gone(pid, born(pid))


# --- open calls --------------------------------------------------------------------------


_FORGOTTEN = 30 * 86400.0
"""Seconds after which a call is struck whose process is gone, and whose store is elsewhere."""


_IN_MEMORY = "memory:"
"""The URL of a store that goes with its process."""


class Open(NamedTuple):
    """A call that is open: whose, where, which process runs it, and since when.

    `store` is another store's URL, or its id where no URL is known; `url` only a URL. One that is
    `over` was not ended yet: its agent went on, or was stopped, or its process is gone.
    """

    root: str
    session: str
    name: str
    program: str
    pid: int
    since: float
    lives: bool
    store: str = ""
    url: str = ""
    over: bool = False

    def __str__(self) -> str:
        program = f" of {self.program}" if self.program else ""
        store = f", store {self.store}" if self.store else ""
        lives = "" if self.lives else ", which is gone"
        begun = "over, begun" if self.over else "open"
        since = f"{'at' if self.over else 'since'} {timestamp(self.since)}"
        return (
            f"`{self.name}` in session `{self.session}`{program}{store}: {begun} in {self.root} "
            f"{since}, by process {self.pid}{lives}"
        )


def listed(store: Store) -> list[Open]:
    """The open calls of a store, and those that other stores have on this machine."""
    found: list[Open] = []
    depot = ""
    if has_contents(store):
        with opened(store) as own:
            depot = own.blobs.id
            for place in own.catalogue.places():
                found += [_own(place, call, store) for call in _open_in(own, place)]
    for root in Machine(state_folder()).all():
        for path, other in open_calls(root):
            if other is not None and not path.endswith(f".{depot}"):
                lives = not is_gone(other.pid, other.born)
                found.append(
                    Open(shown(root.path), other.session, other.name, other.agent, other.pid,
                         other.since, lives, other.url or other.store, other.url)
                )  # fmt: skip
    return found


def _open_in(depot: Depot, place: Place) -> list[Bracket]:
    return [call for call in depot.catalogue.lines.brackets(place.n) if not call.ended]


def _own(place: Place, call: Bracket, store: Store | None = None) -> Open:
    """A call of this store. With `store` its log says whether it is over, as for `status`."""
    from ..workspace.workspace import Workspace

    lives = not is_gone(call.pid, call.born)
    over = store is not None and Workspace.is_over(call, store)
    return Open(
        shown(place.path),
        call.owner,
        call.name,
        call.program,
        call.pid,
        call.since,
        lives,
        over=over,
    )


def end_all(store: Store) -> Iterator[str]:
    """End the open calls of a store, and strike from the registry what cannot be ended; a line for
    each.

    What a call did is kept for its session. A call that is still under way owns nothing more.
    """
    if not has_contents(store):
        return
    with opened(store) as depot:
        for place in depot.catalogue.places():
            calls = _open_in(depot, place)
            if calls:
                yield from _ended(depot, place, calls, store)
        marks = {call.mark for call in depot.catalogue.lines.calls()}
        yield from _struck(marks, depot.blobs.id)


def _ended(depot: Depot, place: Place, calls: list[Bracket], store: Store) -> Iterator[str]:
    if place.gone or not os.path.isdir(place.path):
        depot.catalogue.lines.give_up([call.id for call in calls])
        for call in calls:
            yield f"forgot {_own(place, call)}; the folder is gone"
        return
    try:
        with closing(depot.workspace(os.fsdecode(place.path), store)) as workspace:
            for call in workspace.end_open(store_name(store), store):
                yield f"ended {_own(place, call)}"
    except (BacktrailError, OSError) as error:
        yield f"cannot end the calls in {shown(place.path)} now: {error}"


def _struck(marks: set[str], depot: str) -> Iterator[str]:
    """Strike what is left of calls: unknown to this store, damaged, or long dead elsewhere."""
    for root in Machine(state_folder()).all():
        for path, call in open_calls(root):
            mark = os.path.basename(path)
            if mark.endswith(f".{depot}"):
                is_left = mark not in marks and (call is None or is_gone(call.pid, call.born))
            elif call is None:
                is_left = True
            else:
                # Its own store says which it met, so that has time; one in memory is gone.
                old = call.since < time.time() - _FORGOTTEN or call.url == _IN_MEMORY
                is_left = old and is_gone(call.pid, call.born)
            if is_left:
                try:
                    os.unlink(path)
                except OSError as error:
                    yield f"cannot remove {path}: {error.strerror}"
                    continue
                yield f"removed {path}, which no open call needs"
