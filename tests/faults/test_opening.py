"""Opening a session is enough after a crash in a rewind: files and conversation agree then.

The rewind dies by SIGKILL; what is there before and after was looked at by the test itself.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.faults.restoring import SESSION, Scene, erase, look
from tests.faults.rewinds import Sweep

from backtrail import AsyncSession, Session, open_store
from backtrail.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SAID = {"before": ["first", "second"], "after": ["first"]}

Way = Callable[[Scene], dict[str, Any]]


@pytest.fixture(autouse=True)
def removable(fast: Path) -> Iterator[None]:
    """Folders that cannot be written in could not be removed in the end."""
    yield
    for folder in fast.iterdir():
        erase(folder)


def _shown(session: Session) -> dict[str, Any]:
    return {
        "said": [message["content"] for message in session.messages()],
        "log": [event.kind for event in session.events()],
        "head": session.info().head,
        "problems": [problem.detail for problem in session.problems],
    }


def _opened(scene: Scene) -> dict[str, Any]:
    with Session.open(scene.url, SESSION, cwd=scene.work) as session:
        return _shown(session)


def _resumed(scene: Scene) -> dict[str, Any]:
    with Session.resume(scene.url, SESSION) as session:
        return _shown(session)


def _latest(scene: Scene) -> dict[str, Any]:
    with Session.latest(scene.url, cwd=scene.work) as session:
        return _shown(session)


def _replayed(scene: Scene) -> dict[str, Any]:
    with Session.resume(scene.url, SESSION, replay_last_user_turn=True) as session:
        return _shown(session)


def _asynchronous(scene: Scene) -> dict[str, Any]:
    async def body() -> dict[str, Any]:
        async with await AsyncSession.open(scene.url, SESSION, cwd=scene.work) as session:
            said = [message["content"] for message in await session.messages()]
            return {"said": said, "log": [event.kind async for event in session.events()]}

    return asyncio.run(body())


WAYS: dict[str, Way] = {
    "open": _opened,
    "resume": _resumed,
    "latest": _latest,
    "replay": _replayed,
    "async": _asynchronous,
}


def _reported(scene: Scene, way: Way) -> dict[str, Any]:
    child = scene.forked(lambda: way(scene))
    assert not child.killed
    found: dict[str, Any] = json.loads(child.reported)
    return found


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_opening_finishes_a_rewind_that_was_killed(fast: Path, kind: str) -> None:
    """However it is opened: nothing has to be appended first."""
    scene = Scene(fast, kind)
    sweep = Sweep(scene)
    ways = list(WAYS.items())
    seen = set()
    for number, point in enumerate(sweep.points(15)):
        name, way = ways[number % len(ways)]
        where = f"{sweep.kill(point)}, then {name}"
        reported = _reported(scene, way)
        state = scene.check_files(where)
        assert reported["said"] == SAID[state], where
        assert reported["log"].count("rewound") == (state == "after"), where
        seen.add(state)
    assert seen == {"before", "after"}


def _in_the_middle(scene: Scene) -> None:
    """Kill a rewind where the files are neither as before nor as after."""
    sweep = Sweep(scene)
    for point in sweep.points(15)[6:]:
        sweep.kill(point)
        if look(scene.work) not in (scene.before, scene.after):
            return
    raise AssertionError("no kill left anything in the middle")


def test_a_reader_says_that_it_is_unfinished(fast: Path) -> None:
    """Who does not watch over the files changes none, and says so."""
    scene = Scene(fast)
    _in_the_middle(scene)
    half = look(scene.work)

    def body() -> list[str]:
        with Session.open(scene.url, SESSION, files=False) as session:
            session.messages()
            return [problem.detail for problem in session.problems]

    (note,) = json.loads(scene.forked(body).reported)
    assert str(scene.work) in note and "not finished" in note
    assert look(scene.work) == half


def _cli(scene: Scene, *words: str) -> tuple[int, str, str]:
    """Run the command line in a child, in the workspace."""

    def body() -> list[Any]:
        os.chdir(scene.work)
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*words, "--store", scene.url])
        return [code, out.getvalue(), err.getvalue()]

    code, out, err = json.loads(scene.forked(body).reported)
    return code, out, err


def test_verbs_that_read_say_that_it_is_unfinished(fast: Path) -> None:
    """And neither they nor a preview finish it: not a byte of the files and no event is new."""
    scene = Scene(fast)
    _in_the_middle(scene)
    half = look(scene.work)
    with open_store(scene.url) as store:
        events = list(store.read(SESSION))
    for words in (["show"], ["log"], ["export", "--markdown", "-o", str(fast / "out.md")]):
        code, _, err = _cli(scene, *words)
        assert (code, "is not finished" in err) == (0, True), (words, err)
    code, out, _ = _cli(scene, "verify")
    assert (code, "is not finished" in out) == (0, True)
    for words in (["undo", "--dry-run"], ["rewind", "2", "--dry-run"]):
        code, out, err = _cli(scene, *words)
        assert "is not finished" in err and code != 0, (words, out, err)
    assert look(scene.work) == half
    with open_store(scene.url) as store:
        assert list(store.read(SESSION)) == events


def test_the_first_status_after_it_calls_nothing_changed_by_others(fast: Path) -> None:
    """The rewind that it finishes is the session's own."""
    scene = Scene(fast)
    _in_the_middle(scene)
    code, out, _ = _cli(scene, "status", "--json")
    status = json.loads(out)
    assert (code, status["since"], status["problem"]) == (0, [], None)
    assert scene.check_files("after status") == "after"
    assert any("undo" in step["command"] for step in status["next"])


def test_a_live_holder_is_named_and_not_waited_for(fast: Path) -> None:
    """Opening names the process that has the lock of the folder."""
    scene = Scene(fast)
    _in_the_middle(scene)
    half = look(scene.work)
    roots = Path(os.environ["BACKTRAIL_STATE"], "roots")
    locks = [lock for lock in roots.glob("*/lock") if os.fsencode(scene.work) in lock.read_bytes()]
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = [lock.open("rb") for lock in locks]
        for one in held:
            fcntl.flock(one, fcntl.LOCK_EX)
        os.write(go, b".")
        time.sleep(600)
        os._exit(0)
    try:
        os.read(ready, 1)
        reported = _reported(scene, _opened)
        (problem,) = reported["problems"]
        assert f"under way by process {pid}" in problem
        assert reported["said"] == SAID["before"]
        code, out, _ = _cli(scene, "status", "--json")
        assert (code, f"process {pid}" in json.loads(out)["problem"]) == (0, True)
        assert look(scene.work) == half
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(go)
    assert _reported(scene, _opened)["said"] == SAID["after"]
    scene.check_files("the holder is gone")
