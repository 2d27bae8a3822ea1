"""`backtrail import`: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from backtrail import Session, open_store
from backtrail.cli import main

from .test_codex import ID, LINES
from .transcripts import SAMPLES, Script, rollout

Json = Any
FIRST = "aaaaaaaa-0000-4000-8000-000000000001"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store, a home and a folder of this test alone."""
    monkeypatch.setenv("BACKTRAIL_STORE", f"sqlite:///{tmp_path}/store.db")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.delenv("CODEX_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Json:
    """What the verb says as JSON."""
    assert main(["import", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_sessions_where_the_agent_keeps_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Listed, imported, and not imported again."""
    shutil.copytree(SAMPLES / "claude-code", place / "home" / ".claude")
    listed = told(capsys, "claude-code", "--dry-run")
    assert listed["dry_run"] is True and len(listed["sessions"]) == 2
    with open_store() as store:
        assert store.sessions() == []
    done = told(capsys, "claude-code")
    assert {row["created"] for row in done["sessions"]} == {True}
    assert FIRST in {row["session_id"] for row in done["sessions"]}
    again = told(capsys, "claude-code")
    assert {row["events"] for row in again["sessions"]} == {0}


def test_what_people_see(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table on stdout, the summary and what was wrong on stderr, nothing raw."""
    script = Script(session=FIRST)
    script.user("\x1b[31mhostile\u202e prompt")
    script.user("lost", parent="nobody")
    assert main(["import", "claude-code", str(script.write(place))]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "SESSION                               IMPORTED       ABOUT",
        f"{FIRST}  new, 2 events  \\x1b[31mhostile\\u202e prompt",
    ]
    assert "parent that is not there" in err
    assert err.splitlines()[-1] == "1 session imported: 1 new"
    assert main(["import", "claude-code", str(script.write(place))]) == 0
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-1]) == ("", "1 session imported: 1 unchanged")


def test_rollouts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From Codex's home."""
    rollout(place / "home" / ".codex", LINES, ID)
    (row,) = told(capsys, "codex")["sessions"]
    assert (row["session_id"], row["prompt"]) == (ID, "list files")


def test_messages_from_a_file_and_from_standard_input(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a title, in this folder, at the time of the file."""
    messages = [{"role": "user", "content": "hi"}]
    (place / "chat.json").write_text(json.dumps(messages))
    (row,) = told(capsys, "messages", "chat.json", "--title", "A chat")["sessions"]
    with Session.resume(None, row["session_id"], files=False) as s:
        assert s.messages() == messages
        assert (s.info().title, s.info().cwd) == ("A chat", str(place))
    given = io.TextIOWrapper(io.BytesIO(json.dumps(messages).encode()))
    monkeypatch.setattr("sys.stdin", given)
    (again,) = told(capsys, "messages", "-", "--format", "openai")["sessions"]
    assert again["session_id"] == row["session_id"] and not again["created"]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["claude-code", "nowhere"], 3, "there is no nowhere"),
        (["claude-code"], 3, "there is no"),
        (["codex", "."], 3, "no session of Codex"),
        (["nonsense"], 3, "none of claude-code, codex, messages"),
        (["nonsense", "x"], 2, "none of claude-code, codex, messages"),
        (["messages"], 2, "needs a file"),
        (["messages", "nowhere.json"], 3, "no file"),
        (["codex", "--title", "x"], 2, "--title"),
        (["codex", "--as", "x"], 2, "--as"),
        (["messages", "bad.json"], 1, "not JSON"),
        ([], 2, "SOURCE"),
    ],
)
def test_mistakes_are_told(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, why: str
) -> None:
    """With the right exit code, for people and for scripts."""
    (place / "bad.json").write_text("{")
    error = told(capsys, *arguments, code=code)["error"]
    assert why in error["message"]


def test_one_bad_file_does_not_stop_the_others(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told, and the exit code says so."""
    good, bad = Script(), Script()
    good.user("fine")
    good.write(place / "c")
    bad.write(place / "c").chmod(0)
    done = told(capsys, "claude-code", "c", code=0 if _is_root() else 1)["sessions"]
    by_id = {row["native_id"]: row for row in done}
    assert by_id[good.session]["created"] and not by_id[good.session]["error"]
    assert _is_root() or by_id[bad.session]["error"]


def _is_root() -> bool:
    import os

    return os.geteuid() == 0
