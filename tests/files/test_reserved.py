"""Names that begin as those that restores use: captured, or said not to be."""

from __future__ import annotations

from pathlib import Path

from backtrail import Session
from tests.files.conftest import shell
from tests.files.world import look
from tests.talking import user

OURS = ".backtrail-tmp-01a1ec19-7813-7160-8f24-34262000845a"


def test_a_name_that_only_begins_so_is_captured(session: Session, project: Path) -> None:
    """A person's notes are a file like others."""
    (project / ".backtrail-tmp-notes").write_text("mine\n")
    point = session.append(user("now"))
    before = look(project)
    shell(session, "echo x > .backtrail-tmp-notes; mkdir .backtrail-tmp-d; echo y > "
                   ".backtrail-tmp-d/y; echo z > src/.backtrail-tmp-", project)  # fmt: skip
    after = look(project)
    with session.tool("write", paths=["src/.backtrail-tmp-w"]):
        (project / "src/.backtrail-tmp-w").write_text("w\n")
    session.rewind(point)
    assert look(project) == before
    assert session.not_captured() == []
    session.undo()
    assert look(project).items() >= after.items()


def test_a_name_of_ours_is_said_and_left_alone(session: Session, project: Path) -> None:
    """Whatever made it: it may be what a restore took out of its place."""
    point = session.append(user("now"))
    shell(session, f"mkdir {OURS} src/in; echo x > {OURS}/x; echo y > src/in/{OURS}; rm README",
          project)  # fmt: skip
    reported = {path: reason for path, reason, _ in session.not_captured()}
    assert reported.keys() == {OURS, f"src/in/{OURS}"}
    assert "restore" in reported[OURS]
    session.rewind(point)
    assert (project / "README").exists()
    assert (project / OURS / "x").read_text() == "x\n"
    assert (project / "src/in" / OURS).read_text() == "y\n"
