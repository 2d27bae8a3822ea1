"""What tests of agents share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from backtrail.agent.models.base import Delta, Model, ModelFailed, Reply, Request


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let trio not complain of generators that the clients leave to the collector."""
    for item in items:
        if item.path.is_relative_to(HERE):
            mark = "ignore:Async generator '(openai|anthropic|httpx2|httpcore2):ResourceWarning"
            item.add_marker(pytest.mark.filterwarnings(mark))


HERE = Path(__file__).parent
Outcome = list[Delta | Reply] | ModelFailed
Step = Request | Callable[[list[Reply]], Request]
Talk = Callable[..., list[Outcome]]


@pytest.fixture(params=["sync", "asyncio", "trio"])
def talk(request: pytest.FixtureRequest) -> Talk:
    """Asks a model some requests in turn, in each way there is, and closes it.

    A step may be a function of the replies so far. A failure is an outcome, too.
    """

    def sync(model: Model, *steps: Step) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            for step in steps:
                try:
                    outcomes.append(list(model.stream(_request(step, outcomes))))
                except ModelFailed as failed:
                    outcomes.append(failed)
        finally:
            model.close()
        return outcomes

    async def asynchronous(model: Model, *steps: Step) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            for step in steps:
                try:
                    stream = model.astream(_request(step, outcomes))
                    outcomes.append([item async for item in stream])
                except ModelFailed as failed:
                    outcomes.append(failed)
        finally:
            await model.aclose()
        return outcomes

    def run(model: Model, *steps: Step) -> list[Outcome]:
        return anyio.run(asynchronous, model, *steps, backend=request.param)

    return sync if request.param == "sync" else run


def _request(step: Step, outcomes: list[Outcome]) -> Request:
    return step if isinstance(step, Request) else step([reply_of(o) for o in outcomes])


def reply_of(outcome: Outcome) -> Reply:
    """The reply at the end of an outcome."""
    assert not isinstance(outcome, ModelFailed), outcome
    reply = outcome[-1]
    assert isinstance(reply, Reply)
    assert not any(isinstance(item, Reply) for item in outcome[:-1])
    return reply


def failure_of(outcome: Outcome) -> ModelFailed:
    """The failure that an outcome is."""
    assert isinstance(outcome, ModelFailed), outcome
    return outcome


def notified(outcome: Outcome, kind: str = "text_delta") -> str:
    """All deltas of a kind in one text."""
    assert not isinstance(outcome, ModelFailed), outcome
    return "".join(item.text for item in outcome if isinstance(item, Delta) and item.kind == kind)
