"""LangGraph: 300 turns of 2 KB on our saver and on AsyncSqliteSaver, each on SQLite."""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from backtrail.adapters.langgraph import BacktrailSaver

TURNS = int(os.environ.get("BENCH_TURNS", "300"))
CONFIG: Any = {"configurable": {"thread_id": "t"}}


def text(number: int) -> str:
    """A kilobyte that no compression makes small."""
    return "".join(random.Random(number).choices(string.ascii_letters + " ", k=1000))


class Timed:
    """Times each call of the saver's methods."""

    def __init__(self, saver: Any) -> None:
        self.times: dict[str, list[float]] = {}
        for name in ("aput", "aput_writes"):
            setattr(saver, name, self._timed(name, getattr(saver, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return await method(*given, **named)
            finally:
                self.times.setdefault(name, []).append(time.perf_counter() - began)

        return call


async def drive(saver: Any) -> dict[str, float]:
    """The turns, and what they took."""
    timed = Timed(saver)
    graph = StateGraph(MessagesState)

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(text(-len(state["messages"])))]}

    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    app = graph.compile(checkpointer=saver)
    for n in range(TURNS):
        await app.ainvoke({"messages": [HumanMessage(text(n))]}, CONFIG, durability="sync")
    return {
        "put_us": statistics.median(timed.times["aput"]) * 1e6,
        "put_writes_us": statistics.median(timed.times["aput_writes"]) * 1e6,
    }


async def look(fresh: Callable[[], Any]) -> dict[str, float]:
    """What a new process waits for."""
    found: dict[str, float] = {}
    async with fresh() as saver:
        began = time.perf_counter()
        assert (await saver.aget_tuple(CONFIG)) is not None
        found["cold_get_ms"] = (time.perf_counter() - began) * 1e3
    for name, limit in (("list_10_ms", 10), ("list_all_ms", None)):
        async with fresh() as saver:
            began = time.perf_counter()
            count = len([one async for one in saver.alist(CONFIG, limit=limit)])
            found[name] = (time.perf_counter() - began) * 1e3
            assert count == (limit or count)
    return found


def size(paths: Iterable[Path]) -> float:
    """Megabytes of files."""
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


async def main() -> None:
    """Both, one after the other, in one run."""
    with tempfile.TemporaryDirectory() as folder:
        rows: dict[str, dict[str, float]] = {}
        own = Path(folder, "own.db")
        async with AsyncSqliteSaver.from_conn_string(str(own)) as saver:
            rows["own"] = await drive(saver)
        rows["own"] |= await look(lambda: AsyncSqliteSaver.from_conn_string(str(own)))
        rows["own"]["size_mb"] = size(Path(folder).glob("own.db*"))
        url = f"sqlite:///{folder}/ours.db"
        async with BacktrailSaver(url) as ours:
            rows["ours"] = await drive(ours)
        rows["ours"] |= await look(lambda: BacktrailSaver(url))
        rows["ours"]["size_mb"] = size(Path(folder).glob("ours.db*"))
        with BacktrailSaver(url) as saver:
            began = time.perf_counter()
            saver.copy_thread("t", "copy")
            rows["ours"]["copy_thread_ms"] = (time.perf_counter() - began) * 1e3
    for name, value in rows["ours"].items():
        theirs = rows["own"].get(name)
        row = {"row": name, "ours": round(value, 2), "theirs": theirs and round(theirs, 2)}
        row["ratio"] = None if theirs is None else round(value / theirs, 3)
        print(json.dumps(row))


if __name__ == "__main__":
    asyncio.run(main())
