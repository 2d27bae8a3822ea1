"""JSONL stores whose sessions go away under a reader, or that may only be read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from backtrail import NotFound
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import jsonl
from backtrail.stores.jsonl import JSONLStore, infos
from backtrail.stores.jsonl.infos import Infos
from backtrail.testing.store.base import child, joined

NOBODY = 65534


@pytest.mark.parametrize("verb", ["logs", "info"])
def test_a_session_deleted_during_a_look_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """What goes through all sessions, as a collection does, passes over it."""
    place, name = {"logs": (jsonl, "log_names"), "info": (infos, "read_record")}[verb]
    real: Callable[..., Any] = getattr(place, name)

    def late(*given: Any) -> Any:
        with JSONLStore(tmp_path) as other:
            monkeypatch.setattr(place, name, real)
            other.delete("a")
        return real(*given)

    with JSONLStore(tmp_path) as store:
        store.create(SessionInfo("a"))
        store.append("a", [NewEvent("test", {})])
        monkeypatch.setattr(place, name, late)
        with pytest.raises(NotFound):
            store.logs("a") if verb == "logs" else store.info("a")


def test_a_key_can_be_given_while_others_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that goes away while its key is looked at has none."""
    with JSONLStore(tmp_path) as store:
        store.create(SessionInfo("a", key="k"))
        real = Infos._ids

        def late(self: Infos) -> list[str]:
            found = real(self)
            for file in sorted((tmp_path / "sessions/a").iterdir()):
                file.unlink()
            return found

        monkeypatch.setattr(Infos, "_ids", late)
        store.create(SessionInfo("b", key="k"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_verify_of_a_store_that_may_only_be_read() -> None:
    """No lock can be taken; that is no damage. What is damaged is reported."""
    with TemporaryDirectory() as name:
        place = Path(name, "store")
        with JSONLStore(place) as store:
            for id in ("a", "b"):
                store.create(SessionInfo(id))
                store.append(id, [NewEvent("test", {"n": n}) for n in range(3)])
        for path in place.glob("sessions/*/lock"):
            path.unlink()
        torn = place / "sessions/b/messages.jsonl"
        torn.write_bytes(torn.read_bytes() + b'{"seq":4,"uu')
        subprocess.run(["chmod", "-R", "a+rX", name], check=True)
        assert joined([child(lambda: _look(place, []))]) == [0]
        torn.write_bytes(torn.read_bytes().replace(b'"n":1', b'"n":7'))
        assert joined([child(lambda: _look(place, [("b", "torn line", (2,))]))]) == [0]


def _look(place: Path, right: list[tuple[str, str, tuple[int, ...]]]) -> None:
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    with JSONLStore(place) as store:
        found = [(p.session_id, p.what, p.seqs) for p in store.verify()]
    assert found == right, found
