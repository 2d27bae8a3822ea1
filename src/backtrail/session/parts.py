"""The parts that a session is made of, each on those before it.

`Session` and `AsyncSession` are faces of them: one calls them, the other has them called in
threads. Each part can be built and used alone.
"""

from __future__ import annotations

from ..stores.base import Store
from ..stores.disk import forks
from .browse import Browser
from .capture import Capture
from .checkpoints import Checkpoints
from .drive import Driver, DrivingLease
from .keywords import SessionOptions, agent_named, options_of_agent
from .log import SessionLog
from .rewind import Rewinder
from .turnlog import TurnLog


class Parts:
    """The log of a session, and what works on it."""

    def __init__(
        self, store: Store, session_id: str, options: SessionOptions, *,
        owns: bool = False, at: int | None = None,
    ) -> None:  # fmt: skip
        self.log = log = SessionLog(
            store, session_id, at=at, on_error=options.get("on_error", "raise"), owns=owns
        )
        self.capture = capture = Capture(
            log, cwd=options.get("cwd"), files=options.get("files", True),
            progress=options.get("progress"),
        )  # fmt: skip
        self.lease = DrivingLease(log, options.get("lease", "turn"), options.get("wait", 0.0))
        self.checkpoints = Checkpoints(log, capture)
        self.browser = Browser(log, capture)
        self.rewinder = Rewinder(log, capture, self.lease)
        self.turns = TurnLog(log, capture, agent_named(options), options_of_agent(options))
        self.driver = Driver(log, capture, self.lease, self.turns)
        forks.register(self)

    def after_fork(self) -> None:
        """Leave to the parent what it drives, owes and has not saved."""
        for part in (self.log, self.capture, self.lease, self.driver):
            part.after_fork()

    def close(self) -> None:
        """Let go of the session: of its turn, its log, its directory and its agent."""
        with self.driver.closing():
            try:
                self.log.close()
            finally:
                self.capture.close()
