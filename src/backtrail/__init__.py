"""Durable, rewindable sessions for AI agents.

    Session        one conversation: append, show, go back, fork, follow  (session.py)
    AsyncSession   the same for asyncio and trio                          (aio.py)
    open_store     where sessions live, from a URL                        (stores/)
    run, query     one turn of an agent, one call of a model              (oneshot.py)
    purge          really erase a session, a path or a text               (purging.py)
    Event …        the records of the log                                 (events.py)
    errors         everything that can be raised, under BacktrailError    (errors.py)
    telemetry      what the library itself does                           (telemetry.py)
    testing        prove a store of your own                              (testing/)

Layers, each importing only from those before it: errors, events, secrets, messages, telemetry,
calls, history, formats, stores, views, points, conversation, rewinding, turns, turnlog, sending,
session, agent, aio, oneshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .loading import loader

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
    from .agents import End as End
    from .agents import Limits as Limits
    from .agents import LiveTurn as LiveTurn
    from .aio import AsyncSession as AsyncSession
    from .aio import AsyncTurn as AsyncTurn
    from .aio_sending import AsyncStream as AsyncStream
    from .aio_subscribing import AsyncSubscription as AsyncSubscription
    from .aio_threads import AsyncSideLog as AsyncSideLog
    from .calls import ToolCall as ToolCall
    from .conversation import Turn as Turn
    from .copying import copy_sessions as copy_sessions
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
    from .events import Checkpoint as Checkpoint
    from .events import Event as Event
    from .events import Hit as Hit
    from .events import Message as Message
    from .events import NewEvent as NewEvent
    from .events import Problem as Problem
    from .events import SessionInfo as SessionInfo
    from .filepoints import CallChanges as CallChanges
    from .filepoints import TurnChanges as TurnChanges
    from .files.differences import Diff as Diff
    from .files.differences import FileDiff as FileDiff
    from .history import Branch as Branch
    from .oneshot import Answer as Answer
    from .oneshot import aquery as aquery
    from .oneshot import arun as arun
    from .oneshot import query as query
    from .oneshot import run as run
    from .options import SessionOptions as SessionOptions
    from .purging import Purged as Purged
    from .purging import purge as purge
    from .session import Session as Session
    from .sidelog import SideLog as SideLog
    from .stores.base import Lease as Lease
    from .stores.base import Store as Store
    from .stores.buffered import Buffered as Buffered
    from .stores.notes import Memory as Memory
    from .stores.opening import open_store as open_store
    from .stores.redacting import Redacting as Redacting
    from .subscribing import Delta as Delta
    from .subscribing import Subscription as Subscription
    from .turns import Result as Result
    from .views import FileChange as FileChange
    from .views import Rewind as Rewind
    from .views import State as State
    from .watching import Call as Call

_HOME = {
    **dict.fromkeys(("AsyncSession", "AsyncTurn"), "aio"),
    "AsyncSideLog": "aio_threads",
    "AsyncStream": "aio_sending",
    "AsyncSubscription": "aio_subscribing",
    **dict.fromkeys(("End", "Limits", "LiveTurn"), "agents"),
    "Session": "session",
    "SessionOptions": "options",
    "SideLog": "sidelog",
    "Branch": "history",
    "Call": "watching",
    "ToolCall": "calls",
    "Turn": "conversation",
    **dict.fromkeys(("CallChanges", "TurnChanges"), "filepoints"),
    **dict.fromkeys(("Diff", "FileDiff"), "files.differences"),
    **dict.fromkeys(("FileChange", "Rewind", "State"), "views"),
    **dict.fromkeys(("Lease", "Store"), "stores.base"),
    "Memory": "stores.notes",
    "Buffered": "stores.buffered",
    "Redacting": "stores.redacting",
    **dict.fromkeys(("Delta", "Subscription"), "subscribing"),
    **dict.fromkeys(("Purged", "purge"), "purging"),
    **dict.fromkeys(("Answer", "aquery", "arun", "query", "run"), "oneshot"),
    "Result": "turns",
    "copy_sessions": "copying",
    "open_store": "stores.opening",
    **dict.fromkeys(
        ("Checkpoint", "Event", "Hit", "Message", "NewEvent", "Problem", "SessionInfo"), "events"
    ),
    **dict.fromkeys(
        (
            *("AlreadyExists", "BacktrailError", "Closed", "Conflict", "Damaged", "InvalidData"),
            *("InvalidId", "NotFound", "SessionBusy", "StoreFailed", "Unsafe", "Unsupported"),
        ),
        "errors",
    ),
}

_MODULES = {
    name: name
    for name in (
        *("aio", "errors", "events", "exchange", "files", "formats", "history"),
        *("secrets", "stores", "telemetry", "testing"),
    )
}

__all__ = [
    "AlreadyExists",
    "Answer",
    "AsyncSession",
    "AsyncSideLog",
    "AsyncStream",
    "AsyncSubscription",
    "AsyncTurn",
    "BacktrailError",
    "Branch",
    "Buffered",
    "Call",
    "CallChanges",
    "Checkpoint",
    "Closed",
    "Conflict",
    "Damaged",
    "Delta",
    "Diff",
    "End",
    "Event",
    "FileChange",
    "FileDiff",
    "Hit",
    "InvalidData",
    "InvalidId",
    "Lease",
    "Limits",
    "LiveTurn",
    "Memory",
    "Message",
    "NewEvent",
    "NotFound",
    "Problem",
    "Purged",
    "Redacting",
    "Result",
    "Rewind",
    "Session",
    "SessionBusy",
    "SessionInfo",
    "SessionOptions",
    "SideLog",
    "State",
    "Store",
    "StoreFailed",
    "Subscription",
    "ToolCall",
    "Turn",
    "TurnChanges",
    "Unsafe",
    "Unsupported",
    "aquery",
    "arun",
    "copy_sessions",
    "open_store",
    "purge",
    "query",
    "run",
]

__version__ = "0.1.0"

# A hook pays for every import, so each name is loaded when it is first used.
__getattr__ = loader(globals(), _HOME, _MODULES)
