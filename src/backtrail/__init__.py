"""Durable, rewindable sessions for AI agents.

    Session        one conversation: append, show, go back, fork, follow  (session/)
    AsyncSession   the same for asyncio and trio                          (session/aio.py)
    open_store     where sessions live, from a URL                        (stores/)
    run, query     one turn of an agent, one call of a model              (agent/oneshot.py)
    purge          really erase a session, a path or a text               (files/contents/)
    Event …        the records of the log                                 (events/)
    log_name       any text as the name of a log                          (events/lognames.py)
    errors         everything that can be raised, under BacktrailError    (errors.py)
    telemetry      what the library itself does                           (telemetry.py)
    adapters       sessions for agent frameworks, one module each         (adapters/)
    testing        prove a store of your own                              (testing/)

Layers, each importing only from those before it: _startup, errors, settings, events, telemetry,
formats, stores, files, session, agent, exchange, adapters, testing, web, cli.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._startup.loading import homes, loader

if TYPE_CHECKING:
    from . import aio as aio
    from . import errors as errors
    from . import events as events
    from . import exchange as exchange
    from . import files as files
    from . import formats as formats
    from . import history as history
    from . import secrets as secrets
    from . import stores as stores
    from . import telemetry as telemetry
    from . import testing as testing
    from .agent.oneshot import Answer as Answer
    from .agent.oneshot import aquery as aquery
    from .agent.oneshot import arun as arun
    from .agent.oneshot import query as query
    from .agent.oneshot import run as run
    from .errors import AlreadyExists as AlreadyExists
    from .errors import BacktrailError as BacktrailError
    from .errors import Closed as Closed
    from .errors import Conflict as Conflict
    from .errors import Damaged as Damaged
    from .errors import InvalidData as InvalidData
    from .errors import InvalidId as InvalidId
    from .errors import NotFound as NotFound
    from .errors import SessionBusy as SessionBusy
    from .errors import StoreFailed as StoreFailed
    from .errors import Unsafe as Unsafe
    from .errors import Unsupported as Unsupported
    from .events import Event as Event
    from .events import Hit as Hit
    from .events import NewEvent as NewEvent
    from .events.calls import ToolCall as ToolCall
    from .events.history import Branch as Branch
    from .events.lognames import log_name as log_name
    from .events.lognames import log_texts as log_texts
    from .events.values import Checkpoint as Checkpoint
    from .events.values import Message as Message
    from .events.values import Problem as Problem
    from .events.values import SessionInfo as SessionInfo
    from .exchange.copy import copy_sessions as copy_sessions
    from .files.changes.blame import BlameLine as BlameLine
    from .files.contents.purge import Purged as Purged
    from .files.contents.purge import purge as purge
    from .files.differences import Diff as Diff
    from .files.differences import FileDiff as FileDiff
    from .session.aio import AsyncSession as AsyncSession
    from .session.aio_parts import AsyncStream as AsyncStream
    from .session.aio_parts import AsyncSubscription as AsyncSubscription
    from .session.aio_parts import AsyncTurn as AsyncTurn
    from .session.filepoints import CallChanges as CallChanges
    from .session.filepoints import TurnChanges as TurnChanges
    from .session.keywords import SessionOptions as SessionOptions
    from .session.listeners import Delta as Delta
    from .session.listeners import Subscription as Subscription
    from .session.liveturn import End as End
    from .session.liveturn import Limits as Limits
    from .session.liveturn import LiveTurn as LiveTurn
    from .session.log import SideLog as SideLog
    from .session.session import Session as Session
    from .session.threads import AsyncSideLog as AsyncSideLog
    from .session.toolcalls import Call as Call
    from .session.turnlog import Turn as Turn
    from .session.turns import Result as Result
    from .session.views import FileChange as FileChange
    from .session.views import Rewind as Rewind
    from .session.views import State as State
    from .stores.base import Lease as Lease
    from .stores.base import Store as Store
    from .stores.buffered import Buffered as Buffered
    from .stores.notes import Memory as Memory
    from .stores.opening import open_store as open_store
    from .stores.redacting import Redacting as Redacting

_HOME = homes(
    {
        "agent.oneshot": "Answer aquery arun query run",
        "errors": "AlreadyExists BacktrailError Closed Conflict Damaged InvalidData "
        "InvalidId NotFound SessionBusy StoreFailed Unsafe Unsupported",
        "events": "Event Hit NewEvent",
        "events.calls": "ToolCall",
        "events.history": "Branch",
        "events.lognames": "log_name log_texts",
        "events.values": "Checkpoint Message Problem SessionInfo",
        "exchange.copy": "copy_sessions",
        "files.changes.blame": "BlameLine",
        "files.contents.purge": "Purged purge",
        "files.differences": "Diff FileDiff",
        "session.aio": "AsyncSession",
        "session.aio_parts": "AsyncStream AsyncSubscription AsyncTurn",
        "session.filepoints": "CallChanges TurnChanges",
        "session.keywords": "SessionOptions",
        "session.listeners": "Delta Subscription",
        "session.liveturn": "End Limits LiveTurn",
        "session.log": "SideLog",
        "session.session": "Session",
        "session.threads": "AsyncSideLog",
        "session.toolcalls": "Call",
        "session.turnlog": "Turn",
        "session.turns": "Result",
        "session.views": "FileChange Rewind State",
        "stores.base": "Lease Store",
        "stores.buffered": "Buffered",
        "stores.notes": "Memory",
        "stores.opening": "open_store",
        "stores.redacting": "Redacting",
    }
)

_MODULES = {
    name: name
    for name in (
        *("aio", "errors", "events", "exchange", "files", "formats", "history"),
        *("secrets", "stores", "telemetry", "testing"),
    )
}

__all__ = sorted(_HOME)  # noqa: PLE0605 - each name stands once, in `_HOME`

__version__ = "0.1.0"

# A hook pays for every import, so each name is loaded when it is first used.
__getattr__ = loader(globals(), _HOME, _MODULES)
