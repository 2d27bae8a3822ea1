"""Whatever happens to the bytes and the rows of a database, events are right, or reported.

The oracle is the test's own list of what it appended. After each damage every verb that reads
is tried: an event it hands out equals the one that was written, what is not handed out is
reported by `verify`, and nothing but the library's own errors escapes.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import pytest

from backtrail import BacktrailError, Session, open_store
from backtrail.events import Event, NewEvent, Problem, SessionInfo
from backtrail.stores import Store
from backtrail.stores.disk import checks

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


class Wrong(AssertionError):
    """A rule about damaged databases that was broken."""


Known = dict[tuple[str, str], dict[int, Event]]
"""What was written: by session and log, by number."""


def make(place: Path, rng: random.Random) -> Known:
    """A database with plain sessions, jumps, a fork, side logs, checkpoints, purged events."""
    known: Known = {}

    def note(id: str, log: str, events: list[Event]) -> None:
        known.setdefault((id, log), {}).update({event.seq: event for event in events})

    with open_store(f"sqlite:///{place}/x.db") as store:
        for n in range(4):
            id = f"s{n}"
            store.create(SessionInfo(id=id, title=f"title {n}", tags=["t"], metadata={"n": n}))
            for at in range(rng.randrange(2, 25)):
                note(id, "messages", store.append(id, some_events(rng, at)))
            note(id, "subagents/a", store.append(id, some_events(rng, 0), log="subagents/a"))
            if n % 2:
                store.sessions()
        until = min(5, max(known["s1", "messages"]))
        store.create(SessionInfo(id="fork"), base=("s1", until))
        note("fork", "messages", [known["s1", "messages"][seq] for seq in range(1, until + 1)])
        note("fork", "messages", store.append("fork", some_events(rng, 99)))
        if rng.random() < 0.5:
            store.search("alpha")
        for seq in rng.sample(sorted(known["s2", "messages"]), 1):
            store.purge("s2", [seq])
            for event in store.read("s2", after=seq - 1, until=seq):
                if event.data != {"purged": True}:
                    raise Wrong(f"not purged: {event}")
                note("s2", "messages", [event])
        store.sessions()
    if rng.random() < 0.8:
        empty_wal(place / "x.db")
    return known


def empty_wal(path: Path) -> None:
    """Move all from the -wal into the database: only there is what is damaged read."""
    connection = apsw.Connection(str(path))
    # Before its first statement a connection does not know that there is a -wal.
    busy: Any = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
    connection.close()
    if busy:
        raise Wrong("the -wal is in use")


def some_events(rng: random.Random, at: int) -> list[NewEvent]:
    text = " ".join(rng.choices(WORDS, k=rng.choice([2, 20, 400])))
    message = {"message": {"role": "user", "content": text}, "format": "openai"}
    batch = [NewEvent("user_message", message)]
    if rng.random() < 0.3:
        batch = [NewEvent("assistant_message", message, id=f"a{at}-{n}") for n in range(3)]
    if rng.random() < 0.1:
        batch.append(NewEvent("checkpoint", {"at": 1, "label": "l"}, id=f"c{at}-{rng.random()}"))
    if at > 3 and rng.random() < 0.2:
        batch.append(NewEvent("rewound", {}, follows=rng.randrange(0, 3)))
    return batch


# --- damage ------------------------------------------------------------------------------


def flip(path: Path, rng: random.Random) -> None:
    """Change a few bytes anywhere."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 8, 40])):
        if data:
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    path.write_bytes(data)


def overwrite(path: Path, rng: random.Random) -> None:
    """Write a run of bytes over what was there."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) or 1)
    length = rng.choice([4, 60, 600, 9000])
    piece = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)])
    data[at : at + length] = piece[: len(data) - at]
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random) -> None:
    """Cut the end off, at a page or anywhere."""
    data = path.read_bytes()
    at = rng.randrange(len(data) or 1)
    path.write_bytes(data[: at - at % 8192 if rng.random() < 0.5 else at])


def swap(path: Path, rng: random.Random) -> None:
    """Exchange two pages, or copy one over another."""
    data = path.read_bytes()
    size = struct.unpack(">H", data[16:18])[0] if len(data) > 18 else 0
    if size < 512 or len(data) < 2 * size:
        return
    pages = [data[at : at + size] for at in range(0, len(data), size)]
    one, two = rng.randrange(len(pages)), rng.randrange(len(pages))
    if rng.random() < 0.5:
        pages[one], pages[two] = pages[two], pages[one]
    else:
        pages[one] = pages[two]
    path.write_bytes(b"".join(pages))


TABLES = ("events", "sessions", "logs", "shares", "dirty", "unindexed", "notes")
VALUES: tuple[Any, ...] = (
    *(None, 0, 1, -1, 7, 2**31, 2**32, 2**62, -(2**63), 0.5, "", "x", "{}", "[]", "{"),
    *(b"", b"\xff\xfe", b"\x00", "\x00", "9" * 400, "[" * 300, '{"a":' * 300, "null", "../up"),
)


NAMES = (("sessions", "id"), ("sessions", "scope"), ("logs", "name"))
"""What has another name is another one, to every reader."""


def is_last_of_side_log(connection: apsw.Connection, table: str, row: Any) -> bool:
    """Whether nothing in the database can know that this row was there."""
    if table != "events":
        return False
    query = "SELECT name, (SELECT max(key) FROM events WHERE key >> 32 = n) FROM logs WHERE n = ?"
    found: Any = connection.execute(query, (row >> 32,)).get
    return found is None or (found[0] != "messages" and found[1] == row)


def rewrite(path: Path, rng: random.Random) -> None:
    """Set a random value somewhere, of any type, or remove or repeat a row."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("PRAGMA writable_schema = ON; PRAGMA ignore_check_constraints = ON")
        table = rng.choice(TABLES)
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()]
        count: Any = connection.execute(f"SELECT count(*) FROM {table}").get
        if not count:
            return
        key = {"shares": "log", "notes": "cwd"}.get(table, "rowid")
        query = f"SELECT {key} FROM {table} LIMIT 1 OFFSET ?"
        row: Any = connection.execute(query, (rng.randrange(count),)).get
        if rng.random() < 0.2 and not is_last_of_side_log(connection, table, row):
            connection.execute(f"DELETE FROM {table} WHERE {key} = ?", (row,))
            return
        name, value = rng.choice(names), rng.choice(VALUES)
        if (table, name) in NAMES:
            return
        cast = rng.choice(["?", "CAST(? AS TEXT)", "CAST(? AS BLOB)"])
        connection.execute(f"UPDATE {table} SET {name} = {cast} WHERE {key} = ?", (value, row))
    except (apsw.Error, UnicodeDecodeError):
        # The table does not take it: no damage.
        return
    finally:
        connection.close()


def loosen(path: Path, rng: random.Random) -> None:
    """Make the tables take values of any type, and then set some."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(replace(sql, 'STRICT', ''), 'NOT NULL', '') "
            "WHERE type = 'table' AND name IN ('events', 'sessions', 'logs', 'shares')"
        )
        strict = "UPDATE sqlite_schema SET sql = replace(sql, ') , WITHOUT', ') WITHOUT')"
        connection.execute(strict)
    except (apsw.Error, UnicodeDecodeError):
        return
    finally:
        connection.close()
    for _ in range(3):
        rewrite(path, rng)


LEAF, INDEX_LEAF = 13, 10
"""The first byte of a page at the end of a table's tree, and of an index's."""

DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(flip, flip, flip, overwrite, overwrite, truncate, swap, swap),
    *(rewrite, rewrite, rewrite, loosen),
)


# --- the rules ---------------------------------------------------------------------------


def check(place: Path, known: Known, lossy: bool) -> None:
    """Try every verb that reads, then some that write.

    `lossy` says that the -wal was damaged: what stood behind that is as if never written.
    """
    got: list[Problem] = []
    try:
        store = open_store(f"sqlite:///{place}/x.db", on_damage=got.append)
    except BacktrailError:
        # Nothing can be read, and that is said.
        return
    with closing(store):
        listed = attempt(lambda: [info.id for info in store.sessions()]) or []
        reported = attempt(store.verify)
        for (id, log), events in known.items():
            seen = look(store, id, log, events)
            if reported is None or lossy:
                continue
            lost = set(events) - seen
            if lost and not reported:
                raise Wrong(f"{sorted(lost)} of {id}/{log} are missing and verify reports nothing")
            if id not in listed and not reported:
                raise Wrong(f"{id} is not listed and verify reports nothing")
        for hit in attempt(lambda: store.search("alpha")) or ():
            if not any(events.get(hit.event.seq) == hit.event for events in known.values()):
                raise Wrong(f"a search found {hit.event}")
        attempt(lambda: store.checkpoint("c1-0"))
        attempt(lambda: store.latest(place))
        attempt(lambda: store.seal())
        for id in ("s0", "s1", "fork"):
            write(store, id)


@contextmanager
def closing(store: Store) -> Iterator[None]:
    try:
        yield
    finally:
        attempt(store.close)


def attempt(act: Callable[[], Any]) -> Any:
    """What it returns; None if the library refuses. Any other error escapes."""
    try:
        return act()
    except BacktrailError:
        return None


def look(store: Store, id: str, log: str, events: dict[int, Event]) -> set[int]:
    """Read a log in every way; the numbers that a plain read gives."""
    attempt(lambda: store.info(id))
    attempt(lambda: store.logs(id))
    found = attempt(lambda: list(store.read(id, log=log)))
    for shown in (
        found,
        attempt(lambda: list(store.read(id, log=log, reverse=True))),
        attempt(lambda: list(store.read(id, log=log, after=2, limit=3))),
        attempt(lambda: list(store.read(id, log=log, kinds=("checkpoint",)))),
        attempt(lambda: store.tail(id, 3, log=log)),
        attempt(lambda: store.history(id, log=log)),
    ):
        for event in shown or ():
            if events.get(event.seq) != event:
                raise Wrong(f"{id}/{log}: {event} was never written, but {events.get(event.seq)}")
    last = events[max(events)]
    one = attempt(lambda: store.find(id, last.id, log=log))
    if one is not None and one != last:
        raise Wrong(f"{id}/{log}: found {one}")
    for page in attempt(lambda: list(store.pages(id, log=log))) or ():
        for seq, kind in zip(page.seqs, page.kinds, strict=True):
            if seq not in events or events[seq].kind != kind:
                raise Wrong(f"{id}/{log}: event {seq} in pages")
    return {event.seq for event in found or ()}


def write(store: Store, id: str) -> None:
    """An append that is acknowledged can be read."""
    new = attempt(lambda: store.append(id, [NewEvent("later", {"n": 1})]))
    if new:
        again = attempt(lambda: list(store.read(id, after=new[0].seq - 1)))
        if again is not None and new[0] not in again:
            raise Wrong(f"{id}: {new[0]} was acknowledged and is not read")
    attempt(lambda: store.update(id, title="new"))
    attempt(lambda: store.purge(id, [1]))
    session: Session | None = attempt(lambda: Session.open(store, id))
    if session is not None:
        attempt(session.messages)
        attempt(session.branches)
        attempt(session.close)


def torment(place: Path, first: int, count: int) -> None:
    """Damage databases in so many ways, each made of its number."""
    for number in range(first, first + count):
        rng = random.Random(number)
        if number % 25 == 0 or number == first:
            sample = place / f"sample{number}"
            sample.mkdir()
            known = make(sample, random.Random(number // 25))
        copy = place / "damaged"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sample, copy)
        lossy = False
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            damage = rng.choice(DAMAGES)
            target = copy / "x.db"
            if damage not in (rewrite, loosen) and rng.random() < 0.2:
                target = copy / "x.db-wal"
                lossy = True
            if target.exists():
                damage(target, rng)
                # An empty file is a database that nothing was written to yet.
                lossy = lossy or not target.stat().st_size
        try:
            check(copy, known, lossy)
        except Exception as error:
            raise Wrong(f"damage {number}: {type(error).__name__}: {error}") from error


def test_damaged_databases(fast: Path) -> None:
    """No damage changes an event unnoticed, hides one in silence, or makes a stranger's error."""
    torment(fast, 0, 40)


def test_a_page_in_the_place_of_another(fast: Path) -> None:
    """Its rows are right in themselves, and no log gives out those of another; all reads end."""
    known = make(fast, random.Random(100))
    empty_wal(fast / "x.db")
    data = (fast / "x.db").read_bytes()
    pages = [data[at : at + 8192] for at in range(0, len(data), 8192)]
    leaves = [n for n, page in enumerate(pages) if n and page[0] == LEAF and b"format" in page]
    assert len(leaves) > 4
    for one, two in permutations(leaves, 2):
        copy = fast / "damaged"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        changed = [*pages[:one], pages[two], *pages[one + 1 :]]
        (copy / "x.db").write_bytes(b"".join(changed))
        check_summaries(copy, known)
        check(copy, known, lossy=False)


def check_summaries(place: Path, known: Known) -> None:
    """What counts events without giving them out counts none of another log."""
    with open_store(f"sqlite:///{place}/x.db") as store:
        for id in sorted({id for id, log in known if log == "messages"}):
            events = known[id, "messages"]
            written = Counter(event.kind for event in events.values())
            for mark in attempt(partial(store.outline, id, kinds=sorted(written))) or ():
                if mark.seq not in events or events[mark.seq].kind != mark.kind:
                    raise Wrong(f"{id}: {mark} in the outline")
            tally = Counter(attempt(partial(store.tally, id)) or {})
            if tally.total() > len(events):
                raise Wrong(f"{id}: {tally} counted, {written} written")


INDEXED: dict[str, tuple[bytes, bytes, Callable[[Store], Any]]] = {
    "an id": (b"\2only in b", b"\3only in b", lambda store: store.find("c", "only in b")),
    "a session": (b"c", b"d", lambda store: list(store.read("d"))),
    "a session's end": (b"c", b"d", lambda store: store.tail("d", 1)),
    "a session to write to": (b"c", b"d", lambda store: store.append("d", [NewEvent("x", {})])),
    "a record": (b"c", b"d", lambda store: store.info("d")),
    "a record as it is": (b"c", b"d", lambda store: store.record("d")),
    "a record to change": (b"c", b"d", lambda store: store.update("d", title="wrong")),
    "a session to delete": (b"c", b"d", lambda store: store.delete("d")),
    "a session to fork": (b"c", b"d", lambda store: store.create(SessionInfo("e"), base=("d", 1))),
    "the logs": (b"c", b"d", lambda store: store.logs("d")),
    "a log": (b"side/c", b"side/d", lambda store: list(store.read("c", log="side/d"))),
    "a log's end": (b"side/c", b"side/d", lambda store: store.tail("c", 1, log="side/d")),
}


@pytest.mark.parametrize("what", INDEXED)
def test_an_index_that_leads_astray(fast: Path, what: str) -> None:
    """What another session or log has is neither given out nor added to; `verify` reports."""
    path = fast / "x.db"
    with open_store(f"sqlite:///{path}") as store:
        for id in ("a", "b", "c"):
            store.create(SessionInfo(id))
            store.append(id, [NewEvent("test", {}, id=f"only in {id}")])
        store.append("c", [NewEvent("test", {})], log="side/c")
    empty_wal(path)
    right, wrong, act = INDEXED[what]
    data = path.read_bytes()
    pages = [data[at : at + 8192] for at in range(0, len(data), 8192)]
    for n, page in enumerate(pages):
        if page[0] == INDEX_LEAF:
            pages[n] = page.replace(right, wrong)
    assert b"".join(pages) != data
    path.write_bytes(b"".join(pages))
    with open_store(f"sqlite:///{path}") as store:
        with pytest.raises(BacktrailError):
            act(store)
        assert store.verify()


@pytest.mark.parametrize("number", [2507, 3015, 3254, 3764, 4138, 5646])
def test_single_databases(fast: Path, number: int) -> None:
    """Single values, and pages of one tree in another: reads end, and names lead to themselves."""
    torment(fast, number, 1)


@pytest.mark.torture
def test_damaged_databases_at_length(fast: Path) -> None:
    """The same, for 2,500 of them."""
    torment(fast, 1000, 2500)


def test_damaged_databases_find_a_reader_without_check_sums(fast: Path) -> None:
    """The rules fail on a reader that believes every row it can decode."""

    def believing(row: Any, unsealed: int) -> None:
        return None

    with patch.object(checks, "check_row", believing), pytest.raises(Wrong):
        torment(fast, 0, 200)
