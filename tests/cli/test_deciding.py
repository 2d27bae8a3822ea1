"""Following the advice after files were kept: it does what it says, typed as it is printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .acting import Project, empty
from .stage import CODE, Ran

LINES = "import a\n1\n2\n3\n4\n5\nend\n"
ADVICE = re.compile(r"^  (backtrail restore .+)$", re.MULTILINE)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A file that a command changed, and then a person."""
    made = empty(tmp_path)
    made.write("f.py", LINES)
    made.write("sub/odd name'.txt", LINES)
    record(made, "echo older > older")
    record(made, "sed -i s/import/IMPORT/ f.py sub/*; echo x > new")
    for name in ("f.py", "sub/odd name'.txt"):
        with (made.root / name).open("a") as file:
            file.write("# mine\n")
    return made


def record(project: Project, command: str) -> None:
    """A turn of the one session that is recorded."""
    with project.session("work") as session, session.turn(command), session.tool("bash"):
        subprocess.run(command, shell=True, check=True, cwd=project.root)


def follow(project: Project, advice: str, cwd: Path | None = None) -> Ran:
    """Type what was printed."""
    words = shlex.split(advice)
    assert words[0] == "backtrail"
    return project.run(*words[1:], cwd=cwd)


def test_the_advice_is_a_command_that_works(project: Project) -> None:
    """For each file, from where the person is; nothing older is touched."""
    done = project.run("undo", "--yes", cwd=project.root / "sub")
    assert done.code == 4
    found = ADVICE.findall(done.err)
    assert len(found) == 2
    for advice in found:
        assert "--on-conflict merge" in advice
        assert follow(project, advice, project.root / "sub").code == 0
    assert project.files() == {
        "f.py": LINES + "# mine\n",
        "sub/odd name'.txt": LINES + "# mine\n",
        "older": "older\n",
    }
    for advice in found:
        again = follow(project, advice, project.root / "sub")
        assert (again.code, again.out.startswith("nothing to do")) == (0, True)


def test_the_advice_after_a_rewind_works_too(project: Project) -> None:
    """Going to the last prompt again would go to the one before it."""
    done = project.run("rewind", "--last", "--yes", "--json")
    assert done.code == 4
    assert len(done.json["decide"]) == 2
    for advice in done.json["decide"]:
        assert follow(project, advice).code == 0
    assert project.files()["f.py"] == LINES + "# mine\n"
    assert "older" in project.files()


def test_undo_with_a_choice_goes_on_with_the_undo(project: Project) -> None:
    """It says so, and stays at that turn."""
    assert project.run("undo", "--yes").code == 4
    dry = project.run("undo", "--dry-run", "--on-conflict", "merge")
    assert dry.out.startswith("would take back what was kept of the turn")
    done = project.run("undo", "--yes", "--on-conflict", "merge")
    assert (done.code, "older" in done.out) == (0, False)
    assert done.out.startswith("took back what was kept of the turn")
    assert project.files()["f.py"] == LINES + "# mine\n"
    assert "older" in project.files()
    assert project.run("undo", "--yes").code == 0
    assert "older" not in project.files()


def test_undo_with_a_choice_after_redo_has_the_file_again(project: Project) -> None:
    """What was kept is still in effect, so it is taken back now."""
    assert project.run("undo", "--yes").code == 4
    assert project.run("redo", "--yes").code == 0
    done = project.run("undo", "--yes", "--on-conflict", "merge")
    assert done.code == 0
    assert "merged   f.py" in done.out
    assert project.files()["f.py"] == LINES + "# mine\n"


def test_where_nothing_but_the_kept_can_be_undone(tmp_path: Path) -> None:
    """The first turn of a session can be finished, too."""
    project = empty(tmp_path)
    project.write("f.py", LINES)
    record(project, "sed -i s/import/IMPORT/ f.py")
    project.write("f.py", project.files()["f.py"] + "# mine\n")
    assert project.run("undo", "--yes").code == 4
    assert project.run("undo", "--yes", "--on-conflict", "merge").code == 0
    assert project.files() == {"f.py": LINES + "# mine\n"}


def test_a_preview_says_what_is_refused(tmp_path: Path) -> None:
    """A purged file: the preview names it and fails as acting does; neither changes anything."""
    project = empty(tmp_path)
    project.write(".env", "TOKEN=x\n")
    project.write("f.py", LINES)
    record(project, "rm .env; sed -i s/import/IMPORT/ f.py")
    assert project.run("purge", "--path", ".env", "--yes").code == 0
    dry = project.run("undo", "--dry-run")
    done = project.run("undo", "--yes")
    assert (dry.code, done.code) == (3, 3)
    assert "create" not in dry.out
    assert ".env" in dry.out and ".env" in dry.err and ".env" in done.err
    row = project.run("undo", "--dry-run", "--json").json
    assert (row["can_rewind"], ".env" in row["error"]) == (False, True)
    assert project.files() == {"f.py": LINES.replace("import", "IMPORT")}


# --- restore without a point -------------------------------------------------------------


def test_restore_after_a_rewind_leaves_what_is_taken_back(tmp_path: Path) -> None:
    """Both turns are taken back: the file holds nothing of the session."""
    project = empty(tmp_path)
    project.write("f", "1\n2\n3\n4\n")
    record(project, "sed -i s/1/one/ f")
    record(project, "sed -i s/3/three/ f")
    assert project.run("rewind", "--before", "@-2", "--yes").code == 0
    assert project.files()["f"] == "1\n2\n3\n4\n"
    for more in ([], ["--on-conflict", "merge"], ["--dry-run"], ["--json"]):
        done = project.run("restore", "f", "--yes", *more)
        assert done.code == 0, done
        assert "--json" in more or "nothing to do" in done.out
        assert project.files()["f"] == "1\n2\n3\n4\n"
    assert project.run("undo", "--yes").code == 0
    assert project.files()["f"] == "one\n2\nthree\n4\n"
    assert project.run("restore", "f", "--yes").code == 0
    assert project.files()["f"] == "one\n2\n3\n4\n"
    assert project.run("restore", "f", "--yes").code == 0
    assert project.files()["f"] == "1\n2\n3\n4\n"


def test_restore_again_after_a_merge_changes_nothing(project: Project) -> None:
    """The merge took out what the session wrote."""
    again = ["restore", "f.py", "--on-conflict", "merge", "--yes"]
    assert project.run(*again).code == 0
    assert project.files()["f.py"] == LINES + "# mine\n"
    done = project.run(*again)
    assert (done.code, "nothing to do" in done.out) == (0, True)
    assert project.files()["f.py"] == LINES + "# mine\n"


# --- advice that works -------------------------------------------------------------------


def test_where_nothing_can_be_merged_the_advice_says_so(tmp_path: Path) -> None:
    """A file that the session created: the advice is to overwrite, and undo has the rest."""
    project = empty(tmp_path)
    record(project, "echo older > older")
    record(project, "echo agent > new.txt")
    project.write("new.txt", "agent\nmine\n")
    done = project.run("undo", "--yes")
    assert done.code == 4
    (advice,) = ADVICE.findall(done.err)
    assert "the session created it" in done.err
    assert "To delete it" in done.err
    assert "merge" not in advice
    merge = advice.replace("overwrite", "merge")
    tried = follow(project, merge)
    assert (tried.code, ADVICE.findall(tried.err)) == (4, [advice])
    assert follow(project, advice).code == 0
    assert project.files() == {"older": "older\n"}
    assert project.run("undo", "--yes").code == 0
    assert project.files() == {"older": "older\n", "new.txt": "agent\nmine\n"}


def test_where_changes_overlap_the_advice_writes_what_was(tmp_path: Path) -> None:
    """One file can be merged, the other cannot: each has a command that works."""
    project = empty(tmp_path)
    project.write("f.py", LINES)
    project.write("g.py", LINES)
    record(project, "echo older > older")
    record(project, "sed -i s/import/IMPORT/ f.py g.py")
    project.write("f.py", project.files()["f.py"] + "# mine\n")
    project.write("g.py", LINES.replace("import", "my own"))
    done = project.run("undo", "--yes")
    found = ADVICE.findall(done.err)
    assert [("merge" in one, "overwrite" in one) for one in found] == [(True, False), (False, True)]
    assert "the changes overlap" in done.err
    assert [follow(project, one).code for one in found] == [0, 0]
    assert project.files() == {"f.py": LINES + "# mine\n", "g.py": LINES, "older": "older\n"}


def test_what_is_only_possible_is_not_said_as_a_fact(tmp_path: Path) -> None:
    """Two sessions were at work: either may have changed the file."""
    project = empty(tmp_path)
    record(project, "echo older > older")
    with (
        project.session("work") as one,
        project.session("other") as two,
        one.turn("a"),
        one.tool("bash"),
        two.turn("b"),
        two.tool("bash"),
    ):
        project.write("both.txt", "x\n")
    done = project.run("undo", "--yes", "--session", "work")
    assert done.code == 4
    assert "because others changed" not in done.err + done.out
    assert "may have changed" in done.err
    for advice in ADVICE.findall(done.err):
        assert follow(project, advice).code == 0


def test_the_advice_works_while_a_call_is_open(project: Project) -> None:
    """After `--force` the advice has it, too, and the printed command does what it says."""
    code = (
        "import sys, time; from backtrail import Session\n"
        "with Session.create(sys.argv[1], 'other', cwd='.').tool('long one', paths=['apart']):\n"
        "    print('.', flush=True); time.sleep(600)"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code, project.url], cwd=project.root, stdout=subprocess.PIPE
    )
    try:
        assert running.stdout is not None
        running.stdout.readline()
        assert project.run("undo", "--yes", "--session", "work").code == 5
        done = project.run("undo", "--yes", "--force", "--session", "work")
        assert done.code == 4
        found = ADVICE.findall(done.err)
        assert len(found) == 2 and all("--force" in advice for advice in found)
        for advice in found:
            assert follow(project, advice.replace(" --force", "")).code == 5
            assert follow(project, advice).code == 0
    finally:
        running.kill()
        running.communicate()
    assert project.files() == {
        "f.py": LINES + "# mine\n",
        "sub/odd name'.txt": LINES + "# mine\n",
        "older": "older\n",
    }


# --- each case has its own sentence ------------------------------------------------------


ODD = "x\x1b[31mred\x07"


@pytest.fixture
def kept(tmp_path: Path) -> Project:
    """All kinds of things that a command changed, and then a person in another way."""
    project = empty(tmp_path)
    for name in ("overlap", "gone", "todir", "tolink", "new\nline", ODD):
        project.write(name, LINES)
    (project.root / "lnk").symlink_to("overlap")
    record(project, "echo older > older")
    record(project, "sed -i s/import/IMPORT/ overlap gone todir tolink new* x*; echo x > made; "
                    "ln -sfn gone lnk; echo y > madedir")  # fmt: skip
    project.write("overlap", LINES.replace("import", "my own"))
    for name in ("gone", "todir", "tolink", "lnk", "madedir"):
        (project.root / name).unlink()
    for name in ("todir", "madedir"):
        project.write(f"{name}/in", "mine\n")
    for name in ("tolink", "lnk"):
        (project.root / name).symlink_to("older")
    for name in ("new\nline", ODD, "made"):
        with (project.root / name).open("a") as file:
            file.write("# mine\n")
    return project


def in_a_shell(project: Project, command: str) -> int:
    """Give a printed line to a shell, as a person does who copies it."""
    code = shlex.join([sys.executable, "-c", CODE])
    line = f'backtrail() {{ {code} "$@"; }}\n{command}\n'
    return subprocess.run(
        ["bash", "-c", line], cwd=project.root, env=project.environment(), capture_output=True
    ).returncode


def test_every_kept_file_has_a_command_that_a_shell_takes(kept: Project) -> None:
    """Whatever it is called, and whatever a person made of it; undo has the person's back."""
    done = kept.run("undo", "--yes", "--json").json
    assert len(done["conflicts"]) == len(done["decide"]) == 9
    assert all(command.isprintable() for command in done["decide"])
    theirs = kept.files()
    for command in done["decide"]:
        assert in_a_shell(kept, command) == 0, command
    lines = dict.fromkeys(("gone", "overlap", "todir", "tolink"), LINES)
    merged = dict.fromkeys((ODD, "new\nline"), LINES + "# mine\n")
    assert kept.files() == {**lines, **merged, "older": "older\n", "lnk": LINES}
    assert (kept.root / "lnk").readlink() == Path("overlap")
    for _ in done["decide"]:
        assert kept.run("undo", "--yes").code == 0
    assert kept.files() == theirs


def test_what_overwriting_does_is_said_as_it_is(
    kept: Project,
) -> None:
    """It removes what others wrote; where nothing, a link or a folder is, that is said."""
    kept.run("undo", "--yes")
    ran = ""
    for names in (("overlap", "gone", "made", "madedir"), ("todir", "tolink", "lnk")):
        for name in names:
            ran += kept.run("restore", name, "--at", "2", "--yes").err
    then, others = "put back what was there then", "and remove whatever others made of it since"
    folder = "remove the folder with all that is in it"
    for line in (
        f"overlap cannot be merged: the changes overlap. To {then} {others} (`undo` takes",
        f"gone cannot be merged: it is not there now. To {then} (`undo` takes",
        "made cannot be merged: the session created it. To delete it, with whatever others wrote",
        f"todir cannot be merged: it is a folder now. To {folder} and {then} (`undo` takes",
        f"madedir cannot be merged: it is a folder now. To {folder} (`undo` takes",
        f"tolink cannot be merged: it is a link now. To {then} {others}",
        f"lnk cannot be merged: it is a link now. To {then} {others}",
    ):
        assert line in ran, line


def test_a_name_of_two_lines_stays_on_one(kept: Project) -> None:
    """Also where the plan names what was written beside what."""
    done = kept.run("undo", "--yes", "--on-conflict", "aside")
    assert "(beside new\\nline)" in done.out


def test_a_rewind_done_again_says_what_it_kept(project: Project) -> None:
    """What is kept still is said as the rewind said it, with advice that works; no more after."""
    before = project.files()
    done = project.run("rewind", "--last", "--yes", "--json")
    kept = ["f.py", "sub/odd name'.txt"]
    assert done.code == 4
    assert [file["path"] for file in done.json["conflicts"]] == kept
    rewound = project.files()
    assert rewound == {name: text for name, text in before.items() if name != "new"}
    assert project.run("undo", "--yes").code == 0
    assert project.files() == before
    seen = project.run("redo", "--dry-run", "--json")
    again = project.run("redo", "--yes", "--json")
    assert (seen.code, again.code) == (0, 4)
    assert seen.json["conflicts"] == again.json["conflicts"] == done.json["conflicts"]
    assert again.json["decide"] == done.json["decide"]
    assert project.files() == rewound
    assert project.run("undo", "--yes").code == 0
    # By now a person made one of them as it was before the turn: that one is in no one's way.
    project.write("f.py", LINES)
    ran = project.run("redo", "--yes")
    assert ran.code == 4
    assert "1 file kept, because others changed it." in ran.err
    (advice,) = ADVICE.findall(ran.err)
    assert follow(project, advice).code == 0
    assert project.files() == {
        "f.py": LINES, "sub/odd name'.txt": LINES + "# mine\n", "older": "older\n",
    }  # fmt: skip


def test_a_rewind_that_kept_all_is_said_again(project: Project) -> None:
    """It moved the conversation only, and so does the redo."""
    (project.root / "new").unlink()
    before = project.files()
    for verb in (("rewind", "--last"), ("undo",), ("redo",)):
        done = project.run(*verb, "--yes")
        assert done.code == (0 if verb == ("undo",) else 4), done.err
        assert project.files() == before


def test_a_choice_decides_on_what_a_rewind_kept_that_is_done_again(project: Project) -> None:
    """As it would have in the rewind itself; undo and redo lead there and back."""
    before = project.files()
    assert project.run("rewind", "--last", "--yes").code == 4
    kept = project.files()
    assert project.run("undo", "--yes").code == 0
    seen = project.run("redo", "--on-conflict", "merge", "--dry-run", "--json")
    done = project.run("redo", "--on-conflict", "merge", "--yes", "--json")
    assert (seen.code, done.code) == (0, 0)
    assert seen.json["files"] == done.json["files"]
    merged = project.files()
    mine = LINES + "# mine\n"
    assert merged == {**kept, "f.py": mine, "sub/odd name'.txt": mine}
    assert project.run("undo", "--yes").code == 0
    assert project.files() == before
    assert project.run("redo", "--yes").code == 0
    assert project.files() == merged
    # What is merged is taken back: merging once more finds nothing to take out.
    assert project.run("rewind", "--before", "@-1", "--on-conflict", "merge", "--yes").code == 0
    assert project.files() == {"f.py": mine, "sub/odd name'.txt": mine}


@pytest.mark.parametrize("choice", ["aside", "overwrite"])
def test_every_choice_decides_on_what_a_rewind_kept(project: Project, choice: str) -> None:
    """A copy beside each file, or the earlier content in its place; undo takes back either."""
    before = project.files()
    project.run("rewind", "--last", "--yes")
    kept = project.files()
    project.run("undo", "--yes")
    done = project.run("redo", "--on-conflict", choice, "--yes")
    assert done.code == (4 if choice == "aside" else 0), done.err
    after = project.files()
    new = {name: text for name, text in after.items() if kept.get(name) != text}
    assert (len(new), {*new.values()}) == (2, {LINES})
    assert len(after) == len(kept) + (2 if choice == "aside" else 0)
    assert project.run("undo", "--yes").code == 0
    assert project.files() == before
