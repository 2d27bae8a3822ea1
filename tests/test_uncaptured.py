"""The account of what is not captured: one for all, from the log, the record and the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import NewEvent, Session, SessionInfo, open_store
from backtrail.cli.picker import Rows, prompts
from backtrail.events import Json
from backtrail.exchange.export.document import Reader
from backtrail.files.names import Anywhere
from backtrail.files.workspace.firstimport import PARTIAL
from backtrail.session.uncaptured import logged, whole


def files(**said: Json) -> dict[str, Json]:
    return {"name": "Bash", "files": said}


EVENTS = [
    NewEvent("user_message", {"message": {"role": "user", "content": "one"}, **files()}),
    NewEvent("action", files(missed="too late")),
    NewEvent("action", files(lost=["a", "b"], before="", after="")),
    NewEvent("action", files(outside=["/etc/x"])),
    NewEvent("tool_result", files(outside=["/etc/x", "/etc/y"])),
    # What a stranger's log may hold.
    NewEvent("action", files(missed=5, lost="text", outside=[1, None, {}])),
    NewEvent("action", {"files": "nothing"}),
    NewEvent(
        "user_message",
        {"message": {"role": "user", "content": "two"}, "files": {"missed": PARTIAL}},
    ),
]


def test_rows_of_a_log() -> None:
    """Each missed call, each lost content; a path outside once, by the last that named it."""
    with open_store("memory:") as store:
        refused: dict[str, Json] = {"path": "/repo", "why": "over 9 files"}
        store.create(SessionInfo("s", metadata={"root_refused": refused}))
        store.append("s", EVENTS)
        assert logged(store, store.info("s")) == [
            ("event 2 (Bash)", "too late", 0),
            ("a", "gone, and was not captured: Bash, event 3", 0),
            ("b", "gone, and was not captured: Bash, event 3", 0),
            ("/etc/x", "outside the workspace: Bash, event 5", 0),
            ("/etc/y", "outside the workspace: Bash, event 5", 0),
            ("/repo", "over 9 files, so only the folder of the agent is captured", 0),
        ]


def test_the_folder_is_in_it(tmp_path: Path) -> None:
    """Open or not, the account is the same; without the folder, it is that of the log."""
    project = tmp_path / "project"
    (project / "node_modules").mkdir(parents=True)
    url = f"sqlite:///{tmp_path}/s.db"
    with Session.create(url, "s", cwd=project) as session:
        session.append({"role": "user", "content": "hi"})
        session.store.append("s", EVENTS[1:2])
        rows = session.not_captured()
        assert [path for path, _, _ in rows] == ["event 3 (Bash)", "node_modules"]
    with open_store(url) as store:
        assert whole(store, store.info("s")) == rows
        project.rename(tmp_path / "gone")
        assert whole(store, store.info("s")) == rows[:1]


@pytest.mark.parametrize(("said", "shown"), [({"missed": "no"}, True), ({}, False)])
def test_the_picker_marks_a_turn_that_missed_something(
    tmp_path: Path, said: dict[str, Json], shown: bool
) -> None:
    """So that a person sees it before they choose."""
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s") as session:
        session.append({"role": "user", "content": "go"})
        session.store.append("s", [NewEvent("action", files(**said))])
        with Reader(session.store, session.info()) as reader:
            (row,) = Rows(session, prompts(session), reader)
        assert ("(1 not captured)" in row) is shown


def test_what_a_tool_of_our_own_agent_names_outside_is_said(tmp_path: Path) -> None:
    """It may be allowed to write there; a program that names such a path is refused."""
    project, far = tmp_path / "project", tmp_path / "far.txt"
    project.mkdir()
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=project) as session:
        session.append({"role": "user", "content": "go"})
        with session.tool("write", paths=Anywhere([str(far), str(project / "a")])) as call:
            far.write_text("x")
            (project / "a").write_text("x")
        assert call.event is not None
        said = call.event.data["files"]
        assert said["outside"] == [str(far.resolve())] and "after" in said
        done = session.undo()
        assert [path for path, _, _ in done.not_captured] == [str(far.resolve())]
        assert not (project / "a").exists() and far.exists()
        with pytest.raises(ValueError, match="outside"), session.tool("write", paths=[far]):
            raise AssertionError("not reached")
