"""Wherever a store is asked for, a URL will do; what opens it closes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import (
    Buffered,
    InvalidData,
    NewEvent,
    NotFound,
    Redacting,
    Session,
    SessionInfo,
    copy_sessions,
    open_store,
    purge,
)
from backtrail.events import Json
from backtrail.exchange.bundle import read_bundle, write_bundle
from backtrail.exchange.lists import import_messages
from backtrail.files import collect, materialize, verify

from .talking import user


def test_what_works_on_a_store_takes_its_url(disk_url: str, tmp_path: Path) -> None:
    """And leaves it closed: another may move its files away."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "f").write_text("0")
    with Session.create(disk_url, "s", cwd=work) as s:
        s.append(user("a secret"))
        point = s.checkpoint()
    assert verify(disk_url) == []
    assert collect(disk_url, dry_run=True).blobs == 0
    materialize(disk_url, point, tmp_path / "written")
    assert (tmp_path / "written" / "f").read_text() == "0"
    other = f"file:{tmp_path}/other"
    assert copy_sessions(disk_url, other).sessions == 1
    write_bundle(disk_url, "s", tmp_path / "s.bundle")
    assert read_bundle(f"file:{tmp_path}/third", tmp_path / "s.bundle").id == "s"
    assert import_messages(other, b'[{"role": "user", "content": "hi"}]').session_id
    assert purge(other, "s", text="a secret").events == 1
    with open_store(other) as store:
        assert len(store.sessions()) == 2


def test_what_only_looks_makes_no_store(disk_url: str, tmp_path: Path) -> None:
    """A URL spelt wrong is reported, and nothing is there afterwards."""
    for look in (
        lambda: verify(disk_url),
        lambda: collect(disk_url),
        lambda: purge(disk_url, "s"),
        lambda: copy_sessions(disk_url, f"file:{tmp_path}/other"),
        lambda: materialize(disk_url, "0" * 64, tmp_path / "into"),
    ):
        with pytest.raises(NotFound):
            look()
    assert list(tmp_path.iterdir()) == []


def test_a_wrapper_opens_and_closes_what_it_wraps(disk_url: str) -> None:
    """Also one that would leave a store of the caller's open."""
    with Buffered(disk_url, owns=False) as store:
        store.create(SessionInfo(id="s"))
        store.append("s", [NewEvent("k")])
        inner = store.inner
    with pytest.raises(ValueError, match="closed"):
        inner.info("s")
    with Redacting(disk_url) as store:
        assert store.info("s").head == 1


@pytest.mark.parametrize("odd", [5, b"file:x", Path("x"), ["file:x"]], ids=repr)
def test_what_is_no_url_is_reported(odd: Json) -> None:
    """With how one looks."""
    for call in (
        lambda: open_store(odd),
        lambda: Session.create(odd),
        lambda: verify(odd),
        lambda: Buffered(odd),
    ):
        with pytest.raises(InvalidData, match="sqlite:///PATH"):
            call()
    with pytest.raises(InvalidData, match="name a store"):
        verify(None)  # type: ignore[arg-type]
