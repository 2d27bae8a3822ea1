"""The tool that runs a command, and ends all that the command began.

A command has a session of its own (the operating system's), so that whatever it starts can
be found: its group, and groups that its children made, as `timeout` does. Its leader is
left unreaped until all are gone, so that no other process can get its number meanwhile.
"""

from __future__ import annotations

import _thread
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

from .tool import Context, ToolFailed, tool_from

GRACE = 2.0
"""Seconds between asking a process to end and ending it."""

_TICK = 0.05
_LEFT_OVER = 0.5
_CHUNK = 1 << 16
_PROC = Path("/proc")


class Output:
    """What a command printed: its start and its end, if all is too much."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, part: bytes) -> None:
        """Take what was printed next."""
        room = self._half - len(self._head)
        self._head += part[:room]
        self._tail += part[room:] if room > 0 else part
        excess = len(self._tail) - self._half
        if excess > _CHUNK:
            self._cut(excess)

    def _cut(self, excess: int) -> None:
        del self._tail[:excess]
        self._dropped += excess

    def text(self) -> str:
        """All of it, or its start and end with a note between them."""
        excess = len(self._tail) - self._half
        if excess > 0:
            self._cut(excess)
        if not self._dropped:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        note = f"\n… {self._dropped:,} bytes left out …\n"
        head, tail = (bytes(p).decode("utf-8", "replace") for p in (self._head, self._tail))
        return head + note + tail


def bash(ctx: Context, command: str, timeout: float | None = None) -> str:
    """Run a command in a shell, in the working directory. Each has a shell of its own.

    There is no input to read from. What is still running in the background when the command
    ends is ended, too.

    Args:
        command: The command line.
        timeout: Seconds after which it is ended, if less than the usual.
    """
    if "\0" in command:
        raise ToolFailed("a command cannot hold a NUL byte")
    limit = ctx.timeout if timeout is None else min(timeout, ctx.timeout)
    output = Output(ctx.output_limit)
    begun: list[subprocess.Popen[bytes]] = []
    code = 0
    try:
        _begin(ctx, command, begun)
        stopped = _follow(begun[0], output, ctx, time.monotonic() + limit)
    finally:
        # Interrupted or not, nothing is left behind.
        if begun:
            code = _end(begun[0], output)
    text = output.text()
    text += "\n" if text and not text.endswith("\n") else ""
    if stopped == "cancelled":
        raise ToolFailed(f"{text}(cancelled: the command and all it started were ended)")
    if stopped == "timeout":
        raise ToolFailed(f"{text}(timed out after {limit:g} s: it and all it started were ended)")
    how = f"ended by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
    return f"{text}({how})"


def _begin(ctx: Context, command: str, begun: list[subprocess.Popen[bytes]]) -> None:
    """Start a command; it is in `begun` even if this is interrupted.

    Ctrl-C strikes the main thread, also in the middle of making a process, which no code
    would know then. So it is made in another one.
    """
    failed: list[Exception] = []
    over = _thread.allocate_lock()
    over.acquire()

    def start() -> None:
        try:
            begun.append(_started(ctx, command))
        except (OSError, ValueError) as error:
            failed.append(error)
        finally:
            over.release()

    try:
        _thread.start_new_thread(start, ())
        over.acquire()
    except RuntimeError as error:
        failed.append(error)
    except BaseException:
        over.acquire(timeout=5)
        raise
    if failed:
        raise ToolFailed(f"the command could not be started: {failed[0]}") from failed[0]


def _started(ctx: Context, command: str) -> subprocess.Popen[bytes]:
    shell = shutil.which("bash") or "/bin/sh"
    return subprocess.Popen(
        [shell, "-c", command],
        cwd=ctx.cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
    )


def _follow(process: subprocess.Popen[bytes], output: Output, ctx: Context, deadline: float) -> str:
    """Read along until the command ends; why it must be ended, if it must."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    is_open, nap = True, 0.0002
    while not _has_ended(process):
        if ctx.cancelled():
            return "cancelled"
        left = deadline - time.monotonic()
        if left <= 0:
            return "timeout"
        wait = min(left, _TICK)
        if is_open and poll.poll(wait * 1000):
            is_open = _take(fd, output)
        elif not is_open:
            # It printed its last, and goes now or works on in silence.
            time.sleep(min(wait, nap))
            nap *= 2
    return ""


def _take(fd: int, output: Output) -> bool:
    """Read what is there; False at the end."""
    part = os.read(fd, _CHUNK)
    output.add(part)
    return bool(part)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the shell has ended; where the system shows that, it is not reaped yet."""
    if hasattr(os, "waitid"):
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, process.pid, how) is not None
        except ChildProcessError:
            return True
    return process.poll() is not None


def _end(process: subprocess.Popen[bytes], output: Output) -> int:
    """End all that is left of a command, read what it still printed, and reap it."""
    try:
        alive = _members(process.pid)
        if alive:
            grace = _LEFT_OVER if _has_ended(process) else GRACE
            _send(process.pid, alive, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while (alive := _members(process.pid)) and time.monotonic() < deadline:
                _drain(process, output)
                time.sleep(0.01)
        for _ in range(100):
            if not alive:
                break
            _send(process.pid, alive, signal.SIGKILL)
            time.sleep(0.01)
            alive = _members(process.pid)
        _drain(process, output)
    except BaseException:
        _send(process.pid, _members(process.pid), signal.SIGKILL)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
        code = process.wait()
    return code


def _drain(process: subprocess.Popen[bytes], output: Output) -> None:
    """Take what is in the pipe, without waiting for more."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    for _ in range(1000):
        if not poll.poll(0) or not _take(fd, output):
            return


def _send(leader: int, alive: list[int], number: signal.Signals) -> None:
    """Send a signal to the group, then to each process with a group of its own."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        # No process is left in it, or only what the shell's leader left as a zombie.
        pass
    for pid in alive:
        try:
            if os.getsid(pid) == leader and os.getpgid(pid) != leader:
                os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _members(session: int) -> list[int]:
    """The living processes of a session of the operating system."""
    found = []
    for pid, state in _processes():
        try:
            if os.getsid(pid) == session and (state or _state(pid)) not in ("Z", "X"):
                found.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def _processes() -> list[tuple[int, str]]:
    """Every process, with its state where that costs nothing."""
    if (_PROC / "self" / "stat").exists():
        return [(int(name), "") for name in os.listdir(_PROC) if name.isdigit()]
    listed = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True)
    return [(int(pid), state[:1]) for pid, state, *_ in map(str.split, listed.stdout.splitlines())]


def _state(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "X"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


BASH = tool_from(bash, kind="run", subject="command")
