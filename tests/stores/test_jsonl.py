"""What is special to the JSONL store."""

from __future__ import annotations

from pathlib import Path

from backtrail.events import NewEvent, SessionInfo
from backtrail.stores.jsonl import JSONLStore


def test_purge_finds_copies_beyond_a_session_that_is_gone(tmp_path: Path) -> None:
    """A fork of a fork holds what its grandparent said, also when the parent is deleted."""
    store = JSONLStore(tmp_path)
    store.create(SessionInfo(id="a"))
    (event,) = store.append("a", [NewEvent("x", {"secret": "s3cret"})])
    store.create(SessionInfo(id="b", parent_id="a", relation="fork", fork_seq=1), base=("a", 1))
    store.create(SessionInfo(id="c", parent_id="b", relation="fork", fork_seq=1), base=("b", 1))
    store.delete("b")
    store.purge("a", [event.seq])
    assert [e.data for e in store.read("c")] == [{"purged": True}]
    store.close()
