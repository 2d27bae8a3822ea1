"""Rules of sharing: many threads, many processes, one place opened again and again."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from ...errors import Conflict
from ...events import NewEvent, SessionInfo
from ...stores.base import Store
from .base import ContractBase, child, everything, joined, note, notes, seqs

THREADS, PROCESSES, EACH = 8, 4, 50


def run(work: Callable[[int], None], count: int) -> None:
    """Run `work(0)`, `work(1)` … in threads; the first error of any is raised here."""
    errors: list[BaseException] = []

    def guarded(n: int) -> None:
        try:
            work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    if errors:
        raise errors[0]


def check_order(store: Store, writers: int) -> None:
    """The log has every event once, without gaps, each writer's in its own order."""
    events = everything(store, "s")
    assert seqs(events) == list(range(1, writers * EACH + 1))
    order = defaultdict(list)
    for event in events:
        order[event.data["writer"]].append(event.data["n"])
    assert order == {writer: list(range(EACH)) for writer in range(writers)}
    assert store.verify() == []


def step(writer: int, n: int) -> NewEvent:
    """The n-th event of a writer."""
    return NewEvent("step", {"writer": writer, "n": n}, id=f"{writer}-{n}")


class SharingRules(ContractBase):
    """Threads, processes, reopening."""

    def test_threads_append_without_gaps(self, tmp_path: Path) -> None:
        """Many threads on one store: no number twice, none left out, each in order."""
        store = self.started(tmp_path)
        returned: dict[int, list[int]] = {}

        def work(writer: int) -> None:
            stored = [self.put(store, "s", [step(writer, n)])[0] for n in range(EACH)]
            returned[writer] = seqs(stored)

        run(work, THREADS)
        check_order(store, THREADS)
        for writer, numbers in returned.items():
            wanted = [e.seq for e in store.read("s") if e.data["writer"] == writer]
            assert numbers == wanted

    def test_threads_append_batches_as_wholes(self, tmp_path: Path) -> None:
        """Events of one batch stand together."""
        store = self.started(tmp_path)
        other = self.second(store, tmp_path)

        def work(writer: int) -> None:
            for n in range(0, EACH, 5):
                batch = [step(writer, n + i) for i in range(5)]
                (other if writer % 2 else store).append("s", batch)

        run(work, THREADS)
        store.flush()
        other.flush()
        check_order(store, THREADS)
        events = everything(other, "s")
        for first in range(0, len(events), 5):
            assert len({event.data["writer"] for event in events[first : first + 5]}) == 1

    def test_threads_retry_the_same_ids(self, tmp_path: Path) -> None:
        """An id that many threads append is stored once, and all get that event."""
        store = self.started(tmp_path)
        results: list[list[int]] = []

        def work(writer: int) -> None:
            results.append([self.put(store, "s", [note(id=f"e{n}")])[0].seq for n in range(20)])

        run(work, THREADS)
        assert results == [list(range(1, 21))] * THREADS
        assert seqs(everything(store, "s")) == list(range(1, 21))

    def test_threads_with_an_expected_head_win_one_at_a_time(self, tmp_path: Path) -> None:
        """Of those that expect the same head one succeeds, and the others get an error."""
        store = self.started(tmp_path)

        def work(writer: int) -> None:
            for n in range(10):
                while True:
                    try:
                        store.append("s", [step(writer, n)], expected=store.info("s").head)
                        break
                    except Conflict:
                        pass

        run(work, 4)
        assert seqs(everything(store, "s")) == list(range(1, 41))

    def test_threads_create_a_session_once(self, tmp_path: Path) -> None:
        """One of many creators succeeds; all can use the session."""
        store = self.open(tmp_path)
        made: list[int] = []

        def work(writer: int) -> None:
            try:
                store.create(SessionInfo(id="s", title=str(writer)))
                made.append(writer)
            except ValueError:
                pass
            self.put(store, "s", [note(writer)])

        run(work, THREADS)
        assert len(made) == 1
        assert store.info("s").title == str(made[0])
        assert store.info("s").head == THREADS

    def test_threads_read_while_others_write(self, tmp_path: Path) -> None:
        """A reader sees a prefix of the log at any time."""
        store = self.started(tmp_path)

        def work(worker: int) -> None:
            if worker % 2:
                for n in range(30):
                    store.append("s", [note(n), note(n)])
            else:
                for _ in range(15):
                    events = everything(store, "s")
                    assert seqs(events) == list(range(1, len(events) + 1))
                    assert seqs(list(store.read("s", reverse=True, limit=3)))[:1] != [0]
                    store.info("s")

        run(work, 4)
        assert store.info("s").head == 120

    def test_processes_append_without_gaps(self, tmp_path: Path) -> None:
        """Many processes in one place: no number twice, none left out, each in order."""
        self.need_shared()
        store = self.started(tmp_path)

        def work(writer: int) -> None:
            with self.make(tmp_path / "place") as own:
                for n in range(EACH):
                    stored = self.put(own, "s", [step(writer, n)])
                    again = self.put(own, "s", [step(writer, n)])
                    assert again == stored

        assert joined([child(lambda n=n: work(n)) for n in range(PROCESSES)]) == [0] * PROCESSES  # type: ignore[misc]
        check_order(store, PROCESSES)
        assert seqs(self.put(store, "s", [note()])) == [PROCESSES * EACH + 1]

    def test_processes_see_each_others_sessions(self, tmp_path: Path) -> None:
        """What one process makes, deletes or changes is there for the others."""
        self.need_shared()
        store = self.started(tmp_path, events=2)

        def work() -> None:
            with self.make(tmp_path / "place") as own:
                assert seqs(everything(own, "s")) == [1, 2]
                own.create(SessionInfo(id="new", key="k"))
                own.append("new", notes(3))
                own.update("s", title="changed")
                own.append("s", [note(id="e3")])

        assert joined([child(work)]) == [0]
        assert store.info("s").title == "changed"
        assert [info.id for info in store.sessions(key="k")] == ["new"]
        assert seqs(self.put(store, "new", [note(id="e2"), note(id="e4")])) == [2, 4]
        assert seqs(self.put(store, "s", [note(id="e3"), note()])) == [3, 4]

    def test_processes_may_be_forked_from_a_user_of_the_store(self, tmp_path: Path) -> None:
        """A store that a forked child inherited works in both, and loses nothing."""
        self.need_shared()
        store = self.started(tmp_path, events=2)

        def work() -> None:
            for n in range(20):
                store.append("s", [step(1, n)])
            store.flush()
            store.close()

        pid = child(work)
        for n in range(20):
            store.append("s", [step(0, n)])
        assert joined([pid]) == [0]
        events = everything(store, "s")
        assert seqs(events) == list(range(1, 43))
        for writer in (0, 1):
            mine = [event.data["n"] for event in events[2:] if event.data["writer"] == writer]
            assert mine == list(range(20))

    def test_reopening_shows_the_same(self, tmp_path: Path) -> None:
        """Records, logs and notes are there again, and numbers go on."""
        store = self.started(tmp_path, events=3)
        self.put(store, "s", notes(2), log="transcript")
        store.memory(tmp_path).write("note")
        before = store.sessions(), everything(store, "s"), everything(store, "s", "transcript")
        for _ in range(2):
            store = self.reopen(store, tmp_path)
            now = store.sessions(), everything(store, "s"), everything(store, "s", "transcript")
            assert now == before
            assert store.logs("s") == ["messages", "transcript"]
            assert store.memory(tmp_path).read() == "note"
        assert seqs(self.put(store, "s", [note()])) == [4]
        assert seqs(self.put(store, "s", [note()], log="transcript")) == [3]
