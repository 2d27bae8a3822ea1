"""What a turn changed is one number, wherever it is shown: its own lines, before against after."""

from __future__ import annotations

import difflib
import re
import subprocess
from pathlib import Path

import pytest

from .acting import Project, empty
from .stage import Stage

LINES = "import a\n1\n2\n3\n4\n5\nend\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with one file."""
    made = empty(tmp_path)
    made.write("f.py", LINES)
    return made


def turn(project: Project, *commands: str, between: str = "") -> None:
    """A turn whose calls run these commands; `between` is a person's."""
    with project.session("work") as session, session.turn("do it"):
        for number, command in enumerate(commands):
            if number and between:
                subprocess.run(between, shell=True, check=True, cwd=project.root)
            with session.tool("bash"):
                subprocess.run(command, shell=True, check=True, cwd=project.root)


def counted(before: str, after: str) -> tuple[int, int]:
    """Lines added and removed, by the standard library."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    return sum(x.startswith("+ ") for x in lines), sum(x.startswith("- ") for x in lines)


def shown(project: Project) -> dict[str, tuple[int, int, int]]:
    """Files and lines of the last turn, as each verb has them."""
    status = project.run("status", "--json").json["last_turn"]
    diff = project.run("diff", "--json").json["files"]
    found = {
        name: (len(rows), sum(r["insertions"] for r in rows), sum(r["deletions"] for r in rows))
        for name, rows in (("status", status), ("diff", diff))
    }
    with project.terminal("rewind") as terminal:
        text = terminal.wait_for("do it")
        terminal.press("q")
        terminal.end()
        row = re.search(r"(\d+) files?(?: \+(\d+))?(?: −(\d+))?", text)
        assert row is not None
        found["picker"] = (int(row[1]), int(row[2] or 0), int(row[3] or 0))
    return found


def test_calls_that_change_a_line_again_count_once(project: Project) -> None:
    """The turn against what it found, not the sum of its calls."""
    turn(project, "sed -i s/^3/three/ f.py", "sed -i s/three/drei/ f.py; echo x > tmp", "rm tmp",
         "sed -i /end/d f.py")  # fmt: skip
    plus, minus = counted(LINES, project.files()["f.py"])
    assert shown(project) == dict.fromkeys(("status", "diff", "picker"), (1, plus, minus))


def test_a_person_s_line_is_not_the_turn_s(project: Project) -> None:
    """Neither one that was written between two calls, nor one around undo and redo."""
    turn(project, "sed -i s/^1/one/ f.py", "sed -i s/^3/three/ f.py",
         between="echo '# mine' >> f.py; echo mine > mine.txt")  # fmt: skip
    wanted = dict.fromkeys(("status", "diff", "picker"), (1, 2, 2))
    assert shown(project) == wanted
    assert project.run("undo", "--yes", "--on-conflict", "merge").code == 0
    project.write("f.py", project.files()["f.py"] + "# more\n")
    assert project.run("redo", "--yes", "--on-conflict", "merge").code == 0
    assert shown(project) == wanted


def test_the_last_turn_after_an_exact_rewind_was_undone(project: Project) -> None:
    """What the rewind took and the undo brought back is no turn's."""
    project.write("theirs.txt", "a person's\n")
    turn(project, "for n in 1 2 3 4 5; do echo $n > made-$n; done")
    project.write("later.txt", "a person's\n")
    wanted = dict.fromkeys(("status", "diff", "picker"), (5, 5, 0))
    assert shown(project) == wanted
    assert project.run("rewind", "--last", "--mode", "exact", "--yes").code == 0
    assert project.run("undo", "--yes").code == 0
    assert shown(project) == wanted


def test_moves_count_once_wherever_they_are_shown(project: Project) -> None:
    """A turn and its undo have the same files and lines, the other way round."""
    project.write("d/x", "one\ntwo\n")
    project.write("d/y", "three\n")
    before = project.files()
    turn(project, "mv d e; mv f.py g.py; sed -i s/^3/three/ g.py; echo new > new")
    files, plus, minus = shown(project)["status"]
    assert (files, plus, minus) == (4, 2, 1)
    undone = project.run("undo", "--yes")
    assert f"files: {files} files and 2 folders changed  +{minus} −{plus}" in undone.out
    assert "moved    e/x → d/x" in undone.out
    assert project.files() == before
    redone = project.run("redo", "--yes", "--json").json
    assert (redone["insertions"], redone["deletions"]) == (plus, minus)
    moved = {row["path"]: row["old_path"] for row in redone["files"] if row["old_path"]}
    assert moved == {"e/x": "d/x", "e/y": "d/y", "g.py": "f.py"}
    assert len(redone["files_changed"]) == files + len(moved) + 2
    assert shown(project)["status"] == (files, plus, minus)


def test_folders_and_modes_are_worded_alike(stage: Stage) -> None:
    """By status, diff, undo and redo: so many files, so many folders, and a mode that changed."""
    (stage.project / "o.txt").write_text("one\n")
    (stage.project / "o.txt").chmod(0o644)
    command = "echo two >> o.txt; mkdir e; ln -s o.txt l; chmod 755 o.txt; printf x > bin"
    assert stage.run("record", "--", "sh", "-c", command).code == 0
    count = "3 files and 1 folder"
    stat = stage.run("diff", "--stat")
    for ran in (stage.run("status").out, stat.out + stat.err):
        assert f"{count}, +3 −0" in ran
        assert "A  e/\n" in ran
        assert "M  o.txt  +1 −0, mode 644 → 755\n" in ran
    dry = stage.run("undo", "--dry-run").out
    assert f"files: {count} to change  −3\n" in dry
    assert "  write   o.txt  −1  mode 755 → 644\n" in dry
    done = stage.run("undo", "--yes", "--json").json
    modes = {file["path"]: file["modes"] for file in done["files"]}
    assert modes == {"bin": None, "e": None, "l": None, "o.txt": ["755", "644"]}
    done = stage.run("redo", "--yes").out
    assert f"files: {count} changed  +3\n" in done
    assert "o.txt  +1  mode 644 → 755\n" in done
