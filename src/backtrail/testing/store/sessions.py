"""Rules of session records: create, update, keys, lists, the latest, delete."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from ...errors import AlreadyExists, InvalidData, InvalidId, NotFound
from ...events import Json, NewEvent, SessionInfo, check_ts
from ...stores.base import Store
from .base import ContractBase, everything, note, notes, seqs


def at(day: int) -> str:
    """A time on a day of January 2030."""
    return f"2030-01-{day:02d}T00:00:00.000Z"


def ids(infos: list[SessionInfo]) -> list[str]:
    """The ids of records, in order."""
    return [info.id for info in infos]


class SessionRules(ContractBase):
    """`create`, `info`, `update`, `sessions`, `latest`, `delete`."""

    def aged(self, store: Store, id: str, day: int, **fields: Json) -> None:
        """A session whose last event is of a day."""
        store.create(SessionInfo(id=id, created_at=at(1), **fields))
        self.put(store, id, [NewEvent("note", {}, ts=at(day))])

    # --- create --------------------------------------------------------------------------

    def test_create_keeps_every_stored_field(self, tmp_path: Path) -> None:
        """What cannot be folded from the log comes back as it was given."""
        store = self.open(tmp_path)
        cwd = os.path.realpath(tmp_path)
        given = SessionInfo(
            id="s.1_-A",
            key="user:1 / ünï\u2028\n",
            parent_id="elsewhere",
            relation="subagent",
            title="A “title”\nin two lines",
            cwd=cwd,
            root=str(Path(cwd).parent),
            model="m",
            agent_name="a",
            created_at=at(2),
            tags=["one", "two words"],
            metadata={"a": {"b": [1, None, 2**63]}, "": ""},
        )
        store.create(given)
        info = store.info("s.1_-A")
        for name in ("id", "key", "parent_id", "relation", "fork_seq", "title", "cwd", "model"):
            assert getattr(info, name) == getattr(given, name), name
        for name in ("root", "agent_name", "created_at", "tags", "metadata"):
            assert getattr(info, name) == getattr(given, name), name
        assert info.updated_at == at(2)
        assert info.scope == store.scope
        assert store.sessions() == [info]

    def test_create_ignores_what_the_log_says(self, tmp_path: Path) -> None:
        """Head, counts and sums of a new session are those of an empty log."""
        store = self.open(tmp_path)
        store.create(
            SessionInfo("s", head=9, message_count=9, turn_count=9, usage={"x": 1}, cost_usd=1.0)
        )
        info = store.info("s")
        assert (info.head, info.message_count, info.turn_count) == (0, 0, 0)
        assert (info.usage, info.cost_usd, info.exit_reason) == ({}, None, None)
        assert check_ts(info.created_at) == info.updated_at
        assert store.logs("s") == ["messages"]

    def test_create_of_an_existing_id_is_refused(self, tmp_path: Path) -> None:
        """A taken id is `AlreadyExists`, and the session stays as it is."""
        store = self.started(tmp_path, events=2)
        before = store.info("s")
        with pytest.raises(AlreadyExists, match="s"):
            store.create(SessionInfo(id="s", title="other"))
        assert store.info("s") == before
        assert seqs(everything(store, "s")) == [1, 2]

    @pytest.mark.parametrize(
        "bad",
        [
            {"created_at": "yesterday"},
            {"relation": "cousin"},
            {"metadata": {"x": {1, 2}}},
            {"title": "\ud800"},
            {"title": 5},
            {"key": ""},
            {"cwd": 5},
            {"cwd": "a\0b"},
        ],
        ids=str,
    )
    def test_create_refuses_values_that_cannot_be_kept(
        self, tmp_path: Path, bad: dict[str, Json]
    ) -> None:
        """A record that would not come back equal is `InvalidData`; nothing is made."""
        store = self.open(tmp_path)
        with pytest.raises(InvalidData):
            store.create(SessionInfo(id="s", **bad))
        assert store.sessions() == []

    def test_create_shares_nothing_with_the_caller(self, tmp_path: Path) -> None:
        """Changing what was given, or what came back, changes no record."""
        store = self.open(tmp_path)
        metadata: dict[str, Json] = {"list": [1]}
        tags = ["t"]
        store.create(SessionInfo(id="s", metadata=metadata, tags=tags))
        metadata["list"].append(2)
        tags.append("u")
        for info in (store.info("s"), store.update("s", title="x"), store.sessions()[0]):
            assert (info.metadata, info.tags) == ({"list": [1]}, ["t"])
            info.metadata["list"].append(3)
            info.tags.append("v")
            info.usage["x"] = 1
        assert (store.info("s").metadata, store.info("s").tags) == ({"list": [1]}, ["t"])
        assert store.info("s").usage == {}

    # --- keys ----------------------------------------------------------------------------

    def test_key_is_unique(self, tmp_path: Path) -> None:
        """A key belongs to one session, until that is deleted or gives it up."""
        store = self.open(tmp_path)
        store.create(SessionInfo(id="a", key="k"))
        store.create(SessionInfo(id="b"))
        store.create(SessionInfo(id="c"))
        with pytest.raises(AlreadyExists, match="k"):
            store.create(SessionInfo(id="d", key="k"))
        with pytest.raises(AlreadyExists, match="k"):
            store.update("b", key="k", title="not this either")
        assert (store.info("b").key, store.info("b").title) == (None, None)
        assert store.update("a", key="k").key == "k"
        store.update("a", key=None)
        assert store.update("b", key="k").key == "k"
        store.delete("b")
        store.create(SessionInfo(id="d", key="k"))
        assert ids(store.sessions(key="k")) == ["d"]

    def test_key_finds_its_session(self, tmp_path: Path) -> None:
        """Keys are any text, compared as it is."""
        store = self.open(tmp_path)
        for id, key in (("a", "user:1"), ("b", "USER:1"), ("c", "../x"), ("d", None)):
            store.create(SessionInfo(id=id, key=key))
        assert ids(store.sessions(key="user:1")) == ["a"]
        assert ids(store.sessions(key="USER:1")) == ["b"]
        assert ids(store.sessions(key="../x")) == ["c"]
        assert store.sessions(key="user:") == []

    # --- update --------------------------------------------------------------------------

    def test_update_changes_the_named_fields(self, tmp_path: Path) -> None:
        """The rest stays; the new record is returned and kept."""
        store = self.open(tmp_path)
        store.create(SessionInfo(id="s", title="old", model="m", created_at=at(1)))
        info = store.update("s", title="new", agent_name="a", cwd=str(tmp_path))
        assert (info.title, info.model, info.agent_name) == ("new", "m", "a")
        assert info.cwd == os.path.realpath(tmp_path)
        assert info.created_at == at(1)
        assert store.info("s") == info
        assert store.update("s", title=None).title is None
        assert store.update("s") == store.info("s")

    def test_update_merges_metadata(self, tmp_path: Path) -> None:
        """Keys are added or replaced, and removed by None; nested values are replaced."""
        store = self.open(tmp_path)
        store.create(SessionInfo(id="s", metadata={"a": 1, "b": {"x": 1}, "c": 3}))
        info = store.update("s", metadata={"b": {"y": 2}, "c": None, "d": [4], "e": None})
        assert info.metadata == store.info("s").metadata == {"a": 1, "b": {"y": 2}, "d": [4]}

    def test_update_merges_tags(self, tmp_path: Path) -> None:
        """Tags are added once each; a mapping takes away those that are False."""
        store = self.open(tmp_path)
        store.create(SessionInfo(id="s", tags=["a"]))
        assert store.update("s", tags=["b", "a", "b"]).tags == ["a", "b"]
        assert store.update("s", tags={"a": False, "c": True, "x": False}).tags == ["b", "c"]
        assert store.info("s").tags == ["b", "c"]

    @pytest.mark.parametrize(
        "bad",
        [
            {"nonsense": 1},
            {"id": "other"},
            {"scope": "x"},
            {"head": 3},
            {"created_at": at(1)},
            {"parent_id": "x"},
            {"usage": {}},
            {"metadata": 5},
            {"metadata": {"x": float("inf")}},
            {"tags": "word"},
            {"title": 5},
            {"cwd": 5},
            {"root": 5},
        ],
        ids=str,
    )
    def test_update_refuses_what_it_does_not_take(
        self, tmp_path: Path, bad: dict[str, Json]
    ) -> None:
        """Another field or an impossible value is `InvalidData`, and nothing is changed."""
        store = self.started(tmp_path)
        before = store.info("s")
        with pytest.raises(InvalidData):
            store.update("s", **{"model": "changed", **bad})
        assert store.info("s") == before

    def test_update_survives_reopening(self, tmp_path: Path) -> None:
        """Records are as durable as events."""
        store = self.started(tmp_path, events=1)
        before = store.update("s", title="t", key="k", tags=["x"], metadata={"a": 1})
        store = self.reopen(store, tmp_path)
        assert store.info("s") == before
        assert store.sessions() == [before]

    # --- lists ---------------------------------------------------------------------------

    def test_sessions_are_newest_first(self, tmp_path: Path) -> None:
        """The order is that of `updated_at`, with `limit` from the top."""
        store = self.open(tmp_path)
        for id, day in (("a", 3), ("b", 5), ("c", 4)):
            self.aged(store, id, day)
        assert ids(store.sessions()) == ["b", "c", "a"]
        assert ids(store.sessions(limit=2)) == ["b", "c"]
        assert store.sessions(limit=0) == []
        assert ids(store.sessions(limit=99)) == ["b", "c", "a"]
        self.put(store, "a", [NewEvent("note", {}, ts=at(9))])
        assert ids(store.sessions()) == ["a", "b", "c"]
        assert store.sessions() == [store.info(id) for id in "abc"]

    def test_sessions_filters(self, tmp_path: Path) -> None:
        """Filters are combined; `after` and `before` are exclusive."""
        store = self.open(tmp_path)
        self.aged(store, "a", 3, tags=["x", "y"], key="k")
        self.aged(store, "b", 4, tags=["x"], parent_id="a", relation="subagent")
        self.aged(store, "c", 5, tags=["xy"], parent_id="a", relation="fork")
        assert ids(store.sessions(tag="x")) == ["b", "a"]
        assert ids(store.sessions(tag="x", key="k")) == ["a"]
        assert ids(store.sessions(parent="a")) == ["c", "b"]
        assert ids(store.sessions(parent="a", limit=1)) == ["c"]
        assert ids(store.sessions(parent="a", tag="x")) == ["b"]
        assert store.sessions(parent="b") == []
        assert ids(store.sessions(after=at(3))) == ["c", "b"]
        assert ids(store.sessions(before=at(5))) == ["b", "a"]
        assert ids(store.sessions(after=at(3), before=at(5))) == ["b"]

    def test_sessions_takes_times_in_any_form(self, tmp_path: Path) -> None:
        """Bounds are datetimes of any zone, or ISO texts."""
        store = self.open(tmp_path)
        for id, day in (("a", 3), ("b", 4)):
            self.aged(store, id, day)
        east = timezone(timedelta(hours=5))
        for moment in (
            datetime(2030, 1, 3, tzinfo=UTC),
            datetime(2030, 1, 3, 5, tzinfo=east),
            "2030-01-03T05:00:00+05:00",
            "2030-01-03",
        ):
            assert ids(store.sessions(after=moment)) == ["b"]
        with pytest.raises(InvalidData):
            store.sessions(after="some day")

    def test_sessions_compares_resolved_directories(self, tmp_path: Path) -> None:
        """One directory is one directory, however it is spelt, on both sides."""
        store = self.open(tmp_path)
        real, link, other = tmp_path / "real", tmp_path / "link", tmp_path / "other"
        real.mkdir()
        other.mkdir()
        link.symlink_to(real)
        for id, cwd in (("a", f"{link}"), ("b", f"{real}/"), ("c", f"{real}/."), ("d", f"{other}")):
            store.create(SessionInfo(id=id, cwd=cwd))
        for spelt in (real, link, f"{link}/", f"{real}/./", other / ".." / "real"):
            assert sorted(ids(store.sessions(cwd=spelt))) == ["a", "b", "c"]
        here = Path.cwd()
        try:
            os.chdir(real)
            assert sorted(ids(store.sessions(cwd="."))) == ["a", "b", "c"]
            store.create(SessionInfo(id="e", cwd="."))
        finally:
            os.chdir(here)
        assert store.info("e").cwd == os.path.realpath(real)
        assert ids(store.sessions(cwd=tmp_path)) == []

    def test_a_directory_is_named_by_text(self, tmp_path: Path) -> None:
        """Bytes are `InvalidData`, not a directory without sessions."""
        store = self.started(tmp_path)
        wrong: Json = os.fsencode(tmp_path)
        for call in (
            lambda: store.sessions(cwd=wrong),
            lambda: store.latest(wrong),
            lambda: store.memory(wrong),
            lambda: store.create(SessionInfo(id="x", cwd=wrong)),
        ):
            with pytest.raises(InvalidData):
                call()

    def test_latest_is_the_newest_of_a_directory(self, tmp_path: Path) -> None:
        """Forks count, subagents and sessions of other places do not."""
        store = self.open(tmp_path)
        cwd = str(tmp_path)
        self.aged(store, "a", 3, cwd=cwd)
        self.aged(store, "b", 4, cwd=cwd, relation="fork", parent_id="a")
        self.aged(store, "c", 5, cwd=cwd, relation="subagent", parent_id="a")
        self.aged(store, "d", 6, cwd=cwd + "/sub")
        self.aged(store, "e", 7)
        assert store.latest(tmp_path) == store.info("b")
        self.put(store, "a", [NewEvent("note", {}, ts=at(8))])
        assert store.latest(f"{tmp_path}/.").id == "a"

    def test_a_session_belongs_to_its_folder_and_to_its_root(self, tmp_path: Path) -> None:
        """`sessions` and `latest` match either; folders in between are neither."""
        store = self.open(tmp_path)
        root = tmp_path / "repo"
        cwd = root / "pkg" / "src"
        cwd.mkdir(parents=True)
        self.aged(store, "old", 2, cwd=str(root))
        self.aged(store, "deep", 3, cwd=str(cwd), root=f"{root}/.")
        self.aged(store, "other", 4, cwd=str(tmp_path))
        self.aged(store, "sub", 5, cwd=str(cwd), root=str(root), relation="subagent")
        assert store.info("deep").root == os.path.realpath(root)
        assert ids(store.sessions(cwd=root)) == ["sub", "deep", "old"]
        assert ids(store.sessions(cwd=root, limit=1)) == ["sub"]
        assert ids(store.sessions(cwd=cwd)) == ["sub", "deep"]
        assert ids(store.sessions(cwd=root / "pkg")) == []
        assert store.latest(root).id == store.latest(cwd).id == "deep"
        self.put(store, "old", [NewEvent("note", {}, ts=at(8))])
        assert (store.latest(root).id, store.latest(cwd).id) == ("old", "deep")

    def test_a_root_follows_another_folder(self, tmp_path: Path) -> None:
        """Without a root the folder is the root, also after it changes; None takes it away."""
        store = self.open(tmp_path)
        one, two = (os.path.realpath(tmp_path / name) for name in ("one", "two"))
        store.create(SessionInfo(id="s", cwd=one))
        store.create(SessionInfo(id="bare"))
        assert (store.info("s").root, store.info("bare").root) == (one, None)
        assert store.update("s", cwd=two).root == two
        assert store.update("s", root=one).to_dict()["root"] == one
        assert (store.info("s").cwd, store.info("s").root) == (two, one)
        assert store.update("s", title="t").root == one
        assert store.update("s", root=None).root == two
        assert ids(store.sessions(cwd=one)) == []

    def test_latest_of_nothing_is_not_found(self, tmp_path: Path) -> None:
        """The error says where it looked."""
        store = self.open(tmp_path)
        store.create(SessionInfo(id="a", cwd="/elsewhere"))
        store.create(SessionInfo(id="b", cwd=str(tmp_path), relation="subagent"))
        with pytest.raises(NotFound) as caught:
            store.latest(tmp_path)
        assert str(caught.value) == f"no previous session found in {tmp_path}"

    # --- delete --------------------------------------------------------------------------

    def test_delete_removes_a_session_with_its_logs(self, tmp_path: Path) -> None:
        """The id is free again, and the new session begins from nothing."""
        store = self.started(tmp_path, events=3)
        self.put(store, "s", notes(2), log="transcript")
        store.update("s", key="k", tags=["t"], title="old")
        store.create(SessionInfo(id="other"))
        store.delete("s")
        assert ids(store.sessions()) == ["other"]
        with pytest.raises(NotFound):
            store.delete("s")
        store.create(SessionInfo(id="s"))
        info = store.info("s")
        assert (info.key, info.tags, info.title, info.head) == (None, [], None, 0)
        assert store.logs("s") == ["messages"]
        assert everything(store, "s", "transcript") == everything(store, "s") == []
        assert seqs(self.put(store, "s", [note("new", id="e2")])) == [1]

    def test_delete_is_seen_by_another_writer(self, tmp_path: Path) -> None:
        """A writer that still holds the session gets `NotFound`, also when the id is used again."""
        store = self.started(tmp_path, events=2)
        other = self.second(store, tmp_path)
        self.put(other, "s", [note(id="x")])
        store.delete("s")
        with pytest.raises(NotFound):
            self.put(other, "s", [note()])
        store.create(SessionInfo(id="s"))
        assert seqs(self.put(other, "s", [note("new", id="x")])) == [1]
        assert [event.data["n"] for event in store.read("s")] == ["new"]

    def test_delete_of_a_side_log(self, tmp_path: Path) -> None:
        """One log goes, the others stay; it may be written anew."""
        store = self.started(tmp_path, events=1)
        for log in ("transcript", "subagents/a1", "subagents/a2"):
            self.put(store, "s", notes(2), log=log)
        store.delete("s", log="subagents/a1")
        assert store.logs("s") == ["messages", "subagents/a2", "transcript"]
        assert everything(store, "s", "subagents/a1") == []
        assert seqs(everything(store, "s", "subagents/a2")) == [1, 2]
        assert seqs(self.put(store, "s", [note("new", id="e1")], log="subagents/a1")) == [1]
        for log in ("nothing", "subagents"):
            with pytest.raises(NotFound):
                store.delete("s", log=log)

    def test_delete_of_the_main_log_is_refused(self, tmp_path: Path) -> None:
        """The main log goes only with its session."""
        store = self.started(tmp_path, events=1)
        with pytest.raises(InvalidId):
            store.delete("s", log="messages")
        assert seqs(everything(store, "s")) == [1]
