"""A native session that was left after a rewind, and goes on all the same.

After a rewind the session goes on in a new native one. Who still goes on in the old one goes on
with what was taken back. That is another conversation: a fork of the session as it was when
the native one was left, with the lines that were read until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ..errors import AlreadyExists, NotFound
from ..events import Event, Json, NewEvent, SessionInfo
from ..session.session import Session
from ..stores.base import Store
from .gemini.format import STAMPED, stamp_of
from .records import Found
from .transcript import TRANSCRIPT

_MOVES = ("rewound", "undone", "redone")
_BATCH = 200


def gone_on(store: Store, info: SessionInfo, found: Found) -> SessionInfo:
    """The fork that a native session becomes which `info` was once, and is no more."""
    native: dict[str, Json] = {"agent": found.agent, "id": found.id, "path": str(found.path)}
    with (
        Session.resume(store, info.id, files=False, lease=None) as parent,
        parent.fork(
            at=_left_at(store, info.id, found.id), files=False, metadata={"native": native}
        ) as fork,
    ):
        fork_id = fork.id
    lines = _lines(store, info.id, found.id)
    while batch := list(islice(lines, _BATCH)):
        again = [NewEvent(line.kind, line.data, id=line.id, ts=line.ts) for line in batch]
        store.append(fork_id, again, log=TRANSCRIPT)
    try:
        # Only now can others find it: who took in the old file before its lines are known
        # would take in all of it again.
        return store.update(fork_id, key=found.key)
    except AlreadyExists:
        store.delete(fork_id)
        return store.sessions(key=found.key, limit=1)[0]


def _lines(
    store: Store, session_id: str, native_id: str, *, reverse: bool = False
) -> Iterator[Event]:
    for event in store.read(session_id, log=TRANSCRIPT, reverse=reverse):
        if event.data.get("file") == native_id:
            yield event


def _left_at(store: Store, session_id: str, native_id: str) -> int:
    """The last event before the rewind by which a native session was left."""
    last = 0
    line = next(_lines(store, session_id, native_id, reverse=True), None)
    name = (line.data.get("event") or line.data.get("behind")) if line is not None else None
    if isinstance(name, str):
        try:
            last = store.find(session_id, name).seq
        except NotFound:
            pass
    if line is None:
        # Of Gemini CLI no lines are kept: its events say which record they come with.
        stamped = store.read(session_id, kinds=STAMPED, reverse=True)
        last = next((e.seq for e in stamped if (s := stamp_of(e)) and s.file == native_id), 0)
    for event in store.read(session_id, after=last, kinds=_MOVES):
        # A rollback that the agent made itself comes from its own lines.
        if event.follows is not None and "source" not in event.data:
            return event.seq - 1
    return last
