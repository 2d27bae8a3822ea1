"""What a store in PostgreSQL costs beside bare statements, and beside what peers keep there."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from protocol import Job, Numbers, serve
from server import bodies, client, ms, rate, rates, ratio, server, times
from tests.proxy import Proxy

from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import Store, open_store

ROUND_TRIP = 0.011
"""Seconds to a server that is in the next data centre, and back."""

# --- beside a bare statement ---------------------------------------------------------------

_BARE = "INSERT INTO bare VALUES(%s, %s, %s, %s, %s, %s)"
_TABLE = (
    "CREATE TABLE bare(log bigint, seq bigint, id text, ts text, kind text, data text, "
    "PRIMARY KEY(log, seq))"
)


def appended(job: Job, threads: int) -> Numbers:
    """Ours and bare inserts of the same bytes, in turns."""
    import msgspec

    data = bodies(job)
    texts = [msgspec.json.encode(one).decode() for one in data]
    with server() as made, open_store(f"{made.url}?pool={threads}") as store:
        with psycopg.connect(made.url, autocommit=True) as setup:
            setup.execute(_TABLE)
        for n in range(threads):
            store.create(SessionInfo(f"s{n}"))
        links = [psycopg.connect(made.url, autocommit=True) for _ in range(threads)]
        for link in links:
            link.prepare_threshold = 0
        at = [0] * threads

        def ours(n: int) -> None:
            store.append(f"s{n}", [NewEvent("user_message", data[at[n] % 500])])
            at[n] += 1

        def bare(n: int) -> None:
            values = (n, at[n], os.urandom(18).hex(), "2026-01-01T00:00:00.000Z", "user_message")
            links[n].execute(_BARE, (*values, texts[at[n] % 500]))
            at[n] += 1

        seconds = job["seconds"]
        found = rates(lambda: rate(ours, threads, seconds), lambda: rate(bare, threads, seconds))
        for link in links:
            link.close()
    return found


def append_1(job: Job) -> Numbers:
    return appended(job, 1)


def append_32(job: Job) -> Numbers:
    return appended(job, job["threads"])


@contextmanager
def follower(url: str, session_id: str) -> Iterator[None]:
    """Another process that follows a session."""
    lines = (
        "import sys\nfrom backtrail.stores import open_store\n"
        "with open_store(sys.argv[1]) as store:\n"
        "    for n, _ in enumerate(store.follow(sys.argv[2])):\n"
        "        if n == 0:\n            print('there', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", lines, url, session_id], stdout=subprocess.PIPE, text=True
    )
    try:
        with open_store(url) as store:
            while process.poll() is None:
                # Until one of them is seen there.
                store.append(session_id, [NewEvent("user_message", {})])
                if process.stdout is not None and _readable(process.stdout.fileno()):
                    break
        yield
    finally:
        process.kill()
        process.wait()


def _readable(fd: int) -> bool:
    import select

    return bool(select.select([fd], [], [], 0.1)[0])


def followed(job: Job) -> Numbers:
    """The rate while a process follows one of the sessions, and while none does."""
    data, threads, seconds = bodies(job), job["threads"], job["seconds"]
    with server() as made, open_store(f"{made.url}?pool={threads}") as store:
        for n in range(threads):
            store.create(SessionInfo(f"s{n}"))

        def ours(n: int) -> None:
            store.append(f"s{n}", [NewEvent("user_message", data[n])])

        def alone() -> float:
            return rate(ours, threads, seconds)

        def watched() -> float:
            with follower(made.url, "s0"):
                return rate(ours, threads, seconds)

        return rates(watched, alone)


def fork_flat(job: Job) -> Numbers:
    """A fork of 900 events, and of 9."""
    data = bodies(job)
    with server() as made, open_store(made.url) as store:
        store.create(SessionInfo("s"))
        store.append("s", [NewEvent("user_message", data[n % 500]) for n in range(1000)])

        def forked(at: int, turn: int) -> float:
            made = f"f{at}-{turn}"
            return ms(lambda n: store.create(SessionInfo(f"{made}-{n}"), base=("s", at)), 1)

        # In turns: what the disk does meanwhile, it does to both.
        pairs = [(forked(900, turn), forked(9, turn)) for turn in range(61)]
    return ratio(*(statistics.median(column) for column in zip(*pairs, strict=True)))


def size(job: Job) -> Numbers:
    """Bytes of an event in the table and its indexes, and of its JSON."""
    import msgspec

    data = bodies(job)
    total = 0
    with server() as made, open_store(made.url) as store:
        store.create(SessionInfo("s"))
        for _ in range(20):
            store.append("s", [NewEvent("user_message", one) for one in data])
            total += sum(len(msgspec.json.encode(one)) for one in data)
        with psycopg.connect(made.url, autocommit=True) as link:
            link.execute("VACUUM backtrail.events")
            row = link.execute("SELECT pg_total_relation_size('backtrail.events')").fetchone()
    assert row is not None
    return ratio(row[0] / (20 * 500), total / (20 * 500))


# --- beside peers --------------------------------------------------------------------------


def append_peer(job: Job) -> Numbers:
    """How often our append goes into that of a peer on the same server."""
    with server() as made:
        ours = client(job, "backtrail", made.port)
        return times(ours["append"], client(job, job["peer"], made.port)["append"])


def append_far(job: Job) -> Numbers:
    """The same on a server that is a round trip away."""
    with server() as made, Proxy(made.port, delay=ROUND_TRIP / 2) as proxy:
        ours = client(job, "backtrail", proxy.port)
        return times(ours["append"], client(job, job["peer"], proxy.port)["append"])


def load_peer(job: Job) -> Numbers:
    """How often our load of all messages goes into that of a peer."""
    with server() as made:
        ours = client(job, "backtrail", made.port, load=True)
        return times(ours["load"], client(job, job["peer"], made.port, load=True)["load"])


def fork_peer(job: Job) -> Numbers:
    """How often a fork of 900 goes into a copy of 900 items."""
    with server() as made:
        ours = client(job, "backtrail", made.port, copy=True)
        return times(ours["copy"], client(job, job["peer"], made.port, copy=True)["copy"])


# --- many events ---------------------------------------------------------------------------

EACH = 50
"""Events of a session."""

_MORE = (
    # One a minute.
    "INSERT INTO backtrail.sessions(scope, id, created_at, tags, metadata, sorted_at) "
    "SELECT '', 'm' || i, u.at, '[]', '{}', u.at FROM backtrail.sessions t, "
    "generate_series(%s::bigint, %s) AS i, LATERAL (SELECT to_char((t.sorted_at::timestamptz - "
    "i * interval '1 minute') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') AS at) AS u "
    "WHERE t.id = 'model'",
    "INSERT INTO backtrail.logs(scope, session, name, head, updated_at) "
    f"SELECT '', s.n, 'messages', {EACH}, s.sorted_at FROM backtrail.sessions s "
    "WHERE s.id <> 'model' AND NOT EXISTS("
    "SELECT 1 FROM backtrail.logs l WHERE l.session = s.n) ORDER BY s.n",
    # As our rows are: a check sum that names the place is moved to the new place.
    "INSERT INTO backtrail.events(scope, log, seq, id, ts, kind, follows, data, crc) "
    "SELECT e.scope, l.n, e.seq, e.id, e.ts, e.kind, e.follows, e.data, "
    "e.crc # mod(e.log << 32 | e.seq, %s::bigint) # mod(l.n << 32 | e.seq, %s::bigint) "
    "FROM (SELECT l.n FROM backtrail.logs l WHERE l.n > 1 ORDER BY l.n) l, "
    "backtrail.events e WHERE e.log = 1",
)


def multiply(link: psycopg.Connection[tuple[object, ...]], schema: str, sessions: int) -> None:
    """Give the store sessions like its model, which the server makes by itself."""
    from backtrail.stores.postgres.rowgate import PRIME

    with link.transaction():
        link.execute("SET LOCAL synchronous_commit = off")
        for text, values in zip(_MORE, ((1, sessions), (), (PRIME, PRIME)), strict=True):
            link.execute(text.replace("backtrail.", f"{schema}.").encode(), values)
    for table in ("events", "logs", "sessions"):
        link.execute(f"VACUUM ANALYZE {schema}.{table}".encode())
    link.execute("CHECKPOINT")


def append_later(job: Job) -> Numbers:
    """Rates with many events, and with a fifth of them, in turns; sessions picked at random."""
    many = job["events"] // EACH
    said = [{"text": f"{n} " + "words and words " * 15} for n in range(EACH)]
    with server() as made:
        url = f"{made.url}?pool=8&schema="
        with open_store(f"{url}few") as few, open_store(f"{url}backtrail") as all_of_them:
            for store, name, sessions in (
                (few, "few", many // 5),
                (all_of_them, "backtrail", many),
            ):
                store.create(SessionInfo("model"))
                store.append("model", [NewEvent("user_message", one) for one in said])
                with psycopg.connect(made.url, autocommit=True) as link:
                    multiply(link, name, sessions)
            rng = random.Random(1)

            def appending(store: Store, sessions: int) -> float:
                def append(n: int) -> None:
                    name = f"m{1 + rng.randrange(sessions)}"
                    store.append(name, [NewEvent("user_message", said[n])])

                return rate(append, 8, job["seconds"])

            found = rates(
                lambda: appending(all_of_them, many), lambda: appending(few, many // 5), turns=9
            )
            sample(all_of_them, many)
    return found


def sample(store: Store, sessions: int) -> None:
    """See that what the server made is what our reads take for sound."""
    for n in (1, sessions // 2, sessions):
        assert len(list(store.read(f"m{n}"))) >= EACH


if __name__ == "__main__":
    serve(
        append_1, append_32, followed, fork_flat, size,
        append_peer, append_far, load_peer, fork_peer, append_later,
    )  # fmt: skip
