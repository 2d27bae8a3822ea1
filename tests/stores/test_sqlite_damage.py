"""Damage to a SQLite store: it costs what is hit, is reported, and hides nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backtrail.errors import Damaged
from backtrail.events import Problem, SessionInfo

from .database import opened, raw, said, texts


def test_damaged_row_is_reported_and_passed_over(tmp_path: Path) -> None:
    """It costs that event; the others, the head and other sessions are whole."""
    problems: list[Problem] = []
    with opened(tmp_path, on_damage=problems.append) as store:
        for id in ("s", "t"):
            store.create(SessionInfo(id=id))
            store.append(id, [said("one"), said("two"), said("three", id="third")])
        with raw(tmp_path) as connection:
            first = connection.execute("SELECT min(key) FROM events").get
            bad = "UPDATE events SET data = CAST(? AS TEXT) WHERE key = ?"
            connection.execute(bad, (b'{"cut', first + 1))
            connection.execute(bad, (b"\xff\xfe", first + 2))
        assert texts(store, "s") == ["one"]
        assert [event.seq for event in store.read("s", reverse=True)] == [1]
        assert [(p.session_id, p.seqs) for p in problems[:2]] == [("s", (2,)), ("s", (3,))]
        assert store.info("s").head == 3
        assert texts(store, "t") == ["one", "two", "three"]
        with pytest.raises(Damaged):
            store.find("s", "third")
        assert store.append("s", [said("four")])[0].seq == 4
        assert [(p.session_id, p.what, p.seqs) for p in store.verify()] == [
            ("s", "unreadable", (2,)),
            ("s", "unreadable", (3,)),
        ]
        assert [hit.session_id for hit in store.search("two")] == ["t"]


@pytest.mark.parametrize(
    "damage",
    ["metadata = '{'", "title = CAST(x'ff' AS TEXT)", "id = '../up'", "usage = '[]'"],
)
def test_damaged_record_does_not_hide_others(tmp_path: Path, damage: str) -> None:
    """It is left out of the list and reported by `verify`."""
    with opened(tmp_path) as store:
        for id in ("a", "b", "c"):
            store.create(SessionInfo(id=id))
            store.append(id, [said(f"word {id}")])
        store.sessions()
        with raw(tmp_path) as connection:
            connection.execute(f"UPDATE sessions SET {damage} WHERE id = 'b'")
        store.append("a", [said("more")])
        assert sorted(info.id for info in store.sessions()) == ["a", "c"]
        assert [p.what for p in store.verify()] == ["record"]


DAMAGES = (
    *("id = '.up'", "id = '-up'", "id = ''", "id = 'a' || char(10) || 'b'", "id = char(10)"),
    *("id = 'é'", "id = printf('%.129d', 1)", "id = x'61'", "title = x'61'", "cwd = 1.5"),
    *("scope = ''", "key = x'61'", "relation = 'friend'", "relation = x'61'", "fork_seq = 'x'"),
    *("created_at = x'61'", "root = x'61'", "folded = -1", "folded = 2147483648", "folded = 1.5"),
    *("folded = 'x'", "message_count = 1.5", "turn_count = x'61'", "cost_usd = 'x'"),
    *("exit_reason = x'61'", "tags = '{}'", "tags = '[1]'", "metadata = '[]'", "usage = '{'"),
    *("title = CAST(x'ff' AS TEXT)", "metadata = x'7b7d'"),
)
HARMLESS = ("cwd = 1.5", "scope = ''")  # becomes a text; is what it was


@pytest.mark.parametrize("least", [1, 600])
def test_every_damaged_record_is_left_out_of_a_long_list(tmp_path: Path, least: int) -> None:
    """Whatever is out of place in it, and wherever in the list it stands, alone or among others."""
    count = max(least, 2 * len(DAMAGES))
    with opened(tmp_path) as store:
        for number in range(count):
            store.create(SessionInfo(id=f"s{number:03d}", parent_id=f"pair{number // 2}"))
        assert len(store.sessions()) == count
        # Every second one, so that each has sound ones beside it.
        damaged = {f"s{2 * at:03d}": text for at, text in enumerate(DAMAGES)}
        with raw(tmp_path) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            for old, new in (("STRICT", "/*IS*/"), ("/*IS*/", "STRICT")):
                schema = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'sessions'"
                connection.execute(schema, (old, new))
                connection.execute("PRAGMA writable_schema = RESET")
                connection.execute("PRAGMA writable_schema = ON")
                for id, text in damaged.items() if old == "STRICT" else ():
                    connection.execute(f"UPDATE sessions SET {text} WHERE id = ?", (id,))
        lost = {id for id, text in damaged.items() if text not in HARMLESS}
        sound = [id for id in map("s{:03d}".format, range(count)) if id not in lost]
        assert sorted(info.id for info in store.sessions()) == sound
        newest = [info.id for info in store.sessions()]
        for limit in (0, 1, len(DAMAGES), len(sound), count):
            assert [info.id for info in store.sessions(limit=limit)] == newest[:limit]
        for at, text in enumerate(DAMAGES):
            kept = {f"s{2 * at:03d}", f"s{2 * at + 1:03d}"} - lost
            found = [info.id for info in store.sessions(parent=f"pair{at}")]
            assert sorted(found) == sorted(kept), text
        assert len([p for p in store.verify() if p.what == "record"]) == len(lost)


def test_missing_row_is_a_gap(tmp_path: Path) -> None:
    """`verify` names its number."""
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="s"))
        store.append("s", [said("one"), said("two"), said("three")])
        with raw(tmp_path) as connection:
            connection.execute("DELETE FROM events WHERE key & 4294967295 = 2")
        assert [(p.what, p.seqs) for p in store.verify()] == [("gap", (2,))]


def damage_leaf(place: Path, number: int) -> None:
    """Overwrite a page of events, counted from the first or, below 0, from the last."""
    with raw(place) as connection:
        query = "SELECT pageno FROM dbstat WHERE name = 'events' AND pagetype = 'leaf'"
        pages = connection.execute(f"{query} ORDER BY path").fetchall()
        size: Any = connection.execute("PRAGMA page_size").get
    page: Any = pages[number][0]
    with open(place / "x.db", "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def test_damaged_page_costs_what_is_on_it(tmp_path: Path) -> None:
    """Rows on other pages are read, and other sessions are whole."""
    with opened(tmp_path) as store:
        for id in ("s", "t"):
            store.create(SessionInfo(id=id))
            store.append(id, [said(f"{n} {'x' * 1500}") for n in range(100)])
        store.purge("s", [])
    damage_leaf(tmp_path, 3)
    problems: list[Problem] = []
    with opened(tmp_path, on_damage=problems.append) as store:
        read = [event.seq for event in store.read("s")]
        lost = sorted({seq for problem in problems for seq in problem.seqs})
        assert lost and len(lost) < 20
        assert sorted(read + lost) == list(range(1, 101))
        assert len(list(store.read("t"))) == 100
        assert {p.what for p in store.verify()} >= {"database", "unreadable"}
        assert sorted(info.id for info in store.sessions()) == ["s", "t"]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("pages", [(-1,), (-1, 3)])
def test_damaged_last_page(tmp_path: Path, pages: tuple[int, ...], reverse: bool) -> None:
    """What was on it cannot be counted any more; all other rows are read, and it is reported."""
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="s"))
        for n in range(100):
            store.append("s", [said(f"{n} {'x' * 1500}")])
        store.purge("s", [])
    for page in pages:
        damage_leaf(tmp_path, page)
    problems: list[Problem] = []
    with opened(tmp_path, on_damage=problems.append) as store:
        read = sorted(event.seq for event in store.read("s", reverse=reverse))
        lost = sorted({seq for problem in problems for seq in problem.seqs})
        assert sorted(read + lost) == list(range(1, lost[-1] + 1))
        assert 95 <= lost[-1] <= 100 and len(read) >= 90


def test_no_log_is_made_with_a_number_that_cannot_be_read(tmp_path: Path) -> None:
    """New numbers are above a damaged one: refused as damage; what is there goes on."""
    with opened(tmp_path) as store:
        for id in ("s", "t"):
            store.create(SessionInfo(id=id))
            store.append(id, [said("one")])
    with raw(tmp_path) as connection:
        connection.execute("UPDATE logs SET n = 1 << 62 WHERE n = (SELECT max(n) FROM logs)")
    with opened(tmp_path) as store:
        with pytest.raises(Damaged):
            store.append("s", [said("aside")], log="side")
        with pytest.raises(Damaged):
            store.create(SessionInfo(id="u"))
        store.append("s", [said("two")])
        assert texts(store, "s") == ["one", "two"]
        assert [info.id for info in store.sessions() if info.id == "u"] == []
        assert any(problem.session_id == "t" for problem in store.verify())
