"""fork and resume: a session beside another, and the line that goes on with one."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.stores import open_store

from .acting import BROKEN, MADE, Project, empty, files_in, work
from .stage import Stage


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = empty(tmp_path)
    work(made)
    return made


def test_a_fork_has_the_history_up_to_its_point(project: Project) -> None:
    """The original stays as it is, and so do the files."""
    done = project.run("fork", "4", "--title", "plan B")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "forked work at prompt 1, with 2 messages"
    id = lines[1].split()[2]
    assert lines[1].endswith("plan B")
    assert lines[2] == f"folder: {project.root}, with the files as they are"
    assert lines[3] == f"go on with: cd {project.root} && backtrail chat --resume {id}"
    assert project.said(id) == ["make a file", "Made."]
    assert len(project.said()) == 4
    assert project.files() == BROKEN


def test_a_fork_into_a_folder_gets_the_files_of_then(project: Project) -> None:
    """And works there; a folder that has something in it is refused."""
    into = project.home / "plan b"
    done = project.run("fork", "4", "--into", str(into), "--json")
    assert done.code == 0
    assert done.json["cwd"] == str(into)
    assert (done.json["parent"], done.json["at"], done.json["messages"]) == ("work", 4, 2)
    assert files_in(into) == MADE
    assert done.json["resume"].startswith(f"cd {shlex.quote(str(into))} && ")
    taken = project.run("fork", "--into", str(into), "--json")
    assert taken.code == 1
    assert "not empty" in taken.json["error"]["message"]
    with open_store(project.url) as store:
        assert len(store.sessions()) == 2


def test_a_fork_of_nowhere(project: Project) -> None:
    """Exit code 3, and nothing is made."""
    assert project.run("fork", "nowhere").code == 3
    assert project.run("fork", "--session", "nobody").code == 3
    with open_store(project.url) as store:
        assert len(store.sessions()) == 1


def test_resume_prints_the_line(project: Project) -> None:
    """For the latest session here, or any; one of another agent goes on in that agent."""
    assert project.run("resume").out == f"cd {project.root} && backtrail chat --resume work\n"
    own = project.home / "0f-1.jsonl"
    own.touch()
    named = {"native": {"agent": "claude-code", "id": "0f-1", "path": str(own)}}
    with Session.create(
        project.url, "theirs", cwd=project.home, agent_name="claude-code", metadata=named
    ) as session:
        session.append({"role": "user", "content": "hi"})
    done = project.run("resume", "theirs")
    assert done.out == f"cd {project.home} && claude --resume 0f-1\n"
    row = project.run("resume", "theirs", "--json").json
    assert row == {
        "session": "theirs",
        "agent": "claude-code",
        "cwd": str(project.home),
        "command": f"cd {project.home} && claude --resume 0f-1",
    }
    given = project.run("resume", "work", "--store", project.url)
    assert given.out.endswith(f"--resume work --store {project.url}\n")
    assert project.run("resume", "nobody").code == 3


def test_resume_runs_the_agent_in_its_folder(project: Project) -> None:
    """The agent's own command, with the native id; its exit code is ours."""
    bin = project.home / "bin"
    bin.mkdir()
    (bin / "codex").write_text('#!/bin/sh\npwd\necho "$@"\nexit 7\n')
    (bin / "codex").chmod(0o755)
    (project.home / "0f-2.jsonl").touch()
    path = str(project.home / "0f-2.jsonl")
    named = {"native": {"agent": "codex", "id": "0f-2", "path": path}}
    with Session.create(
        project.url, "theirs", cwd=project.root, agent_name="codex", metadata=named
    ) as session:
        session.append({"role": "user", "content": "hi"})
    done = project.run("resume", "theirs", "--run", cwd=project.home, PATH=f"{bin}:/usr/bin:/bin")
    assert done.code == 7
    assert done.out == f"{project.root}\nresume 0f-2\n"


def test_resume_writes_a_native_session_that_is_gone(project: Project) -> None:
    """An agent tidies up after a month; what it said then is still here."""
    named = {"native": {"agent": "claude-code", "id": "0f-3", "path": str(project.home / "gone")}}
    with Session.create(
        project.url, "theirs", cwd=project.root, agent_name="claude-code", metadata=named
    ) as session:
        session.append({"role": "user", "content": "what was said"})
    line = project.run("resume", "theirs").out.strip()
    (made,) = project.home.glob(".claude/projects/*/*.jsonl")
    assert line == f"cd {project.root} && claude --resume {made.stem}" and made.stem != "0f-3"
    assert "what was said" in made.read_text()


@pytest.mark.parametrize("how", [(), ("--run",), ("--json",)], ids=["line", "run", "json"])
def test_resume_of_a_folder_that_is_gone(project: Project, how: tuple[str, ...]) -> None:
    """It says so, and what to do: a line with that folder in it would not work."""
    project.root.rename(project.home / "moved")
    done = project.run("resume", "work", *how, cwd=project.home)
    assert done.code == 3
    assert "relocate" in done.err


@pytest.mark.parametrize("how", ["fork", "import"])
def test_what_was_never_in_the_new_folder_did_not_change_there(stage: Stage, how: str) -> None:
    """What the old folder has and is not captured, as version control, is no change by others."""
    (stage.project / ".git").mkdir()
    (stage.project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (stage.project / "o.txt").write_text("one\n")
    with stage.session("work") as session, session.turn("go"), session.tool("bash"):
        (stage.project / "o.txt").write_text("two\n")
        (stage.project / "node_modules").mkdir()
        (stage.project / "node_modules" / "a").write_text("a\n")
    new, store = stage.folder / "new", stage.url
    if how == "fork":
        assert stage.run("fork", "--into", str(new)).code == 0
    else:
        store = f"sqlite:///{stage.folder}/b/other.db"
        bundle = str(stage.folder / "work.bundle")
        assert stage.run("export", "--bundle", "-o", bundle).code == 0
        assert stage.run("import", bundle, "--into", str(new), BACKTRAIL_STORE=store).code == 0

    def since() -> list[str]:
        found = stage.run("status", "--json", cwd=new, BACKTRAIL_STORE=store).json
        return [file["path"] for file in found["since"]]

    assert since() == []
    assert stage.run("diff", "@-1", "--json", cwd=new, BACKTRAIL_STORE=store).json["files"] != []
    assert ".git" not in stage.run("diff", "@-1", cwd=new, BACKTRAIL_STORE=store).out
    assert stage.run("undo", "--yes", cwd=new, BACKTRAIL_STORE=store).code == 0
    assert since() == []
    (new / "o.txt").write_text("three\n")
    assert since() == ["o.txt"]
    # In the old folder it is one.
    (stage.project / ".git").rename(stage.folder / "apart")
    old = stage.run("status", "work", "--json").json["since"]
    assert [file["path"] for file in old] == [".git"]
