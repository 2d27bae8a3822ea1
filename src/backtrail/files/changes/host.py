"""The folder of a session: its workspace, opened when first needed and let go of at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ...errors import BacktrailError, Closed, Unsupported
from ...stores.base import Store
from ...stores.wrapper import store_name
from ..workspace.roots import refuse_broad

if TYPE_CHECKING:
    from ..depot import Depot
    from ..workspace.firstimport import Baseline
    from ..workspace.snapshot import Log
    from ..workspace.workspace import Workspace

FirstImport = Callable[["Workspace", "Log", float], bool]
"""Works on the first import of a workspace for a while, or waits for it as many seconds; whether
it is done."""


class NotWatched(Exception):
    """There is no folder to capture, and nothing is wrong with that."""


class Host(NamedTuple):
    """What a recorder asks the session for that it records.

    `where` gives the session's directory, or raises `NotWatched`; `known` the newest tree its
    log has. `refused` hears why a directory cannot be captured, `missed` that a look at it
    failed: it raises, or takes a note. `complain` takes a note of something else.
    """

    where: Callable[[], str]
    known: Callable[[], bytes | None]
    refused: Callable[[BacktrailError], None]
    missed: Callable[[BacktrailError], None]
    complain: Callable[[str, str], None]


class Folder:
    """The workspace of a session, if it has one.

    `unwatched` says why it has none. `fresh` says that whatever directory is there now counts,
    `rebound` that it is another one since the last look, `importing` that the first import may
    not be done. `lock` guards all of this, and what the recorder knows about calls.
    """

    def __init__(
        self, store: Store, session_id: str, host: Host, *, force: bool = False,
        background: bool = False, progress: Callable[[int], None] | None = None,
        first_import: FirstImport | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.id = session_id
        self.host = host
        self.unwatched: str | None = None
        self.opened: Workspace | None = None
        self.depot: Depot | None = None
        self.baseline: Baseline | None = None
        self.fresh = False
        self.rebound = False
        self.importing = first_import is not None
        self.lock = threading.RLock()
        self._force = force
        self._background = background
        self._progress = progress
        self._first_import = first_import
        self._is_imported: bool | None = None

    def after_fork(self) -> threading.RLock:
        """Have a lock that no thread of the parent holds."""
        self.lock = threading.RLock()
        return self.lock

    @cached_property
    def log(self) -> Log:
        """The session's log, as contents name it that it relies on."""
        return store_name(self.store), self.id

    def workspace(self) -> Workspace | None:
        """The workspace, opened when first needed; None where files are not captured."""
        with self.lock:
            if self.opened is None and self.unwatched is None:
                try:
                    self._open(self.host.where())
                except NotWatched as why:
                    self.unwatched = str(why)
                except Closed:
                    raise
                except BacktrailError as error:
                    self.unwatched = str(error)
                    self.host.refused(error)
            return self.opened

    def _open(self, cwd: str) -> None:
        if not self._force:
            refuse_broad(cwd)
        if not Path(cwd).is_dir() and self.host.known() is None:
            raise Unsupported(f"{cwd} is not a directory, so no files are captured")
        # The database is loaded only where files are captured.
        from ..depot import Depot

        depot = Depot.of(self.store)
        try:
            self.opened = depot.workspace(cwd, self.store, self._progress)
        except BaseException:
            depot.close()
            raise
        self.depot = depot
        if self._background and self.opened.is_new():
            self._begin_baseline(self.opened)

    def _begin_baseline(self, workspace: Workspace) -> None:
        from ..workspace.firstimport import Baseline

        rebind, self.fresh, self.importing = self.fresh or self.rebound, False, True
        self.baseline = Baseline(
            lambda stop: workspace.scan(self.log, self.store, rebind=rebind, stop=stop, adopt=True)
        )

    def is_partial(self, wait: float | None) -> bool:
        """Whether the first import is still under way, after waiting for it."""
        if not self.importing:
            return False
        if self._first_import is not None and self.opened is not None:
            if self._is_imported is None or (wait and not self._is_imported):
                self._is_imported = self._first_import(self.opened, self.log, wait or 0)
            return not self._is_imported
        return self.baseline is not None and not self.baseline.wait(wait)

    def take_anew(self) -> None:
        """Take whatever directory is there now as the session's from here on."""
        self.fresh = True
        self.rebound = False
        self.unwatched = None

    def branch(self) -> str | None:
        """The branch that git has checked out, or its commit."""
        workspace = self.workspace()
        head = workspace.head() if workspace is not None else None
        return head.split(" ")[0] if head else None

    def close(self) -> None:
        """Save what is known, and let go of the directory."""
        with self.lock:
            workspace, self.opened = self.opened, None
            depot, self.depot = self.depot, None
            baseline, self.baseline = self.baseline, None
        try:
            if baseline is not None:
                baseline.stop()
            if workspace is not None:
                workspace.close()
        finally:
            if depot is not None:
                depot.close()
