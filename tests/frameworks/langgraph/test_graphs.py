"""Real graphs behave on our stores as on LangGraph's own, and so does what they leave."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Interrupt

from backtrail.adapters.langgraph import BacktrailSaver

from .graphs import CASES

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "t"}}
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")


class Names:
    """Ids in the order that they come in, so that two runs can be compared."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return _ID.sub(
                lambda one: self._found.setdefault(one[0], f"#{len(self._found)}"), value
            )
        if isinstance(value, BaseMessage):
            return type(value), self(value.model_dump())
        if isinstance(value, Interrupt):
            return Interrupt, self(value.value), self(value.id)
        if isinstance(value, dict):
            return {self(key): self(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self(one) for one in value]
        if isinstance(value, tuple):
            return tuple(self(one) for one in value)
        return value


def left(saver: Any) -> Iterator[Any]:
    """All that a saver has of the thread, oldest first, without times and versions."""
    names = Names()
    for found in reversed(list(saver.list(CONFIG))):
        checkpoint = dict(found.checkpoint)
        versions = sorted(checkpoint.pop("channel_versions"))
        seen = {node: sorted(had) for node, had in checkpoint.pop("versions_seen").items()}
        checkpoint.pop("ts")
        config = found.config["configurable"]
        writes = sorted(
            ((channel, value) for _, channel, value in found.pending_writes or []),
            key=lambda one: _ID.sub("#", repr(one)),
        )
        yield names(
            (config["checkpoint_ns"], config["checkpoint_id"], found.parent_config, checkpoint)
        )
        yield names((found.metadata, versions, seen, writes))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("name", CASES)
def test_a_graph_behaves_as_on_its_own_saver(url: str, name: str, durability: str) -> None:
    """The same result, the same checkpoints with the same values, the same pending writes."""
    if (name, durability) == ("forgetful", "async"):
        pytest.skip("a state that is changed in place while it is stored differs on every saver")
    make, run = CASES[name]
    with SqliteSaver.from_conn_string(":memory:") as own, BacktrailSaver(url) as ours:
        results, found = [], []
        for saver in (own, ours):
            graph = make().compile(checkpointer=saver)
            names = Names()
            results.append(names(run(_Durable(graph, durability), CONFIG)))
            found.append(list(left(saver)))
        assert results[1] == results[0]
        assert len(found[1]) == len(found[0])
        for mine, theirs in zip(found[1], found[0], strict=True):
            assert mine == theirs
    if not url.startswith("memory:"):
        with BacktrailSaver(url) as again:
            assert list(left(again)) == found[1]


class _Durable:
    """A graph that is always invoked with one durability."""

    def __init__(self, graph: Any, durability: str) -> None:
        self._graph, self._durability = graph, durability

    def invoke(self, given: Any, config: Any) -> Any:
        return self._graph.invoke(given, config, durability=self._durability)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


def test_asynchronous_graphs_run(url: str) -> None:
    """Turns at the same time in several threads of one saver, and streams that are left."""
    make, _ = CASES["chat"]

    async def main() -> None:
        async with BacktrailSaver(url) as saver:
            graph = make().compile(checkpointer=saver)

            async def turn(thread: int) -> None:
                config = {"configurable": {"thread_id": f"t{thread}"}}
                for n in range(3):
                    await graph.ainvoke({"messages": [("user", f"{thread}/{n}")]}, config)
                async for _ in graph.astream({"messages": [("user", "left")]}, config):
                    break

            await asyncio.gather(*(turn(n) for n in range(4)))
            for n in range(4):
                state = await graph.aget_state({"configurable": {"thread_id": f"t{n}"}})
                said = [m.text for m in state.values["messages"] if m.type == "human"]
                assert said[:3] == [f"{n}/0", f"{n}/1", f"{n}/2"]
            assert sorted(saver.threads()) == ["t0", "t1", "t2", "t3"]

    asyncio.run(main())
