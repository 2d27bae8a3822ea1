"""A session from a bundle on the command line: into a new folder, or where it is allowed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.exchange.bundle import read_bundle, write_bundle
from backtrail.stores import open_store
from tests.exchange.forging import forged, packed

from .acting import BROKEN, MADE, Project, empty, files_in, work
from .terminal import ENTER


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project, and another person's session of the same files, which came in a bundle."""
    made = empty(tmp_path)
    (tmp_path / "other").mkdir()
    other = empty(tmp_path / "other")
    work(other, "theirs")
    with open_store(other.url) as store:
        write_bundle(store, "theirs", tmp_path / "b.bundle")
    shutil.copytree(other.root, made.root, dirs_exist_ok=True)
    shutil.rmtree(other.root)
    with open_store(made.url) as store:
        read_bundle(store, tmp_path / "b.bundle", cwd=made.root)
    return made


def test_it_is_refused_until_the_folder_is_allowed(project: Project) -> None:
    """Without a terminal `--allow` says so, once; the preview says it before."""
    assert project.files() == BROKEN
    for verb in (["undo"], ["rewind", "--last"], ["restore", "app.py"]):
        ran = project.run(*verb, "--dry-run")
        assert ran.code == 0 and "came from a bundle" in ran.out + ran.err
        ran = project.run(*verb, "--yes")
        assert ran.code == 1
        assert "`--allow`" in ran.err and "--into DIR" in ran.err
        assert project.files() == BROKEN
    assert project.run("undo", "--yes", "--json").json["error"]["code"] == "error"
    assert len(project.said("theirs")) == 4
    ran = project.run("undo", "--yes", "--allow")
    assert ran.code == 0 and f"allowed from now on: {project.root}" in ran.err
    assert project.files() == MADE
    assert project.run("redo", "--yes").code == 0
    assert project.files() == BROKEN


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_a_person_is_asked_once(project: Project, answer: str) -> None:
    """On a terminal; only yes is yes."""
    with project.terminal("undo", columns=400) as terminal:
        assert "came from a bundle" in terminal.wait_for("Undo? [y/N]")
        terminal.press("y", ENTER)
        terminal.wait_for(f"write into {project.root}? [y/N]")
        terminal.press(answer, ENTER)
        assert terminal.end() == (0 if answer == "y" else 1)
    assert project.files() == (MADE if answer == "y" else BROKEN)
    if answer == "y":
        assert project.run("redo", "--yes").code == 0


def test_conversation_alone_needs_no_allowance(project: Project) -> None:
    """Nothing is written."""
    assert project.run("rewind", "--last", "--scope", "conversation", "--yes").code == 0
    assert project.files() == BROKEN and len(project.said("theirs")) == 2


def test_into_a_new_folder(project: Project, tmp_path: Path) -> None:
    """A fork or an import with its files: the folder is the session's own."""
    ran = project.run("fork", "@-1", "--into", "../new", "--json")
    assert ran.code == 0 and files_in(tmp_path / "new") == MADE
    bundle = str(tmp_path / "b.bundle")
    ran = project.run("import", bundle, "--as", "again", "--into", "../fresh")
    assert ran.code == 0 and files_in(tmp_path / "fresh") == BROKEN
    assert project.run("undo", "--yes", "-s", "again", cwd=tmp_path / "fresh").code == 0
    assert files_in(tmp_path / "fresh") == MADE
    for into in ("../fresh", "."):
        ran = project.run("import", bundle, "--as", "third", "--into", into)
        assert ran.code == 1 and "not empty" in ran.err
    assert project.run("show", "third").code == 3
    ran = project.run("import", bundle, "--into", "../other-new")
    assert ran.code == 1 and "here already" in ran.err
    assert not (tmp_path / "other-new").exists()


def test_an_edit_in_the_new_folder_is_a_change_there(project: Project, tmp_path: Path) -> None:
    """The folder is known from the import on: an edit makes it no other one."""
    bundle, fresh = str(tmp_path / "b.bundle"), tmp_path / "fresh"
    project.run("import", bundle, "--as", "again", "--into", "../fresh")
    (fresh / "mine").write_text("mine\n")
    ran = project.run("status", "again", cwd=fresh)
    assert "relocate" not in ran.out and "mine" in ran.out
    assert project.run("undo", "--yes", "-s", "again", cwd=fresh).code == 0
    assert files_in(fresh) == {**MADE, "mine": "mine\n"}


def test_what_is_not_captured_is_no_difference(tmp_path: Path) -> None:
    """A bundle has no `.git`, packages or large files: the new folder is the session's own."""
    other = empty(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=other.root, check=True)
    for name in ("node_modules", "lib"):
        (other.root / name / ".git").mkdir(parents=True)
        (other.root / name / ".git" / "HEAD").write_text("x")
    with (other.root / "huge").open("wb") as file:
        file.truncate(30 << 20)
    work(other, "theirs")
    with open_store(other.url) as store:
        write_bundle(store, "theirs", tmp_path / "b.bundle")
    ran = other.run("import", "../b.bundle", "--as", "again", "--into", "../fresh")
    assert (ran.code, "4 messages" in ran.err) == (0, True), ran.err
    fresh = tmp_path / "fresh"
    assert files_in(fresh) == BROKEN
    ran = other.run("undo", "--yes", "-s", "again", cwd=fresh)
    assert ran.code == 0, ran.err
    assert files_in(fresh) == MADE
    # What was captured and is another is a difference still.
    ran = other.run("import", "../b.bundle", "--as", "third", "--into", "../third")
    (tmp_path / "third" / "app.py").write_text("mine\n")
    ran = other.run("undo", "--yes", "-s", "third", cwd=tmp_path / "third")
    assert (ran.code, "1 file kept" in ran.err) == (4, True), ran.err
    assert (tmp_path / "third" / "app.py").read_text() == "mine\n"


def test_a_fork_is_a_strangers_too(project: Project) -> None:
    """Also of a fork, and in a copy of the store; the mark is none of the bundle's."""
    with Session.resume(project.url, "theirs") as s:
        s.fork(session_id="one").fork(session_id="two").close()
    ran = project.run("rewind", "1", "--yes", "-s", "two")
    assert ran.code == 1 and "came from a bundle" in ran.err
    assert project.files() == BROKEN


def test_no_folder_is_made_where_a_bundle_says(tmp_path: Path) -> None:
    """A folder that is gone is made again for a person's own session, not for a stranger's."""
    made = empty(tmp_path)
    place = tmp_path / ".config" / "autostart"
    bundle = tmp_path / "b"
    bundle.write_bytes(packed(forged([{"evil.desktop": b"x"}, {}], place)))
    assert made.run("import", str(bundle)).code == 0
    for verb in (["undo"], ["rewind", "1", "--mode", "exact"]):
        ran = made.run(*verb, "-s", "theirs", "--yes")
        assert ran.code == 1
    assert not (tmp_path / ".config").exists()


def test_a_strangers_transcript_is_one_too(project: Project, tmp_path: Path) -> None:
    """What lies in the person's own agent folder is the person's."""
    from backtrail.exchange.foreign import find
    from tests.exchange.transcripts import SAMPLES

    sample = next((SAMPLES / "claude-code").rglob("*.jsonl"))
    (one,) = find("claude-code", sample)
    assert not one.own
    home = tmp_path / ".claude" / "projects" / "-p"
    home.mkdir(parents=True)
    shutil.copy(sample, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / ".claude"))
        assert all(one.own for one in find("claude-code"))
