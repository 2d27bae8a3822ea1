"""What a person meets at the first use of the program."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from backtrail.cli.doctor import _writable
from backtrail.cli.wording import fitted
from backtrail.stores import open_store
from tests.cli.acting import Project
from tests.cli.acting import work as broken_by_an_agent
from tests.cli.stage import Stage
from tests.cli.terminal import CTRL_C, CTRL_D


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project that an agent broke."""
    made = Project(tmp_path)
    made.root.mkdir()
    broken_by_an_agent(made)
    return made


# --- arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        ["hooks", "install", "--dry-run", "claude-code"],
        ["hooks", "--dry-run", "install", "claude-code"],
        ["diff", "1", "--stat", "3"],
        ["--json", "diff", "1", "3"],
        ["restore", "--yes", "app.py", "--dry-run"],
    ],
)
def test_options_may_stand_anywhere(worked: Stage, given: list[str]) -> None:
    """Before, between and behind the other arguments."""
    ran = worked.run(*given)
    assert ran.code == 0, ran.err


def test_what_stands_behind_two_dashes_is_no_option(worked: Stage) -> None:
    """A file may be called like an option."""
    (worked.project / "-y").write_text("mine\n")
    assert worked.run("record", "--", "rm", "--", "-y").code == 0
    assert worked.run("restore", "--yes", "--", "-y").code == 0
    assert (worked.project / "-y").read_text() == "mine\n"


def test_a_beginning_that_is_too_short_says_so(worked: Stage) -> None:
    """It is not said that there is none."""
    assert "at least" in worked.run("show", "wor").err
    assert "at least" not in worked.run("show", "xyz").err


def test_nothing_to_undo_says_where_there_may_be(worked: Stage) -> None:
    """Each session takes back its own, so another one is named."""
    for _ in range(2):
        assert worked.run("undo", "--yes").code == 0
    ran = worked.run("undo", "--yes")
    assert (ran.code, "`backtrail undo SESSION`" in ran.err) == (3, True)


def test_ls_speaks_of_filters_only_where_there_are_any(stage: Stage) -> None:
    """A folder without sessions has none, not "no such"."""
    assert stage.run("ls").err.startswith("no sessions in ")
    assert stage.run("ls", "--tag", "x").err.startswith("no such sessions in ")


# --- names of files ----------------------------------------------------------------------


def test_a_name_with_a_new_line_stays_on_its_line(worked: Stage) -> None:
    """So it cannot pass for a line of ours."""
    name = "new\nline\t"
    (worked.project / name).write_text("one\n")
    assert worked.run("record", "--", "sh", "-c", 'echo two >> "$0"', name).code == 0
    ran = worked.run("status").out + worked.run("diff").out
    assert "  M  new\\nline\\t  +1 −0\n" in ran
    assert 'diff --git "a/new\\nline\\t" "b/new\\nline\\t"\n' in ran
    assert '--- "a/new\\nline\\t"\n+++ "b/new\\nline\\t"\n' in ran
    back = worked.run("restore", name, "--yes").out
    assert back.startswith("restored new\\nline\\t to ") and "  restored  new\\nline\\t  −1" in back
    assert (worked.project / name).read_text() == "one\n"


# --- a folder that was moved -------------------------------------------------------------


def test_a_moved_folder_is_known_again(worked: Stage) -> None:
    """Its sessions come along, all of them, and nothing needs to be named."""
    assert worked.run("record", "--title", "second", "--", "touch", "made").code == 0
    new = worked.folder / "new"
    worked.project.rename(new)
    assert worked.run("status", cwd=new).out.count("backtrail relocate") == 1
    ran = worked.run("relocate", "--json", cwd=new)
    assert (ran.json["from"], ran.json["others"]) == (str(worked.project), ["work"])
    listed = worked.run("ls", "--json", cwd=new).json["sessions"]
    assert [row["cwd"] for row in listed] == [str(new)] * 2
    assert worked.run("undo", "--yes", cwd=new).code == 0
    assert worked.run("undo", "--session", "work", "--yes", cwd=new).code == 0
    assert (new / ".env").exists() and not (new / "made").exists()


def test_relocate_takes_no_session_of_another_folder(worked: Stage) -> None:
    """In a folder that never had one it asks which, and nothing is moved."""
    other = worked.folder / "other"
    other.mkdir()
    ran = worked.run("relocate", cwd=other)
    assert (ran.code, "--session" in ran.err) == (2, True)
    assert worked.run("ls", "--json").json["sessions"][0]["cwd"] == str(worked.project)
    assert "  backtrail relocate" not in worked.run("status", cwd=other).out


def test_a_session_is_moved_alone_while_its_folder_is_there(worked: Stage) -> None:
    """The others still belong to the old one."""
    assert worked.run("record", "--title", "second", "--", "touch", "made").code == 0
    other = worked.folder / "other"
    other.mkdir()
    ran = worked.run("relocate", "-s", "second", "--json", cwd=other)
    assert ran.json["others"] == []
    assert [r["id"] for r in worked.run("ls", "--json").json["sessions"]] == ["work"]


# --- on a terminal -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "said"), [(CTRL_C, "interrupted"), (CTRL_D, "nothing was changed")]
)
def test_leaving_a_question_ends_its_line(project: Project, key: str, said: str) -> None:
    """The answer to Ctrl-C or Ctrl-D does not stand behind the question."""
    with project.terminal("undo") as terminal:
        terminal.wait_for("Undo? [y/N]")
        if key == CTRL_C:
            terminal.interrupt()
        else:
            terminal.press(key)
            terminal.end()
        assert terminal.screen.text.splitlines()[-1] == said


def test_the_terminal_is_the_commands(project: Project) -> None:
    """While a recorded command runs, nothing is drawn on what it shows."""
    script = "echo > made; until test -e stop; do sleep 0.1; done; echo done"
    with project.terminal("record", "--title", "long", "--", "sh", "-c", script) as terminal:
        deadline = time.monotonic() + 60
        while project.run("log", "long", "--kind", "checkpoint").out.count("checkpoint") < 2:
            assert time.monotonic() < deadline, "there is no point in between"
        project.write("stop", "")
        assert terminal.end() == 0
        assert b"reading files" not in terminal.raw
        assert b"done\r\n" in terminal.raw


def test_a_narrow_window_keeps_what_people_type(project: Project) -> None:
    """Columns are left out, and that is said; numbers and ids are never cut."""
    with project.terminal("log", columns=40) as terminal:
        assert terminal.end() == 0
        lines = terminal.screen.text.splitlines()
        assert lines[0].split() == ["event", "when", "what"]
        assert lines[1].split()[0] == "1"
        assert "the window is too narrow for: kind" in lines


def test_columns_share_the_room() -> None:
    """Long ones give way first, then short ones go from the right; the first never."""
    assert fitted([5, 8, 30], 60) == [5, 8, 30]
    assert fitted([5, 8, 30], 40) == [5, 8, 23]
    assert fitted([5, 8, 30, 50], 70) == [5, 8, 25, 26]
    assert fitted([5, 8, 14, 30], 40) == [5, 8, 0, 23]
    assert fitted([30, 8, 5], 40) == [30, 8, 0]
    assert fitted([30, 40], 20) == [30, 1]


# --- completion --------------------------------------------------------------------------


def test_bash_offers_files_where_no_option_is_begun(stage: Stage) -> None:
    """Nothing of ours stands in the way of the names of files."""
    script = stage.run("completion", "bash").out

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        code = (
            f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            '_backtrail; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("backtrail", "restore", "") == []
    assert "--dry-run" in completed("backtrail", "restore", "-")
    assert completed("backtrail", "hooks", "i") == ["install"]


# --- a store that can only be read -------------------------------------------------------


def test_a_store_that_cannot_be_locked_is_reported(worked: Stage) -> None:
    """Status prints all but the state of the disk, `doctor` that it is bad; no bare numbers."""
    (lock,) = Path(worked.environment()["BACKTRAIL_STATE"]).glob("roots/*/lock")
    lock.unlink()
    # Root may write to any file; a folder in its place keeps root out as well.
    lock.mkdir()
    ran = worked.run("status")
    assert (ran.code, "Last prompt" in ran.out) == (0, True), ran.err
    assert "Files: not compared with the disk: cannot lock the workspace" in ran.out
    assert str(lock) in ran.out
    ran = worked.run("rewind", "--last", "--dry-run")
    assert (ran.code, "cannot lock the workspace" in ran.err) == (1, True)
    assert "[Errno" not in ran.err
    assert worked.run("show").code == worked.run("diff").code == 0


def test_doctor_reports_a_store_that_cannot_be_written(
    worked: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be read, and that is all."""
    with open_store(worked.url) as store:
        assert list(_writable(store)) == []
        monkeypatch.setattr("os.access", lambda path, mode: False)
        (check,) = _writable(store)
    assert (check.state, "cannot be written" in check.detail) == ("bad", True)


def test_an_empty_git_folder_does_not_make_a_project(stage: Stage) -> None:
    """What is done above such a folder, in the repository it lies in, goes back."""
    subprocess.run(["git", "init", "-q"], cwd=stage.project, check=True)
    (stage.project / "top.txt").write_bytes(b"t\n")
    sub = stage.project / "sub"
    (sub / ".git").mkdir(parents=True)
    assert stage.run("record", "--", "rm", "../top.txt", cwd=sub).code == 0
    assert not (stage.project / "top.txt").exists()
    assert stage.run("undo", "--yes", cwd=sub).code == 0
    assert (stage.project / "top.txt").read_bytes() == b"t\n"


def test_hooks_that_are_installed_are_not_advised(stage: Stage) -> None:
    """In a folder without a session, where nothing was recorded yet."""
    advice = "hooks install claude-code"
    assert advice in stage.run().out
    assert stage.run("hooks", "install", "claude-code", "--yes").code == 0
    ran = stage.run().out
    assert advice not in ran
    assert "backtrail record -- COMMAND" in ran


def test_gc_calls_no_session_deleted_that_was_not(stage: Stage) -> None:
    """A recording that was given up for want of a way back leaves contents, and no session."""
    (stage.project / "f").write_text("x\n" * 1000)
    with stage.session("given-up") as session:
        session.checkpoint("before")
        session.store.delete("given-up")
    ran = stage.run("gc", "--dry-run", "--now", BACKTRAIL_COLLECT="off").out
    assert "deleted" not in ran
    assert "of 1 session that is not in the store" in ran
