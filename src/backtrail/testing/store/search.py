"""Rules of search: what is found, how often, and how it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...errors import InvalidData
from ...events import NewEvent, SessionInfo
from ...stores.base import Store
from .base import ContractBase, note, said
from .forks import fork
from .sessions import at


def found(store: Store, text: str, limit: int = 20) -> list[tuple[str, int]]:
    """The hits as pairs of session and number."""
    return [(hit.session_id, hit.event.seq) for hit in store.search(text, limit=limit)]


class SearchRules(ContractBase):
    """`search`."""

    def library(self, tmp_path: Path, *texts: str) -> Store:
        """A session with one message for each text."""
        store = self.started(tmp_path)
        self.put(store, "s", [said("user", text) for text in texts])
        return store

    def test_search_needs_all_words(self, tmp_path: Path) -> None:
        """Words match whole, in any order and any case."""
        store = self.library(tmp_path, "The quick brown Fox", "quick as a fox", "foxes are QUICK")
        assert sorted(found(store, "fox quick")) == [("s", 1), ("s", 2)]
        assert found(store, "BROWN fox") == [("s", 1)]
        assert sorted(found(store, "quick")) == [("s", 1), ("s", 2), ("s", 3)]
        assert found(store, "fo") == found(store, "wolf") == found(store, "quick wolf") == []

    def test_search_takes_the_beginning_of_a_word(self, tmp_path: Path) -> None:
        """A part that ends in a star; of a phrase, its last word."""
        store = self.library(tmp_path, "rename the parser", "the renaming of a parse tree")
        assert sorted(found(store, "renam*")) == [("s", 1), ("s", 2)]
        assert found(store, '"the pars*"') == [("s", 1)]
        assert found(store, "renami* pars*") == [("s", 2)]
        assert found(store, "am*") == found(store, "ename*") == []
        assert "renaming" in store.search("renami*")[0].snippet

    def test_search_passes_by_what_is_noted_beside_the_words(self, tmp_path: Path) -> None:
        """The model, and why it stopped, are in every answer; in a call they are words."""
        store = self.started(tmp_path)
        call = {"type": "tool_use", "input": {"model": "opus"}}
        noted = {"model": "claude-opus-4", "stop_reason": "end_turn", "role": "assistant"}
        batch = [
            NewEvent("assistant_message", {"message": {**noted, "content": "hello"}}),
            NewEvent("assistant_message", {"message": {**noted, "content": [call]}}),
        ]
        self.put(store, "s", batch)
        assert found(store, "opus") == [("s", 2)]
        assert found(store, "end_turn") == []
        assert found(store, "hello") == [("s", 1)]

    def test_search_takes_phrases(self, tmp_path: Path) -> None:
        """Quoted words match in a row; so do the parts of a word with signs in it."""
        store = self.library(tmp_path, "read the file src/main.py now", "main file: py.src read")
        assert found(store, '"the file"') == [("s", 1)]
        assert found(store, '"file the"') == []
        assert found(store, "src/main.py") == [("s", 1)]
        assert found(store, 'read "main file"') == [("s", 2)]
        assert sorted(found(store, "read file")) == [("s", 1), ("s", 2)]

    def test_search_knows_letters_of_all_languages(self, tmp_path: Path) -> None:
        """Case is folded, accents are kept; digits and `_` belong to words."""
        store = self.library(
            tmp_path, "Ärger in der STRASSE", "my_var = v2", "naïve", "日本語 text"
        )
        assert found(store, "ärger straße") == [("s", 1)]
        assert found(store, "MY_VAR") == [("s", 2)]
        assert found(store, "my") == found(store, "v") == found(store, "naive") == []
        assert found(store, "NAÏVE") == [("s", 3)]
        assert found(store, "日本語") == [("s", 4)]

    @pytest.mark.parametrize(
        "text", ["fox AND", "fox*", "(fox", 'fox"', "NOT fox", "fox OR x", "NEAR(fox)", "a:fox"]
    )
    def test_search_has_no_other_syntax(self, tmp_path: Path, text: str) -> None:
        """Signs and operators of query languages mean nothing, and break nothing."""
        store = self.library(tmp_path, "and not or x near fox a fox")
        assert found(store, text) == [("s", 1)]

    @pytest.mark.parametrize("text", ["", "  ", '""', "-- !?"])
    def test_search_for_nothing_is_refused(self, tmp_path: Path, text: str) -> None:
        """A text without a word is `InvalidData`."""
        store = self.library(tmp_path, "fox")
        with pytest.raises(InvalidData):
            store.search(text)

    def test_search_shows_the_surroundings(self, tmp_path: Path) -> None:
        """A snippet holds the match on one line, and is short; the event is whole."""
        text = "begin " + "far " * 100 + "\nthe\nNeedle here " + "away " * 100
        store = self.library(tmp_path, "nothing", text)
        (hit,) = store.search("needle")
        assert "the Needle here" in hit.snippet
        assert "\n" not in hit.snippet
        assert len(hit.snippet) < 200
        assert hit.event == store.tail("s", 1)[0]

    def test_search_finds_messages_of_every_shape(self, tmp_path: Path) -> None:
        """Blocks, tool calls and results are searched; ids, roles and other kinds are not."""
        store = self.started(tmp_path)
        blocks = [{"type": "text", "text": "alpha"}, {"type": "tool_use", "input": {"q": "beta"}}]
        result = {"role": "tool", "tool_call_id": "hidden", "content": "gamma"}
        batch = [
            NewEvent("assistant_message", {"message": {"role": "assistant", "content": blocks}}),
            NewEvent("tool_result", {"message": result}),
            NewEvent("note", {"message": {"content": "delta"}}),
        ]
        self.put(store, "s", batch)
        self.put(store, "s", [said("user", "delta")], log="transcript")
        assert found(store, "alpha beta") == [("s", 1)]
        assert found(store, "gamma") == [("s", 2)]
        assert found(store, "hidden") == found(store, "tool") == found(store, "delta") == []

    def test_search_gives_the_newest_sessions_first(self, tmp_path: Path) -> None:
        """`limit` keeps the newest, and within a session the latest."""
        store = self.open(tmp_path)
        for id, day in (("a", 2), ("b", 4), ("c", 3)):
            store.create(SessionInfo(id=id, created_at=at(1)))
            for _ in range(2):
                message = {"role": "user", "content": "fox"}
                self.put(store, id, [NewEvent("user_message", {"message": message}, ts=at(day))])
        everywhere = [("b", 2), ("b", 1), ("c", 2), ("c", 1), ("a", 2), ("a", 1)]
        assert found(store, "fox") == everywhere
        assert found(store, "fox", limit=3) == everywhere[:3]
        assert len(found(store, "fox", limit=1)) == 1

    def test_search_sees_what_was_just_appended(self, tmp_path: Path) -> None:
        """An event is found as soon as `append` has returned."""
        store = self.library(tmp_path, "fox")
        for n in range(2, 5):
            assert len(found(store, "fox")) == n - 1
            self.put(store, "s", [said("user", "fox")])
        other = self.second(store, tmp_path)
        self.put(store, "s", [said("user", "owl")])
        assert found(other, "owl") == [("s", 5)]

    def test_search_finds_abandoned_branches(self, tmp_path: Path) -> None:
        """What was rewound is still there to be found."""
        store = self.library(tmp_path, "fox", "owl")
        self.put(store, "s", [note(follows=0), said("user", "hen")])
        assert found(store, "owl") == [("s", 2)]

    def test_search_finds_a_shared_event_once(self, tmp_path: Path) -> None:
        """An event that forks share is one hit, in a session that has it."""
        store = self.library(tmp_path, "fox", "owl")
        fork(store, "s", 1, "b")
        fork(store, "b", 1, "c")
        self.put(store, "c", [said("user", "fox")])
        hits = found(store, "fox")
        assert len(hits) == 2
        assert ("c", 2) in hits
        assert {seq for _, seq in hits} == {1, 2}
        store.delete("b")
        assert len(found(store, "fox")) == 2
        assert found(store, "owl") == [("s", 2)]

    def test_search_finds_what_only_a_fork_still_has(self, tmp_path: Path) -> None:
        """The parent's deletion hides nothing of the fork, nor does its id being used again."""
        store = self.library(tmp_path, "fox", "owl")
        fork(store, "s", 1, "b")
        store.delete("s")
        assert found(store, "fox") == [("b", 1)]
        assert found(store, "owl") == []
        store.create(SessionInfo(id="s"))
        self.put(store, "s", [said("user", "hen")])
        assert found(store, "fox") == [("b", 1)]
        store.delete("b")
        assert found(store, "fox") == []

    def test_search_does_not_find_what_was_purged(self, tmp_path: Path) -> None:
        """A purged body is in no index."""
        store = self.library(tmp_path, "fox one", "fox two")
        assert len(found(store, "fox")) == 2
        store.purge("s", [1])
        assert found(store, "fox") == [("s", 2)]
        assert found(store, "one") == []
        self.put(store, "s", [said("user", "fox three")])
        store.purge("s", [3])
        assert found(store, "three") == []
