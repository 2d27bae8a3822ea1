"""What a store in PostgreSQL costs beside the bare statements, and packs beside an object each."""

from __future__ import annotations

import os
import random
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import psycopg
from protocol import Absent, Job, Numbers, clock, messages, serve
from tests import buckets, postgres

from backtrail import Session
from backtrail.events import NewEvent, SessionInfo
from backtrail.files import materialize
from backtrail.stores import open_store


@contextmanager
def server() -> Iterator[postgres.Server]:
    """A server that syncs each commit."""
    try:
        made = postgres.Server.make()
    except Exception as error:
        raise Absent(f"PostgreSQL does not run here: {error}") from error
    try:
        made.start(fsync=True)
        yield made
    finally:
        made.remove()


def bodies(job: Job) -> list[dict[str, object]]:
    """Events' data."""
    return [{"message": message, "format": "openai"} for message in messages({**job, "n": 500})]


def ratio(ours: float, other: float) -> Numbers:
    """Both figures, and ours divided by the other."""
    return {"ratio": ours / other, "ours": ours, "other": other}


def rate(work: Callable[[int], None], threads: int, each: int) -> float:
    """How many calls a second that many threads make together."""
    ready = threading.Barrier(threads + 1)

    def run(n: int) -> None:
        work(n)
        ready.wait()
        for _ in range(each):
            work(n)

    workers = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = clock()
    for worker in workers:
        worker.join()
    return threads * each / (clock() - begin) * 1e9


BARE = "INSERT INTO bare VALUES(%s, %s, %s, %s, %s, %s)"


def appended(job: Job, threads: int) -> Numbers:
    """Ours and bare inserts of the same bytes, in turns."""
    import msgspec

    data = bodies(job)
    texts = [msgspec.json.encode(one).decode() for one in data]
    each = max(20, job["n"] // threads)
    with server() as made, open_store(f"{made.url}?pool={threads}") as store:
        with psycopg.connect(made.url, autocommit=True) as setup:
            setup.execute(
                "CREATE TABLE bare(log bigint, seq bigint, id text, ts text, kind text, data text, "
                "PRIMARY KEY(log, seq))"
            )
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
            links[n].execute(BARE, (*values, texts[at[n] % 500]))
            at[n] += 1

        pairs = [(rate(ours, threads, each), rate(bare, threads, each)) for _ in range(3)]
        for link in links:
            link.close()
    return ratio(*(statistics.median(column) for column in zip(*pairs, strict=True)))


def append_1(job: Job) -> Numbers:
    return appended(job, 1)


def append_32(job: Job) -> Numbers:
    return appended(job, job["threads"])


def followed(job: Job) -> Numbers:
    data, threads = bodies(job), job["threads"]
    with server() as made, open_store(f"{made.url}?pool={threads}") as store:
        for n in range(threads):
            store.create(SessionInfo(f"s{n}"))

        def ours(n: int) -> None:
            store.append(f"s{n}", [NewEvent("user_message", data[n])])

        each = max(20, job["n"] // threads)
        pairs = []
        for _ in range(3):
            alone = rate(ours, threads, each)
            done = threading.Event()
            with open_store(made.url) as other:

                def watch(other: object = other, done: threading.Event = done) -> None:
                    for _ in other.follow("s0", stop=done.is_set):  # type: ignore[attr-defined]
                        pass

                follower = threading.Thread(target=watch)
                follower.start()
                pairs.append((rate(ours, threads, each), alone))
                done.set()
                follower.join()
    return ratio(*(statistics.median(column) for column in zip(*pairs, strict=True)))


def ms(call: Callable[[int], object], times: int = 7) -> float:
    """The median of some calls, in ms."""
    spent = []
    for n in range(times):
        start = clock()
        call(n)
        spent.append((clock() - start) / 1e6)
    return statistics.median(spent)


def fork(job: Job) -> Numbers:
    data = bodies(job)
    with server() as made, open_store(made.url) as store:
        store.create(SessionInfo("s"))
        store.append("s", [NewEvent("user_message", data[n % 500]) for n in range(1000)])

        def copied(n: int) -> None:
            events = [
                NewEvent(e.kind, e.data, id=e.id, ts=e.ts) for e in store.read("s", until=900)
            ]
            store.adopt(SessionInfo(f"copy{n}"), {"messages": events})

        forked = ms(lambda n: store.create(SessionInfo(f"fork{n}"), base=("s", 900)))
        copy = ms(copied)
    # How many times faster.
    return {"ratio": copy / forked, "ours": forked, "other": copy}


def fork_flat(job: Job) -> Numbers:
    data = bodies(job)
    with server() as made, open_store(made.url) as store:
        store.create(SessionInfo("s"))
        store.append("s", [NewEvent("user_message", data[n % 500]) for n in range(1000)])
        long = ms(lambda n: store.create(SessionInfo(f"long{n}"), base=("s", 900)), 15)
        short = ms(lambda n: store.create(SessionInfo(f"short{n}"), base=("s", 9)), 15)
    return ratio(long, short)


def bytes(job: Job) -> Numbers:
    import msgspec

    data = bodies(job)
    size = 0
    with server() as made, open_store(made.url) as store:
        store.create(SessionInfo("s"))
        for _ in range(20):
            store.append("s", [NewEvent("user_message", one) for one in data])
            size += sum(len(msgspec.json.encode(one)) for one in data)
        with psycopg.connect(made.url, autocommit=True) as link:
            link.execute("VACUUM backtrail.events")
            row = link.execute("SELECT pg_total_relation_size('backtrail.events')").fetchone()
    assert row is not None
    return ratio(row[0] / (20 * 500), size / (20 * 500))


def append_later(job: Job) -> Numbers:
    """Rates with many events and with a twentieth of them, in sessions of 50."""
    data = [{"text": f"{n} " + "words and words " * 15} for n in range(50)]
    many = job["n"] * 20

    def filled(store: object, first: int, count: int) -> None:
        for n in range(first, first + count // 50):
            events = [NewEvent("user_message", one) for one in data]
            store.adopt(SessionInfo(f"s{n}"), {"messages": events})  # type: ignore[attr-defined]

    rng = random.Random(1)
    with server() as made, open_store(f"{made.url}?pool=8") as store:
        filled(store, 0, many // 20)

        def on(sessions: int) -> Callable[[int], None]:
            def append(n: int) -> None:
                store.append(f"s{rng.randrange(sessions)}", [NewEvent("user_message", data[n])])

            return append

        few = many // 20 // 50
        before = statistics.median(rate(on(few), 8, job["n"] // 8) for _ in range(3))
        filled(store, few, many - many // 20)
        after = statistics.median(rate(on(many // 50), 8, job["n"] // 8) for _ in range(3))
    return ratio(after, before)


# --- contents ------------------------------------------------------------------------------


@contextmanager
def bucket(job: Job) -> Iterator[str]:
    """An emulator with a bucket in it; the environment leads there."""
    with buckets.running("moto", Path(job["folder"])) as endpoint:
        os.environ.update({**buckets.KEYS, "AWS_ENDPOINT_URL": endpoint})
        yield f"s3://{buckets.make_bucket(endpoint)}/p"


def project(job: Job) -> Path:
    """Files of 3 KB of something like text."""
    root = Path(job["folder"], "project")
    for n in range(job["files"]):
        path = root / f"d{n % 40}" / f"file{n}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        words = random.Random(n)
        path.write_text(" ".join(f"{words.randrange(10**6):06d}" for _ in range(470)))
    return root


def packs(job: Job) -> Numbers:
    """Seconds of putting each file as an object, 32 at once, against a first checkpoint."""
    import obstore
    from obstore.store import from_url

    root = project(job)
    with server() as made, bucket(job) as url:
        contents = [path.read_bytes() for path in sorted(root.rglob("*.txt"))]
        options = {"endpoint": os.environ["AWS_ENDPOINT_URL"], "region": "us-east-1"}
        place = from_url(url, config=options, client_options={"allow_http": True})
        names = iter(range(len(contents)))
        guard = threading.Lock()

        def put() -> None:
            while True:
                with guard:
                    n = next(names, None)
                if n is None:
                    return
                obstore.put(place, f"each/{n}", contents[n])

        start = clock()
        workers = [threading.Thread(target=put) for _ in range(32)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        each = (clock() - start) / 1e6
        from hashlib import sha256

        from backtrail.files.contents.shared import SharedBlobs
        from backtrail.stores.postgres.address import parse

        with SharedBlobs(parse(made.url), "", url) as blobs:
            start = clock()
            blobs.write([(sha256(one).digest(), one) for one in contents])
            packed = (clock() - start) / 1e6
    return {"ratio": each / packed, "ours": packed, "other": each}


def elsewhere(job: Job) -> Numbers:
    """ms of writing all files, cold from the bucket, and from a local store."""
    root, folder = project(job), Path(job["folder"])
    with server() as made, bucket(job) as url:
        times = {}
        for name, store_url, blobs in (
            ("local", f"sqlite:///{folder}/local.db", None),
            ("far", made.url, url),
        ):
            os.environ["XDG_DATA_HOME"] = str(folder / f"{name}-a")
            with (
                open_store(store_url, blobs=blobs) as store,
                Session.create(store, "s", cwd=root) as session,
            ):
                point = session.checkpoint("one")
            spent = []
            for n in range(3):
                # Another machine each time: nothing is there yet.
                os.environ["XDG_DATA_HOME"] = str(folder / f"{name}-{n}")
                with open_store(store_url, blobs=blobs) as store:
                    start = clock()
                    materialize(store, point, folder / f"{name}-files-{n}")
                    spent.append((clock() - start) / 1e6)
            times[name] = statistics.median(spent)
    return ratio(times["far"], times["local"])


if __name__ == "__main__":
    serve(append_1, append_32, followed, fork, fork_flat, bytes, append_later, packs, elsewhere)
