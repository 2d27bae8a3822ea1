"""`diff` in a pipe is a patch: `git apply` makes of the files before what they are now."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from .acting import Project, empty

Files = dict[str, tuple[int, bytes]]


def look(folder: Path) -> Files:
    """The files as git sees them: the executable bit, and contents or where a link leads."""
    found: Files = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(".git"):
            continue
        if path.is_symlink():
            found[name] = 0o120000, os.fsencode(os.readlink(path))
        elif path.is_file():
            found[name] = path.stat().st_mode & stat.S_IXUSR, path.read_bytes()
    return found


def change(root: Path) -> None:
    """All that can happen to a file."""
    text = (root / "moved.py").read_text()
    (root / "moved.py").unlink()
    (root / "sub").mkdir()
    (root / "sub/with a space.py").write_text(text.replace("line 7\n", "LINE 7\nand more\n"))
    (root / "same.py").rename(root / "sub/same.py")
    (root / "gone.txt").unlink()
    (root / "tool.sh").chmod(0o755)
    (root / "both.sh").write_text("#!/bin/sh\necho 2\n")
    (root / "both.sh").chmod(0o755)
    (root / "windows.txt").write_bytes(b"a\r\nB\r\nc\r\n")
    (root / "end.txt").write_text("no newline at the end")
    (root / 'odd "name".txt').write_text("ß\n")
    (root / "ünï\tcode.txt").write_text("new\n")
    (root / "empty").write_text("")
    (root / "link").unlink()
    (root / "link").symlink_to("windows.txt")
    (root / "becomes").unlink()
    (root / "becomes").symlink_to("tool.sh")
    (root / "form.txt").write_text("a\x0cfeed\nand a \x1b[31mcolour\n")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A folder before and after one turn; what it was is kept beside it."""
    made = empty(tmp_path)
    made.write("moved.py", "".join(f"line {n}\n" for n in range(20)))
    made.write("same.py", "the same\n" * 5)
    made.write("gone.txt", "gone\n")
    made.write("tool.sh", "#!/bin/sh\n")
    made.write("both.sh", "#!/bin/sh\necho 1\n")
    (made.root / "windows.txt").write_bytes(b"a\r\nb\r\nc\r\n")
    made.write("end.txt", "no newline\nat the end")
    made.write('odd "name".txt', "s\n")
    made.write("becomes", "a file\n")
    made.write("form.txt", "a\x0cfeed\n")
    (made.root / "link").symlink_to("moved.py")
    shutil.copytree(made.root, made.home / "before", symlinks=True)
    with made.session("work") as session, session.turn("all of it"), session.tool("bash"):
        change(made.root)
    return made


@pytest.mark.parametrize("points", [[], ["prompt 1"], ["0"]])
def test_git_apply_takes_it(project: Project, points: list[str]) -> None:
    """Moved files with their edits, modes, links, odd names and ends of lines."""
    before, patch = project.home / "before", project.home / "patch"
    with patch.open("wb") as file:
        # Not as text: each byte counts.
        command = [sys.executable, "-m", "backtrail", "diff", *points]
        subprocess.run(
            command, stdout=file, cwd=project.root, env=project.environment(), check=True
        )
    git = ["git", "-c", "core.quotePath=false"]
    subprocess.run([*git, "init", "-q"], cwd=before, check=True)
    subprocess.run([*git, "apply", "--whitespace=nowarn", str(patch)], cwd=before, check=True)
    assert look(before) == look(project.root)
    assert "rename from moved.py" in patch.read_text(errors="replace")


def test_a_pager_shows_it_on_a_terminal(project: Project) -> None:
    """The person's own; what is in the files is shown there and never obeyed."""
    pager = project.home / "pager"
    pager.write_text("#!/bin/sh\ncat\necho PAGED\n")
    pager.chmod(0o755)
    with project.terminal("diff", PAGER=str(pager), lines=120) as terminal:
        text = terminal.wait_for("PAGED")
        assert terminal.end() == 0
    assert "+and a \\x1b[31mcolour" in text
    assert b"\x1b[31mcolour" not in terminal.raw


def test_a_pager_that_is_left_early_is_no_error(project: Project) -> None:
    """Nor one that is not there."""
    with project.terminal("diff", PAGER="head -1") as terminal:
        terminal.wait_for("diff --git")
        assert terminal.end() == 0
    with project.terminal("diff", PAGER="no-such-pager", lines=120) as terminal:
        terminal.wait_for("rename to")
        assert terminal.end() == 0
