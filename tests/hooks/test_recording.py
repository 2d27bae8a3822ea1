"""`backtrail record`: any command as a session, with points to go back to."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from backtrail import Session, open_store
from backtrail.exchange.command import fingerprint, record

from .calling import PROGRAM, World


def recorded(world: World) -> Session:
    """The session that was recorded; close it."""
    (info,) = world.sessions()
    return Session.resume(world.url, info.id)


def test_a_command_and_its_way_back(world: World) -> None:
    """Its exit code is ours, its changes are one turn, and undo takes them back."""
    (world.project / "old.txt").write_text("old")
    done = world.run("record", "--", "sh", "-c", "echo new > new.txt; rm old.txt; exit 3")
    assert done.returncode == 3
    with recorded(world) as session:
        info = session.info()
        assert (info.agent_name, info.exit_reason) == ("record", "exit 3")
        assert info.metadata["command"][0] == "sh"
        assert [point.label for point in session.checkpoints()] == ["before", "after"]
        session.undo()
    assert [path.name for path in world.project.iterdir()] == ["old.txt"]


def test_points_where_the_files_come_to_rest(world: World) -> None:
    """A change and then a second of quiet is a point; what follows is another action."""
    script = "echo a > a.txt; until test -e ../go; do sleep 0.1; done; echo b > b.txt"
    child = subprocess.Popen(
        [PROGRAM, "record", "--title", "two steps", "--", "sh", "-c", script],
        env=world.env,
        cwd=world.project,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(world.project / "a.txt")
        deadline = time.monotonic() + 60
        with recorded(world) as session:
            while not list(session.events(kinds=("action",))):
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        (world.root / "go").touch()
        assert child.wait(60) == 0
    with recorded(world) as session:
        assert session.info().title == "two steps"
        first, second = session.events(kinds=("action",))
        assert first.data["files"]["after"] == second.data["files"]["before"]
        assert not list(session.events(kinds=("files_changed",)))
        assert len(session.checkpoints()) == 3
        session.rewind(first, scope="files")
    assert [path.name for path in world.project.iterdir()] == ["a.txt"]


def test_what_is_not_captured_makes_no_point(world: World) -> None:
    """A heavy folder that grows is nothing to go back to."""
    heavy = world.project / "pkg" / "node_modules"
    heavy.mkdir(parents=True)
    (world.project / ".backtrailignore").write_text("*.tmp\n")
    (world.project / "a.tmp").write_text("old")
    script = (
        "mkdir pkg/node_modules/x; echo a > pkg/node_modules/x/a.js; echo a > a.tmp; sleep 4;"
        "echo b > b.txt"
    )
    assert world.run("record", "--", "sh", "-c", script).returncode == 0
    with recorded(world) as session:
        (action,) = session.events(kinds=("action",))
        assert action.data["result"] == {"exit": 0}
        assert [point.label for point in session.checkpoints()] == ["before", "after"]


def test_streams_are_the_commands(world: World) -> None:
    """What comes in goes to it, what it says comes out; ours is on stderr."""
    done = world.run("record", "--", "sh", "-c", "cat; echo oops >&2", input="hello")
    assert done.stdout == "hello"
    assert "oops" in done.stderr
    assert "backtrail undo" in done.stderr


def test_arguments_are_the_commands(world: World) -> None:
    """Also those that look like ours, and another `--`."""
    done = world.run("record", "--", "echo", "--json", "--", "--title", "x")
    assert done.stdout == "--json -- --title x\n"


def test_as_json(world: World) -> None:
    """One document, and what the command says beside it."""
    done = world.run("record", "--json", "--", "echo", "words")
    assert "words" in done.stderr.splitlines()
    (info,) = world.sessions()
    assert json.loads(done.stdout) == {
        "session": info.id,
        "exit_code": 0,
        "checkpoints": 2,
        "not_captured": [],
    }


def test_what_cannot_be_run(world: World) -> None:
    """Nothing is recorded."""
    assert world.run("record", "--", "no-such-command").returncode == 127
    nothing = world.run("record")
    assert (nothing.returncode, "record -- COMMAND" in nothing.stderr) == (2, True)
    home = world.run("record", "--", "true", cwd=world.home)
    assert (home.returncode, "too much to watch over" in home.stderr) == (1, True)
    with open_store(world.url) as store:
        assert store.sessions() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_go_to_the_command(world: World, number: signal.Signals) -> None:
    """It decides; what it did is recorded all the same."""
    script = f"trap 'echo caught > caught.txt; exit 7' {number.name[3:]}; touch up; sleep 30 & wait"
    child = subprocess.Popen(
        [PROGRAM, "record", "--", "sh", "-c", script],
        env=world.env,
        cwd=world.project,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(world.project / "up")
    child.send_signal(number)
    assert child.wait(60) == 7
    with recorded(world) as session:
        session.undo()
    assert list(world.project.iterdir()) == []


def test_a_signal_before_the_command_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the command is started, and is the command's all the same."""

    class Struck(subprocess.Popen[bytes]):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, **named)  # type: ignore[call-overload]
            wait_for(tmp_path / "up")
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("backtrail.exchange.command.subprocess.Popen", Struck)
    script = "trap 'exit 7' TERM; touch up; sleep 30 & wait"
    before = signal.getsignal(signal.SIGTERM)
    with Session.create("memory:", cwd=tmp_path) as session:
        assert record(session, ["sh", "-c", script], str(tmp_path)).exit_code == 7
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_ignored(world: World) -> None:
    """As under `nohup`: the command ignores it as well."""
    script = "touch up; while test ! -e go; do sleep 0.05; done; kill -HUP $$; exit 6"
    child = subprocess.Popen(
        ["nohup", PROGRAM, "record", "--", "sh", "-c", script],
        env=world.env,
        cwd=world.project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(world.project / "up")
    child.send_signal(signal.SIGHUP)
    (world.project / "go").touch()
    assert child.wait(60) == 6


def test_a_command_that_a_signal_ends(world: World) -> None:
    """The code is as a shell reports it."""
    done = world.run("record", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 128 + 9


def test_on_a_terminal(world: World) -> None:
    """The command has the terminal; Ctrl-C is its own, and what it did is recorded."""
    script = "trap 'echo > caught; exit 5' INT; test -t 0 && test -t 1 && touch up; sleep 30 & wait"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(world.project)
        os.execve(PROGRAM, [PROGRAM, "record", "--", "sh", "-c", script], world.env)
    wait_for(world.project / "up")
    os.write(terminal, b"\x03")
    said = b""
    while True:
        try:
            part = os.read(terminal, 1000)
        except OSError:
            break
        if not part:
            break
        said += part
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)
    assert b"recorded as" in said
    with recorded(world) as session:
        session.undo()
    assert list(world.project.iterdir()) == []


def test_killed_with_the_command_running(world: World) -> None:
    """What the command did until then is found at the session's next event."""
    child = subprocess.Popen(
        [PROGRAM, "record", "--", "sh", "-c", "touch up; exec sleep 30"],
        env=world.env,
        cwd=world.project,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(world.project / "up")
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    with recorded(world) as session:
        session.undo()
    assert list(world.project.iterdir()) == []


def test_a_look_sees_what_a_scan_would(tmp_path: Path) -> None:
    """New, changed, moved and removed files, and nothing of what is never captured."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    (tmp_path / "node_modules").mkdir()
    seen = {fingerprint(os.fsencode(tmp_path))}

    def differs() -> bool:
        now = fingerprint(os.fsencode(tmp_path))
        known = now in seen
        seen.add(now)
        return not known

    (tmp_path / "node_modules" / "y").write_text("1")
    os.utime(tmp_path / "node_modules", (1, 1))
    assert not differs()
    (tmp_path / "a" / "x").write_text("22")
    assert differs()
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "z")
    assert differs()
    (tmp_path / "a" / "z").chmod(0o600)
    assert differs()
    shutil.rmtree(tmp_path / "a")
    assert differs()


def wait_for(path: Path) -> None:
    """Until a file is there."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
