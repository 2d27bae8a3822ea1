"""The SQLite store among processes: several writers, sudden death, and forks."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import apsw
import pytest

from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store

START = """
import os, sys, threading, time
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store
store = open_store("sqlite:///" + sys.argv[1])
"""


class Script:
    """A process that runs some lines with an open store."""

    def __init__(self, text: str, place: Path, *arguments: str) -> None:
        lines = START + textwrap.dedent(text)
        self.process = subprocess.Popen(
            [sys.executable, "-c", lines, f"{place}/x.db", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, limit: float = 60) -> list[str]:
        """What else it prints until it, and all that have its output, are gone."""
        return self.process.communicate(timeout=limit)[0].split()


def test_processes_that_append_share_one_order(tmp_path: Path) -> None:
    """No number twice, none missing, and each process's events in its order."""
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        store.create(SessionInfo(id="s"))
        writers = [
            Script(
                """
                for n in range(150):
                    store.append("s", [NewEvent("note", {"by": sys.argv[2], "n": n})] * (1 + n % 3))
                """,
                tmp_path,
                name,
            )
            for name in ("one", "two", "three")
        ]
        for writer in writers:
            writer.end()
            assert writer.process.returncode == 0
        events = list(store.read("s"))
        assert [event.seq for event in events] == list(range(1, 3 * 300 + 1))
        for name in ("one", "two", "three"):
            mine = [event.data["n"] for event in events if event.data["by"] == name]
            assert mine == sorted(mine) and len(mine) == 300
        assert store.info("s").head == 900
        assert store.verify() == []


@pytest.mark.parametrize("pause", [0.05, 0.15, 0.3])
def test_kill_of_a_writer_loses_nothing_acknowledged(tmp_path: Path, pause: float) -> None:
    """After SIGKILL in the middle of appends the store opens, is whole, and goes on."""
    writer = Script(
        """
        store.create(SessionInfo(id="s"))
        while True:
            seq = store.append("s", [NewEvent("note", {"pad": "x" * 3000})] * 3)[-1].seq
            os.write(1, b"%d\\n" % seq)
        """,
        tmp_path,
    )
    writer.line()
    time.sleep(pause)
    writer.process.send_signal(signal.SIGKILL)
    acknowledged = [int(line) for line in writer.end()]
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        seqs = [event.seq for event in store.read("s")]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) >= acknowledged[-1] and len(seqs) % 3 == 0
        assert store.verify() == []
        assert store.append("s", [NewEvent("note", {})])[0].seq == len(seqs) + 1


def test_fork_of_a_busy_process_is_safe(tmp_path: Path) -> None:
    """Children of a process whose threads read and write append at once and all get through."""
    parent = Script(
        """
        store.create(SessionInfo(id="s"))
        done = threading.Event()
        def write():
            while not done.is_set():
                store.append("s", [NewEvent("note", {"by": "parent"})])
        def read():
            while not done.is_set():
                list(store.read("s", limit=500))
        threads = [threading.Thread(target=work) for work in (write, read)]
        for thread in threads:
            thread.start()
        for n in range(30):
            child = os.fork()
            if child == 0:
                store.append("s", [NewEvent("note", {"by": "child", "n": n})])
                assert store.tail("s", 1)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        done.set()
        for thread in threads:
            thread.join()
        print("well")
        """,
        tmp_path,
    )
    assert parent.end() == ["well"]
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        events = list(store.read("s"))
        assert [event.data["n"] for event in events if event.data["by"] == "child"] == list(
            range(30)
        )
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert store.verify() == []


@pytest.mark.parametrize("step", ["prepare", "close"])
def test_fork_waits_for_a_thread_that_opens_or_closes(tmp_path: Path, step: str) -> None:
    """SQLite's own locks are free in the child: no thread was within it at that moment."""
    parent = Script(
        f"""
        from backtrail.stores.disk import database as sqlite_connections
        inside = threading.Event()
        seen = []
        def slow(real):
            def call(*given):
                inside.set()
                time.sleep(0.3)
                try:
                    return real(*given)
                finally:
                    inside.clear()
                    seen.append(1)
            return call
        if {step!r} == "prepare":
            sqlite_connections.prepare = slow(sqlite_connections.prepare)
        else:
            database = sqlite_connections.Database
            database._let_go = slow(database._let_go)
        def work():
            open_store("sqlite:///" + sys.argv[1] + ".other").close()
        thread = threading.Thread(target=work)
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            os._exit(1 if inside.is_set() else 0)
        assert os.waitpid(child, 0)[1] == 0 and seen
        thread.join()
        print("well")
        """,
        tmp_path,
    )
    assert parent.end() == ["well"]


def test_fork_leaves_a_closed_store_closed(tmp_path: Path) -> None:
    """A holder of the object gets no descriptor back, in neither process."""
    parent = Script(
        """
        store.create(SessionInfo(id="s"))
        store.close()
        def opened():
            found = (os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                     if os.path.exists(f"/proc/self/fd/{n}"))
            return [name for name in found if "x.db" in name]
        child = os.fork()
        if child == 0:
            os._exit(len(opened()))
        assert os.waitpid(child, 0)[1] == 0 and opened() == [], opened()
        print("well")
        """,
        tmp_path,
    )
    assert parent.end() == ["well"]


def test_fork_gives_the_child_locks_of_its_own(tmp_path: Path) -> None:
    """When the parent is gone, others still see that the child uses the database.

    A foreign program that closes the database last removes the -wal file. Were the child's
    lock only a memory of the parent's, it would be removed under the child.
    """
    parent = Script(
        """
        store.create(SessionInfo(id="s"))
        store.append("s", [NewEvent("note", {})])
        if os.fork():
            os._exit(0)
        store.append("s", [NewEvent("note", {})])
        os.write(1, b"ready\\n")
        sys.stdin.readline()
        store.append("s", [NewEvent("note", {})])
        store.close()
        os.write(1, b"done\\n")
        """,
        tmp_path,
    )
    assert parent.line() == "ready"
    parent.process.wait(10)
    foreign = apsw.Connection(f"{tmp_path}/x.db")
    assert foreign.execute("SELECT count(*) FROM events").get == 2
    foreign.close()
    assert (tmp_path / "x.db-wal").exists()
    assert parent.process.stdin is not None
    parent.process.stdin.write("\n")
    parent.process.stdin.flush()
    assert parent.end() == ["done"]
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        assert store.info("s").head == 3
