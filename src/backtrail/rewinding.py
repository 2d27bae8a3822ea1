"""Going back in a conversation: checkpoints, rewind, undo and redo.

Each is an event; nothing is erased. What it does is planned in `points.py`, and planned
again if somebody appended in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Literal

from . import telemetry
from .conversation import Conversation
from .errors import Conflict, InvalidData, NotFound, Unsupported
from .events import Checkpoint, Event, Json, NewEvent
from .points import (
    Move,
    Target,
    anchor_of,
    event_id,
    find_event,
    plan_move,
    read_operations,
    same_checkpoint,
)
from .stores.base import checkpoint_of
from .views import Rewind

Scope = Literal["both", "conversation", "files"]
"""What a rewind moves."""

_TRIES = 5


class Rewinding(Conversation):
    """A conversation that can go back."""

    def checkpoint(
        self,
        label: str | None = None,
        *,
        at: Target | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Checkpoint:
        """Mark a point to go back to: now, or the event `at`.

        The same point, label and metadata give the same checkpoint.
        """
        with telemetry.span(
            "session.checkpoint", session_id=self.id, store=type(self.store).__name__
        ) as span:
            point, known = self._mark(label, at, dict(metadata or {}))
            if telemetry.listeners:
                span.measurements["message_count"] = len(self.messages(repair=False))
                span.metadata.update(
                    message_id=event_id(self.store, self.id, point.seq),
                    checkpoint_id=point.id,
                    snapshot_id=point.id,
                    idempotent=known,
                )
            return point

    def _mark(
        self, label: str | None, at: Target | None, metadata: dict[str, Json]
    ) -> tuple[Checkpoint, bool]:
        """The checkpoint, and whether it was there already."""
        with self._mutex:
            self._check_open()
            self._save()
            anchor = self._point() if at is None else anchor_of(self.store, self.id, at)
            after = self._listed_after()
            known = same_checkpoint(self.store, self.id, anchor, label, metadata, after)
            if known is not None:
                return known, True
            data = {"at": anchor, "label": label, "metadata": metadata}
            return checkpoint_of(self._append([NewEvent("checkpoint", data)])[0], self.id), False

    def _point(self) -> int:
        """The last event of the history that says or does something."""
        notes = ("checkpoint", "session_resume")
        if self._at == 0:
            return 0
        said = (e for e in self.store.walk(self.id, until=self._at) if e.kind not in notes)
        event = next(said, None)
        return event.seq if event else 0

    def rewind(
        self,
        to: Target | None = None,
        *,
        before: Target | None = None,
        scope: Scope = "both",
        mode: Literal["mine", "exact"] = "mine",
        paths: Collection[str] | None = None,
        on_conflict: Literal["keep", "merge", "aside", "overwrite"] = "keep",
        dry_run: bool = False,
    ) -> Rewind:
        """Continue from an earlier point: `to` keeps that event, `before` drops it too.

        Nothing is erased: what is left behind stays as a branch, and `undo` takes the
        rewind back. With `dry_run`, only say what it would do.
        """
        _check_file_options(scope, mode, paths, on_conflict)
        if (to is None) == (before is None):
            raise InvalidData("rewind takes either `to` or `before`")
        target = before if to is None else to
        assert target is not None
        kind = "snapshot" if isinstance(target, Checkpoint) else "message"
        with telemetry.span(
            "session.rewind", session_id=self.id, target=kind, store=type(self.store).__name__
        ) as s:
            anchor = anchor_of(self.store, self.id, target, before=before is not None)
            if telemetry.listeners and anchor:
                named = find_event(self.store, self.id, target).kind
                s.metadata["target"] = "snapshot" if named == "checkpoint" else "message"
            data = {"scope": "conversation", "to": anchor}
            return self._go(s, "rewound", lambda: (anchor, data), dry_run=dry_run, anyway=False)

    def undo(self, *, dry_run: bool = False) -> Rewind:
        """Take back the last turn or rewind that is not undone yet."""
        with telemetry.span(
            "session.undo", session_id=self.id, redo=False, store=type(self.store).__name__
        ) as span:
            return self._go(span, "undone", self._undo_target, dry_run=dry_run, anyway=True)

    def redo(self, *, dry_run: bool = False) -> Rewind:
        """Take back the last undo, if nothing was said or done since."""
        with telemetry.span(
            "session.undo", session_id=self.id, redo=True, store=type(self.store).__name__
        ) as span:
            return self._go(span, "redone", self._redo_target, dry_run=dry_run, anyway=True)

    def _undo_target(self) -> tuple[int, dict[str, Json]]:
        done = read_operations(self.store, self.id).done
        if not done:
            raise NotFound(f"session `{self.id}` has nothing to undo")
        return done[-1].before, {"of": done[-1].seq, "kind": done[-1].kind}

    def _redo_target(self) -> tuple[int, dict[str, Json]]:
        undone = read_operations(self.store, self.id).undone
        if not undone:
            raise NotFound(f"session `{self.id}` has nothing to redo")
        return undone[-1].before, {"of": undone[-1].seq, "kind": undone[-1].kind}

    def _go(
        self,
        span: telemetry.Span,
        kind: str,
        find: Callable[[], tuple[int, dict[str, Json]]],
        *,
        dry_run: bool,
        anyway: bool,
    ) -> Rewind:
        """Move the conversation; planned again if somebody appended in between."""
        self._check_open()
        if dry_run:
            return self._result(span, self._plan(find()[0]), applied=False)
        with self._driving():
            self._save()
            for attempt in range(_TRIES):
                newest = next(self.events(reverse=True, limit=1), None)
                head = newest.seq if newest else 0
                anchor, data = find()
                move = self._plan(anchor)
                if not (move.changes or anyway):
                    return self._result(span, move, applied=True)
                numbers = {
                    "events_dropped": move.events_dropped,
                    "message_count": move.message_count,
                }
                batch = [NewEvent(kind, {**data, **numbers}, follows=anchor)]
                prompt = move.reprompt()
                try:
                    self._append([*batch, prompt] if prompt else batch, expected=head)
                    return self._result(span, move, applied=True)
                except Conflict:
                    if attempt == _TRIES - 1:
                        raise
        raise AssertionError("unreachable")

    def _plan(self, anchor: int) -> Move:
        """The way to `anchor`, with the system prompt that is pinned but not stored yet."""
        move = plan_move(self.store, self.id, self._at, anchor)
        if self._prompt is None:
            return move
        owed = Event(0, "", "", self._prompt.kind, dict(self._prompt.data))
        count = move.message_count + (move.prompt is None)
        return replace(move, message_count=count, prompt=owed)

    def _result(self, span: telemetry.Span, move: Move, *, applied: bool) -> Rewind:
        span.measurements["events_dropped"] = move.events_dropped
        span.measurements["messages_deleted"] = move.messages_dropped
        span.measurements["message_count"] = move.message_count
        if telemetry.listeners:
            span.metadata["anchor_message_id"] = event_id(self.store, self.id, move.anchor)
            span.metadata["applied"] = applied
        return Rewind(applied, move.anchor, move.events_dropped, move.message_count)


def _check_file_options(
    scope: str, mode: str, paths: Collection[str] | None, on_conflict: str
) -> None:
    if scope not in ("both", "conversation", "files"):
        raise InvalidData(f"scope is 'both', 'conversation' or 'files', not {scope!r}")
    if mode not in ("mine", "exact"):
        raise InvalidData(f"mode is 'mine' or 'exact', not {mode!r}")
    if on_conflict not in ("keep", "merge", "aside", "overwrite"):
        raise InvalidData(f"on_conflict={on_conflict!r} is unknown")
    if scope == "files" or paths is not None:
        raise Unsupported("this version rewinds conversations; it does not capture files")
