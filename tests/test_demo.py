"""The tour is a promise too: what it shows is real, and it loses nothing."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-W", "error", "-m", "backtrail"]


@dataclass(frozen=True)
class Tour:
    """A tour that was taken: what it printed, and the environment it had."""

    out: str
    env: dict[str, str]

    @property
    def folder(self) -> Path:
        """The folder that it named."""
        return Path(self.out.splitlines()[1].strip())

    @property
    def commands(self) -> list[str]:
        """The commands that it showed."""
        return re.findall(r"^\$ (.*)$", self.out, re.MULTILINE)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    """One tour, with a home and a folder for temporary files of its own."""
    place = tmp_path_factory.mktemp("tour")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "TMPDIR": str(place),
        "PYTHONWARNINGS": "error",
    }
    done = subprocess.run([*COMMAND, "demo"], capture_output=True, text=True, env=env, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return Tour(done.stdout, env)


def test_the_tour_shows_every_verb_it_speaks_of(tour: Tour) -> None:
    """Each as a command that a person could type."""
    verbs = {line.split()[1] for line in tour.commands if line.startswith("backtrail ")}
    assert verbs == {
        "diff", "export", "fork", "log", "redo", "rewind", "search", "tree", "undo", "verify",
    }  # fmt: skip
    assert "backtrail" in tour.commands
    for step in ("rm -rf lib .env", "mv app.py", "sed -i", "kill -9", "0 problems"):
        assert step in tour.out


def test_what_the_tour_shows_is_true(tour: Tour) -> None:
    """The files are back, the person's edit is there, the page and the fork as well."""
    project = tour.folder / "project"
    assert (project / ".env").read_text() == "TOKEN=the-only-copy\n"
    assert "input(" in (project / "app.py").read_text()
    assert (project / "notes.md").read_text().endswith("Mine: ask Monday about the token.\n")
    assert sorted(path.name for path in project.iterdir()) == [".env", "app.py", "lib", "notes.md"]
    assert (tour.folder / "plan-b" / ".env").exists()
    assert (tour.folder / "greeter.html").read_text().startswith("<!doctype html>")
    reported, found = re.findall(r"reported (\d+) events when it died; (\d+) are", tour.out)[0]
    assert 100 <= int(reported) <= int(found)


def test_the_tour_touches_nothing_but_the_folder_it_names(tour: Tour) -> None:
    """Neither the home folder nor that for temporary files has anything else."""
    assert list(Path(tour.env["HOME"]).iterdir()) == [tour.folder]


def test_the_tour_in_a_pipe_has_no_escape_codes(tour: Tour) -> None:
    """Nor have the commands that it runs."""
    assert "\x1b" not in tour.out


def test_one_can_go_on_by_hand(tour: Tour) -> None:
    """The lines at the end, typed into a shell, lead back to the session."""
    farewell = tour.out[tour.out.index("Go on by hand:") :]
    lines = [line.strip() for line in farewell.splitlines() if line.startswith("  ")]
    cd, store, *_ = lines
    assert cd.startswith("cd ") and store.startswith("export BACKTRAIL_STORE=")
    undo, redo = (shlex.join([*COMMAND, verb, "--yes"]) for verb in ("undo", "redo"))
    script = f"set -e\n{cd}\n{store}\n{undo} >&2\nls -A\n{redo} >&2\n"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=tour.env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["main.py", "notes.md", "src"]
    assert lines[-1].startswith(f"backtrail ui --store sqlite:///{tour.folder}")
    assert f"rm -rf {tour.folder}" in lines


@pytest.mark.parametrize("read", [1, 2000])
def test_a_reader_may_leave_early(read: int, tmp_path: Path) -> None:
    """`backtrail demo | head` ends quietly, in our own words or in those of a command."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*COMMAND, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path
    ) as tour:
        assert tour.stdout is not None and tour.stderr is not None
        assert len(tour.stdout.read(read)) == read
        tour.stdout.close()
        assert tour.stderr.read() == b""
        assert tour.wait() == 1
