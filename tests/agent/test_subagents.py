"""Subagents: a log of their own, no more rights or time than given, never a crash."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from backtrail import Event, NewEvent, Session, StoreFailed
from backtrail.agent.loop import Loop
from backtrail.agent.models.base import ModelFailed, Reply
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions, Phase
from backtrail.agent.subagents import spawn
from backtrail.agent.tools import Context, tool_from, tools_named
from backtrail.events import MAIN_LOG, Json
from backtrail.session.turns import Limits
from backtrail.stores import KnownIds, Store, open_store
from backtrail.stores.wrapper import Wrapper

from .servers import AnthropicServer, OpenAIServer
from .test_loop import results
from .test_turns import call, calling, ends, eventually, saying

TASK = calling(call("t1", "task", description="count", prompt="How many are there?"))
PRICED = "gpt-4o-mini"


def parent(*replies: Json, phase: Phase = "trusted", tools: Json = "all", **options: Json) -> Loop:
    model = ScriptedModel(list(replies))
    return Loop(model, tools_named(tools), Permissions(phase), spawn=spawn, **options)


def logs(store: Store, session_id: str = "s") -> list[list[Event]]:
    """The logs of the subagents of a session, in the order they began."""
    names = [name for name in store.logs(session_id) if name.startswith("subagents/")]
    return sorted(
        (list(store.read(session_id, log=name)) for name in names), key=lambda log: log[0].ts
    )


def test_a_subagent_has_a_log_of_its_own(url: str, tmp_path: Path) -> None:
    """With prompt, messages, result and usage; the parent sees the answer alone."""
    work = tmp_path / "work"
    work.mkdir()
    used = {"input_tokens": 10, "output_tokens": 5}
    agent = parent(
        TASK,
        Reply(calling(call("w", "write", path="a", content="x")), used, "tool_use", PRICED),
        Reply(saying("There are two."), used, "end_turn", PRICED),
        Reply(saying("Two."), used, "end_turn", PRICED),
    )
    with Session.open(url, "s", agent=agent, cwd=work) as s:
        done = s.send("go")
        assert done.text == "Two."
        assert [m["role"] for m in s.messages()] == ["user", "assistant", "tool", "assistant"]
        assert results(s) == ["There are two."]
        once = (10 * 0.15 + 5 * 0.6) / 1e6
        assert done.usage == {name: 3 * n for name, n in used.items()}
        assert done.cost_usd == pytest.approx(3 * once)
        assert s.info().cost_usd == pytest.approx(3 * once)
        assert done.files == ["a"]
        s.undo()
        assert list(work.iterdir()) == []
    with open_store(url) as store:
        (log,) = logs(store)
    assert [event.kind for event in log] == ["start", *["message"] * 4, "result"]
    start, end = log[0].data, log[-1].data
    assert (start["prompt"], start["description"]) == ("How many are there?", "count")
    assert (start["call"], start["depth"]) == ("t1", 1)
    said = [event.data["message"]["role"] for event in log[1:-1]]
    assert said == ["user", "assistant", "tool", "assistant"]
    assert (end["ok"], end["text"]) == (True, "There are two.")
    assert end["usage"] == {name: 2 * n for name, n in used.items()}
    assert end["cost_usd"] == pytest.approx(2 * once)


def test_it_begins_with_nothing_but_its_prompt() -> None:
    """And has the same tools."""
    agent = parent(TASK, saying("two"), saying("Two."))
    with Session.open("memory:", agent=agent, system_prompt="Be brief.") as s:
        s.send("a secret")
    model = agent.model
    assert isinstance(model, ScriptedModel)
    request = model.requests[1]
    assert request.messages == [{"role": "user", "content": "How many are there?"}]
    assert [tool.name for tool in request.tools] == [tool.name for tool in agent.tools]


def test_over_http() -> None:
    """Both providers take what a subagent sends."""
    with OpenAIServer() as server:
        look = calling(call("g", "glob", pattern="*.nothing"))
        server.script(TASK, look, "None.", "Done.")
        options = {"base_url": server.url}
        with Session.open(
            "memory:", agent="ollama:m", tools="all", phase="trusted", agent_options=options
        ) as s:
            assert s.send("go").text == "Done."
        assert server.refused == []
    with AnthropicServer() as server:
        uses = [
            {"type": "tool_use", "id": f"u{n}", "name": name, "input": input}
            for n, (name, input) in enumerate(
                [("task", {"description": "d", "prompt": "p"}), ("glob", {"pattern": "*.no"})]
            )
        ]
        server.script(*({"role": "assistant", "content": [use]} for use in uses), "None.", "Done.")
        options = {"base_url": server.url, "api_key": "k"}
        with Session.open(
            "memory:", agent="anthropic:c", tools="all", phase="trusted", agent_options=options
        ) as s:
            assert s.send("go").text == "Done."
        assert server.refused == []


# --- rights and limits -------------------------------------------------------------------


def test_it_may_do_no_more_than_its_parent(tmp_path: Path) -> None:
    """The phase, the lists, the callback and the roots are the parent's."""
    asked: list[str] = []

    def ask(name: str, input: Json, context: Json) -> bool:
        asked.append(name)
        return name == "task"

    write = calling(call("w", "write", path="a", content="x"))
    outside = calling(call("x", "read", path="../secret"))
    model = ScriptedModel([TASK, write, outside, saying("no"), saying("No.")])
    permissions = Permissions("default", can_use_tool=ask)
    agent = Loop(model, tools_named("all"), permissions, spawn=spawn)
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "secret").write_text("secret")
    with Session.open(f"file:{tmp_path}/s", "s", agent=agent, cwd=work) as s:
        s.send("go")
        assert asked == ["task", "write"]
        assert not (work / "a").exists()
        s.close()
    with open_store(f"file:{tmp_path}/s") as store:
        (log,) = logs(store)
    said = [event.data["message"] for event in log if event.kind == "message"]
    notified = [message["content"] for message in said if message["role"] == "tool"]
    assert "user_denied" in notified[0]
    assert "sandbox_violation" in notified[1]


def test_in_a_plan_there_is_none() -> None:
    """A subagent could do anything, so it is no reading."""
    with Session.open("memory:", agent=parent(TASK, saying("ok"), phase="plan")) as s:
        s.send("go")
        assert "phase_gated" in results(s)[0]


def test_depth_is_limited() -> None:
    """The innermost is asked to do it itself."""
    tasks = [calling(call(f"t{n}", "task", description="d", prompt=f"p{n}")) for n in range(3)]
    agent = parent(*tasks, saying("myself"), saying("b"), saying("a"), task_depth=2)
    with Session.open("memory:", "s", agent=agent) as s:
        assert s.send("go").text == "a"
        s.log("x").flush()
        # Ids that were made in one millisecond are in no order.
        found = sorted(logs(s.store), key=lambda log: str(log[0].data["depth"]))
        assert [log[0].data["depth"] for log in found] == [1, 2]
        inner = [e.data["message"] for e in found[1] if e.kind == "message"]
        assert "2 deep at the most" in inner[2]["content"]


def test_time_is_limited() -> None:
    """What it runs is stopped; the parent goes on with a tool error."""
    agent = parent(
        TASK, calling(call("b", "bash", command="sleep 60")), saying("too slow"), task_seconds=0.3
    )
    with Session.open("memory:", agent=agent) as s:
        began = time.monotonic()
        assert s.send("go").text == "too slow"
        assert time.monotonic() - began < 15
        assert "took over 0.3 seconds" in results(s)[0]


def test_what_it_uses_is_its_parents() -> None:
    """A budget holds for both."""
    used = {"input_tokens": 100, "output_tokens": 10}
    look = Reply(calling(call("g", "glob", pattern="*.no")), used, "tool_use")
    agent = parent(TASK, *[look] * 9)
    with Session.open("memory:", agent=agent) as s:
        done = s.send("go", budget=Limits(max_tokens=300))
        assert done.exit_reason == "max_tokens"
        assert done.usage["input_tokens"] == 300


def test_what_a_subagents_subagent_uses_is_the_sessions() -> None:
    """However deep it was used up; so a budget holds for all of it."""
    used = {"input_tokens": 100, "output_tokens": 10}
    inner = Reply(calling(call("t2", "task", description="d", prompt="p")), used, "tool_use")
    replies = [Reply(saying(text), used, "end_turn") for text in ("deep", "less deep", "done")]
    with Session.open("memory:", "s", agent=parent(TASK, inner, *replies)) as s:
        assert s.send("go").usage == {"input_tokens": 400, "output_tokens": 40}
        assert s.info().usage["input_tokens"] == 400
        found = sorted(log[-1].data["usage"]["input_tokens"] for log in logs(s.store))
        assert found == [100, 300]


def test_rounds_are_limited() -> None:
    """One that never comes to an end is a tool error."""
    look = calling(call("g", "glob", pattern="*.no"))
    agent = parent(TASK, look, look, saying("gave up"), max_turns=2)
    with Session.open("memory:", agent=agent) as s:
        s.send("go")
        assert "max_turns" in results(s)[0]


# --- failures ----------------------------------------------------------------------------


def test_one_that_fails_is_a_tool_error() -> None:
    """Its model, or anything else; the log has the reason."""
    replies = [TASK, ModelFailed("no such model"), TASK, ZeroDivisionError("x"), saying("I see.")]
    with Session.open("memory:", "s", agent=parent(*replies)) as s:
        assert s.send("go").text == "I see."
        assert "no such model" in results(s)[0]
        assert "ZeroDivisionError" in results(s)[1]
        s.log("x").flush()
        found = logs(s.store)
        assert [log[-1].data["ok"] for log in found] == [False, False]
        # Ids that were made in one millisecond are in no order.
        assert sum("no such model" in log[-1].data["error"] for log in found) == 1
        assert ends(s) == ["end_turn"]


def test_a_failure_that_passes_is_tried_again() -> None:
    """With the patience of the loop."""
    busy = ModelFailed("busy", transient=True, retry_after=0.01)
    with Session.open("memory:", agent=parent(TASK, busy, saying("two"), saying("ok"))) as s:
        assert s.send("go").text == "ok"
        assert results(s) == ["two"]


class NoSideLogs(Wrapper):
    """A store that takes the conversation and nothing else."""

    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        if log != MAIN_LOG:
            raise StoreFailed("no side logs today")
        return super().append(session_id, events, log=log, expected=expected, known=known)


def test_a_log_that_cannot_be_written_fails_nothing() -> None:
    """The run goes on, and a warning is logged."""
    with open_store("memory:") as inner:
        s = Session.open(NoSideLogs(inner), "s", agent=parent(TASK, saying("two"), saying("ok")))
        assert s.send("go").text == "ok"
        assert results(s) == ["two"]
        s.close()
        assert s.problems


def test_cancelling_the_turn_cancels_it(tmp_path: Path) -> None:
    """With what it runs."""
    command = "echo $$ > pid; sleep 60"
    agent = parent(TASK, calling(call("b", "bash", command=command)), saying("never"))
    with Session.open("memory:", agent=agent, cwd=tmp_path) as s:
        done: list[str] = []
        thread = threading.Thread(target=lambda: done.append(s.send("go").exit_reason))
        thread.start()
        eventually(lambda: (tmp_path / "pid").exists())
        s.cancel()
        thread.join(20)
        assert done == ends(s) == ["interrupted"]
        assert s.pending() == []


def test_a_tool_of_ones_own_may_spawn() -> None:
    """The context has a way to."""

    def helpers(context: Context) -> str:
        """Ask twice."""
        assert context.spawn is not None
        return f"{context.spawn('a')} {context.spawn('b')}"

    agent = parent(calling(call("h", "helpers")), "one", "two", "done", tools=[tool_from(helpers)])
    with Session.open("memory:", agent=agent) as s:
        s.send("go")
        assert results(s) == ["one two"]
