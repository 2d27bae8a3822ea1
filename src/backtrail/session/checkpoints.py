"""Checkpoints: points of a session that were marked, and the files at them."""

from __future__ import annotations

from collections.abc import Mapping

from .. import telemetry
from ..errors import Conflict, InvalidData, NotFound
from ..events import Checkpoint, Json, NewEvent, SessionInfo
from ..events.history import COPIED, INHERITED, deletion, newest_look, tree_of
from ..files.contents.blobs import Reference
from ..stores import due
from ..stores.records import checkpoint_of, is_deleted
from ..stores.wrapper import unwrapped
from .capture import Capture
from .filepoints import point_at
from .log import SessionLog
from .points import Target, anchor_of, event_id, find_event, same_checkpoint


class Checkpoints:
    """The checkpoints of a session."""

    def __init__(self, log: SessionLog, capture: Capture) -> None:
        self._log = log
        self._capture = capture
        self._store, self._id = log.store, log.id

    def all(self) -> list[Checkpoint]:
        """Those that the session lists, oldest first; see `Session.checkpoints`."""
        self._log.check_open()
        after, copied = self._listed()
        found = self._log.events(after=after, kinds=("checkpoint",))
        return [
            checkpoint_of(event, self._id)
            for event in found
            if (copied or not event.data.get(INHERITED))
            and not is_deleted(self._store, self._id, event.id)
        ]

    def copies_behind(self, seq: int, *, listed: bool) -> list[NewEvent]:
        """Copies of the checkpoints of events up to `seq` that were noted after it.

        A fork can go there also when this session is gone, whether or not it lists them.
        """
        copies: list[NewEvent] = []
        for event in self._log.events(after=seq, kinds=("checkpoint",)):
            is_shared = checkpoint_of(event, self._id).seq <= seq
            if is_shared and not is_deleted(self._store, self._id, event.id):
                data = {**event.data, INHERITED: True}
                if listed:
                    del data[INHERITED]
                copies.append(NewEvent(event.kind, data, id=event.id, ts=event.ts))
        return copies

    def _listed(self) -> tuple[int, bool]:
        """The event after which this session lists checkpoints, and whether copies, too."""
        info = self._store.record(self._id)
        copied = self._lists_copies(info)
        return 0 if copied else info.fork_seq or 0, copied

    def _lists_copies(self, info: SessionInfo) -> bool:
        """Whether a fork lists its parent's checkpoints, as its first own event says."""
        if info.fork_seq is None:
            return False
        starts = self._log.events(after=info.fork_seq, kinds=("session_start",), limit=1)
        about = next((start.data for start in starts), {})
        # Forks of earlier versions noted it in their metadata.
        return bool(about[COPIED] if COPIED in about else info.metadata.get(COPIED))

    def add(
        self, label: str | None = None, at: Target | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Checkpoint:  # fmt: skip
        """Mark a point to go back to; see `Session.checkpoint`."""
        if label is not None and not isinstance(label, str):
            raise InvalidData(f"a label is text, not {label!r}")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidData(f"metadata is a mapping, not {metadata!r}")
        with telemetry.span(
            "session.checkpoint", session_id=self._id, store=type(self._store).__name__
        ) as span:
            point, known = self._mark(label, at, dict(metadata or {}))
            if telemetry.listeners:
                span.measurements["message_count"] = len(self._log.messages(repair=False))
                span.metadata.update(
                    message_id=event_id(self._store, self._id, point.seq),
                    checkpoint_id=point.id,
                    snapshot_id=point.id,
                    idempotent=known,
                )
            return point

    def _mark(
        self, label: str | None, at: Target | None, metadata: dict[str, Json]
    ) -> tuple[Checkpoint, bool]:
        """The checkpoint, and whether it was there already."""
        self._log.check_open()
        self._log.save()
        details = self._capture.look() if at is None else self._look_back(at)
        with self._log.mutex:
            self._log.save()
            self._capture.flush()
            anchor = self._point() if at is None else anchor_of(self._store, self._id, at)
            after, tree_now = self._listed()[0], details.get("tree")
            known = same_checkpoint(self._store, self._id, anchor, label, metadata, after, tree_now)
            if known is not None:
                return known, True
            data = {"at": anchor, "label": label, "metadata": metadata, **details}
            event = self._capture.append([NewEvent("checkpoint", data)])[0]
            return checkpoint_of(event, self._id), False

    def delete(self, target: Target) -> Checkpoint:
        """Delete a checkpoint; see `Session.delete_checkpoint`."""
        self._log.check_open()
        self._log.save()
        event = find_event(self._store, self._id, target)
        if event.kind != "checkpoint":
            raise NotFound(f"event {event.seq} of session `{self._id}` is no checkpoint")
        from ..files.contents.collect import drop_unnamed, trees_of
        from ..files.depot import has_contents, opened

        self._capture.append([deletion(event.id)])
        if event.seq and has_contents(self._store):
            with opened(self._store) as depot:
                drop_unnamed(self._store, self._id, depot, trees_of(event))
            place = unwrapped(self._store)
            due.note(place, due.name_of(place), due.GRACE)
        return checkpoint_of(event, self._id)

    def _point(self) -> int:
        """The last event of the history that says or does something."""
        notes = ("checkpoint", "checkpoint_deleted", "session_resume")
        event = next((e for e in self._log.walk() if e.kind not in notes), None)
        return event.seq if event else 0

    def _look_back(self, at: Target) -> dict[str, Json]:
        """What an event that marks `at` says about the files; their contents are kept from now.

        Where they are not there any more, that is a problem of the session.
        """
        point = point_at(self._store, self._id, at)
        workspace = self._capture.watched() if point.tree is not None else None
        if point.tree is None:
            return {}
        if workspace is not None:
            relies = [Reference(*self._capture.recorder.log, point.tree)]
            try:
                workspace.blobs.write([], relies, relies=[point.tree])
            except Conflict:
                why = f"the files at event {point.cut} were given up: there is no way back to them"
                self._log.complain("given up", why)
        before = self._store.read(self._id, until=point.cut, reverse=True) if point.cut else ()
        event = newest_look(before)
        stamp = event.data.get("workspace") if event is not None else None
        known = event is not None and stamp and tree_of(event) == point.tree
        return {"tree": point.tree.hex()} | ({"workspace": stamp} if known else {})
