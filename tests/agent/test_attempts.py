"""A request that failed or was lost can be made again: what runs, and what never does.

The oracles are of the tests' own: a plain list of who was asked what, lines that tools wrote
into a file, bytes of the project.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from backtrail import AsyncSession, Conflict, InvalidData, NotFound, Session, open_store, run
from backtrail.agent.hooks import Hooks
from backtrail.agent.loop import Loop
from backtrail.agent.models.base import ModelFailed
from backtrail.agent.models.scripted import ScriptedModel
from backtrail.agent.permissions import Permissions
from backtrail.agent.tools import tools_named
from backtrail.events import Event, Json
from backtrail.session.turns import LiveTurn
from backtrail.stores.redacting import Redacting

from .test_turns import call, calling, saying


class NoLuck(Exception):
    """What an agent of these tests raises."""


Agent = Callable[[LiveTurn], Iterator[Json]]


def failing(times: int, then: str = "at last") -> tuple[Agent, list[str]]:
    """An agent that fails so often, and the prompts it was called for."""
    heard: list[str] = []

    def agent(turn: LiveTurn) -> Iterator[Json]:
        heard.append(turn.prompt)
        if len(heard) <= times:
            raise NoLuck
        yield saying(f"{then}: {turn.prompt}")

    return agent, heard


def prompts(session: Session) -> list[Event]:
    return [e for e in session.history() if e.kind == "user_message"]


def words(session: Session) -> list[Json]:
    return [m["content"] for m in session.messages()]


def test_a_failed_turn_runs_again(url: str) -> None:
    """As the last turn it goes on: what was said is said once, and one undo takes it back."""
    agent, heard = failing(1)
    with Session.open(url, "s", agent=agent) as s:
        with pytest.raises(NoLuck):
            s.send("go", id="k1")
        result = s.send("go", id="k1")
        assert (result.text, result.exit_reason, result.error) == ("at last: go", "end_turn", None)
        assert s.send("go", id="k1") == result
        assert heard == ["go", "go"]
        assert words(s) == ["go", "at last: go"]
        s.undo()
        assert s.messages() == []


def test_a_failure_of_the_model_is_no_answer(url: str) -> None:
    """Such a turn raises nothing; its retry runs, and is not sent the failure as an answer."""
    model = ScriptedModel([ModelFailed("down"), saying("up")])
    with Session.open(url, "s", agent=Loop(model)) as s:
        assert s.send("go", id="k1").exit_reason == "error"
        again = s.send("go", id="k1")
        assert (again.text, again.exit_reason, again.error) == ("up", "end_turn", None)


def test_never_is_never(url: str) -> None:
    """The recorded failure comes back, and a turn that was left behind stays so."""
    agent, heard = failing(1)
    with Session.open(url, "s", agent=agent) as s:
        with pytest.raises(NoLuck):
            s.send("go", id="k1")
        assert s.send("go", id="k1", retry="never").exit_reason == "error"
        s.append({"role": "user", "content": "lost"}, id="k2")
        s.send("next")
        with pytest.raises(Conflict, match="went on"):
            s.send("lost", id="k2", retry="never")
        with pytest.raises(InvalidData, match="retry"):
            s.send("x", retry="always")  # type: ignore[arg-type]
        assert heard == ["go", "next"]


def test_a_lost_request_is_said_anew_behind_what_came_after_it(url: str) -> None:
    """With an id of its own; later sends of the request's id answer from there."""
    agent, heard = failing(0, "re")
    with Session.open(url, "s") as s:
        s.append({"role": "user", "content": "four"}, id="k4")
    with Session.open(url, "s", agent=agent) as s:
        s.send("five", id="k5")
        result = s.send("four", id="k4")
        assert result.text == "re: four"
        assert words(s) == ["four", "five", "re: five", "four", "re: four"]
        lost, _, anew = prompts(s)
        assert anew.data["retry_of"] == lost.id == "k4"
        assert anew.id not in ("k4", "k5")
        assert result.event is not None and result.event.id == anew.id
    with Session.open(url, "s") as s:
        assert s.send("four", id="k4") == s.send("four", id=anew.id) == result
        assert s.send("four", id="k4", retry="never") == result
        assert heard == ["five", "four"]


def test_the_newest_attempt_counts(url: str) -> None:
    """However many there are, and whichever session object asks."""
    agent, heard = failing(3)
    with Session.open(url, "s", agent=agent) as s:
        for _ in range(3):
            with pytest.raises(NoLuck):
                s.send("go", id="k1")
            s.append({"role": "user", "content": "meanwhile"})
        assert s.send("go", id="k1").text == "at last: go"
    with Session.open(url, "s", agent=agent) as s:
        assert s.send("go", id="k1").text == "at last: go"
        attempts = [e for e in prompts(s) if e.data["message"]["content"] == "go"]
        assert [e.data.get("retry_of") for e in attempts] == [None, "k1", "k1", "k1"]
        assert len({e.id for e in attempts}) == 4
    assert heard == ["go"] * 4


def test_another_message_under_a_known_id_is_a_conflict(url: str) -> None:
    """In whichever way the turn ended; the ways to spell one text are one message."""
    agent, heard = failing(1)
    with Session.open(url, "s", agent=agent) as s:
        with pytest.raises(NoLuck):
            s.send("go", id="k1")
        for retry in ("errors", "never"):
            with pytest.raises(Conflict, match="another message"):
                s.send("stop", id="k1", retry=retry)
        with pytest.raises(Conflict, match="another message"), s.turn("stop", id="k1"):
            raise AssertionError("not entered")
        assert heard == ["go"]
        s.send([{"type": "text", "text": "go"}], id="k1")
        s.send({"role": "user", "content": "go", "name": "ann"}, id="k1")
        assert heard == ["go", "go"]


def test_a_message_that_was_masked_is_the_same_message(url: str) -> None:
    """What a store keeps of it is compared, and not what it must not keep."""
    agent, heard = failing(1)
    secret = "my key is sk-ant-api03-" + "a" * 93 + "AA"
    with Redacting(open_store(url)) as store, Session.open(store, "s", agent=agent) as s:
        with pytest.raises(NoLuck):
            s.send(secret, id="k1")
        assert "sk-ant" not in str(s.messages())
        assert s.send(secret, id="k1").text.startswith("at last")
        assert len(heard) == 2


@pytest.mark.parametrize("how", ["cancel", "Ctrl-C"])
def test_what_a_person_cancelled_does_not_run_again(url: str, how: str) -> None:
    """It is the answer that the turn was cancelled."""
    heard: list[str] = []

    def agent(turn: LiveTurn) -> Iterator[Json]:
        heard.append(turn.prompt)
        if how == "Ctrl-C":
            raise KeyboardInterrupt
        turn.session.cancel()
        yield saying("not said")

    with Session.open(url, "s", agent=agent) as s:
        with suppress(KeyboardInterrupt):
            s.send("go", id="k1")
        assert s.send("go", id="k1").exit_reason == "interrupted"
        s.append({"role": "user", "content": "next"})
        assert s.send("go", id="k1").exit_reason == "interrupted"
        assert heard == ["go"]


def test_what_was_refused_is_not_asked_again(url: str) -> None:
    """A hook that does not want a prompt has answered."""
    asked: list[Json] = []

    def refuse(about: dict[str, Json]) -> bool:
        asked.append(about["prompt"])
        return False

    hooks = Hooks({"on_prompt": refuse})
    with Session.open(url, "s", agent=Loop(ScriptedModel(["x"]), hooks=hooks)) as s:
        first = s.send("go", id="k1")
        assert first.exit_reason == "error"
        assert s.send("go", id="k1") == first
        assert asked == ["go"]


def test_a_stream_that_was_left_runs_again(url: str) -> None:
    """A client went away and comes back with its id: in a stream, too."""
    agent, _ = failing(0, "re")
    with Session.open(url, "s", agent=agent) as s:
        left = s.stream("go", id="k1")
        next(left)
        left.close()  # type: ignore[attr-defined]
        assert s.info().exit_reason == "interrupted"
        notified = list(s.stream("go", id="k1"))
        assert [item.kind for item in notified if isinstance(item, Event)] == ["assistant_message"]
        assert s.send("go", id="k1").text == "re: go"
        assert len(prompts(s)) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_same_on_a_loop(url: str, backend: str) -> None:
    """Failed, left and lost ones; cancelled ones not."""
    heard: list[str] = []

    async def agent(turn: LiveTurn) -> AsyncIterator[Json]:
        heard.append(turn.prompt)
        if heard.count(turn.prompt) == 1 and turn.prompt != "stop":
            raise NoLuck
        if turn.prompt == "stop":
            turn.session.cancel()
        yield saying(f"re: {turn.prompt}")

    async def main() -> None:
        async with await AsyncSession.open(url, "s", agent=agent) as s:
            with pytest.raises(NoLuck):
                await s.send("go", id="k1")
            assert (await s.send("go", id="k1", retry="never")).exit_reason == "error"
            assert (await s.send("go", id="k1")).text == "re: go"
            with pytest.raises(NoLuck):
                _ = [item async for item in s.stream("two", id="k2")]
            await s.append({"role": "user", "content": "meanwhile"})
            _ = [item async for item in s.stream("two", id="k2")]
            assert (await s.send("two", id="k2")).text == "re: two"
            await s.send("stop", id="k3")
            assert (await s.send("stop", id="k3")).exit_reason == "interrupted"
            with pytest.raises(Conflict):
                await s.send("other", id="k3")
            notified = [m["content"] for m in await s.messages()]
            assert notified == [
                "go",
                "re: go",
                "two",
                "meanwhile",
                "two",
                "re: two",
                "stop",
                "re: stop",
            ]

    anyio.run(main, backend=backend)
    assert heard == ["go", "go", "two", "two", "stop"]


def test_one_shot_takes_it_too(url: str) -> None:
    """`run` with an id and a store."""
    agent, heard = failing(1)
    with pytest.raises(NoLuck):
        run("go", store=url, session_id="s", id="k1", agent=agent)
    never = run("go", store=url, session_id="s", id="k1", agent=agent, retry="never")
    assert never.exit_reason == "error"
    assert run("go", store=url, session_id="s", id="k1", agent=agent).text == "at last: go"
    assert heard == ["go", "go"]


# --- files -------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_undo_takes_the_attempts_as_one_turn(url: str, tmp_path: Path) -> None:
    """Conversation and files, back and forth; what came in between is a turn of its own."""
    project = tmp_path / "project"
    project.mkdir()
    names = iter(["a", "b", "c"])

    def agent(turn: LiveTurn) -> Iterator[Json]:
        name = next(names)
        with turn.tool("write", name):
            (project / name).write_text(turn.prompt)
        if name == "a":
            raise NoLuck
        yield saying(name)

    with Session.open(url, "s", agent=agent, cwd=project) as s:
        with pytest.raises(NoLuck):
            s.send("four", id="k4")
        s.send("five", id="k5")
        s.send("four", id="k4")
        both = (words(s), contents(project))
        assert both[1] == {"a": "four", "b": "five", "c": "four"}
        s.undo()
        assert (words(s), contents(project)) == (["four", "five", "b"], {"b": "five"})
        s.undo()
        assert (words(s), contents(project)) == ([], {})
        with pytest.raises(NotFound):
            s.undo()
        s.redo()
        assert (words(s), contents(project)) == (["four", "five", "b"], {"b": "five"})
        s.redo()
        assert (words(s), contents(project)) == both
        s.undo()
        assert (words(s), contents(project)) == (["four", "five", "b"], {"b": "five"})


def test_calls_that_have_results_never_run_again(url: str, tmp_path: Path) -> None:
    """The model fails after a call; the next attempt goes on behind that call."""
    project = tmp_path / "project"
    project.mkdir()
    write = calling(call("1", "bash", command="echo once >> ran"))
    model = ScriptedModel([write, ModelFailed("down"), ModelFailed("down"), saying("done")])
    loop = Loop(model, tools_named("all"), Permissions("trusted"))
    with Session.open(url, "s", agent=loop, cwd=project) as s:
        assert s.send("go", id="k1").exit_reason == "error"
        assert s.send("go", id="k1").exit_reason == "error"
        result = s.send("go", id="k1")
        assert (result.text, result.files) == ("done", ["ran"])
    assert (project / "ran").read_text() == "once\n"


@pytest.mark.parametrize("way", ["proceed", "send"])
def test_files_of_a_killed_call_belong_to_the_turn_that_goes_on(
    disk_url: str, tmp_path: Path, way: str
) -> None:
    """`Result.files` has what the call did until kill -9."""
    url = disk_url
    project = tmp_path / "project"
    project.mkdir()
    (project / "old").write_text("old\n")

    def dying(turn: LiveTurn) -> Iterator[Json]:
        yield calling(call("1", "bash"))
        with turn.tool("bash", id="1"):
            (project / "half").write_text("half\n")
            (project / "old").write_text("new\n")
            os.kill(os.getpid(), signal.SIGKILL)

    killed(lambda: Session.open(url, "s", agent=dying, cwd=project), "go")
    assert (project / "half").exists()
    with Session.open(url, "s", agent=lambda turn: [saying("ok")], cwd=project) as s:
        result = s.proceed() if way == "proceed" else s.send("go", id="k1")
        assert (result.text, result.files) == ("ok", ["half", "old"])
        assert s.send("go", id="k1").files == ["half", "old"]
        s.undo()
    assert contents(project) == {"old": "old\n"}


def killed(opened: Callable[[], Session], prompt: str, id: str = "k1") -> None:
    """Send in a process whose agent kills it."""
    pid = os.fork()
    if pid == 0:
        try:
            opened().send(prompt, id=id)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
