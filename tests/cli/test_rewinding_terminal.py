"""Going back on a terminal: the preview, the questions, and what is done after each answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from .acting import BROKEN, MADE, Project, empty, work
from .terminal import ENTER


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = empty(tmp_path)
    work(made)
    return made


@pytest.mark.parametrize(
    ("answer", "files", "messages"),
    [("both", MADE, 2), ("c", BROKEN, 2), ("files", MADE, 4), ("n", BROKEN, 4), ("", BROKEN, 4)],
)
def test_the_person_says_what_goes_back(
    project: Project, answer: str, files: dict[str, str], messages: int
) -> None:
    """By word or letter; Enter alone changes nothing."""
    with project.terminal("rewind", "--last") as terminal:
        plan = terminal.wait_for("or [n]othing?")
        assert "write   app.py  +2 −1" in plan
        assert "conversation: 3 events to drop, 2 messages left" in plan
        terminal.press("sure", ENTER)
        terminal.wait_for("one of both, conversation, files, or nothing")
        terminal.wait_for("or [n]othing?", times=2)
        terminal.press(answer, ENTER)
        assert terminal.end() == (0 if answer not in ("n", "") else 1)
        text = terminal.screen.text
        assert ("nothing was changed" in text) == (answer in ("n", ""))
        assert ("take it back with: backtrail undo" in text) == (answer not in ("n", ""))
        assert terminal.screen.unknown == []
    assert project.files() == files
    assert len(project.said()) == messages


def test_conflicts_and_what_is_left_out_are_in_the_preview(project: Project) -> None:
    """With their reasons, before anything is asked."""
    project.write("notes.md", "by a person, later\n")
    (project.root / "node_modules").mkdir()
    (project.root / "node_modules/x.js").write_text("x")
    with project.terminal("rewind", "--last") as terminal:
        plan = terminal.wait_for("or [n]othing?")
        assert "conflict  notes.md  (changed since by somebody else)" in plan
        assert "not captured, so not touched: node_modules" in plan
        terminal.press("b", ENTER)
        terminal.wait_for("notes.md (changed since by somebody else): ")
        terminal.press(ENTER)
        assert terminal.end() == 4
    assert project.files()["notes.md"] == "by a person, later\n"


def test_undo_previews_and_asks(project: Project) -> None:
    """Only yes is yes."""
    for answer, files in (("", BROKEN), ("n", BROKEN), ("y", MADE)):
        with project.terminal("undo") as terminal:
            plan = terminal.wait_for("Undo? [y/N]")
            assert 'undo the turn "now break things"' in plan
            assert "create  old.py  +1" in plan
            terminal.press(answer, ENTER)
            assert terminal.end() == (0 if answer == "y" else 1)
        assert project.files() == files


def test_a_given_scope_is_only_confirmed(project: Project) -> None:
    """And `restore` asks the same way."""
    with project.terminal("rewind", "--last", "--scope", "conversation") as terminal:
        plan = terminal.wait_for("Rewind conversation? [y/N]")
        assert "app.py" not in plan
        terminal.press("y", ENTER)
        assert terminal.end() == 0
    assert project.files() == BROKEN
    assert len(project.said()) == 2
    with project.terminal("restore", "app.py") as terminal:
        terminal.wait_for("Restore app.py? [y/N]")
        terminal.press("y", ENTER)
        assert terminal.end() == 0
        assert "restored app.py to before bash of prompt 2 (" in terminal.screen.text
    assert project.files() == {**BROKEN, "app.py": MADE["app.py"]}


def test_ctrl_c_at_a_question_changes_nothing(project: Project) -> None:
    """It ends with 130."""
    with project.terminal("undo") as terminal:
        terminal.wait_for("Undo? [y/N]")
        assert terminal.interrupt() == 130
        assert terminal.is_restored()
    assert project.files() == BROKEN


def test_json_on_a_terminal_asks_nothing(project: Project) -> None:
    """A script that happens to have a terminal needs `--yes` as well."""
    with project.terminal("undo", "--json") as terminal:
        assert terminal.end() == 2
        assert "--yes" in terminal.screen.text
    assert project.files() == BROKEN


def test_colour_only_where_it_is_wanted(project: Project) -> None:
    """On a terminal there is some; with `--no-color` or NO_COLOR there is none."""
    with project.terminal("undo", "--dry-run") as terminal:
        assert terminal.end() == 0
        assert b"\x1b[" in terminal.raw
    with project.terminal("undo", "--dry-run", "--no-color") as terminal:
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.raw
    with project.terminal("undo", "--dry-run", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.raw


@pytest.mark.parametrize("verb", ["rewind", "undo"])
def test_without_a_terminal_for_output_nothing_is_asked(project: Project, verb: str) -> None:
    """What would be asked about is not seen, so it is as without a terminal."""
    output = project.home / "output"
    with project.terminal(verb, output=output) as terminal:
        assert terminal.end() == 2
        assert b"\x1b" not in terminal.raw
        assert ("--yes" if verb == "undo" else "no terminal") in terminal.screen.text
    assert output.read_text() == ""
    assert project.files() == BROKEN
