"""One turn out of the middle, conflict by conflict, and who wrote a line: as a person types it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .acting import BROKEN, MADE, Project, empty, work
from .terminal import ENTER

LINES = "import a\n1\n2\n3\n4\n5\nend\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Three turns of a session: in one file, two of them in the same line."""
    made = empty(tmp_path)
    made.write("f.py", LINES)
    made.write("g.py", LINES)
    with made.session("work") as session:
        for text, command in [
            ("the head", "sed -i s/import/IMPORT/ f.py"),
            ("the middle", "sed -i s/^3/three/ f.py g.py"),
            ("the end", "sed -i s/^5/five/ f.py; sed -i s/three/THREE/ g.py"),
        ]:
            with session.turn(text), session.tool("bash"):
                subprocess.run(command, shell=True, check=True, cwd=made.root)
    return made


def test_one_turn_is_taken_out(project: Project) -> None:
    """Named by its number; the other turns' lines stay, a line that both changed is a conflict."""
    done = project.run("rewind", "--turn", "2", "--yes")
    assert done.code == 4
    assert done.out.startswith('took out prompt 2, "the middle"\n')
    assert re.search(r"^  merged +f\.py  \+1 −1", done.out, re.MULTILINE)
    assert project.files() == {
        "f.py": LINES.replace("import", "IMPORT").replace("5", "five"),
        "g.py": LINES.replace("3", "THREE").replace("5", "5"),
    }
    assert project.said() == ["the head", "the middle", "the end"]
    (advice,) = re.findall(r"^  (backtrail rewind --turn 2 .+)$", done.err, re.MULTILINE)
    assert project.run(*shlex.split(advice)[1:]).code == 0
    assert project.files()["g.py"] == LINES
    ran = project.run("undo", "--dry-run").out
    assert 'the taking out of prompt 2, "the middle"' in ran
    assert project.run("undo", "--yes").code == 0
    assert project.run("undo", "work", "--yes").code == 0
    assert project.files()["f.py"] == (
        LINES.replace("import", "IMPORT").replace("3", "three").replace("5", "five")
    )


def test_a_turn_out_of_one_path(project: Project) -> None:
    """Only what is named behind `--`; a preview touches nothing."""
    before = project.files()
    ran = project.run("rewind", "--turn", "2", "--dry-run", "--", "f.py")
    assert ran.code == 0
    assert project.files() == before
    assert project.run("rewind", "--turn", "2", "--yes", "--", "f.py").code == 0
    assert project.files()["g.py"] == before["g.py"]
    assert "three" not in project.files()["f.py"]


def test_turns_that_make_no_sense(project: Project) -> None:
    """Usage is 2, a turn that is not there 3."""
    assert project.run("rewind", "--turn", "2", "--last", "--yes").code == 2
    assert project.run("rewind", "--turn", "2", "--scope", "both", "--yes").code == 2
    done = project.run("rewind", "--turn", "9", "--yes")
    assert done.code == 3
    assert "3 prompts" in done.err


def test_blame_names_the_prompt_of_each_line(project: Project) -> None:
    """For people by number, for scripts with session, event and tool."""
    ran = project.run("blame", "f.py").out.splitlines()
    assert [line.split("  ")[0] for line in ran] == [
        "prompt 1", "others", "others", "prompt 2", "others", "prompt 3", "others",
    ]  # fmt: skip
    assert ran[3].split() == ["prompt", "2", "bash", "4", "three"]
    rows = json.loads(project.run("blame", "f.py", "--json").out)["lines"]
    assert rows[3]["text"] == "three"
    assert (rows[3]["session_id"], rows[3]["turn"], rows[3]["tool"]) == ("work", 2, "bash")
    assert (rows[1]["author"], rows[1]["session_id"]) == ("others", None)
    at = json.loads(project.run("blame", "f.py", "--at", "prompt 2", "--json").out)["lines"]
    assert [row["author"] for row in at] == ["agent", *["others"] * 6]
    assert project.run("blame", "nothing.py").code == 3
    assert project.run("blame", ".").code == 3


def test_each_conflict_is_decided_on_the_terminal(project: Project) -> None:
    """After the preview: a diff, then merge, overwrite or keep; Enter alone keeps."""
    for name in ("f.py", "g.py"):
        with (project.root / name).open("a") as file:
            file.write("# mine\n")
    with project.terminal("rewind", "--last", PAGER="cat") as terminal:
        terminal.wait_for("or [n]othing?")
        terminal.press("files", ENTER)
        terminal.wait_for("f.py (changed since by somebody else): [k]eep, [m]erge, [a]side, "
                          "[o]verwrite or [d]iff?")  # fmt: skip
        terminal.press("d", ENTER)
        assert "+# mine" in terminal.wait_for("or [d]iff?", times=2)
        terminal.press("m", ENTER)
        terminal.wait_for("g.py (changed since by somebody else)")
        terminal.press("overwrite", ENTER)
        assert terminal.end() == 0
    assert project.files() == {
        "f.py": LINES.replace("import", "IMPORT").replace("3", "three") + "# mine\n",
        "g.py": LINES.replace("3", "three"),
    }


def test_the_picker_shows_the_diff_of_a_prompt(project: Project) -> None:
    """And comes back to the list."""
    with project.terminal("rewind", PAGER="cat") as terminal:
        terminal.wait_for("d: diff")
        terminal.press("d")
        terminal.wait_for("Enter: back")
        assert "+five" in terminal.screen.text
        terminal.press(ENTER)
        terminal.wait_for("q: leave")
        terminal.press("q")
        assert terminal.end() == 1


CODE = """
import sys
from backtrail.cli import main
from backtrail.files.restore.journal import Restoration

looks = []
for name in ("preview", "act"):
    def spy(self, *args, name=name, old=getattr(Restoration, name), **more):
        looks.append(name)
        return old(self, *args, **more)
    setattr(Restoration, name, spy)
code = main(sys.argv[1:])
print(looks, file=sys.stderr)
sys.exit(code)
"""


def test_nothing_is_previewed_where_nothing_is_asked(tmp_path: Path) -> None:
    """A preview looks at all files: with `--yes` they are looked at once, by the deed."""
    project = empty(tmp_path)
    work(project)
    done = subprocess.run(
        [sys.executable, "-c", CODE, "rewind", "--last", "--yes"],
        cwd=project.root, env=project.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "['act']"
    assert project.files() == MADE
    assert project.files() != BROKEN


def test_nothing_to_redo_is_said_first(project: Project) -> None:
    """Before anything is asked, or `--yes` is missed."""
    done = project.run("redo")
    assert done.code == 3
    assert "nothing to redo" in done.err


def test_restore_finds_the_session_that_changed_the_file(project: Project) -> None:
    """Although another one is the latest here; named, it is that one and no other."""
    with project.session("later") as session:
        session.append({"role": "user", "content": "look around"})
    done = project.run("restore", "f.py", "--yes")
    assert done.code == 0, done.err
    assert "session work, the newest that changed it" in done.err
    assert "five" not in project.files()["f.py"]
    assert project.run("restore", "f.py", "--session", "later", "--yes").code == 3


def test_a_second_undo_is_what_its_preview_says(project: Project) -> None:
    """Behind an undo that kept a file, no decision is asked for: it would be about that one."""
    with (project.root / "f.py").open("a") as file:
        file.write("# mine\n")
    with project.terminal("undo") as terminal:
        terminal.wait_for("Undo? [y/N]")
        terminal.press("y", ENTER)
        terminal.wait_for("f.py (changed since by somebody else): ")
        terminal.press("k", ENTER)
        assert terminal.end() == 4
    with project.terminal("undo") as terminal:
        assert 'undo the turn "the middle"' in terminal.wait_for("Undo? [y/N]")
        terminal.press("y", ENTER)
        assert terminal.end() == 4
    assert "three" in project.files()["f.py"] and "three" not in project.files()["g.py"]
    assert project.said() == ["the head"]
