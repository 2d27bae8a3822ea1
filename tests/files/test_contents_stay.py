"""Contents stay as long as a session may ask for them, however the store is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from backtrail import Buffered, Redacting, Session, Store, open_store
from backtrail.files import collect
from backtrail.stores.memory import NullStore
from backtrail.stores.wrapper import Wrapper, unwrapped

from .test_cleaning import said, worked

WRAPPERS: list[Callable[[Store], Store]] = [Buffered, Redacting, Wrapper]


class Forgetful(Wrapper):
    """A wrapper that says nothing about the store behind."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url, self.scope = inner.url, inner.scope


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapper_says_what_the_store_behind_does(
    tmp_path: Path, wrap: Callable[[Store], Store]
) -> None:
    """Where contents lie, what is its own, what an append survives."""
    for durability in ("written", "synced"):
        inner = open_store(f"sqlite:///{tmp_path}/s.db", durability=durability)
        with wrap(inner) as store:
            assert unwrapped(store) is inner
            for name in ("url", "scope", "contents", "durability", "places"):
                assert getattr(store, name) == getattr(inner, name)


@pytest.mark.parametrize("url", ["file:{}/files", "sqlite:///{}/s.db"])
@pytest.mark.parametrize("wrap", [*WRAPPERS, Forgetful])
def test_forks_through_a_wrapper(
    url: str, tmp_path: Path, project: Path, wrap: Callable[[Store], Store]
) -> None:
    """A fork of a fork keeps its contents when both of its parents are gone."""
    with wrap(open_store(url.format(tmp_path))) as store:
        with Session.create(store, "s", cwd=project) as session:
            said(session)
            session.checkpoint("label")
            worked(session, project, "README", "second\n")
            said(session)
        # Nothing looks at files here, so the place for contents is not open.
        with Session.resume(store, "s") as session, session.fork(session_id="f") as fork:
            fork.fork(session_id="g").close()
        store.delete("s")
        store.delete("f")
        (project / "README").write_text("third\n")
        with Session.create(store, "other", cwd=project) as other:
            said(other)
        collect(store, grace=0)
        with Session.resume(store, "g", cwd=project) as last:
            last.rewind("label", mode="exact")
        assert (project / "README").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("wrap", [Buffered, Redacting])
def test_a_session_that_leaves_nothing_captures_nothing(
    project: Path, wrap: Callable[[Store], Store]
) -> None:
    """Whatever is around its store."""
    with Session.create(wrap(NullStore()), "s", cwd=project) as session:
        said(session)
        assert "tree" not in session.store.tail("s", 1)[0].data


def test_an_impossible_time_costs_nothing(session: Session, project: Path, tmp_path: Path) -> None:
    """What a session with a damaged time relies on stays; the others' points are judged."""
    worked(session, project, "README", "second\n")
    said(session)
    session.store.flush()
    with apsw.Connection(str(tmp_path / "store.db")) as database:
        # As an earlier version may have stored it, which had no check sums.
        database.execute("UPDATE events SET ts = '2026-13-45T99:00:00.000Z', crc = NULL")
        database.execute("UPDATE logs SET unsealed = 1000")
    session.record("odd", {"files": {"parts": [1, {"before": "xyz"}]}})
    session.record("odd", {"files": {"parts": 7, "after": "00"}})
    done = collect(session.store, grace=0, budget=0)
    assert done.over_budget and done.points == 0
    session.rewind(2, mode="exact")
    assert (project / "README").read_text() == "one\ntwo\nthree\n"
