"""A store across a network, on the command line: who may use it, and what is never shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from backtrail.stores import open_store
from tests import postgres


def run(
    tmp_path: Path, *words: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command line, with a home of its own."""
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("CLAUDE", "CODEX"))},
        "HOME": str(tmp_path / "home"),
        **environment,
    }
    env.pop("XDG_DATA_HOME", None)
    env.pop("XDG_STATE_HOME", None)
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "work").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "backtrail", *words],
        env=env, cwd=tmp_path / "work", input=stdin, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


SECRET = "postgresql://user:hunter2@127.0.0.1:1/app?sslpassword=hunter2&schema=x"


def test_record_refuses_a_store_across_a_network(tmp_path: Path) -> None:
    """Nothing is run, and the reason is said without the password."""
    done = run(tmp_path, "record", "--", "touch", "made", BACKTRAIL_STORE=SECRET)
    assert done.returncode == 1
    assert "must not wait for" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert not (tmp_path / "work" / "made").exists()


def test_hooks_refuse_a_store_across_a_network(tmp_path: Path) -> None:
    """The agent goes on at once; the miss says why."""
    event = {
        "hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": str(tmp_path / "work"),
        "prompt": "hi",
    }  # fmt: skip
    done = run(tmp_path, "hook", "claude-code", stdin=json.dumps(event), BACKTRAIL_STORE=SECRET)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    noted = "".join(
        path.read_text(errors="replace") for path in (tmp_path / "home").rglob("*")
        if path.is_file()
    )  # fmt: skip
    state = Path(os.environ["BACKTRAIL_STATE"])
    noted += "".join(p.read_text(errors="replace") for p in state.rglob("*") if p.is_file())
    assert "hooks write a local store" in noted
    assert "hunter2" not in noted


def test_config_shows_no_password(tmp_path: Path) -> None:
    """Neither as a table nor as JSON."""
    for words in (("config", "show"), ("config", "show", "--json")):
        done = run(tmp_path, *words, BACKTRAIL_STORE=SECRET)
        assert done.returncode == 0, done.stderr
        assert "hunter2" not in done.stdout + done.stderr
        assert "user:***@127.0.0.1" in done.stdout


def test_a_store_is_upgraded_by_a_role_that_may(tmp_path: Path) -> None:
    """A new one is made; one that is up to date stays so."""
    url = postgres.url_for(tmp_path)
    first = run(tmp_path, "store", "upgrade", url)
    assert (first.returncode, "from nothing to version 1" in first.stdout) == (0, True), first
    again = run(tmp_path, "store", "upgrade", url, "--json")
    assert json.loads(again.stdout)["before"] == 1
    with open_store(url, create=False) as store:
        assert store.sessions() == []
    assert run(tmp_path, "store", "upgrade", "file:x").returncode == 2


def test_the_command_line_reads_a_shared_store(tmp_path: Path) -> None:
    """Lists, verifies, and says what is wrong with a server that does not answer."""
    from backtrail.events import NewEvent, SessionInfo

    url = postgres.url_for(tmp_path)
    with open_store(url) as store:
        store.create(SessionInfo("abc", title="a title"))
        store.append("abc", [NewEvent("user_message", {"message": {"content": "fox"}})])
    assert "a title" in run(tmp_path, "ls", "--all", "--store", url).stdout
    assert run(tmp_path, "verify", "--store", url).returncode == 0
    assert "fox" in run(tmp_path, "show", "abc", "--store", url).stdout
    purged = run(tmp_path, "purge", "--text", "fox", "--yes", "--store", url)
    assert purged.returncode == 0, purged.stderr
    assert "beyond reach: the server's log" in purged.stderr
    assert "fox" not in run(tmp_path, "show", "abc", "--store", url).stdout
    schema = postgres.schema_for(tmp_path)
    with psycopg.connect(postgres.server().url, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.events SET data = '{{}}' WHERE seq = 1")
    damaged = run(tmp_path, "verify", "--store", url)
    assert damaged.returncode == 6
    assert "check sum is wrong" in damaged.stdout
    absent = run(tmp_path, "ls", "--store", SECRET.replace("&schema=x", ""))
    assert absent.returncode == 1
    assert "is the server running" in absent.stderr
    assert "hunter2" not in absent.stderr


@pytest.mark.parametrize("given", ["postgresql://h/d?schema=A-b", "postgresql://h/d?pool=0"])
def test_a_url_that_makes_no_sense_is_refused(given: str) -> None:
    """Our own words in it are checked."""
    with pytest.raises(ValueError, match=r"schema|pool"):
        open_store(given)
