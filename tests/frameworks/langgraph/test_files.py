"""Conversation and files go back together, and the graph goes on from there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from backtrail.adapters.langgraph import BacktrailSaver, BacktrailStore, Files, import_threads
from backtrail.cli import main
from backtrail.errors import Unsupported

from .graphs import CASES
from .test_graphs import CONFIG, left


def coder(folder: Path, files: Files) -> Any:
    """An agent that writes what it is told to a file, by a tool."""

    @tool
    def write(name: str, text: str) -> str:
        """Write a file."""
        (folder / name).write_text(text)
        return f"wrote {name}"

    def model(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        if last.type == "tool":
            return {"messages": [AIMessage("done")]}
        number = sum(message.type == "human" for message in state["messages"])
        call = {"name": "write", "args": {"name": "a.txt", "text": last.text}, "id": f"c{number}"}
        return {"messages": [AIMessage("", tool_calls=[{**call, "type": "tool_call"}])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([write], wrap_tool_call=files, awrap_tool_call=files.later))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph


def texts(graph: Any) -> list[str]:
    """What people said, as the graph has it."""
    messages = graph.get_state(CONFIG).values["messages"]
    return [message.text for message in messages if message.type == "human"]


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_rewind_takes_files_and_state(url: str, tmp_path: Path, later: bool) -> None:
    """Before a prompt, and forward again by undo; the graph goes on from what is there."""
    folder = tmp_path / "work"
    folder.mkdir()
    note = folder / "a.txt"
    with BacktrailSaver(url, cwd=folder) as saver:
        files = Files(saver, folder)
        graph = coder(folder, files).compile(checkpointer=saver)

        def say(text: str) -> None:
            given: Any = {"messages": [("user", text)]}
            if later:
                asyncio.run(graph.ainvoke(given, CONFIG))
            else:
                graph.invoke(given, CONFIG)

        for word in ("one", "two", "three"):
            say(word)
        assert note.read_text() == "three"
        with saver.session("t", cwd=folder) as session:
            said = [event for event in session.events() if event.kind == "user_message"]
            assert [event.data["message"]["content"] for event in said] == ["one", "two", "three"]
            session.rewind(before=said[1])
            assert note.read_text() == "one"
            assert texts(graph) == ["one"] and graph.get_state(CONFIG).next == ()
            session.undo()
            assert note.read_text() == "three" and texts(graph) == ["one", "two", "three"]
            session.redo()
        say("instead")
        assert note.read_text() == "instead" and texts(graph) == ["one", "instead"]
        with saver.session("t", cwd=folder) as session:
            shown = [m["content"] for m in session.messages() if m["type"] == "human"]
            assert shown == ["one", "instead"]
            fork = session.fork(into=tmp_path / "fork")
            assert (tmp_path / "fork" / "a.txt").read_text() == "instead"
            fork.close()
        files.close()


def test_the_command_line_shows_a_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ls`, `show` and `search` work on it like on any session."""
    url = f"sqlite:///{tmp_path}/s.db"
    make, run = CASES["chat"]
    with BacktrailSaver(url, cwd=tmp_path) as saver:
        run(make().compile(checkpointer=saver), CONFIG)
        id = saver.session_id("t")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKTRAIL_STORE", url)
    for command, wanted in (
        (["ls", "--all"], id[:8]),
        (["show", id], "you said hello 0"),
        (["search", "instead"], "instead"),
    ):
        assert main(command) == 0
        assert wanted in capsys.readouterr().out


def test_threads_come_from_sqlite_saver(url: str) -> None:
    """Everything it has of a thread is the same afterwards, also a second time."""
    make, run = CASES["asking"]
    with SqliteSaver.from_conn_string(":memory:") as own, BacktrailSaver(url) as ours:
        graph = make().compile(checkpointer=own)
        graph.invoke({"log": ["begin"]}, CONFIG)
        assert import_threads(own, ours) == ["t"]
        assert list(left(ours)) == list(left(own))
        assert import_threads(own, ours) == []
        run(make().compile(checkpointer=ours), CONFIG)
        assert len(ours.get_tuple(CONFIG).checkpoint["channel_values"]["log"]) > 2  # type: ignore


def test_long_term_memory(url: str) -> None:
    """Items are put, found, listed and deleted, seen by a second store of the same place."""
    with BacktrailSaver(url) as saver:
        store, other = BacktrailStore(saver.store), BacktrailStore(saver.store)
        for n in range(5):
            store.put(("users", str(n % 2)), f"k{n}", {"n": n, "deep": {"a": [n]}})
        item = other.get(("users", "1"), "k3")
        assert item is not None and item.value == {"n": 3, "deep": {"a": [3]}}
        item.value["deep"]["a"].append("changed")
        again = other.get(("users", "1"), "k3")
        assert again is not None and again.value == {"n": 3, "deep": {"a": [3]}}
        found = other.search(("users",), filter={"n": {"$gte": 2}})
        assert sorted(one.key for one in found) == ["k2", "k3", "k4"]
        assert other.list_namespaces(prefix=("users",)) == [("users", "0"), ("users", "1")]
        store.delete(("users", "1"), "k3")
        assert other.get(("users", "1"), "k3") is None
        with pytest.raises(Unsupported):
            other.search(("users",), query="meaning")
