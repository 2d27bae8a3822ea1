"""Ignore rules that change inside a call are in force from the next prompt on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backtrail import Session
from tests.files.conftest import shell
from tests.files.world import look
from tests.talking import user


def left_out(session: Session) -> set[str]:
    return {path for path, _, _ in session.not_captured()}


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("again", [False, True])
def test_an_agent_cannot_hide_what_it_does(
    calls: int, again: bool, session: Session, project: Path, tmp_path: Path
) -> None:
    """Neither in the call that makes the rule, nor in a later one of the same turn."""
    (project / "old.log").write_text("old\n")
    point = session.append(user("now"))
    before = look(project)
    rule = "printf 'hidden/\\n*.log\\n' > .backtrailignore"
    deed = "mkdir hidden; echo x > hidden/x; echo y > new.log; echo z > old.log; echo w > src/w.log"
    for command in [f"{rule}; {deed}"] if calls == 1 else [rule, deed]:
        if again:
            session.close()
            session = Session.open(f"sqlite:///{tmp_path}/store.db", "s", cwd=project)
        shell(session, command, project)
    after = look(project)
    session.rewind(point)
    assert look(project) == before
    session.undo()
    assert look(project) == after
    session.close()


def test_the_next_prompt_brings_the_rules_into_force(session: Session, project: Path) -> None:
    """From then on what is new is left out; what was captured stays so."""
    session.append(user("now"))
    shell(session, "printf 'hidden/\\n*.log\\n' > .backtrailignore; echo x > a.log", project)
    assert left_out(session) == set()
    point = session.append(user("next"))
    shell(session, "mkdir hidden; echo x > hidden/x; echo y > b.log; echo z > a.log", project)
    assert left_out(session) == {"hidden", "b.log"}
    session.rewind(point)
    assert (project / "a.log").read_text() == "x\n"
    assert (project / "b.log").exists() and (project / "hidden/x").exists()


def test_a_rule_that_a_call_removes_holds_until_the_next_prompt(
    session: Session, project: Path
) -> None:
    """What a person left out does not come into the store within the call."""
    (project / ".backtrailignore").write_text("*.key\n")
    (project / "one.key").write_text("secret\n")
    session.append(user("now"))
    shell(session, "rm .backtrailignore; echo more > two.key", project)
    assert left_out(session) == {"one.key", "two.key"}
    session.append(user("next"))
    assert left_out(session) == set()


def test_a_persons_rule_is_in_force_at_the_prompt(session: Session, project: Path) -> None:
    """What was written before the message holds for its turn."""
    (project / ".backtrailignore").write_text("*.key\n")
    session.append(user("now"))
    shell(session, "echo secret > one.key", project)
    assert left_out(session) == {"one.key"}


def test_what_git_ignores_is_decided_by_the_rules_in_force(
    session: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heavy folder that a new `.gitignore` names is captured in that turn."""
    monkeypatch.setattr("backtrail.files.workspace.ignore.HEAVY_FILES", 3)
    point = session.append(user("now"))
    before = look(project)
    shell(session, "mkdir out; for i in 1 2 3 4; do echo $i > out/$i; done; echo out > .gitignore",
          project)  # fmt: skip
    assert left_out(session) == set()
    session.rewind(point)
    assert look(project) == before
    session.undo()
    session.append(user("next"))
    shell(session, "mkdir src/out; for i in 1 2 3 4 5 6; do echo $i > src/out/$i; done", project)
    assert left_out(session) == {"src/out"}


def test_rules_of_a_new_folder_are_new_rules(session: Session, project: Path) -> None:
    """Also where the folder brings its own."""
    point = session.append(user("now"))
    before = look(project)
    shell(session, "mkdir new; echo '*' > new/.backtrailignore; echo x > new/x", project)
    session.rewind(point)
    assert look(project) == before


def test_a_declared_rule_hides_nothing_either(session: Session, project: Path) -> None:
    """Nor does one that a tool names as the path it writes."""
    point = session.append(user("now"))
    before = look(project)
    with session.tool("write", paths=[".backtrailignore"]):
        (project / ".backtrailignore").write_text("*.log\n")
    with session.tool("write", paths=["a.log"]):
        (project / "a.log").write_text("x\n")
    with session.tool("bash"):
        (project / "b.log").write_text("x\n")
    session.rewind(point)
    assert look(project) == before


def test_a_look_in_the_middle_of_a_turn_changes_no_rules(session: Session, project: Path) -> None:
    """A checkpoint, a diff and a preview are no prompts."""
    point = session.append(user("now"))
    shell(session, "echo '*.log' > .backtrailignore", project)
    session.checkpoint()
    session.diff(point)
    session.rewind(point, dry_run=True)
    shell(session, "echo x > a.log", project)
    session.rewind(point)
    assert sorted(os.listdir(project)) == ["README", "src"]


def test_a_session_begins_with_the_rules_that_are_there(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """As `record` does, which has no prompt: a checkpoint or a call is its start."""
    for start in ("checkpoint", "call"):
        (project / ".backtrailignore").write_text(f"*.{start}\n")
        with Session.create(session.store, start, cwd=project) as other:
            if start == "checkpoint":
                other.checkpoint("before")
            shell(other, f"echo secret > one.{start}", project)
            assert f"one.{start}" in left_out(other)
