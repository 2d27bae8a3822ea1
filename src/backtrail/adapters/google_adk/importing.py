"""Taking the sessions of ADK's `SqliteSessionService` into a store."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from google.adk.events import Event as AdkEvent

from ...errors import NotFound
from ...events import NewEvent
from ...stores.base import Store
from .records import stored
from .sessions import BacktrailSessionService


def import_sessions(path: str | os.PathLike[str], store: Store | str | None = None) -> list[str]:
    """Take the sessions of an ADK SQLite file into a store; the ids they have there.

    Events keep the order they were appended in. The file is only read. Taken in again, only what
    is new is added.
    """
    place = Path(path)
    if not place.exists():
        raise NotFound(f"no file {place}")
    service = BacktrailSessionService(store)
    found: list[str] = []
    try:
        with closing(sqlite3.connect(f"file:{quote(str(place))}?mode=ro", uri=True)) as file:
            for app, state in file.execute("SELECT app_name, state FROM app_states"):
                service.take_shared("app:", (app,), json.loads(state))
            for app, user, state in file.execute(
                "SELECT app_name, user_id, state FROM user_states"
            ):
                service.take_shared("user:", (app, user), json.loads(state))
            rows = file.execute("SELECT app_name, user_id, id, state FROM sessions ORDER BY rowid")
            for app, user, name, state in rows.fetchall():
                events = file.execute(
                    "SELECT event_data FROM events WHERE app_name = ? AND user_id = ?"
                    " AND session_id = ? ORDER BY rowid",
                    (app, user, name),
                )
                batch = [_event(row) for (row,) in events]
                found.append(service.take(app, user, name, json.loads(state), batch))
    finally:
        service.close()
    return found


def _event(row: str) -> NewEvent:
    event = AdkEvent.model_validate_json(row)
    return stored(event, dict(event.actions.state_delta))
