"""A session on another machine: its files, as it last left them, come into an empty folder."""

from __future__ import annotations

import os
from pathlib import Path

from ..events.history import newest_look, root_of, tree_of
from ..stores.base import Store
from ..stores.records import resolved


def bring_files(
    store: Store, session_id: str, cwd: str | os.PathLike[str], *, asked: bool = False
) -> bool:
    """Write the files that a session has to a folder that is new or empty; whether it was done.

    Only for contents that machines share, unless `asked`; and not where the session's own folder
    was emptied on this machine.
    """
    from ..files.depot import is_shared, opened

    if not (asked or is_shared(store)):
        return False
    place = Path(resolved(cwd))
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        return False
    event = newest_look(store.read(session_id, reverse=True))
    tree = tree_of(event) if event is not None else None
    if event is None or tree is None:
        return False
    info = store.record(session_id)
    with opened(store) as depot:
        if str(place) == info.root and root_of(event) in _known_here(depot.folder):
            return False
    from ..files.restore.materialize import materialize

    materialize(store, tree, place)
    return True


def _known_here(folder: Path) -> set[str]:
    """The ids of the folders of this machine that belong to a store."""
    try:
        text = (folder / "root-ids").read_text("ascii")
    except (OSError, ValueError):
        return set()
    return {line.split()[-1] for line in text.splitlines() if line.split()}
