"""The physical limits: the least code that could do the same, in our own environment."""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import apsw
import msgspec
from protocol import (
    Job,
    Numbers,
    check,
    listed,
    messages,
    repeated,
    serve,
    timed_appends,
    timed_load,
    timed_threads,
    wanted,
)

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode
sync = getattr(os, "fdatasync", os.fsync)

FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def facts(job: Job) -> Numbers:
    return {"version": f"msgspec {msgspec.__version__}, SQLite {apsw.sqlite_lib_version()}"}


def log_path(job: Job) -> str:
    return os.path.join(job["folder"], "log.jsonl")


def database(job: Job, synchronous: str = "NORMAL") -> apsw.Connection:
    connection = apsw.Connection(os.path.join(job["folder"], "log.db"))
    # Two calls: apsw stops at the row that the first one returns.
    connection.execute("PRAGMA journal_mode=WAL").get  # noqa: B018
    connection.execute(f"PRAGMA synchronous={synchronous}")
    return connection


def reader(job: Job) -> apsw.Connection:
    return apsw.Connection(os.path.join(job["folder"], "log.db"), apsw.SQLITE_OPEN_READONLY)


def table(connection: apsw.Connection) -> None:
    connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)")


# --- append ------------------------------------------------------------------------------


def encode_write(job: Job) -> Numbers:
    return _to_file(job, lambda fd: lambda message: os.write(fd, encode(message) + b"\n"))


def write_sync(job: Job) -> Numbers:
    def prepared(fd: int) -> Callable[[Any], object]:
        def append(message: Any) -> None:
            os.write(fd, encode(message) + b"\n")
            sync(fd)

        return append

    return _to_file(job, prepared)


def _to_file(job: Job, prepared: Callable[[int], Callable[[Any], object]]) -> Numbers:
    items = messages(job)
    fd = os.open(log_path(job), FLAGS, 0o600)
    numbers = timed_appends(prepared(fd), items, lambda: sync(fd))
    os.close(fd)
    return _counted(job, numbers)


def _counted(job: Job, numbers: Numbers) -> Numbers:
    with open(log_path(job), "rb") as file:
        check(sum(1 for _ in file), job["n"])
    return numbers


def encode_enqueue(job: Job) -> Numbers:
    items = messages(job)
    fd = os.open(log_path(job), FLAGS, 0o600)
    queue: deque[bytes] = deque()
    lock, wake, done = threading.Lock(), threading.Event(), threading.Event()

    def drain() -> None:
        while not done.is_set() or queue:
            wake.wait()
            if not done.wait(0.005):
                wake.clear()
            with lock:
                lines = list(queue)
                queue.clear()
            os.write(fd, b"".join(lines))

    def append(message: Any) -> None:
        line = encode(message) + b"\n"
        with lock:
            queue.append(line)
        if not wake.is_set():
            wake.set()

    def finish() -> None:
        done.set()
        wake.set()
        writer.join()
        sync(fd)

    writer = threading.Thread(target=drain)
    writer.start()
    numbers = timed_appends(append, items, finish)
    os.close(fd)
    return _counted(job, numbers)


def sqlite_rows(job: Job) -> Numbers:
    """Rows in WAL transactions: `batch` of them each, the caller pays for the hundredth."""
    items = messages(job)
    connection = database(job, job["synchronous"])
    table(connection)
    insert = "INSERT INTO events (body) VALUES (?)"
    waiting: list[tuple[bytes]] = []

    def one(message: Any) -> None:
        connection.execute(insert, (encode(message),))

    def commit() -> None:
        with connection:
            connection.executemany(insert, waiting)
        waiting.clear()

    def grouped(message: Any) -> None:
        waiting.append((encode(message),))
        if len(waiting) == job["batch"]:
            commit()

    with closing(connection):
        numbers = timed_appends(one if job["batch"] == 1 else grouped, items, commit)
    with closing(reader(job)) as again:
        check(again.execute("SELECT count(*) FROM events").get, job["n"])
    return numbers


class _Waiting:
    """One append that waits until it is synced, or until it is its turn to sync."""

    __slots__ = ("leads", "line", "woken")

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.leads = False
        self.woken = threading.Lock()
        self.woken.acquire()


def group_commit(job: Job) -> Numbers:
    """Many threads on one file: the first to come writes and syncs for all that wait."""
    items = messages(job)
    fd = os.open(log_path(job), FLAGS, 0o600)
    lock = threading.Lock()
    pending: list[_Waiting] = []
    busy = False

    def append(message: Any) -> None:
        nonlocal busy
        mine = _Waiting(encode(message) + b"\n")
        with lock:
            pending.append(mine)
            if not busy:
                busy = mine.leads = True
        if not mine.leads:
            mine.woken.acquire()
        if mine.leads:
            lead(mine)

    def lead(mine: _Waiting) -> None:
        nonlocal pending, busy
        with lock:
            batch, pending = pending, []
        os.write(fd, b"".join([waiting.line for waiting in batch]))
        sync(fd)
        with lock:
            if pending:
                pending[0].leads = True
                pending[0].woken.release()
            else:
                busy = False
        for waiting in batch:
            if waiting is not mine:
                waiting.woken.release()

    numbers = timed_threads(append, items, job["threads"])
    os.close(fd)
    return _counted(job, numbers)


# --- load and tail -----------------------------------------------------------------------


def prepare_log(job: Job) -> Numbers:
    items = messages(job)
    with open(log_path(job), "wb") as file:
        for item in items:
            file.write(encode(item) + b"\n")
    with closing(database(job)) as connection:
        table(connection)
        rows = ((encode(item),) for item in items)
        with connection:
            connection.executemany("INSERT INTO events (body) VALUES (?)", rows)
    return {}


def load_mmap(job: Job) -> Numbers:
    def load() -> list[Any]:
        found: list[Any] = []
        with (
            open(log_path(job), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            start = 0
            while (end := mapped.find(b"\n", start)) >= 0:
                found.append(decode(view[start:end]))
                start = end + 1
        return found

    return timed_load(load, job["n"])


def load_lines(job: Job) -> Numbers:
    def load() -> list[Any]:
        with open(log_path(job), "rb") as file:
            return [decode(line) for line in file]

    return timed_load(load, job["n"])


def load_sqlite(job: Job) -> Numbers:
    def load() -> list[Any]:
        with closing(reader(job)) as connection:
            rows = connection.execute("SELECT body FROM events ORDER BY seq")
            return [decode(body) for (body,) in rows]

    return timed_load(load, job["n"])


def tail_file(job: Job) -> Numbers:
    def tail() -> None:
        fd = os.open(log_path(job), os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            length = 64 * 1024
            while True:
                lines = os.pread(fd, length, max(0, size - length)).split(b"\n")
                if len(lines) > 21 or length >= size:
                    break
                length *= 2
        finally:
            os.close(fd)
        check(len([decode(line) for line in lines[-21:-1]]), 20)

    return repeated(tail, job["times"])


def tail_sqlite(job: Job) -> Numbers:
    def tail() -> None:
        with closing(reader(job)) as connection:
            rows = connection.execute("SELECT body FROM events ORDER BY seq DESC LIMIT 20")
            check(len([decode(body) for (body,) in rows][::-1]), 20)

    return repeated(tail, job["times"])


# --- list and fork --------------------------------------------------------------------------


def prepare_sessions(job: Job) -> Numbers:
    def rows() -> Iterator[tuple[str, str, str, int, bytes]]:
        for number, (identity, cwd, title, metadata) in enumerate(listed(job)):
            yield identity, cwd, title, number, encode(metadata)

    with closing(database(job)) as connection:
        connection.execute(
            "CREATE TABLE sessions (id TEXT PRIMARY KEY, cwd TEXT, title TEXT, updated INTEGER,"
            " metadata BLOB) WITHOUT ROWID;"
            "CREATE INDEX newest ON sessions (updated);"
            "CREATE INDEX of_cwd ON sessions (cwd, updated)"
        )
        with connection:
            connection.executemany("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", rows())
    return {}


def list_sessions(job: Job) -> Numbers:
    query = "SELECT id, cwd, title, updated, metadata FROM sessions ORDER BY updated DESC"

    def sessions() -> None:
        with closing(reader(job)) as connection:
            found = [(*row[:4], decode(row[4])) for row in connection.execute(query)]
        check(len(found), job["n"])

    return repeated(sessions, job["times"])


def latest(job: Job) -> Numbers:
    query = "SELECT * FROM sessions WHERE cwd = ? ORDER BY updated DESC LIMIT 1"

    def newest() -> None:
        with closing(reader(job)) as connection:
            decode(connection.execute(query, (wanted(job),)).get[4])

    return repeated(newest, job["times"])


def fork_row(job: Job) -> Numbers:
    """One row that points at the parent, synced."""
    with closing(database(job, "FULL")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS forks (id INTEGER PRIMARY KEY, base, seq)")
        return repeated(
            lambda: connection.execute("INSERT INTO forks (base, seq) VALUES (1, ?)", (job["at"],)),
            job["times"],
        )


def fork_copy(job: Job) -> Numbers:
    """The bytes of the prefix in a new file, file and folder synced."""
    with open(log_path(job), "rb") as file:
        size = sum(len(line) for line, _ in zip(file, range(job["at"]), strict=False))
    target = os.path.join(job["folder"], "fork.jsonl")
    folder = os.open(job["folder"], os.O_RDONLY)

    def fork() -> None:
        source = os.open(log_path(job), os.O_RDONLY)
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _copy(source, copy, size)
        sync(copy)
        os.close(copy)
        os.close(source)
        os.fsync(folder)

    numbers = repeated(fork, job["times"], lambda: os.unlink(target))
    os.close(folder)
    return numbers


def _copy(source: int, copy: int, size: int) -> None:
    if not hasattr(os, "copy_file_range"):
        os.write(copy, os.pread(source, size, 0))
        return
    left = size
    while left:
        left -= os.copy_file_range(source, copy, left)


if __name__ == "__main__":
    serve(
        facts,
        encode_write,
        write_sync,
        encode_enqueue,
        sqlite_rows,
        group_commit,
        prepare_log,
        load_mmap,
        load_lines,
        load_sqlite,
        tail_file,
        tail_sqlite,
        prepare_sessions,
        list_sessions,
        latest,
        fork_row,
        fork_copy,
    )
