"""What people call sessions and points by."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.cli.call import Call
from backtrail.cli.output import Output
from backtrail.errors import NotFound
from tests.cli.stage import Stage

IDS = ["aaaa1111-x", "aaaa2222-y", "bbbb3333-z"]


@pytest.fixture
def call(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A run in the project, with three sessions in three folders."""
    for name, value in stage.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(stage.project)
    for id in IDS:
        folder = stage.folder / id
        folder.mkdir()
        made = Session.create(stage.url, id, cwd=folder, key=f"key:{id}", title=f"Title {id[0]}")
        made.close()
    return Call("show", Namespace(store=None), Output())


def test_a_session_by_id_key_or_title(call: Call) -> None:
    """Each names the one session; a title in any case."""
    with call:
        for id in IDS:
            assert call.info(id).id == id
            assert call.info(f"key:{id}").id == id
        assert call.info("title B").id == IDS[2]


def test_a_session_by_the_beginning_of_its_id(call: Call) -> None:
    """Unique, it is found; else all that fit are listed."""
    with call:
        assert call.info("aaaa1").id == IDS[0]
        assert call.info("bbbb").id == IDS[2]
        with pytest.raises(NotFound) as caught:
            call.info("aaaa")
        assert all(id in str(caught.value) for id in IDS[:2])
        assert IDS[2] not in str(caught.value)
        # So short a beginning is more likely a mistake.
        with pytest.raises(NotFound, match="no session `bbb`"):
            call.info("bbb")


def test_an_ambiguous_title_lists_the_sessions(call: Call) -> None:
    """Two sessions are called `Title a`."""
    with call, pytest.raises(NotFound, match="may be any of 2 sessions"):
        call.info("Title a")


def test_latest_is_the_latest_here(
    call: Call, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as no name: never one of another folder, or an archived one."""
    with call:
        with pytest.raises(NotFound, match="no session in"):
            call.info("latest")
        monkeypatch.chdir(stage.folder / IDS[0])
        assert call.info("latest").id == IDS[0]
        call.store.update(IDS[0], tags={"archived": True})
        with pytest.raises(NotFound, match="no session in"):
            call.info("latest")


@pytest.mark.parametrize("verb", ["delete", "undo", "chat"])
def test_what_acts_unasked_takes_no_session_by_chance(
    call: Call, stage: Stage, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """In a folder of the project it does; not one of the home, nor from another repository."""
    acting = Call(verb, Namespace(store=None, yes=verb != "chat", dry_run=False), Output())
    with acting:
        Session.create(acting.store, "home", cwd=stage.folder, files=False).close()
        with pytest.raises(NotFound, match=r"only if it is named: home"):
            acting.info("latest")
        assert acting.info("home").id == "home"
        Session.create(acting.store, "here", cwd=stage.project, files=False).close()
        deep = stage.project / "vendored" / "src"
        deep.mkdir(parents=True)
        monkeypatch.chdir(deep)
        assert acting.info().id == "here"
        (deep.parent / ".git").mkdir()
        assert acting.info().id == "here"
        (deep.parent / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        with pytest.raises(NotFound, match=r"only if it is named: here"):
            acting.info()
        # To look is no harm.
        looking = Call(verb, Namespace(store=None, yes=True, dry_run=True), Output())
        with looking:
            assert verb == "chat" or looking.info().id == "here"


def test_without_a_name_it_is_the_latest_here_or_above(
    call: Call, stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nearest folder counts, and it is named if that is not this one."""
    deep = stage.folder / IDS[0] / "src" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    with call:
        assert call.info().id == IDS[0]
        assert str(stage.folder / IDS[0]) in capsys.readouterr().err
        monkeypatch.chdir(stage.folder / IDS[0])
        assert call.info().id == IDS[0]
        assert capsys.readouterr().err == ""


def test_an_archived_session_is_not_the_latest(call: Call, stage: Stage) -> None:
    """The one before it is; with none left, there is none here."""
    with call:
        for id in ("old", "new"):
            Session.create(call.store, id, cwd=stage.project).close()
        assert call.info().id == "new"
        call.store.update("new", tags={"archived": True})
        assert call.info().id == "old"
        call.store.update("old", tags={"archived": True})
        with pytest.raises(NotFound, match="ls --all"):
            call.info()


def test_a_name_that_is_no_id_is_not_found(call: Call) -> None:
    """Also one that could not be an id."""
    with call:
        for name in ("../../etc", "", "nobody", "a b", "\x00"):
            with pytest.raises(NotFound):
                call.info(name)


@pytest.fixture
def talk(call: Call, stage: Stage) -> Session:
    """Three prompts, of which the last was taken back; a checkpoint."""
    session = call.keep(Session.create(call.store, "talk", cwd=stage.project, files=False))
    for text in ("one", "two"):
        session.append({"role": "user", "content": text}, id=f"prompt-{text}")
        session.append({"role": "assistant", "content": f"{text}!"}, id=f"answer-{text}")
    session.checkpoint("here")
    session.append({"role": "user", "content": "three"}, id="prompt-three")
    session.undo()
    return session


def test_a_point_by_number_id_and_label(call: Call, talk: Session) -> None:
    """A number is an event's; an id may be cut where it stays unique."""
    with call:
        assert call.point(talk, "2").id == "prompt-one"
        assert call.point(talk, "answer-two").seq == 5
        assert call.point(talk, "answer-o").id == "answer-one"
        assert call.point(talk, "here").kind == "checkpoint"
        with pytest.raises(NotFound, match="may be any of 3 events"):
            call.point(talk, "prompt")


def test_prompts_are_counted_from_the_end(call: Call, talk: Session) -> None:
    """Those of the conversation as it stands: what was undone does not count."""
    with call:
        assert call.point(talk, "@-1").id == "prompt-two"
        assert call.point(talk, "@-2").id == "prompt-one"
        for name in ("@-3", "@-0"):
            with pytest.raises(NotFound, match="has 2 prompts"):
                call.point(talk, name)


def test_a_label_may_look_like_a_number(call: Call, talk: Session) -> None:
    """An event of that number comes first."""
    with call:
        talk.checkpoint("2026")
        talk.checkpoint("2")
        assert call.point(talk, "2026").data["label"] == "2026"
        assert call.point(talk, "2").seq == 2


def test_an_unknown_point_says_what_to_use(call: Call, talk: Session) -> None:
    """Nothing is guessed."""
    with call:
        for name in ("nowhere", "999", "@-x", "", "pro"):
            with pytest.raises(NotFound, match="backtrail log"):
                call.point(talk, name)


def test_sessions_of_a_moved_folder_are_found_by_name(call: Call, stage: Stage) -> None:
    """The folder need not be there."""
    Path(stage.folder / IDS[0]).rename(stage.folder / "moved")
    with call:
        assert call.info(IDS[0]).cwd == str(stage.folder / IDS[0])
