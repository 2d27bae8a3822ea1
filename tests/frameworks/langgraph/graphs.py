"""Graphs of many kinds, each with what is done with it; values are as they come out."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel


class Chat(TypedDict):
    """A conversation, a list that grows, and values of several types."""

    messages: Annotated[list[AnyMessage], add_messages]
    seen: Annotated[list[Any], operator.add]
    last: Any


@dataclass
class Point:
    """A value that JSON does not know."""

    x: int
    y: int


ODD: list[Any] = [
    {"when": datetime(2026, 1, 2, tzinfo=UTC), "set": {1, 2}, "tuple": (1, "a")},
    {"bytes": b"\0\xff", "nul": "a\0b", "int key": {1: "x"}, "big": 1 << 62},
    [1, 1.0, True, None, "é", [], {}],
    Point(1, 2),
    float("inf"),
]


def answer(state: Chat) -> dict[str, Any]:
    """An answer, and an odd value."""
    number = len(state["messages"])
    said = state["messages"][-1].text
    call = {"name": "look", "args": {"n": number}, "id": f"call{number}", "type": "tool_call"}
    return {
        "messages": [
            AIMessage(f"you said {said}", id=f"ai{number}", tool_calls=[call]),
            ToolMessage("found", tool_call_id=f"call{number}", id=f"tool{number}"),
        ],
        "seen": [ODD[number % len(ODD)], "x" * 100],
        "last": ODD[(number + 1) % len(ODD)],
    }


def chat() -> StateGraph:
    """One node that answers."""
    graph = StateGraph(Chat)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph


def forgetful() -> StateGraph:
    """Removes and changes messages that are in the middle."""

    def forget(state: Chat) -> dict[str, Any]:
        messages = state["messages"]
        changes: list[Any] = [AIMessage("new", id=f"ai{len(messages)}")]
        if len(messages) > 2:
            changes.append(RemoveMessage(id=str(messages[0].id)))
            changes.append(HumanMessage("edited", id=str(messages[2].id)))
        return {"messages": changes}

    def spoil(state: Chat) -> dict[str, Any]:
        # In place, which no reducer sees.
        state["messages"][0].content = "changed in place"
        return {"last": len(state["messages"]), "messages": [AIMessage("x", id="x")]}

    graph = StateGraph(Chat)
    graph.add_node("forget", forget)
    graph.add_node("spoil", spoil)
    graph.add_edge(START, "forget")
    graph.add_edge("forget", "spoil")
    graph.add_edge("spoil", END)
    return graph


class Asked(TypedDict):
    """What a person is asked."""

    log: Annotated[list[str], operator.add]


def asking() -> StateGraph:
    """Parallel branches of which two ask a person."""

    def ask(name: str) -> Callable[[Asked], dict[str, Any]]:
        def node(state: Asked) -> dict[str, Any]:
            return {"log": [f"{name}: {interrupt({'from': name})}"]}

        return node

    def quick(state: Asked) -> dict[str, Any]:
        return {"log": ["quick"]}

    graph = StateGraph(Asked)
    for name in ("a", "b"):
        graph.add_node(name, ask(name))
        graph.add_edge(START, name)
    graph.add_node("quick", quick)
    graph.add_edge(START, "quick")
    return graph


def fanning() -> StateGraph:
    """Sends to one node many times, and a subgraph with checkpoints of its own."""

    def out(state: Asked) -> list[Send]:
        return [Send("work", {"log": [str(n)]}) for n in range(4)]

    def work(state: Asked) -> dict[str, Any]:
        return {"log": [f"work {state['log'][0]}"]}

    def inner(state: Asked) -> dict[str, Any]:
        return {"log": [f"inner {len(state['log'])}"]}

    def inner_ask(state: Asked) -> dict[str, Any]:
        return {"log": [f"asked {interrupt('inside')}"]}

    sub = StateGraph(Asked)
    sub.add_node("inner", inner)
    sub.add_node("inner_ask", inner_ask)
    sub.add_edge(START, "inner")
    sub.add_edge("inner", "inner_ask")
    graph = StateGraph(Asked)
    graph.add_node("work", work)
    graph.add_node("sub", sub.compile())
    graph.add_conditional_edges(START, out, ["work"])
    graph.add_edge("work", "sub")
    return graph


class Item(BaseModel):
    """A part of a pydantic state."""

    name: str
    at: datetime


class Model(BaseModel):
    """A state that is a pydantic model."""

    items: Annotated[list[Item], operator.add] = []
    best: Item | None = None


def modelled() -> StateGraph:
    """A pydantic state."""

    def add(state: Model) -> dict[str, Any]:
        item = Item(name=f"n{len(state.items)}", at=datetime(2026, 1, 1, tzinfo=UTC))
        return {"items": [item], "best": item}

    graph = StateGraph(Model)
    graph.add_node("add", add)
    graph.add_edge(START, "add")
    return graph


def failing() -> StateGraph:
    """One of two parallel branches fails the first time; the other is not run again."""
    tries: list[str] = []

    def good(state: Asked) -> dict[str, Any]:
        tries.append("good")
        return {"log": [f"good {tries.count('good')}"]}

    def bad(state: Asked) -> dict[str, Any]:
        tries.append("bad")
        while "good" not in tries:
            time.sleep(0.01)
        # What a task wrote is stored once the graph hears of its end.
        time.sleep(0.2)
        if tries.count("bad") == 1:
            raise RuntimeError("the first time")
        return {"log": [f"bad {tries.count('bad')}"]}

    graph = StateGraph(Asked)
    graph.add_node("good", good)
    graph.add_node("bad", bad)
    graph.add_edge(START, "good")
    graph.add_edge(START, "bad")
    return graph


Run = Callable[[Any, dict[str, Any]], Any]


def talk(graph: Any, config: dict[str, Any]) -> Any:
    """Several turns, time travel to the first, another from there, and a change by hand."""
    for n in range(4):
        graph.invoke({"messages": [("user", f"hello {n}")], "seen": [n]}, config)
    states = list(graph.get_state_history(config))
    early = states[len(states) * 2 // 3]
    graph.invoke({"messages": [HumanMessage("instead", id="h")]}, early.config)
    graph.update_state(config, {"last": "by hand"}, as_node=START)
    graph.invoke(None, early.config)
    return graph.invoke({"messages": {"role": "user", "content": "a dict"}}, config)


def resume(graph: Any, config: dict[str, Any]) -> Any:
    """Answer what was asked, one after another."""
    graph.invoke({"log": ["begin"]}, config)
    for n in range(4):
        asked = graph.get_state(config, subgraphs=True).interrupts
        if not asked:
            break
        graph.invoke(Command(resume={asked[0].id: f"answer {n}"}), config)
    return graph.get_state(config).values


def retry(graph: Any, config: dict[str, Any]) -> Any:
    """Fail once and go on."""
    try:
        graph.invoke({"log": ["begin"]}, config)
    except RuntimeError:
        pass
    return graph.invoke(None, config)


def repeat(graph: Any, config: dict[str, Any]) -> Any:
    """Run it a few times."""
    for _ in range(3):
        graph.invoke({"items": []}, config)
    return graph.get_state(config).values


CASES: dict[str, tuple[Callable[[], StateGraph], Run]] = {
    "chat": (chat, talk),
    "forgetful": (forgetful, talk),
    "asking": (asking, resume),
    "fanning": (fanning, resume),
    "modelled": (modelled, repeat),
    "failing": (failing, retry),
}
