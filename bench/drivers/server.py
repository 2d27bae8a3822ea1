"""A PostgreSQL server of a driver's own, rates of threads, clients in their own processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import psycopg
from protocol import Absent, Job, Numbers, clock, messages
from tests import postgres


@contextmanager
def server() -> Iterator[postgres.Server]:
    """A server that syncs each commit."""
    try:
        made = postgres.Server.make()
    except Exception as error:
        raise Absent(f"PostgreSQL does not run here: {error}") from error
    try:
        # A checkpoint in the middle would slow whoever is at work then.
        made.configure("max_wal_size = 4GB\ncheckpoint_timeout = 30min\n")
        made.start(fsync=True, buffers=512)
        # A schema with the name of the user is where unqualified names are looked for.
        with psycopg.connect(made.url, autocommit=True) as link:
            link.execute("CREATE DATABASE peers")
        yield made
    finally:
        made.remove()


def bodies(job: Job) -> list[dict[str, object]]:
    """Events' data."""
    return [{"message": message, "format": "openai"} for message in messages({**job, "n": 500})]


def ratio(ours: float, other: float) -> Numbers:
    """Both figures, and ours divided by the other."""
    return {"ratio": ours / other, "ours": ours, "other": other}


def times(ours: float, other: float) -> Numbers:
    """The same for times: how often ours goes into the other."""
    return {"ratio": other / ours, "ours": ours, "other": other}


def rate(work: Callable[[int], None], threads: int, seconds: float) -> float:
    """How many calls a second that many threads make together."""
    ready = threading.Barrier(threads + 1)
    over = threading.Event()
    counts = [0] * threads

    def run(n: int) -> None:
        work(n)
        ready.wait()
        while not over.is_set():
            work(n)
            counts[n] += 1

    workers = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = clock()
    over.wait(seconds)
    over.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (clock() - begin) * 1e9


def rates(ours: Callable[[], float], other: Callable[[], float], turns: int = 5) -> Numbers:
    """Two rates, taken in turns: what the disk does meanwhile, it does to both."""
    pairs = []
    for turn in range(turns):
        first, second = (ours, other) if turn % 2 == 0 else (other, ours)
        one, two = first(), second()
        pairs.append((one, two) if turn % 2 == 0 else (two, one))
    return {
        "ratio": statistics.median(one / two for one, two in pairs),
        "ours": statistics.median(one for one, _ in pairs),
        "other": statistics.median(two for _, two in pairs),
    }


def ms(call: Callable[[int], object], repeats: int = 7) -> float:
    """The median of some calls, in ms."""
    spent = []
    for n in range(repeats):
        start = clock()
        call(n)
        spent.append((clock() - start) / 1e6)
    return statistics.median(spent)


def client(job: Job, name: str, port: int, **more: object) -> Numbers:
    """What one client measures, in a process and an environment of its own."""
    is_ours = name == "backtrail"
    python = sys.executable if is_ours else os.path.join(job["corpus"], name, "bin", "python")
    address = f"{postgres.USER}@127.0.0.1:{port}/{'postgres' if is_ours else 'peers'}"
    full = {"load": False, "copy": False, **job, **more, "task": name, "server": address}
    done = subprocess.run(
        [python, Path(__file__).with_name("server_clients.py")],
        input=json.dumps(full), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
    return numbers
