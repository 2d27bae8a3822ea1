"""The built-in loop, with the official clients, against servers that speak the protocols."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backtrail import Delta, Session
from backtrail.agent.loop import Loop
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.tools import tool_from, tools_named
from backtrail.errors import InvalidData, Unsupported
from backtrail.events import Json
from backtrail.events.calls import answers_in
from backtrail.session.turns import Limits

from .servers import Answer, AnthropicServer, Broken, Failure, OpenAIServer
from .test_turns import call, calling, ends, eventually, roles, saying

Opened = Callable[..., Session]


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def claude() -> Iterator[AnthropicServer]:
    with AnthropicServer() as server:
        yield server


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def opened(server: OpenAIServer, tmp_path: Path, work: Path) -> Iterator[Opened]:
    """Opens sessions as the seeds do, on a server."""
    sessions: list[Session] = []

    def make(id: str = "deploy-123", **options: Any) -> Session:
        more = {"base_url": server.url, **options.pop("agent_options", {})}
        options = {"model": "qwen2.5-coder", "phase": "trusted", **options}
        url = f"sqlite:///{tmp_path}/store.db"
        s = Session.open(
            url, id, provider="ollama", tools=options.pop("tools", "all"), cwd=work,
            agent_options=more, **options,
        )  # fmt: skip
        sessions.append(s)
        return s

    yield make
    for session in sessions:
        session.close()


def results(session: Session) -> list[str]:
    """What the tools gave, in order."""
    return [str(m["content"]) for m in session.messages() if m["role"] == "tool"]


# --- a turn ------------------------------------------------------------------------------


def test_a_turn_with_a_tool(opened: Opened, server: OpenAIServer, work: Path) -> None:
    """User, assistant, tool, assistant; the model sees what the log has."""
    server.script(calling(call("c1", "write", path="a.txt", content="hey\n")), "Written.")
    s = opened(system_prompt="Be brief.")
    result = s.send("write a.txt")
    assert (result.text, result.exit_reason, result.files) == ("Written.", "end_turn", ["a.txt"])
    assert roles(s) == ["system", "user", "assistant", "tool", "assistant"]
    assert (work / "a.txt").read_text() == "hey\n"
    assert server.refused == []
    first, second = (request["messages"] for request in server.requests)
    assert first == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "write a.txt"},
    ]
    assert [m["role"] for m in second] == ["system", "user", "assistant", "tool"]
    names = {tool["function"]["name"] for tool in server.requests[0]["tools"]}
    assert names == {"read", "write", "edit", "apply_patch", "glob", "grep", "bash", "task"}
    s.undo()
    assert list(work.iterdir()) == []


def test_an_agent_has_a_short_name(server: OpenAIServer) -> None:
    """`agent="provider:model"`, with colons in the model's name as Ollama has them."""
    server.script("hi", "ho")
    options = {"base_url": server.url}
    with Session.open("memory:", agent="ollama:qwen2.5:7b", agent_options=options) as s:
        assert s.send("hello").text == "hi"
    assert server.requests[0]["model"] == "qwen2.5:7b"
    assert "tools" not in server.requests[0]


def test_resuming_needs_no_name_of_the_model(opened: Opened, server: OpenAIServer) -> None:
    """It is in the session's record."""
    server.script("hi", "ho")
    opened().send("hello")
    assert opened(model=None).send("hello").text == "ho"
    assert [request["model"] for request in server.requests] == ["qwen2.5-coder"] * 2


def test_another_model_for_one_turn(opened: Opened, server: OpenAIServer) -> None:
    """`send(model=…)`; a loop with a model of its own has no other."""
    server.script("one", "two", "three")
    s = opened()
    for model in (None, "big", None):
        s.send("go", model=model)
    assert [r["model"] for r in server.requests] == ["qwen2.5-coder", "big", "qwen2.5-coder"]
    other = Session.open("memory:", agent=Loop(ScriptedModel(["x"])))
    with other, pytest.raises(Unsupported, match="cannot open `big`"):
        other.send("go", model="big")


def test_unknown_options_are_reported(opened: Opened) -> None:
    """A misspelt limit would be none."""
    with pytest.raises(InvalidData, match="no option `max_turn`"):
        opened(agent_options={"max_turn": 3}).send("go")
    with pytest.raises(InvalidData, match="limits"):
        opened(agent_options={"limits": 3}).send("go")


# --- tools -------------------------------------------------------------------------------


def test_parallel_calls_run_side_by_side(opened: Opened, server: OpenAIServer, work: Path) -> None:
    """Those that read, or edit different files; the order of results is that of the calls."""
    meeting = threading.Barrier(2, timeout=10)

    def meet(name: str) -> str:
        """Wait for the other one."""
        meeting.wait()
        return name

    tool = tool_from(meet, kind="read")
    server.script(calling(call("a", "meet", name="x"), call("b", "meet", name="y")), "done")
    s = opened(tools=[tool])
    assert s.send("go").text == "done"
    assert sorted(results(s)) == ["x", "y"]
    assert server.refused == []


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_results_are_sent_in_the_order_of_the_calls(
    server: OpenAIServer, claude: AnthropicServer, provider: str
) -> None:
    """Whichever came first: the same turn makes the same requests."""

    def wait(seconds: float) -> float:
        """Wait."""
        time.sleep(seconds)
        return seconds

    tools = [tool_from(wait, kind="read")]
    waits = {"a": 0.15, "b": 0.08, "c": 0.0}
    if provider == "openai":
        server.script(calling(*(call(id, "wait", seconds=n) for id, n in waits.items())), "done")
    else:
        uses = [
            {"type": "tool_use", "id": id, "name": "wait", "input": {"seconds": n}}
            for id, n in waits.items()
        ]
        claude.script({"role": "assistant", "content": uses}, "done")
    used = server if provider == "openai" else claude
    options = {"base_url": used.url, "api_key": "k"}
    with Session.open("memory:", agent=f"{provider}:m", tools=tools, agent_options=options) as s:
        assert s.send("go").text == "done"
        logged = [e.data["message"] for e in s.events(kinds=("tool_result",))]
        assert [sorted(answers_in(m)) for m in logged] == [["c"], ["b"], ["a"]]
    sent = used.requests[-1]["messages"][2:]
    blocks = [block for m in sent for block in (m["content"] if provider == "anthropic" else [m])]
    assert [b.get("tool_use_id") or b.get("tool_call_id") for b in blocks] == ["a", "b", "c"]
    assert used.refused == []


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_model_is_shown_the_images_it_reads(
    server: OpenAIServer, claude: AnthropicServer, tmp_path: Path, provider: str
) -> None:
    """As the provider wants them, beside the results of other calls."""
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    (tmp_path / "b.txt").write_text("words\n")
    paths = {"1": "a.png", "2": "b.txt"}
    if provider == "openai":
        server.script(calling(*(call(id, "read", path=path) for id, path in paths.items())), "ok")
    else:
        uses = [
            {"type": "tool_use", "id": id, "name": "read", "input": {"path": path}}
            for id, path in paths.items()
        ]
        claude.script({"role": "assistant", "content": uses}, "ok")
    used = server if provider == "openai" else claude
    options = {"base_url": used.url, "api_key": "k"}
    with Session.open(
        "memory:", cwd=tmp_path, agent=f"{provider}:m", tools="all", agent_options=options
    ) as s:
        assert s.send("look").text == "ok"
    said = used.requests[-1]["messages"]
    assert used.refused == []
    if provider == "openai":
        assert [message["role"] for message in said[-3:]] == ["tool", "tool", "user"]
        (image,) = said[-1]["content"]
        assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    else:
        shown, read = said[-1]["content"]
        assert shown["content"][0]["source"]["media_type"] == "image/png"
        assert "words" in str(read["content"])


def test_a_shell_has_the_place_to_itself(opened: Opened, server: OpenAIServer, work: Path) -> None:
    """What one command changed is not taken for another's."""
    commands = ["sleep 0.1; echo 1 > a", "cat a; echo 2 > b"]
    server.script(
        calling(*(call(str(n), "bash", command=c) for n, c in enumerate(commands))), "done"
    )
    s = opened()
    s.send("go")
    assert results(s)[1].startswith("1\n")
    (turn,) = s.changes()
    assert [[f.path for f in made.files] for made in turn.calls] == [["a"], ["b"]]


def test_what_cannot_run_goes_to_the_model(opened: Opened, server: OpenAIServer) -> None:
    """Malformed arguments, unknown tools, input that does not fit, and what a tool raises."""

    def broken() -> str:
        """Fails."""
        raise ZeroDivisionError("no")

    bad = call("1", "read")
    bad["function"]["arguments"] = '{"path": '
    server.script(
        calling(bad, call("2", "fly"), call("3", "read", where="x"), call("4", "broken")), "sorry"
    )
    s = opened(tools=["read", broken])
    assert s.send("go").text == "sorry"
    one, two, three, four = results(s)
    assert "not JSON" in one
    assert "there is no tool `fly`" in two
    assert "does not fit" in three
    assert four == "ZeroDivisionError: no"
    assert all(e.data["error"] is True for e in s.events(kinds=("tool_result",)))
    assert server.refused == []


def test_what_is_denied_has_a_code(opened: Opened, server: OpenAIServer, work: Path) -> None:
    """The deny list, the phase, the callback, a path outside; and nothing is run."""
    asked: list[str] = []

    def ask(name: str, input: Json, context: Json) -> bool:
        asked.append(name)
        if name == "edit":
            raise RuntimeError("nobody is there")
        return False

    server.script(
        calling(
            call("1", "bash", command="rm -rf ."),
            call("2", "write", path="a", content="x"),
            call("3", "write", path="../outside", content="x"),
            call("4", "edit", path="b", old_string="x", new_string="y"),
        ),
        "sorry",
        calling(call("5", "write", path="a", content="x")),
        "sorry",
    )
    s = opened(phase="default", can_use_tool=ask, agent_options={"deny": ["bash(rm *)"]})
    s.send("go")
    codes = [text.split(":")[0] for text in results(s)]
    assert codes == ["user_denied", "user_denied", "sandbox_violation", "unknown"]
    assert asked == ["write", "edit"]
    plan = opened(phase="plan")
    plan.send("go")
    assert "phase_gated" in results(plan)[-1]
    assert list(work.iterdir()) == []


def test_permissions_do_not_survive(opened: Opened, server: OpenAIServer, tmp_path: Path) -> None:
    """Nothing of them is in the store; what is allowed has to be said again."""
    write = calling(call("1", "write", path="a", content="x"))
    server.script(write, "ok", write, "ok")
    s = opened(phase="accept_edits", can_use_tool=lambda *_: True, agent_options={
        "allow": ["bash(secret-command *)"], "api_key": "sk-secret-key",
    })  # fmt: skip
    s.send("go")
    assert "denied" not in results(s)[0]
    s.close()
    again = opened(phase="default")
    again.send("go")
    assert "phase_gated" in results(again)[1]
    again.close()
    for path in tmp_path.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        for word in (b"accept_edits", b"secret-command", b"sk-secret-key", b"can_use_tool"):
            assert word not in data, path


def test_an_asynchronous_tool_runs_in_a_plain_session(opened: Opened, server: OpenAIServer) -> None:
    """On a loop of its own."""
    import asyncio

    async def later(n: int) -> int:
        """Takes a while."""
        await asyncio.sleep(0.001)
        return n + 1

    server.script(calling(call("1", "later", n=1)), "ok")
    s = opened(tools=[later])
    s.send("go")
    assert results(s) == ["2"]


def test_cancelling_ends_the_processes_of_a_tool(
    opened: Opened, server: OpenAIServer, work: Path
) -> None:
    """Every call is answered, those not begun too, and nothing is left running."""
    command = "echo $$ > pid; sleep 60 & sleep 60"
    server.script(calling(call("1", "bash", command=command), call("2", "bash", command="true")))
    s = opened()
    thread = threading.Thread(target=lambda: seen.append(s.send("go").exit_reason))
    seen: list[str] = []
    thread.start()
    eventually(lambda: (work / "pid").exists() and (work / "pid").read_text().strip())
    began = time.monotonic()
    s.cancel()
    thread.join()
    assert time.monotonic() - began < 10
    assert seen == ends(s) == ["interrupted"]
    assert s.pending() == []
    assert "cancelled" in results(s)[0]
    assert len(results(s)) == 2
    assert living(int((work / "pid").read_text())) == []
    server.script("I see.")
    assert s.send("what happened?").text == "I see."
    assert server.refused == []


def living(leader: int) -> list[int]:
    """The processes of a session of the operating system that are not dead yet."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,sess=,stat="], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, session, stat in rows if session == str(leader) and stat[0] != "Z"]


# --- what is used ------------------------------------------------------------------------


def test_usage_is_on_each_answer_and_summed(opened: Opened, server: OpenAIServer) -> None:
    """With what came from the cache; the cost is None where the price is unknown."""
    server.script(calling(call("1", "glob", pattern="*")), "done", "more")
    s = opened()
    result = s.send("go")
    once = {
        "input_tokens": 20, "output_tokens": 7, "total_tokens": 27, "cache_read_tokens": 4,
        "reasoning_tokens": 2,
    }  # fmt: skip
    said = list(s.events(kinds=("assistant_message",)))
    assert [event.data["usage"] for event in said] == [once] * 2
    assert {event.data["model"] for event in said} == {"qwen2.5-coder"}
    assert result.usage == s.info().usage == {name: 2 * n for name, n in once.items()}
    assert result.cost_usd is None
    assert s.info().cost_usd is None
    assert s.send("on").usage == once
    assert s.info().usage["input_tokens"] == 60


def test_the_cache_split_of_anthropic(claude: AnthropicServer) -> None:
    """Reading and writing apart, and a price for each."""
    claude.script("hi")
    options = {"base_url": claude.url, "api_key": "k"}
    with Session.open("memory:", agent="anthropic:claude-sonnet-4-6", agent_options=options) as s:
        result = s.send("hello")
    assert result.usage == {
        "input_tokens": 11, "output_tokens": 9, "cache_write_tokens": 30, "cache_read_tokens": 40,
    }  # fmt: skip
    price = 11 * 3 + 9 * 15 + 30 * 3 * 1.25 + 40 * 3 * 0.1
    assert result.cost_usd == pytest.approx(price / 1e6)


# --- limits ------------------------------------------------------------------------------

LOOK = calling(call("1", "glob", pattern="*"))


def test_limits_end_a_turn(opened: Opened, server: OpenAIServer) -> None:
    """By rounds, tokens, cost and time; every call is answered, and the session goes on."""
    server.script(*[LOOK] * 2)
    s = opened(model="gpt-4o-mini")
    assert s.send("go", max_turns=2).exit_reason == "max_turns"
    assert len(server.requests) == 2
    server.script(LOOK, LOOK)
    assert s.send("go", budget=Limits(max_tokens=30)).exit_reason == "max_tokens"
    assert "budget_exceeded" in results(s)[-1]
    server.script(LOOK, LOOK)
    once = (16 * 0.15 + 4 * 0.075 + 7 * 0.6) / 1e6
    spent = s.send("go", budget=1.5 * once)
    assert spent.exit_reason == "max_budget"
    assert spent.cost_usd == pytest.approx(2 * once)
    assert s.info().cost_usd == pytest.approx(6 * once)
    server.script(calling(call("1", "bash", command="sleep 60")))
    began = time.monotonic()
    late = s.send("go", budget=Limits(seconds=0.5))
    assert (late.exit_reason, time.monotonic() - began < 20) == ("max_budget", True)
    server.script("fine")
    assert s.send("go").exit_reason == "end_turn"
    assert s.pending() == []
    assert server.refused == []


def test_a_model_that_hangs_is_out_of_time(opened: Opened, server: OpenAIServer) -> None:
    """The limit holds while nothing comes."""
    server.script(Broken("never", after=1, how="hang"))
    s = opened()
    late = s.send("go", budget=Limits(seconds=0.3))
    assert (late.exit_reason, late.messages) == ("max_budget", [])


def test_limits_may_be_the_agents(opened: Opened, server: OpenAIServer) -> None:
    """`send` goes before them."""
    server.script(*[LOOK] * 4)
    s = opened(agent_options={"max_turns": 1, "limits": Limits(max_tokens=1000)})
    assert s.send("go").exit_reason == "max_turns"
    assert len(server.requests) == 1
    assert s.send("go", max_turns=3).exit_reason == "max_turns"
    assert len(server.requests) == 4


@pytest.mark.parametrize(("stop", "reason"), [("length", "max_tokens"), ("stop", "end_turn")])
def test_why_the_model_stopped(
    opened: Opened, server: OpenAIServer, stop: str, reason: str
) -> None:
    """An answer that was too long is one all the same."""
    server.script(Answer("half an ans", stop_reason=stop))
    result = opened().send("go")
    assert (result.exit_reason, result.text) == (reason, "half an ans")


def test_a_stop_sequence_of_anthropic(claude: AnthropicServer) -> None:
    """Is a reason of its own."""
    claude.script(Answer("until", stop_reason="stop_sequence"))
    options = {"base_url": claude.url, "api_key": "k"}
    with Session.open("memory:", agent="anthropic:claude-x", agent_options=options) as s:
        assert s.send("go").exit_reason == "stop_sequence"


# --- failures ----------------------------------------------------------------------------


def test_failures_that_pass_are_tried_again(opened: Opened, server: OpenAIServer) -> None:
    """After what the server asked for; nothing of a broken answer is stored."""
    server.script(
        Broken("half of an answer", after=4),
        Broken("another half", after=3, how="end"),
        Failure(429, headers={"retry-after": "0.2"}),
        Failure(503, headers={"retry-after-ms": "10"}),
        "The whole answer.",
    )
    s = opened()
    began = time.monotonic()
    items = list(s.stream("go"))
    assert time.monotonic() - began > 0.2
    again = [item for item in items if isinstance(item, Delta) and item.type == "retry"]
    assert [item.data["attempt"] for item in again] == [1, 2, 3, 4]
    assert again[2].data["seconds"] == 0.2
    assert roles(s) == ["user", "assistant"]
    assert s.messages()[-1]["content"] == "The whole answer."
    assert all(request == server.requests[0] for request in server.requests)
    assert ends(s) == ["end_turn"]


def test_an_overloaded_anthropic_is_tried_again(claude: AnthropicServer) -> None:
    """529 at once, and in the middle of a stream."""
    claude.script(
        Failure(529, headers={"retry-after": "0"}), Broken("half", after=4, how="error"), "whole"
    )
    options = {"base_url": claude.url, "api_key": "k"}
    with Session.open("memory:", agent="anthropic:claude-x", agent_options=options) as s:
        assert s.send("go").text == "whole"
        assert roles(s) == ["user", "assistant"]


def test_other_failures_end_the_turn(opened: Opened, server: OpenAIServer) -> None:
    """A bad request, too many tries, too long a pause: `error`, and the session goes on."""
    server.script(Failure(400, "no such thing"))
    s = opened(agent_options={"retries": 1})
    failed = s.send("go")
    assert failed.exit_reason == "error"
    assert failed.error is not None and "no such thing" in failed.error
    assert len(server.requests) == 1
    server.script(*[Failure(500, headers={"retry-after": "0"})] * 2)
    assert s.send("go").exit_reason == "error"
    server.script(Failure(429, headers={"retry-after": "7200"}))
    assert s.send("go").exit_reason == "error"
    assert len(server.requests) == 4
    server.script("fine")
    items = list(s.stream("go"))
    assert isinstance(items[-1], Delta)
    assert items[-1].data["exit_reason"] == "end_turn"
    assert ends(s) == ["error", "error", "error", "end_turn"]
    assert server.refused == []


def test_a_retry_can_be_cancelled(opened: Opened, server: OpenAIServer) -> None:
    """While it waits."""
    server.script(Failure(429, headers={"retry-after": "50"}))
    s = opened()
    for item in s.stream("go"):
        if isinstance(item, Delta) and item.type == "retry":
            s.cancel()
    assert ends(s) == ["interrupted"]


def test_replies_that_ask_and_stop_are_asked_again() -> None:
    """A loop can be made by hand, too."""
    model = ScriptedModel([calling(call("1", "glob", pattern="*")), saying("done")])
    agent = Loop(model, tools_named(["glob"]), Permissions("plan"))
    with Session.open("memory:", agent=agent) as s:
        assert s.send("go").text == "done"
        assert [len(request.messages) for request in model.requests] == [1, 3]


def test_thoughts_go_back_as_they_came(claude: AnthropicServer, work: Path) -> None:
    """Signed, in front of the calls they led to, from every store."""
    thought = {"type": "thinking", "thinking": "I look", "signature": "EqQ="}
    use = {"type": "tool_use", "id": "t1", "name": "glob", "input": {"pattern": "*"}}
    said = {"role": "assistant", "content": [thought, use]}
    claude.script(said, "one", said | {"content": [thought, {**use, "id": "t2"}]}, "two")
    options = {"base_url": claude.url, "api_key": "k"}
    with Session.open(
        f"file:{work.parent}/s", "s", agent="anthropic:claude-x", tools="all", cwd=work,
        agent_options=options, system_prompt="Be brief.",
    ) as s:  # fmt: skip
        assert s.send("go").text == "one"
        assert s.send("go").text == "two"
    assert claude.refused == []
    assert claude.requests[0]["system"]
