"""Looking at a session's files: what differs, what changed when, where they are."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotFound
from ..events import Event, Json, NewEvent, SessionInfo
from ..events.history import newest_look, root_of
from ..files.differences import Diff, FileDiff, diff
from ..files.names import several
from ..stores.wrapper import store_names
from .capture import Capture
from .filepoints import TurnChanges, changes_by_turn, left_elsewhere, others_since, point_at
from .keywords import folder
from .log import SessionLog, numbered
from .points import Target
from .uncaptured import KINDS, account

if TYPE_CHECKING:
    from ..files.changes.blame import BlameLine
    from ..files.workspace.meetings import UnderWay


class Browser:
    """The files of a session, to be looked at, copied and bound anew."""

    def __init__(self, log: SessionLog, capture: Capture) -> None:
        self._log = log
        self._capture = capture
        self._recorder = capture.recorder
        self._store, self._id = log.store, log.id

    def diff(
        self, a: Target | None = None, b: Target | None = None,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> Diff:  # fmt: skip
        """What differs between two points, or between one and now; see `Session.diff`."""
        workspace = self._capture.needed()
        then = point_at(self._store, self._id, 0 if a is None else a)
        before, left = then.tree, frozenset[bytes]()
        after: bytes | None
        if b is None:
            after = self.present()
            if before is not None and then.root != workspace.stamp().get("id"):
                left = left_elsewhere(workspace.get, before, after)
        else:
            after = point_at(self._store, self._id, b).tree
        before = before if before is not None else after
        named = None if paths is None else workspace.meant(several(paths), before, after)
        return diff(workspace.get, before, after, named, left)

    def blame(self, path: str | os.PathLike[str], at: Target | None = None) -> list[BlameLine]:
        """The author of each line of a file; see `Session.blame`."""
        from ..files.changes.blame import OTHERS, UNCERTAIN
        from .lineage import Lineage, Moment

        workspace = self._capture.needed()
        info, owed = self._store.record(self._id), list[Event]()
        if at is None:
            tree, recorder = self.present(), self._recorder
            if recorder.mine(workspace) or recorder.queue.waiting:
                from ..files.changes.reversal import Foresight

                # What calls did that no event says yet.
                new = Foresight(recorder, workspace).owed(force=True)
                owed = numbered(new, self._log.head())
            last = UNCERTAIN if self.under_way() else OTHERS
            moment = Moment(tree, str(workspace.stamp().get("id", "")), None, last)
        else:
            point = point_at(self._store, self._id, at)
            if point.tree is None:
                raise NotFound("the files at that point were not captured")
            moment = Moment(point.tree, point.root, point.cut)
        (name,) = workspace.meant([path], moment.tree)
        return Lineage(self._store, info, workspace.get).blame(name, moment, owed)

    def changes(self) -> list[TurnChanges]:
        """What happened to the files, turn by turn: by which call, or by others."""
        return changes_by_turn(self._store, self._id, self._capture.needed().get)

    def not_captured(self) -> list[tuple[str, str, int]]:
        """All that is not captured; see `Session.not_captured`."""
        scanned = self._capture.needed().not_captured()
        return account(self._log.info(), self._store.read(self._id, kinds=KINDS), scanned)

    def relocate(self, cwd: str | os.PathLike[str] | None = None) -> Diff:
        """Take another directory as the workspace; see `Session.relocate`."""
        recorder = self._recorder
        with recorder.lock:
            if cwd is not None:
                place, info = folder(cwd), self._log.info()
                if place != info.root:
                    self._capture.rebind(place)
                    self._capture.cwd = moved_along(info, place)
                    self._store.update(self._id, cwd=self._capture.cwd, root=place)
                self._capture.root = place
            recorder.end_all()
            self._capture.flush()
            known = recorder.known_tree()
            self._capture.let_go()
            recorder.folder.take_anew()
            workspace = self._capture.needed()
            details = self._capture.look()
            self._capture.flush()
            self._say_where(details)
            return diff(workspace.get, recorder.tree if known is None else known, recorder.tree)

    def _say_where(self, details: dict[str, Json]) -> None:
        """Have the log say which root the session has, where no file differs."""
        event = newest_look(self._store.read(self._id, reverse=True))
        stamp = details.get("workspace")
        if stamp and (event is None or root_of(event) != stamp["id"]):
            data = {"at": self._log.head(), "label": None, "metadata": {}, **details}
            self._capture.append([NewEvent("checkpoint", data)])

    def write_files(self, at: Target | None, into: str | os.PathLike[str]) -> None:
        """The files of a point, or of now, in a new directory."""
        from ..files.restore.materialize import write_tree

        workspace = self._capture.needed()
        if at is None:
            tree: bytes | None = workspace.glance(self._recorder.log, self._store)
        else:
            tree = point_at(self._store, self._id, at).tree
        if tree is None:
            raise NotFound("the files at that point were not captured")
        write_tree(workspace.get, tree, into)

    def share_contents(self, session_id: str) -> None:
        """A fork relies on every content that this session relies on."""
        from ..files.depot import Depot, known_folder

        contents = known_folder(self._store)
        if self._recorder.folder.depot is None and (contents is None or not contents.exists()):
            return

        depot = Depot.of(self._store)
        try:
            for name in store_names(self._store):
                depot.blobs.copy_references(name, self._id, session_id)
        finally:
            depot.close()

    def present(self) -> bytes:
        """The tree of the session's files as they are now; no call ends by it."""
        workspace = self._capture.needed()
        now = workspace.glance(self._recorder.log, self._store)
        for note in workspace.problems:
            self._log.complain("restore", note)
        return now

    def by_others(self, prompt: Event | None, now: bytes) -> list[FileDiff]:
        """What others changed up to `now` since the session's last call, or its last prompt."""
        workspace = self._capture.needed()
        root = str(workspace.stamp().get("id", ""))
        return others_since(self._store, self._id, workspace.get, prompt, now, root).files

    def under_way(self) -> list[UnderWay]:
        """The calls that are open in the session's folder, above or below it, of any process."""
        workspace = self._capture.watched()
        return [] if workspace is None else workspace.under_way(self._recorder.log, self._store)

    def foreseen(self, now: bytes | None = None) -> list[Event]:
        """What calls did that are over and not recorded yet, as it will be; none ends by it.

        And what the session's agent put back by itself. `now` is the present tree, if it is known.
        """
        workspace, recorder = self._capture.watched(), self._recorder
        if workspace is None:
            return []
        from ..files.changes.reversal import Foresight, Reversals

        left = workspace.orphans(self._id, (), self._store)
        foresight = Foresight(recorder, workspace)
        owed = foresight.owed(force=False) if left else []
        if Reversals(self._store, self._id).agent() is not None:
            now = now or workspace.glance(recorder.log, self._store)
            owed += foresight.back(now, owed)
        return numbered(owed, self._log.head())


def moved_along(info: SessionInfo, root: str) -> str:
    """The folder below a new root that an agent ran in below the old one; else the root."""
    if info.cwd is None or info.root is None:
        return root
    there = Path(root, os.path.relpath(info.cwd, info.root)).resolve()
    return str(there) if there.is_relative_to(root) and there.is_dir() else root
