"""What a long session costs: some verbs must not depend on how long it is.

SQLite counts the steps that it takes, which is the same on every machine.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType

import apsw
import pytest

from backtrail import Session
from backtrail.events import MESSAGE_KINDS, Event, Json, NewEvent, SessionInfo
from backtrail.events.history import BOOKKEEPING, WORK_KINDS
from backtrail.events.operations import OPERATION_KINDS, operations
from backtrail.session.points import plan_move, read_operations
from backtrail.stores import Store, open_store


class Steps:
    """How many steps SQLite took since it was asked to count."""

    def __init__(self) -> None:
        self.taken = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)

    def _note(self, event: dict[str, dict[str, int]]) -> None:
        self.taken += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    steps = Steps()
    with monkeypatch.context() as patch:
        patch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, steps.watch])
        yield steps


@contextmanager
def calls_counted() -> Iterator[count[int]]:
    """A counter that stands, afterwards, at how often functions and generators were entered."""
    entered = count()

    def note(_frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            next(entered)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(before)


def said(number: int) -> dict[str, str]:
    return {"role": ("user", "assistant")[number % 2], "content": f"message {number}"}


def made(url: str, length: int) -> None:
    """A session that was not counted yet."""
    with open_store(url) as store:
        store.create(SessionInfo(id="s"))
        kinds = ("user_message", "assistant_message")
        store.append("s", [NewEvent(kinds[n % 2], {"message": said(n)}) for n in range(length)])


def extend(session: Session) -> None:
    session.extend([said(1), {"role": "user", "content": "new"}])


def append(session: Session) -> None:
    session.append({"role": "user", "content": "new"})


def fork(session: Session) -> None:
    session.fork().close()


def checkpoint(session: Session) -> None:
    session.checkpoint("here")
    assert len(session.checkpoints()) == 1


@pytest.mark.parametrize("verb", [append, extend, fork, checkpoint])
def test_the_length_of_a_session_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Session], None]
) -> None:
    """Also where the session was just resumed, and nothing of it is counted."""
    taken = []
    for length in (200, 6000):
        url = f"sqlite:///{tmp_path}/{length}.db"
        made(url, length)
        with counting(monkeypatch) as steps, open_store(url) as store:
            with Session.resume(store, "s") as session:
                verb(session)
            taken.append(steps.taken)
    assert taken[0] > 50
    assert taken[1] < 2 * taken[0]


def test_a_checkpoint_is_deleted_without_reading_what_was_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are those of an event close by, so nothing of them can go."""
    taken = []
    for length in (200, 6000):
        url, work = f"sqlite:///{tmp_path}/{length}.db", tmp_path / str(length)
        work.mkdir()
        made(url, length)
        with open_store(url) as store:
            store.update("s", cwd=str(work))
            with Session.resume(store, "s") as session:
                append(session)
                point = session.checkpoint("here")
                with counting(monkeypatch) as steps, open_store(url) as again:
                    with Session.resume(again, "s") as other:
                        other.delete_checkpoint(point.id)
                    taken.append(steps.taken)
    assert taken[0] > 50
    assert taken[1] < 2 * taken[0]


def test_a_call_is_settled_without_reading_what_was_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a long session costs beside that is no more than in a short one."""
    taken = []
    for length in (200, 6000):
        url = f"sqlite:///{tmp_path}/{length}.db"
        made(url, length)
        with open_store(url) as store, Session.resume(store, "s") as session:
            call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            session.append({"role": "assistant", "content": None, "tool_calls": [call]})
        with counting(monkeypatch) as steps, open_store(url) as store:
            with Session.resume(store, "s") as session:
                session.answer("c", "done")
            taken.append(steps.taken)
    assert taken[0] > 50
    assert taken[1] < 2 * taken[0]


@pytest.mark.parametrize(
    ("given", "new"),
    [
        (["a", "b", "c"], ["c"]),
        (["b", "c"], ["b", "c"]),
        (["a", "b"], []),
        (["x", "b", "c"], ["x", "b", "c"]),
    ],
)
def test_extend_knows_a_conversation_it_is_handed_back(given: list[str], new: list[str]) -> None:
    """By its last answer first, and then by all of it."""
    roles = {"a": "user", "b": "assistant"}
    messages = [{"role": roles.get(text, "user"), "content": text} for text in given]
    with Session.create(store="memory:") as session:
        session.extend([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        assert [event.data["message"]["content"] for event in session.extend(messages)] == new


# --- plans, against a plain reading of the whole log ---------------------------------------


def random_log(store: Store, rng: random.Random, id: str, base: tuple[str, int] | None) -> None:
    relation = {"parent_id": base[0], "relation": "fork", "fork_seq": base[1]} if base else {}
    store.create(SessionInfo(id=id, **relation), base=base)  # type: ignore[arg-type]
    head = base[1] if base else 0
    kinds = (*MESSAGE_KINDS, *OPERATION_KINDS, "action", "turn_end", "note", "session_resume")
    for _ in range(rng.randrange(40)):
        kind, follows = rng.choice(kinds), None
        if kind in OPERATION_KINDS[1:] or rng.random() < 0.05:
            follows = rng.randrange(head + 1)
        data: dict[str, Json] = (
            {"kept": ["a"]} if rng.random() < 0.3 else {"message": rng.choice("pq")}
        )
        if kind == "system_message":
            data["pinned"] = rng.random() < 0.7
        if kind == "undone" and rng.random() < 0.2:
            data["finishes"] = head
        head = store.append(id, [NewEvent(kind, data, follows=follows)])[0].seq


def plain_move(store: Store, view: int | None, anchor: int, id: str) -> tuple[object, ...]:
    """What `plan_move` says, by looking at every event of both histories."""
    live = {event.seq: event for event in store.walk(id, until=view)}
    path = {event.seq: event for event in store.walk(id, until=anchor)} if anchor else {}
    prompts = [e for e in live.values() if e.kind == "system_message" and e.data.get("pinned")]
    kept = [e for e in path.values() if e.kind == "system_message" and e.data.get("pinned")]
    gone = [e for e in live.values() if e.seq not in path and e not in prompts]
    lost: Event | None = None
    if prompts and (not kept or kept[0].data.get("message") != prompts[0].data.get("message")):
        lost = prompts[0]
    counted = sum(e.kind not in BOOKKEEPING for e in gone)
    messages = sum(e.kind in MESSAGE_KINDS for e in path.values()) + (lost is not None)
    changes = counted > 0 or not path.keys() <= live.keys()
    return anchor, counted, sum(e.kind in MESSAGE_KINDS for e in gone), messages, changes, lost


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/x.db", "file:{}/store"])
@pytest.mark.parametrize("seed", range(3))
def test_plans_are_those_of_a_plain_reading(tmp_path: Path, url: str, seed: int) -> None:
    """Of logs with any number of jumps and prompts, of forks, and from any view."""
    rng = random.Random(seed)
    with open_store(url.format(tmp_path)) as store:
        for number in range(12):
            id, base = f"s{number}", None
            if number % 3:
                parent = f"s{number - 1}"
                base = (parent, rng.randrange(store.info(parent).head + 1))
            random_log(store, rng, id, base)
            head = store.info(id).head
            wanted = {*OPERATION_KINDS, *WORK_KINDS}
            now, plain = read_operations(store, id), operations(store.read(id, kinds=wanted))
            assert (now.undone, now.unfinished) == (plain.undone, plain.unfinished)
            assert now.done[-1:] == plain.done[-1:]
            for _ in range(15):
                anchor, view = rng.randrange(head + 1), rng.choice([None, rng.randrange(head + 1)])
                if view == 0 and head:
                    view = None
                move = plan_move(store, id, view, anchor)
                counts = (move.events_dropped, move.messages_dropped, move.message_count)
                found = (move.anchor, *counts, move.changes, move.prompt)
                assert found == plain_move(store, view, anchor, id)


def test_changes_take_as_long_for_each_turn_of_a_long_session(tmp_path: Path) -> None:
    """Twice the turns are twice the calls of functions, not four times."""
    entered = []
    for length in (400, 800):
        url = f"sqlite:///{tmp_path}/{length}.db"
        made(url, length)
        with Session.resume(url, "s", cwd=tmp_path) as session:
            session.changes()
            with calls_counted() as calls:
                turns = session.changes()
        assert len(turns) == length // 2
        entered.append(next(calls))
    assert entered[1] <= 2.2 * entered[0]
