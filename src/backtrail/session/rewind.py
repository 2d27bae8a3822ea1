"""Going back: rewind, undo and redo, of the conversation and the files.

Each is an event; nothing is erased. The conversation's way is planned in `points.py`, the
files' way in `files/`; preview and act share the plans. Files go first, under a journal
that holds the event: so conversation and files agree, also after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import telemetry
from .._startup.frozen import replace
from ..errors import Conflict, InvalidData, NotFound, Unsupported
from ..events import Checkpoint, Event, Json, NewEvent, new_id
from ..files.changes.effects import Ranges, among
from ..files.restore.conflicts import Decisions, Put
from ..files.restore.journal import Restoration, kept
from ..files.restore.moves import cannot_go
from ..files.restore.plan import Plan
from ..files.restore.unfinished import described
from ..files.trees import Get, digest_of
from ..stores.base import Store
from .capture import Capture
from .drive import DrivingLease
from .fileplans import (
    Known,
    Way,
    Wish,
    changes_in,
    check_allowed,
    check_folder,
    finish_way,
    made_root,
    plan_files,
    plan_name,
    possible,
    redo_way,
    turn_way,
    undo_way,
)
from .filepoints import point_at
from .log import SessionLog, numbered, unstored
from .points import (
    Move,
    Target,
    anchor_of,
    event_id,
    find_event,
    find_turn,
    lost_prompt,
    plan_move,
    read_operations,
)
from .uncaptured import KINDS, Row, missing
from .views import Rewind

if TYPE_CHECKING:
    from ..files.workspace.workspace import Workspace

_TRIES = 5
_MANY_TRIES = 100


class Rewinder:
    """Takes a session back, and its files with it."""

    def __init__(self, log: SessionLog, capture: Capture, lease: DrivingLease) -> None:
        self._log = log
        self._capture = capture
        self._recorder = capture.recorder
        self._lease = lease
        self._store, self._id = log.store, log.id

    def rewind(
        self, to: Target | None, before: Target | None, wish: Wish, *,
        turn: Event | int | str | None = None, dry_run: bool = False,
    ) -> Rewind:  # fmt: skip
        """Continue from an earlier point; see `Session.rewind`."""
        if turn is not None:
            if to is not None or before is not None:
                raise InvalidData("rewind takes either `turn`, or `to`, or `before`")
            return self._rewind_turn(turn, wish, dry_run=dry_run)
        if (to is None) == (before is None):
            raise InvalidData("rewind takes either `to` or `before`")
        target = before if to is None else to
        assert target is not None
        kind = "snapshot" if isinstance(target, Checkpoint) else "message"
        with telemetry.span(
            "session.rewind", session_id=self._id, target=kind, store=type(self._store).__name__
        ) as s:
            self._log.save()
            anchor = anchor_of(self._store, self._id, target, before=before is not None)
            data: dict[str, Json] = {"to": anchor, "mode": wish.mode}
            if anchor or before is not None:
                named = find_event(self._store, self._id, target)
                # The history goes on behind `to`; this is what the caller named.
                data |= {"target": named.seq} | ({"before": True} if before is not None else {})
                s.metadata["target"] = "snapshot" if named.kind == "checkpoint" else "message"
            state = wish.mode == "exact" or wish.paths is not None
            point = point_at(self._store, self._id, target, before=before is not None, state=state)
            way = Way(anchor, point, data)
            return self._go(s, "rewound", lambda: way, wish, dry_run=dry_run, anyway=False)

    def _rewind_turn(self, turn: Event | int | str, wish: Wish, *, dry_run: bool) -> Rewind:
        """Take one turn's changes out of the files; later ones stay."""
        if wish.scope == "conversation" or wish.mode == "exact":
            raise InvalidData("a turn is taken out of the files, by its own changes: no other scope"
                              " or mode goes with `turn`")  # fmt: skip
        with telemetry.span(
            "session.rewind", session_id=self._id, target="turn", store=type(self._store).__name__
        ) as span:
            self._log.save()
            seq = find_turn(self._store, self._id, turn)
            only = replace(wish, scope="files")

            def way() -> Way:
                return turn_way(self._store, self._id, seq)

            return self._go(span, "rewound", way, only, dry_run=dry_run, anyway=False)

    def undo(
        self, on_conflict: Decisions = "keep", *, dry_run: bool = False, force: bool = False,
        expected: str | None = None,
    ) -> Rewind:  # fmt: skip
        """Take back the last turn or rewind; see `Session.undo`."""
        wish = Wish(on_conflict=on_conflict, force=force, expected=expected)
        if _decides(on_conflict) and read_operations(self._store, self._id).unfinished:
            wish = replace(wish, scope="files")
            return self._take_back("undone", finish_way, wish, dry_run, anyway=False)
        return self._take_back("undone", undo_way, wish, dry_run)

    def redo(
        self, on_conflict: Decisions = "keep", *, dry_run: bool = False, force: bool = False,
        expected: str | None = None,
    ) -> Rewind:  # fmt: skip
        """Take back the last undo, if nothing was said or done since."""
        wish = Wish(on_conflict=on_conflict, force=force, expected=expected)
        return self._take_back("redone", redo_way, wish, dry_run)

    def _take_back(
        self, kind: str, find: Callable[[Store, str], Way], wish: Wish, dry_run: bool,
        *, anyway: bool = True,
    ) -> Rewind:  # fmt: skip
        redo = kind == "redone"
        with telemetry.span(
            "session.undo", session_id=self._id, redo=redo, store=type(self._store).__name__
        ) as span:
            way = partial(find, self._store, self._id)
            return self._go(span, kind, way, wish, dry_run=dry_run, anyway=anyway)

    # --- acting --------------------------------------------------------------------------

    def _go(
        self, span: telemetry.Span, kind: str, find: Callable[[], Way], wish: Wish,
        *, dry_run: bool, anyway: bool,
    ) -> Rewind:  # fmt: skip
        """Move what the wish says. Only then are calls of messages over that have no result."""
        self._log.check_open()
        watched = self._capture.watched()
        if watched is not None and not dry_run:
            watched.recover(self._store)
            self._settle(watched)
        workspace = self._for_files(wish)
        notes = self._unmoved() if workspace is None and wish.scope != "conversation" else []
        if dry_run:
            way = find()
            if watched is not None and watched.cut_short:
                # What it would do depends on what that one comes to, and a preview ends nothing.
                result = self._result(span, self._move(way, wish), None, _nothing, notes, wish,
                                      applied=False)  # fmt: skip
                return replace(result, error=described(watched.path))
            plan, get, owed = self._preview(workspace, way, wish)
            move = self._move(way, wish)
            if wish.scope != "files":
                # What will be recorded of calls without an end is dropped, too.
                move = replace(move, events_dropped=move.events_dropped + owed)
            name = plan_name(kind, wish, move, plan)
            plan, error = possible(plan, get)
            result = self._result(span, move, plan, get, notes, wish, applied=False)
            return replace(result, error=error, plan=name)
        with self._lease.driving():
            self._log.save()
            if workspace is not None and wish.force:
                self._recorder.catch_up_elsewhere(workspace)
                self._capture.flush()
            move, plan = self._moved(workspace, kind, find, wish, anyway=anyway)
            if wish.scope != "files":
                self._recorder.end_asked()
            get = workspace.get if workspace is not None else _nothing
            return self._result(span, move, plan, get, notes, wish, applied=True)

    def _moved(
        self, workspace: Workspace | None, kind: str, find: Callable[[], Way], wish: Wish,
        *, anyway: bool,
    ) -> tuple[Move, Plan | None]:  # fmt: skip
        """Plan and move; planned again after an append in between."""
        for attempt in range(_TRIES):
            head = self._log.head()
            way = find()
            move = self._move(way, wish)
            data = {**way.data, "scope": wish.scope if workspace else "conversation"}
            batch = self._events(kind, way, move, data, wish)
            plan = None
            if workspace is None:
                _check(wish, kind, move, None)
            else:
                plan = self._restore(workspace, way, wish, batch, move)
                if plan.acts:
                    return move, plan
                head = self._log.head()
            if not (move.changes or anyway):
                return move, plan
            if plan is not None:
                batch = [kept(batch[0], plan), *batch[1:]]
            try:
                self._capture.append(batch, expected=head)
                return move, plan
            except Conflict:
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _settle(self, workspace: Workspace) -> None:
        """What calls did is in the log, before something builds on it."""
        if self._recorder.under_way:
            self._capture.look()
        else:
            with self._recorder.lock:
                self._recorder.end_orphans(workspace)
        self._capture.flush()

    def _preview(
        self, workspace: Workspace | None, way: Way, wish: Wish
    ) -> tuple[Plan | None, Get, int]:
        """The plan, where its contents are, and how many events are recorded before it.

        What it would write is not stored.

        Calls stay as they are: a later operation finds what it would without the preview.
        """
        if workspace is None:
            return None, _nothing, 0
        from ..files.changes.reversal import Foresight

        foresight = Foresight(self._recorder, workspace)
        owed = foresight.owed(force=wish.force)
        laid: dict[bytes, bytes] = {}

        def put(content: bytes) -> bytes:
            laid[digest_of(content)] = content
            return digest_of(content)

        def get(digest: bytes) -> bytes:
            return laid[digest] if digest in laid else workspace.get(digest)

        def plan_for(now: bytes) -> Plan:
            back = foresight.back(now, owed)
            return self._plan_files(workspace, way, wish, now, put, [*owed, *back])

        return self._restoration(workspace).preview(plan_for), get, len(owed)

    def _restoration(self, workspace: Workspace) -> Restoration:
        return Restoration(workspace, self._recorder.log, self._store)

    def _for_files(self, wish: Wish) -> Workspace | None:
        """The workspace, if files are to move; they must be if they are asked for alone."""
        if wish.scope == "conversation":
            return None
        workspace = self._capture.watched()
        self._capture.is_partial(None)
        if workspace is None and (wish.scope == "files" or wish.paths is not None):
            raise Unsupported(self._capture.unwatched)
        return workspace

    def _unmoved(self) -> list[str]:
        """Why files stay as they are, where they were to be captured and could not be."""
        why = self._capture.unwatched
        kept = [f"files are not captured, and stay: {why}"]
        return kept if any(problem.detail == why for problem in self._log.problems) else []

    def _events(
        self, kind: str, way: Way, move: Move, data: dict[str, Json], wish: Wish
    ) -> list[NewEvent]:
        """The events that record it, with ids, so that a journal can repeat them."""
        numbers = {"events_dropped": move.events_dropped, "message_count": move.message_count}
        follows = None if wish.scope == "files" else way.anchor
        found = [NewEvent(kind, {**data, **numbers}, id=new_id(), follows=follows)]
        prompt = move.reprompt() if wish.scope != "files" else None
        if prompt is not None:
            found.append(replace(prompt, id=new_id()))
        return found

    def _restore(
        self, workspace: Workspace, way: Way, wish: Wish, batch: list[NewEvent], move: Move
    ) -> Plan:
        """Move the files, and append the events if any file moved."""
        if not Path(workspace.path).is_dir():
            # It would be made again, wherever a stranger's session says that it was.
            check_folder(self._store.record(self._id), workspace.path)

        recorder = self._recorder

        def plan_for(now: bytes) -> Plan:
            # Without our own lock: its holder may wait for the workspace's.
            if not recorder.under_way:
                back = None
                if recorder.known_tree() not in (None, now):
                    from ..files.changes.reversal import Foresight

                    back = Foresight(recorder, workspace).put_back(now)
                recorder.owe_others(now, back)
            recorder.tree = now
            self._capture.flush()
            owed = [one.event for one in recorder.queue.waiting]
            plan = self._plan_files(workspace, way, wish, now, workspace.blobs.put, owed)
            _check(wish, batch[0].kind, move, plan)
            check_allowed(self._store.record(self._id), workspace.path, plan, workspace.get)
            return plan

        def append(events: list[NewEvent]) -> None:
            # A rewind that moved files is recorded whatever else was appended meanwhile; its ids
            # make it safe to try again.
            for _ in range(_MANY_TRIES):
                with suppress(Conflict):
                    self._capture.append(events, expected=self._log.head())
                    return
            raise Conflict(f"others append to session `{self._id}` all the time: try again")

        try:
            unmake = made_root(self._store, self._id, way)
            restoration = self._restoration(workspace)
            done = restoration.act(plan_for, batch, append, force=wish.force, unmake=unmake)
        except BaseException:
            with recorder.lock:
                # It may be finished later; the log says how the files are then.
                recorder.tree = None
            raise
        with recorder.lock:
            recorder.tree = done.after
        return done.plan

    # --- planning ------------------------------------------------------------------------

    def _plan_files(
        self, workspace: Workspace, way: Way, wish: Wish, now: bytes, put: Put,
        owed: list[NewEvent],
    ) -> Plan:  # fmt: skip
        """What happens to each path, and the warnings that belong to it.

        The events that are `owed` count as they would be numbered.
        """
        head = self._log.head()
        info = self._store.record(self._id)
        log = Known(self._store, info, head, numbered(owed, head))
        return plan_files(log, workspace, way, wish, now, put)

    def _move(self, way: Way, wish: Wish) -> Move:
        """The conversation's way; a rewind of files alone has none."""
        return self._plan(way.anchor if wish.scope != "files" else self._log.view())

    def reprompt(self, anchor: int) -> NewEvent | None:
        """What pins the system prompt again that a fork at `anchor` would lack."""
        if self._log.prompt is not None:
            return NewEvent("system_message", self._log.prompt.data)
        lost = lost_prompt(self._store, self._id, self._log.at, anchor)
        return NewEvent("system_message", lost.data) if lost else None

    def _plan(self, anchor: int) -> Move:
        """The way to `anchor`, with the system prompt that is pinned but not stored yet."""
        move = plan_move(self._store, self._id, self._log.at, anchor)
        if self._log.prompt is None:
            return move
        count = move.message_count + (move.prompt is None)
        return replace(move, message_count=count, prompt=unstored(self._log.prompt))

    def _result(
        self, span: telemetry.Span, move: Move, plan: Plan | None, get: Get, notes: list[str],
        wish: Wish, *, applied: bool,
    ) -> Rewind:  # fmt: skip
        span.measurements["events_dropped"] = move.events_dropped
        span.measurements["messages_deleted"] = move.messages_dropped
        span.measurements["message_count"] = move.message_count
        if telemetry.listeners:
            span.metadata["anchor_message_id"] = event_id(self._store, self._id, move.anchor)
            span.metadata["applied"] = applied
        result = Rewind(applied, move.anchor, move.events_dropped, move.message_count)
        if plan is None:
            return replace(result, warnings=notes)
        files = changes_in(plan, get)
        conflicts = [file for file in files if file.action == "conflict"]
        span.measurements["files_changed"] = len(files) - len(conflicts)
        about = plan.again or plan.took
        cut = about[0].first - 1 if about else None
        return replace(
            result, files=files, conflicts=conflicts, warnings=plan.warnings, cut=cut,
            not_captured=[*self._missing(plan.took, wish), *cannot_go(plan)],
        )  # fmt: skip

    def _missing(self, took: Ranges, wish: Wish) -> list[Row]:
        """What the events that go back did not capture, and so is not taken back."""
        if not took:
            return []
        events = self._store.read(self._id, after=took[0].first - 1, kinds=KINDS)
        found = missing(event for event in events if among(event.seq, took))
        if wish.mode == "exact":
            # The files are made as they were, whatever changed them and whether or not it was seen.
            found = [one for one in found if not one.is_call]
        if wish.paths is not None:
            found = [one for one in found if one.is_call]
        return [one.row for one in found]


def _decides(decisions: Decisions) -> bool:
    """Whether anything but keeping is wanted."""
    given = {decisions} if isinstance(decisions, str) else {*decisions.values()}
    return bool(given - {"keep"})


def _check(wish: Wish, kind: str, move: Move, plan: Plan | None) -> None:
    """`Conflict` if this is not the plan that was shown."""
    if wish.expected not in (None, plan_name(kind, wish, move, plan)):
        raise Conflict(
            "the files or the session are not as they were at the preview: nothing was changed, "
            "preview again"
        )


def _nothing(digest: bytes) -> bytes:
    """Where there are no files there are no contents."""
    raise NotFound(f"content {digest.hex()}")
