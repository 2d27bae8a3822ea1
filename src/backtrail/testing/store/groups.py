"""Rules of `append_each`: appends of several callers, each with its own outcome."""

from __future__ import annotations

from pathlib import Path

from ...errors import Conflict, InvalidData, NotFound
from ...events import MAIN_LOG, NewEvent, SessionInfo
from ...stores.base import Store
from ...stores.batches import Call, drafts
from .base import ContractBase, note


def usual(n: int) -> list[NewEvent]:
    """What nearly every append is: one event of a known kind, without an id."""
    return [NewEvent("user_message", {"n": n})]


def numbers(store: Store, session_id: str, log: str = MAIN_LOG) -> list[tuple[int, object]]:
    """The events of a log: `seq`, and the number that a caller gave."""
    return [(event.seq, event.data["n"]) for event in store.read(session_id, log=log)]


class GroupRules(ContractBase):
    """Order, atomicity and errors, where several callers are served together."""

    def two_sessions(self, tmp_path: Path) -> Store:
        """A store with the sessions `s` and `t`."""
        store = self.started(tmp_path)
        store.create(SessionInfo(id="t"))
        return store

    def test_append_each_keeps_the_order_of_the_calls(self, tmp_path: Path) -> None:
        """Singles, batches and side logs, to several sessions, as if appended one by one."""
        store = self.two_sessions(tmp_path)
        for first in (0, 100):
            given = [
                ("s", usual(first + 1), MAIN_LOG),
                ("t", usual(first + 2), MAIN_LOG),
                ("s", [note(first + 3), note(first + 4)], MAIN_LOG),
                ("s", usual(first + 5), "side"),
                ("s", usual(first + 6), MAIN_LOG),
                ("t", usual(first + 7), MAIN_LOG),
            ]
            outcomes = store.append_each([Call(id, drafts(new), log) for id, new, log in given])
            for (id, new, log), outcome in zip(given, outcomes, strict=True):
                assert isinstance(outcome, list)
                stored = self.settle(store, id, log, outcome)
                assert [event.data["n"] for event in stored] == [event.data["n"] for event in new]
                assert [store.find(id, event.id, log=log).seq for event in stored] == [
                    event.seq for event in stored
                ]
        assert numbers(store, "s") == list(enumerate([1, 3, 4, 6, 101, 103, 104, 106], 1))
        assert numbers(store, "t") == list(enumerate([2, 7, 102, 107], 1))
        assert numbers(store, "s", "side") == [(1, 5), (2, 105)]

    def test_append_each_of_many_usual_events(self, tmp_path: Path) -> None:
        """Any number of calls, to a log that was written to before."""
        store = self.two_sessions(tmp_path)
        self.put(store, "s", usual(0))
        self.put(store, "t", usual(0))
        at = 0
        for count in (1, 2, 3, 5, 129, 300):
            calls = [Call("st"[n % 2], drafts(usual(at + n))) for n in range(count)]
            assert all(isinstance(one, list) for one in store.append_each(calls))
            at += count
        found = sorted(n for id in "st" for _, n in numbers(store, id)[1:])  # type: ignore[type-var]
        assert found == list(range(at))
        for id in "st":
            seqs, mine = zip(*numbers(store, id)[1:], strict=True)
            assert list(mine) == sorted(mine)
            assert list(seqs) == list(range(2, len(mine) + 2))

    def test_append_each_skips_an_id_of_an_earlier_call(self, tmp_path: Path) -> None:
        """The second caller gets the event of the first."""
        store = self.started(tmp_path)
        new = drafts([NewEvent("user_message", {"n": 1}, id="x")])
        outcomes = store.append_each([Call("s", new), Call("s", drafts(usual(2))), Call("s", new)])
        for outcome in outcomes:
            assert isinstance(outcome, list)
        store.flush()
        assert numbers(store, "s") == [(1, 1), (2, 2)]

    def test_append_each_gives_an_error_to_its_own_caller(self, tmp_path: Path) -> None:
        """The others are stored, and of what is refused nothing is."""
        store = self.two_sessions(tmp_path)
        for head in (0, 2):
            calls = [
                Call("s", drafts(usual(head + 1))),
                Call("ghost", drafts(usual(0)), expected=0),
                Call("s", drafts([note(0), note(0)]), expected=77),
                Call("t", drafts(usual(head // 2 + 1))),
                Call("s", drafts([note(0), NewEvent("x", {}, follows=99)]), expected=head + 1),
                Call("s", drafts(usual(head + 2))),
            ]
            kinds = [type(outcome) for outcome in store.append_each(calls)]
            assert kinds == [list, NotFound, Conflict, list, InvalidData, list]
        assert numbers(store, "s") == [(n, n) for n in range(1, 5)]
        assert numbers(store, "t") == [(1, 1), (2, 2)]
