"""Child processes that use a store, and what they report."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.kill import Child, Violation

STORES = {"jsonl": "file:{}/store", "sqlite": "sqlite:///{}/store.db"}
"""The stores of the library that live on a disk."""


def url_of(kind: str, folder: Path) -> str:
    """The URL of a store in a folder."""
    return STORES[kind].format(folder)


class Worker:
    """A forked child at the end of a pipe; `report` in it writes a line."""

    def __init__(self, body: Callable[[Callable[[str], None]], None]) -> None:
        ends = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.close(ends[0])

                def report(text: str) -> None:
                    os.write(ends[1], text.encode() + b"\n")

                try:
                    body(report)
                    code = 0
                except BaseException as error:
                    report(f"!{error!r}")
            finally:
                os._exit(code)
        os.close(ends[1])
        self._read = ends[0]
        self._reported = b""
        self._status: int | None = None

    def line(self, wait: float = 30.0) -> str:
        """The next line it reports."""
        deadline = time.monotonic() + wait
        os.set_blocking(self._read, False)
        while b"\n" not in self._reported:
            try:
                part = os.read(self._read, 65536)
                if not part:
                    raise Violation(f"the child ended without a word: {self._reported!r}")
                self._reported += part
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Violation("the child says nothing") from None
                time.sleep(0.001)
        text, _, self._reported = self._reported.partition(b"\n")
        return text.decode()

    def kill(self) -> None:
        """End it by SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit: float = 60.0) -> list[str]:
        """Its other lines, once it ended; a child that takes too long is a failure."""
        os.set_blocking(self._read, False)
        deadline = time.monotonic() + limit
        while True:
            try:
                part = os.read(self._read, 65536)
                if not part:
                    break
                self._reported += part
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self.kill()
                    os.waitpid(self.pid, 0)
                    raise Violation(f"the child hangs after {self._reported[-200:]!r}") from None
                time.sleep(0.002)
        os.close(self._read)
        status = os.waitpid(self.pid, 0)[1]
        lines = self._reported.decode().split("\n")
        if b"!" in self._reported or (os.WIFEXITED(status) and os.WEXITSTATUS(status)):
            raise Violation("\n".join(line for line in lines if line.startswith("!")) or "no word")
        self.child = Child(self._reported, status)
        # The last piece is what a killed child was saying.
        return lines[:-1]


@contextmanager
def umask(mode: int) -> Iterator[None]:
    """Another umask for a while."""
    before = os.umask(mode)
    try:
        yield
    finally:
        os.umask(before)
