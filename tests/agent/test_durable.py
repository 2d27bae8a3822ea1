"""Turns that are cut short: killed at any point, finished later, on stores that fail."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from backtrail import Event, NewEvent, NotFound, Session, StoreFailed
from backtrail.agent.loop import Loop
from backtrail.agent.models.base import Request
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.tools import tool_from, tools_named
from backtrail.events import MAIN_LOG, Json
from backtrail.session.turns import LiveTurn
from backtrail.stores import KnownIds, open_store
from backtrail.stores.wrapper import Wrapper
from backtrail.telemetry import Signal, listen
from tests.talking import kinds
from tests.test_failing import Flaky, full_disk

from .test_loop import living
from .test_turns import call, calling, ends, eventually, result, roles, saying

Tick = Callable[..., None]

SCRIPT = [
    calling(call("1", "mark", text="one")),
    calling(call("2", "bash", command="echo two >> ran"), call("3", "mark", text="three")),
    saying("finished"),
]
MARKS = {"1": "one", "2": "two", "3": "three"}


class Ticking(Wrapper):
    """A store that reports when something is about to be stored, and when it is."""

    tick: Tick = staticmethod(lambda *_: None)

    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        self.tick("before", *(event.kind for event in events))
        stored = super().append(session_id, events, log=log, expected=expected, known=known)
        self.tick()
        return stored


def next_reply(request: Request) -> dict[str, Json]:
    """What the model says depends on the conversation alone, so any process can go on."""
    said = [message for message in request.messages if message["role"] == "assistant"]
    return SCRIPT[len(said)]


def agent(work: Path, tick: Tick = lambda *_: None) -> Loop:
    def mark(text: str) -> str:
        """Leave a mark."""
        tick()
        with (work / "ran").open("a") as file:
            file.write(f"{text}\n")
        tick()
        return "marked"

    tools = [*tools_named(["bash"]), tool_from(mark)]
    return Loop(ScriptedModel([next_reply] * 9), tools, Permissions("trusted"))


def driven(url: str, work: Path, notified: Callable[[str], None], tick: Tick) -> None:
    """One turn, and what a caller sees of it."""
    with open_store(url) as inner:
        store = Ticking(inner)
        store.tick = tick
        with Session.open(store, "s", cwd=work, agent=agent(work, tick)) as s:
            for item in s.stream("go", id="r1"):
                if isinstance(item, Event):
                    notified(item.id)
                tick()


def forked(body: Callable[[int], None], kill_after: float | None = None) -> tuple[list[str], bool]:
    """What a forked child reported, and whether it was killed; by us after some seconds."""
    ends = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(ends[0])
            body(ends[1])
            code = 0
        finally:
            os._exit(code)
    os.close(ends[1])
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(ends[0]) as pipe:
        notified = pipe.read().split()
    status = os.waitpid(pid, 0)[1]
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0, notified
    return notified, killed


def killed_at(url: str, work: Path, point: int) -> tuple[list[str], bool]:
    """Run a turn in a child that dies at its n-th tick."""

    def body(pipe: int) -> None:
        count = 0

        def tick(*where: str) -> None:
            nonlocal count
            count += 1
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)

        driven(url, work, partial(_write, pipe), tick)

    return forked(body)


def _write(pipe: int, word: str) -> None:
    os.write(pipe, f"{word}\n".encode())


class Wreck:
    """What a killed process left, and that it can be gone on with."""

    def __init__(self, url: str, work: Path, notified: list[str], where: object) -> None:
        self.work = work
        self.notified = notified
        self.where = where
        self.session = Session.open(url, "s", cwd=work, agent=agent(work))
        self.answered = {
            event.data["message"]["tool_call_id"]
            for event in self.session.events(kinds=("tool_result",))
        }
        self.open_calls = {waiting.id for waiting in self.session.pending()}

    def check(self, how: str) -> None:
        s = self.session
        ids = {event.id for event in s.events()}
        assert set(self.notified) <= ids, self.where
        marks = self.marks()
        for id in self.answered:
            assert marks.count(MARKS[id]) == 1, self.where
        finished = self.finish(how)
        assert finished.exit_reason == "end_turn", self.where
        assert finished.text == "finished", self.where
        assert s.pending() == [], self.where
        assert roles(s) == ["user", "assistant", "tool", "assistant", *["tool"] * 2, "assistant"]
        assert set(self.notified) <= {event.id for event in s.history()}, self.where
        self.check_marks(how)
        again = {e.data.get("call") for e in s.events(kinds=("action",))} & self.answered
        assert not again, (self.where, "notified twice", again)
        self.check_files()
        s.close()

    def check_files(self) -> None:
        """They can be as they were before the turn."""
        self.session.undo()
        assert [path.name for path in self.work.iterdir()] == ["base"], self.where
        assert (self.work / "base").read_text() == "as it was\n"

    def finish(self, how: str) -> Json:
        s = self.session
        if how == "send" or not any(e.kind == "user_message" for e in s.events()):
            return s.send("go", id="r1")
        try:
            return s.proceed(pending="retry" if how == "retry" else "fail")
        except NotFound:
            assert ends(s) == ["end_turn"]
            return s.send("go", id="r1")

    def marks(self) -> list[str]:
        ran = self.work / "ran"
        return ran.read_text().split() if ran.exists() else []

    def check_marks(self, how: str) -> None:
        """No call that had a result has run again; one that was open only if asked for."""
        marks = self.marks()
        for id, text in MARKS.items():
            count = marks.count(text)
            again = how == "retry" and id in self.open_calls
            assert count <= 1 + again, (self.where, marks)
            if id not in self.open_calls or again:
                assert count >= 1, (self.where, marks)


@pytest.fixture
def place(tmp_path: Path) -> Callable[[object], tuple[Path, Path]]:
    """A fresh folder for a store, and one to work in."""

    def make(name: object) -> tuple[Path, Path]:
        home = tmp_path / str(name)
        (home / "work").mkdir(parents=True)
        (home / "work" / "base").write_text("as it was\n")
        return home, home / "work"

    return make


Place = Callable[[object], tuple[Path, Path]]


@pytest.mark.parametrize("scheme", ["sqlite:///{}/store.db", "file:{}/store"])
@pytest.mark.parametrize("how", ["proceed", "send", "retry"])
def test_a_turn_killed_at_any_point_is_finished(place: Place, scheme: str, how: str) -> None:
    """What was seen is there, what had a result ran once, and the files can go back."""
    point, struck = {"proceed": 1, "send": 2, "retry": 3}[how], 0
    while True:
        home, work = place(point)
        url = scheme.format(home)
        notified, was_killed = killed_at(url, work, point)
        Wreck(url, work, notified, point).check(how)
        if not was_killed:
            break
        struck += 1
        point += 3
    assert struck >= 8


def test_a_turn_killed_at_any_moment_is_finished(place: Place) -> None:
    """The same, wherever the clock strikes."""
    dice = random.Random(7)
    struck = 0
    for number in range(16):
        home, work = place(number)
        url = f"sqlite:///{home}/store.db"

        def body(pipe: int, url: str = url, work: Path = work) -> None:
            driven(url, work, partial(_write, pipe), lambda *_: None)

        notified, was_killed = forked(body, kill_after=dice.uniform(0.0, 0.15))
        struck += was_killed
        # A shell that outlived its agent may still be at work.
        time.sleep(0.02)
        Wreck(url, work, notified, number).check("proceed")
    assert struck


def test_the_sweep_notices_a_tool_that_runs_twice(place: Place) -> None:
    """A loop that forgets results would be caught."""
    home, work = place("twice")
    url = f"sqlite:///{home}/store.db"
    notified, was_killed = killed_at(url, work, 10)
    assert was_killed
    wreck = Wreck(url, work, notified, "twice")
    with (work / "ran").open("a") as file:
        file.write("one\n")
    with pytest.raises(AssertionError, match="twice"):
        wreck.check("proceed")


# --- proceeding --------------------------------------------------------------------------


def left_open(url: str) -> None:
    """A session whose process ended while a tool was at work."""
    with Session.open(url, "s") as s:
        s.append({"role": "user", "content": "go"}, id="r1")
        s.append(calling(call("1", "mark", text="one"), call("2", "mark", text="two")))
        s.append(result("1", "marked"))


def marking(ran: list[str], *replies: Json) -> Loop:
    def mark(text: str) -> str:
        """Leave a mark."""
        ran.append(text)
        return "marked"

    return Loop(ScriptedModel(list(replies)), [tool_from(mark)], Permissions("trusted"))


def test_open_calls_are_the_hosts_choice(url: str) -> None:
    """Marked as failed, or run; those with a result never."""
    left_open(url)
    ran: list[str] = []
    with Session.open(url, "s", agent=marking(ran, saying("ok"))) as s:
        assert [waiting.id for waiting in s.pending()] == ["2"]
        assert s.proceed().text == "ok"
        assert ran == []
        assert s.messages()[3]["content"].startswith("interrupted")
        assert s.pending() == []


def test_open_calls_are_run_if_asked_for(url: str) -> None:
    """With `pending="retry"`."""
    left_open(url)
    ran: list[str] = []
    with Session.open(url, "s", agent=marking(ran, saying("ok"))) as s:
        assert s.proceed(pending="retry").text == "ok"
        assert ran == ["two"]
        assert s.messages()[3]["content"] == "marked"
        with pytest.raises(NotFound, match="no turn to finish"):
            s.proceed()


def test_going_on_without_it_leaves_no_open_call(url: str) -> None:
    """A new message answers old calls in the log, and none of them is run."""
    left_open(url)
    ran: list[str] = []
    with Session.open(url, "s", agent=marking(ran, saying("ok"))) as s:
        assert s.send("never mind").text == "ok"
        assert (ran, s.pending()) == ([], [])
        assert roles(s) == ["user", "assistant", "tool", "tool", "user", "assistant"]


@pytest.mark.parametrize("format", ["openai", "anthropic"])
def test_a_turn_that_lacks_only_its_end_asks_no_model(url: str, format: Json) -> None:
    """The model has said its last word, and that is not said again."""
    with Session.open(url, "s") as s:
        s.append({"role": "user", "content": "go"}, id="r1")
        s.append(saying("done"))
    model = ScriptedModel([], format)
    with Session.open(url, "s", agent=Loop(model)) as s:
        finished = s.proceed()
        assert (finished.text, finished.exit_reason, model.requests) == ("done", "end_turn", [])
        assert s.send("go", id="r1") == finished


def test_an_agent_of_ones_own_can_be_proceeded_with(url: str) -> None:
    """It looks at what it has said, not at its own variables."""

    def agent(turn: LiveTurn) -> Iterator[Json]:
        for n in range(len(turn.said()), 3):
            yield saying(str(n))
            if n == 1 and turn.model is None:
                raise KeyboardInterrupt

    with Session.open(url, "s", agent=agent) as s:
        with pytest.raises(KeyboardInterrupt):
            s.send("go", id="r1")
        assert ends(s) == ["interrupted"]
        with pytest.raises(NotFound):
            s.proceed()
        # Not to the last message: the turn has ended behind it.
        s.rewind(next(e for e in s.events() if e.data.get("message") == saying("0")))
        assert [m["content"] for m in s.proceed(model="x").messages] == ["0", "1", "2"]


# --- Ctrl-C ------------------------------------------------------------------------------

INTERRUPTED = """
import sys, asyncio
from backtrail import AsyncSession, Session
from tests.agent.test_durable import sleeping
url, work, way = sys.argv[1:]
async def main():
    async with await AsyncSession.open(url, "s", cwd=work, agent=sleeping()) as s:
        await s.send("go")
if way == "async":
    asyncio.run(main())
else:
    with Session.open(url, "s", cwd=work, agent=sleeping()) as s:
        s.send("go")
"""


def sleeping() -> Loop:
    """An agent that runs a shell command that takes a minute, and has another one to run."""
    command = "echo $$ > pid; sleep 60 & sleep 60"
    asked = calling(call("1", "bash", command=command), call("2", "bash", command="touch no"))
    return Loop(ScriptedModel([asked]), tools_named("all"), Permissions("trusted"))


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_ctrl_c_during_a_tool_is_recorded(tmp_path: Path, way: str) -> None:
    """`interrupted`, every call answered, no process left."""
    work = tmp_path / "work"
    work.mkdir()
    url = f"sqlite:///{tmp_path}/store.db"
    command = [sys.executable, "-c", INTERRUPTED, url, str(work), way]
    child = subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)
    pid = work / "pid"
    eventually(lambda: pid.exists() and pid.read_text().strip())
    child.send_signal(signal.SIGINT)
    errors = child.communicate(timeout=30)[1]
    assert b"KeyboardInterrupt" in errors
    assert living(int(pid.read_text())) == []
    with Session.open(url, "s") as s:
        assert ends(s) == ["interrupted"]
        assert s.pending() == []
        assert roles(s) == ["user", "assistant", "tool", "tool"]
        assert not (work / "no").exists()


# --- stores that fail --------------------------------------------------------------------


def breaking(store: Flaky, ran: list[str], *replies: Json) -> Loop:
    """An agent whose first tool breaks the store."""

    def mark(text: str) -> str:
        """Leave a mark."""
        ran.append(text)
        store.broken = True
        return "marked"

    return Loop(ScriptedModel(list(replies)), [tool_from(mark)], Permissions("trusted"))


TWO_CALLS = calling(call("1", "mark", text="one"), call("2", "mark", text="two"))


def test_a_failing_store_stops_the_turn() -> None:
    """By default: before the next tool runs. It can be finished when the store is back."""
    with open_store("memory:") as inner:
        store, ran = Flaky(inner), []  # type: tuple[Flaky, list[str]]
        agent = breaking(store, ran, TWO_CALLS, saying("ok"))
        with Session.create(store, "s", agent=agent) as s:
            with pytest.raises(StoreFailed):
                s.send("go", id="r1")
            assert ran == ["one"]
            store.broken = False
            assert [waiting.id for waiting in s.pending()] == ["1", "2"]
            assert s.send("go", id="r1").text == "ok"
            assert ran == ["one"]
            assert roles(s) == ["user", "assistant", "tool", "tool", "assistant"]


def test_a_message_that_is_not_stored_runs_no_tool() -> None:
    """The call must be in the log first."""
    with open_store("memory:") as inner:
        store, ran = Flaky(inner), []  # type: tuple[Flaky, list[str]]

        def reply(request: Request) -> dict[str, Json]:
            store.broken = True
            return TWO_CALLS

        agent = breaking(store, ran, reply)
        with Session.create(store, "s", agent=agent) as s:
            with pytest.raises(StoreFailed):
                s.send("go")
            assert ran == []
            store.broken = False


@pytest.mark.parametrize("from_the_start", [False, True])
def test_best_effort_goes_on_without_the_store(from_the_start: bool) -> None:
    """The turn ends as it would, the failure shows, and all is stored when it can be."""
    signals: list[Signal] = []
    stop = listen(signals.append)
    with open_store("memory:") as inner:
        store, ran = Flaky(inner), []  # type: tuple[Flaky, list[str]]
        agent = breaking(store, ran, TWO_CALLS, saying("ok"), saying("more"))
        with Session.create(store, "s", agent=agent, on_error="record") as s:
            store.broken = from_the_start
            done = s.send("go", id="r1")
            assert (done.text, done.exit_reason, ran) == ("ok", "end_turn", ["one", "two"])
            assert [m["role"] for m in done.messages] == ["assistant", "tool", "tool", "assistant"]
            assert s.send("go", id="r1") == done
            assert s.problems
            assert {p.what for p in s.problems} == {"not saved"}
            assert any(signal.name == "session.problem" for signal in signals)
            store.broken = False
            assert s.send("on").text == "more"
            model = agent.model
            assert isinstance(model, ScriptedModel)
            sent = [[m["role"] for m in request.messages] for request in model.requests]
            assert sent[1] == ["user", "assistant", "tool", "tool"]
            assert sent[2] == [*sent[1], "assistant", "user"]
        with Session.open(store, "s") as s:
            assert roles(s) == [*sent[2], "assistant"]
            assert ends(s) == ["end_turn", "end_turn"]
            assert s.send("go", id="r1").text == "ok"
    stop()


def test_a_full_disk_breaks_no_turn(tmp_path: Path) -> None:
    """With `on_error="record"`, on a store of files."""
    ran: list[str] = []
    agent = marking(ran, TWO_CALLS, saying("x" * 5000))
    with Session.create(f"file:{tmp_path}/store", "s", agent=agent, on_error="record") as s:
        with full_disk(tmp_path):
            assert s.send("go").text == "x" * 5000
        assert ran == ["one", "two"]
        assert s.problems
    with Session.open(f"file:{tmp_path}/store", "s") as s:
        assert kinds(s)[-1] == "turn_end"
        assert roles(s) == ["user", "assistant", "tool", "tool", "assistant"]
