"""What stores share about records: what is kept of `SessionInfo`, how `update` changes it, filters.

And what is read out of single events: checkpoints, and numbers that are out of order.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from .._startup.frozen import replace
from ..errors import InvalidData, NotFound
from ..events import (
    STORED_FIELDS,
    UPDATABLE_FIELDS,
    Checkpoint,
    Event,
    Json,
    Problem,
    SessionInfo,
    check_session_id,
    check_text,
    check_ts,
    decode_data,
    encode_data,
    now,
    timestamp,
)
from ..events.history import DELETED, Fold, deletion_id
from .disk.fs import real_path

if TYPE_CHECKING:
    from .base import Store


def new_record(info: SessionInfo, scope: str, base: tuple[str, int] | None = None) -> SessionInfo:
    """The part of `info` that is stored, checked; the rest is folded from the log.

    With `base`, the record of a fork, which names its parent and where it left it.
    """
    check_session_id(info.id)
    if base is not None:
        info = replace(info, parent_id=base[0], relation=info.relation or "fork", fork_seq=base[1])
    if info.parent_id is not None:
        check_session_id(info.parent_id)
    if info.relation not in (None, "fork", "subagent"):
        raise InvalidData(f"a session is a fork or a subagent, not {info.relation!r}")
    kept = {name: getattr(info, name) for name in STORED_FIELDS}
    kept["scope"] = scope
    kept["created_at"] = check_ts(info.created_at) if info.created_at else now()
    kept["cwd"] = None if info.cwd is None else resolved(info.cwd)
    # Records from before there were roots have none.
    kept["root"] = kept["cwd"] if info.root is None else resolved(info.root)
    record = SessionInfo(**kept)
    return check_record(replace(record, tags=_merged_tags([], info.tags)))


def changed_record(record: SessionInfo, changes: Mapping[str, Json]) -> SessionInfo:
    """`record` with `changes` as `Store.update` describes them."""
    unknown = sorted(set(changes) - set(UPDATABLE_FIELDS))
    if unknown:
        raise InvalidData(f"cannot update {', '.join(unknown)}: only {', '.join(UPDATABLE_FIELDS)}")
    new = dict(changes)
    if "metadata" in new:
        given = new["metadata"]
        if not isinstance(given, Mapping):
            raise InvalidData(f"metadata is a mapping, not {given!r}")
        merged = {**record.metadata, **given}
        new["metadata"] = {key: value for key, value in merged.items() if value is not None}
    if "tags" in new:
        new["tags"] = _merged_tags(record.tags, new["tags"])
    if new.get("cwd") is not None:
        new["cwd"] = resolved(new["cwd"])
    if new.get("root") is not None:
        new["root"] = resolved(new["root"])
    elif "root" in new or new.get("cwd", record.cwd) != record.cwd:
        new["root"] = new.get("cwd", record.cwd)
    return check_record(replace(record, **new))


def check_record(record: SessionInfo) -> SessionInfo:
    """Return a copy of `record`, sharing nothing with it, if every field can be stored."""
    if record.key is not None and not (isinstance(record.key, str) and record.key):
        raise InvalidData(f"a key is a text that is not empty, not {record.key!r}")
    for name in ("title", "cwd", "root", "model", "agent_name"):
        value = getattr(record, name)
        if value is not None and not isinstance(value, str):
            raise InvalidData(f"{name} is text, not {value!r}")
    if not isinstance(record.metadata, Mapping):
        raise InvalidData(f"metadata is a mapping, not {record.metadata!r}")
    return SessionInfo(
        **decode_data(encode_data({name: getattr(record, name) for name in STORED_FIELDS}))
    )


def _merged_tags(tags: list[str], given: Json) -> list[str]:
    wanted = given if isinstance(given, Mapping) else dict.fromkeys(_tag_list(given), True)
    merged = dict.fromkeys(tags)
    for tag, keep in wanted.items():
        check_text(tag, "a tag")
        if keep:
            merged[tag] = None
        else:
            merged.pop(tag, None)
    return list(merged)


def _tag_list(given: Json) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence | set | frozenset):
        raise InvalidData(f"tags are a list of texts, or a mapping to True or False, not {given!r}")
    return list(given)


def folded(record: SessionInfo, fold: Fold) -> SessionInfo:
    """The whole record: what is stored, and what the log says."""
    return replace(
        record,
        head=fold.head,
        message_count=fold.message_count,
        turn_count=fold.turn_count,
        usage=dict(fold.usage),
        cost_usd=fold.cost_usd,
        exit_reason=fold.exit_reason,
        updated_at=max(fold.updated_at, record.created_at),
    )


class Filters(TypedDict, total=False):
    """The keywords of `Store.sessions`."""

    cwd: str | os.PathLike[str] | None
    parent: str | None
    key: str | None
    tag: str | None
    metadata: Mapping[str, Json] | None
    after: datetime | str | None
    before: datetime | str | None
    limit: int | None


class Range(TypedDict, total=False):
    """The keywords of `Store.read` that say which events of a log."""

    after: int
    until: int | None
    limit: int | None
    reverse: bool
    kinds: Collection[str] | None


class Wanted:
    """The filters that need nothing to be counted; `place` is the folder asked for."""

    def __init__(self, **filters: Unpack[Filters]) -> None:
        cwd = filters.get("cwd")
        self.place = None if cwd is None else resolved(cwd)
        self._parent, self._key, self._tag = (filters.get(n) for n in ("parent", "key", "tag"))
        self._metadata = filters.get("metadata") or {}
        if not isinstance(self._metadata, Mapping):
            raise InvalidData(f"metadata is a mapping, not {self._metadata!r}")

    def __call__(self, info: SessionInfo) -> bool:
        """Whether a record is one of those asked for."""
        return (
            (self.place is None or self.place in (info.cwd, info.root))
            and (self._parent is None or info.parent_id == self._parent)
            and (self._key is None or info.key == self._key)
            and (self._tag is None or self._tag in info.tags)
            and all(_has(info.metadata, key, value) for key, value in self._metadata.items())
        )


def _has(metadata: Mapping[str, Json], key: str, value: Json) -> bool:
    return key in metadata and metadata[key] == value


def select(infos: Iterable[SessionInfo], **filters: Unpack[Filters]) -> list[SessionInfo]:
    """The records that match, newest first; `infos` come oldest first by creation."""
    after, before, limit = filters.get("after"), filters.get("before"), filters.get("limit")
    low = None if after is None else timestamp(after)
    high = None if before is None else timestamp(before)
    found = [
        info
        for info in filter(Wanted(**filters), infos)
        if (low is None or info.updated_at > low) and (high is None or info.updated_at < high)
    ]
    # Stable sort, so that of two with one time the later made comes first.
    found.reverse()
    found.sort(key=lambda info: info.updated_at, reverse=True)
    return found if not isinstance(limit, int) else found[: max(limit, 0)]


def resolved(cwd: str | os.PathLike[str]) -> str:
    """A directory's one name: absolute, links followed."""
    try:
        # `Path` refuses bytes, which would be equal to no text that is stored.
        return real_path(os.path.expanduser(cwd if type(cwd) is str else str(Path(cwd))))
    except (TypeError, ValueError) as error:
        raise InvalidData(f"{cwd!r} is not the path of a directory") from error


def checkpoint_of(event: Event, session_id: str) -> Checkpoint:
    """The checkpoint that a `checkpoint` event records."""
    data = event.data
    label, tree, metadata, at = (data.get(n) for n in ("label", "tree", "metadata", "at"))
    return Checkpoint(
        id=event.id,
        seq=at if isinstance(at, int) else event.previous,
        label=label if isinstance(label, str) else None,
        tree=tree if isinstance(tree, str) else None,
        metadata=metadata if isinstance(metadata, dict) else {},
        ts=event.ts,
        session_id=session_id,
    )


def is_deleted(store: Store, session_id: str, checkpoint_id: str) -> bool:
    """Whether a session has deleted a checkpoint that its log holds."""
    try:
        event = store.find(session_id, deletion_id(checkpoint_id))
    except NotFound:
        return False
    return event.kind == DELETED and event.data.get("checkpoint") == checkpoint_id


def gap_before(
    session_id: str, log: str, last: int, seq: int, offset: int | None = None
) -> Problem:
    """The report that the numbers between two are missing."""
    missing = tuple(range(last + 1, min(seq, last + 1001)))
    detail = f"events {last + 1} to {seq - 1} are missing"
    return Problem(session_id, log, "gap", detail, offset, count=seq - last - 1, seqs=missing)


def check_order(session_id: str, log: str, events: Iterator[Event]) -> Iterator[Problem]:
    """Numbers that are missing or come twice, and ids that do."""
    ids: set[str] = set()
    last = 0
    for event in events:
        if event.seq > last + 1:
            yield gap_before(session_id, log, last, event.seq)
        elif event.seq <= last:
            yield Problem(session_id, log, "order", f"event {event.seq} comes after {last}")
        if event.id in ids:
            yield Problem(session_id, log, "duplicate", f"id `{event.id}` is used twice")
        ids.add(event.id)
        last = max(last, event.seq)
