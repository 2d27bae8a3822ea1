"""The full-text index finds what the plain search finds, on any data."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from backtrail.events import MESSAGE_KINDS, Hit, NewEvent, SessionInfo
from backtrail.stores import Store, open_store
from backtrail.stores.sqlite import SQLiteStore, fulltext

WORDS = (
    *("alpha", "Beta", "gamma_1", "_x", "foo-bar", "don't", "x.y", "42", "4_2", '"quoted"'),
    *("Straße", "STRASSE", "été", "e\u0301te\u0301", "İstanbul", "ΣΊΣΥΦΟΣ", "漢字かな", "हिन्दी"),
    *("naïve", "NAIVE", "ﬁne", "²", "½", "🙂", "a\u200bb", "tab\there", "x\x00y", "ǅ", "𝔘"),
)
QUERIES = (*WORDS, "alpha beta", '"alpha beta"', '"foo bar" 42', '"x y"', "strasse fine", "nothing")


def message(rng: random.Random) -> NewEvent:
    kind = rng.choice([*MESSAGE_KINDS, "note"])
    parts = [" ".join(rng.choices(WORDS, k=rng.randrange(4))) for _ in range(rng.randrange(3))]
    content = [{"type": "text", "text": part} for part in parts] if rng.random() < 0.5 else parts
    data = (
        {"message": {"role": "user", "content": content}} if rng.random() < 0.9 else {"a": "alpha"}
    )
    return NewEvent(kind, data, ts=f"2030-01-{rng.randrange(1, 29):02}T00:00:00.000Z")


def change(store: Store, rng: random.Random, names: list[str]) -> None:
    """One random call of those that change what a search finds."""
    name = rng.choice(names)
    head = store.info(name).head
    what = rng.random()
    if what < 0.6:
        store.append(name, [message(rng) for _ in range(rng.randrange(4))])
    elif what < 0.75:
        fork, seq = f"s{len(names)}", rng.randrange(head + 1)
        info = SessionInfo(id=fork, parent_id=name, relation="fork", fork_seq=seq)
        store.create(info, base=(name, seq))
        names.append(fork)
    elif what < 0.85 and head:
        store.purge(name, [rng.randrange(1, head + 1)])
    elif what < 0.95:
        store.append(name, [message(rng)], log="side")
    else:
        store.search("alpha")


@pytest.mark.parametrize(("many", "walked"), [(1, 100), (5, 100), (1, 0), (500, 100)])
@pytest.mark.parametrize("seed", range(4))
def test_search_equals_the_plain_one(
    tmp_path: Path, seed: int, many: int, walked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same hits, same order, same snippets: case, accents, scripts, phrases, forks, purges.

    Also where so many match that sessions are gone through one by one.
    """
    monkeypatch.setattr(fulltext, "_MANY", many)
    monkeypatch.setattr(fulltext, "_WALKED", walked)
    rng = random.Random(seed)
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        names = ["s0", "s1"]
        for name in names:
            store.create(SessionInfo(id=name))
        for _ in range(60):
            change(store, rng, names)
        for text in QUERIES:
            if any(char.isalnum() for char in text):
                assert store.search(text, limit=7) == Store.search(store, text, limit=7)
                assert store.search(text, limit=999) == Store.search(store, text, limit=999)


def test_search_after_deletion_finds_shared_events_once(tmp_path: Path) -> None:
    """Under the newest session that reads them, whether the owner lives or not."""
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        store.create(SessionInfo(id="a"))
        store.append("a", [NewEvent("user_message", {"message": "needle one"})])
        for fork in ("b", "c"):
            info = SessionInfo(id=fork, parent_id="a", relation="fork", fork_seq=1)
            store.create(info, base=("a", 1))
        assert found(store.search("needle")) == [("c", 1)]
        store.delete("a")
        assert found(store.search("needle")) == [("c", 1)]
        store.create(SessionInfo(id="a"))
        assert found(store.search("needle")) == [("c", 1)]
        store.delete("c")
        assert found(store.search("needle")) == [("b", 1)]
        store.delete("b")
        assert store.search("needle") == []


def test_search_finds_a_word_longer_than_the_index_keeps(tmp_path: Path) -> None:
    """FTS5 cuts at 32 KB; two words that differ behind that are still two."""
    one, two = "w" * 40_000 + "1", "w" * 40_000 + "2"
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        store.create(SessionInfo(id="s"))
        store.append("s", [NewEvent("user_message", {"message": word}) for word in (one, two)])
        assert found(store.search(one)) == [("s", 1)]
        assert found(store.search(two)) == [("s", 2)]


def test_catch_up_goes_in_slices_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every event is indexed once, whatever the slice and whatever was appended meanwhile."""
    monkeypatch.setattr(fulltext, "SLICE", 3)
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        for name in ("a", "b"):
            store.create(SessionInfo(id=name))
        for n in range(10):
            store.append("a", [NewEvent("user_message", {"message": f"word {n}"})])
            store.append("b", [NewEvent("user_message", {"message": f"word {n}"})] * 2)
            if n % 4 == 0:
                store.search("word")
        assert len(store.search("word", limit=100)) == 30
        assert len(found(store.search('"word 9"'))) == 3


def test_catch_up_asks_once_which_logs_are_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before every slice: with many sessions, asking takes longer than indexing."""
    monkeypatch.setattr(fulltext, "SLICE", 5)
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        for number in range(40):
            store.create(SessionInfo(id=f"s{number}"))
            said = {"message": {"role": "user", "content": f"word{number}"}}
            store.append(f"s{number}", [NewEvent("user_message", said)] * 5)
    asked: list[str] = []

    def note(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        asked.extend(["behind"] if "unindexed UNION" in sql else [])
        return True

    def trace(connection: apsw.Connection) -> None:
        connection.exec_trace = note

    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, trace])
    with SQLiteStore(tmp_path / "x.db") as again:
        assert [hit.session_id for hit in again.search("word39", limit=1)] == ["s39"]
        assert len(again.search("word7")) == 5
    assert 1 <= len(asked) <= 4


def found(hits: list[Hit]) -> list[tuple[str, int]]:
    return [(hit.session_id, hit.event.seq) for hit in hits]


def test_a_full_disk_leaves_the_slow_way(tmp_path: Path) -> None:
    """The index cannot grow then, and what it does not know yet is found all the same."""
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        assert isinstance(store, SQLiteStore)
        store.create(SessionInfo(id="s"))
        said = [{"message": {"role": "user", "content": f"word{n} " * 500}} for n in range(50)]
        store.append("s", [NewEvent("user_message", data) for data in said])
        writer = store._database.writer()
        pages = writer.execute("PRAGMA page_count").get
        writer.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        assert [hit.event.seq for hit in store.search("word7")] == [8]
        assert fulltext.behind(store._database)
        writer.execute("PRAGMA max_page_count = 1000000").fetchall()
        assert [hit.event.seq for hit in store.search("word7")] == [8]
        assert not fulltext.behind(store._database)
