"""Turns around code of one's own: what a second process gets to know, and what it can settle."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import anyio
import pytest

from backtrail import AsyncSession, Event, NotFound, Session
from backtrail.events import Json
from backtrail.events.calls import INTERRUPTED

from .agent.test_turns import call, calling

ITEM = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
BLOCK = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
ASKING = {
    "openai": calling(call("c1", "look")),
    "responses": ITEM,
    "anthropic": {"role": "assistant", "content": [BLOCK]},
}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": '{"seen":2}'}
ANSWERED = {
    "openai": {"role": "tool", "tool_call_id": "c1", "content": '{"seen":2}'},
    "responses": {"type": "function_call_output", "call_id": "c1", "output": '{"seen":2}'},
    "anthropic": {"role": "user", "content": [RESULT]},
}


def said(text: str) -> dict[str, Json]:
    return {"role": "assistant", "content": text}


def ends(session: Session) -> list[dict[str, Json]]:
    return [event.data for event in session.events(kinds=("turn_end",))]


def test_a_turn_says_whether_it_is_new_and_has_ended(url: str) -> None:
    """By its id, in this session object and in the next."""
    with Session.open(url, "s") as s:
        with s.turn("go", id="k1") as t:
            assert (t.is_new, t.ended) == (True, False)
            t.append(said("done"))
        assert t.ended
        assert ends(s) == [{"turn": t.event.seq, "reason": "end_turn"}]
        assert s.info().exit_reason == "end_turn"
    with Session.open(url, "s") as s:
        with s.turn("go", id="k1") as again:
            assert (again.is_new, again.ended, again.event.id) == (False, True, "k1")
        assert s.messages() == [{"role": "user", "content": "go"}, said("done")]
        assert len(ends(s)) == 1
        with s.turn("other") as t:
            assert (t.is_new, t.ended) == (True, False)


def test_what_a_block_raises_is_recorded(url: str) -> None:
    """It goes on up, and the turn can be gone on with; what a person stops stays stopped."""
    with Session.open(url, "s") as s:
        with pytest.raises(ZeroDivisionError), s.turn("go", id="k1"):
            _ = 1 / 0
        assert (ends(s)[-1]["reason"], ends(s)[-1]["error"]) == (
            "error",
            "ZeroDivisionError: division by zero",
        )
        with s.turn("go", id="k1") as t:
            assert (t.is_new, t.ended) == (False, False)
        assert [end["reason"] for end in ends(s)] == ["error", "end_turn"]
        with pytest.raises(KeyboardInterrupt), s.turn("stop", id="k2"):
            raise KeyboardInterrupt
        assert ends(s)[-1]["reason"] == "interrupted"
        with s.turn("stop", id="k2") as t:
            assert t.ended
        assert len(s.messages()) == 2


def test_a_turn_that_was_left_behind_is_said_anew(url: str) -> None:
    """As `send` does; either finds what the other began."""
    with Session.open(url, "s", agent=lambda turn: [said("sent")]) as s:
        s.append({"role": "user", "content": "four"}, id="k4")
        with s.turn("five", id="k5"):
            pass
        with s.turn("four", id="k4") as t:
            assert (t.is_new, t.ended, t.event.data["retry_of"]) == (True, False, "k4")
            t.append(said("own"))
        assert s.send("four", id="k4").text == "own"
        assert s.send("six", id="k6").text == "sent"
        with s.turn("six", id="k6") as t:
            assert t.ended


def test_an_error_in_the_end_does_not_hide_what_was_raised(url: str) -> None:
    """A block that closes its session ends without a word."""
    with Session.open(url, "s") as s, s.turn("go"):
        s.close()
    with Session.open(url, "s") as s, pytest.raises(ZeroDivisionError), s.turn("go"):
        s.close()
        _ = 1 / 0


@pytest.mark.parametrize("format", ASKING)
def test_calls_are_settled(url: str, format: str) -> None:
    """In the format of the call, and once; an answer may come late, and ids may come again."""
    with Session.open(url, "s") as s:
        s.extend([{"role": "user", "content": "go"}, ASKING[format]])
    with Session.open(url, "s") as s:
        s.append({"role": "user", "content": "meanwhile"})
        event = s.answer("c1", {"seen": 2})
        assert (event.kind, event.data["name"]) == ("tool_result", "look")
        assert event.data["message"] == ANSWERED[format] and "error" not in event.data
        with pytest.raises(NotFound, match="c1"):
            s.answer("c1", "x")
        with pytest.raises(NotFound, match="c1"):
            s.give_up("c1")
        s.append(ASKING[format])
        event = s.give_up("c1")
        assert event.data["error"] is True and INTERRUPTED in str(event.data["message"])
        assert s.pending() == []
        assert str(s.messages()).count("seen") == str(s.messages()).count(INTERRUPTED) == 1


def test_a_call_is_settled_once_however_many_do_it(disk_url: str) -> None:
    """Two sessions answer at the same instant: one wins, the other gets an error."""
    with Session.open(disk_url, "s") as one, Session.open(disk_url, "s") as other:
        one.append({"role": "user", "content": "go"})
        for _ in range(15):
            one.append(ASKING["openai"])
            together = Barrier(2)

            def settle(session: Session, together: Barrier = together) -> bool:
                together.wait()
                try:
                    return session.answer("c1", "x") is not None
                except NotFound:
                    return False

            with ThreadPoolExecutor(2) as pool:
                assert sorted(pool.map(settle, (one, other))) == [False, True]


def test_a_killed_call_is_answered_with_what_it_did(disk_url: str, tmp_path: Path) -> None:
    """Kill -9 in a call: its files are its session's, whichever process settles it."""
    project = tmp_path / "project"
    project.mkdir()
    pid = os.fork()
    if pid == 0:
        s = Session.open(disk_url, "s", cwd=project)
        with s.turn("go", id="k1") as t:
            t.append(ASKING["openai"])
            with s.tool("look", id="c1"):
                (project / "half").write_text("half")
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    with Session.open(disk_url, "s", cwd=project) as s:
        with s.turn("go", id="k1") as t:
            assert (t.is_new, t.ended) == (False, False)
            assert [one.id for one in s.pending()] == ["c1"]
            s.answer("c1", "it was halfway")
            t.append(said("done"))
        (turn,) = s.changes()
        assert [file.path for one in turn.calls for file in one.files] == ["half"]
        s.undo()
        assert list(project.iterdir()) == []
        s.redo()
        assert (project / "half").read_text() == "half"


def test_a_call_under_way_keeps_what_it_did(tmp_path: Path) -> None:
    """`answer` is the result of a call that a message began, like an appended one."""
    with Session.open("memory:", cwd=tmp_path) as s:
        s.append({"role": "user", "content": "go"})
        s.append(ASKING["openai"])
        (tmp_path / "made").write_text("x")
        event: Event = s.answer("c1", "ok")
        assert "files" in event.data


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_same_on_a_loop(url: str, backend: str) -> None:
    """With a cancelled task, which cuts a turn short."""

    async def main() -> None:
        async with await AsyncSession.open(url, "s") as s:
            with anyio.CancelScope() as scope:
                async with s.turn("go", id="k1") as t:
                    assert (t.is_new, t.ended) == (True, False)
                    await t.append(ASKING["openai"])
                    await t.append(ASKING["anthropic"])
                    scope.cancel()
                    await anyio.sleep(1)
        async with await AsyncSession.open(url, "s") as s:
            async with s.turn("go", id="k1") as t:
                assert (t.is_new, t.ended) == (False, False)
                assert t.event.id == "k1"
                await s.answer("c1", "seen")
                await s.give_up("c1")
                assert await s.pending() == []
            assert t.ended
            with pytest.raises(ZeroDivisionError):
                async with s.turn("two", id="k2"):
                    _ = 1 / 0
            reasons = [e.data["reason"] async for e in s.events(kinds=("turn_end",))]
            assert reasons == ["interrupted", "end_turn", "error"]
            with pytest.raises(NotFound):
                await s.answer("c1", "x")

    anyio.run(main, backend=backend)


def test_the_end_of_a_turn_counts_what_it_did_to_the_files(tmp_path: Path) -> None:
    """In all, and only what its calls did: so a list of turns reads no contents."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "a").write_text("1\n2\n3\n")
    with Session.create(f"sqlite:///{tmp_path}/s.db", cwd=root) as session:
        with session.turn("edit"):
            with session.tool("edit"):
                (root / "a").write_text("1\ntwo\n3\n")
            (root / "mine").write_text("a person\n")
            with session.tool("bash"):
                (root / "b").write_text("x\ny\n")
            with session.tool("bash"):
                (root / "a").write_text("1\n2.5\n3\n4\n")
        with session.turn("talk"):
            pass
        with session.turn("alone"):
            (root / "b").unlink()
        nets = [event.data.get("net") for event in session.events(kinds=("turn_end",))]
    assert nets == [
        {"files": 2, "insertions": 4, "deletions": 1},
        None,
        {"files": 1, "insertions": 0, "deletions": 2},
    ]
