"""What the server sees of a store: how many statements, of which kind, what they leave there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests import postgres
from tests.proxy import Proxy

from backtrail import Session
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import Store, open_store


def note(n: int, **data: Any) -> NewEvent:
    """The n-th event."""
    return NewEvent("user_message", {"n": n, **data})


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[tuple[Proxy, str]]:
    """A proxy that counts what is sent, and the URL of a store behind it."""
    server = postgres.server()
    with Proxy(server.port) as proxy:
        yield proxy, postgres.url_for(tmp_path).replace(f":{server.port}", f":{proxy.port}")


def rows(place: Path, query: str) -> list[Any]:
    """What another client sees in the tables of a store."""
    with psycopg.connect(postgres.server().url, autocommit=True) as connection:
        text = query.replace("backtrail.", f"{postgres.schema_for(place)}.")
        return connection.execute(text.encode()).fetchall()


def sent(proxy: Proxy, store: Store, count: int, **options: Any) -> int:
    """How often something is sent for some appends."""
    before = proxy.pieces
    for n in range(count):
        store.append("s", [note(n)], **options)
    return proxy.pieces - before


# --- round trips ---------------------------------------------------------------------------


def test_an_append_is_one_round_trip(wire: tuple[Proxy, str]) -> None:
    """Alone, in a batch, with an expected head, with an id, under a lease, and to a side log."""
    proxy, url = wire
    with open_store(url) as store:
        store.create(SessionInfo("s"))
        store.create(SessionInfo("t"))
        # Statements are prepared by their third use. Once in a while words are indexed meanwhile.
        for n in range(4):
            store.append("s", [note(n)])
            store.append("s", [note(n)], log="side")
            store.append("s", [note(n), note(n)])
            store.append("s", [NewEvent("user_message", {}, id=f"first-{n}")])
            store.append("s", [note(n)], expected=store.info("s").head)
        head = store.info("s").head
        assert 20 <= sent(proxy, store, 20) <= 23
        assert 20 <= sent(proxy, store, 20, log="side") <= 23
        before = proxy.pieces
        for n in range(20):
            store.append("s", [note(n), note(n)])
            store.append("s", [NewEvent("user_message", {}, id=f"given-{n}")])
            store.append("s", [note(n)], expected=head + 20 + 4 * n + 3)
        assert 60 <= proxy.pieces - before <= 63
        with store.lease("s"):
            sent(proxy, store, 4)
            assert 20 <= sent(proxy, store, 20) <= 23


def test_a_fork_of_many_events_is_as_few_rows_as_one_of_few(tmp_path: Path) -> None:
    """It shares its parent's; its own are what is appended to it."""
    with open_store(postgres.url_for(tmp_path)) as store:
        store.create(SessionInfo("s"))
        store.append("s", [note(n) for n in range(1000)])
        store.create(SessionInfo("fork"), base=("s", 900))
        store.append("fork", [note(0)])
        assert len(list(store.read("fork"))) == 901
    assert rows(tmp_path, "SELECT count(*) FROM backtrail.events") == [(1001,)]


def test_a_change_of_files_is_stored_with_its_reference_at_once(
    wire: tuple[Proxy, str], tmp_path: Path
) -> None:
    """What a call changed: the contents and who refers to them in one statement, in the index."""
    proxy, url = wire
    work = tmp_path / "work"
    work.mkdir()
    with open_store(url) as store, Session.create(store, "s", cwd=work) as session:
        for turn in range(4):
            with session.tool("bash", {"command": "x"}) as call:
                (work / "f").write_text(f"{turn}")
                call.result = "done"
        before = proxy.pieces
        with session.tool("bash", {"command": "x"}) as call:
            for n in range(3):
                (work / f"f{n}").write_text("x" * 3000 + str(n))
            call.result = "done"
        # The call, its result, the contents and the references; and what they rely on.
        assert proxy.pieces - before <= 5
    assert rows(tmp_path, "SELECT count(*) FROM backtrail.packs") == [(0,)]


# --- what is there ---------------------------------------------------------------------------


def test_the_head_row_is_rewritten_in_place(own_server: postgres.Server) -> None:
    """No index changes with an append: the server calls that a HOT update."""
    with open_store(own_server.url) as store:
        for name in "abcd":
            store.create(SessionInfo(name))
        for n in range(500):
            store.append("abcd"[n % 4], [note(n)])
    query = (
        "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
        "WHERE relname IN ('logs', 'sessions') ORDER BY relname"
    )
    deadline = time.monotonic() + 10
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        while True:
            (_, updates, hot), (_, resorted, _) = connection.execute(query).fetchall()
            if updates >= 500 or time.monotonic() > deadline:
                break
            # The server gathers its figures a while later.
            time.sleep(0.2)
    assert updates >= 500
    assert hot / updates > 0.95
    # Lists stay sorted without a write per append.
    assert resorted <= 8


def test_bodies_are_texts_as_they_were_given(tmp_path: Path) -> None:
    """What `jsonb` would change or refuse is there byte by byte."""
    body = '{"b":1,"a":-0.0,"big":1e308,"nul":"\\u0000","sep":"\u2028","n":123456789012345678901}'
    import json

    with open_store(postgres.url_for(tmp_path)) as store:
        store.create(SessionInfo("s"))
        store.append("s", [NewEvent("user_message", json.loads(body))])
        assert repr(next(store.read("s")).data) == repr(json.loads(body))
    ((kind, text),) = rows(tmp_path, "SELECT pg_typeof(data)::text, data FROM backtrail.events")
    assert kind == "text"
    assert list(json.loads(text)) == ["b", "a", "big", "nul", "sep", "n"]
    assert repr(json.loads(text)) == repr(json.loads(body))


def test_a_reader_never_sees_a_gap(tmp_path: Path) -> None:
    """While sixteen threads write to one log, whoever reads has all numbers up to the last."""
    url = postgres.url_for(tmp_path, "&pool=16")
    over = threading.Event()
    with open_store(url) as store, open_store(url) as other:
        store.create(SessionInfo("s"))

        def write() -> None:
            for n in range(40):
                store.append("s", [note(n), note(n)] if n % 3 else [note(n)])

        writers = [threading.Thread(target=write) for _ in range(16)]
        seen: list[int] = []

        def look() -> None:
            while not over.is_set():
                numbers = [event.seq for event in other.read("s")]
                seen.append(len(numbers))
                assert numbers == list(range(1, len(numbers) + 1))

        reader = threading.Thread(target=look)
        failures: list[BaseException] = []
        reader.run = _noting(reader.run, failures)  # type: ignore[method-assign]
        for thread in (reader, *writers):
            thread.start()
        for thread in writers:
            thread.join(60)
        over.set()
        reader.join(60)
        assert not failures
        assert len(seen) > 3
        total = 16 * sum(2 if n % 3 else 1 for n in range(40))
        assert [event.seq for event in store.read("s")] == list(range(1, total + 1))


def _noting(run: Any, failures: list[BaseException]) -> Any:
    def noted() -> None:
        try:
            run()
        except BaseException as error:
            failures.append(error)

    return noted


def test_followers_hear_and_writers_do_not_notify(wire: tuple[Proxy, str], tmp_path: Path) -> None:
    """News are sent apart from appends, of many at once; a follower hears them at once."""
    proxy, url = wire
    with open_store(url) as store, open_store(postgres.url_for(tmp_path)) as other:
        store.create(SessionInfo("s"))
        store.append("s", [note(0)])
        late: list[float] = []
        heard = threading.Event()

        def follow() -> None:
            for event in other.follow("s", after=0, poll=0.05, stop=heard.is_set):
                if "at" in event.data:
                    late.append(time.time() - event.data["at"])
                if event.data["n"] == 30:
                    heard.set()

        thread = threading.Thread(target=follow)
        thread.start()
        time.sleep(0.3)
        before = proxy.pieces
        for n in range(1, 31):
            store.append("s", [note(n, at=time.time())])
            time.sleep(0.01)
        # News do not count among these.
        assert proxy.pieces - before <= 32
        assert heard.wait(20)
        thread.join(20)
        assert len(late) == 30
