"""Contents on S3: packs beside an object each, and a session's files on another machine."""

from __future__ import annotations

import os
import random
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from protocol import Job, Numbers, clock, serve
from server import ratio, server, times
from tests import buckets

from backtrail import Session
from backtrail.files import materialize
from backtrail.stores import open_store

AT_ONCE = 32


@contextmanager
def bucket(job: Job) -> Iterator[str]:
    """An emulator with a bucket in it; the environment leads there."""
    with buckets.running(job["emulator"], Path(job["folder"])) as endpoint:
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


def put_each(url: str, contents: list[bytes]) -> float:
    """ms of putting each as an object."""
    import obstore
    from obstore.store import from_url

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
    workers = [threading.Thread(target=put) for _ in range(AT_ONCE)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (clock() - start) / 1e6


def packs(job: Job) -> Numbers:
    """ms of contents with their index, beside the bare puts of an object each."""
    from backtrail.files.contents.shared import SharedBlobs
    from backtrail.stores.postgres.address import parse

    root = project(job)
    with server() as made, bucket(job) as url:
        contents = [path.read_bytes() for path in sorted(root.rglob("*.txt"))]
        each = put_each(url, contents)
        with SharedBlobs(parse(made.url), "", url) as blobs:
            start = clock()
            blobs.write([(sha256(one).digest(), one) for one in contents])
            packed = (clock() - start) / 1e6
    return times(packed, each)


def elsewhere(job: Job) -> Numbers:
    """ms of writing all files, cold from the bucket, and from a local store."""
    root, folder = project(job), Path(job["folder"])
    with server() as made, bucket(job) as url:
        found = {}
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
                os.environ["BACKTRAIL_STATE"] = str(folder / f"{name}-state-{n}")
                into = folder / f"{name}-files-{n}"
                with open_store(store_url, blobs=blobs) as store:
                    start = clock()
                    if name == "local":
                        materialize(store, point, into)
                    else:
                        Session.resume(store, "s", cwd=into).close()
                    spent.append((clock() - start) / 1e6)
                assert sum(path.is_file() for path in into.rglob("*")) == job["files"]
            found[name] = statistics.median(spent)
    return ratio(found["far"], found["local"])


if __name__ == "__main__":
    serve(packs, elsewhere)
