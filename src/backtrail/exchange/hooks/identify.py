"""Which session of ours an agent's is: one that is known, a fork of it, or a new one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ...errors import AlreadyExists
from ...events import NewEvent, SessionInfo, new_id
from ..shapes import text_in

if TYPE_CHECKING:
    from ...settings import Settings
    from ...stores.base import Store
    from .dialects import Dialect
    from .fields import Fields


class LeftBehind(Exception):
    """The agent's session was left after a rewind, or was never recorded, and says nothing new."""


class Identified(NamedTuple):
    """A session; `is_left` if the agent left it after a rewind, with a call of it under way."""

    info: SessionInfo
    is_new: bool = False
    is_left: bool = False


def identify(
    store: Store, dialect: Dialect, fields: Fields, settings: Settings, seconds: float,
    *, begins: bool, makes: bool = True,
) -> Identified:  # fmt: skip
    """The session that an event belongs to; a new project is counted for so many `seconds`.

    `begins` says that something begins with the event, a turn or a call. Otherwise a session
    that was left after a rewind is no session any more: `LeftBehind`. But a call that was under
    way then is still that session's. Without `makes`, an unknown session stays so.
    """
    key = f"{dialect.agent}:{fields.session}"
    found = store.sessions(key=key, limit=1)
    if found:
        return Identified(found[0])
    left = _left(store, dialect, fields, begins=begins)
    if left is not None:
        return left
    if not makes:
        raise LeftBehind
    return _made(store, dialect, fields, settings, seconds, key)


def _left(store: Store, dialect: Dialect, fields: Fields, *, begins: bool) -> Identified | None:
    """A session that was left after a rewind; the fork of it, where it goes on all the same."""
    from ..foreign_record import Found, has_left, known

    found = Found(dialect.agent, fields.session, fields.transcript or Path())
    left = known(store, found)
    if left is None or not has_left(left, found):
        return None
    if not begins:
        if not _has_open(store, left.id):
            raise LeftBehind
        return Identified(left, is_left=True)
    from ..foreign import gone_on

    return Identified(gone_on(store, left, found))


def _has_open(store: Store, session_id: str) -> bool:
    """Whether a call of a session is under way."""
    from ...files.depot import opened

    with opened(store) as depot:
        calls = depot.catalogue.lines.calls()
        return any(call.owner == session_id and not call.ended for call in calls)


def _made(
    store: Store, dialect: Dialect, fields: Fields, settings: Settings, seconds: float, key: str
) -> Identified:
    from ...files.workspace.roots import chosen_root

    # A project that takes too long to count is too large, as the record says.
    root = chosen_root(fields.cwd, settings, seconds=seconds)
    native = {"agent": dialect.agent, "id": fields.session}
    native |= {"path": str(fields.transcript)} if fields.transcript else {}
    info = SessionInfo(
        id=new_id(), key=key, cwd=fields.cwd, root=root.path, agent_name=dialect.agent,
        model=text_in(fields.raw, "model"), metadata={"native": native, **root.refused()},
    )  # fmt: skip
    try:
        store.create(info)
    except AlreadyExists:
        # Another hook was quicker.
        found = store.sessions(key=key, limit=1)
        if not found:
            raise
        return Identified(found[0])
    made = store.info(info.id)
    store.append(info.id, [NewEvent("session_start", {"info": made.to_dict()})])
    return Identified(made, is_new=True)
