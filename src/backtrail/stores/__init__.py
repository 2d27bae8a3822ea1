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

from .base import Durability, Lease, OnDamage, Store
from .notes import Memory
from .opening import open_store

__all__ = ["Durability", "Lease", "Memory", "OnDamage", "Store", "open_store"]
