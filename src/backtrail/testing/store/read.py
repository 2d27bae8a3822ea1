"""Rules of reading: ranges, pages, the tail, the history, looking up one event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from ...errors import InvalidData, NotFound
from ...events import Event, Json, NewEvent, SessionInfo
from ...events.history import deletion
from ...stores.base import Store
from .base import ContractBase, everything, note, notes, seqs


def check_ranges(store: Store, session_id: str, log: Sequence[Event], bounds: list[int]) -> None:
    """Every combination of `read`'s arguments equals a filter over the whole log."""
    limits, kinds = (None, 0, 1, 3, 10**6), (None, ("rare",), ("rare", "note"), ())
    for after, until in product(bounds, [None, *bounds]):
        for limit, reverse, wanted in product(limits, (False, True), kinds):
            naive = [
                event
                for event in (reversed(log) if reverse else log)
                if after < event.seq
                and (until is None or event.seq <= until)
                and (wanted is None or event.kind in wanted)
            ][:limit]
            found = list(
                store.read(
                    session_id, after=after, until=until, limit=limit, reverse=reverse, kinds=wanted
                )
            )
            assert found == naive, (after, until, limit, reverse, wanted)


def _long(kind: str) -> list[NewEvent]:
    """More than any store reads at once."""
    return [NewEvent(kind, {"n": n, "pad": "x" * 2000}) for n in range(1500)]


def _long_reads() -> list[Callable[[Store, str, str], Iterator[Any]]]:
    return [
        lambda store, name, log: store.read(name, log=log),
        lambda store, name, log: store.read(name, log=log, reverse=True),
        lambda store, name, log: store.read(name, log=log, kinds=("old",)),
        lambda store, name, log: store.read(name, log=log, limit=1400, reverse=True),
        lambda store, name, log: store.walk(name, log=log),
        lambda store, name, log: store.pages(name, log=log),
    ]


class ReadRules(ContractBase):
    """`read`, `tail`, `walk`, `history`, `find`, `checkpoint`."""

    def test_read_ranges(self, tmp_path: Path) -> None:
        """`after < seq <= until`, at most `limit`, `reverse`, only `kinds`: in any mixture."""
        store = self.started(tmp_path)
        kinds = ["note", "note", "rare", "note", "other", "rare", "note"]
        self.put(store, "s", [NewEvent(kind, {}) for kind in kinds])
        log = everything(store, "s")
        assert seqs(log) == list(range(1, 8))
        check_ranges(store, "s", log, [0, 1, 3, 6, 7, 8, 10**6])

    def test_read_takes_any_bounds(self, tmp_path: Path) -> None:
        """Numbers that no event can have are bounds like others."""
        store = self.started(tmp_path, events=3)
        log = everything(store, "s")
        for most in (1 << 31, 1 << 32, (1 << 62) + 1):
            assert list(store.read("s", until=most)) == log
            assert list(store.read("s", until=most, reverse=True)) == log[::-1]
            assert list(store.read("s", after=most)) == []
            assert list(store.read("s", after=most, reverse=True)) == []
            with pytest.raises(InvalidData):
                self.put(store, "s", [note(follows=most)])
        assert everything(store, "s") == log

    def test_read_backwards_is_forwards_reversed(self, tmp_path: Path) -> None:
        """In a log with rewinds and in its fork, whole and from any bound; `follows` goes back."""
        store = self.started(tmp_path)
        for n in range(1, 400, 7):
            self.put(store, "s", [NewEvent("note", {"n": n, "pad": "x" * (n * 40)})] * 6)
            self.put(store, "s", [note(follows=n // 2)])
        store.create(SessionInfo(id="fork"), base=("s", 300))
        self.put(store, "fork", [note(follows=100), note()])
        for name in ("s", "fork"):
            forward = everything(store, name)
            assert seqs(forward) == list(range(1, len(forward) + 1))
            assert all(0 <= event.previous < event.seq for event in forward)
            assert list(store.read(name, reverse=True)) == forward[::-1]
            for bound in (1, 64, 299, 300, 301):
                back = list(store.read(name, after=bound, reverse=True))
                assert back == list(store.read(name, after=bound))[::-1] == forward[bound:][::-1]
                back = list(store.read(name, until=bound, reverse=True))
                assert back == list(store.read(name, until=bound))[::-1] == forward[:bound][::-1]

    def test_read_pages_over_thousands(self, tmp_path: Path) -> None:
        """Long reads come in pages, and it does not show."""
        store = self.started(tmp_path)
        for first in range(0, 2500, 500):
            batch = [
                NewEvent("rare" if n % 700 == 0 else "note", {"n": n})
                for n in range(first + 1, first + 501)
            ]
            self.put(store, "s", batch)
        log = everything(store, "s")
        assert [event.data["n"] for event in log] == seqs(log) == list(range(1, 2501))
        assert seqs(list(store.read("s", reverse=True))) == list(range(2500, 0, -1))
        assert seqs(list(store.read("s", after=100, until=2300, limit=1900))) == list(
            range(101, 2001)
        )
        assert seqs(list(store.read("s", until=2300, limit=1900, reverse=True))) == list(
            range(2300, 400, -1)
        )
        assert seqs(list(store.read("s", kinds=("rare",)))) == [700, 1400, 2100]
        assert seqs(list(store.read("s", kinds=("rare",), reverse=True, limit=2))) == [2100, 1400]
        assert seqs(list(islice(store.read("s"), 3))) == [1, 2, 3]

    def test_read_sees_events_appended_meanwhile(self, tmp_path: Path) -> None:
        """An iterator in use holds up no writer, and goes on to what was written."""
        store = self.started(tmp_path, events=3)
        reader = store.read("s")
        assert next(reader).seq == 1
        self.put(store, "s", notes(2, first=4))
        assert seqs(list(reader)) == [2, 3, 4, 5]

    def test_read_of_a_log_that_is_deleted_ends_with_not_found(self, tmp_path: Path) -> None:
        """A long read never ends early as if that were all, however and of whatever it reads."""
        store = self.open(tmp_path)
        for n, read in enumerate(_long_reads()):
            for log in ("messages", "side"):
                store.create(SessionInfo(id=f"s{n}-{log}"))
                self.put(store, f"s{n}-{log}", _long("old"), log=log)
                reader = read(store, f"s{n}-{log}", log)
                next(reader)
                store.delete(f"s{n}-{log}", log=None if log == "messages" else log)
                with pytest.raises(NotFound):
                    list(reader)

    def test_read_of_a_short_log_that_is_deleted_gives_all_or_not_found(
        self, tmp_path: Path
    ) -> None:
        """What is on the page at hand may still come; after that it is the end or `NotFound`."""
        store = self.started(tmp_path, events=5)
        reader = store.read("s")
        got = [next(reader).seq]
        store.delete("s")
        with suppress(NotFound):
            got.extend(event.seq for event in reader)
            assert got == [1, 2, 3, 4, 5]

    def test_read_stays_in_the_session_it_began_in(self, tmp_path: Path) -> None:
        """A session made anew under the same id is another one: no read goes on in it."""
        store = self.open(tmp_path)
        for read in _long_reads()[:2]:
            store.create(SessionInfo(id="s"))
            self.put(store, "s", _long("old"))
            reader = read(store, "s", "messages")
            kinds = {next(reader).kind}
            store.delete("s")
            store.create(SessionInfo(id="s"))
            self.put(store, "s", _long("new"))
            with pytest.raises(NotFound):
                kinds.update(event.kind for event in reader)
            assert kinds == {"old"}
            store.delete("s")

    def test_read_goes_on_while_its_events_are_purged(self, tmp_path: Path) -> None:
        """A purge takes bodies; the events still come, each once."""
        store = self.started(tmp_path)
        self.put(store, "s", _long("old"))
        for reverse in (False, True):
            reader = store.read("s", reverse=reverse)
            got = [next(reader).seq]
            store.purge("s", [1, 700, 1400])
            got.extend(event.seq for event in reader)
            assert sorted(got) == list(range(1, 1501))

    def test_read_of_an_empty_log_is_empty(self, tmp_path: Path) -> None:
        """A log that nothing was written to reads as empty, whatever its name."""
        store = self.started(tmp_path)
        for log in ("messages", "transcript", "subagents/a1"):
            assert everything(store, "s", log) == []
            assert list(store.read("s", log=log, reverse=True)) == []
            assert store.tail("s", 5, log=log) == []
            assert store.history("s", log=log) == []
            with pytest.raises(NotFound):
                store.find("s", "e1", log=log)

    # --- the tail ------------------------------------------------------------------------

    def test_tail_is_the_last_events_oldest_first(self, tmp_path: Path) -> None:
        """`tail(n)` gives as many as there are."""
        store = self.started(tmp_path, events=5)
        assert seqs(store.tail("s", 2)) == [4, 5]
        assert seqs(store.tail("s", 5)) == seqs(store.tail("s", 99)) == [1, 2, 3, 4, 5]
        self.put(store, "s", [note("side")], log="side")
        assert [event.data["n"] for event in store.tail("s", 3, log="side")] == ["side"]

    @pytest.mark.parametrize("n", [0, -1])
    def test_tail_takes_a_positive_number(self, tmp_path: Path, n: int) -> None:
        """A tail of nothing is a mistake of the caller."""
        store = self.started(tmp_path, events=1)
        with pytest.raises(InvalidData):
            store.tail("s", n)

    # --- the history ---------------------------------------------------------------------

    def test_history_of_a_straight_log_is_the_log(self, tmp_path: Path) -> None:
        """Where nothing was rewound, all events are live."""
        store = self.started(tmp_path, events=4)
        assert store.history("s") == everything(store, "s")
        assert seqs(list(store.walk("s"))) == [4, 3, 2, 1]

    def test_history_goes_back_along_follows(self, tmp_path: Path) -> None:
        """What a rewind left behind is not in the history, and stays in the log."""
        store = self.started(tmp_path, events=5)
        self.put(store, "s", [note(follows=2), note(), note(follows=7), note(follows=3)])
        assert seqs(store.history("s")) == [1, 2, 3, 9]
        assert seqs(store.history("s", until=8)) == [1, 2, 6, 7, 8]
        assert seqs(store.history("s", until=5)) == [1, 2, 3, 4, 5]
        assert seqs(list(store.walk("s", until=8))) == [8, 7, 6, 2, 1]
        assert seqs(everything(store, "s")) == list(range(1, 10))
        self.put(store, "s", [note(follows=0), note()])
        assert seqs(store.history("s")) == [10, 11]

    def test_history_of_a_side_log(self, tmp_path: Path) -> None:
        """A side log has a history too."""
        store = self.started(tmp_path)
        self.put(store, "s", [*notes(3), note(follows=1)], log="side")
        assert seqs(store.history("s", log="side")) == [1, 4]

    def test_pages_are_the_history(self, tmp_path: Path) -> None:
        """Newest page first, each in order, with the messages as they were given."""
        store = self.started(tmp_path, events=300)
        said: list[dict[str, Json]] = [{"role": "user", "content": f"hö {n}"} for n in range(300)]
        more = [NewEvent("user_message", {"message": m, "format": "openai"}) for m in said]
        self.put(store, "s", [*more[:1], note(follows=150), *more[1:]])
        for until in (None, 500, 301, 7, 0):
            pages = list(store.pages("s", until=until))
            live = store.history("s", until=until)
            assert [seq for page in reversed(pages) for seq in page.seqs] == seqs(live)
            shown = [one.message for page in reversed(pages) for one in page.said]
            assert shown == [event.data.get("message") for event in live]
        assert list(store.pages("s", log="side")) == []

    # --- one event -----------------------------------------------------------------------

    def test_find_gives_the_event_with_an_id(self, tmp_path: Path) -> None:
        """`find` looks in one log, also at abandoned events."""
        store = self.started(tmp_path, events=3)
        self.put(store, "s", [note(follows=1)])
        self.put(store, "s", [note("side", id="only-side")], log="side")
        assert store.find("s", "e3") == everything(store, "s")[2]
        assert store.find("s", "only-side", log="side").seq == 1
        with pytest.raises(NotFound):
            store.find("s", "only-side")
        with pytest.raises(NotFound):
            store.find("s", "e1", log="side")

    def test_outline_and_tally_say_what_is_read(self, tmp_path: Path) -> None:
        """Without bodies: the kinds asked for, all that jump, and how many there are of each."""
        store = self.started(tmp_path, events=3)
        one, other = NewEvent("a", {}), NewEvent("c", {})
        self.put(store, "s", [one, NewEvent("b", {}, follows=2), other, one, other])
        info = SessionInfo(id="fork", parent_id="s", relation="fork", fork_seq=6)
        store.create(info, base=("s", 6))
        self.put(store, "fork", [NewEvent("a", {}), NewEvent("b", {}, follows=6)])
        for id in ("s", "fork"):
            events = everything(store, id)
            for kinds, after, until in (((), 0, None), (("a", "c"), 0, None), (("a",), 2, 6)):
                wanted = [
                    (event.seq, event.kind, event.follows)
                    for event in events
                    if (event.follows is not None or event.kind in kinds)
                    and after < event.seq <= (until or 99)
                ]
                found = store.outline(id, kinds=kinds, after=after, until=until)
                assert [tuple(mark[:3]) for mark in found] == wanted
                counted = Counter(e.kind for e in events if after < e.seq <= (until or 99))
                assert store.tally(id, after=after, until=until) == counted

    def test_a_record_says_what_the_session_is_about(self, tmp_path: Path) -> None:
        """Whatever the log holds: only what is counted in it may be older."""
        store = self.started(tmp_path, events=3)
        store.update("s", title="new", cwd=str(tmp_path))
        self.put(store, "s", notes(2, 4))
        record, info = store.record("s"), store.info("s")
        for name in ("id", "title", "cwd", "root", "created_at", "tags", "metadata", "scope"):
            assert getattr(record, name) == getattr(info, name)

    def test_checkpoint_is_found_by_its_id_alone(self, tmp_path: Path) -> None:
        """A checkpoint is found in whatever session it is."""
        store = self.started(tmp_path, events=2)
        self.put(store, "s", [NewEvent("checkpoint", {"at": 1, "label": "one"}, id="c1")])
        data = {"label": "two", "tree": "t" * 64, "metadata": {"a": [1]}}
        self.put(store, "s", [NewEvent("checkpoint", data, id="c2")])
        one, two = store.checkpoint("c1"), store.checkpoint("c2")
        assert (one.id, one.seq, one.label, one.session_id) == ("c1", 1, "one", "s")
        assert (one.tree, one.metadata) == (None, {})
        assert (two.seq, two.label, two.tree, two.metadata) == (3, "two", "t" * 64, {"a": [1]})
        assert two.ts == everything(store, "s")[3].ts

    def test_a_deleted_checkpoint_is_not_found(self, tmp_path: Path) -> None:
        """Unless a fork shares it, which goes its own way; the log keeps both events."""
        store = self.started(tmp_path, events=1)
        self.put(store, "s", [NewEvent("checkpoint", {"at": 1, "label": "one"}, id="c1")])
        self.put(store, "s", [NewEvent("checkpoint", {"at": 1, "label": "two"}, id="c2")])
        self.put(store, "s", [deletion("c1"), deletion("c1")])
        with pytest.raises(NotFound):
            store.checkpoint("c1")
        assert store.checkpoint("c2").session_id == "s"
        kinds = [event.kind for event in everything(store, "s")]
        assert kinds[1:] == ["checkpoint", "checkpoint", "checkpoint_deleted"]
        store.create(SessionInfo("fork", parent_id="s", relation="fork", fork_seq=3), base=("s", 3))
        assert store.checkpoint("c1").session_id == "fork"
        # An event of another kind that bears the name deletes nothing.
        forged = NewEvent("note", {"checkpoint": "c2"}, id=deletion("c2").id)
        self.put(store, "s", [forged])
        assert store.checkpoint("c2").session_id in ("s", "fork")

    def test_checkpoint_that_is_none_is_not_found(self, tmp_path: Path) -> None:
        """Neither an unknown id nor an event of another kind is a checkpoint."""
        store = self.started(tmp_path, events=2)
        for id in ("c1", "e1"):
            with pytest.raises(NotFound):
                store.checkpoint(id)
