"""Agents of people's own: what they yield, how turns begin and end, and one at a time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from backtrail import Delta, Event, NotFound, Session
from backtrail.errors import Conflict, InvalidData, Unsupported
from backtrail.events import Json
from backtrail.session.turns import Ask, Cancelled, End, LiveTurn, Pause, Said
from backtrail.stores import open_store
from tests.talking import kinds

Agent = Callable[[LiveTurn], Json]


def call(id: str, name: str, /, **input: Json) -> dict[str, Json]:
    """A tool call as OpenAI spells it."""
    return {
        "id": id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(input)},
    }


def calling(*calls: dict[str, Json]) -> dict[str, Json]:
    """A message that asks for tools."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def saying(text: str) -> dict[str, Json]:
    """A message of the assistant."""
    return {"role": "assistant", "content": text}


def result(id: str, text: str) -> dict[str, Json]:
    """A message with the result of a call."""
    return {"role": "tool", "tool_call_id": id, "content": text}


def roles(session: Session) -> list[str]:
    """Who speaks, message by message."""
    return [str(message["role"]) for message in session.messages(repair=False)]


def ends(session: Session) -> list[str]:
    """How the turns of a session ended."""
    return [event.data["reason"] for event in session.events(kinds=("turn_end",))]


def notified(items: list[Delta | Event]) -> list[str]:
    """Items of a stream, by type and kind."""
    return [item.type if isinstance(item, Delta) else item.kind for item in items]


def eventually(check: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


# --- what an agent may be ----------------------------------------------------------------


def plain(turn: LiveTurn) -> Iterator[Json]:
    yield saying(f"you said {turn.prompt}")


async def later(turn: LiveTurn) -> AsyncIterator[Json]:
    await asyncio.sleep(0)
    yield saying(f"you said {turn.prompt}")


class Object:
    def __call__(self, turn: LiveTurn) -> list[Json]:
        return [saying(f"you said {turn.prompt}")]


@pytest.mark.parametrize("agent", [plain, later, Object()], ids=["sync", "async", "list"])
def test_any_callable_that_yields_messages_is_an_agent(url: str, agent: Agent) -> None:
    """Generators, asynchronous ones, and functions that return a list."""
    with Session.open(url, "s", agent=agent) as s:
        answer = s.send("hello")
        assert (answer.text, answer.exit_reason, answer.error) == (
            "you said hello", "end_turn", None,
        )  # fmt: skip
        assert answer.messages == [saying("you said hello")]
        assert (answer.usage, answer.cost_usd, answer.files) == ({}, None, [])
        assert s.send("more").text == "you said more"
        assert roles(s) == ["user", "assistant"] * 2
        assert ends(s) == ["end_turn"] * 2


@pytest.mark.parametrize("value", [None, "text", saying("x"), 7])
def test_an_agent_that_yields_nothing_is_reported(value: Json) -> None:
    """A message alone is no list of them."""
    with Session.open("memory:", agent=lambda turn: value) as s:
        with pytest.raises(Unsupported, match="yields messages"):
            s.send("hello")
        assert ends(s) == ["error"]


def test_an_asynchronous_agent_needs_another_loop() -> None:
    """Inside a running one, it says what to use."""

    async def main() -> None:
        with Session.open("memory:", agent=later) as s:
            with pytest.raises(Unsupported, match="use AsyncSession"):
                s.send("hello")
            assert ends(s) == ["error"]

    asyncio.run(main())


def test_each_message_is_in_the_log_before_the_next_step(tmp_path: Path) -> None:
    """Another process would see it, too."""
    url = f"sqlite:///{tmp_path}/store.db"
    seen: list[list[str]] = []

    def look() -> None:
        with open_store(url) as store:
            seen.append([event.kind for event in store.history("s")][1:])

    def agent(turn: LiveTurn) -> Iterator[Json]:
        look()
        yield calling(call("1", "t"))
        look()
        yield result("1", "ok")
        look()
        yield saying("done")
        look()

    with Session.open(url, "s", agent=agent) as s:
        s.send("go")
    log = ["user_message", "assistant_message", "tool_result", "assistant_message"]
    assert seen == [log[:1], log[:2], log[:3], log]


def test_what_is_yielded_may_state_its_use(url: str) -> None:
    """Tokens and cost go into the message's event and into the session's record."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        yield Said(saying("a"), {"input_tokens": 5, "cache_read_tokens": 2}, 0.25, "m")
        yield Said(saying("b"), {"input_tokens": 1, "output_tokens": 3})
        assert (turn.usage["input_tokens"], turn.cost_usd) == (6, 0.25)

    with Session.open(url, "s", agent=agent) as s:
        used = {"input_tokens": 6, "cache_read_tokens": 2, "output_tokens": 3}
        answer = s.send("go")
        assert (answer.usage, answer.cost_usd) == (used, 0.25)
        assert (s.info().usage, s.info().cost_usd) == (used, 0.25)
        event = next(iter(s.events(kinds=("assistant_message",))))
        assert event.data["model"] == "m"


def test_only_known_reasons_end_a_turn() -> None:
    """And nothing that is yielded behind one counts."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        yield End(turn.prompt)  # type: ignore[arg-type]
        yield saying("too late")

    with Session.open("memory:", agent=agent) as s:
        for reason in ("end_turn", "stop_sequence", "max_tokens"):
            assert s.send(reason).exit_reason == reason
        with pytest.raises(InvalidData, match="no reason"):
            s.send("because")
        assert ends(s)[-1] == "error"
        assert "assistant" not in roles(s)


def test_only_a_users_message_is_sent() -> None:
    """Text, blocks, or a whole message."""
    with Session.open("memory:", agent=plain) as s:
        assert s.send([{"type": "text", "text": "hi"}]).text == "you said hi"
        assert s.send({"role": "user", "content": "ho"}).text == "you said ho"
        with pytest.raises(InvalidData, match="user's message"):
            s.send(saying("I am the model"))


# --- files -------------------------------------------------------------------------------


def test_a_call_in_a_message_is_a_bracket(tmp_path: Path) -> None:
    """Its result closes it, and what lies between can be taken back."""
    work = tmp_path / "work"
    work.mkdir()

    def agent(turn: LiveTurn) -> Iterator[Json]:
        assert turn.workspace == str(work)
        yield calling(call("1", "touch"), call("2", "touch"))
        (work / "a").write_text("a")
        yield result("1", "ok")
        (work / "b").write_text("b")
        yield result("2", "ok")

    with Session.open(f"file:{tmp_path}/s", "s", agent=agent, cwd=work) as s:
        items = list(s.stream("go"))
        deltas = [item.type for item in items if isinstance(item, Delta)]
        assert deltas == ["message", *["tool_call"] * 2, *["tool_result"] * 2, "done"]
        (turn,) = s.changes()
        assert {f.path for made in turn.calls for f in made.files} == {"a", "b"}
        s.undo()
        assert list(work.iterdir()) == []


@pytest.mark.parametrize("way", ["with", "async with"])
def test_an_agent_brackets_its_tools(tmp_path: Path, way: str) -> None:
    """`turn.tool` is for both kinds of agents, in a session of either kind."""
    work = tmp_path / "work"
    work.mkdir()

    def agent(turn: LiveTurn) -> Iterator[Json]:
        with turn.tool("touch", {"n": 1}) as made:
            (work / "a").write_text("a")
            made.result = "ok"
        yield saying("done")

    async def other(turn: LiveTurn) -> AsyncIterator[Json]:
        async with turn.tool("touch", {"n": 1}) as made:
            (work / "a").write_text("a")
            made.result = "ok"
        yield saying("done")

    chosen: Agent = agent if way == "with" else other
    with Session.open(f"file:{tmp_path}/s", "s", agent=chosen, cwd=work) as s:
        assert s.send("go").files == ["a"]
        assert [e.data["result"] for e in s.events(kinds=("action",))] == ["ok"]


# --- errors ------------------------------------------------------------------------------


def test_an_agent_that_raises_ends_its_turn(url: str) -> None:
    """Recorded and reported; calls it left open are answered; the session goes on."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        if turn.prompt == "break":
            yield calling(call("1", "t"))
            raise ZeroDivisionError("no")
        yield saying("fine")

    with Session.open(url, "s", agent=agent) as s:
        heard: list[Delta | Event] = []
        with pytest.raises(ZeroDivisionError), s.subscribe() as listening:
            for item in s.stream("break"):
                heard.append(item)
        assert notified(heard)[-2:] == ["error", "done"]
        assert heard[-2].data == {"error": "ZeroDivisionError: no"}
        assert [i.type for i in listening if isinstance(i, Delta)][-2:] == ["error", "done"]
        assert s.pending() == []
        assert kinds(s)[-2:] == ["tool_result", "turn_end"]
        assert ends(s) == ["error"]
        assert s.send("go on").text == "fine"


def test_an_agent_that_is_interrupted_tidies_up(tmp_path: Path) -> None:
    """Its brackets are closed before the end of the turn is recorded."""
    for number, make in enumerate((_tidy, _tidy_later)):
        with Session.open(f"file:{tmp_path}/s", f"s{number}", agent=make) as s:
            flow = s.stream("go")
            while not isinstance(item := next(flow), Delta):
                pass
            assert item.type == "half-way"
            flow.close()  # type: ignore[attr-defined]
            assert kinds(s)[-2:] == ["action", "turn_end"]
            assert ends(s) == ["interrupted"]


def _tidy(turn: LiveTurn) -> Iterator[Json]:
    with turn.tool("t"):
        yield Delta("half-way")
        yield saying("never")


async def _tidy_later(turn: LiveTurn) -> AsyncIterator[Json]:
    async with turn.tool("t"):
        yield Delta("half-way")
        yield saying("never")


def test_without_an_agent_nothing_is_recorded(url: str) -> None:
    """A message that cannot be answered is not said."""
    with Session.open(url, "s") as s:
        with pytest.raises(Unsupported, match="no agent"):
            s.send("hello")
        assert s.messages() == []
    with pytest.raises(Unsupported, match="no agent for `nobody`"):
        Session.open(url, "t", agent="nobody:knows")
    with pytest.raises(NotFound):
        Session.resume(url, "t")


# --- ids ---------------------------------------------------------------------------------


def test_a_known_id_gives_the_recorded_result(url: str) -> None:
    """In this session object and in the next, without an agent too; a stream as well."""
    with Session.open(url, "s", agent=plain) as s:
        first = s.send("hello", id="r1")
        with pytest.raises(Conflict, match="another message"):
            s.send("something else", id="r1")
        s.send("more")
        assert s.send("hello", id="r1") == first
        assert notified(list(s.stream("hello", id="r1"))) == [
            "assistant_message",
            "turn_end",
            "done",
        ]
        assert len(roles(s)) == 4
    with Session.open(url, "s") as s:
        assert s.send("hello", id="r1") == first
        s.undo()
        s.undo()
        assert s.messages() == []
        assert s.send("hello", id="r1") == first


def test_an_id_of_another_thing_is_a_conflict(url: str) -> None:
    """An event that no user said, or a turn that was left behind unfinished."""
    with Session.open(url, "s", agent=plain) as s:
        s.append(saying("x"), id="a")
        s.append({"role": "user", "content": "left"}, id="u")
        s.send("go on")
        with pytest.raises(Conflict, match="no user's message"):
            s.send("x", id="a")
        with pytest.raises(Conflict, match="another message"):
            s.send("x", id="u")
        with pytest.raises(Conflict, match="went on"):
            s.send("left", id="u", retry="never")


# --- one at a time -----------------------------------------------------------------------


def test_threads_are_served_one_after_another(url: str) -> None:
    """Each turn is whole, and sees those before it."""
    running: list[int] = []

    def agent(turn: LiveTurn) -> Iterator[Json]:
        running.append(1)
        assert len(running) == 1
        yield saying("thinking")
        time.sleep(0.01)
        yield saying(str(len(turn.messages())))
        running.pop()

    with Session.open(url, "s", agent=agent) as s:
        threads = [threading.Thread(target=s.send, args=(f"n{n}",)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert roles(s) == ["user", "assistant", "assistant"] * 6
        assert ends(s) == ["end_turn"] * 6
        numbers = [m["content"] for m in s.messages() if m["content"].isdecimal()]
        assert numbers == ["2", "5", "8", "11", "14", "17"]


def test_a_turn_within_a_turn_is_refused(url: str) -> None:
    """It would wait for itself; a rewind in a turn is another matter."""
    inner: list[Session] = []

    def agent(turn: LiveTurn) -> Iterator[Json]:
        yield saying("one")
        with pytest.raises(Conflict, match="under way"):
            inner[0].send("another")
        with pytest.raises(Conflict, match="under way"):
            list(inner[0].stream("another"))
        yield saying("two")

    with Session.open(url, "s", agent=agent) as s:
        inner.append(s)
        assert s.send("go").text == "two"
        for _ in s.stream("go"):
            with pytest.raises(Conflict):
                s.send("another")
        assert ends(s) == ["end_turn"] * 2


def test_a_stream_may_change_threads(url: str) -> None:
    """A web server takes each step in the thread that is free."""
    with Session.open(url, "s", agent=plain) as s:
        flow = s.stream("go")
        items: list[Delta | Event] = []

        def step() -> None:
            items.append(next(flow))

        for _ in range(2):
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
        items += flow
        assert notified(items)[-1] == "done"
        assert s.send("again").text == "you said again"
        left = s.stream("left")
        thread = threading.Thread(target=lambda: next(left))
        thread.start()
        thread.join()
        left.close()  # type: ignore[attr-defined]
        assert s.send("again").text == "you said again"
        assert ends(s) == ["end_turn", "end_turn", "interrupted", "end_turn"]


def test_closing_a_session_ends_the_turn_of_a_stream(url: str) -> None:
    """A caller that forgot the stream has a consistent log all the same."""
    s = Session.open(url, "s", agent=plain)
    flow = s.stream("go")
    next(flow)
    s.close()
    with Session.open(url, "s", agent=plain) as again:
        assert ends(again) == ["interrupted"]
        assert again.send("more").text == "you said more"
    del flow


# --- cancelling --------------------------------------------------------------------------


def test_a_pause_is_cancelled(url: str) -> None:
    """At once; what was waiting for its turn gets it."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        if turn.prompt == "wait":
            yield saying("waiting")
            yield Pause(60)
        yield saying("done")

    with Session.open(url, "s", agent=agent) as s:
        results: list[str] = []
        first = threading.Thread(target=lambda: results.append(s.send("wait").exit_reason))
        first.start()
        eventually(lambda: len(s.messages()) == 2)
        second = threading.Thread(target=lambda: results.append(s.send("go").exit_reason))
        second.start()
        time.sleep(0.02)
        began = time.monotonic()
        s.cancel()
        first.join()
        second.join()
        assert time.monotonic() - began < 5
        assert results == ["interrupted", "end_turn"]


def test_a_model_that_says_nothing_is_cancelled() -> None:
    """Its next word is not waited for."""
    over = threading.Event()

    class Silent:
        def stream(self, request: Json) -> Iterator[Json]:
            over.wait(30)
            yield from ()

        async def astream(self, request: Json) -> AsyncIterator[Json]:
            raise NotImplementedError
            yield  # type: ignore[unreachable]

    def agent(turn: LiveTurn) -> Iterator[Json]:
        yield Ask(Silent(), None)

    with Session.open("memory:", agent=agent) as s:
        threading.Timer(0.05, s.cancel).start()
        began = time.monotonic()
        assert s.send("go").exit_reason == "interrupted"
        assert time.monotonic() - began < 5
        over.set()


def test_a_subscriber_may_cancel_at_the_first_word(url: str) -> None:
    """A turn can be cancelled as soon as its message is seen."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        for _ in range(1000):
            yield Pause(0.05)

    with Session.open(url, "s", agent=agent) as s, s.subscribe() as listening:

        def stop() -> None:
            listening.get(timeout=10)
            s.cancel()

        thread = threading.Thread(target=stop)
        thread.start()
        assert s.send("go").exit_reason == "interrupted"
        thread.join()


def test_cancelling_nothing_is_nothing() -> None:
    """The next turn is not meant."""
    with Session.open("memory:", agent=plain) as s:
        s.cancel()
        assert s.send("go").exit_reason == "end_turn"


def test_cancelled_is_what_a_tool_may_ask(url: str) -> None:
    """An agent at work by itself can see that it should stop."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        yield saying("working")
        eventually(turn.cancelled)
        with pytest.raises(Cancelled):
            turn.check()
        yield saying("stopped")

    with Session.open(url, "s", agent=agent) as s:
        threading.Timer(0.05, s.cancel).start()
        assert s.send("go").exit_reason == "interrupted"
        assert [m["content"] for m in s.messages()][-1] == "stopped"
