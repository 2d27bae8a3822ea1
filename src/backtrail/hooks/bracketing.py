"""The files around an agent's tool calls, as one hook sees them.

The hook before a call opens a bracket, the hook after it, another process, ends it. In
between the bracket belongs to the agent's process. What calls of a turn left open ends with
the turn; what a dead agent left open ends at the session's next event.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import BacktrailError, Unsafe
from ..events import NewEvent
from ..files.baseline import PARTIAL
from ..files.brackets import Bracket, Runner, is_dead
from ..files.names import inside
from ..files.roots import refuse_broad
from .baseline import is_there
from .places import folder_of

if TYPE_CHECKING:
    from ..events import Json
    from ..files.depot import Depot
    from ..files.looking import Log
    from ..files.workspace import Workspace
    from ..stores.base import Store

UNSEEN = "the beginning of the call was not seen"
"""What an event says whose call has no bracket."""


class Grab(msgspec.Struct, frozen=True):
    """A call that began before the first import was done: the paths it named, as they were."""

    before: str
    paths: list[str]


class Files:
    """A foreign session's project, for the length of one hook.

    `patience` is how long the hook may work on the first import. `troubles` are what went
    wrong and stopped nothing.
    """

    def __init__(self, store: Store, session_id: str, cwd: str, patience: float) -> None:
        self.troubles: list[str] = []
        self.unwatched: str | None = None
        self._store = store
        self._id = session_id
        self._patience = patience
        self._depot: Depot | None = None
        self._workspace: Workspace | None = None
        self._ready: bool | None = None
        try:
            self._open(cwd)
        except Unsafe as error:
            # A home folder is no project, and no trouble either.
            self.unwatched = str(error)
        except BacktrailError as error:
            self.unwatched = str(error)
            self.troubles.append(str(error))

    def _open(self, cwd: str) -> None:
        refuse_broad(cwd)
        if not Path(cwd).is_dir():
            self.unwatched = f"{cwd} is not a directory, so no files are captured"
            return
        from ..files.depot import Depot

        depot = Depot.of(self._store)
        try:
            self._workspace = depot.workspace(cwd, self._store)
        except BaseException:
            depot.close()
            raise
        self._depot = depot

    @property
    def _log(self) -> Log:
        scope = f"#{self._store.scope}" if self._store.scope else ""
        return f"{self._store.url}{scope}", self._id

    def _is_ready(self, workspace: Workspace) -> bool:
        if self._ready is None:
            self._ready = is_there(self._store, workspace, self._log, self._patience)
        return self._ready

    def branch(self) -> str | None:
        """The branch that git has checked out, or its commit."""
        head = self._workspace.head() if self._workspace is not None else None
        return head.split(" ")[0] if head else None

    # --- looking -------------------------------------------------------------------------

    def look(self) -> tuple[list[NewEvent], dict[str, Json]]:
        """Scan: the events owed now, and what a message says about the files."""
        workspace = self._workspace
        if workspace is None:
            return [], {"files": {"missed": self.unwatched}}
        try:
            if not self._is_ready(workspace):
                return [], {"files": {"missed": PARTIAL}}
            owed = self._ended(workspace, [b for b in self._mine(workspace) if is_dead(b)])
            tree = workspace.scan(self._log, self._store)
            owed += self._by_others(workspace, tree, owed)
        except BacktrailError as error:
            self.troubles.append(str(error))
            return [], {"files": {"missed": str(error)}}
        self.troubles += workspace.problems
        head = workspace.head()
        return owed, {"tree": tree.hex()} | ({"git": head} if head else {})

    def _by_others(
        self, workspace: Workspace, tree: bytes, owed: list[NewEvent], besides: str = ""
    ) -> list[NewEvent]:
        """The event for what changed since this session last looked, outside its calls."""
        if any(bracket.id != besides for bracket in self._mine(workspace)):
            return []
        known = _after(owed) or self._last_tree()
        if known is None or known == tree:
            return []
        return [NewEvent("files_changed", {"files": {"before": known.hex(), "after": tree.hex()}})]

    def _last_tree(self) -> bytes | None:
        """The newest state that the session's log tells of.

        The same as `filepoints.last_tree`, without what else that module brings along: a
        hook pays for every import.
        """
        for event in self._store.read(self._id, reverse=True):
            files = event.data.get("files")
            found = files.get("after") if isinstance(files, dict) else None
            if found is None:
                found = event.data.get("tree")
            if isinstance(found, str):
                return bytes.fromhex(found)
        return None

    def _mine(self, workspace: Workspace) -> list[Bracket]:
        open_now = workspace.catalogue.brackets(workspace.place.n)
        return [bracket for bracket in open_now if bracket.owner == self._id]

    # --- calls ---------------------------------------------------------------------------

    def begin(
        self, name: str, call: str | None, paths: list[str] | None, runner: Runner
    ) -> list[NewEvent]:
        """A call begins: open its bracket; the events owed now."""
        workspace = self._workspace
        if workspace is None:
            return []
        named = _inside(workspace.root, paths)
        if named == []:
            # All it touches lies outside.
            return []
        if not self._is_ready(workspace):
            if named is not None:
                tree = workspace.grab(self._log, named)
                self._keep(call or name, Grab(tree.hex(), [os.fsdecode(path) for path in named]))
            return []
        owed = self._ended(workspace, [b for b in self._mine(workspace) if is_dead(b)])
        bracket = workspace.begin(self._log, name, call, named, self._store, runner=runner)
        return owed + self._by_others(workspace, bracket.tree, owed, bracket.id)

    def end(
        self, name: str, call: str | None, paths: list[str] | None, agent: str
    ) -> dict[str, Json] | None:
        """A call is over: what it did to the files, for its event; None if nothing."""
        workspace = self._workspace
        if workspace is None:
            return None
        for bracket in reversed(self._mine(workspace)):
            named = bracket.call == call if call else bracket.name == name and not bracket.call
            if named and bracket.agent == agent:
                _, done = workspace.end(bracket, self._log, self._store)
                return done.to_dict() if done is not None else None
        if _inside(workspace.root, paths) == []:
            return None
        grab = self._taken(call or name)
        if grab is not None:
            return self._grabbed(workspace, grab)
        return {"missed": PARTIAL if workspace.is_new() else UNSEEN}

    def end_all(self, agent: str | None = "") -> list[NewEvent]:
        """End what an agent of the session left open (None: all of them), as interrupted."""
        workspace = self._workspace
        if workspace is None or workspace.is_new():
            return []
        left = [b for b in self._mine(workspace) if agent is None or b.agent == agent]
        return self._ended(workspace, left)

    def _ended(self, workspace: Workspace, brackets: list[Bracket]) -> list[NewEvent]:
        ended: list[NewEvent] = []
        for bracket in brackets:
            _, done = workspace.end(bracket, self._log, self._store)
            if done is not None:
                data = {"name": bracket.name, "interrupted": True, "files": done.to_dict()}
                data |= {"call": bracket.call} if bracket.call else {}
                data |= {"agent": bracket.agent} if bracket.agent else {}
                ended.append(NewEvent("action", data))
        return ended

    # --- calls before the first import is done -------------------------------------------

    def _grabbed(self, workspace: Workspace, grab: Grab) -> dict[str, Json] | None:
        after = workspace.grab(self._log, [os.fsencode(path) for path in grab.paths])
        if after.hex() == grab.before:
            return None
        return {"before": grab.before, "after": after.hex(), "partial": True}

    def _path(self, name: str) -> Path:
        name = hashlib.sha256(f"{self._id} {name}".encode("utf-8", "replace")).hexdigest()[:32]
        return folder_of(self._store) / "grabs" / name

    def _keep(self, name: str, grab: Grab) -> None:
        path = self._path(name)
        path.parent.mkdir(0o700, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(grab))

    def _taken(self, name: str) -> Grab | None:
        path = self._path(name)
        try:
            grab = msgspec.json.decode(path.read_bytes(), type=Grab)
        except (OSError, msgspec.DecodeError):
            return None
        finally:
            path.unlink(missing_ok=True)
        return grab

    def close(self) -> None:
        """Save what is known, and let go."""
        workspace, self._workspace = self._workspace, None
        depot, self._depot = self._depot, None
        try:
            if workspace is not None:
                workspace.close()
        finally:
            if depot is not None:
                depot.close()


def _inside(root: bytes, paths: list[str] | None) -> list[bytes] | None:
    """Declared paths below the root; None for anything, empty if all lie outside."""
    if paths is None:
        return None
    found: list[bytes] = []
    for path in paths:
        try:
            named = inside(root, path)
        except Unsafe:
            continue
        if named == b"":
            return None
        found.append(named)
    return list(dict.fromkeys(found))


def _after(owed: list[NewEvent]) -> bytes | None:
    """The tree that the last of some events leaves."""
    for event in reversed(owed):
        files = event.data.get("files")
        if isinstance(files, dict) and "after" in files:
            return bytes.fromhex(files["after"])
    return None
