"""Errors of a shared store: what is wrong, where, what to do; nothing half written, no secret."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from tests import postgres

from backtrail import Session
from backtrail.errors import StoreFailed
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store


def note(n: int, size: int = 0) -> NewEvent:
    """The n-th event, with something that cannot be compressed."""
    return NewEvent("user_message", {"n": n, "text": random.Random(n).randbytes(size).hex()})


def run_sql(server: postgres.Server, *statements: str) -> None:
    """What an administrator types."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# --- a full disk -----------------------------------------------------------------------------


@pytest.fixture
def small_disk(own_server: postgres.Server) -> Iterator[Path]:
    """A disk of 24 MB, on which the server keeps tables."""
    disk = own_server.folder / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0777", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    try:
        (disk / "tables").mkdir()
        given = postgres.unprivileged()
        if given:
            os.chown(disk / "tables", given["user"], given["group"])
        run_sql(
            own_server,
            f"CREATE TABLESPACE small LOCATION '{disk}/tables'",
            "ALTER DATABASE postgres SET default_tablespace = 'small'",
        )
        yield disk
    finally:
        with suppress(RuntimeError):
            own_server.stop()
        subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Leave no room."""
    with suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def test_a_full_disk_of_the_server_is_named(own_server: postgres.Server, small_disk: Path) -> None:
    """What fits no more is not there in part; what is there is read; with room it goes on."""
    work = own_server.folder / "work"
    work.mkdir()
    with open_store(own_server.url) as store, Session.create(store, "s", cwd=work) as session:
        store.create(SessionInfo("t"))
        session.append({"role": "user", "content": "hi"})
        fill(small_disk)
        acknowledged = 0
        with pytest.raises(StoreFailed, match=rf"127.0.0.1:{own_server.port}.*disk is full.*room"):
            for n in range(1000):
                store.append("t", [note(n, 5000), note(n, 5000)])
                acknowledged += 2
        assert store.info("t").head == len(list(store.read("t"))) == acknowledged
        # A call's files are too large for what is left.
        (work / "f").write_bytes(random.Random(0).randbytes(200_000))
        with pytest.raises(StoreFailed, match="disk is full"):
            session.checkpoint("full")
        assert [m["content"] for m in session.messages()] == ["hi"]
        assert store.verify() == []
        (small_disk / "fill").unlink()
        point = session.checkpoint("room")
        (work / "f").unlink()
        session.rewind(point, mode="exact")
        assert (work / "f").read_bytes() == random.Random(0).randbytes(200_000)
        assert store.append("t", [note(0)])[0].seq == acknowledged + 1
        assert store.verify() == []


def test_a_server_that_was_set_to_read_only(own_server: postgres.Server) -> None:
    """It says so, and what to do; a store in use goes on when it may write again."""
    with open_store(own_server.url) as store:
        store.create(SessionInfo("s"))
        store.append("s", [NewEvent("user_message", {"message": {"content": "hello"}})])
        run_sql(own_server, "ALTER SYSTEM SET default_transaction_read_only = on")
        own_server.run("pg_ctl", "-D", str(own_server.data), "reload")
        read_only(own_server, "on")
        with pytest.raises(StoreFailed, match=r"only reads.*primary"):
            for n in range(50):
                store.append("s", [note(n)])
        # What is only looked at is there, though no count and no word can be stored.
        head = len(list(store.read("s")))
        assert store.info("s").head == store.sessions()[0].head == head
        assert len(store.search("hello")) == 1
        run_sql(
            own_server,
            "SET default_transaction_read_only = off",
            "ALTER SYSTEM RESET default_transaction_read_only",
        )
        own_server.run("pg_ctl", "-D", str(own_server.data), "reload")
        read_only(own_server, "off")
        assert store.append("s", [note(1)])[0].seq == head + 1


def read_only(server: postgres.Server, value: str) -> None:
    """Wait until new connections have a setting."""
    for _ in range(200):
        with psycopg.connect(server.url) as connection:
            row = connection.execute("SHOW default_transaction_read_only").fetchone()
            if row == (value,):
                return
    raise AssertionError("the server does not take its configuration")


def test_too_many_connections_are_named(own_server: postgres.Server) -> None:
    """The error says which limit, and how to need fewer; with room the store goes on."""
    run_sql(
        own_server,
        "CREATE ROLE app LOGIN CONNECTION LIMIT 2",
        "GRANT ALL ON DATABASE postgres TO app",
    )
    url = own_server.url.replace("backtrail@", "app@")
    taken = [psycopg.connect(url) for _ in range(2)]
    with pytest.raises(StoreFailed, match=r"too many.*`pool=`"):
        open_store(url)
    for one in taken:
        one.close()
    with open_store(url) as store:
        store.create(SessionInfo("s"))


# --- secrets ---------------------------------------------------------------------------------

SECRET = "h1dden-pass"


@pytest.fixture
def guarded(own_server: postgres.Server) -> str:
    """The URL of a database that asks for a password, with the password in it."""
    run_sql(
        own_server,
        f"CREATE ROLE guarded LOGIN PASSWORD '{SECRET}'",
        "GRANT CREATE ON DATABASE postgres TO guarded",
    )
    hba = own_server.data / "pg_hba.conf"
    hba.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
    own_server.run("pg_ctl", "-D", str(own_server.data), "reload")
    return own_server.url.replace("backtrail@", f"guarded:{SECRET}@")


def test_a_password_is_stored_nowhere(
    guarded: str, own_server: postgres.Server, tmp_path: Path
) -> None:
    """Not in the database, nor in any file here, nor in what any verb prints."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "f").write_text("one")
    home = tmp_path / "home"
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BACKTRAIL", "XDG_", "PG"))}
    env = {**kept, "HOME": str(home), "BACKTRAIL_STORE": guarded}
    lines = (
        "import sys\nfrom pathlib import Path\nfrom backtrail import Session\n"
        "from backtrail.stores import open_store\n"
        "with open_store() as store, Session.create(store, 's', cwd='.') as s:\n"
        "    print(store, store.url, repr(store), store.link.address.place)\n"
        "    s.append({'role': 'user', 'content': 'hi'})\n"
        "    with s.tool('bash', {'command': 'x'}) as call:\n"
        "        Path('f').write_text('two'); call.result = 'done'\n"
        "    point = s.checkpoint('one')\n"
        "    Path('f').write_text('three')\n"
        "    s.rewind(point, mode='exact')\n"
        "    s.fork().close()\n"
    )
    printed = shown([sys.executable, "-c", lines], work, env)
    for words in (
        "ls --all", "doctor", "config show", "undo s --yes", "purge s --text hi --yes",
        f"store upgrade {guarded.replace(SECRET, SECRET + 'x')}",
        f"ls --store {guarded.replace('/postgres', '/none')}",
    ):  # fmt: skip
        printed += shown([sys.executable, "-m", "backtrail", *words.split()], work, env)
    assert len(printed) > 1000
    assert SECRET not in printed
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        names = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'backtrail'"
        ).fetchall()
        assert len(names) > 8
        for (name,) in names:
            query = f"SELECT count(*) FROM backtrail.\"{name}\" t WHERE t::text LIKE '%{SECRET}%'"
            assert connection.execute(query.encode()).fetchone() == (0,), name


def shown(words: list[str], cwd: Path, env: dict[str, str]) -> str:
    """What a command prints; it ends, however that is."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_a_password_in_the_environment_will_do(guarded: str, tmp_path: Path) -> None:
    """As every program that uses the server takes it; and the URL needs none."""
    lines = "from backtrail.stores import open_store\nopen_store().close()\nprint('opened')"
    env = {**os.environ, "BACKTRAIL_STORE": guarded.replace(f":{SECRET}", "")}
    words = [sys.executable, "-c", lines]
    assert "no password supplied" in shown(words, tmp_path, env)
    assert shown(words, tmp_path, {**env, "PGPASSWORD": SECRET}).strip() == "opened"


# --- how a server does -----------------------------------------------------------------------


def test_doctor_says_how_a_server_does(own_server: postgres.Server, tmp_path: Path) -> None:
    """What it promises, how many connections are in use, how large the tables are."""
    with open_store(own_server.url) as store, Session.create(store, "s", files=False) as session:
        session.append({"role": "user", "content": "hi"})
        # A folder of another machine is none of this one's business.
        store.create(SessionInfo("t", cwd="/nowhere/here", root="/nowhere/here"))
    words = [sys.executable, "-m", "backtrail", "doctor", "--store", own_server.url]
    said = shown(words, tmp_path, dict(os.environ))
    # The tests' server syncs nothing.
    assert "warning durability  fsync off: a crash can take events" in said
    assert "it takes writes" in said
    assert "2 sessions, 2 events" in said
    assert "1 logs have events whose words" in said
    assert "nowhere" not in said
    own_server.stop("fast")
    own_server.start(fsync=True)
    said = shown(words, tmp_path, dict(os.environ))
    assert "a commit survives a crash" in said
    assert "warning" not in said.replace("warning hooks", "")
