"""The contract can fail: each broken store here breaks at least one of its rules."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import pytest

from backtrail.errors import BacktrailError, InvalidData
from backtrail.events import MAIN_LOG, Event, Json, NewEvent, SessionInfo
from backtrail.stores import KnownIds
from backtrail.stores.adopting import Logs
from backtrail.stores.base import Lease, Store
from backtrail.stores.batches import Call, Outcome
from backtrail.stores.disk.locks import me
from backtrail.stores.memory import MemoryStore
from backtrail.stores.records import Filters
from backtrail.testing import StoreContract


class IgnoresExpected(MemoryStore):
    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        return super().append(session_id, events, log=log)


class LosesTheSecond(MemoryStore):
    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        kept = [*events[:1], *events[2:]]
        return super().append(session_id, kept, log=log, expected=expected, known=known)


class WritesHalfABatch(MemoryStore):
    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        stored: list[Event] = []
        for event in events:
            stored += super().append(session_id, [event], log=log, expected=expected, known=known)
            expected = None
            time.sleep(0.0001)
        return stored


class ReusesANumber(MemoryStore):
    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        stored = super().append(session_id, events, log=log, expected=expected, known=known)
        rows = self._session(session_id).logs[log].rows if stored else []
        if len(rows) > 1:
            rows[-1].seq = rows[-2].seq
        return stored


class ForgetsIds(MemoryStore):
    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        unnamed = [replace(event, id=None) for event in events]
        return super().append(session_id, unnamed, log=log, expected=expected, known=known)


class ReadsOnePage(MemoryStore):
    def read(
        self,
        session_id: str,
        *,
        log: str = MAIN_LOG,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:
        most = 1000 if limit is None else min(limit, 1000)
        return super().read(
            session_id,
            log=log,
            after=after,
            until=until,
            limit=most,
            reverse=reverse,
            kinds=kinds,
        )


class RaisesAtTheFirstEvent(MemoryStore):
    def read(
        self,
        session_id: str,
        *,
        log: str = MAIN_LOG,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:
        yield from super().read(
            session_id,
            log=log,
            after=after,
            until=until,
            limit=limit,
            reverse=reverse,
            kinds=kinds,
        )


class CopiesSideLogs(MemoryStore):
    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        super().create(info, base=base)
        if base is not None:
            sides = dict(self._session(base[0]).logs)
            sides.pop(MAIN_LOG)
            self._session(info.id).logs.update(sides)


class ForksShareTheirEnds(MemoryStore):
    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        super().create(info, base=base)
        if base is not None:
            self._session(info.id).logs[MAIN_LOG] = self._session(base[0]).logs[MAIN_LOG]


class DeletesForksToo(MemoryStore):
    def delete(
        self, session_id: str, *, log: str | None = None, expected: int | None = None
    ) -> None:
        super().delete(session_id, log=log)
        for info in self.sessions(parent=session_id):
            super().delete(info.id)


class ReplacesMetadata(MemoryStore):
    def update(
        self, session_id: str, *, expected: int | None = None, **changes: Json
    ) -> SessionInfo:
        if "metadata" in changes:
            gone = dict.fromkeys(self.info(session_id).metadata)
            changes["metadata"] = {**gone, **changes["metadata"]}
        return super().update(session_id, **changes)


class OldestFirst(MemoryStore):
    def sessions(self, **filters: Unpack[Filters]) -> list[SessionInfo]:
        return super().sessions(**filters)[::-1]


class PurgesNothing(MemoryStore):
    def purge(self, session_id: str, seqs: Collection[int], *, log: str = MAIN_LOG) -> None:
        self._session(session_id)


class LeasesToAll(MemoryStore):
    @contextmanager
    def lease(self, session_id: str, *, wait: float = 0) -> Iterator[Lease]:
        self._session(session_id)
        yield Lease(session_id, me())


class NeverCloses(MemoryStore):
    def close(self) -> None:
        pass


class AdoptsAPart(MemoryStore):
    def adopt(self, info: SessionInfo, logs: Logs) -> None:
        self.create(info)
        for log, events in logs.items():
            for event in events:
                self.append(info.id, [event], log=log)


class AdoptsForgedPointers(MemoryStore):
    def adopt(self, info: SessionInfo, logs: Logs) -> None:
        plain = {
            log: [NewEvent(one.kind, one.data, one.id, ts=one.ts) for one in events]
            for log, events in logs.items()
        }
        super().adopt(info, plain)


class LosesOneBackwards(MemoryStore):
    def read(
        self,
        session_id: str,
        *,
        log: str = MAIN_LOG,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:
        found = super().read(
            session_id, log=log, after=after, until=until, limit=limit, reverse=reverse, kinds=kinds
        )
        return (event for event in found if not (reverse and event.seq == 7))


class WrapsNumbers(MemoryStore):
    def read(
        self,
        session_id: str,
        *,
        log: str = MAIN_LOG,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        kinds: Collection[str] | None = None,
    ) -> Iterator[Event]:
        after = after & 0xFFFFFFFF
        return super().read(
            session_id, log=log, after=after, until=until, limit=limit, reverse=reverse, kinds=kinds
        )


class TellsAllOfAnError(MemoryStore):
    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        outcomes = super().append_each(calls)
        error = next((one for one in outcomes if isinstance(one, BaseException)), None)
        return outcomes if error is None else [error] * len(calls)


class StopsAtAnError(MemoryStore):
    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for call in calls:
            outcomes += super().append_each([call])
            if isinstance(outcomes[-1], BaseException):
                break
        return outcomes + outcomes[-1:] * (len(calls) - len(outcomes))


class SortsTheCalls(MemoryStore):
    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        places = sorted(range(len(calls)), key=lambda at: len(calls[at].batch))
        done = super().append_each([calls[at] for at in places])
        return [done[places.index(at)] for at in range(len(calls))]


class LooksForIdsFirst(MemoryStore):
    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        known = [
            call._replace(batch=[d._replace(given=False) for d in call.batch]) for call in calls
        ]
        return super().append_each(known)


BROKEN: list[tuple[type[Store], str, dict[str, Json]]] = [
    (IgnoresExpected, "append_with_another_expected_head_is_a_conflict", {"expected": 1}),
    (LosesTheSecond, "append_numbers_events_from_one_without_gaps", {}),
    (
        WritesHalfABatch,
        "append_is_all_or_nothing",
        {"bad": NewEvent("note", {"x": b""}), "error": InvalidData, "at": 2},
    ),
    (ReusesANumber, "append_numbers_events_from_one_without_gaps", {}),
    (ReusesANumber, "verify_is_empty_when_all_is_well", {}),
    (ForgetsIds, "append_skips_an_id_of_an_earlier_batch", {}),
    (ReadsOnePage, "read_pages_over_thousands", {}),
    (RaisesAtTheFirstEvent, "unknown_session_is_not_found_by_any_method", {}),
    (CopiesSideLogs, "fork_has_no_side_logs", {}),
    (ForksShareTheirEnds, "fork_and_parent_are_independent", {}),
    (DeletesForksToo, "fork_survives_the_parents_deletion", {}),
    (ReplacesMetadata, "update_merges_metadata", {}),
    (OldestFirst, "sessions_are_newest_first", {}),
    (PurgesNothing, "purge_erases_bodies_and_keeps_the_rest", {}),
    (PurgesNothing, "search_does_not_find_what_was_purged", {}),
    (LeasesToAll, "lease_has_one_holder", {}),
    (NeverCloses, "close_ends_every_method", {}),
    (WritesHalfABatch, "threads_append_batches_as_wholes", {}),
    (AdoptsAPart, "adopt_that_fails_leaves_nothing", {"at": 300}),
    (AdoptsAPart, "adopt_refuses_bad_events", {}),
    (
        AdoptsForgedPointers,
        "adopt_refuses_to_follow_what_is_no_earlier_event",
        {"follows": 2},
    ),
    (LosesOneBackwards, "read_backwards_is_forwards_reversed", {}),
    (WrapsNumbers, "read_takes_any_bounds", {}),
    (TellsAllOfAnError, "append_each_gives_an_error_to_its_own_caller", {}),
    (StopsAtAnError, "append_each_gives_an_error_to_its_own_caller", {}),
    (SortsTheCalls, "append_each_keeps_the_order_of_the_calls", {}),
    (LooksForIdsFirst, "append_each_skips_an_id_of_an_earlier_call", {}),
]


def run_rule(store: type[Store], rule: str, tmp_path: Path, arguments: dict[str, Json]) -> None:
    """Run one rule of the contract on a store in memory."""

    class Contract(StoreContract):
        persistent = False
        shared = False

        def make(self, place: Path) -> Store:
            return store()

    contract = Contract()
    try:
        getattr(contract, f"test_{rule}")(tmp_path, **arguments)
    finally:
        contract.teardown_method()


@pytest.mark.parametrize(
    ("store", "rule", "arguments"), BROKEN, ids=[f"{case[0].__name__}-{case[1]}" for case in BROKEN]
)
def test_broken_store_fails(
    tmp_path: Path, store: type[Store], rule: str, arguments: dict[str, Json]
) -> None:
    """The rule holds for the plain store and fails for the broken one."""
    run_rule(MemoryStore, rule, tmp_path, arguments)
    with pytest.raises((AssertionError, BacktrailError, pytest.fail.Exception)):
        run_rule(store, rule, tmp_path, arguments)


A_PROJECT = """
from backtrail.stores.memory import MemoryStore
from backtrail.testing import StoreContract


class Wrong(MemoryStore):
    def logs(self, session_id):
        return [*super().logs(session_id), "wrong"]


class TestWrong(StoreContract):
    def make(self, place):
        return Wrong()
"""


def test_a_rule_that_fails_shows_what_it_compared(tmp_path: Path) -> None:
    """In a project of its own, where pytest knows the rules as a library."""
    (tmp_path / "test_wrong.py").write_text(A_PROJECT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "logs_are_those"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "['messages', 'wrong'] == ['messages']" in done.stdout
