"""Status and diff say the same: what the last turn left, what others did since, what is open.

What each of them did to the files is what the test itself wrote.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .acting import Project, empty, work


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with two files and one turn that changed both."""
    made = empty(tmp_path)
    made.write("f.txt", "a\nb\nc\n")
    made.write("g.txt", "x\n")
    made.write("mine.txt", "mine\n")
    session = made.session("work", title="The work")
    with session, session.turn("do it"), session.tool("bash"):
        made.write("f.txt", "A\nb\nc\n")
        made.write("g.txt", "y\n")
    return made


def ran(project: Project) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """The files of the turn and of others, as status has them; `diff` has the same turn."""
    status = project.run("status", "--json").json
    turn, since = (
        {row["path"]: (row["insertions"], row["deletions"]) for row in status[name]}
        for name in ("last_turn", "since")
    )
    diff = project.run("diff", "--json", "--stat").json["files"]
    assert {row["path"]: (row["insertions"], row["deletions"]) for row in diff} == turn
    return turn, since


def test_what_a_person_did_between_undo_and_redo_is_listed(project: Project) -> None:
    """The tree that the redo left holds it, and it is still a person's."""
    assert project.run("undo", "--yes").code == 0
    project.write("mine.txt", "mine\nmore\n")
    assert ran(project)[1] == {"mine.txt": (1, 0)}
    assert project.run("redo", "--yes").code == 0
    assert ran(project) == ({"f.txt": (1, 1), "g.txt": (1, 1)}, {"mine.txt": (1, 0)})
    project.write("g.txt", "y\nmine\n")
    assert ran(project)[1] == {"mine.txt": (1, 0), "g.txt": (1, 0)}


def test_what_was_restored_is_no_change_of_the_turn(project: Project) -> None:
    """It stands again after an undo of the restore."""
    assert project.run("restore", "f.txt", "--yes").code == 0
    assert (project.root / "f.txt").read_text() == "a\nb\nc\n"
    assert ran(project) == ({"g.txt": (1, 1)}, {})
    assert project.run("restore", "g.txt", "--yes").code == 0
    assert ran(project) == ({}, {})
    assert "changed" not in project.run("status").out
    assert project.run("undo", "--yes").code == 0
    assert ran(project) == ({"g.txt": (1, 1)}, {})


def test_an_open_call_is_named(project: Project) -> None:
    """With its process; what it changed meanwhile is not said to be others'."""
    code = (
        "import sys, time; from backtrail import Session\n"
        "s = Session.resume(sys.argv[1], 'work')\n"
        "with s.tool('long one'):\n"
        "    open('g.txt', 'w').write('z\\n'); print('.', flush=True); time.sleep(600)"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code, project.url], cwd=project.root, stdout=subprocess.PIPE
    )
    try:
        assert running.stdout is not None
        running.stdout.readline()
        (row,) = project.run("status", "--json").json["under_way"]
        assert (row["pid"], row["name"], row["session"]) == (running.pid, "long one", "work")
        text = project.run("status").out
        assert f"process {running.pid}" in text and "by others" not in text
    finally:
        running.kill()
        running.communicate()
    assert project.run("status", "--json").json["under_way"] == []


def test_nothing_is_offered_that_would_be_refused(project: Project) -> None:
    """In a folder that was made anew, no undo; what helps is."""
    shutil.rmtree(project.root)
    project.root.mkdir()
    project.write("other.txt", "another project\n")
    offered = [step["command"] for step in project.run("status", "--json").json["next"]]
    verbs = [command.split()[1] for command in offered]
    assert "relocate" in verbs and not {"undo", "redo", "rewind"} & set(verbs)
    assert project.run("undo", "--yes").code == 4
    assert project.files() == {"other.txt": "another project\n"}


def test_an_agent_killed_in_a_call_leaves_one_truth(project: Project) -> None:
    """Status, diff, preview and undo agree on whose changes they are."""
    before = project.files()
    pid = os.fork()
    if pid == 0:
        session = project.session("work")
        with session.turn("go on"), session.tool("bash"):
            project.write("f.txt", "A\nb\nc\nmore\n")
            project.write("new.txt", "new\n")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert ran(project) == ({"f.txt": (1, 0), "new.txt": (1, 0)}, {})
    preview = project.run("undo", "--dry-run", "--json").json
    done = project.run("undo", "--yes", "--json").json
    assert preview["events_dropped"] == done["events_dropped"]
    assert project.files() == before


def test_a_fork_of_a_fork_has_one_title(project: Project) -> None:
    """And one that has none is known by what was said first, as `ls` shows it."""
    for wanted in ("The work (fork)", "The work (fork 2)", "The work (fork 3)"):
        assert project.run("fork", "--json").json["title"] == wanted
    with project.session("plain") as session:
        session.append({"role": "user", "content": "tidy the garden, please, all of it " * 3})
        session.fork(session_id="copy").close()
    listed = project.run("ls", "--json").json["sessions"]
    assert next(row["title"] for row in listed if row["id"] == "copy").startswith("⑂ tidy the")
    project.run("delete", "plain", "--yes")
    row = next(line for line in project.run("ls").out.splitlines() if "garden" in line)
    name = row[row.index("⑂") : row.index("…") + 1]
    assert project.run("show", name, "--json").json["session"]["id"] == "copy"
    assert project.run("show", name[2:], "--json").code == 0


def test_a_preview_says_what_is_not_captured(project: Project) -> None:
    """As status does; and of what goes back, what was missed."""
    project.write(".backtrailignore", "ignored\n")
    os.mkfifo(project.root / "pipe")
    with project.session("work") as session, session.turn("go on"), session.tool("bash"):
        project.write("f.txt", "once more\n")
    rows = project.run("status", "--json").json["not_captured"]
    assert [row["path"] for row in rows] == ["pipe"]
    for verb in (["undo"], ["rewind", "--last"], ["restore", "f.txt"]):
        done = project.run(*verb, "--dry-run")
        assert (done.code, "not captured, so not touched: pipe" in done.err) == (0, True), done


@pytest.mark.parametrize("back", [("undo", "redo"), ("rewind", "undo")])
def test_show_lists_the_files_of_a_turn_that_came_back_once(
    tmp_path: Path, back: tuple[str, str]
) -> None:
    """Not again beside what brought it back."""
    project = empty(tmp_path)
    work(project)
    before = project.run("show", "--json").json["turns"][-1]["steps"]
    listed = [file for step in before for file in step.get("files", [])]
    assert sorted(file["path"] for file in listed) == ["app.py", "notes.md", "old.py"]
    assert project.run(back[0], *(["--last"] if back[0] == "rewind" else []), "--yes").code == 0
    assert project.run(back[1], "--yes").code == 0
    after = project.run("show", "--json").json["turns"][-1]["steps"]
    assert [file for step in after for file in step.get("files", [])] == listed
    shown = project.run("show").out
    assert [shown.count(name) for name in ("M  app.py", "M  notes.md", "D  old.py")] == [1, 1, 1]


KILLED = """
import os, sys
from pathlib import Path
from backtrail import Session

with Session.open(sys.argv[1], "killed", cwd=".") as session, session.turn("go on"):
    with session.tool("bash"):
        Path("half.txt").write_text("half")
        os.kill(os.getpid(), 9)
"""


def test_a_killed_turn_is_said_to_be_cut_short(tmp_path: Path) -> None:
    """With the call that it was in, which no event of the log has yet."""
    project = empty(tmp_path)
    work(project)
    command = [sys.executable, "-c", KILLED, project.url]
    subprocess.run(command, cwd=project.root, env=project.environment(), check=False)
    ran = project.run("status", "killed")
    assert "It was cut short, in bash: `backtrail resume` goes on" in ran.lines
    assert "A  half.txt  +1 −0" in ran.out
    assert project.run("status", "killed", "--json").json["cut_short"] == ["bash"]
    assert project.run("status", "work", "--json").json["cut_short"] == []
