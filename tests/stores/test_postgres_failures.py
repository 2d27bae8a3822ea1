"""Servers that stop, start again, and are taken over from; leases that run out; forks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from tests import postgres

from backtrail.errors import BacktrailError, Conflict, SessionBusy, StoreFailed
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import Store, open_store
from backtrail.stores.postgres import leases as leasing
from backtrail.testing.store.base import child, joined


def note(by: int, n: int) -> NewEvent:
    """The n-th event of a writer."""
    return NewEvent("user_message", {"by": by, "n": n})


# --- the server crashes ------------------------------------------------------------------


def write_on(url: str, by: int, file: Path, stop: Path) -> None:
    """Append until asked to stop, and note each event that was acknowledged."""
    n = 0
    with open_store(url) as store, open(file, "w") as acknowledged:
        while not stop.exists():
            event = store.append("s", [note(by, n)])[0]
            acknowledged.write(f"{event.seq} {event.id} {by} {n}\n")
            acknowledged.flush()
            n += 1


def check_stops(server: postgres.Server, place: Path, stops: int) -> None:
    """Crash the server under eight writers; each event acknowledged is there, none twice."""
    with open_store(server.url) as store:
        store.create(SessionInfo("s"))
    stop = place / "stop"
    files = [place / f"w{by}" for by in range(8)]
    pids = [
        child(lambda by=by: write_on(server.url, by, files[by], stop))  # type: ignore[misc]
        for by in range(8)
    ]
    for _ in range(stops):
        time.sleep(0.4)
        server.stop("immediate")
        server.start()
    time.sleep(0.4)
    stop.touch()
    assert joined(pids) == [0] * 8
    with open_store(server.url) as store:
        events = list(store.read("s"))
        assert store.verify() == []
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    stored = {(event.seq, event.id, event.data["by"], event.data["n"]) for event in events}
    reported = set()
    for file in files:
        for line in file.read_text().splitlines():
            seq, id, by, n = line.split()
            reported.add((int(seq), id, int(by), int(n)))
    assert len(reported) > 50
    assert reported <= stored
    assert max(Counter((by, n) for _, _, by, n in stored).values()) == 1


def test_a_crash_of_the_server_loses_nothing(own_server: postgres.Server, tmp_path: Path) -> None:
    """Three times under eight writers."""
    check_stops(own_server, tmp_path, 3)


@pytest.mark.torture
def test_a_hundred_crashes_lose_nothing(own_server: postgres.Server, tmp_path: Path) -> None:
    """The same for longer."""
    check_stops(own_server, tmp_path, 100)


def test_a_session_goes_on_when_the_server_is_back(own_server: postgres.Server) -> None:
    """A store that is open waits for it a while, and then says what is wrong."""
    with open_store(own_server.url) as store:
        store.create(SessionInfo("s"))
        store.append("s", [note(0, 0)])
        own_server.stop("fast")
        threading.Timer(0.5, own_server.start).start()
        assert store.append("s", [note(0, 1)])[0].seq == 2
        own_server.stop("fast")
        threading.Timer(0.5, own_server.start).start()
        assert [event.seq for event in store.read("s")] == [1, 2]


# --- another server takes over -----------------------------------------------------------


def replica_of(server: postgres.Server) -> postgres.Server:
    """A replica, made by a base backup; not started."""
    other = postgres.Server(server.folder / "replica", postgres.free_port())
    other.folder.mkdir(mode=0o755)
    given = postgres.unprivileged()
    if given:
        os.chown(other.folder, given["user"], given["group"])
    server.run(
        "pg_basebackup", "-h", "127.0.0.1", "-p", str(server.port), "-U", postgres.USER,
        "-D", str(other.data), "-R", "-X", "stream", "-c", "fast", "--no-sync",
    )  # fmt: skip
    return other


def test_a_failover_that_lost_events_is_said(own_server: postgres.Server) -> None:
    """A replica that lags takes over on the same address: nothing more is acknowledged there."""
    replica = replica_of(own_server)
    replica.start()
    try:
        with open_store(own_server.url) as store:
            store.create(SessionInfo("kept"))
            store.create(SessionInfo("s"))
            store.append("kept", [note(0, 0)])
            store.append("s", [note(0, n) for n in range(10)])
            caught_up(own_server, replica)
            # From here on nothing reaches the replica.
            replica.stop("fast")
            last = [store.append("s", [note(0, n)])[0] for n in range(10, 20)][-1]
            own_server.stop("fast")
            own_server.port, replica.port = replica.port, own_server.port
            (replica.data / "standby.signal").unlink()
            (replica.data / "recovery.signal").touch()
            replica.configure("primary_conninfo = ''\nrestore_command = 'false'\n")
            replica.start()
            promoted(replica)
            for _ in range(2):
                with pytest.raises(StoreFailed, match=f"event 20 .`{last.id}`.*acknowledged"):
                    store.append("s", [note(0, 20)])
            # What was not lost goes on.
            assert store.append("kept", [note(0, 1)])[0].seq == 2
            with open_store(store.url) as fresh:
                assert fresh.append("s", [note(1, 0)])[0].seq == 11
    finally:
        with suppress(RuntimeError):
            replica.stop()


def promoted(server: postgres.Server) -> None:
    """Wait until a server takes writes."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(psycopg.Error), psycopg.connect(server.url, autocommit=True) as connection:
            row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
            if row == (False,):
                return
        time.sleep(0.05)
    raise AssertionError("the server stays a replica")


def caught_up(primary: postgres.Server, replica: postgres.Server) -> None:
    """Wait until the replica has all that the primary has."""
    with psycopg.connect(primary.url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    with psycopg.connect(replica.url, autocommit=True) as connection:
        for _ in range(200):
            there = connection.execute(
                "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", row
            ).fetchone()
            if there == (True,):
                return
            time.sleep(0.05)
    raise AssertionError("the replica does not catch up")


def test_a_replica_only_reads(own_server: postgres.Server) -> None:
    """Looking works there; writing is an error that says why, and nothing is written."""
    with open_store(own_server.url) as store:
        store.create(SessionInfo("s"))
        store.append("s", [NewEvent("user_message", {"message": {"content": "fox"}})])
    replica = replica_of(own_server)
    replica.start()
    try:
        caught_up(own_server, replica)
        with open_store(replica.url) as store:
            assert store.info("s").head == 1
            assert len(list(store.read("s"))) == len(store.search("fox")) == 1
            for write in (
                lambda: store.append("s", [note(0, 0)]),
                lambda: store.create(SessionInfo("t")),
                lambda: store.update("s", title="x"),
            ):
                with pytest.raises(StoreFailed, match="replica"):
                    write()
            assert store.info("s").head == 1
    finally:
        replica.stop()


# --- leases ------------------------------------------------------------------------------


def test_a_lease_that_ran_out_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that stood still for longer than its lease finds that another has it."""
    url = postgres.url_for(tmp_path)
    monkeypatch.setattr(leasing, "LENGTH", 1.0)
    monkeypatch.setattr(leasing, "RENEWED", 0.3)
    # As on two machines, where none sees that the other's process lives.
    with open_store(url) as store:
        store.create(SessionInfo("s"))
        heard, say = os.pipe()
        wait, go = os.pipe()

        def hold() -> None:
            os.environ["BACKTRAIL_STATE"] = str(tmp_path / "other")
            with open_store(url) as own, own.lease("s"):
                own.append("s", [note(1, 0)])
                os.write(say, b"held")
                os.read(wait, 1)
                try:
                    own.append("s", [note(1, 1)])
                    os._exit(1)
                except SessionBusy:
                    pass

        pid = child(hold)
        try:
            assert os.read(heard, 4) == b"held"
            # It is renewed.
            time.sleep(2.0)
            with pytest.raises(SessionBusy), store.lease("s"):
                pass
            os.kill(pid, signal.SIGSTOP)
            with store.lease("s", wait=10):
                store.append("s", [note(2, 0)])
                os.kill(pid, signal.SIGCONT)
                os.write(go, b"!")
                assert joined([pid]) == [0]
                store.append("s", [note(2, 1)])
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        said = [(event.data["by"], event.data["n"]) for event in store.read("s")]
        assert said == [(1, 0), (2, 0), (2, 1)]


def test_a_holder_whose_clock_stands_still_is_fenced_by_the_server(tmp_path: Path) -> None:
    """Whatever it believes: its appends name a lease that is another's by now."""
    url = postgres.url_for(tmp_path)
    with open_store(url) as one, open_store(url) as two:
        one.create(SessionInfo("s"))
        with one.lease("s"):
            schema = postgres.schema_for(tmp_path)
            with psycopg.connect(postgres.server().url, autocommit=True) as connection:
                # The server's clock says that it is over.
                connection.execute(f"UPDATE {schema}.logs SET until = clock_timestamp()")
            with two.lease("s"):
                for event in (note(1, 0), NewEvent("x", {}, id="given"), note(1, 2)):
                    with pytest.raises(SessionBusy):
                        one.append("s", [event])
                with pytest.raises(SessionBusy):
                    one.append("s", [NewEvent("rewound", {}, follows=0)])
                assert two.append("s", [note(2, 0)])[0].seq == 1
                # Side logs need no lease.
                assert one.append("s", [note(1, 0)], log="side")[0].seq == 1


def test_a_lease_has_one_of_many_takers(tmp_path: Path) -> None:
    """Sixteen processes race for it, again and again."""
    url = postgres.url_for(tmp_path)
    with open_store(url) as store:
        store.create(SessionInfo("s"))
    inside = tmp_path / "inside"

    def take() -> None:
        with open_store(url) as own:
            for _ in range(3):
                with own.lease("s", wait=60):
                    fd = os.open(inside, os.O_CREAT | os.O_EXCL)
                    time.sleep(0.002)
                    os.close(fd)
                    os.unlink(inside)

    assert joined([child(take) for _ in range(16)]) == [0] * 16


# --- processes and threads -----------------------------------------------------------------


def test_a_forked_process_has_connections_of_its_own(tmp_path: Path) -> None:
    """The server sees other backends from the child, and the parent's go on."""
    url = postgres.url_for(tmp_path)
    with open_store(url) as store:
        store.create(SessionInfo("s"))
        before = backend(store)
        heard, say = os.pipe()

        def work() -> None:
            for n in range(50):
                store.append("s", [note(1, n)])
            os.write(say, f"{backend(store)}".encode())
            store.close()

        pid = child(work)
        for n in range(50):
            store.append("s", [note(0, n)])
        assert joined([pid]) == [0]
        assert int(os.read(heard, 20)) != before
        assert backend(store) == before
        assert store.info("s").head == 100
        assert store.verify() == []


def backend(store: Store) -> int:
    """The server's process behind a store's connection."""
    found: int = store.link.read(lambda execute: execute.one("SELECT pg_backend_pid()"))[0]  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("processes", [4, pytest.param(16, marks=pytest.mark.torture)])
def test_processes_append_to_one_session(tmp_path: Path, processes: int) -> None:
    """Many at a time, a thousand events each in torture: no number twice, none left out."""
    url = postgres.url_for(tmp_path)
    each = 1000 if processes == 16 else 100
    with open_store(url) as store:
        store.create(SessionInfo("s"))

        def work(by: int) -> None:
            with open_store(url) as own:
                for n in range(each):
                    own.append("s", [note(by, n)])

        assert joined([child(lambda by=by: work(by)) for by in range(processes)]) == [0] * processes  # type: ignore[misc]
        events = list(store.read("s"))
    assert [event.seq for event in events] == list(range(1, processes * each + 1))
    for by in range(processes):
        assert [e.data["n"] for e in events if e.data["by"] == by] == list(range(each))


def test_two_hundred_sessions_of_one_process(tmp_path: Path) -> None:
    """They share a few connections."""
    url = postgres.url_for(tmp_path, "&pool=4")
    with open_store(url) as store:
        for n in range(200):
            store.create(SessionInfo(f"s{n}"))

        def work(first: int) -> None:
            for n in range(first, 200, 8):
                for k in range(5):
                    store.append(f"s{n}", [note(n, k)])

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert {info.head for info in store.sessions()} == {5}
        assert len(store.sessions()) == 200


def test_an_expected_head_lets_one_of_many_win(tmp_path: Path) -> None:
    """And the others learn the head that there is."""
    url = postgres.url_for(tmp_path)
    with open_store(url) as store, open_store(url) as other:
        store.create(SessionInfo("s"))
        store.append("s", [note(0, 0)], expected=0)
        with pytest.raises(Conflict) as caught:
            other.append("s", [note(1, 0)], expected=0)
        assert (caught.value.expected, caught.value.head) == (0, 1)
        assert other.append("s", [note(1, 0)], expected=1)[0].seq == 2


# --- errors ------------------------------------------------------------------------------


def test_a_password_is_never_shown(tmp_path: Path, own_server: postgres.Server) -> None:
    """Neither by the store, nor by errors; what is missing is said."""
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'hunter2'")
        connection.execute("GRANT CREATE ON DATABASE postgres TO guarded")
    hba = own_server.data / "pg_hba.conf"
    lines = "host all guarded 127.0.0.1/32 scram-sha-256\n"
    hba.write_text(lines + hba.read_text())
    own_server.run("pg_ctl", "-D", str(own_server.data), "reload")
    right = own_server.url.replace("backtrail@", "guarded:hunter2@")
    with open_store(f"{right}?schema=guarded") as store:
        assert "hunter2" not in store.url
        assert store.url.startswith("postgresql://guarded@127.0.0.1")
        store.create(SessionInfo("s"))
    for wrong in (right.replace("hunter2", "wr0ng"), right.replace("guarded:hunter2", "guarded")):
        with pytest.raises(StoreFailed) as caught:
            open_store(wrong)
        text = str(caught.value)
        assert "password" in text
        assert "PGPASSWORD" in text
        assert str(own_server.port) in text
        assert "wr0ng" not in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("/postgres", "/none"), "make it first"),
        (("backtrail@", "stranger@"), "make it first"),
        (("127.0.0.1", "nowhere.invalid"), "spelt right"),
    ],
)
def test_a_server_that_is_none_is_named(change: tuple[str, str], said: str) -> None:
    """The error says where, why, and what to do."""
    url = postgres.server().url.replace(*change)
    with pytest.raises(StoreFailed, match=said):
        open_store(url)


def test_no_server_is_an_error_at_once() -> None:
    """A store that was never in use does not wait for one."""
    began = time.monotonic()
    with pytest.raises(StoreFailed, match="is the server running"):
        open_store(f"postgresql://x@127.0.0.1:{postgres.free_port()}/x")
    assert time.monotonic() - began < 10


def test_a_store_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    """`create=False` is `NotFound`."""
    with pytest.raises(LookupError, match="there is no store"):
        open_store(postgres.url_for(tmp_path), create=False)


def test_another_version_is_refused(tmp_path: Path) -> None:
    """An older store asks for an upgrade, a newer one for another program."""
    url = postgres.url_for(tmp_path)
    open_store(url).close()
    schema = postgres.schema_for(tmp_path)
    for version, said in ((99, "update this program"), (0, "store upgrade")):
        with psycopg.connect(postgres.server().url, autocommit=True) as connection:
            connection.execute(f"UPDATE {schema}.store SET version = {version}")
        with pytest.raises(BacktrailError, match=said):
            open_store(url)


def test_a_role_without_rights_is_reported(own_server: postgres.Server) -> None:
    """A role that may not make tables needs them made; one that may not write hears it."""
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
    poor = own_server.url.replace("backtrail@", "reader@")
    with pytest.raises(StoreFailed, match="right"):
        open_store(poor)
    open_store(own_server.url).close()
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("GRANT USAGE ON SCHEMA backtrail TO reader")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA backtrail TO reader")
    with open_store(poor) as store, pytest.raises(StoreFailed, match="right"):
        store.create(SessionInfo("s"))
