"""`watch`: events as they come, from other processes."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.cli.stage import CODE, Stage, normal


def watching(stage: Stage, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, "watch", *arguments],
        cwd=stage.project, env=stage.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_watch_follows_until_the_session_ends(worked: Stage) -> None:
    """It begins with the last events, and ends by itself."""
    with watching(worked, "-n", "1", "--json") as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["seq"] == 9
        with worked.session("work", files=False) as s:
            s.append({"role": "user", "content": "And now?"})
            row = json.loads(running.stdout.readline())
            assert row["kind"] == "session_resume"
            assert json.loads(running.stdout.readline())["data"]["message"]["content"] == "And now?"
            s.end()
        assert json.loads(running.stdout.readline())["kind"] == "session_end"
        assert running.stdout.read() == ""
    assert running.returncode == 0


def test_watch_for_people(worked: Stage) -> None:
    """A line for each event, at once."""
    with watching(worked, "work", "-n", "2") as running:
        assert running.stdout is not None
        first = running.stdout.readline()
        assert normal(first[9:]) == "    8 action  bash · exit code 0 · files changed\n"
        running.stdout.readline()
        with worked.session("work", files=False) as s:
            s.end("stopped")
        running.stdout.readline()
        assert normal(running.stdout.readline()[9:]) == "   11 session_end  stopped\n"
    assert running.returncode == 0


def test_watching_a_session_that_is_deleted_ends(worked: Stage) -> None:
    """With what happened, not with a traceback."""
    with watching(worked, "work", "--json") as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.readline()
        worked.run("delete", "work", "--yes")
        assert "Traceback" not in running.stderr.read()
    assert running.returncode == 3
