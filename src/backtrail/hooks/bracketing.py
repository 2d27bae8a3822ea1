"""The files around an agent's tool calls, as one hook sees them.

The hook before a call opens a bracket, the hook after it, another process, ends it. In
between the bracket belongs to the agent's process. What calls of a turn left open ends with
the turn; what a dead agent left open ends at the session's next event.

The event that tells what a call did has the bracket's id, and only then does the bracket go:
a hook that is killed in between leaves it to the next one, and nothing is told twice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..errors import BacktrailError, Unsafe
from ..events import NewEvent
from ..files.baseline import PARTIAL
from ..files.brackets import Bracket, Runner, is_dead, is_told
from ..files.names import inside
from ..files.roots import refuse_broad
from ..hashing import sha256
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


class Ended(NamedTuple):
    """A call that is over: what it did to the files, and the bracket that waits to be told."""

    files: dict[str, Json] | None
    bracket: Bracket | None = None


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
            self._end_orphans(workspace)
            tree = workspace.scan(self._log, self._store)
            owed = self._by_others(workspace, tree)
        except BacktrailError as error:
            self.troubles.append(str(error))
            return [], {"files": {"missed": str(error)}}
        self.troubles += workspace.problems
        head = workspace.head()
        return owed, {"tree": tree.hex()} | ({"git": head} if head else {})

    def _by_others(self, workspace: Workspace, tree: bytes, besides: str = "") -> list[NewEvent]:
        """The event for what changed since this session last looked, outside its calls."""
        if any(bracket.id != besides for bracket in self._mine(workspace)):
            return []
        known = self._last_tree()
        if known is None or known == tree:
            return []
        return [NewEvent("files_changed", {"files": {"before": known.hex(), "after": tree.hex()}})]

    def _last_tree(self) -> bytes | None:
        """The newest state that the session's log tells of."""
        from ..history import newest_tree

        return newest_tree(self._store.read(self._id, reverse=True))

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
        self._end_orphans(workspace)
        bracket = workspace.begin(self._log, name, call, named, self._store, runner=runner)
        self._tell_so_far(workspace, bracket)
        return self._by_others(workspace, bracket.tree, bracket.id)

    def end(self, name: str, call: str | None, paths: list[str] | None, agent: str) -> Ended:
        """A call is over: what it did to the files, for its event, which `told` is to follow."""
        workspace = self._workspace
        if workspace is None:
            return Ended(None)
        for bracket in reversed(self._mine(workspace)):
            named = bracket.call == call if call else bracket.name == name and not bracket.call
            if named and bracket.agent == agent and not _is_being_told(bracket):
                _, done = workspace.end(bracket, self._log, self._store, told=False)
                return Ended(done.to_dict(), bracket) if done is not None else Ended(None)
        if _inside(workspace.root, paths) == []:
            return Ended(None)
        grab = self._taken(call or name)
        if grab is not None:
            return Ended(self._grabbed(workspace, grab))
        return Ended({"missed": PARTIAL if workspace.is_new() else UNSEEN})

    def told(self, ended: Ended) -> None:
        """The event of a call is in the log: its bracket may go."""
        if ended.bracket is not None and self._workspace is not None:
            self._workspace.drop(ended.bracket)

    def end_all(self, agent: str | None = "") -> None:
        """End and tell what an agent of the session left open (None: all of them)."""
        workspace = self._workspace
        if workspace is None or workspace.is_new():
            return
        try:
            for bracket in self._mine(workspace):
                if agent in (None, bracket.agent) and not _is_being_told(bracket):
                    self._tell(workspace, bracket, {"interrupted": True})
        except BacktrailError as error:
            # The conversation is kept all the same.
            self.troubles.append(str(error))

    def _end_orphans(self, workspace: Workspace) -> None:
        """Calls that a dead agent left open end now; so do those whose hook was killed."""
        for bracket in self._mine(workspace):
            if is_dead(bracket):
                self._tell(workspace, bracket, {} if bracket.ended else {"interrupted": True})

    def _tell_so_far(self, workspace: Workspace, begun: Bracket) -> None:
        """Tell what open calls did before another began, so that the log has it in order.

        They may run at the same time. Or a hook was killed, and nobody knows that they are
        over.
        """
        for bracket in self._mine(workspace):
            if bracket.opened < begun.opened and not bracket.ended:
                # First the bracket that goes on: killed in between, there are two of them.
                workspace.catalogue.go_on(workspace.place.n, bracket)
                self._tell(workspace, bracket, {"so_far": True})

    def _tell(self, workspace: Workspace, bracket: Bracket, how: dict[str, Json]) -> None:
        """End a call whose own hook does not, and append what it did."""
        if bracket.ended and is_told(bracket, self._store.read(self._id, reverse=True)):
            workspace.drop(bracket)
            return
        files = bracket.files
        if files is None:
            _, done = workspace.end(bracket, self._log, self._store, told=False)
            if done is None:
                return
            files = done.to_dict()
        data: dict[str, Json] = {"name": bracket.name, **how, "files": files}
        data |= {"call": bracket.call} if bracket.call else {}
        data |= {"agent": bracket.agent} if bracket.agent else {}
        # Alone: where another hook was quicker, it is skipped and nothing hangs on it.
        self._store.append(self._id, [NewEvent("action", data, id=bracket.id)])
        workspace.drop(bracket)

    # --- calls before the first import is done -------------------------------------------

    def _grabbed(self, workspace: Workspace, grab: Grab) -> dict[str, Json] | None:
        after = workspace.grab(self._log, [os.fsencode(path) for path in grab.paths])
        if after.hex() == grab.before:
            return None
        return {"before": grab.before, "after": after.hex(), "partial": True}

    def _path(self, name: str) -> Path:
        name = sha256(f"{self._id} {name}".encode("utf-8", "replace")).hexdigest()[:32]
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


def _is_being_told(bracket: Bracket) -> bool:
    """Whether a hook is about to append what a call did."""
    return bracket.ended and not is_dead(bracket)
