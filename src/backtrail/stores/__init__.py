"""Stores: where sessions live.

`open_store(url)` opens one: `memory:`, `file:DIR` (JSONL), `sqlite:///PATH`, `null:`, or a
scheme that another package registers in the entry-point group `backtrail.stores`.

    base.py        the contract, and every derived verb
    memory.py      the plain implementation
    jsonl.py       one folder a session, one line an event (lines.py: the format)
    sqlite.py      one database (sqlite_schema.py, sqlite_search.py)
    null.py        kept until close, then forgotten
    wrapper.py     a store around a store; buffered.py is one
    copying.py     from one store to another
    retention.py   sessions that nobody touched for long go, if that is wished
    batches.py, records.py, searching.py, files.py, locks.py, syncing.py, forking.py,
    observing.py, options.py: what the implementations share
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..loading import loader
from .base import Durability, Lease, OnDamage, Store
from .opening import open_store

if TYPE_CHECKING:
    from .buffered import Buffered as Buffered
    from .jsonl import JSONLStore as JSONLStore
    from .memory import MemoryStore as MemoryStore
    from .notes import Memory as Memory
    from .null import NullStore as NullStore
    from .redacting import Redacting as Redacting
    from .sqlite import SQLiteStore as SQLiteStore
    from .wrapper import Wrapper as Wrapper

_HOME = {
    "Buffered": "buffered",
    "JSONLStore": "jsonl",
    "Memory": "notes",
    "MemoryStore": "memory",
    "NullStore": "null",
    "Redacting": "redacting",
    "SQLiteStore": "sqlite",
    "Wrapper": "wrapper",
}

__all__ = [
    "Buffered",
    "Durability",
    "JSONLStore",
    "Lease",
    "Memory",
    "MemoryStore",
    "NullStore",
    "OnDamage",
    "Redacting",
    "SQLiteStore",
    "Store",
    "Wrapper",
    "open_store",
]

# Whoever has no database loads none.
__getattr__ = loader(globals(), _HOME)
