"""The command line, run as a person would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import backtrail
from backtrail import NewEvent, SessionInfo, open_store


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from backtrail.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments], capture_output=True, text=True
    )


def test_help_and_version() -> None:
    """Both answer on standard output; no verb is the help."""
    assert "demo" in run("--help").stdout
    assert run().stdout == run("--help").stdout
    assert run("--version").stdout.strip() == backtrail.__version__
    assert run("no-such-verb").returncode == 2


def test_verify_tells_damage_by_its_exit_code(tmp_path: Path) -> None:
    """A sound store is 0, a damaged one 6 and its places, one that cannot be opened 1."""
    url = f"file:{tmp_path / 'store'}"
    with open_store(url) as store:
        store.create(SessionInfo("a"))
        store.append("a", [NewEvent("note", {"n": 1})])
    assert run("verify", url).returncode == 0
    log = tmp_path / "store/sessions/a/messages.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"n":1', b'"n":2'))
    found = run("verify", url)
    assert found.returncode == 6
    assert found.stdout.startswith("a/messages: torn line")
    assert run("verify", "nowhere").returncode == 1
