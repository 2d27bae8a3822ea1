"""Looking at a session's files: what differs, what changed when, where they are."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Conflict, NotFound
from ..events import Event, Json, NewEvent, SessionInfo
from ..events.history import newest_look, root_of, tree_of
from ..files.contents.blobs import Reference
from ..files.differences import Diff, FileDiff, diff
from ..files.names import several
from ..stores.wrapper import store_names
from .filepoints import TurnChanges, changes_by_turn, left_elsewhere, others_since, point_at
from .options import folder
from .points import Target
from .uncaptured import KINDS, account
from .watching import Watching

if TYPE_CHECKING:
    from ..files.workspace.workspace import UnderWay


class Browsing(Watching):
    """A watched conversation whose files can be looked at, copied and bound anew."""

    def diff(
        self,
        a: Target | None = None,
        b: Target | None = None,
        *,
        paths: Collection[str | os.PathLike[str]] | None = None,
    ) -> Diff:
        """What differs in the files between two points; without `b`, between `a` and now.

        Without `a`, from the beginning of the session.
        """
        workspace = self._needed()
        then = point_at(self.store, self.id, 0 if a is None else a)
        before, left = then.tree, frozenset[bytes]()
        after: bytes | None
        if b is None:
            after = workspace.glance(self._log_name, self.store)
            for note in workspace.problems:
                self._complain("restore", note)
            if before is not None and then.root != workspace.stamp().get("id"):
                left = left_elsewhere(workspace.get, before, after)
        else:
            after = point_at(self.store, self.id, b).tree
        before = before if before is not None else after
        named = None if paths is None else workspace.meant(several(paths), before, after)
        return diff(workspace.get, before, after, named, left)

    def changes(self) -> list[TurnChanges]:
        """What happened to the files, turn by turn: by which call, or by others."""
        return changes_by_turn(self.store, self.id, self._needed().get)

    def not_captured(self) -> list[tuple[str, str, int]]:
        """All that is not captured: path, reason, size.

        What the last scan did not keep; and with the size 0, calls that were missed, contents
        that are lost, and paths outside of the workspace that tools named.
        """
        scanned = self._needed().not_captured()
        return account(self.info(), self.store.read(self.id, kinds=KINDS), scanned)

    def relocate(self, cwd: str | os.PathLike[str] | None = None) -> Diff:
        """Take `cwd`, or what is at the session's root now, as its workspace from here on.

        The folder that the agent runs in moves along, if there is such a one in it.
        Calls under way end here, and what they did in the old place is told. Returns how its
        files differ from those the session knew last.
        """
        recorder = self._recorder
        with recorder.lock:
            if cwd is not None:
                place, info = folder(cwd), self.info()
                if place != info.root:
                    self._rebind(place)
                    self._cwd = moved_along(info, place)
                    self.update(cwd=self._cwd, root=place)
                self._root = place
            recorder.end_all()
            self._append([])
            known = recorder.known_tree()
            self._let_go()
            recorder.folder.take_anew()
            workspace = self._needed()
            details = self._look()
            self._append([])
            self._say_where(details)
            return diff(workspace.get, recorder.tree if known is None else known, recorder.tree)

    def _say_where(self, details: dict[str, Json]) -> None:
        """Have the log say which root the session has, where no file differs."""
        event = newest_look(self.store.read(self.id, reverse=True))
        stamp = details.get("workspace")
        if stamp and (event is None or root_of(event) != stamp["id"]):
            data = {"at": self._head_now(), "label": None, "metadata": {}, **details}
            self._append([NewEvent("checkpoint", data)])

    def _write_files(self, at: Target | None, into: str | os.PathLike[str]) -> None:
        """The files of a point, or of now, in a new directory."""
        from ..files.restore.materialize import write_tree

        workspace = self._needed()
        if at is None:
            tree: bytes | None = workspace.glance(self._log_name, self.store)
        else:
            tree = point_at(self.store, self.id, at).tree
        if tree is None:
            raise NotFound("the files at that point were not captured")
        write_tree(workspace.get, tree, into)

    def _look_back(self, at: Target) -> dict[str, Json]:
        """What an event that marks `at` says about the files; their contents are kept from now.

        Where they are not there any more, that is a problem of the session.
        """
        point = point_at(self.store, self.id, at)
        workspace = self._watched() if point.tree is not None else None
        if point.tree is None:
            return {}
        if workspace is not None:
            relies = [Reference(*self._log_name, point.tree)]
            try:
                workspace.blobs.write([], relies, relies=[point.tree])
            except Conflict:
                why = f"the files at event {point.cut} were given up: there is no way back to them"
                self._complain("given up", why)
        before = self.store.read(self.id, until=point.cut, reverse=True) if point.cut else ()
        event = newest_look(before)
        stamp = event.data.get("workspace") if event is not None else None
        known = event is not None and stamp and tree_of(event) == point.tree
        return {"tree": point.tree.hex()} | ({"workspace": stamp} if known else {})

    def _share_contents(self, session_id: str) -> None:
        """A fork relies on every content that this session relies on."""
        from ..files.depot import Depot, known_folder

        contents = known_folder(self.store)
        if self._recorder.folder.depot is None and (contents is None or not contents.exists()):
            return

        depot = Depot.of(self.store)
        try:
            for name in store_names(self.store):
                depot.blobs.copy_references(name, self.id, session_id)
        finally:
            depot.close()


def by_others(session: Browsing, prompt: Event | None) -> list[FileDiff]:
    """What others changed since the session's last call, or since its last prompt."""
    workspace = session._needed()
    now = workspace.glance(session._log_name, session.store)
    for note in workspace.problems:
        session._complain("restore", note)
    root = str(workspace.stamp().get("id", ""))
    return others_since(session.store, session.id, workspace.get, prompt, now, root).files


def under_way(session: Browsing) -> list[UnderWay]:
    """The calls that are open in the session's folder, above or below it, whoever runs them."""
    workspace = session._watched()
    return [] if workspace is None else workspace.under_way(session._log_name, session.store)


def moved_along(info: SessionInfo, root: str) -> str:
    """The folder below a new root that an agent ran in below the old one; else the root."""
    if info.cwd is None or info.root is None:
        return root
    there = Path(root, os.path.relpath(info.cwd, info.root)).resolve()
    return str(there) if there.is_relative_to(root) and there.is_dir() else root
