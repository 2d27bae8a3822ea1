"""ADK's artifact service on a store: a log for each artifact, an event for each version."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from google.adk.artifacts import BaseArtifactService, artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

from ...errors import Conflict, NotFound
from ...events import Event, NewEvent
from ...events.lognames import log_name, log_texts
from ...session.threads import run
from ...stores.base import Store
from .._bridge import Bridge, exact

VERSION = "adk_artifact"
"""The kind of an event that holds a version of an artifact."""

_USER = "user:"
_DEPTH = 5
_TRIES = 50

_GONE = (
    types.Part(),
    types.Part(inline_data=types.Blob(mime_type="application/octet-stream", data=b"")),
)
"""Parts that every artifact service loads as absent; a rewind of ADK's saves the second."""


class BacktrailArtifactService(BaseArtifactService):
    """Artifacts of ADK with all their versions, beside the sessions of the same store."""

    def __init__(self, store: Store | str | None = None) -> None:
        self._bridge = Bridge(store, "adk-artifacts")
        self.store = self._bridge.store

    def close(self) -> None:
        """Let go of the store where it was opened here."""
        self._bridge.close()

    async def save_artifact(
        self, *, app_name: str, user_id: str, filename: str,
        artifact: types.Part | dict[str, Any], session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """A new version; its number, from 0."""
        names = _names(app_name, user_id, filename, session_id)
        part = ensure_part(artifact)
        mime = _mime_type(part, app_name, user_id, session_id)
        row = msgspec.json.decode(part.model_dump_json(exclude_none=True, by_alias=True))
        data = {"part": row, "mime_type": mime, "metadata": custom_metadata or {}}
        return await run(self._save, names, filename, exact(data)[0])

    async def load_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:  # fmt: skip
        """A version, the newest by default; None if there is none."""
        return await run(self._load, app_name, user_id, filename, session_id, version, _DEPTH)

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """The names of the user's artifacts, and of the session's if one is given."""
        places = [(app_name, user_id), *([(app_name, user_id, session_id)] if session_id else [])]
        return await run(lambda: sorted(name for place in places for name in self._keys(place)))

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete an artifact with all its versions; one that is not there is fine."""
        await run(self._delete, _names(app_name, user_id, filename, session_id), filename)

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """The numbers of all versions."""
        names = _names(app_name, user_id, filename, session_id)
        return [event.seq - 1 for event in await run(self._events, names, filename)]

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """What is known of all versions."""
        names = _names(app_name, user_id, filename, session_id)
        found = await run(self._events, names, filename)
        return [_version(event, names, filename) for event in found]

    async def get_artifact_version(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:  # fmt: skip
        """What is known of a version, the newest by default."""
        names = _names(app_name, user_id, filename, session_id)
        event = await run(self._event, names, filename, version)
        return None if event is None else _version(event, names, filename)

    # --- inside --------------------------------------------------------------------------

    def _save(self, names: tuple[str, ...], filename: str, data: Any) -> int:
        id = self._bridge.ensure(*names, named=False)
        log = log_name("artifacts", filename)
        for _ in range(_TRIES):
            head = self._head(id, log)
            new = NewEvent(VERSION, {**data, "version": head, "time": time.time()})
            try:
                return self.store.append(id, [new], log=log, expected=head)[0].seq - 1
            except Conflict:
                continue
        raise Conflict(f"others save the artifact {filename} all the time: try again")

    def _head(self, id: str, log: str) -> int:
        newest = next(self.store.read(id, log=log, reverse=True, limit=1), None)
        return newest.seq if newest else 0

    def _events(self, names: tuple[str, ...], filename: str) -> list[Event]:
        id = self._bridge.find(*names)
        try:
            return [] if id is None else [*self.store.read(id, log=log_name("artifacts", filename))]
        except NotFound:
            self._bridge.forget(*names)
            return []

    def _event(self, names: tuple[str, ...], filename: str, version: int | None) -> Event | None:
        id = self._bridge.find(*names)
        if id is None or (version is not None and version < 0):
            return None
        log = log_name("artifacts", filename)
        until = None if version is None else version + 1
        found = next(self.store.read(id, log=log, until=until, reverse=True, limit=1), None)
        return found if found is None or version in (None, found.seq - 1) else None

    def _load(
        self, app: str, user: str, filename: str, session: str | None, version: int | None,
        depth: int,
    ) -> types.Part | None:  # fmt: skip
        event = self._event(_names(app, user, filename, session), filename, version)
        if event is None:
            return None
        part = types.Part.model_validate_json(msgspec.json.encode(event.data["part"]))
        if artifact_util.is_artifact_ref(part) and part.file_data is not None:
            to = artifact_util.resolve_artifact_reference(
                file_uri=str(part.file_data.file_uri), app_name=app, user_id=user,
                session_id=session, remaining_depth=depth,
            )  # fmt: skip
            return self._load(
                to.app_name, to.user_id, to.filename, to.session_id, to.version, depth - 1
            )
        return None if part in _GONE else part

    def _keys(self, names: tuple[str, ...]) -> list[str]:
        id = self._bridge.find(*names)
        if id is None:
            return []
        logs = (log for log in self.store.logs(id) if log.startswith("artifacts/"))
        return [log_texts(log)[1] for log in logs]

    def _delete(self, names: tuple[str, ...], filename: str) -> None:
        id = self._bridge.find(*names)
        log = log_name("artifacts", filename)
        if id is not None and log in self.store.logs(id):
            self.store.delete(id, log=log)


def _names(app: str, user: str, filename: str, session: str | None) -> tuple[str, ...]:
    """Whose artifact it is: the user's, or a session's."""
    artifact_util.validate_path_segment(app, "app_name")
    artifact_util.validate_path_segment(user, "user_id")
    if filename.startswith(_USER):
        return app, user
    if session is None:
        raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
    artifact_util.validate_path_segment(session, "session_id")
    return app, user, session


def _mime_type(part: types.Part, app: str, user: str, session: str | None) -> str | None:
    if part.inline_data is not None:
        return part.inline_data.mime_type
    if part.text is not None:
        return "text/plain"
    if part.file_data is None:
        raise InputValidationError("Not supported artifact type.")
    if not artifact_util.is_artifact_ref(part):
        return part.file_data.mime_type
    parsed = artifact_util.parse_artifact_uri(str(part.file_data.file_uri))
    if not parsed:
        raise InputValidationError(f"Invalid artifact reference URI: {part.file_data.file_uri}")
    artifact_util.validate_artifact_reference_scope(
        app_name=app, user_id=user, session_id=session, parsed_uri=parsed
    )
    return None


def _version(event: Event, names: tuple[str, ...], filename: str) -> ArtifactVersion:
    place = "/".join(
        f"{kind}/{name}" for kind, name in zip(("apps", "users", "sessions"), names, strict=False)
    )
    return ArtifactVersion(
        version=event.seq - 1,
        canonical_uri=f"backtrail://{place}/artifacts/{filename}/versions/{event.seq - 1}",
        custom_metadata=event.data.get("metadata") or {},
        create_time=event.data["time"],
        mime_type=event.data.get("mime_type"),
    )
