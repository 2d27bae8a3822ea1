"""Every exception the library raises.

    BacktrailError
    ├── NotFound        (LookupError)     no such session, event, log or checkpoint
    ├── AlreadyExists   (ValueError)      the id or key is taken
    ├── Conflict        (RuntimeError)    the log moved on since the caller looked
    ├── SessionBusy     (RuntimeError)    another process drives the session, or holds a lock
    ├── InvalidId       (ValueError)      an id that must not become a path or a row
    ├── InvalidData     (ValueError)      a value that would not come back as it went in
    ├── Damaged         (ValueError)      stored bytes that are not what was written
    ├── StoreFailed     (OSError)         the disk or the database refused
    │   └── DiskLow                       less free space than the floor
    ├── Closed          (ValueError)      used after `close`
    ├── Unsafe          (ValueError)      a path that would leave its root
    └── Unsupported     (RuntimeError)    not possible here; the message says what is

Each also inherits the builtin a caller would catch. Messages say what happened,
to which id, and what to do next.

These belong to one room, live there, and have their place in the same tree:

    adapters.MissingFramework       (Unsupported)      a framework that is not installed
    agent.hooks.Veto                (BacktrailError)   a hook forbids a call
    agent.models.base.ModelFailed   (BacktrailError)   a model that does not answer
    agent.tools.tool.ToolFailed     (BacktrailError)   a tool that reports its failure to the model
    cli.verbs.Usage                 (BacktrailError)   a command line that makes no sense
    exchange.jsonlines.Unreadable   (StoreFailed)      a transcript that cannot be read
    files.restore.restore.HalfRestored   (StoreFailed)      a restore that could not be taken back
    files.workspace.known.IndexDamaged   (Damaged)          an index of a folder; it is made anew
    files.workspace.scan.Stopped    (BacktrailError)   a scan that its caller ended
    session.fileplans.NotAllowed    (Unsafe)           a session of strangers, before it is allowed
    session.turns.Refused           (BacktrailError)   a call that no permission was given for
    web.guard.Refusal               (BacktrailError)   a request that the viewer turns away

These are signals between modules. None of them reaches a caller:

    agent.tools.jsonschema.Mismatch files.changes.host.NotWatched
    exchange.hooks.identify.LeftBehind   session.liveturn.Cancelled
    files.workspace.verdicts.Hidden  stores.queue.Postponed
    stores.postgres.link.Lost        adapters._bridge.Interrupted
"""

from __future__ import annotations

from ._startup.frozen import dataclass


class BacktrailError(Exception):
    """The root of all errors of this library."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class NotFound(BacktrailError, LookupError):
    """A session, log, event or checkpoint that does not exist."""


class AlreadyExists(BacktrailError, ValueError):
    """A session id or key that is taken."""


class Conflict(BacktrailError, RuntimeError):
    """The head of the log is not the one the caller expected.

    Read again from `expected`, decide, and append with the new head.
    """

    def __init__(self, message: str, *, expected: int | None = None, head: int | None = None):
        super().__init__(message)
        self.expected = expected
        self.head = head


@dataclass(frozen=True, slots=True)
class Owner:
    """The holder of a lock or a lease: process, machine, and since when (None where unknown)."""

    pid: int | None = None
    host: str | None = None
    since: str | None = None

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        where = f" on {self.host}" if self.host else ""
        since = f" since {self.since}" if self.since else ""
        return f"process {self.pid}{where}{since}"


class SessionBusy(BacktrailError, RuntimeError):
    """Another process holds the lease of a session, or a lock for too long."""

    def __init__(self, message: str, *, owner: Owner | None = None):
        super().__init__(message)
        self.owner = owner or Owner()


class InvalidId(BacktrailError, ValueError):
    """An id outside the allowed alphabet or length."""


class InvalidData(BacktrailError, ValueError):
    """A value that is not JSON, or would not come back equal; nothing was written."""


class Damaged(BacktrailError, ValueError):
    """Stored data that fails its check."""


class StoreFailed(BacktrailError, OSError):
    """The operating system or the database refused; nothing was acknowledged."""

    def __init__(self, message: str, *, errno: int | None = None):
        super().__init__(message)
        self.errno = errno


class DiskLow(StoreFailed):
    """The disk has less free space than the floor; contents of files are not captured."""


class Closed(BacktrailError, ValueError):
    """A store or session used after `close`."""


class Unsafe(BacktrailError, ValueError):
    """A path that would leave its root."""


class Unsupported(BacktrailError, RuntimeError):
    """Something this platform, file system or configuration cannot do."""
