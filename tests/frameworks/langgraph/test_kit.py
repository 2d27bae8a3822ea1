"""LangGraph's published tests of checkpointers: all of them, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

from backtrail.adapters.langgraph import BacktrailSaver

COUNTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


class Synchronous(BacktrailSaver):
    """Its asynchronous methods are the synchronous ones, called in place."""

    async def aget_tuple(self, config: Any) -> Any:
        return self.get_tuple(config)

    async def alist(self, config: Any, **given: Any) -> AsyncIterator[Any]:
        for one in self.list(config, **given):
            yield one

    async def aput(self, *given: Any) -> Any:
        return self.put(*given)

    async def aput_writes(self, *given: Any, **named: Any) -> None:
        self.put_writes(*given, **named)

    async def adelete_thread(self, *given: Any) -> None:
        self.delete_thread(*given)

    async def adelete_for_runs(self, *given: Any) -> None:
        self.delete_for_runs(*given)

    async def acopy_thread(self, *given: Any) -> None:
        self.copy_thread(*given)

    async def aprune(self, *given: Any, **named: Any) -> None:
        self.prune(*given, **named)


@pytest.mark.parametrize("cls", [BacktrailSaver, Synchronous])
def test_the_whole_kit_passes(url: str, cls: type[BacktrailSaver]) -> None:
    """81 of 81, each capability found and each of its tests counted."""

    @checkpointer_test(name="backtrail")
    async def fresh() -> AsyncIterator[BacktrailSaver]:
        with cls(url) as saver:
            yield saver

    report = asyncio.run(validate(fresh)).to_dict()["results"]
    failures = {name: one["failures"] for name, one in report.items() if one["failures"]}
    assert failures == {}
    assert {name: one["tests_passed"] for name, one in report.items()} == COUNTS
    assert all(one["detected"] for one in report.values())
    assert sum(COUNTS.values()) == 81
