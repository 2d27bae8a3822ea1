"""Copying logs from one store to another. Contents of files are for the caller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from ..errors import AlreadyExists, Conflict, Damaged, InvalidData, NotFound
from ..events import MAIN_LOG, UPDATABLE_FIELDS, Event, Json, NewEvent, SessionInfo, timestamp
from .base import Store

_BATCH = 500

WIDEST = 100_000
"""Numbers missing in a row that a copy fills with `lost` events; more are not believed."""


def check_gap(last: int, seq: int, session_id: str) -> None:
    """Raise `Damaged` if more numbers are missing before `seq` than a copy fills."""
    if seq - last - 1 > WIDEST:
        raise Damaged(
            f"session `{session_id}` has no events from {last + 1} to {seq - 1}, more than damage "
            "takes: `verify` reports what is wrong with it; fork it before that to copy the rest"
        )


Before = Callable[[str, Iterable[Event | NewEvent]], None]
"""Called with the events that a session of the other store is about to get, some more than once."""


@dataclass(frozen=True, slots=True)
class CopiedLogs:
    """What a copy did: sessions looked at, events written, numbers filled with `lost`."""

    sessions: int
    events: int
    lost: int


def copy_logs(
    src: Store, dst: Store, before: Before, *, ids: Collection[str] | None = None
) -> CopiedLogs:
    """Copy sessions with their logs and project notes; all, or those in `ids`."""
    infos = src.sessions()
    if ids is not None:
        known = {info.id for info in infos}
        for id in ids:
            if id not in known:
                raise NotFound(f"no session `{id}` to copy")
        infos = [info for info in infos if info.id in set(ids)]
    events = lost = 0
    for info in _parents_first(infos):
        _make(src, dst, info, before)
        for log in src.logs(info.id):
            written, filled = _copy_log(src, dst, info.id, log, before)
            events += written
            lost += filled
    for cwd in {info.cwd for info in infos if info.cwd}:
        note = src.memory(cwd).read()
        if note and not dst.memory(cwd).read():
            dst.memory(cwd).write(note)
    return CopiedLogs(len(infos), events, lost)


def _parents_first(infos: list[SessionInfo]) -> Iterator[SessionInfo]:
    waiting = {info.id: info for info in reversed(infos)}
    while waiting:
        ready = [info for info in waiting.values() if info.parent_id not in waiting]
        # Parents that name each other cannot come from us, but data is not trusted.
        for info in ready or list(waiting.values()):
            del waiting[info.id]
            yield info


def _make(src: Store, dst: Store, info: SessionInfo, before: Before) -> None:
    base = None
    if info.relation == "fork" and info.parent_id and info.fork_seq and _shares(src, dst, info):
        base = (info.parent_id, info.fork_seq)
    if base is not None and _head(dst, info.id) <= base[1]:
        # Made with its events in one step. Called again after that: until there is such a
        # session, a collection may find that what they rely on is not needed.
        before(info.id, src.read(info.id, until=base[1]))
        _create(dst, info, base)
        before(info.id, src.read(info.id, until=base[1]))
    else:
        _create(dst, info, base)


def _head(store: Store, session_id: str) -> int:
    """The number of a session's last event; 0 if there is no such session."""
    try:
        return next((e.seq for e in store.read(session_id, reverse=True, limit=1)), 0)
    except NotFound:
        return 0


def _create(dst: Store, info: SessionInfo, base: tuple[str, int] | None) -> None:
    try:
        dst.create(info, base=base)
    except AlreadyExists as error:
        try:
            present = dst.info(info.id)
        except NotFound:
            # It is the key that is taken.
            raise error from None
        if present.created_at != info.created_at:
            raise Conflict(f"session `{info.id}` is another one in the store copied to") from None
        missing = _missing(present, info)
        if missing:
            dst.update(info.id, **missing)


def _missing(present: SessionInfo, info: SessionInfo) -> dict[str, Json]:
    """The changes that add to `present` what only `info` says."""
    changes: dict[str, Json] = {}
    for name in UPDATABLE_FIELDS:
        there, here = getattr(present, name), getattr(info, name)
        if name == "tags":
            here = [tag for tag in here if tag not in there]
        elif name == "metadata":
            here = {key: value for key, value in here.items() if key not in there}
        elif there is not None:
            continue
        if here:
            changes[name] = here
    return changes


def _shares(src: Store, dst: Store, info: SessionInfo) -> bool:
    """Whether the parent in `dst` holds the events the fork began with."""
    assert info.parent_id is not None and info.fork_seq is not None
    try:
        there = list(dst.read(info.parent_id, until=info.fork_seq, reverse=True, limit=1))
    except NotFound:
        return False
    here = list(src.read(info.id, until=info.fork_seq, reverse=True, limit=1))
    return [e.id for e in there] == [e.id for e in here] and bool(here)


def _copy_log(src: Store, dst: Store, session_id: str, log: str, before: Before) -> tuple[int, int]:
    newest = list(dst.read(session_id, log=log, reverse=True, limit=1))
    head = newest[0].seq if newest else 0
    if newest and log == MAIN_LOG:
        same = list(src.read(session_id, log=log, after=head - 1, until=head))
        if same and same[0].id != newest[0].id:
            raise Conflict(f"event {head} of session `{session_id}` is another one there")
    written = lost = 0
    pending = _filled(src.read(session_id, log=log, after=head), head, session_id)
    while batch := list(islice(pending, _BATCH)):
        if log == MAIN_LOG:
            before(session_id, batch)
        stored = dst.append(session_id, batch, log=log, expected=head)
        head += len(batch)
        if stored[-1].seq != head:
            raise Conflict(f"session `{session_id}` was written to during the copy")
        filled = sum(event.kind == "lost" and event.id == f"lost-{s.seq}" for event, s in
                     zip(batch, stored, strict=True))  # fmt: skip
        written += len(batch) - filled
        lost += filled
    return written, lost


def _filled(events: Iterator[Event], head: int, session_id: str) -> Iterator[NewEvent]:
    """`events` to append, with a `lost` event for each number that is missing."""
    for event in events:
        check_gap(head, event.seq, session_id)
        while head + 1 < event.seq:
            head += 1
            yield NewEvent("lost", {"seq": head}, id=f"lost-{head}", ts=_possible(event.ts))
        head = event.seq
        yield NewEvent(event.kind, event.data, event.id, event.follows, _possible(event.ts))


def _possible(ts: str) -> str | None:
    """A time as it is; none, which makes it now, if there is no such time."""
    try:
        return timestamp(ts)
    except InvalidData:
        return None
