"""Damage in the contents, the catalogue, the trays and the index is reported as what it is.

Whatever bytes or columns are changed behind the store's back, a verb raises one of our errors
or reports a problem, and no file of the person's becomes anything that it never was.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import msgspec
import pytest

from backtrail import BacktrailError, Session, open_store
from backtrail.cli import main
from backtrail.files import collect, verify

from .world import MEMORY, look

MAKE = """
import os, sys
from pathlib import Path
from backtrail import Session
from backtrail.files.changes.catalogue import Catalogue
base, end = Path(sys.argv[1]), sys.argv[2]
project = base / "project"
session = Session.create(f"sqlite:///{base}/store.db", "s", cwd=project)
session.append({"role": "user", "content": "begin"})
for n in (2, 3):
    with session.tool("bash", {"command": "x"}) as call:
        (project / "agent.txt").write_text(f"agent {n}")
        (project / "deep" / "noise").write_bytes(os.urandom(90_000))
        call.result = "done"
(project / "mine.txt").write_text(sys.argv[3])
if end == "open":
    with session.tool("bash", {"command": "x"}):
        (project / "agent.txt").write_text("agent 4")
        os._exit(0)
if end == "journal":
    Catalogue.drop_journal = lambda *_: os._exit(0)
    said = [event for event in session.store.read("s") if event.kind == "user_message"]
    session.rewind(said[0], scope="files")
session.close()
"""
"""A session with files, which a person edits too; it may die in a call, or ending a rewind."""

ENDS = ("closed", "open", "journal")
MINE = "the person's own"
ODD = (None, 0, -1, 3, 1 << 40, (1 << 63) - 1, 1.5, "", "text", b"", b"\xff\x00", b"{}", b"[1]")


@dataclass
class Made:
    """A store to be damaged, as it was made, and what was ever in the project."""

    base: Path
    kept: Path
    files: dict[str, bytes]
    known: dict[str, set[bytes]]

    @property
    def url(self) -> str:
        return f"sqlite:///{self.base}/store.db"

    def put_back(self) -> None:
        """Everything as it was, the folder of the project being the same one."""
        for path in self.base.iterdir():
            if path.name.startswith(("store", "state")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self.kept.iterdir():
            copy = shutil.copytree if path.is_dir() else shutil.copy2
            copy(path, self.base / path.name)
        project = self.base / "project"
        for name in set(look(project)) - set(self.files):
            if (project / name).is_file():
                (project / name).unlink()
        for name, content in self.files.items():
            (project / name).write_bytes(content)


def make(base: Path, end: str) -> Made:
    """A store whose maker ended in that way; the person edited a file since."""
    project = base / "project"
    (project / "deep").mkdir(parents=True)
    (project / "mine.txt").write_text("as it was")
    (project / "agent.txt").write_text("agent 1")
    state = {"BACKTRAIL_STATE": str(base / "state"), "HOME": str(base)}
    arguments = [sys.executable, "-c", MAKE, str(base), end, MINE]
    subprocess.run(arguments, check=True, env=os.environ | state)
    for database in base.rglob("*.db"):
        connection = apsw.Connection(str(database))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
    kept = base / "kept"
    kept.mkdir()
    for path in base.iterdir():
        if path.name.startswith(("store", "state")):
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, kept / path.name)
    seen = {name: content for name, (kind, _, content) in look(project).items() if kind == "file"}
    known = {name: {content} for name, content in seen.items()}
    known["mine.txt"].add(b"as it was")
    known["agent.txt"] = {b"agent %d" % n for n in range(1, 6)}
    return Made(base, kept, seen, known)


# --- damage ------------------------------------------------------------------------------


def flip(rng: random.Random, base: Path) -> str:
    """Some bytes of a file are others."""
    path = rng.choice([p for p in places(base) if p.stat().st_size])
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0")) or 1
    first = rng.randrange(used)
    for at in range(first, min(first + rng.choice((1, 1, 4, 30)), len(data))):
        data[at] = rng.randrange(256)
    path.write_bytes(data)
    return f"bytes of {path.name} from {first} on"


def column(rng: random.Random, base: Path) -> str:
    """A column of some rows holds another type, or another value of its own."""
    path = rng.choice([p for p in places(base) if p.suffix == ".db"])
    connection = apsw.Connection(str(path))
    query = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%STRICT%'"
    tables = {str(name): str(sql) for name, sql in connection.execute(query)}
    filled = [name for name in tables if connection.execute(f'SELECT 1 FROM "{name}"').get]
    table = rng.choice(filled)
    names = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    name, value = rng.choice(names), rng.choice(ODD)
    loose = tables[table].replace(") STRICT, ", ") ").replace(") STRICT", ")")
    # Without a type no value is converted; the number of a row stays one.
    loose = loose.replace("INTEGER PRIMARY", "\0").replace(" NOT NULL", "")
    for word in (" INTEGER", " TEXT", " BLOB", " REAL"):
        loose = loose.replace(word, "")
    loose = loose.replace("\0", "INTEGER PRIMARY")
    write = "UPDATE sqlite_schema SET sql = ? WHERE name = ?"
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(write, (loose, table))
    connection.close()
    connection = apsw.Connection(str(path))
    text = "CAST(x'ff41' AS TEXT)" if rng.random() < 0.15 else "?"
    try:
        connection.execute(
            f'UPDATE OR IGNORE "{table}" SET "{name}" = {text}', (value,) if text == "?" else ()
        )
    except apsw.Error:
        # The number of a row must be one.
        pass
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(write, (tables[table], table))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return f"{path.name}: {table}.{name} = {value!r} {text}"


LINE = msgspec.msgpack.encode((1, b"\1" * 32, 3, 0, [], 3, [(2, b"\2" * 32, b"\1" * 32, [])]))
CONTENT = msgspec.msgpack.encode(([(b"\1" * 32, b"content")], [("s", "log", b"\1" * 32)], 1.5))
"""The bodies of records of trays."""


def forge(rng: random.Random, base: Path) -> str:
    """The index, or a record of a tray of an earlier version, is another with a right check sum."""
    path = rng.choice([p for p in places(base) if p.suffix == ".db" or "index" in p.name])
    if path.suffix != ".db":
        body = mutated(rng, path.read_bytes()[8:])
        path.write_bytes(b"BTI1" + zlib.crc32(body).to_bytes(4, "big") + body)
        return f"the body of {path.name}"
    path = path.with_name(f"{path.name}-tray")
    body = mutated(rng, LINE if "catalogue" in path.name else CONTENT)
    header = b"BtrlTray" + rng.randbytes(8)
    head = b"BTRC" + header[8:]
    record = head + struct.pack("<II", len(body), zlib.crc32(body, zlib.crc32(head))) + body
    path.write_bytes(header + struct.pack("<I", zlib.crc32(header)) + record)
    return f"a record of {path.name}: {body[:40]!r}"


def mutated(rng: random.Random, body: bytes) -> bytes:
    """Some bytes of a msgpack body changed, so that types and lengths change too."""
    changed = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 5))):
        changed[rng.randrange(min(len(changed), 600))] = rng.choice(
            (0xC0, 0x90, 0x80, 0xA0, 0x01, 0xFF, 0xC4, 0xCF, rng.randrange(256))
        )
    return bytes(changed)


DAMAGES: tuple[Callable[[random.Random, Path], str], ...] = (flip, column, column, forge)


def places(base: Path) -> list[Path]:
    """The files about contents and workspaces; the log of events has a test of its own."""
    found = [*(base / "store.db-files").rglob("*"), *(base / "state").rglob("*")]
    return sorted(p for p in found if p.is_file() and not p.name.endswith(("-shm", "-wal")))


# --- verbs -------------------------------------------------------------------------------


def verbs(made: Made) -> Iterator[tuple[str, Callable[[], object]]]:
    """What a person may do then."""
    project, url = made.base / "project", made.url

    def work(session: Session) -> None:
        with session.tool("bash", {"command": "x"}) as call:
            (project / "agent.txt").write_text("agent 5")
            call.result = "done"

    def on_session(act: Callable[[Session], object]) -> Callable[[], object]:
        def run() -> None:
            with Session.open(url, "s") as session:
                act(session)

        return run

    yield "status", lambda: main(["status", "--store", url])
    yield "doctor", lambda: main(["doctor", "--store", url])
    yield "verify", lambda: main(["verify", "--store", url])
    yield "append", on_session(lambda s: s.append({"role": "user", "content": "more"}))
    yield "tool", on_session(work)
    yield "not_captured", on_session(lambda s: s.not_captured())
    yield "rewind", on_session(go_back)
    yield "undo", on_session(lambda s: s.undo())
    yield "collect", lambda: on_store(url, lambda store: collect(store, grace=0))
    yield "verify all", lambda: on_store(url, verify)
    yield "repair", lambda: main(["doctor", "--repair", "--store", url])


def go_back(session: Session) -> None:
    said = [event for event in session.store.read("s") if event.kind == "user_message"]
    session.rewind(said[0], scope="files")


def on_store(url: str, act: Callable[..., object]) -> None:
    with open_store(url) as store:
        act(store)


def torment(made: Made, seed: int) -> None:
    """Damage something, try all verbs, and look at the files after each."""
    rng = random.Random(seed)
    made.put_back()
    damage = rng.choice(DAMAGES)
    what = f"seed {seed}: {damage(rng, made.base)}"
    for name, verb in verbs(made):
        try:
            verb()
        except BacktrailError:
            pass
        except BaseException as error:
            raise AssertionError(f"{what}: {name} raised {error!r}") from error
        now = look(made.base / "project")
        if damage is not forge:
            # A record that lies, with a right check sum, may say that it was the agent's.
            assert now["mine.txt"][2].decode() == MINE, f"{what}: {name} changed mine.txt"
        for path, (kind, _, content) in now.items():
            known = content in made.known.get(path, set())
            assert kind != "file" or known, f"{what}: {name} made {path} what it never was"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Made]]:
    """One store for each way in which its maker ended."""
    base = Path(MEMORY or tmp_path_factory.getbasetemp()) / f"backtrail-damaged-{os.getpid()}"
    yield {end: make(base / end, end) for end in ENDS}
    shutil.rmtree(base)


def run(made: Made, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKTRAIL_STATE", str(made.base / "state"))
    monkeypatch.setenv("HOME", str(made.base))
    monkeypatch.chdir(made.base / "project")
    for seed in seeds:
        torment(made, seed)


def test_undamaged_they_all_work(stores: dict[str, Made], monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the rest would show nothing."""
    made = stores["closed"]
    run(made, range(0), monkeypatch)
    made.put_back()
    for name, verb in verbs(made):
        assert not verb(), name
        if name == "rewind":
            assert (made.base / "project" / "agent.txt").read_text() == "agent 1"


@pytest.mark.parametrize("end", ENDS)
def test_damage_is_reported(
    stores: dict[str, Made], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every verb raises one of our errors, or reports; the person's files stay."""
    run(stores[end], range(13), monkeypatch)


@pytest.mark.torture
@pytest.mark.parametrize("end", ENDS)
def test_much_damage_is_reported(
    stores: dict[str, Made], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, many more times."""
    run(stores[end], range(1000, 1167), monkeypatch)
