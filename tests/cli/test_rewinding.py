"""rewind, undo, redo and restore in pipes: what they do, say, refuse, and return."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.stores import open_store

from .acting import BEGIN, BROKEN, MADE, Project, empty, work


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = empty(tmp_path)
    work(made)
    return made


# --- rewind ------------------------------------------------------------------------------


def test_rewind_last_takes_back_the_last_turn(project: Project) -> None:
    """Conversation and files; it says what it did to each, and how to take it back."""
    done = project.run("rewind", "--last", "--yes")
    assert done.code == 0
    assert done.out.splitlines() == [
        'rewound to before prompt 2, "now break things"',
        "files: 3 files changed  +4 −2",
        "  restored  app.py  +2 −1",
        "  restored  notes.md  +1 −1",
        "  created   old.py  +1",
        "conversation: 3 events dropped, 2 messages left",
        "take it back with: backtrail undo",
    ]
    assert done.err == ""
    assert project.files() == MADE
    assert project.said() == ["make a file", "Made."]


def test_a_point_is_kept_and_before_drops_it(project: Project) -> None:
    """By number, label, or prompt from the end."""
    with project.session("work") as session:
        session.checkpoint("start", at=4)
    assert project.run("rewind", "start", "--yes").code == 0
    assert project.said() == ["make a file", "Made."]
    assert project.run("undo", "--yes").code == 0
    assert project.run("rewind", "@-1", "--yes").code == 0
    assert project.said() == ["make a file", "Made.", "now break things"]
    assert project.files() == MADE
    assert project.run("rewind", "--before", "2", "--yes").code == 0
    assert project.said() == []
    assert project.files() == BEGIN


def test_a_dry_run_changes_nothing(project: Project) -> None:
    """It needs no `--yes`, and its plan is that of the real thing."""
    dry = project.run("rewind", "--last", "--dry-run", "--json")
    assert dry.code == 0
    assert not dry.json["applied"]
    assert project.files() == BROKEN
    shown = project.run("rewind", "--last", "--dry-run")
    assert 'would rewind to before prompt 2, "now break things"' in shown.out
    assert "3 files to change" in shown.out
    assert "take it back" not in shown.out
    real = project.run("rewind", "--last", "--yes", "--json")
    assert real.json["files"] == dry.json["files"]
    assert real.json["applied"]


@pytest.mark.parametrize(
    ("scope", "files", "messages"),
    [("both", MADE, 2), ("conversation", BROKEN, 2), ("files", MADE, 4)],
)
def test_the_scope_says_what_goes_back(
    project: Project, scope: str, files: dict[str, str], messages: int
) -> None:
    """Both, or one of them."""
    done = project.run("rewind", "--last", "--scope", scope, "--yes", "--json")
    assert done.code == 0
    assert done.json["scope"] == scope
    assert project.files() == files
    assert len(project.said()) == messages
    assert project.run("undo", "--yes").code == 0
    assert project.files() == BROKEN
    assert len(project.said()) == 4


def test_paths_are_files_only(project: Project) -> None:
    """Behind `--`, from the current folder; the conversation stays unless it is asked for."""
    project.write("sub/other", "x")
    done = project.run("rewind", "--last", "--yes", "--", "../app.py", cwd=project.root / "sub")
    assert done.code == 0
    assert project.files() == {**BROKEN, "app.py": BEGIN["app.py"], "sub/other": "x"}
    assert len(project.said()) == 4
    done = project.run(
        "rewind", "--last", "--yes", "--session", "work", "--", "old.py", cwd=project.home
    )
    assert done.code == 0
    assert project.files()["old.py"] == "old\n"
    outside = project.run("rewind", "--last", "--yes", "--", "../../elsewhere")
    assert outside.code == 1
    assert "outside the workspace" in outside.err


def test_what_another_changed_is_kept(project: Project) -> None:
    """Exit code 4, the rest is done, and it says how to decide otherwise."""
    project.write("notes.md", "by a person, later\n")
    done = project.run("rewind", "--last", "--yes")
    assert done.code == 4
    assert "  kept      notes.md  (changed since by somebody else)" in done.out
    assert "1 file kept, because others changed it" in done.err
    assert "--on-conflict" in done.err
    assert project.files() == {**MADE, "notes.md": "by a person, later\n"}
    assert project.run("undo", "--yes").code == 0
    forced = project.run("rewind", "--last", "--yes", "--on-conflict", "overwrite", "--json")
    assert forced.code == 0
    assert project.files() == MADE
    assert project.run("undo", "--yes").code == 0
    assert project.files()["notes.md"] == "by a person, later\n"


def test_aside_and_exact(project: Project) -> None:
    """The earlier content is written beside; or the files are made equal, also those of others."""
    project.write("notes.md", "by a person, later\n")
    project.write("theirs", "a person's\n")
    done = project.run("rewind", "--last", "--yes", "--on-conflict", "aside", "--scope", "files")
    assert done.code == 4
    beside = [name for name in project.files() if name.startswith("notes.md.")]
    assert [project.files()[name] for name in beside] == ["by a person\n"]
    assert project.run("undo", "--yes").code == 0
    assert project.run("rewind", "--last", "--yes", "--mode", "exact").code == 0
    assert project.files() == MADE
    assert project.run("undo", "--yes").code == 0
    assert project.files()["theirs"] == "a person's\n"


def test_json_has_all_of_it(project: Project) -> None:
    """What `Rewind.to_dict` says, the session, and the command that takes it back."""
    done = project.run("rewind", "--last", "--yes", "--json").json
    assert done["session"] == "work"
    assert done["undo"] == "backtrail undo --session work"
    assert done["events_dropped"] == 3
    assert sorted(done["files_changed"]) == ["app.py", "notes.md", "old.py"]
    assert (done["insertions"], done["deletions"]) == (4, 2)
    assert done["conflicts"] == []
    undone = project.run(*done["undo"].split()[1:], "--yes", "--json").json
    assert undone["redo"] == "backtrail redo --session work"
    assert undone["undo"] is None
    redone = project.run(*undone["redo"].split()[1:], "--yes", "--json").json
    assert redone["undo"] == "backtrail undo --session work"
    assert project.files() == MADE


def test_nothing_to_do_says_so(project: Project) -> None:
    """And offers no undo, which would take back something else."""
    assert project.run("rewind", "4", "--yes").code == 0
    again = project.run("rewind", "4", "--yes")
    assert again.code == 0
    assert again.out.startswith("nothing to do: all is so already\n")
    assert "take it back" not in again.out
    assert project.run("rewind", "4", "--yes", "--json").json["undo"] is None


def test_what_cannot_be_undone_is_reported(project: Project) -> None:
    """A folder that was not captured and is gone."""
    (project.root / "node_modules").mkdir()
    (project.root / "node_modules/x.js").write_text("x")
    with project.session("work") as session, session.turn("clean up"), session.tool("bash"):
        shutil.rmtree(project.root / "node_modules")
    plan = project.run("rewind", "--last", "--dry-run")
    assert "warning: cannot be undone: node_modules was not captured and is gone" in plan.out
    done = project.run("rewind", "--last", "--yes", "--json")
    assert any("node_modules" in warning for warning in done.json["warnings"])


def test_a_session_without_files_goes_back_too(project: Project) -> None:
    """Its conversation does, and it says why no file did; files alone are an error."""
    with Session.create(project.url, "talk") as session:
        for text in ("one", "two"):
            session.append({"role": "user", "content": text})
    done = project.run("rewind", "--last", "--yes", "--session", "talk")
    assert done.code == 0
    assert "files: untouched, the session has no `cwd`, so no files are captured" in done.out
    assert project.said("talk") == ["one"]
    files = project.run("rewind", "--last", "--yes", "--session", "talk", "--scope", "files")
    assert files.code == 1
    assert "no files are captured" in files.err


# --- errors ------------------------------------------------------------------------------


def test_without_a_terminal_a_point_and_yes_are_needed(project: Project) -> None:
    """Both are usage errors that name what to give, and nothing is touched."""
    none = project.run("rewind")
    assert none.code == 2
    assert all(word in none.err for word in ("POINT", "--before", "--last"))
    for verb in (("rewind", "--last"), ("undo",), ("restore", "app.py")):
        refused = project.run(*verb)
        assert refused.code == 2
        assert "add `--yes`" in refused.err
        assert refused.out == ""
        as_json = project.run(*verb, "--json")
        assert as_json.json["error"]["code"] == "usage"
    assert project.files() == BROKEN


def test_errors_have_their_codes(project: Project) -> None:
    """Unknown point or session 3, two points at once 2; in JSON too."""
    unknown = project.run("rewind", "nowhere", "--yes", "--json")
    assert unknown.code == 3
    assert unknown.json["error"]["code"] == "not_found"
    assert "`nowhere`" in unknown.json["error"]["message"]
    assert project.run("rewind", "999", "--yes").code == 3
    assert project.run("rewind", "--last", "--session", "nobody", "--yes").code == 3
    assert project.run("rewind", "4", "--last", "--yes").code == 2
    assert project.run("rewind", "--last", "--scope", "all", "--yes").code == 2
    assert project.files() == BROKEN


def test_a_busy_session_is_left_alone(project: Project) -> None:
    """Exit code 5, with the owner's name."""
    with open_store(project.url) as store, store.lease("work"):
        busy = project.run("rewind", "--last", "--yes", "--json")
    assert busy.code == 5
    assert busy.json["error"]["code"] == "busy"
    assert str(os.getpid()) in busy.json["error"]["message"]
    assert project.files() == BROKEN


def test_missing_contents_stop_it_before_anything(project: Project) -> None:
    """Nothing is touched, neither files nor conversation."""
    shutil.rmtree(project.home / "store/agent.db-files")
    done = project.run("rewind", "--last", "--yes", "--json")
    assert done.code == 3
    assert "cannot be told any more" in done.json["error"]["message"]
    assert project.files() == BROKEN
    assert len(project.said()) == 4


def test_no_half_of_it_without_being_asked(project: Project) -> None:
    """Where files should go back and cannot, the conversation stays too; alone it may go."""
    contents = project.home / "store/agent.db-files"
    contents.rename(project.home / "elsewhere")
    contents.write_text("in the way")
    for verb in (("rewind", "--last"), ("undo",)):
        done = project.run(*verb, "--yes", "--json")
        assert done.code == 1
        assert "the files cannot go back" in done.json["error"]["message"]
        assert "--scope conversation" in done.json["error"]["message"]
    assert len(project.said()) == 4
    assert project.run("rewind", "--last", "--yes", "--scope", "conversation").code == 0
    assert len(project.said()) == 2
    assert project.files() == BROKEN


# --- undo and redo -----------------------------------------------------------------------


def test_undo_takes_back_turns_and_rewinds(project: Project) -> None:
    """Again and again it walks further back; redo walks forward. Each says what it was."""
    assert project.run("rewind", "4", "--yes").code == 0
    first = project.run("undo", "--yes")
    assert first.out.startswith("took back the rewind to event 4 (")
    assert "conversation: 2 messages came back, 4 messages" in first.out
    assert "take it back with: backtrail redo" in first.out
    assert project.files() == BROKEN
    second = project.run("undo", "--yes")
    assert second.out.startswith('took back the turn "now break things" (')
    assert project.files() == MADE
    third = project.run("undo", "--yes")
    assert third.out.startswith('took back the turn "make a file" (')
    assert project.files() == BEGIN
    nothing = project.run("undo", "--yes", "--json")
    assert nothing.code == 3
    assert "nothing to undo" in nothing.json["error"]["message"]
    assert project.run("redo", "--yes").out.startswith('did again the turn "make a file" (')
    assert project.files() == MADE
    assert project.run("redo", "--dry-run").out.startswith(
        'would do again the turn "now break things" ('
    )
    assert project.run("redo", "--yes").code == 0
    assert project.run("redo", "--yes").code == 0
    assert project.files() == MADE
    assert project.said() == ["make a file", "Made."]
    ended = project.run("redo", "--yes")
    assert ended.code == 3
    assert "nothing to redo" in ended.err


def test_a_named_session_is_named_in_the_way_back(project: Project) -> None:
    """Another one may be the latest here."""
    with Session.create(project.url, "later", cwd=project.root) as session:
        session.append({"role": "user", "content": "hello"})
    done = project.run("undo", "--session", "work", "--yes")
    assert "take it back with: backtrail redo --session work" in done.out
    assert project.files() == MADE


# --- restore -----------------------------------------------------------------------------


def test_restore_brings_back_one_file(project: Project) -> None:
    """As it was before this session last changed it; the rest stays, and undo takes it back."""
    done = project.run("restore", "app.py", "--yes")
    assert done.code == 0
    assert done.out.startswith("restored app.py to before bash of prompt 2 (")
    assert project.files() == {**BROKEN, "app.py": BEGIN["app.py"]}
    again = project.run("restore", "app.py", "--yes")
    assert again.code == 0
    assert again.out.startswith("nothing to do")
    assert project.run("undo", "--yes").code == 0
    assert project.files() == BROKEN
    assert project.run("restore", "old.py", "--yes", "--json").json["files_changed"] == ["old.py"]
    assert len(project.said()) == 4


def test_restore_at_a_point_and_a_folder(project: Project) -> None:
    """A point is a point for files too; a folder is all that is in it."""
    project.write("src/a", "1\n")
    project.write("src/b", "1\n")
    with project.session("work") as session:
        point = session.checkpoint("ones")
        with session.turn("twos"), session.tool("bash"):
            project.write("src/a", "2\n")
            project.write("src/b", "2\n")
        with session.turn("threes"), session.tool("bash"):
            project.write("src/a", "3\n")
    assert project.run("restore", "src/a", "--yes").code == 0
    assert project.files()["src/a"] == "2\n"
    assert project.run("restore", "src", "--at", "ones", "--yes").code == 0
    assert (project.files()["src/a"], project.files()["src/b"]) == ("1\n", "1\n")
    assert project.run("restore", "src", "--at", point.id[:30], "--yes").code == 0


def test_restore_of_what_was_never_changed(project: Project) -> None:
    """It says so, and what to do."""
    project.write("theirs", "x\n")
    done = project.run("restore", "theirs", "--yes")
    assert done.code == 3
    assert "did not change `theirs`" in done.err


def test_restore_at_a_point_of_what_never_was(project: Project) -> None:
    """A slip of the pen is not found; what came and went since then is only nothing to do."""
    with project.session("work") as session:
        with session.tool("bash", {"command": "echo > brief"}):
            project.write("brief", "soon gone\n")
        with session.tool("bash", {"command": "rm brief"}):
            (project.root / "brief").unlink()
    before = project.files()
    for more in ((), ("--mode", "exact"), ("--dry-run",)):
        done = project.run("restore", "nosuch.txt", "--at", "1", "--yes", *more)
        assert done.code == 3, done.out
        assert "`nosuch.txt`" in done.err
    assert project.run("restore", "brief", "--at", "1", "--yes").code == 0
    assert project.files() == before


def test_what_changed_no_file_says_so(tmp_path: Path) -> None:
    """Where files are meant; where only the conversation is, nothing is said of them."""
    project = empty(tmp_path)
    project.write("app.py", "one\n")
    with project.session("talk") as session:
        session.append({"role": "user", "content": "hello"})
        session.append({"role": "assistant", "content": "Hello."})
    ran = "files: nothing changed"
    assert "files: nothing to change" in project.run("undo", "--dry-run").out.splitlines()
    for verb in (("undo",), ("redo",), ("rewind", "--last")):
        done = project.run(*verb, "--yes")
        assert (done.code, ran in done.out.splitlines()) == (0, True), done
    assert project.run("undo", "--yes").code == 0
    done = project.run("rewind", "--last", "--scope", "conversation", "--yes")
    assert (done.code, "files" in done.out) == (0, False), done
    assert project.files() == {"app.py": "one\n"}


def test_one_rewind_has_one_number_and_it_is_a_point(project: Project) -> None:
    """What was named is said again by undo, in the same words; verbs take it. `log` has events."""
    for words, place, event in (
        (["--last"], 'before prompt 2, "now break things"', "before event 5"),
        (["4"], "event 4", "event 4"),
    ):
        assert f"rewound to {place}" in project.run("rewind", *words, "--yes").out
        assert f"to {event}" in project.run("log").out
        done = project.run("undo", "--yes")
        assert done.out.startswith(f"took back the rewind to {place} (")
        assert done.code == 0
    project.run("checkpoint", "here")
    done = project.run("rewind", "here", "--yes", "--dry-run")
    assert re.match(r'would rewind to the checkpoint "here"\n', done.out)
    for name in ("5", "event 5", "prompt 2"):
        dry = project.run("restore", "app.py", "--at", name, "--dry-run")
        assert "would restore app.py to prompt 2," in dry.out
    assert project.run("restore", "app.py", "--at", "event 99", "--dry-run").code == 3
