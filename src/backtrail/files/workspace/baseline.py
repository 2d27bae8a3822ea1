"""The first import of a workspace, in the background: nobody waits for it who need not.

Until it is done, the baseline is *partial*: a tool that declares its paths is captured all
the same, a shell call waits a while and then goes on, and says that it was not captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...errors import BacktrailError
from .scan import Stopped

PARTIAL = "the first import of the workspace is not done yet"
"""What events say that were not captured for that reason."""

WAIT = 10.0
"""Seconds a call that may touch anything waits for the first import."""


class Baseline:
    """A scan in a thread of its own."""

    def __init__(self, scan: Callable[[Callable[[], bool]], object]) -> None:
        self.error: BacktrailError | None = None
        self._scan = scan
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backtrail-baseline", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._scan(self._stop.is_set)
        except Stopped:
            return
        except BacktrailError as error:
            # The next scan meets the same and raises it where somebody listens.
            self.error = error

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is done, after that many seconds at most."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End it early; the next scan goes on from where it was."""
        self._stop.set()
        self._thread.join()
