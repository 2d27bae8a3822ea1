"""What is special to the SQLite store: its file, its errors, forks and erasure.

The database is looked at with a connection of its own, so that reads and writes of the
store do not vouch for each other.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import apsw
import pytest

from backtrail.errors import Closed, Damaged, NotFound, SessionBusy, StoreFailed, Unsupported
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store
from backtrail.stores.disk import schema, sync
from backtrail.stores.disk.database import Database
from backtrail.stores.disk.schema import EVENTS
from backtrail.stores.opening import Options
from backtrail.stores.sqlite import SQLiteStore, open_sqlite

from .database import opened, raw, said, texts


def counts(place: Path) -> dict[str, int]:
    tables = ("sessions", "logs", "shares", "events", "dirty", "unindexed", "words_docsize")
    with raw(place) as connection:
        return {name: connection.execute(f"SELECT count(*) FROM {name}").get for name in tables}


# --- the file ----------------------------------------------------------------------------


def test_url_names_the_same_file_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative, absolute, short, or over a link: one file, and `url` finds it again."""
    monkeypatch.chdir(tmp_path)
    os.symlink(tmp_path, tmp_path / "link")
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        store.create(SessionInfo(id="s"))
        assert store.url == f"sqlite:///{tmp_path}/a.db"
    for url in ("sqlite:///a.db", "sqlite:a.db", "sqlite:///link/a.db", store.url):
        with open_store(url) as again:
            assert again.url == store.url
            assert again.info("s").id == "s"


def test_store_made_from_a_path_stays_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over links and relative paths too, and when the process changes its directory."""
    (tmp_path / "real").mkdir()
    os.symlink("real", tmp_path / "folder")
    os.symlink("b.db", tmp_path / "real" / "a.db")
    monkeypatch.chdir(tmp_path)
    with SQLiteStore(Path("folder") / "a.db") as store:
        assert store.url == f"sqlite:///{tmp_path}/real/b.db"
        monkeypatch.chdir("/")
        store.create(SessionInfo(id="s"))
        store.append("s", [said("x")])
        store.flush()
    with SQLiteStore(tmp_path / "folder" / "a.db") as again:
        assert again.url == store.url
        assert texts(again, "s") == ["x"]
    assert {path.name for path in (tmp_path / "real").iterdir()} == {
        "a.db",
        *(f"b.db{end}" for end in ("", "-wal", "-shm", "-lock")),
    }


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b"])
def test_path_without_a_file_is_refused(path: str) -> None:
    """Also where no URL says so."""
    with pytest.raises(Unsupported, match="name a file"):
        SQLiteStore(path)


@pytest.mark.parametrize("address", ["", "//a.db", "///", "///:memory:"])
def test_url_without_a_file_is_refused(address: str) -> None:
    """With a word on how to write it."""
    with pytest.raises(Unsupported, match="sqlite:///PATH"):
        open_sqlite(address, Options())


def test_file_modes_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """Every file 0600, every directory 0700."""
    before = os.umask(0)
    try:
        place = tmp_path / "new" / "folder"
        with opened(place) as store:
            store.create(SessionInfo(id="s"))
            with store.lease("s"):
                store.append("s", [said("x")])
                found = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777
                         for path in tmp_path.rglob("*")}  # fmt: skip
    finally:
        os.umask(before)
    assert "new/folder/x.db-wal" in found
    for name, mode in found.items():
        assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600), name


def test_name_with_odd_characters_is_one_file(tmp_path: Path) -> None:
    """A path is never taken for a URI with parameters."""
    name = "a%20b?mode=ro&x#y.db"
    with open_store(f"sqlite:///{tmp_path}/{name}") as store:
        store.create(SessionInfo(id="s"))
    assert (tmp_path / name).exists()
    assert {path.name.removeprefix(name) for path in tmp_path.iterdir()} == {
        "",
        "-lock",
        "-shm",
        "-wal",
    }


def test_file_that_another_process_has_just_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made after it was looked for in vain, and before the next look."""
    real = schema.connect

    def just_before(path: str) -> apsw.Connection:
        try:
            return real(path)
        except apsw.CantOpenError:
            monkeypatch.undo()
            with opened(tmp_path) as other:
                other.create(SessionInfo(id="s"))
            raise

    monkeypatch.setattr(schema, "connect", just_before)
    with opened(tmp_path) as store:
        assert store.info("s").id == "s"


def test_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """A foreign database, a newer version and no database at all are refused."""
    with raw(tmp_path) as connection:
        connection.execute("CREATE TABLE theirs(x)")
    with pytest.raises(Unsupported, match="another program"):
        opened(tmp_path)
    with raw(tmp_path) as connection:
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(Unsupported, match="another program"):
        opened(tmp_path)
    with raw(tmp_path) as connection:
        connection.execute(f"PRAGMA application_id = {EVENTS.application}")
        connection.execute("PRAGMA user_version = 999")
    with pytest.raises(Unsupported, match="999"):
        opened(tmp_path)
    (tmp_path / "x.db").write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(Damaged):
        opened(tmp_path)


def test_records_from_before_there_were_roots_are_read(tmp_path: Path) -> None:
    """A database of version 1 is migrated, and its sessions have their folder for a root."""
    first = EVENTS._replace(migrations=EVENTS.migrations[:1])
    Database(tmp_path / "x.db", synced=False, idle=lambda: None, schema=first).close()
    moment = "2026-01-02T03:04:05.678Z"
    with raw(tmp_path) as connection:
        connection.execute(
            "INSERT INTO sessions(scope, id, cwd, created_at, updated_at, tags, metadata) "
            "VALUES('', 'old', '/somewhere/sub', ?1, ?1, '[]', '{}')",
            (moment,),
        )
        connection.execute("INSERT INTO logs(session, name) VALUES(1, 'messages')")
    with opened(tmp_path) as store:
        assert (store.info("old").cwd, store.info("old").root) == ("/somewhere/sub",) * 2
        assert [info.id for info in store.sessions(cwd="/somewhere/sub")] == ["old"]
        store.create(SessionInfo(id="new", cwd="/somewhere/sub", root="/somewhere"))
        assert store.latest("/somewhere").id == "new"


def test_migration_that_fails_leaves_the_version_before(tmp_path: Path) -> None:
    """Its statements and its number are one transaction."""
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="s"))
    later = "CREATE TABLE later(x); INSERT INTO nowhere VALUES(1)"
    broken = EVENTS._replace(migrations=(*EVENTS.migrations, later))
    with pytest.raises(StoreFailed):
        Database(tmp_path / "x.db", synced=False, idle=lambda: None, schema=broken)
    with raw(tmp_path) as connection:
        assert connection.execute("PRAGMA user_version").get == len(EVENTS.migrations)
        assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name='later'").get == 0
    with opened(tmp_path) as store:
        assert store.info("s").id == "s"


def test_closed_store_says_so(tmp_path: Path) -> None:
    """Also an iterator that was under way."""
    store = opened(tmp_path)
    store.create(SessionInfo(id="s"))
    store.append("s", [said(str(n)) for n in range(200)])
    events = store.read("s")
    next(events)
    store.close()
    store.close()
    with pytest.raises(Closed):
        list(events)
    with pytest.raises(Closed):
        store.append("s", [said("x")])


# --- errors ------------------------------------------------------------------------------


def test_full_disk_is_reported_and_passes(tmp_path: Path) -> None:
    """Nothing of the batch is there, and the next append works."""
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="s"))
        store.append("s", [said("first")])
        writer = store._database.writer()
        pages = writer.execute("PRAGMA page_count").get
        writer.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
        with pytest.raises(StoreFailed, match="free some space"):
            store.append("s", [said("x" * 5000) for _ in range(20)])
        writer.execute("PRAGMA max_page_count = 1000000").fetchall()
        assert [event.seq for event in store.append("s", [said("second")])] == [2]
        assert texts(store, "s") == ["first", "second"]


def test_locked_by_another_program_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign writer makes an append wait, then `SessionBusy`; reads and searches go on."""
    monkeypatch.setattr(schema, "BUSY_TIMEOUT", 50)
    with opened(tmp_path) as store, raw(tmp_path) as other:
        store.create(SessionInfo(id="s"))
        store.append("s", [said("x")])
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SessionBusy):
            store.append("s", [said("y")])
        assert store.info("s").message_count == 1
        assert [info.message_count for info in store.sessions()] == [1]
        assert [hit.event.seq for hit in store.search("x")] == [1]
        other.execute("ROLLBACK")
        assert store.append("s", [said("y")])[0].seq == 2


def test_failed_sync_ends_acknowledgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it, nothing is acknowledged any more, whatever later syncs would say."""
    with opened(tmp_path, durability="synced") as store:
        store.create(SessionInfo(id="s"))

        def fail(fd: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(sync, "data_sync", fail)
            with pytest.raises(StoreFailed, match="could not be synced"):
                store.append("s", [said("x")])
        with pytest.raises(StoreFailed, match="could not be synced"):
            store.append("s", [said("y")])


def test_synced_append_returns_after_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync is of the -wal file and comes after the commit."""
    synced: list[str] = []

    def watch(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        os.fdatasync(fd)

    monkeypatch.setattr(sync, "data_sync", watch)
    with opened(tmp_path, durability="synced") as store:
        store.create(SessionInfo(id="s"))
        synced.clear()
        store.append("s", [said("x")])
        assert f"{tmp_path}/x.db-wal" in synced


# --- sessions ----------------------------------------------------------------------------


def test_sessions_come_by_their_last_event(tmp_path: Path) -> None:
    """Newest first; of two with one time the later made comes first."""
    early, late = "2030-01-01T00:00:00.000Z", "2030-01-02T00:00:00.000Z"
    with opened(tmp_path) as store:
        for id in ("a", "b", "c", "d"):
            store.create(SessionInfo(id=id, cwd=str(tmp_path), created_at=early))
        store.append("b", [NewEvent("note", {}, ts=late)])
        assert [info.id for info in store.sessions()] == ["b", "d", "c", "a"]
        assert [info.id for info in store.sessions(limit=2)] == ["b", "d"]
        assert store.latest(tmp_path).id == "b"
        assert counts(tmp_path)["dirty"] == 0


def test_sessions_use_an_index_for_every_filter(tmp_path: Path) -> None:
    """None of the usual lists reads or sorts the whole table."""
    filters = {
        "": "sessions_updated",
        " AND s.cwd = ?": "sessions_cwd",
        " AND s.parent_id = ?": "sessions_parent",
        " AND s.key = ?": "sessions_key",
    }
    with opened(tmp_path), raw(tmp_path) as connection:
        for text, index in filters.items():
            query = (
                f"EXPLAIN QUERY PLAN SELECT * FROM sessions s WHERE s.scope = ?{text} "
                "ORDER BY s.updated_at DESC, s.n DESC"
            )
            values = ("",) * query.count("?")
            plan = " ".join(str(row[3]) for row in connection.execute(query, values))
            assert f"USING INDEX {index} " in plan
            if text in ("", " AND s.cwd = ?"):
                assert "TEMP B-TREE" not in plan


def test_scopes_do_not_see_each_other(tmp_path: Path) -> None:
    """Not by id, key, list, search, checkpoint, note or fork."""
    with opened(tmp_path, scope="one") as one, opened(tmp_path, scope="two") as two:
        one.create(SessionInfo(id="s", key="k", cwd=str(tmp_path)))
        one.append("s", [said("secret word"), NewEvent("checkpoint", {}, id="point")])
        one.memory(tmp_path).write("note")
        for call in (
            lambda: two.info("s"),
            lambda: two.append("s", [said("x")]),
            lambda: two.read("s"),
            lambda: two.delete("s"),
            lambda: two.checkpoint("point"),
            lambda: two.latest(tmp_path),
            lambda: two.create(SessionInfo(id="f"), base=("s", 1)),
        ):
            with pytest.raises(NotFound):
                call()
        assert two.sessions() == []
        assert two.search("secret") == []
        assert two.memory(tmp_path).read() == ""
        two.create(SessionInfo(id="s", key="k"))
        two.append("s", [said("secret other")])
        assert [hit.event.data for hit in one.search("secret")] == [said("secret word").data]
        assert one.checkpoint("point").session_id == "s"


# --- forks and deletion ------------------------------------------------------------------


def test_delete_keeps_what_forks_read_and_no_more(tmp_path: Path) -> None:
    """Rows go with the last session that reads them, and the tables are empty at the end."""
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="a"))
        store.append("a", [said(f"a{n}") for n in range(1, 11)])
        store.create(SessionInfo(id="b", parent_id="a", fork_seq=6), base=("a", 6))
        store.append("b", [said("b7"), said("b8")])
        store.create(SessionInfo(id="c", parent_id="b", fork_seq=7), base=("b", 7))
        store.create(SessionInfo(id="d", parent_id="b", fork_seq=3), base=("b", 3))
        assert [hit.session_id for hit in store.search("a6")] == ["c"]
        store.delete("a")
        assert counts(tmp_path)["events"] == 6 + 2
        store.delete("b")
        assert counts(tmp_path)["events"] == 6 + 1
        assert texts(store, "c") == ["a1", "a2", "a3", "a4", "a5", "a6", "b7"]
        assert texts(store, "d") == ["a1", "a2", "a3"]
        assert [hit.session_id for hit in store.search("a6")] == ["c"]
        store.delete("c")
        assert counts(tmp_path)["events"] == 3
        assert store.search("a6") == []
        store.delete("d")
        assert set(counts(tmp_path).values()) == {0}
        assert store.verify() == []


def test_session_made_again_is_new(tmp_path: Path) -> None:
    """A live writer gets `NotFound`, the new session starts empty, forks of the old stay whole."""
    with opened(tmp_path) as store, opened(tmp_path) as other:
        store.create(SessionInfo(id="s"))
        store.append("s", [said("old")])
        store.append("s", [said("older")], log="side")
        store.create(SessionInfo(id="f", parent_id="s", fork_seq=1), base=("s", 1))
        other.delete("s")
        with pytest.raises(NotFound):
            store.append("s", [said("x")])
        other.create(SessionInfo(id="s"))
        assert store.append("s", [said("new")])[0].seq == 1
        assert store.logs("s") == ["messages"]
        assert (texts(store, "s"), texts(store, "f")) == (["new"], ["old"])


def test_head_is_right_between_two_writers(tmp_path: Path) -> None:
    """What a store remembers of a log is worth nothing once another has written."""
    with opened(tmp_path) as one, opened(tmp_path) as two:
        one.create(SessionInfo(id="s"))
        seqs = [store.append("s", [said("x")])[0].seq for store in (one, one, two, one, two, two)]
        assert seqs == [1, 2, 3, 4, 5, 6]
        assert one.info("s").head == two.info("s").head == 6
        assert one.append("s", [said("x")])[0].seq == 7
        assert two.info("s").message_count == one.info("s").message_count == 7


def test_fork_takes_over_the_counts_of_its_parent(tmp_path: Path) -> None:
    """The outcome is that of counting from the start."""
    cost = NewEvent(
        "assistant_message", {"message": {}, "usage": {"input_tokens": 5}, "cost_usd": 1}
    )
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="a"))
        store.append("a", [said("1"), cost, said("3")])
        store.info("a")
        store.append("a", [cost, said("5")])
        store.create(SessionInfo(id="f", parent_id="a", fork_seq=4), base=("a", 4))
        store.create(SessionInfo(id="g", parent_id="a", fork_seq=2), base=("a", 2))
        store.append("f", [cost])
        info = store.info("f")
        assert (info.head, info.message_count, info.turn_count) == (5, 5, 2)
        assert (info.usage, info.cost_usd) == ({"input_tokens": 5}, 1.0)
        assert (store.info("g").message_count, store.info("g").usage) == (2, {})


# --- erasure -----------------------------------------------------------------------------


def files_with(place: Path, secret: str) -> list[str]:
    return sorted(path.name for path in place.iterdir()
                  if path.is_file() and secret.encode() in path.read_bytes())  # fmt: skip


@pytest.mark.parametrize("size", [0, 3_000, 100_000], ids=["small", "page", "large"])
def test_purge_leaves_no_trace_in_any_file(tmp_path: Path, size: int) -> None:
    """Not in the database, its free pages, the search index or the -wal file."""
    secret = "hunter2xyzzy"
    store = opened(tmp_path)
    store.create(SessionInfo(id="s"))
    for n in range(30):
        store.append("s", [said(f"before {n} {'pad ' * 200}")])
    store.append("s", [said("y" * size + f" my password is {secret} indeed")])
    assert [hit.event.seq for hit in store.search(secret)] == [31]
    store.append("s", [said(f"after {n} {'pad ' * 200}") for n in range(30)])
    store.search("after")
    store.create(SessionInfo(id="f", parent_id="s", fork_seq=40), base=("s", 40))
    store.close()
    assert files_with(tmp_path, secret), "the control must find it"
    store = opened(tmp_path)
    store.purge("f", [31, 4_000_000_000, -1, 1 << 40])
    assert store.search(secret) == []
    purged = next(store.read("s", after=30, limit=1))
    assert (purged.seq, purged.kind, purged.data) == (31, "user_message", {"purged": True})
    assert len(store.search("after", limit=100)) == 30
    store.close()
    assert files_with(tmp_path, secret) == []
    with raw(tmp_path) as connection:
        connection.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, words, row)")
        assert connection.execute("SELECT count(*) FROM terms WHERE term = ?", (secret,)).get == 0
        assert connection.execute("SELECT count(*) FROM terms WHERE term = 'after'").get == 1


# --- in the background -------------------------------------------------------------------


def test_index_is_caught_up_in_the_background(tmp_path: Path) -> None:
    """An append indexes nothing; a while later everything is indexed without a search."""
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="s"))
        store.append("s", [said(f"word{n}") for n in range(300)])
        assert counts(tmp_path)["words_docsize"] == 0
        deadline = time.monotonic() + 20
        while counts(tmp_path)["words_docsize"] < 300 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert counts(tmp_path)["words_docsize"] == 300


def test_wal_is_checkpointed_in_the_background(tmp_path: Path) -> None:
    """Events reach the database file while the store is open."""
    with opened(tmp_path) as store:
        store.create(SessionInfo(id="s"))
        for _ in range(400):
            store.append("s", [said("x" * 6000)])
        deadline = time.monotonic() + 20
        while (tmp_path / "x.db").stat().st_size < 1_000_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "x.db").stat().st_size >= 1_000_000
        assert len(texts(store, "s")) == 400


def test_close_leaves_a_short_wal_although_a_thread_reads(tmp_path: Path) -> None:
    """The next process to open the database reads all of it, each time."""
    store = opened(tmp_path)
    store.create(SessionInfo(id="s"))
    for _ in range(40):
        store.append("s", [said("x" * 100_000)])
    wal = tmp_path / "x.db-wal"
    assert wal.stat().st_size > 1 << 20
    inside = threading.Event()

    def read() -> None:
        with store._database.reading() as connection, connection:
            connection.execute("SELECT count(*) FROM events").fetchall()
            inside.set()
            time.sleep(0.2)

    thread = threading.Thread(target=read)
    thread.start()
    inside.wait()
    store.close()
    thread.join()
    assert wal.stat().st_size == 0


def test_a_closed_database_is_not_locked_again(tmp_path: Path) -> None:
    """A late caller, such as a thread in the background, opens no file that stays open."""
    store = opened(tmp_path)
    store.create(SessionInfo(id="s"))
    database = store._database
    store.close()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(Closed), database.writing():
        pass
    assert set(os.listdir("/proc/self/fd")) == before
