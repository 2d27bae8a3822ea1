"""Retention as a setting: old sessions go by themselves, with a preview and a log of what went."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backtrail import NewEvent, Session, SessionInfo, open_store
from backtrail.events import timestamp

from .stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A store with sessions of several ages, and a setting to keep thirty days."""
    made = Stage(tmp_path)
    made.project.mkdir()
    (tmp_path / "config" / "backtrail").mkdir(parents=True)
    (tmp_path / "config" / "backtrail" / "config.toml").write_text('retention = "30d"\n')
    with open_store(made.url) as store:
        for id, days, tags in (
            ("aaaa-old", 40, []),
            ("bbbb-older", 80, []),
            ("cccc-young", 5, []),
            ("dddd-pinned", 90, ["pinned"]),
        ):
            ts = timestamp(datetime.now(UTC) - timedelta(days=days))
            store.create(SessionInfo(id, created_at=ts, title=f"about {id}", tags=tags))
            store.append(id, [NewEvent("note", {"of": id}, ts=ts)])
    return made


def there(stage: Stage) -> set[str]:
    with open_store(stage.url) as store:
        return {info.id for info in store.sessions()}


def log(stage: Stage) -> list[dict[str, Any]]:
    path = Path(f"{stage.folder}/store/agent.db-retention.log")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


ALL = {"aaaa-old", "bbbb-older", "cccc-young", "dddd-pinned"}


def test_a_dry_run_names_what_would_go(stage: Stage) -> None:
    """And nothing goes, now or by itself."""
    ran = stage.run("gc", "--dry-run", BACKTRAIL_COLLECT="off")
    assert ran.code == 0 and "would remove 2 sessions not touched for 30d" in ran.out
    assert "about aaaa-old" in ran.out and "about bbbb-older" in ran.out
    assert "cccc" not in ran.out and "dddd" not in ran.out
    row = stage.run("gc", "--dry-run", "--json", "--retention", "60d").json
    assert [info["id"] for info in row["removed"]] == ["bbbb-older"]
    assert there(stage) == ALL and log(stage) == []


def test_what_went_is_in_the_log(stage: Stage) -> None:
    """With its name and time, so that its place is known."""
    ran = stage.run("gc")
    assert ran.code == 0 and "removed 2 sessions" in ran.out
    assert there(stage) == {"cccc-young", "dddd-pinned"}
    assert {row["removed"]["id"]: row["removed"]["title"] for row in log(stage)} == {
        "aaaa-old": "about aaaa-old",
        "bbbb-older": "about bbbb-older",
    }
    ran = stage.run("gc", "--log")
    assert "aaaa-old" in ran.out and "about bbbb-older" in ran.out
    assert len(stage.run("gc", "--log", "--json").json["log"]) == 2


def test_it_happens_by_itself(stage: Stage) -> None:
    """In a process that no verb waits for, at most daily."""
    assert stage.run("ls", "--all").code == 0
    end = time.monotonic() + 15
    while there(stage) != {"cccc-young", "dddd-pinned"}:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert {row["removed"]["id"] for row in log(stage)} == {"aaaa-old", "bbbb-older"}


@pytest.mark.parametrize("off", ["BACKTRAIL_COLLECT", "retention"])
def test_it_can_be_left_off(stage: Stage, off: str) -> None:
    """Without the setting nothing goes; and with the switch, only when asked."""
    if off == "retention":
        (stage.folder / "config" / "backtrail" / "config.toml").unlink()
        assert stage.run("gc").code == 0
    assert stage.run("ls", "--all", BACKTRAIL_COLLECT="off").code == 0
    time.sleep(0.5)
    assert there(stage) == ALL


@pytest.mark.parametrize("text", ["0d", "soon", "30", "-5d", "", "99999999999w"])
def test_a_retention_that_is_none_is_refused(stage: Stage, text: str) -> None:
    """A mistyped one loses nothing."""
    ran = stage.run("gc", f"--retention={text}")
    assert ran.code == 1 and "retention" in ran.err
    assert there(stage) == ALL
    (stage.folder / "config" / "backtrail" / "config.toml").write_text(f'retention = "{text}"\n')
    assert stage.run("ls", "--all").code == 1
    assert there(stage) == ALL


def test_an_agent_cannot_bring_it_about(stage: Stage) -> None:
    """It runs verbs with variables of its choice: neither retention nor budget are taken there."""
    (stage.folder / "config" / "backtrail" / "config.toml").unlink()
    (stage.project / "a").write_text("a")
    with Session.create(stage.url, "mine", cwd=stage.project) as s:
        s.checkpoint()
    note = Path(f"{stage.folder}/store/agent.db-files/upkeep")
    row = {"due": {"": [1.0]}, "not_before": 0}
    note.write_text(json.dumps(row))
    given = stage.run("ls", "--all", BACKTRAIL_RETENTION="1h", BACKTRAIL_BUDGET="1", CLAUDECODE="1")
    assert given.code == 0
    end = time.monotonic() + 15
    while json.loads(note.read_bytes())["due"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    # A collection that had taken the budget would be held back for hours, for lack of room.
    assert json.loads(note.read_bytes())["not_before"] < time.time() + 60
    assert there(stage) == ALL | {"mine"}


def test_a_project_cannot_set_it(stage: Stage) -> None:
    """It comes with the project, and would remove what is the person's."""
    (stage.folder / "config" / "backtrail" / "config.toml").unlink()
    (stage.project / ".backtrail.toml").write_text('retention = "1h"\n')
    ran = stage.run("gc")
    assert ran.code == 0 and "cannot be set by a project" in ran.err
    assert there(stage) == ALL
