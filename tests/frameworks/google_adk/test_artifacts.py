"""What ADK expects of an artifact service, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from google.adk.artifacts import InMemoryArtifactService
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

from backtrail.adapters.google_adk import BacktrailArtifactService

WHO: Any = {"app_name": "app", "user_id": "u"}
HERE: Any = {**WHO, "session_id": "s"}


@pytest.fixture
def service(url: str) -> Iterator[BacktrailArtifactService]:
    """The service on each store."""
    made = BacktrailArtifactService(url)
    yield made
    made.close()


def test_it_does_what_the_service_in_memory_does(service: BacktrailArtifactService) -> None:
    """Versions from 0, the newest by default, scopes, names, deleting."""

    async def steps(service: Any) -> list[Any]:
        seen: list[Any] = []
        png = types.Part(inline_data=types.Blob(data=b"\x00\xff" * 10, mime_type="image/png"))
        for part in (types.Part(text="one"), png, {"text": "three"}):
            seen.append(await service.save_artifact(**HERE, filename="a b.txt", artifact=part))
        for version in (None, 0, 1, 2, 3, -1):
            seen.append(
                await service.load_artifact(**HERE, filename="a b.txt", version=version)
                if version != -1
                else None
            )
        note = types.Part(text="mine")
        seen.append(
            await service.save_artifact(
                **HERE, filename="user:note", artifact=note, custom_metadata={"k": [1]}
            )
        )
        seen.append(await service.save_artifact(**HERE, filename="dir/ü.txt", artifact=note))
        seen.append(await service.list_artifact_keys(**HERE))
        seen.append(await service.list_artifact_keys(**WHO))
        seen.append(await service.list_artifact_keys(**WHO, session_id="other"))
        seen.append(await service.load_artifact(**WHO, session_id="o", filename="user:note"))
        seen.append(await service.list_versions(**HERE, filename="a b.txt"))
        for row in await service.list_artifact_versions(**HERE, filename="a b.txt"):
            seen.append((row.version, row.mime_type, row.custom_metadata))
        last = await service.get_artifact_version(**HERE, filename="user:note")
        seen.append((last.version, last.custom_metadata))
        seen.append(await service.get_artifact_version(**HERE, filename="none"))
        await service.delete_artifact(**HERE, filename="a b.txt")
        await service.delete_artifact(**HERE, filename="a b.txt")
        seen.append(await service.load_artifact(**HERE, filename="a b.txt"))
        seen.append(await service.list_artifact_keys(**HERE))
        seen.append(await service.save_artifact(**HERE, filename="a b.txt", artifact=note))
        seen.append(await service.load_artifact(**HERE, filename="a b.txt", version=0))
        return seen

    assert asyncio.run(steps(service)) == asyncio.run(steps(InMemoryArtifactService()))


def test_what_is_no_artifact_is_refused(service: BacktrailArtifactService) -> None:
    """No session for a session's artifact, a name that leaves its place, a part that is empty."""

    async def work() -> None:
        part = types.Part(text="x")
        with pytest.raises(InputValidationError):
            await service.save_artifact(**WHO, filename="a", artifact=part)
        with pytest.raises(ValueError):
            await service.save_artifact(
                app_name="a/..", user_id="u", session_id="s", filename="a", artifact=part
            )
        with pytest.raises(InputValidationError):
            await service.save_artifact(**HERE, filename="a", artifact=types.Part())

    asyncio.run(work())


def test_savers_at_once_get_different_versions(service: BacktrailArtifactService) -> None:
    """No version is lost or given twice."""

    async def work() -> None:
        parts = [types.Part(text=str(n)) for n in range(8)]
        saved = await asyncio.gather(
            *(service.save_artifact(**HERE, filename="a", artifact=part) for part in parts)
        )
        assert sorted(saved) == list(range(8))
        for n, part in zip(saved, parts, strict=True):
            assert await service.load_artifact(**HERE, filename="a", version=n) == part

    asyncio.run(work())
