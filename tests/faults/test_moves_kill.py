"""A rewind that moves what is not captured, killed anywhere: it is done or undone.

A repository, packages, a secret and a pipe were moved by a call, a pipe changed places with a
folder that has packages in it, and a file grew too large.
Whenever the rewind dies, the next use of the workspace has every byte of them in the old
place or in the new one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from tests.faults.calls import REAL, killing
from tests.faults.kill import Child, forked, over
from tests.faults.restore_calls import RestoreCalls, without_renameat2
from tests.faults.variants import Broken, sound
from tests.files.test_moved import snapshot

from backtrail import Session
from backtrail.stores.disk import sync

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

WAYS = {"renameat2": sound, "fallback": without_renameat2}

AGENT = """
mv .git off; mv node_modules nm; mv src lab; mv a.key b.txt; mv pipe fifo
rm -r lib; mv off lib; rm .venv; mkdir .venv; echo x > .venv/x
truncate -s 20971521 grown; echo x > README
mv data t; mv other data; mv t other
"""


class Scene:
    """A project in which a call moved everything; made anew for each kill."""

    def __init__(self, place: Path, broken: Broken) -> None:
        self.broken = broken
        self.url = f"sqlite:///{place}/store.db"
        self.work = work = place / "work"
        for folder in (".git", "node_modules/deep", "src/node_modules", "lib/in",
                       "data/node_modules"):  # fmt: skip
            (work / folder).mkdir(parents=True)
            (work / folder / "some").write_text(f"in {folder}\n")
        for name in ("README", "grown", "a.key", "src/main.py"):
            (work / name).write_text(f"{name}\n")
        (work / ".backtrailignore").write_text("*.key\n")
        (work / ".venv").symlink_to("README")
        os.mkfifo(work / "pipe")
        os.mkfifo(work / "other")
        with Session.create(self.url, "s", cwd=work) as session:
            session.append({"role": "user", "content": "first"})
            self.before = snapshot(work)
            with session.tool("bash"):
                subprocess.run(AGENT, shell=True, check=True, cwd=work)
            session.append({"role": "user", "content": "second"})
        self.after = snapshot(work)

    def rewind(self, calls: RestoreCalls, *, use: bool = False) -> Child:
        """Go back to the first message in a child (or only use the session), perhaps struck."""

        def body(pipe: int) -> None:
            sync.DELAY = 60.0
            with Session.open(self.url, "s", cwd=self.work) as session:
                with calls:
                    if use:
                        session.append({"role": "user", "content": "later"})
                    else:
                        session.rewind(2)
                reported = {
                    "calls": calls.made,
                    "kinds": [event.kind for event in session.events()],
                }
                REAL["write"](pipe, json.dumps(reported).encode())

        with self.broken():
            return forked(body)


@pytest.mark.parametrize("way", list(WAYS))
def test_a_killed_move_is_done_or_undone(fast: Path, way: str) -> None:
    """Every byte, of what is captured and of what is not."""
    plain = Scene(fast / "plain", WAYS[way])
    reported = json.loads(plain.rewind(RestoreCalls()).reported)
    gone = snapshot(plain.work)
    assert {path: gone.get(path) for path in plain.before} == plain.before
    calls: list[str] = reported["calls"]
    loud = ("rename", "renameat2", "rmdir", "mkdir", "link", "unlink", "drop_journal")
    points = [at for at, name in enumerate(calls, 1) if name in loud]
    states = []
    for at in range(0, len(points), max(1, len(points) // 14)):
        point = points[at]
        scene = Scene(fast / str(point), WAYS[way])
        where = f"killed at {point}, {calls[point - 1]}"
        child = scene.rewind(RestoreCalls(killing(random.Random(point)), point))
        done = over(child, point, len(calls), where)
        if at % 3 == 2:
            second = random.Random(point).randint(1, 40)
            scene.rewind(RestoreCalls(killing(random.Random(1)), second), use=True)
        child = scene.rewind(RestoreCalls(), use=True)
        assert not child.reported.startswith(b"!"), child.reported.decode()
        reported = json.loads(child.reported)
        now = snapshot(scene.work)
        states.append("rewound" in reported["kinds"])
        assert states[-1] or not done, where
        assert now == (gone if states[-1] else scene.after), where
    assert True in states and False in states
