"""Search: words in the messages of many sessions, beside a bare FTS5 table of the same texts."""

from __future__ import annotations

import random
import sqlite3
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from protocol import Job, Numbers, serve
from trees import milliseconds

from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store

_BATCH = 5_000
_SESSION = 10_000
_ROUNDS = 5
_LIMIT = 20
_WORDS = 20_000

QUERIES = ("common", "w7", "w150", "w9000", "rare", "rare*", '"common w7"', "w7 w150", "nowhere")
"""In half of the texts, in fewer and fewer; beginnings, words in a row, two words, none."""


def texts(n: int) -> list[str]:
    """Words as in a language: few are frequent."""
    rng = random.Random(7)
    ranks = [min(_WORDS, int(rng.paretovariate(1.0))) for _ in range(200_000)]
    found = []
    for number in range(n):
        at = rng.randrange(len(ranks) - 30)
        words = [f"w{rank}" for rank in ranks[at : at + 20]]
        if number % 2:
            words.insert(number % 20, "common")
        if number % 100_000 == 7:
            words.append(f"rare{number}")
            words.append("rare")
        found.append(" ".join(words))
    return found


def prepare(job: Job) -> Numbers:
    """A store, and a table of FTS5 that has nothing but the texts."""
    place = Path(job["folder"])
    said = texts(job["n"])
    with open_store(f"sqlite:///{place}/store.db") as store:
        for start in range(0, len(said), _BATCH):
            name = f"s{start // _SESSION}"
            if start % _SESSION == 0:
                store.create(SessionInfo(name))
            store.append(name, [_event(text) for text in said[start : start + _BATCH]])
        store.search("nowhere")
    bare = sqlite3.connect(place / "bare.db")
    bare.execute("CREATE VIRTUAL TABLE texts USING fts5(text)")
    bare.executemany("INSERT INTO texts VALUES(?)", ((text,) for text in said))
    bare.commit()
    bare.close()
    return {}


def _event(text: str) -> NewEvent:
    data = {"message": {"role": "user", "content": text}, "format": "openai"}
    return NewEvent("user_message", data)


def search(job: Job) -> Numbers:
    """The sum of the medians of all queries, and the slowest of them."""
    finders = {
        "ours": _ours,
        "rank": partial(_bare, "rank"),
        "newest": partial(_bare, "rowid DESC"),
    }
    find = finders[job["who"]](Path(job["folder"]))
    found = {}
    for query in QUERIES:
        find(query)
        found[query] = statistics.median(
            milliseconds(lambda query=query: find(query)) for _ in range(_ROUNDS)
        )
    return {"ms": sum(found.values()), "slowest": max(found.values())}


def _ours(place: Path) -> Callable[[str], object]:
    store = open_store(f"sqlite:///{place}/store.db")
    return lambda query: store.search(query, limit=_LIMIT)


def _bare(order: str, place: Path) -> Callable[[str], object]:
    connection = sqlite3.connect(place / "bare.db")
    line = (
        "SELECT rowid, snippet(texts, 0, '', '', '…', 20) FROM texts "
        f"WHERE texts MATCH ? ORDER BY {order} LIMIT ?"
    )
    return lambda query: connection.execute(line, (query, _LIMIT)).fetchall()


if __name__ == "__main__":
    serve(prepare, search)
