"""`run` and `query`: once, and done."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import backtrail
from backtrail import Answer, InvalidData, Result, Session, Unsupported
from backtrail.agent.models.base import Delta, Model, ModelFailed, Reply, Request
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.session.turns import LiveTurn

from .agent.servers import Broken, Failure, OpenAIServer

Ask = Callable[..., Any]

# The clients leave generators to the collector, of which trio complains.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator '(openai|httpx2|httpcore2):ResourceWarning"
)


def _in_loop(function: Ask, backend: str) -> Ask:
    async def main(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return await function(*args, **options)

    return lambda *args, **options: anyio.run(main, args, options, backend=backend)


@pytest.fixture(params=["sync", "asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Ask:
    """`run`, or `arun` on a loop."""
    if request.param == "sync":
        return backtrail.run
    return _in_loop(backtrail.arun, request.param)


@pytest.fixture(params=["sync", "asyncio", "trio"])
def query(request: pytest.FixtureRequest) -> Ask:
    """`query`, or `aquery` on a loop."""
    if request.param == "sync":
        return backtrail.query
    return _in_loop(backtrail.aquery, request.param)


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def calling(id: str, name: str, **input: str) -> dict[str, Any]:
    """An assistant's message with one call."""
    function = {"name": name, "arguments": json.dumps(input)}
    call = {"id": id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def echo(turn: LiveTurn) -> Iterator[dict[str, str]]:
    """The least of agents."""
    yield {"role": "assistant", "content": f"You said: {turn.prompt}"}


# --- run ---------------------------------------------------------------------------------


def test_a_callable_answers_once(run: Ask) -> None:
    """An agent of one line, and no store."""
    result = run("hello", agent=echo)
    assert isinstance(result, Result)
    assert result.text == "You said: hello"
    assert result.exit_reason == "end_turn"


def test_the_loop_works_in_a_directory(run: Ask, server: OpenAIServer, tmp_path: Path) -> None:
    """Provider, model and tools as a session takes them; files change, nothing is kept."""
    server.script(calling("c1", "write", path="a.txt", content="hi"), "Written.")
    options = {"base_url": server.url}
    result = run(
        "write a file", provider="vllm", model="m-1", tools="all", phase="accept_edits",
        cwd=tmp_path, agent_options=options,
    )  # fmt: skip
    assert (tmp_path / "a.txt").read_text() == "hi"
    assert [m["role"] for m in result.messages] == ["assistant", "tool", "assistant"]
    assert result.text == "Written."
    assert result.usage["output_tokens"] == 14
    assert result.files == []
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


def test_a_store_keeps_the_turn(run: Ask, tmp_path: Path) -> None:
    """With a store it is a session like any other, and an id is answered once."""
    url = f"sqlite:///{tmp_path}/a.db"
    options: dict[str, Any] = {"agent": echo, "store": url, "session_id": "s", "id": "r1"}
    first = run("hello", **options)
    assert run("hello", **options) == first
    with Session.resume(url, "s") as session:
        assert [m["role"] for m in session.messages()] == ["user", "assistant"]


def test_limits_are_passed_on(run: Ask) -> None:
    """A model that goes on and on is stopped."""
    replies = [calling(f"c{n}", "glob", pattern="*") for n in range(5)]
    result = run(
        "go", agent="scripted:m", tools="all", agent_options={"replies": replies}, max_turns=2
    )
    assert result.exit_reason == "max_turns"
    assert len(result.messages) == 4


def test_without_an_agent_it_says_so(run: Ask) -> None:
    """There is no person to answer."""
    with pytest.raises(Unsupported, match="no agent"):
        run("hello")


class Closing(ScriptedModel):
    """Knows whether it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_model_that_was_opened_is_closed(run: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections end with the run; a model in the caller's own agent stays open."""
    from backtrail.agent import factory
    from backtrail.agent.loop import Loop

    own = Closing(["one", "two"])
    assert run("hello", agent=Loop(own)).text == "one"
    assert own.closed == 0
    monkeypatch.setattr(factory, "open_model", lambda *_, **__: own)
    assert run("hello", agent="scripted:m").text == "two"
    assert own.closed == 1


# --- query -------------------------------------------------------------------------------


def test_a_model_is_asked_once(query: Ask, server: OpenAIServer) -> None:
    """The text, the message as it came, and what it used up."""
    server.script("Hello, you.")
    answer = query(
        "hello", provider="vllm", model="gpt-4o-mini", base_url=server.url,
        system_prompt="Be brief.", max_tokens=50, temperature=0, stop=["END"],
    )  # fmt: skip
    assert isinstance(answer, Answer)
    assert answer.text == "Hello, you."
    assert answer.message == {"role": "assistant", "content": "Hello, you."}
    assert (answer.stop_reason, answer.model) == ("end_turn", "gpt-4o-mini")
    assert answer.usage["input_tokens"] == 20
    assert answer.cost_usd == pytest.approx((16 * 0.15 + 4 * 0.075 + 7 * 0.6) / 1e6)
    body = server.requests[0]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]
    assert "tools" not in body
    assert body["stop"] == ["END"]


def test_messages_may_be_in_another_format(query: Ask, server: OpenAIServer) -> None:
    """They are sent as the model wants them, and an open call is answered."""
    server.script("ok")
    use = {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}}
    messages = [
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "text", "text": "well?"}]},
    ]
    query(messages, provider="vllm", model="m", base_url=server.url)
    assert server.refused == []
    assert [m["role"] for m in server.requests[0]["messages"]] == [
        "user", "assistant", "tool", "user",
    ]  # fmt: skip


@pytest.mark.parametrize("first", [Failure(429, headers={"retry-after": "0"}), Broken("Hel")])
def test_a_failure_that_may_pass_is_tried_again(
    query: Ask, server: OpenAIServer, first: Failure | Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what came of the first try is not in the answer."""
    monkeypatch.setattr("backtrail.agent.oneshot.random.random", lambda: -1.0)
    server.script(first, "Hello.")
    assert query("hi", provider="vllm", model="m", base_url=server.url).text == "Hello."
    assert len(server.requests) == 2


def test_other_failures_are_raised(query: Ask, server: OpenAIServer) -> None:
    """At once if they will not pass, and else after so many tries."""
    server.script(Failure(401, "wrong key"), Failure(529), Failure(529))
    at: dict[str, Any] = {"provider": "vllm", "model": "m", "base_url": server.url}
    with pytest.raises(ModelFailed, match="wrong key"):
        query("hi", **at)
    with pytest.raises(ModelFailed, match="529"):
        query("hi", retries=0, **at)
    assert server.left == 1


def test_a_model_of_ones_own(query: Ask) -> None:
    """It is used as it is, and stays open."""
    model = Closing(["one", "two"])
    assert query("1", model=model).text == "one"
    assert query("2", model=model).text == "two"
    assert [request.messages[0]["content"] for request in model.requests] == ["1", "2"]
    assert model.closed == 0


class Silent(Model):
    """Breaks the contract: it ends without a reply."""

    provider, name, format = "test", "silent", "openai"

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        yield Delta("text_delta", "Hm")

    async def astream(self, request: Request) -> AsyncIterator[Delta | Reply]:
        yield Delta("text_delta", "Hm")


def test_what_cannot_be_asked_is_refused(query: Ask) -> None:
    """With words that say what to do."""
    with pytest.raises(InvalidData, match="provider="):
        query("hi", model="m")
    with pytest.raises(InvalidData, match="made already"):
        query("hi", model=ScriptedModel(["x"]), provider="openai")
    with pytest.raises(InvalidData, match="empty"):
        query([], model=ScriptedModel(["x"]))
    with pytest.raises(InvalidData, match="without a reply"):
        query("hi", model=Silent())


# --- both --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "query"])
def test_sync_and_async_take_the_same(name: str) -> None:
    """Parameter by parameter."""
    sync, other = getattr(backtrail, name), getattr(backtrail, f"a{name}")
    assert inspect.signature(sync) == inspect.signature(other)


def test_no_loop_and_no_client_is_loaded_for_a_plain_run() -> None:
    """Only what is used is paid for."""
    code = (
        "import sys, backtrail\n"
        "backtrail.run('hi', agent=lambda turn: [{'role': 'assistant', 'content': 'x'}])\n"
        "print([n for n in ('asyncio', 'anyio', 'openai', 'apsw') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
