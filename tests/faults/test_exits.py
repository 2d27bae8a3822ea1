"""However a process ends, nothing it acknowledged is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.faults.workers import STORES, url_of

from backtrail.stores import open_store

BEGIN = """
import os, signal, sys, threading, time
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store
from backtrail.stores.buffered import Buffered

# A shell starts what runs in its background with SIGINT ignored, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
store = open_store({url!r})
store.create(SessionInfo("s"))

def put(count, target=store):
    for n in range(count):
        target.append("s", [NewEvent("test", {{"n": n}}, id=f"e{{n}}")])
        os.write(1, b".")
"""

EXITS = {
    "normal": ("put(300)", 0),
    "closed": ("put(300); store.close()", 0),
    "exception": ("put(300); raise RuntimeError('on purpose')", 1),
    "exception in an append": ("put(300); store.append('s', [NewEvent('x', {'n': object()})])", 1),
    "sys.exit": ("put(300); sys.exit(3)", 3),
    "os._exit": ("put(300); os._exit(4)", 4),
    "abort": ("put(300); os.abort()", -signal.SIGABRT),
    "SIGTERM": ("put(300); os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", -signal.SIGTERM),
    "SIGINT": ("put(300); os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -signal.SIGINT),
    "SIGKILL": ("put(300); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "sys.exit in a thread": (
        "t = threading.Thread(target=lambda: (put(300), sys.exit(5))); t.start(); t.join()",
        0,
    ),
    "os._exit in a thread": (
        "threading.Thread(target=lambda: (put(300), os._exit(6))).start(); time.sleep(60)",
        6,
    ),
    "a daemon thread still writing": (
        "threading.Thread(target=put, args=(10**6,), daemon=True).start(); time.sleep(0.3)",
        0,
    ),
    "an exit hook that writes": ("import atexit; atexit.register(put, 300)", 0),
}

BUFFERED = "buffered = Buffered(store, interval=60, pending=100_000)\n"

DRAINED = {
    "normal": ("put(300, buffered)", 0),
    "closed": ("put(300, buffered); buffered.close()", 0),
    "flushed": ("put(300, buffered); buffered.flush(); os._exit(0)", 0),
    "exception": ("put(300, buffered); raise RuntimeError('on purpose')", 1),
    "sys.exit": ("put(300, buffered); sys.exit(3)", 3),
    "SIGTERM": ("put(300, buffered); os.kill(os.getpid(), 15); time.sleep(9)", -signal.SIGTERM),
}


def run(folder: Path, kind: str, text: str) -> tuple[int, int]:
    """Run a script on a new store: its exit code, and how many appends returned."""
    script = BEGIN.format(url=url_of(kind, folder)) + textwrap.dedent(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, env=environment
    )
    return done.returncode, done.stdout.count(b".")


def stored(folder: Path, kind: str) -> list[int]:
    """The numbers of the events in the store, which must be sound."""
    with open_store(url_of(kind, folder)) as store:
        assert [p for p in store.verify() if p.what != "torn line"] == []
        return [event.data["n"] for event in store.read("s")]


@pytest.mark.parametrize("kind", list(STORES))
@pytest.mark.parametrize("name", EXITS)
def test_exit_loses_nothing_acknowledged(tmp_path: Path, kind: str, name: str) -> None:
    """What `append` returned is in the log, whatever ended the process."""
    text, code = EXITS[name]
    ended, acknowledged = run(tmp_path, kind, text)
    assert ended == code
    assert acknowledged >= 300 or name == "a daemon thread still writing"
    found = stored(tmp_path, kind)
    assert found == list(range(len(found)))
    assert acknowledged <= len(found) <= acknowledged + 1


@pytest.mark.parametrize("kind", list(STORES))
@pytest.mark.parametrize("name", DRAINED)
def test_exit_drains_the_buffer(tmp_path: Path, kind: str, name: str) -> None:
    """A buffer is emptied by a normal end, an exception, SIGTERM, `flush` and `close`."""
    text, code = DRAINED[name]
    ended, queued = run(tmp_path, kind, BUFFERED + text)
    assert ended == code
    assert queued == 300
    assert stored(tmp_path, kind) == list(range(300))


def test_exit_without_a_hook_loses_the_buffer(tmp_path: Path) -> None:
    """The check can fail: `os._exit` runs no hook, so a buffer is lost with the process."""
    assert run(tmp_path, "jsonl", BUFFERED + "put(300, buffered); os._exit(0)") == (0, 300)
    assert len(stored(tmp_path, "jsonl")) < 300
