"""Running commands, and ending all that they began."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from backtrail.agent.tools import Context, ToolFailed
from backtrail.agent.tools import bash as shell_module
from tests.agent.tooling import context, run


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    """A workspace."""
    return context(tmp_path)


def test_a_command_gives_what_it_printed(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both streams in order, and its exit code; in the directory, with the environment."""
    monkeypatch.setenv("GREETING", "hello")
    notified = run(ctx, "bash", command="echo $GREETING; echo err >&2; pwd; exit 3")
    assert notified == f"hello\nerr\n{ctx.cwd}\n(exit code 3)"
    assert run(ctx, "bash", command="true") == "(exit code 0)"
    assert run(ctx, "bash", command="kill -9 $$") == "(ended by SIGKILL)"
    assert run(ctx, "bash", command="printf '\\xff\\xfe'") == "\ufffd\ufffd\n(exit code 0)"


def test_there_is_no_input(ctx: Context) -> None:
    """A command that reads ends at once."""
    assert run(ctx, "bash", command="cat; read x; echo $?") == "1\n(exit code 0)"


def test_too_much_output_is_cut_in_the_middle(ctx: Context) -> None:
    """Its start and its end are kept."""
    notified = run(ctx, "bash", command="seq 1 200000")
    assert len(notified) < ctx.output_limit + 100
    assert notified.startswith("1\n2\n3\n")
    assert notified.endswith("199999\n200000\n(exit code 0)")
    size = sum(len(str(n)) + 1 for n in range(1, 200_001))
    assert f"… {size - ctx.output_limit:,} bytes left out …" in notified


LATE = "(trap '' TERM; sleep {after}; echo late > {name}) &"
"""A grandchild that will write a file, and does not listen."""


def wait_gone(pids: list[int]) -> None:
    """Wait until processes are gone, or zombies that no parent reaps."""
    deadline = time.monotonic() + 5
    for pid in pids:
        while time.monotonic() < deadline:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                break
            if state == "Z":
                break
            time.sleep(0.01)
        else:
            raise AssertionError(f"{pid} is alive")


def test_a_timeout_ends_the_whole_group(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grandchildren too, and those that ignore SIGTERM; what was printed is returned."""
    monkeypatch.setattr(shell_module, "GRACE", 0.2)
    command = f"echo begun; {LATE.format(after=1.2, name='late')} sleep 60"
    began = time.monotonic()
    with pytest.raises(ToolFailed, match=r"begun\n\(timed out after 0.3 s"):
        run(ctx, "bash", command=command, timeout=0.3)
    assert time.monotonic() - began < 1.1
    time.sleep(1.2)
    assert not (ctx.cwd / "late").exists()


def test_the_grandchild_would_have_written(ctx: Context) -> None:
    """The test above can fail: left alone, the file appears."""
    subprocess.run(["bash", "-c", f"{LATE.format(after=0.1, name='late')} wait"], cwd=ctx.cwd)
    assert (ctx.cwd / "late").exists()


def test_a_polite_process_may_clean_up(ctx: Context) -> None:
    """SIGTERM comes first."""
    command = "trap 'echo cleaned; exit' TERM; echo ready; while true; do sleep 0.01; done"
    with pytest.raises(ToolFailed, match=r"ready\n(?s:.*)cleaned\n\(timed out"):
        run(ctx, "bash", command=command, timeout=0.5)


@pytest.mark.parametrize("starting", ["set -m; {} &", "timeout 60 {} &", "({} &) &", "exec {} &"])
def test_groups_within_are_found(ctx: Context, starting: str) -> None:
    """Job control and `timeout` make groups of their own; they end with the command."""
    begin = starting.format("bash -c 'echo $$ >> pids; sleep 60; echo > late'")
    run(ctx, "bash", command=f"{begin}\nwhile [ ! -s pids ]; do sleep 0.01; done")
    wait_gone([int(pid) for pid in (ctx.cwd / "pids").read_text().split()])
    assert not (ctx.cwd / "late").exists()


def test_what_is_left_in_the_background_ends(ctx: Context) -> None:
    """It does not hold up the answer, though it has the output open."""
    began = time.monotonic()
    assert run(ctx, "bash", command="sleep 60 & echo $! > pid; echo done") == "done\n(exit code 0)"
    assert time.monotonic() - began < 2
    wait_gone([int((ctx.cwd / "pid").read_text())])


def test_a_command_can_be_cancelled(ctx: Context) -> None:
    """From another thread, at once, with all it started."""
    stop = threading.Event()
    ctx.cancelled = stop.is_set
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    with pytest.raises(ToolFailed, match="cancelled"):
        run(ctx, "bash", command="sleep 60 & echo $! > pid; sleep 60")
    assert time.monotonic() - began < 2
    wait_gone([int((ctx.cwd / "pid").read_text())])


def test_a_command_that_closes_its_output_goes_on(ctx: Context) -> None:
    """It is waited for in silence."""
    notified = run(ctx, "bash", command="exec >&- 2>&-; sleep 0.3; touch here; exit 4")
    assert notified == "(exit code 4)"
    assert (ctx.cwd / "here").exists()


def test_ctrl_c_ends_the_command(tmp_path: Path) -> None:
    """An interrupted host leaves nothing behind."""
    code = (
        "from pathlib import Path\n"
        "from backtrail.agent.tools import BUILT_IN, Context\n"
        f"cwd = Path({str(tmp_path)!r})\n"
        "ctx = Context(cwd, (cwd,), lambda: False)\n"
        "BUILT_IN['bash'].run(ctx, {'command': 'sleep 60 & echo $! > pid; mv pid ready; sleep 60'})"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    host.send_signal(signal.SIGINT)
    _, notified = host.communicate(timeout=10)
    assert b"KeyboardInterrupt" in notified
    wait_gone([int((tmp_path / "ready").read_text())])


def test_a_command_that_cannot_start_says_so(ctx: Context) -> None:
    """A missing directory, a NUL."""
    with pytest.raises(ToolFailed, match="NUL"):
        run(ctx, "bash", command="echo \0")
    ctx.cwd = ctx.cwd / "missing"
    with pytest.raises(ToolFailed, match="could not be started"):
        run(ctx, "bash", command="ls")


def test_nothing_is_left_open(ctx: Context) -> None:
    """Neither descriptors nor zombies."""
    run(ctx, "bash", command="true")
    before, others = len(os.listdir("/dev/fd")), children()
    for _ in range(5):
        run(ctx, "bash", command="echo x")
        run(ctx, "glob", pattern="**")
    assert len(os.listdir("/dev/fd")) == before
    assert children() == others


def children() -> set[str]:
    """The processes that this one has begun and not waited for, also what other tests share."""
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for found in lists for pid in found.read_text().split()}


def test_members_without_proc(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no /proc, `ps` says the same."""
    monkeypatch.setattr(shell_module, "_PROC", Path("/nonexistent"))
    began = time.monotonic()
    run(ctx, "bash", command="timeout 60 sleep 60 & echo $! > pid")
    assert time.monotonic() - began < 5
    wait_gone([int((ctx.cwd / "pid").read_text())])
