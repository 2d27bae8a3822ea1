"""`backtrail ui`: where it runs, once for each store, for as long as it is needed."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .stage import CODE, Ran, Stage

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]{43,})\n")


@contextmanager
def ui(stage: Stage, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A viewer in a process of its own, and the first line that it printed."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE, "ui", "--no-browser", *arguments], cwd=stage.project,
        env=stage.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def home(address: str, token: str | None = None) -> int:
    """The status of a request for the list."""
    found = urlsplit(address.strip())
    connection = http.client.HTTPConnection(found.hostname or "", found.port, timeout=20)
    try:
        given = found.fragment.removeprefix("token=") if token is None else token
        connection.request("GET", "/api/home", headers={"Authorization": f"Bearer {given}"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_first_line_is_the_address(worked: Stage) -> None:
    """With a token of 256 bits, which it wants; on the loopback only."""
    with ui(worked) as (process, line):
        assert ADDRESS.fullmatch(line), line
        assert (home(line), home(line, "x")) == (200, 401)
        port = ADDRESS.fullmatch(line)
        assert port is not None
        table = Path("/proc/net/tcp").read_text() if Path("/proc/net/tcp").exists() else ""
        listening = [row.split()[1] for row in table.splitlines()[1:] if row.split()[3] == "0A"]
        mine = [one for one in listening if one.endswith(f":{int(port[1]):04X}")]
        assert not table or mine == [f"0100007F:{int(port[1]):04X}"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)


def test_a_second_call_leads_to_the_first(worked: Stage, state: Path) -> None:
    """Which it finds by a file that only this user may read; a kill leaves none in the way."""
    with ui(worked) as (_, line):
        again = worked.run("ui", "--no-browser")
        assert (again.code, again.out) == (0, line)
        assert "runs already" in again.err
        assert "not read-only" in worked.run("ui", "--no-browser", "--read-only").err
        (place,) = (state / "ui").iterdir()
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(place.parent).st_mode) == 0o700
        as_json: Ran = worked.run("ui", "--json")
        assert json.loads(as_json.out) == {"url": line.strip(), "read_only": False, "new": False}
    with ui(worked) as (_, other):
        assert other != line
        assert home(other) == 200


def test_two_stores_have_two_viewers(worked: Stage) -> None:
    """Each by its own port and token."""
    other = f"sqlite:///{worked.folder}/other.db"
    made = worked.run("record", "--store", other, "--", "true")
    assert made.code == 0, made.err
    with ui(worked) as (_, one), ui(worked, "--store", other) as (_, two):
        assert urlsplit(one).port != urlsplit(two).port
        token = urlsplit(one.strip()).fragment.removeprefix("token=")
        assert home(two, token) == 401


def test_it_stops_when_nobody_looks(worked: Stage) -> None:
    """After as long as was said, and says how that is written."""
    with ui(worked, "--idle", "1s") as (process, line):
        assert home(line) == 200
        assert process.wait(20) == 0
    wrong = worked.run("ui", "--no-browser", "--idle", "soon")
    assert (wrong.code, "12h" in wrong.err) == (2, True)


def test_a_port_that_is_taken_is_named(worked: Stage) -> None:
    """And one that is given is had."""
    other = f"sqlite:///{worked.folder}/other.db"
    assert worked.run("record", "--store", other, "--", "true").code == 0
    with ui(worked) as (_, line):
        port = str(urlsplit(line).port)
        taken = worked.run("ui", "--no-browser", "--port", port, "--store", other)
        assert taken.code == 1
        assert f"port {port}" in taken.err


@pytest.mark.parametrize("lacking", ["starlette", "uvicorn"])
def test_a_missing_extra_names_the_line_that_installs_it(
    worked: Stage, tmp_path: Path, lacking: str
) -> None:
    """Before anything is opened."""
    code = (
        "import importlib.util, sys\nold = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda n, *a: None if n == {lacking!r} else old(n, *a)\n"
        "from backtrail.cli import main; sys.exit(main(['ui', '--no-browser']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=worked.project, env=worked.environment(),
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert lacking in done.stderr and "pip install 'starlette>=" in done.stderr
    assert "backtrail[" not in done.stderr  # no index has it, or somebody else's
    assert "Traceback" not in done.stderr
