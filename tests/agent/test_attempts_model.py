"""Requests with ids, repeated at random, against a plain model: a list of attempts.

The model knows nothing of logs. It has one row for each message that a user is expected to
have said, with the request it belongs to and how far it came.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import pytest

from backtrail import AsyncSession, NewEvent, NotFound, Session, open_store
from backtrail.events import Json, SessionInfo
from backtrail.events.history import WORK_KINDS
from backtrail.events.operations import OPERATION_KINDS, operations
from backtrail.session.points import read_operations
from backtrail.session.turns import LiveTurn

from .test_attempts import NoLuck
from .test_turns import call, calling, saying

Outcome = Literal["ok", "error", "cancel", "crash", "crash in the call"]
FINAL = ("ok", "cancel")
WAYS = ("send", "stream", "async")


@dataclass
class Attempt:
    """One message of a user: the request it is for, how it ended, whether its call ran."""

    request: str
    state: str = "open"
    ran: bool = False


@dataclass
class Model:
    """What should be there after each request."""

    attempts: list[Attempt] = field(default_factory=list)

    def newest(self, request: str) -> Attempt | None:
        return next((a for a in reversed(self.attempts) if a.request == request), None)

    def runs(self, request: str) -> Attempt | None:
        """The attempt that is worked at if the request comes now; None if it is answered."""
        known = self.newest(request)
        if known is not None and known.state in FINAL:
            return None
        if known is None or known is not self.attempts[-1]:
            known = Attempt(request)
            self.attempts.append(known)
        return known

    def undone(self, count: int) -> list[str]:
        """What users have said after so many undos: attempts at a request go together."""
        said = [a.request for a in self.attempts]
        gone: set[str] = set()
        for _ in range(count):
            last = max(at for at, request in enumerate(said) if request not in gone)
            gone.add(said[last])
            said = said[:last]
            while said and said[-1] in gone:
                said.pop()
        return said


class Scene:
    """A session whose agent follows a script, and a folder with what its calls did."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.ran = folder / "ran"
        self.ran.touch()
        self.outcome: Outcome = "ok"
        self.model = Model()

    def agent(self, turn: LiveTurn) -> Iterator[Json]:
        """One call, once in a turn, and then the answer, or what is to go wrong."""
        if self.outcome == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if not turn.said():
            name = f"c-{turn.event.id}"
            yield calling(call(name, "note"))
            with turn.tool("note", id=name) as done:
                with self.ran.open("a") as file:
                    file.write(f"{name}\n")
                if self.outcome == "crash in the call":
                    os.kill(os.getpid(), signal.SIGKILL)
                done.result = "noted"
        if self.outcome == "crash in the call":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.outcome == "error":
            raise NoLuck
        if self.outcome == "cancel":
            turn.session.cancel()
        yield saying(f"re: {turn.prompt}")

    def request(self, request: str, outcome: Outcome, way: str) -> str | None:
        """Make a request; the answer, if it got one."""
        self.outcome = outcome
        expected = self.model.runs(request)
        if expected is not None:
            expected.state = "open" if outcome.startswith("crash") else outcome
            expected.ran = expected.ran or outcome != "crash"
            if outcome.startswith("crash"):
                self._die(request, way)
                return None
        with suppress(NoLuck):
            return self._ask(request, way)
        return None

    def _ask(self, request: str, way: str) -> str:
        if way == "async":
            return anyio.run(self._ask_on_a_loop, request)
        with Session.open(self.url, "s", agent=self.agent) as s:
            if way == "send":
                return s.send(f"do {request}", id=request).text
            list(s.stream(f"do {request}", id=request))
            return s.send(f"do {request}", id=request, retry="never").text

    async def _ask_on_a_loop(self, request: str) -> str:
        async with await AsyncSession.open(self.url, "s", agent=self.agent) as s:
            return (await s.send(f"do {request}", id=request)).text

    def _die(self, request: str, way: str) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self._ask(request, "send" if way == "async" else way)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    # --- checking ------------------------------------------------------------------------

    def check(self) -> None:
        """The log has the model's attempts, and each call ran as often as the model says."""
        attempts = self.model.attempts
        with Session.resume(self.url, "s") as s:
            said = [e for e in s.history() if e.kind == "user_message"]
        assert [e.data["message"]["content"] for e in said] == [f"do {a.request}" for a in attempts]
        first: dict[str, str] = {}
        for event, attempt in zip(said, attempts, strict=True):
            of = first.setdefault(attempt.request, event.id)
            assert event.data.get("retry_of") == (None if of == event.id else of)
        assert len({e.id for e in said}) == len(said)
        ran = self.ran.read_text().split()
        assert ran == [f"c-{e.id}" for e, a in zip(said, attempts, strict=True) if a.ran]

    def check_undo(self) -> None:
        """As many undos as there are requests, each to where the model says."""
        with Session.resume(self.url, "s") as s:
            for count in range(1, len({a.request for a in self.model.attempts}) + 1):
                s.undo()
                notified = [m["content"] for m in s.messages() if m["role"] == "user"]
                assert notified == [f"do {r}" for r in self.model.undone(count)]
            assert s.messages() == []
            with pytest.raises(NotFound):
                s.undo()


def play(scene: Scene, rng: random.Random, outcomes: tuple[Outcome, ...], steps: int) -> None:
    """Requests at random; half of them come again at once, as a client's retries do."""
    last = "a"
    for _ in range(steps):
        last = last if rng.random() < 0.3 else rng.choice("abcd")
        newest = scene.model.newest(last)
        answered = newest is not None and newest.state == "ok"
        outcome = rng.choice(outcomes)
        text = scene.request(last, outcome, rng.choice(WAYS))
        if answered or outcome == "ok":
            now = scene.model.newest(last)
            assert now is not None
            assert text == f"re: do {last}" or now.state == "cancel"
        scene.check()
    scene.check_undo()


@pytest.mark.parametrize("seed", range(40))
def test_requests_in_one_process(tmp_path: Path, seed: int) -> None:
    """Failures and cancellations, on each way in."""
    scene = Scene(f"memory:{tmp_path}", tmp_path)
    with Session.create(scene.url, "s"):
        play(scene, random.Random(seed), ("ok", "error", "error", "cancel"), 12)


@pytest.mark.parametrize("seed", range(8))
def test_requests_whose_processes_are_killed(disk_url: str, tmp_path: Path, seed: int) -> None:
    """The same, and kill -9 before a call and in it."""
    scene = Scene(disk_url, tmp_path)
    Session.create(scene.url, "s").close()
    play(scene, random.Random(seed), ("ok", "error", "crash", "crash in the call"), 8)


@pytest.mark.parametrize("seed", range(30))
def test_the_last_operations_are_those_of_the_whole_log(seed: int) -> None:
    """Undo reads the end of a log; attempts at a turn may begin far in front of it."""
    rng = random.Random(seed)
    with open_store("memory:") as store:
        store.create(SessionInfo(id="s"))
        said: list[str] = []
        head = 0
        for _ in range(rng.randrange(1, 60)):
            kind = rng.choice([*["user_message"] * 6, "assistant_message", *OPERATION_KINDS])
            data: dict[str, Json] = {}
            if kind == "user_message" and said and rng.random() < 0.4:
                data["retry_of"] = rng.choice(said)
            follows = rng.randrange(head + 1) if kind in OPERATION_KINDS[1:] else None
            event = store.append("s", [NewEvent(kind, data, follows=follows)])[0]
            head = event.seq
            said += [event.id] if kind == "user_message" and not data else []
            whole = operations(store.read("s", kinds={*OPERATION_KINDS, *WORK_KINDS}))
            now = read_operations(store, "s")
            assert (now.done[-1:], now.undone) == (whole.done[-1:], whole.undone)
