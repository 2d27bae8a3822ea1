"""Rules of what a record takes from its log: head, counts, sums, times."""

from __future__ import annotations

from pathlib import Path

from ...events import NewEvent, SessionInfo
from .base import ContractBase, note, said
from .forks import fork
from .sessions import at


class InfoRules(ContractBase):
    """The folded fields of `SessionInfo`."""

    def test_info_counts_messages_and_turns(self, tmp_path: Path) -> None:
        """Messages are the four message kinds, turns the user's; the head is the last event."""
        store = self.started(tmp_path)
        batch = [said("system", "s"), said("user", "u"), said("assistant", "a"), note()]
        batch.append(NewEvent("tool_result", {"message": {"role": "tool", "content": "x"}}))
        self.put(store, "s", batch)
        info = store.info("s")
        assert (info.head, info.message_count, info.turn_count) == (5, 4, 1)
        self.put(store, "s", [said("user", "u")])
        info = store.info("s")
        assert (info.head, info.message_count, info.turn_count) == (6, 5, 2)

    def test_info_counts_the_live_history_only(self, tmp_path: Path) -> None:
        """A rewind takes messages and turns out of the count, and may bring them back."""
        store = self.started(tmp_path)
        for _ in range(3):
            self.put(store, "s", [said("user", "u"), said("assistant", "a")])
        assert (store.info("s").message_count, store.info("s").turn_count) == (6, 3)
        self.put(store, "s", [NewEvent("rewound", {}, follows=2)])
        assert (store.info("s").message_count, store.info("s").turn_count) == (2, 1)
        self.put(store, "s", [said("user", "u")])
        assert (store.info("s").message_count, store.info("s").turn_count) == (3, 2)
        self.put(store, "s", [NewEvent("undone", {}, follows=6)])
        assert (store.info("s").message_count, store.info("s").turn_count) == (6, 3)
        self.put(store, "s", [NewEvent("rewound", {}, follows=0), said("user", "u")])
        info = store.info("s")
        assert (info.head, info.message_count, info.turn_count) == (11, 1, 1)

    def test_info_sums_usage_under_one_set_of_names(self, tmp_path: Path) -> None:
        """Usage stands beside the message or in it, in any provider's words."""
        store = self.started(tmp_path)
        usage = {"prompt_tokens": 10, "completion_tokens": 3, "odd": 1}
        self.put(store, "s", [said("assistant", "a", usage=usage)])
        inside = {"role": "assistant", "content": "a", "usage": {"input_tokens": 5}}
        self.put(store, "s", [NewEvent("assistant_message", {"message": inside})])
        details = {"prompt_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}
        self.put(store, "s", [said("assistant", "a", usage=details), said("user", "u")])
        self.put(store, "s", [said("assistant", "a", usage=usage)], log="side")
        # What no message carries: a subagent's, or that of a summary.
        self.put(store, "s", [NewEvent("turn_end", {"usage": {"input_tokens": 100}})])
        expected = {"input_tokens": 115, "output_tokens": 5, "odd": 1, "cache_read_tokens": 4}
        assert store.info("s").usage == expected

    def test_info_keeps_what_was_spent_on_abandoned_branches(self, tmp_path: Path) -> None:
        """Tokens and cost are spent, also when the answer is taken back."""
        store = self.started(tmp_path)
        spent = said("assistant", "a", usage={"input_tokens": 5}, cost_usd=0.5)
        self.put(store, "s", [said("user", "u"), spent])
        self.put(store, "s", [NewEvent("rewound", {}, follows=0), said("user", "u"), spent])
        info = store.info("s")
        assert (info.usage, info.cost_usd) == ({"input_tokens": 10}, 1.0)

    def test_info_has_a_cost_only_if_one_was_stated(self, tmp_path: Path) -> None:
        """Unknown is None, free is 0, and stated costs add up."""
        store = self.started(tmp_path)
        self.put(store, "s", [said("assistant", "a", usage={"input_tokens": 5})])
        assert store.info("s").cost_usd is None
        self.put(store, "s", [said("assistant", "a", cost_usd=0)])
        assert store.info("s").cost_usd == 0
        self.put(store, "s", [said("assistant", "a", cost_usd=n) for n in (0.25, 1)])
        assert store.info("s").cost_usd == 1.25

    def test_info_has_the_reason_of_the_end(self, tmp_path: Path) -> None:
        """The last `session_end` says why, until the session goes on."""
        store = self.started(tmp_path)
        assert store.info("s").exit_reason is None
        self.put(store, "s", [said("user", "u"), NewEvent("session_end", {"reason": "end_turn"})])
        assert store.info("s").exit_reason == "end_turn"
        self.put(store, "s", [NewEvent("session_resume", {})])
        assert store.info("s").exit_reason is None
        self.put(store, "s", [NewEvent("session_end", {"reason": "error"}), said("user", "u")])
        assert store.info("s").exit_reason is None

    def test_info_is_as_new_as_the_newest_event(self, tmp_path: Path) -> None:
        """`updated_at` is the latest time in the main log, or that of creation."""
        store = self.open(tmp_path)
        store.create(SessionInfo(id="s", created_at=at(5)))
        for day, expected in ((3, 5), (7, 7), (6, 7), (9, 9)):
            self.put(store, "s", [NewEvent("note", {}, ts=at(day))])
            assert store.info("s").updated_at == at(expected)
        store.update("s", title="x")
        assert store.info("s").updated_at == at(9)

    def test_info_of_a_fork_counts_its_history_and_its_own_spending(self, tmp_path: Path) -> None:
        """Messages are inherited; usage, cost and the end of the parent are not."""
        store = self.started(tmp_path, "parent")
        spent = said("assistant", "a", usage={"input_tokens": 5}, cost_usd=0.5)
        end = NewEvent("session_end", {"reason": "end_turn"})
        self.put(store, "parent", [said("user", "u"), spent, end])
        fork(store, "parent", 3, "child")
        info = store.info("child")
        assert (info.head, info.message_count, info.turn_count) == (3, 2, 1)
        assert (info.usage, info.cost_usd, info.exit_reason) == ({}, None, None)
        self.put(store, "child", [said("user", "u"), spent, spent])
        info = store.info("child")
        assert (info.head, info.message_count, info.turn_count) == (6, 5, 2)
        assert (info.usage, info.cost_usd) == ({"input_tokens": 10}, 1.0)
        assert store.info("parent").usage == {"input_tokens": 5}
        self.put(store, "child", [NewEvent("rewound", {}, follows=1)])
        assert store.info("child").message_count == 1

    def test_info_is_the_same_after_reopening(self, tmp_path: Path) -> None:
        """What is folded does not depend on which process folded it when, nor on purged bodies."""
        store = self.started(tmp_path)
        spent = said("assistant", "a", usage={"input_tokens": 5}, cost_usd=0.5)
        self.put(store, "s", [said("user", "u"), spent, said("user", "v"), spent])
        store.info("s")
        self.put(store, "s", [NewEvent("rewound", {}, follows=2), spent])
        fork(store, "s", 5, "child")
        self.put(store, "child", [spent])
        self.put(store, "s", [NewEvent("session_end", {"reason": "end_turn"})])
        store.sessions()
        store.purge("s", [4])
        before = store.info("s"), store.info("child")
        assert before[0].usage == {"input_tokens": 10}
        assert before[0].message_count == 3
        store = self.reopen(store, tmp_path)
        assert (store.info("s"), store.info("child")) == before

    def test_info_sees_what_another_writer_appended(self, tmp_path: Path) -> None:
        """A record is folded up to the head, whichever process wrote it."""
        store = self.started(tmp_path)
        other = self.second(store, tmp_path)
        assert other.info("s").head == 0
        self.put(store, "s", [said("user", "u")])
        assert other.info("s") == store.info("s")
        assert other.info("s").message_count == 1
        other.update("s", title="t")
        assert store.info("s").title == "t"
