"""A recorded session as a test of the agent around it, without a network.

In a `conftest.py`:

    from backtrail.testing.replay import replay

and in a test:

    def test_the_agent_still_does_it(replay):
        model = replay("sqlite:///recorded.db", "deploy-123")
        ...  # run the agent on `model`, and look at what it did

The test fails if the agent asks for more answers than were recorded, or for fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ..agent.models.scripted import ScriptedModel
from ..stores import Store

Replay = Callable[[Store | str, str], ScriptedModel]
"""What the fixture gives: a function of a store, or its URL, and a session's id."""


@pytest.fixture
def replay() -> Iterator[Replay]:
    """Makes models that answer as in a recorded session; all answers must be asked for."""
    models: list[tuple[str, ScriptedModel]] = []

    def make(store: Store | str, session_id: str) -> ScriptedModel:
        model = ScriptedModel.from_session(store, session_id)
        models.append((session_id, model))
        return model

    yield make
    for session_id, model in models:
        if model.left:
            asked = len(model.replies) - model.left
            pytest.fail(
                f"the replay of session `{session_id}` asked for {asked} of "
                f"{len(model.replies)} recorded replies"
            )
