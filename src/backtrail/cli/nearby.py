"""Which sessions belong to a folder, and what sessions are called."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotFound
from ..exchange.shelf import ARCHIVED, is_empty

if TYPE_CHECKING:
    from ..events import Json, SessionInfo
    from ..files.workspace.roots import Root
    from ..stores.base import Store
    from .call import Call


def here() -> Path:
    """The current folder by its one name."""
    return Path(os.path.realpath(Path.cwd()))


def root_here(call: Call, cwd: str) -> Root:
    """The root of a new session that begins here; says so where the project is not taken."""
    from ..files.workspace.roots import chosen_root

    found = chosen_root(cwd, call.settings)
    if found.wanted is not None:
        call.out.note(f"only {found.path} is captured, not {found.wanted}: {found.why}")
    return found


def latest_in(store: Store, folder: Path) -> SessionInfo | None:
    """The newest session of a folder that is offered to people."""
    try:
        found = store.latest(folder)
    except NotFound:
        return None
    if is_offered(store, found):
        return found
    return next((i for i in store.sessions(cwd=folder) if is_offered(store, i)), None)


def is_offered(store: Store, info: SessionInfo) -> bool:
    """Whether a session is one to go on with: not archived, no subagent's, and not empty."""
    return info.relation != "subagent" and ARCHIVED not in info.tags and not is_empty(store, info)


def around(store: Store) -> tuple[Path, SessionInfo | None]:
    """The current folder or the nearest above that has a session, and its latest one."""
    start = here()
    found = latest_in(store, start)
    if found is not None:
        return start, found
    # One look at all sessions costs less than one question for each folder above.
    newest: dict[str, SessionInfo] = {}
    for info in store.sessions():
        if is_offered(store, info):
            for folder in filter(None, (info.cwd, info.root)):
                newest.setdefault(folder, info)
    for above in start.parents:
        if str(above) in newest:
            return above, newest[str(above)]
    return start, None


def is_project_of(folder: Path, below: Path) -> bool:
    """Whether a folder is the project that another one lies in, with none of its own between."""
    from ..errors import Unsafe
    from ..files.workspace.roots import is_marked, refuse_broad

    try:
        refuse_broad(str(folder))
    except Unsafe:
        return False
    between = [below, *below.parents]
    return not any(is_marked(str(one)) for one in between[: between.index(folder)])


def came_from(store: Store, folder: Path) -> Path | None:
    """Where this very folder was when a session was recorded in it; None if it was not moved."""
    from ..files.depot import has_contents, opened
    from ..files.workspace.roots import identity

    if not has_contents(store):
        return None
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with opened(store) as depot:
            found = depot.catalogue.moved_from(identity(fd))
    finally:
        os.close(fd)
    old = Path(os.fsdecode(found.path)) if found is not None else folder
    # Two names of one folder, as by a mount, are no move.
    return None if old == folder or old.is_dir() else old


def titled(store: Store, info: SessionInfo) -> dict[str, Json]:
    """A session as JSON, with what it is called as its title."""
    from ..session.titles import title_of

    return {**info.to_dict(), "title": info.title or title_of(store, info) or None}


def masking(wanted: bool) -> Callable[[str], str]:
    """What text goes through before it is shown: hides secrets where that is `wanted`."""
    if not wanted:
        return lambda text: text
    from ..formats.secrets import mask

    return lambda text: mask(text)[0]
