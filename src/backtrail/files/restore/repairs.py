"""Repairs: restores that were set aside, and what killed processes left behind.

A restore that can never be finished is set aside so that it hinders nobody. Here it is tried
once more, and given up if it fails again: what it took out of its place goes back there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...errors import BacktrailError
from ...stores.base import Store
from ..beneath import remove_tree
from ..changes.brackets import Place
from ..changes.opencalls import end_all
from ..contents.collect import has_contents, opened
from ..depot import Depot
from ..names import shown
from ..workspace.ignore import is_reserved

_TEMPORARY = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}")
_OLD = 3600.0
"""Seconds after which nobody works any more on what was left."""


def repair(store: Store) -> list[str]:
    """Finish or give up restores that were set aside, end open calls, remove strays; as told."""
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
    workspace = depot.workspace(os.fsdecode(place.path), store)
    try:
        finished = workspace.finish_or_give_up(store)
        what = "finished" if finished else "given up; what it had taken out is back"
        yield f"a restore in {shown(place.path)} was {what}"
    except (BacktrailError, OSError) as error:
        yield f"a restore in {shown(place.path)} cannot be repaired now: {error}"
    finally:
        workspace.close()


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
            if found and path.is_file() and _is_old(path) and not _runs(int(found[1])):
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


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
