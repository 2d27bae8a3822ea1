"""The directory of a session is the one that was meant when it was named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import AsyncSession, NotFound, Session, Store, open_store
from backtrail.files import materialize

from .talking import kinds, user


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store outside of the directories."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        yield store


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a file; `home` and `elsewhere` are beside it."""
    for name in ("here", "home", "elsewhere", "home/proj"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("0")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def is_watched(session: Session, place: Path) -> bool:
    """Whether what a call does in a directory is taken back."""
    event = session.append(user("go"))
    with session.tool("sh"):
        (place / "f").write_text("1")
    session.rewind(event)
    return (place / "f").read_text() == "0" and session.info().cwd == str(place)


def test_a_relative_directory_stays_where_it_was_named(store: Store, here: Path) -> None:
    """Wherever the process goes before it is first used."""
    made = Session.create(store, "s", cwd=".")
    forked = made.fork(into="../forked")
    os.chdir(here.parent)
    assert is_watched(made, here)
    assert is_watched(forked, here.parent / "forked")
    os.chdir(here)
    found = [Session.latest(store, cwd="."), Session.resume(store, "s", cwd=".")]
    os.chdir(here.parent)
    assert all(is_watched(s, here) for s in found)
    made.relocate("elsewhere")
    os.chdir("/")
    assert is_watched(made, here.parent / "elsewhere")


def test_a_tilde_is_the_home(store: Store, here: Path) -> None:
    """In every place that takes a directory."""
    home = here.parent / "home"
    with Session.create(store, "s", cwd="~/proj") as s:
        assert is_watched(s, home / "proj")
        with s.fork(into="~/forked") as forked:
            assert is_watched(forked, home / "forked")
        materialize(store, s.checkpoint(), "~/written")
        assert (home / "written" / "f").read_text() == "0"
        (home / "moved").mkdir()
        s.relocate("~/moved")
        assert s.info().cwd == str(home / "moved")
    assert list(here.iterdir()) == [here / "f"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_asynchronous_session_does_the_same(
    store: Store, here: Path, anyio_backend: str
) -> None:
    """A directory is found when the call begins, not when a thread comes to it."""
    async with await AsyncSession.create(store, "s", cwd=".") as s:
        forked = await s.fork(into="../forked")
        os.chdir("/")
        assert is_watched(s._session, here)
        assert is_watched(forked._session, here.parent / "forked")
        await forked.close()


# --- another directory --------------------------------------------------------------------


def test_a_session_is_not_moved_to_where_nothing_is(store: Store, here: Path) -> None:
    """A path spelt wrong is reported before the record changes, and nothing is made there."""
    typo = here.parent / "typo"
    with Session.create(store, "s", cwd=here) as s:
        point = s.append(user("hi"))
        for move in (
            lambda: Session.resume(store, "s", cwd=typo),
            lambda: Session.open(store, "s", cwd=typo),
            lambda: s.relocate(typo),
        ):
            with pytest.raises(NotFound, match="typo"):
                move()
        assert s.info().cwd == str(here)
        assert "files_changed" not in kinds(s)
        assert s.rewind(point).files_changed == []
    assert not typo.exists()


def test_a_directory_that_is_gone_is_still_the_session_s(store: Store, here: Path) -> None:
    """Who names it again resumes the session, and a rewind makes it again."""
    work = here.parent / "work"
    work.mkdir()
    (work / "f").write_text("0")
    with Session.create(store, "s", cwd=work) as s:
        point = s.append(user("hi"))
        with s.tool("sh"):
            (work / "f").unlink()
            work.rmdir()
    with Session.resume(store, "s", cwd=work) as s:
        s.append(user("oh"))
        s.rewind(point)
        assert (work / "f").read_text() == "0"


def test_a_directory_is_only_a_name_where_no_files_are_captured(store: Store, here: Path) -> None:
    """What was imported from another machine may lie where this one has nothing."""
    Session.create(store, "s", files=False).close()
    with Session.resume(store, "s", files=False, cwd="/not/here") as s:
        assert s.info().cwd == "/not/here"


def test_how_another_directory_differs_is_reported(store: Store, here: Path) -> None:
    """A moved one is taken without a word, an unrelated one is not."""
    with Session.create(store, "s", cwd=here) as s:
        s.append(user("hi"))
    moved = here.rename(here.parent / "moved")
    with Session.resume(store, "s", cwd=moved) as s:
        s.append(user("here now"))
        assert s.problems == []
    other = here.parent / "elsewhere"
    (other / "precious").write_text("mine")
    with Session.resume(store, "s", cwd=other) as s:
        s.append(user("and here?"))
        (reported,) = s.problems
        assert reported.what == "moved"
        assert "precious" in reported.detail
        assert str(other) in reported.detail
    with Session.resume(store, "s") as s:
        s.append(user("still here"))
        assert s.problems == []
