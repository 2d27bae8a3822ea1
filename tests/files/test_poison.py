"""A restore that can never be finished is set aside: it is reported, and hinders no session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backtrail import Session, StoreFailed
from backtrail.cli import main
from backtrail.events import NewEvent, new_id
from backtrail.files.depot import opened
from backtrail.files.restore.journal import Journal
from backtrail.files.restore.plan import Plan, Step
from backtrail.files.restore.restore import Restore
from backtrail.files.restore.steps import StepTaker
from backtrail.files.trees import EMPTY_DIGEST, Entry
from tests.files.conftest import shell
from tests.files.world import look
from tests.talking import user


@contextmanager
def failing(error: BaseException, at: int = 3) -> Iterator[None]:
    """A restore that fails at one of its steps, each time."""
    take = StepTaker.take

    def refuse(self: StepTaker, index: int, step: Any) -> Any:
        if index >= at:
            raise error
        return take(self, index, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepTaker, "take", refuse)
        yield


@pytest.fixture
def half(session: Session, project: Path, tmp_path: Path) -> Path:
    """A folder in which a rewind went half the way, and no recovery goes on."""
    for name in "abcdef":
        (project / name).write_text(f"{name} as it was\n")
    session.append(user("now"))
    shell(session, "for f in a b c d e f; do echo changed > $f; done; rm README", project)
    with failing(RecursionError("too deep")):
        with pytest.raises(RecursionError):
            session.rewind(3)
        session.append(user("goes on"))
    return project


def run(*words: str, store: str) -> int:
    return main(["--store", store, *words])


def test_every_session_there_goes_on(half: Path, session: Session, tmp_path: Path) -> None:
    """Also others, also later, and each says what happened."""
    session.append(user("more"))
    assert any("cut short" in problem.detail for problem in session.problems)
    with Session.create(session.store, "other", cwd=half) as other:
        other.append(user("hello"))
        with other.tool("bash"):
            (half / "new").write_text("x\n")
        assert any("doctor --repair" in problem.detail for problem in other.problems)
        other.rewind(2)
    assert not (half / "new").exists()


def test_what_went_half_the_way_is_nobodys_change(half: Path, session: Session) -> None:
    """Neither the session's that went back, nor that of a call of another."""
    before = look(half)
    with Session.create(session.store, "other", cwd=half) as other:
        hello = other.append(user("hello"))
        other.rewind(hello)
        own = [e for e in other.events() if e.kind in ("tool_result", "action", "turn_ended")]
        assert not any("after" in e.data.get("files", {}) for e in own)
    assert {k: v for k, v in look(half).items() if "tmp" not in k} == {
        k: v for k, v in before.items() if "tmp" not in k
    }


def test_repair_finishes_it(
    half: Path, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once nothing is in its way, the state is the one of the rewind, and the log says so."""
    url = f"sqlite:///{tmp_path}/store.db"
    assert run("doctor", store=url) in (0, 1)
    assert "set aside" in capsys.readouterr().out
    run("doctor", "--repair", store=url)
    assert {name: (half / name).read_text() for name in "abcdef"} == {
        name: f"{name} as it was\n" for name in "abcdef"
    }
    assert (half / "README").exists()
    assert not [name for name in os.listdir(half) if name.startswith(".backtrail-tmp-")]
    assert "rewound" in [event.kind for event in session.events()]
    capsys.readouterr()
    run("doctor", store=url)
    assert "set aside" not in capsys.readouterr().out
    with Session.open(url, "s", cwd=half) as again:
        again.append(user("whole"))
        assert not again.problems


def test_repair_gives_up_what_fails_again(half: Path, session: Session, tmp_path: Path) -> None:
    """What was taken out of its place is there again, nothing is left behind or lost."""
    url = f"sqlite:///{tmp_path}/store.db"
    with failing(RecursionError("too deep"), at=0):
        run("doctor", "--repair", store=url)
    assert not [name for name in os.listdir(half) if name.startswith(".backtrail-tmp-")]
    for name in "abcdef":
        assert (half / name).read_text() in (f"{name} as it was\n", "changed\n")
    session.append(user("whole"))
    with Session.open(url, "s", cwd=half) as again:
        again.append(user("whole"))
        assert not again.problems


def test_repair_says_what_it_cannot_put_back(
    half: Path, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal that cannot be read does not say where things belong: they are named."""
    with opened(session.store) as depot:
        place = depot.catalogue.places()[0]
        depot.catalogue.drop_set_aside(place.n)
        depot.catalogue.write_journal(place, b"no journal")
    with Session.open(session.store, "two", cwd=half) as two:
        two.append(user("goes on"))
    (left,) = [name for name in os.listdir(half) if name.startswith(".backtrail-tmp-")]
    run("doctor", "--repair", store=f"sqlite:///{tmp_path}/store.db")
    reported = capsys.readouterr().out
    assert f"cannot be put back: see {half}/{left}" in reported and "is back" not in reported
    assert os.listdir(half / left)


@pytest.mark.parametrize("error", [ValueError("embedded null byte"), OverflowError("too large")])
def test_what_any_user_may_do_is_taken_back(
    session: Session, project: Path, error: Exception
) -> None:
    """A name or number that no call of the system takes: nothing changes, no journal is left."""
    session.append(user("now"))
    shell(session, "echo changed > README; echo changed > src/main.py; echo new > a", project)
    before = look(project)
    with failing(error, at=1), pytest.raises(StoreFailed, match=str(error)):
        session.rewind(3)
    assert look(project) == before
    session.append(user("goes on"))
    assert not session.problems
    assert session.rewind(3).files_changed


def test_a_journal_of_what_no_system_takes_is_given_up(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """One that an earlier version left is set aside at once, and a repair gives it up."""
    session.append(user("now"))
    shell(session, "echo changed > README", project)
    before = look(project)
    with opened(session.store) as depot:
        workspace = depot.workspace(project, session.store)
        link = Step(b"l", "link", None, Entry("link", 0o777, 3, b"a\0b"))
        plan = Plan(EMPTY_DIGEST, [link])
        event = NewEvent("rewound", {"to": 1})
        journal = Journal(new_id(), plan, EMPTY_DIGEST, session.store.url, "", session.id, [event])
        depot.catalogue.write_journal(workspace.place, journal.encoded())
        workspace.close()
    url = f"sqlite:///{tmp_path}/store.db"
    with Session.open(url, "s", cwd=project) as again:
        again.append(user("goes on"))
        assert any("doctor --repair" in problem.detail for problem in again.problems)
        assert any("embedded null" in problem.detail for problem in again.problems)
    run("doctor", "--repair", store=url)
    assert look(project) == before
    with Session.open(url, "s", cwd=project) as again:
        again.append(user("whole"))
        assert not again.problems


def test_what_the_disk_refuses_is_tried_again(session: Session, project: Path) -> None:
    """An error of the system keeps the journal: nothing is given up."""
    session.append(user("now"))
    shell(session, "echo changed > README; echo changed > src/main.py", project)
    with failing(OSError(5, "broken"), at=1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Restore, "_take_back", _stays_half)
            with pytest.raises(StoreFailed):
                session.rewind(3)
        with pytest.raises(StoreFailed):
            session.append(user("goes on"))
    session.append(user("goes on"))
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
    assert (project / "src/main.py").read_text() == "print('hello')\n"


def _stays_half(self: Restore, plan: object, steps: object, error: OSError) -> None:
    raise error


def test_a_journal_that_cannot_be_read(session: Session, project: Path, tmp_path: Path) -> None:
    """It is set aside like any other, and a collection does not stumble over it."""
    workspace = session.parts.capture.workspace
    assert workspace is not None
    workspace.catalogue.write_journal(workspace.place, b"no journal")
    with Session.open(session.store, "two", cwd=project) as two:
        two.append(user("goes on"))
        assert any("cut short" in problem.detail for problem in two.problems)
    url = f"sqlite:///{tmp_path}/store.db"
    assert run("gc", store=url) == 0
    run("doctor", "--repair", store=url)
    with Session.open(session.store, "three", cwd=project) as three:
        three.append(user("goes on"))
        assert not three.problems


def test_repair_removes_what_killed_processes_left(
    session: Session, project: Path, tmp_path: Path
) -> None:
    """Copies of trees that were never finished, temporary files; and nothing of a person's."""
    url = f"sqlite:///{tmp_path}/store.db"
    old = tmp_path / ".backtrail-tmp-00000000-0000-7000-8000-000000000000"
    (old / "deep").mkdir(parents=True)
    (old / "deep/file").write_text("copy\n")
    os.utime(old, (1, 1))
    mine = tmp_path / ".backtrail-tmp-notes"
    mine.write_text("a person's\n")
    os.utime(mine, (1, 1))
    folder = session.parts.capture.workspace.blobs  # type: ignore[union-attr]
    assert folder is not None
    run("doctor", "--repair", store=url)
    assert not old.exists()
    assert mine.read_text() == "a person's\n"


def test_status_says_it(
    half: Path, session: Session, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """So does a question about the folder."""
    session.close()
    monkeypatch.chdir(half)
    run("status", store=f"sqlite:///{tmp_path}/store.db")
    captured = capsys.readouterr()
    assert "doctor --repair" in captured.out + captured.err
