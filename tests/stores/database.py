"""A SQLite store and, behind its back, the database itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from backtrail.events import NewEvent
from backtrail.stores import Store, open_store
from backtrail.stores.sqlite import SQLiteStore


def said(text: str, kind: str = "user_message", **fields: Any) -> NewEvent:
    """A message to append."""
    return NewEvent(kind, {"message": {"role": "user", "content": text}}, **fields)


def opened(place: Path, **options: Any) -> SQLiteStore:
    """The store in a folder."""
    store = open_store(f"sqlite:///{place}/x.db", **options)
    assert isinstance(store, SQLiteStore)
    return store


@contextmanager
def raw(place: Path) -> Iterator[apsw.Connection]:
    """The database of that store."""
    connection = apsw.Connection(str(place / "x.db"))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    try:
        yield connection
    finally:
        connection.close()


def texts(store: Store, session_id: str) -> list[str]:
    """The words of a session's messages."""
    return [event.data["message"]["content"] for event in store.read(session_id)]
