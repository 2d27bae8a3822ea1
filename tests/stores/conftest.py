"""A server that a test may stop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import postgres


@pytest.fixture
def own_server() -> Iterator[postgres.Server]:
    """PostgreSQL for this test alone; skipped, with the reason, where none can run."""
    postgres.server()
    server = postgres.Server.make()
    try:
        server.start()
        yield server
    finally:
        server.remove()
