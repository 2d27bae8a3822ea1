"""The calls of a restore, counted and struck.

As in `calls.py`; also those that only a restore makes, and those of its catalogue.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any, Self
from unittest.mock import patch

from tests.faults.calls import NAMES, REAL, Calls, Function, Strike

from backtrail.files import beneath
from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.restore import workbench
from backtrail.files.restore.restore import Restore

CHANGING = (
    *(*NAMES, "symlink", "link", "fchmod", "renameat2", "syncfs"),
    *("write_journal", "drop_journal"),
)
"""The calls that change something, and the two that the catalogue makes for a restore."""

LOOKING = ("stat", "fstat", "read", "readlink", "listdir")
"""The calls that look."""


class RestoreCalls(Calls):
    """Calls as in `calls.py`; also those that only a restore makes.

    With `within`, only what happens while files are restored is counted, and not the scans
    before and after it.
    """

    def __init__(
        self,
        strike: Strike | None = None,
        point: int = 0,
        names: tuple[str, ...] = CHANGING,
        *,
        lasting: bool = False,
        within: bool = False,
    ) -> None:
        super().__init__(strike, point, names=names, lasting=lasting)
        self.names = names
        self.made: list[str] = []
        self._counts = not within
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        if not self._counts:
            for name in ("apply", "finish"):
                self._patch_switch(name)
        for name in self.names:
            if name in ("renameat2", "syncfs"):
                if getattr(beneath.system, name) is not None:
                    self._patch(beneath.system, name)
            elif name in ("write_journal", "drop_journal"):
                self._patch(Catalogue, name)
            elif hasattr(os, name):
                self._patch(os, name)
        # The threads that sync would not be counted.
        self._patches.enter_context(patch.object(workbench, "ThreadPoolExecutor", _Serial))
        return self

    def _patch_switch(self, name: str) -> None:
        real = getattr(Restore, name)

        def switched(*args: Any) -> Any:
            self._counts = True
            try:
                return real(*args)
            finally:
                self._counts = False

        self._patches.enter_context(patch.object(Restore, name, switched))

    def _patch(self, owner: object, name: str) -> None:
        real = REAL.get(name) or getattr(owner, name)
        self._patches.enter_context(patch.object(owner, name, self._counted(name, real)))

    def _counted(self, name: str, real: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._counts:
                return real(*args, **kwargs)
            self.made.append(name)
            self.count += 1
            later = self._lasting and name in self.struck
            if self._strike is not None and (self.count == self._point or later):
                self.struck.append(name)
                return self._strike(name, real, args, kwargs)
            return real(*args, **kwargs)

        return call

    def __exit__(self, *_: object) -> None:
        self._patches.close()


class _Serial:
    """A pool of threads without threads."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def map(self, function: Function, items: list[Any]) -> Iterator[Any]:
        for item in items:
            future: Future[Any] = Future()
            future.set_result(function(item))
            yield future.result()


@contextmanager
def syncing_all() -> Iterator[None]:
    """A rewind of so many files that the whole file system is synced at once."""
    assert beneath.system.syncfs is not None
    with patch.object(workbench, "MANY", 1):
        yield


@contextmanager
def without_renameat2() -> Iterator[None]:
    """A system that can neither swap names nor refuse to replace one."""
    with patch.object(beneath.system, "renameat2", None):
        yield
