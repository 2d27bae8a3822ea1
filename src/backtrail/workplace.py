"""The workspace that a session has: opened when first needed, let go of with the session."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from .conversation import Conversation
from .errors import BacktrailError, DiskLow, NotFound, Unsupported
from .events import Problem
from .filepoints import last_tree
from .files.roots import refuse_broad
from .options import SessionOptions
from .stores.base import Store
from .stores.null import NullStore
from .stores.wrapper import unwrapped

if TYPE_CHECKING:
    from .files.baseline import Baseline
    from .files.depot import Depot
    from .files.looking import Log
    from .files.workspace import Workspace


class Workplace(Conversation):
    """A conversation with a directory, if it has one and is to capture it.

    `_tree` is its state as this session last saw it, `_fresh` says that whatever directory is
    there now counts, `_rebound` that it is another one since the last look.
    """

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *, owns: bool, at: int | None
    ) -> None:
        super().__init__(store, session_id, options, owns=owns, at=at)
        self._cwd = options.get("cwd")
        self._files = options.get("files", True)
        self._progress = options.get("progress")
        self._unwatched: str | None = None
        self._workspace: Workspace | None = None
        self._depot: Depot | None = None
        self._baseline: Baseline | None = None
        self._tree: bytes | None = None
        self._fresh = False
        self._rebound = False
        self._watch = threading.RLock()

    def after_fork(self) -> None:
        super().after_fork()
        self._watch = threading.RLock()

    @property
    def _log_name(self) -> Log:
        scope = f"#{self.store.scope}" if self.store.scope else ""
        return f"{self.store.url}{scope}", self.id

    def _watched(self) -> Workspace | None:
        """The workspace, opened when first needed; None where files are not captured."""
        with self._watch:
            if self._workspace is None and self._unwatched is None:
                try:
                    self._open_workspace()
                except BacktrailError as error:
                    self._unwatched = str(error)
                    self._complain("not captured", str(error))
            return self._workspace

    def _open_workspace(self) -> None:
        self._check_open()
        if not self._files or isinstance(unwrapped(self.store), NullStore):
            self._unwatched = "files are not captured in this session"
            return
        cwd = self._cwd if self._cwd is not None else self.info().cwd
        if cwd is None:
            self._unwatched = "the session has no `cwd`, so no files are captured"
            return
        if self._files != "force":
            refuse_broad(os.fspath(cwd))
        if not Path(cwd).is_dir() and self._tree_known() is None:
            raise Unsupported(f"{os.fspath(cwd)} is not a directory, so no files are captured")
        # The database is loaded only where files are captured.
        from .files.depot import Depot

        depot = Depot.of(self.store)
        try:
            self._workspace = depot.workspace(cwd, self.store, self._progress)
        except BaseException:
            depot.close()
            raise
        self._depot = depot
        if self._files == "background" and self._workspace.is_new():
            self._begin_baseline(self._workspace)

    def _directory(self) -> str | None:
        """The directory that is worked in: the one watched over, if one is.

        A record counts what is in the log, and so takes longer to read.
        """
        workspace = self._workspace
        return os.fsdecode(workspace.root) if workspace is not None else self.info().cwd

    def _rebind(self, cwd: str) -> None:
        """Take another directory from here on; it must be there, or nothing is watched over."""
        if self._files and not isinstance(self.store, NullStore) and not Path(cwd).is_dir():
            raise NotFound(f"{cwd} is not a directory: session `{self.id}` is not moved there")
        self._cwd = cwd
        self._rebound = True

    def _begin_baseline(self, workspace: Workspace) -> None:
        from .files.baseline import Baseline

        rebind, self._fresh = self._fresh, False
        self._baseline = Baseline(
            lambda stop: workspace.scan(self._log_name, self.store, rebind=rebind, stop=stop)
        )

    def _partial(self, wait: float | None) -> bool:
        """Whether the first import still runs, after waiting for it."""
        return self._baseline is not None and not self._baseline.wait(wait)

    def _tree_known(self) -> bytes | None:
        if self._tree is None:
            self._tree = last_tree(self.store, self.id)
        return self._tree

    def _complain(self, what: str, detail: str, log: str = "files") -> None:
        """Note something that went wrong and stopped nothing."""
        problem = Problem(self.id, log, what, detail)
        if problem not in self.problems:
            self.problems.append(problem)

    def _missed(self, error: BacktrailError) -> None:
        """A scan failed: raise, or say so and go on, as the caller chose.

        Too little free space never stops a conversation; it only stops the capture.
        """
        if self._on_error == "raise" and not isinstance(error, DiskLow):
            raise error
        self._complain("not captured", str(error))
        if callable(self._on_error):
            self._on_error(error)

    def _needed(self) -> Workspace:
        self._check_open()
        workspace = self._watched()
        self._partial(None)
        if workspace is None:
            raise Unsupported(self._unwatched or "files are not captured in this session")
        return workspace

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        with self._watch:
            workspace, self._workspace = self._workspace, None
            depot, self._depot = self._depot, None
            baseline, self._baseline = self._baseline, None
        if baseline is not None:
            baseline.stop()
        if workspace is not None:
            workspace.close()
        if depot is not None:
            depot.close()
