"""Links and other people's folders around native sessions: nothing is read or written there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Session, SessionInfo, Store, open_store
from backtrail.exchange.claude_code import sessions as claude_code
from backtrail.exchange.foreign import import_session
from backtrail.exchange.native import write_session
from backtrail.exchange.resume import resume_line

from .transcripts import SAMPLES, Script

FIRST = "aaaaaaaa-0000-4000-8000-000000000001"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store that stays open through a test."""
    with open_store(f"sqlite:///{tmp_path}/store/b.db") as place:
        yield place


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The samples, in a config directory."""
    place = tmp_path / "config"
    shutil.copytree(SAMPLES / "claude-code", place)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(place))
    return place


def imported(store: Store, path: Path) -> Session:
    """A transcript as a session, open."""
    (found,) = claude_code.find(path)
    return Session.resume(store, import_session(store, found).session_id, files=False)


@pytest.mark.parametrize("what", ["the session's folder", "the folder of subagents", "a file"])
def test_subagents_behind_a_link_are_not_taken(tmp_path: Path, store: Store, what: str) -> None:
    """A folder that a stranger handed over may lead to files that no person meant to import."""
    script = Script(session=FIRST)
    script.user("hello")
    path = script.write(tmp_path / "given")
    secret = tmp_path / "private" / "subagents"
    secret.mkdir(parents=True)
    shutil.copy(path, secret / "agent-x.jsonl")
    beside = path.with_suffix("")
    if what == "the session's folder":
        beside.symlink_to(secret.parent)
    elif what == "the folder of subagents":
        beside.mkdir()
        (beside / "subagents").symlink_to(secret)
    else:
        (beside / "subagents").mkdir(parents=True)
        (beside / "subagents" / "agent-x.jsonl").symlink_to(secret / "agent-x.jsonl")
    with imported(store, path) as session:
        assert store.logs(session.id) == ["messages", "transcript"]
    if what != "a file":
        # The same files are taken where they are no link.
        beside.unlink() if beside.is_symlink() else shutil.rmtree(beside)
        shutil.copytree(secret.parent, beside)
        with imported(store, path) as session:
            assert "transcript/x" in store.logs(session.id)


def test_copies_of_files_behind_a_link_are_not_taken(config: Path, store: Store) -> None:
    """They would come back as contents of the project's files."""
    path = config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl"
    assert claude_code._backups(path) == config / "file-history" / FIRST
    history = config / "file-history"
    history.rename(config / "elsewhere")
    history.symlink_to(config / "elsewhere")
    assert claude_code._backups(path) is None
    history.unlink()
    history.mkdir()
    (history / FIRST).symlink_to(config / "elsewhere" / FIRST)
    assert claude_code._backups(path) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_a_record_does_not_say_where_to_write(tmp_path: Path, config: Path, store: Store) -> None:
    """A record from elsewhere may name a folder that is another's: that is not used."""
    with imported(store, config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl") as session:
        theirs = tmp_path / "theirs"
        (theirs / "projects" / "x").mkdir(parents=True)
        native = {"agent": "claude-code", "id": FIRST, "path": f"{theirs}/projects/x/a.jsonl"}
        store.update(session.id, metadata={"native": native})
        # Ours, so that it is believed.
        assert write_session(session, str(tmp_path)).path.is_relative_to(theirs)
        store.update(session.id, metadata={"native": native})
        os.chown(theirs, 12345, 12345)
        assert write_session(session, str(tmp_path)).path.is_relative_to(config)


@pytest.mark.parametrize("name", ["--dangerously-skip-permissions", "-c", "a b", "", "x;y", "\x1b"])
def test_a_record_gives_the_agent_no_options(name: str) -> None:
    """What a bundle calls a session's id is only taken for one if it looks like one."""
    native = {"native": {"agent": "claude-code", "id": name}}
    info = SessionInfo("work", cwd="/p", agent_name="claude-code", metadata=native)
    assert resume_line(info) == "cd /p && backtrail chat --resume work"
    good = SessionInfo(
        "work", cwd="/p", agent_name="claude-code", turn_count=1,
        metadata={"native": {"agent": "claude-code", "id": FIRST}},
    )  # fmt: skip
    assert resume_line(good) == f"cd /p && claude --resume {FIRST}"
