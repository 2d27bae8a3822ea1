"""Rules of closing: once is enough, twice is fine, afterwards nothing works."""

from __future__ import annotations

from pathlib import Path

from ...errors import Closed
from ...events import SessionInfo
from .base import ContractBase, assert_all_raise, everything, note, notes, raised, seqs, store_calls


class ClosingRules(ContractBase):
    """`close`."""

    def test_close_may_be_repeated(self, tmp_path: Path) -> None:
        """Closing twice is fine, used or not."""
        for events in (0, 2):
            store = self.open(tmp_path)
            if events:
                store.create(SessionInfo(id="s"))
                store.append("s", notes(events))
            store.close()
            store.close()

    def test_close_ends_every_method(self, tmp_path: Path) -> None:
        """A closed store raises `Closed`, whatever it is asked."""
        store = self.started(tmp_path, events=2)
        store.close()
        calls = self.session_calls(store, "s") | store_calls(store, tmp_path)
        assert_all_raise(calls, Closed)

    def test_close_is_done_by_a_with_block(self, tmp_path: Path) -> None:
        """A store is its own context."""
        with self.open(tmp_path) as store:
            store.create(SessionInfo(id="s"))
        assert raised(store.sessions) is Closed

    def test_close_keeps_what_was_acknowledged(self, tmp_path: Path) -> None:
        """Closing right after an append loses nothing."""
        self.need_persistent()
        for n in range(1, 4):
            store = self.open(tmp_path)
            if n == 1:
                store.create(SessionInfo(id="s"))
            store.append("s", [note(n, id=f"e{n}")])
            store.close()
        assert seqs(everything(self.open(tmp_path), "s")) == [1, 2, 3]
