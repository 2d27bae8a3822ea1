"""Going back in the session of another agent: it gets a session of its own to go on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backtrail.exchange.hooks.small_files import take_notes
from backtrail.files.changes.reversal import last_prompt, restores, unknown
from backtrail.files.depot import opened
from backtrail.session.filepoints import last_tree
from backtrail.stores import open_store

from .acting import BROKEN, MADE, Project, empty, files_in, work


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "claude/projects/x").mkdir(parents=True)
    made = empty(tmp_path)
    old = tmp_path / "claude/projects/x/old.jsonl"
    old.write_text("the agent's own\n")
    native = {"agent": "claude-code", "id": "old", "path": str(old)}
    work(made, agent_name="claude-code", metadata={"native": native})
    return made


def natives(project: Project) -> dict[str, list[str]]:
    """The agent's sessions but the old one: id to what was said."""
    found: dict[str, list[str]] = {}
    for path in project.home.glob("claude/projects/*/*.jsonl"):
        if path.name == "old.jsonl":
            assert path.read_text() == "the agent's own\n"
            continue
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.stem] = [_text(line) for line in lines if line["type"] in ("user", "assistant")]
    return found


def _text(line: dict[str, dict[str, str | list[dict[str, str]]]]) -> str:
    content = line["message"]["content"]
    return content if isinstance(content, str) else content[0]["text"]


def outdated(project: Project) -> list[str]:
    """The files that the agent's next prompt reports, by what the logs say."""
    with open_store(project.url) as store, opened(store) as depot:
        now, last = last_tree(store, "work"), last_prompt(store.walk("work"))
        assert now is not None and last is not None
        found = restores(store, store.record("work"), last[1])
        return [path.decode() for path in unknown(depot.blobs.get, last[0], found, now)]


def noted(project: Project) -> list[str]:
    """What is left for the agent's next prompt besides."""
    with open_store(project.url) as store:
        return take_notes(store, "work")


def test_a_rewind_gives_the_agent_a_new_session(project: Project) -> None:
    """With the kept history, and the line that resumes it; undo gives it all of it again."""
    done = project.run("rewind", "--last", "--yes")
    assert done.code == 0, done.err
    ((id, said),) = natives(project).items()
    assert said == ["make a file", "Made."]
    line = f"cd {project.root} && claude --resume {id}"
    assert f"go on in the agent with: {line}\n" in done.out
    assert project.run("resume", "work").out == f"{line}\n"
    assert outdated(project) == []
    assert noted(project) == []
    undone = project.run("undo", "--yes", "--json").json
    assert undone["resume"] == f"cd {project.root} && claude --resume {undone['native']['id']}"
    assert natives(project)[undone["native"]["id"]][2:] == ["now break things", "Broken."]


def test_where_nothing_is_left_the_agent_begins_anew(project: Project) -> None:
    """There is no session to resume; `resume` and the rewind say the same line."""
    done = project.run("rewind", "--before", "1", "--yes", "--json").json
    assert f"claude --session-id {done['native']['id']}" in done["resume"]
    assert project.run("resume", "work").out == f"{done['resume']}\n"
    # It was begun, perhaps without our hooks.
    Path(done["native"]["path"]).parent.mkdir(exist_ok=True)
    Path(done["native"]["path"]).write_text("{}\n")
    assert f"claude --resume {done['native']['id']}\n" in project.run("resume", "work").out


def test_a_rewind_of_files_is_reported(project: Project) -> None:
    """The agent's session is not touched; it hears of what differs in the end."""
    done = project.run("rewind", "--last", "--scope", "files", "--yes")
    assert done.code == 0
    assert natives(project) == {}
    assert outdated(project) == ["app.py", "notes.md", "old.py"]
    assert project.run("restore", "new.py", "--yes").code == 0
    assert outdated(project) == ["app.py", "new.py", "notes.md", "old.py"]
    assert project.run("undo", "--yes").code == 0
    assert project.run("undo", "--yes").code == 0
    assert outdated(project) == []
    assert noted(project) == []


def test_a_dry_run_leaves_no_note(project: Project) -> None:
    """Neither does a rewind that changes nothing."""
    assert project.run("rewind", "--last", "--dry-run").code == 0
    assert "nothing to do" in project.run("rewind", "7", "--yes").out
    assert natives(project) == {}
    assert outdated(project) == []
    assert noted(project) == []
    assert project.files() == BROKEN


def test_a_fork_goes_on_in_its_folder(project: Project) -> None:
    """The line is that of the fork's own native session; the original keeps its own."""
    into = project.home / "copy"
    done = project.run("fork", "4", "--into", str(into), "--json").json
    assert natives(project)[done["native"]["id"]] == ["make a file", "Made."]
    assert done["resume"] == f"cd {into} && claude --resume {done['native']['id']}"
    assert files_in(into) == MADE
    assert project.run("resume", done["session"]).out == f"{done['resume']}\n"
    assert project.run("resume", "work").out.endswith("claude --resume old\n")


def test_a_rewind_is_done_even_if_no_note_can_be_left(project: Project) -> None:
    """It says both, with exit code 1, and the way back."""
    projects = project.home / "claude/projects"
    (projects / "x/old.jsonl").unlink()
    (projects / "x").rmdir()
    projects.rmdir()
    projects.write_text("in the way")
    done = project.run("rewind", "--last", "--yes")
    assert done.code == 1
    assert "rewound to before event" in done.out
    assert "take it back with: backtrail undo" in done.out
    assert "this is done, but the agent's own session is not" in done.err
    assert project.files() == MADE


@pytest.mark.parametrize("scope", ["files", "both"])
def test_an_agent_that_gets_no_session_gets_a_note_of_its_files(tmp_path: Path, scope: str) -> None:
    """Where Gemini CLI was never used nothing can be written, and it goes on with all its words."""
    made = empty(tmp_path)
    native = {"agent": "gemini", "id": "old"}
    work(made, agent_name="gemini", metadata={"native": native})
    done = made.run("rewind", "--last", "--scope", scope, "--yes")
    assert done.code == (1 if scope == "both" else 0), done.err
    assert ("never used" in done.err) is (scope == "both")
    assert "go on in the agent" not in done.out
    if scope == "files":
        assert "app.py" in outdated(made)
    else:
        (note,) = noted(made)
        assert "app.py" in note
