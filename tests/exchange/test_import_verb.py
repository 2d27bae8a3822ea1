"""`backtrail import`: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from backtrail import Session, open_store
from backtrail.cli import main
from backtrail.exchange.bundle import write_bundle
from backtrail.exchange.foreign import find, import_found

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


def reported(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Json:
    """What the verb says as JSON."""
    assert main(["import", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_sessions_where_the_agent_keeps_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Listed, imported, and not imported again."""
    shutil.copytree(SAMPLES / "claude-code", place / "home" / ".claude")
    listed = reported(capsys, "claude-code", "--dry-run")
    assert listed["dry_run"] is True and len(listed["sessions"]) == 2
    with open_store() as store:
        assert store.sessions() == []
    done = reported(capsys, "claude-code")
    assert {row["created"] for row in done["sessions"]} == {True}
    assert FIRST in {row["session_id"] for row in done["sessions"]}
    again = reported(capsys, "claude-code")
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
    (row,) = reported(capsys, "codex")["sessions"]
    assert (row["session_id"], row["prompt"]) == (ID, "list files")


def test_messages_from_a_file_and_from_standard_input(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a title, in this folder, at the time of the file."""
    messages = [{"role": "user", "content": "hi"}]
    (place / "chat.json").write_text(json.dumps(messages))
    (row,) = reported(capsys, "messages", "chat.json", "--title", "A chat")["sessions"]
    with Session.resume(None, row["session_id"], files=False) as s:
        assert s.messages() == messages
        assert (s.info().title, s.info().cwd) == ("A chat", str(place))
    given = io.TextIOWrapper(io.BytesIO(json.dumps(messages).encode()))
    monkeypatch.setattr("sys.stdin", given)
    (again,) = reported(capsys, "messages", "-", "--format", "openai")["sessions"]
    assert again["session_id"] == row["session_id"] and not again["created"]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["claude-code", "nowhere"], 3, "/nowhere: give a .jsonl file"),
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
def test_mistakes_are_reported(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, why: str
) -> None:
    """With the right exit code, for people and for scripts."""
    (place / "bad.json").write_text("{")
    error = reported(capsys, *arguments, code=code)["error"]
    assert why in error["message"]


def test_one_bad_file_does_not_stop_the_others(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is printed, cleaned, and the exit code says so."""
    good = Script()
    good.user("fine")
    path = good.write(place / "c")
    bad = os.fsdecode(b"bad\x1b[31m\xff")
    shutil.copy(path, path.with_name(f"{bad}.jsonl"))
    rows = {
        row["native_id"]: row for row in reported(capsys, "claude-code", "c", code=1)["sessions"]
    }
    assert rows[good.session]["created"] and rows[good.session]["error"] is None
    assert [row["error"] is None for row in rows.values()].count(False) == 1
    assert main(["import", "claude-code", "c"]) == 1
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert err.splitlines()[-1] == "2 sessions imported: 1 unchanged, 1 failed"


def test_one_that_vanished_does_not_stop_the_others(place: Path) -> None:
    """Agents clean up while we look."""
    one, two = Script(), Script()
    one.user("gone")
    two.user("there")
    found = [*find("claude-code", one.write(place)), *find("claude-code", two.write(place))]
    found[0].path.unlink()
    with open_store() as store:
        gone, there = import_found(store, found)
        assert gone.error is not None and str(found[0].path) in gone.error
        assert there.error is None and there.created
        assert [info.id for info in store.sessions()] == [two.session]


def test_an_empty_file_is_no_session(place: Path) -> None:
    """Nor is it an error: its agent has only just begun."""
    path = Script().write(place, lines=[])
    path.write_bytes(b"")
    empty = rollout(place, [], ID)
    with open_store() as store:
        results = [*import_found(store, find("claude-code", path)),
                   *import_found(store, find("codex", empty))]  # fmt: skip
        assert [(one.created, one.error) for one in results] == [(False, None)] * 2
        assert store.sessions() == []


def test_a_bundle_is_tried(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is checked as a whole, nothing is made, and what would be refused is refused."""
    with open_store(f"sqlite:///{place}/other.db") as store:
        with Session.create(store, "work", title="Some work") as session:
            session.append({"role": "user", "content": "hello"})
        write_bundle(store, "work", place / "work.bundle")
    told_first = reported(capsys, "work.bundle", "--dry-run")
    (row,) = told_first["sessions"]
    assert (told_first["dry_run"], row["session"], row["created"]) == (True, "work", True)
    assert row["events"] == 2
    with open_store() as store:
        assert store.sessions() == []
    assert main(["import", "work.bundle", "--dry-run", "--as", "mine"]) == 0
    said = capsys.readouterr()
    assert said.out == "mine\n"
    assert "Some work would be imported: 2 events" in said.err
    reported(capsys, "work.bundle")
    (row,) = reported(capsys, "work.bundle", "--dry-run")["sessions"]
    assert row["created"] is False
    with Session.create(None, "mine"):
        pass
    reported(capsys, "work.bundle", "--dry-run", "--as", "mine", code=1)
    (place / "work.bundle").write_bytes((place / "work.bundle").read_bytes()[:-40])
    reported(capsys, "work.bundle", "--dry-run", code=6)
