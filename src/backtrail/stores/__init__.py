"""Stores: where sessions live.

`open_store(url)` opens one: `memory:`, `file:DIR` (JSONL), `sqlite:///PATH`, `null:`, or a
scheme that another package registers in the entry-point group `backtrail.stores`.

    base.py        the contract, and every derived verb
    memory.py      the plain implementation, and `null:`, which forgets everything at `close`
    jsonl/         one folder a session, one line an event (jsonl/lines.py: the format)
    sqlite/        one database
    postgres/      a server, for many machines
    disk/          what both share: locks, group sync, databases, process forks
    queue.py       one way for many writers
    wrapper.py     a store around a store: buffered.py, redacting.py
    copies.py      from one store to another
    derived.py     the longer of the derived verbs
    retention.py   sessions that have not been used for long, if that is asked for; due.py: when
    batches.py, records.py, query.py: what the implementations share
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._startup.loading import loader
from .base import Durability, KnownIds, Lease, OnDamage, Store
from .opening import open_store

if TYPE_CHECKING:
    from .buffered import Buffered as Buffered
    from .jsonl import JSONLStore as JSONLStore
    from .memory import MemoryStore as MemoryStore
    from .memory import NullStore as NullStore
    from .notes import Memory as Memory
    from .redacting import Redacting as Redacting
    from .sqlite import SQLiteStore as SQLiteStore
    from .wrapper import Wrapper as Wrapper

_HOME = {
    "Buffered": "buffered",
    "JSONLStore": "jsonl",
    "Memory": "notes",
    "MemoryStore": "memory",
    "NullStore": "memory",
    "Redacting": "redacting",
    "SQLiteStore": "sqlite",
    "Wrapper": "wrapper",
}

__all__ = [
    "Buffered",
    "Durability",
    "JSONLStore",
    "KnownIds",
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

# A caller without a database loads none.
__getattr__ = loader(globals(), _HOME)
