"""How the cost of a verb grows: with the events of one session, and with the sessions of a store.

Each size is a store of its own, prepared once. A verb that a counted session would make cheap runs
on one that was not counted: purging an event makes a store forget its counts.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from protocol import Job, Numbers, clock, serve

from backtrail import Session
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import Store, open_store

SESSION, NOTE = "long", "note.txt"
_BATCH = 5_000
_SPENT = 1e9
"""Nanoseconds after which a verb is not called once more."""


def folder(job: Job, size: int) -> Path:
    return Path(job["folder"], f"{job['store']}-{size}")


def url(job: Job, size: int) -> str:
    place = folder(job, size)
    return f"file:{place}" if job["store"] == "file" else f"sqlite:///{place}/store.db"


def work(job: Job, size: int) -> Path:
    """Where a session works that captures files: there is one."""
    return Path(job["folder"], f"work-{size}")


def said(number: int) -> NewEvent:
    """Something short: what is looked at here does not depend on how much is said."""
    kind, role = (("user_message", "user"), ("assistant_message", "assistant"))[number % 2]
    text = f"message {number}: " + "some words that are said again and again " * 3
    data = {"message": {"role": role, "content": text}, "format": "openai"}
    return NewEvent(kind, data)


def prepare_events(job: Job) -> Numbers:
    for size in job["sizes"]:
        folder(job, size).mkdir()
        with open_store(url(job, size)) as store:
            work(job, size).mkdir()
            store.create(SessionInfo(SESSION, cwd=str(work(job, size))))
            for start in range(0, size, _BATCH):
                store.append(SESSION, [said(n) for n in range(start, min(start + _BATCH, size))])
            # A session that captures files knows their state from its last message on.
            with Session.resume(store, SESSION) as session:
                session.append(_message())
                with session.tool("edit", paths=[NOTE]):
                    (work(job, size) / NOTE).write_text("one line\n")
                session.append(_message())
            # The background would do it beside what is measured.
            store.search("nowhere")
    return {}


def project(job: Job, number: int) -> str:
    """The folder of a session of many."""
    return f"{job['projects']}/project-{number % 50:02d}"


def prepare_sessions(job: Job) -> Numbers:
    for size in job["sizes"]:
        folder(job, size).mkdir()
        with open_store(url(job, size)) as store:
            for n in range(size):
                store.create(SessionInfo(f"s{n}", cwd=project(job, n), key=f"k{n}"))
                store.append(f"s{n}", [said(n * 5 + at) for at in range(5)])
    return {}


# --- one session ---------------------------------------------------------------------------

_number = count(1)
_DONE = {"role": "assistant", "content": "done"}


def _resumed(verb: Callable[[Session], object]) -> Callable[[Store], object]:
    """A verb on a session that was just resumed."""

    def run(store: Store) -> object:
        with Session.resume(store, SESSION, files=True) as session:
            return verb(session)

    return run


def _message() -> dict[str, Any]:
    return {"role": "user", "content": f"one more {next(_number)}"}


def _last(session: Session) -> int:
    return next(session.events(reverse=True, limit=1)).seq


def _middle(session: Session) -> int:
    return _last(session) // 2


def _latest(store: Store) -> None:
    Session.latest(store, cwd=store.record(SESSION).cwd).close()


def _forked(session: Session, at: int | None) -> str:
    with session.fork(at) as fork:
        return fork.id


def _back_and_forth(session: Session) -> None:
    session.append(_message())
    session.undo()
    session.redo()


def _called(session: Session) -> None:
    with session.tool("bash", {"command": "true"}):
        pass


def _answered(session: Session) -> None:
    with session.turn("go on") as turn:
        turn.append(_DONE)


def _with_agent(verb: Callable[[Session], object]) -> Callable[[Store], object]:
    """A verb that asks an agent, which answers at once."""

    def run(session: Session) -> object:
        session.agent = lambda messages: [_DONE]
        return verb(session)

    return _resumed(run)


def _proceeded(session: Session) -> object:
    session.append(_message())
    return session.proceed()


def _asked(session: Session) -> str:
    """A call that waits for its result."""
    id = f"call-{uuid4().hex}"
    function = {"name": "look", "arguments": "{}"}
    call = {"id": id, "type": "function", "function": function}
    session.append({"role": "assistant", "content": None, "tool_calls": [call]})
    return id


def _followed(session: Session) -> object:
    events = session.follow(after=_last(session) - 1)
    return next(events)


def _noted(session: Session) -> None:
    session.log("transcript").append({"line": next(_number)})


def _middle_and_back(session: Session) -> None:
    session.rewind(_middle(session), scope="conversation")
    session.undo()


def _marked_and_not(session: Session) -> None:
    session.delete_checkpoint(session.checkpoint(f"point {next(_number)}").id)


VERBS: dict[str, Callable[[Store], object]] = {
    "resume": _resumed(lambda s: s.id),
    "open": lambda store: Session.open(store, SESSION).close(),
    "latest": _latest,
    "append": _resumed(lambda s: s.append(_message())),
    "extend": _resumed(lambda s: s.extend([_message(), _message()])),
    "record": _resumed(lambda s: s.record("my.kind", {})),
    "info": lambda store: store.info(SESSION),
    "messages": _resumed(lambda s: s.messages()),
    "history": _resumed(lambda s: s.history()),
    "events": _resumed(lambda s: list(s.events(reverse=True, limit=20))),
    "as_map": _resumed(lambda s: s.as_map()),
    "tool": _resumed(_called),
    "turn": _resumed(_answered),
    "send": _with_agent(lambda s: s.send("go on")),
    "stream": _with_agent(lambda s: list(s.stream("go on"))),
    "proceed": _with_agent(_proceeded),
    "answer": _resumed(lambda s: s.answer(_asked(s), "seen")),
    "give_up": _resumed(lambda s: s.give_up(_asked(s))),
    "log": _resumed(_noted),
    "subagent": _resumed(lambda s: s.subagent("helper").append(_message())),
    "end": _resumed(lambda s: s.end()),
    "changes": _resumed(lambda s: s.changes()),
    "diff": _resumed(lambda s: s.diff()),
    "relocate": _resumed(lambda s: s.relocate()),
    "follow": _resumed(_followed),
    "subscribe": _resumed(lambda s: s.subscribe(after=2).close()),
    "tail": lambda store: store.tail(SESSION, 20),
    "pending": _resumed(lambda s: s.pending()),
    "state": _resumed(lambda s: s.state()),
    "branches": _resumed(lambda s: s.branches()),
    "checkpoint": _resumed(lambda s: s.checkpoint(f"point {next(_number)}")),
    "delete_checkpoint": _resumed(_marked_and_not),
    "checkpoints": _resumed(lambda s: s.checkpoints()),
    "not_captured": _resumed(lambda s: s.not_captured()),
    "undo_preview": _resumed(lambda s: s.undo(dry_run=True)),
    "undo_redo": _resumed(_back_and_forth),
    "rewind_preview": _resumed(lambda s: s.rewind(_middle(s), dry_run=True)),
    "rewind": _resumed(_middle_and_back),
    "fork": _resumed(lambda s: _forked(s, None)),
    "fork_middle": _resumed(lambda s: _forked(s, _middle(s))),
    "resume_middle": _resumed(lambda s: Session.resume(s.store, SESSION, _middle(s)).close()),
    "update": lambda store: store.update(SESSION, title=f"title {next(_number)}"),
    "search": lambda store: store.search("nowhere"),
    "verify": lambda store: store.verify(),
}
UNCOUNTED = frozenset({"append", "extend", "record", "info", "fork", "fork_middle"})


def events(job: Job) -> Numbers:
    """One verb of a session of each size."""
    verb = VERBS[job["verb"]]

    def measure(size: int) -> float:
        with open_store(url(job, size)) as store:
            if job["verb"] not in UNCOUNTED:
                # As the background leaves a session: counted, and with its words in the index.
                store.info(SESSION)
                store.search("nowhere")
            times: list[float] = []
            while len(times) < job["times"] and sum(times) < _SPENT:
                if job["verb"] in UNCOUNTED:
                    store.purge(SESSION, [1])
                start = clock()
                made = verb(store)
                times.append(clock() - start)
                if job["verb"].startswith("fork"):
                    # A purge would make every fork be counted again, too.
                    store.delete(str(made))
            return statistics.median(times) / 1e6

    return _grown(job, measure)


# --- many sessions -------------------------------------------------------------------------

MANY: dict[str, Callable[[Store, int], object]] = {
    "sessions": lambda store, n: store.sessions(),
    "sessions_limit": lambda store, n: store.sessions(limit=20),
    "latest": lambda store, n: store.latest(str(store_place(store, n))),
    "key": lambda store, n: store.sessions(key=f"k{n // 2}"),
    "resume": lambda store, n: Session.resume(store, f"s{n // 2}").close(),
    "create": lambda store, n: store.create(SessionInfo(f"new-{next(_number)}")),
    "update": lambda store, n: store.update(f"s{n // 2}", title=f"title {next(_number)}"),
    "search": lambda store, n: store.search("nowhere"),
    "verify": lambda store, n: store.verify(),
    "delete": lambda store, n: store.delete(f"s{next(_number)}"),
}


def store_place(store: Store, n: int) -> str:
    """The folder of the oldest session."""
    return store.record("s0").cwd or ""


def sessions(job: Job) -> Numbers:
    """One verb on a store with so many sessions, counted and indexed."""
    verb = MANY[job["verb"]]

    def measure(size: int) -> float:
        with open_store(url(job, size)) as store:
            verb(store, size)
            times: list[float] = []
            while len(times) < min(job["times"], size // 4) and sum(times) < _SPENT:
                start = clock()
                verb(store, size)
                times.append(clock() - start)
            return statistics.median(times) / 1e6

    return _grown(job, measure)


def first(job: Job) -> Numbers:
    """The first call of a verb on a copy of a store that was not looked at."""
    verb = MANY[job["verb"]]

    def measure(size: int) -> float:
        copy = Path(job["folder"], f"copy-{job['verb']}-{size}-{os.getpid()}")
        shutil.copytree(folder(job, size), copy)
        with open_store(f"sqlite:///{copy}/store.db") as store:
            start = clock()
            verb(store, size)
            return (clock() - start) / 1e6

    return _grown(job, measure)


# --- the command line ----------------------------------------------------------------------


def command(job: Job) -> Numbers:
    """Processes of the command line, one after another, in the folder of a session."""
    tool = str(Path(sys.executable).parent / "backtrail")

    def measure(size: int) -> float:
        here = work(job, size)
        env = {**os.environ, "BACKTRAIL_STORE": url(job, size), "HOME": job["folder"]}
        times: list[float] = []
        while len(times) < job["times"] and sum(times) < 2 * _SPENT:
            start = clock()
            for words in job["verb"]:
                done = subprocess.run(
                    [tool, *words],
                    env=env,
                    cwd=here if here.exists() else project(job, 0),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                )
                if done.returncode:
                    said = (done.stderr or done.stdout).decode().strip()
                    raise ValueError(said or f"exit code {done.returncode}")
            times.append(clock() - start)
        return statistics.median(times) / 1e6

    return _grown(job, measure)


def _grown(job: Job, measure: Callable[[int], float]) -> Numbers:
    """Milliseconds by size; the ratio of two of them, and the same for each event or session."""
    spent = {size: measure(size) for size in job["sizes"]}
    numbers: Numbers = {f"at_{at}": spent[size] for at, size in enumerate(job["sizes"])}
    low, high = job["compared"]
    numbers["times"] = spent[high] / spent[low]
    numbers["each"] = numbers["times"] * low / high
    return numbers


if __name__ == "__main__":
    serve(prepare_events, prepare_sessions, events, sessions, first, command)
