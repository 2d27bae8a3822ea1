"""Copying sessions from one store to another, which is also how one is rebuilt."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from ..errors import AlreadyExists, Conflict, NotFound
from ..events import MAIN_LOG, Event, NewEvent, SessionInfo
from .base import Store

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did: sessions looked at, events written, numbers filled with `lost`."""

    sessions: int
    events: int
    lost: int


def copy_sessions(src: Store, dst: Store, *, ids: Collection[str] | None = None) -> Copied:
    """Copy sessions with their logs and project notes; all, or those in `ids`.

    `seq`, `id`, `ts` and `follows` stay. A number that damage took in `src` becomes a
    `lost` event. Repeating the copy adds only what is new; a session of the same id that
    holds something else is a `Conflict` and is left alone. A fork whose parent is in `dst`
    shares its events where the store can.
    """
    infos = src.sessions()
    if ids is not None:
        known = {info.id for info in infos}
        for id in ids:
            if id not in known:
                raise NotFound(f"no session `{id}` to copy")
        infos = [info for info in infos if info.id in set(ids)]
    events = lost = 0
    for info in _parents_first(infos):
        _make(src, dst, info)
        for log in src.logs(info.id):
            written, filled = _copy_log(src, dst, info.id, log)
            events += written
            lost += filled
    for cwd in {info.cwd for info in infos if info.cwd}:
        note = src.memory(cwd).read()
        if note and dst.memory(cwd).read() != note:
            dst.memory(cwd).write(note)
    return Copied(len(infos), events, lost)


def _parents_first(infos: list[SessionInfo]) -> Iterator[SessionInfo]:
    waiting = {info.id: info for info in reversed(infos)}
    while waiting:
        ready = [info for info in waiting.values() if info.parent_id not in waiting]
        # Parents that name each other cannot come from us, but data is not trusted.
        for info in ready or list(waiting.values()):
            del waiting[info.id]
            yield info


def _make(src: Store, dst: Store, info: SessionInfo) -> None:
    base = None
    if info.relation == "fork" and info.parent_id and info.fork_seq and _shares(src, dst, info):
        base = (info.parent_id, info.fork_seq)
    try:
        dst.create(info, base=base)
    except AlreadyExists:
        present = dst.info(info.id)
        if present.created_at != info.created_at:
            raise Conflict(f"session `{info.id}` is another one in the store copied to") from None


def _shares(src: Store, dst: Store, info: SessionInfo) -> bool:
    """Whether the parent in `dst` holds the events the fork began with."""
    assert info.parent_id is not None and info.fork_seq is not None
    try:
        there = list(dst.read(info.parent_id, until=info.fork_seq, reverse=True, limit=1))
    except NotFound:
        return False
    here = list(src.read(info.id, until=info.fork_seq, reverse=True, limit=1))
    return [e.id for e in there] == [e.id for e in here] and bool(here)


def _copy_log(src: Store, dst: Store, session_id: str, log: str) -> tuple[int, int]:
    newest = list(dst.read(session_id, log=log, reverse=True, limit=1))
    head = newest[0].seq if newest else 0
    if newest and log == MAIN_LOG:
        same = list(src.read(session_id, log=log, after=head - 1, until=head))
        if same and same[0].id != newest[0].id:
            raise Conflict(f"event {head} of session `{session_id}` is another one there")
    written = lost = 0
    pending = _filled(src.read(session_id, log=log, after=head), head)
    while batch := list(islice(pending, _BATCH)):
        stored = dst.append(session_id, batch, log=log, expected=head)
        head += len(batch)
        if stored[-1].seq != head:
            raise Conflict(f"session `{session_id}` was written to during the copy")
        filled = sum(event.kind == "lost" and event.id == f"lost-{s.seq}" for event, s in
                     zip(batch, stored, strict=True))  # fmt: skip
        written += len(batch) - filled
        lost += filled
    return written, lost


def _filled(events: Iterator[Event], head: int) -> Iterator[NewEvent]:
    """`events` to append, with a `lost` event for each number that is missing."""
    for event in events:
        while head + 1 < event.seq:
            head += 1
            yield NewEvent("lost", {"seq": head}, id=f"lost-{head}", ts=event.ts)
        head = event.seq
        yield NewEvent(event.kind, event.data, event.id, event.follows, event.ts)
