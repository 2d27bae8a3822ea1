"""The live path, branches, counts, undo and redo."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backtrail.events import MESSAGE_KINDS, Event, Json
from backtrail.events.history import (
    BOOKKEEPING,
    WORK_KINDS,
    Fold,
    branches,
    fold,
    newest_tree,
    path,
    walk,
)
from backtrail.events.operations import OPERATION_KINDS, operations

TS = "2030-01-01T00:00:00.000Z"


def event(
    seq: int, kind: str = "note", follows: int | None = None, data: dict[str, Json] | None = None
) -> Event:
    """An event whose id is its number."""
    return Event(seq, f"e{seq}", TS, kind, data or {"cost_usd": seq}, follows)


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """Logs with jumps to any earlier event."""
    kinds = st.sampled_from(["user_message", "assistant_message", "note", "checkpoint"])
    log: list[Event] = []
    for seq in range(1, draw(st.integers(0, 20)) + 1):
        follows = draw(st.none() | st.none() | st.integers(0, seq - 1))
        log.append(event(seq, draw(kinds), None if follows == seq - 1 else follows))
    return log


def naive_path(log: Iterable[Event], head: int | None = None) -> list[Event]:
    """The live path, one step at a time; a missing event is passed over."""
    by_seq = {one.seq: one for one in log}
    at = max(by_seq, default=0) if head is None else head
    live: list[Event] = []
    while at > 0:
        found = by_seq.get(at)
        if found is None:
            at -= 1
            continue
        live.append(found)
        at = found.previous
    return live[::-1]


# --- the live path -----------------------------------------------------------------------


@given(logs(), st.data())
def test_path_equals_a_naive_walk(log: list[Event], data: st.DataObject) -> None:
    """From any head, and over numbers that damage took."""
    assert path(log) == naive_path(log)
    head = data.draw(st.integers(0, len(log)))
    assert path(log, head) == naive_path(log, head)
    kept = [one for one in log if data.draw(st.booleans())]
    assert path(kept) == naive_path(kept)
    assert path(iter(log), head) == path(log, head)


def test_walk_reads_only_what_it_needs() -> None:
    """One read for each jump, and no event that was abandoned."""
    log = [event(n) for n in range(1, 1001)] + [event(1001, follows=2), event(1002)]
    seen: list[int] = []
    reads: list[int | None] = []

    def read_back(until: int | None) -> Iterable[Event]:
        reads.append(until)
        for one in reversed(log):
            if until is None or one.seq <= until:
                seen.append(one.seq)
                yield one

    walked = walk(lambda until: iter(read_back(until)), None)
    assert [one.seq for one in walked] == [1002, 1001, 2, 1]
    assert seen == [1002, 1001, 2, 1]
    assert reads == [None, 2]


@given(logs())
def test_branches_hold_every_abandoned_message_once(log: list[Event]) -> None:
    """Branches are the ends that were left; together they are all that is not live."""
    live = {one.seq for one in path(log)}
    lost = [one for one in log if one.seq not in live and one.kind in MESSAGE_KINDS]
    found = branches(log)
    assert sum(branch.message_count for branch in found) == len(lost)
    assert [branch.head for branch in found] == sorted({branch.head for branch in found})
    for branch in found:
        assert branch.head not in live
        assert branch.message_count > 0
        assert branch.left in {0, *(one.seq for one in path(log, branch.head))}
        assert branch.to_dict()["head"] == branch.head


def test_branches_say_where_they_part() -> None:
    """A branch begins behind the event that the way on continues from."""
    log = [event(n, "user_message") for n in range(1, 5)]
    assert branches(log) == []
    log += [event(5, "rewound", follows=2), event(6, "user_message")]
    (branch,) = branches(log)
    assert (branch.head, branch.left, branch.message_count) == (4, 2, 2)
    log += [event(7, "rewound", follows=4)]
    (branch,) = branches(log)
    assert (branch.head, branch.left, branch.message_count) == (6, 2, 1)


# --- counts ------------------------------------------------------------------------------


@given(logs(), st.data())
def test_fold_in_pieces_equals_fold_at_once(log: list[Event], data: st.DataObject) -> None:
    """A record may be kept up to date event by event, or folded from the whole log."""
    own = data.draw(st.integers(0, len(log)))
    cut = data.draw(st.integers(0, len(log)))

    def live(seq: int) -> list[Event]:
        return path(log, seq)

    whole = fold(Fold(), log, live, own_after=own)
    half = fold(Fold(), log[:cut], live, own_after=own)
    assert fold(half, log[cut:], live, own_after=own) == whole
    kinds = [one.kind for one in path(log)]
    assert whole.message_count == sum(kind in MESSAGE_KINDS for kind in kinds)
    assert whole.turn_count == kinds.count("user_message")
    assert whole.head == len(log)
    assert (whole.cost_usd or 0) == sum(range(own + 1, len(log) + 1))


# --- undo and redo -----------------------------------------------------------------------


class Model:
    """A list of states with a cursor, beside the log that a session would write."""

    def __init__(self) -> None:
        self.log: list[Event] = []
        self.states: list[list[str]] = [[]]
        self.cursor = 0
        self.state_at: dict[int, list[str]] = {0: []}

    @property
    def state(self) -> list[str]:
        return self.states[self.cursor]

    def append(self, kind: str, follows: int | None = None) -> None:
        """Write an event; a message belongs to the present state."""
        seq = len(self.log) + 1
        self.log.append(event(seq, kind, None if follows == seq - 1 else follows))
        if kind in MESSAGE_KINDS:
            self.states[self.cursor] = [*self.state, f"e{seq}"]
        self.state_at[seq] = self.state

    def push(self, state: list[str]) -> None:
        """A new operation: what was undone cannot be redone any more."""
        del self.states[self.cursor + 1 :]
        self.states.append(state)
        self.cursor += 1

    # What people do.

    def turn(self, answers: int) -> None:
        self.push(self.state)
        self.append("user_message")
        for _ in range(answers):
            self.append("assistant_message")

    def say_more(self, kind: str) -> None:
        del self.states[self.cursor + 1 :]
        self.append(kind)

    def rewind(self, target: int) -> None:
        self.push(self.state_at[target])
        self.append("rewound", follows=target)

    def undo(self) -> None:
        done = operations(self.log).done
        assert len(done) == self.cursor
        if done:
            self.cursor -= 1
            self.append("undone", follows=done[-1].before)

    def redo(self) -> None:
        undone = operations(self.log).undone
        assert len(undone) == len(self.states) - 1 - self.cursor
        if undone:
            self.cursor += 1
            self.append("redone", follows=undone[-1].before)

    def check(self) -> None:
        """The log says the same as the list of states."""
        said = [one.id for one in path(self.log) if one.kind in MESSAGE_KINDS]
        assert said == self.state
        found = operations(self.log)
        assert len(found.done) == self.cursor
        assert len(found.undone) == len(self.states) - 1 - self.cursor
        needed = {*OPERATION_KINDS, *WORK_KINDS}
        assert operations(one for one in self.log if one.kind in needed) == found


STEPS = st.one_of(
    st.tuples(st.just("turn"), st.integers(0, 3)),
    st.tuples(st.just("undo"), st.just(0)),
    st.tuples(st.just("undo"), st.just(0)),
    st.tuples(st.just("redo"), st.just(0)),
    st.tuples(st.just("rewind"), st.integers(0, 100)),
    st.tuples(st.sampled_from(["assistant_message", "tool_result", "action"]), st.just(0)),
    st.tuples(st.sampled_from(["checkpoint", "session_resume", "files_changed"]), st.just(0)),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=25))
def test_history_equals_a_list_of_states_with_a_cursor(steps: list[tuple[str, int]]) -> None:
    """Whatever is said, rewound, undone and redone, in any order."""
    model = Model()
    for name, number in steps:
        if name == "turn":
            model.turn(number)
        elif name == "rewind":
            model.rewind(number % (len(model.log) + 1))
        elif name == "undo":
            model.undo()
        elif name == "redo":
            model.redo()
        elif name in WORK_KINDS:
            model.say_more(name)
        else:
            model.append(name)
        model.check()


def test_repeated_undo_walks_back_to_the_start_and_redo_to_the_end() -> None:
    """Undo ends when nothing is left, redo brings back everything."""
    model = Model()
    for n in range(4):
        model.turn(n)
    model.rewind(1)
    model.turn(1)
    last = model.state
    for _ in range(10):
        model.undo()
        model.check()
    assert model.state == []
    for _ in range(10):
        model.redo()
        model.check()
    assert model.state == last


def test_bookkeeping_is_no_work() -> None:
    """Notes about a session neither end redo nor count as dropped."""
    assert not BOOKKEEPING & {*WORK_KINDS, *MESSAGE_KINDS}


# --- states of the files -----------------------------------------------------------------


def test_a_checkpoint_of_an_earlier_point_is_not_the_newest_state() -> None:
    """One of the event before it is; others have the state of their own point."""
    old, new = "0" * 64, "1" * 64

    def newest(*marks: dict[str, Json]) -> str | None:
        said = [Event(1, "a", "", "user_message", {"tree": old}), Event(2, "b", "", "action", {})]
        noted = [Event(n, f"c{n}", "", "checkpoint", data) for n, data in enumerate(marks, 3)]
        found = newest_tree([*said, *noted][::-1])
        return found.hex() if found else None

    assert newest() == old
    assert newest({"at": 2, "tree": new}) == new
    assert newest({"at": 2, "tree": new}, {"at": 1, "tree": old}) == new
    assert newest({"at": 1, "tree": new}) == old
    assert newest({"at": 2}) == old


# --- agents that go back by themselves ---------------------------------------------------


def test_what_was_done_stays_where_words_are_left() -> None:
    """A late answer leaves words behind, and a rewind all; what was done to files stays."""
    log = [
        event(1, "user_message"), event(2, "assistant_message"), event(3, "user_message"),
        event(4, "action"), event(5, "files_changed"),
        event(6, "assistant_message", follows=2), event(7, "action"),
        event(8, "rewound", follows=6), event(9, "action"),
        event(10, "assistant_message", follows=6),
    ]  # fmt: skip
    assert [e.seq for e in path(log)] == [1, 2, 4, 5, 6, 9, 10]


def test_a_prompt_that_is_said_again_is_one() -> None:
    """What a hook noted in another place is no branch, and no turn to undo."""
    log = [
        event(1, "user_message"), event(2, "assistant_message"), event(3, "user_message"),
        event(4, "assistant_message", follows=2), event(5, "user_message", data={"noted": 3}),
    ]  # fmt: skip
    assert branches(log) == []
    assert [(o.seq, o.before, o.spans) for o in operations(log).done] == [
        (1, 0, ((1, 2),)), (5, 4, ((3, None),)),
    ]  # fmt: skip


def test_a_rewind_of_the_agents_own_is_one_operation() -> None:
    """The files it put back and the prompt that a hook noted stand before the rewind."""
    log = [
        event(1, "user_message"), event(2, "assistant_message"),
        event(3, "files_changed", data={"back": 1}), event(4, "user_message"),
        event(5, "rewound", follows=0, data={"begins": 3}),
        event(6, "user_message", data={"noted": 4}),
    ]  # fmt: skip
    assert [(b.head, b.message_count) for b in branches(log)] == [(2, 2)]
    assert [(o.kind, o.before, o.spans) for o in operations(log).done] == [
        ("user_message", 0, ((1, 2),)), ("rewound", 2, ((3, 5),)),
        ("user_message", 5, ((6, None),)),
    ]  # fmt: skip
    assert path(log)[-1].seq == 6


@pytest.mark.parametrize("forged", [[1], {}, "3", True, -1, 99, 6, None])
def test_forged_notes_count_for_nothing(forged: Json) -> None:
    """Anybody may record events."""
    data = {"noted": forged, "begins": forged}
    log = [event(1, "user_message"), event(2, "rewound", follows=0, data=data),
           event(3, "user_message", data=data)]  # fmt: skip
    assert len(operations(log).done) == 3
    assert len(branches(log)) == 1
