"""Forks: a session that begins with another's history and goes its own way."""

from __future__ import annotations

from pathlib import Path

import pytest

from backtrail import AlreadyExists, NewEvent, NotFound, Session, SessionInfo, Unsupported
from backtrail.stores import open_store

from .talking import assistant, kinds, talk, texts


def test_a_fork_has_the_history_and_goes_its_own_way(url: str, tmp_path: Path) -> None:
    """Neither sees what the other says afterwards."""
    with Session.create(url, "s", cwd=tmp_path) as s:
        talk(s, "one")
        with s.fork(session_id="f") as fork:
            talk(s, "two")
            talk(fork, "other")
            assert texts(s) == ["one", "re: one", "two", "re: two"]
            assert texts(fork) == ["one", "re: one", "other", "re: other"]
            info = fork.info()
            assert (info.id, info.parent_id, info.relation) == ("f", "s", "fork")
            assert info.fork_seq == 3
            assert info.cwd == str(tmp_path.resolve())
            assert info.message_count == 4


def test_a_fork_says_so_in_its_title(url: str) -> None:
    """The source's title and that it is a fork, once, unless the caller gives another.

    One of a session without a title has none: what was said first shows which it is.
    """
    with Session.create(url, "s", title="Plan") as s, Session.create(s.store, "bare") as bare:
        assert s.fork().info().title == "Plan (fork)"
        assert s.fork().fork().info().title == "Plan (fork 2)"
        assert bare.fork().info().title is None
        assert s.fork(title="Plan B").info().title == "Plan B"


def test_a_fork_keeps_model_and_metadata(url: str) -> None:
    """With what the caller adds; key and tags stay with the source."""
    with Session.create(
        url, "s", model="m", agent_name="a", key="k", tags=["t"], metadata={"a": 1, "b": 1}
    ) as s:
        info = s.fork(metadata={"b": 2}).info()
        assert (info.model, info.agent_name) == ("m", "a")
        assert info.metadata == {"a": 1, "b": 2}
        assert (info.key, info.tags) == (None, [])
        assert s.fork(model="other").info().model == "other"
        assert s.fork(key="k2").info().key == "k2"


def test_a_fork_counts_only_what_it_spends_itself(url: str) -> None:
    """Usage and cost of the source are not counted twice."""
    with Session.create(url) as s:
        talk(s, "one")
        s.append(assistant("a"), usage={"input_tokens": 100}, cost_usd=1.0)
        s.end("done")
        with s.fork() as fork:
            info = fork.info()
            assert (info.usage, info.cost_usd, info.exit_reason) == ({}, None, None)
            fork.append(assistant("b"), usage={"input_tokens": 7}, cost_usd=0.5)
            assert (fork.info().usage, fork.info().cost_usd) == ({"input_tokens": 7}, 0.5)
        assert s.info().usage == {"input_tokens": 100}


def test_a_fork_begins_at_any_point(url: str) -> None:
    """An event, a label, a number, the very beginning; also one that was left."""
    with Session.create(url) as s:
        events = talk(s, "one", "two")
        s.checkpoint("here", at=events[1])
        s.rewind(events[0])
        talk(s, "three")
        assert texts(s.fork()) == ["one", "three", "re: three"]
        assert texts(s.fork(at=events[2])) == ["one", "re: one", "two"]
        assert texts(s.fork(at="here")) == ["one", "re: one"]
        assert texts(s.fork(at=events[0].seq)) == ["one"]
        assert texts(s.fork(at=0)) == []
        for at in ("ghost", 99):
            with pytest.raises(NotFound):
                s.fork(at=at)


def test_a_fork_of_a_view_ends_where_the_view_ends(url: str) -> None:
    """`resume(at=…)` shows a point; a fork begins there."""
    with Session.create(url, "s") as s:
        events = talk(s, "one", "two")
    with Session.resume(url, "s", at=events[1]) as s, s.fork() as fork:
        assert texts(fork) == ["one", "re: one"]
        assert kinds(fork)[-1] == "session_start"


def test_a_fork_can_go_back_into_its_parents_history(url: str) -> None:
    """Rewind and undo reach beyond the fork point."""
    with Session.create(url) as s:
        events = talk(s, "one", "two")
        with s.fork() as fork:
            fork.rewind(events[0])
            assert texts(fork) == ["one"]
            fork.undo()
            fork.undo()
            assert texts(fork) == ["one", "re: one"]
            assert len(texts(s)) == 4


def test_a_forks_parents_checkpoints_resolve_but_are_hidden(url: str) -> None:
    """Wherever the parent noted them, if what they mark is shared."""
    with Session.create(url) as s:
        events = talk(s, "one")
        early = s.checkpoint("early")
        talk(s, "two")
        late = s.checkpoint("late", at=events[0])
        with s.fork(at=early) as at_point, s.fork(at=events[1].seq + 3) as behind:
            beyond = s.checkpoint("beyond", at=events[1].seq + 2)
            for fork in (at_point, behind):
                assert fork.checkpoints() == []
                for target in (early, early.id, "early"):
                    talk(fork, "three")
                    fork.rewind(target)
                    assert texts(fork) == ["one", "re: one"]
                fork.rewind(late)
                assert texts(fork) == ["one"]
                fork.rewind("early")
            with pytest.raises(NotFound):
                at_point.rewind(beyond)
            own = at_point.checkpoint("early")
            assert at_point.checkpoints() == [own]
            again = at_point.fork()
            again.rewind("late")
            assert texts(again) == ["one"]


def test_a_forks_parents_checkpoints_outlive_the_parent(url: str) -> None:
    """Those noted behind the fork point too, for a fork of a fork as well; never listed."""
    with open_store(url) as store:
        s = Session.create(store, "s")
        events = talk(s, "one")
        point = s.checkpoint("point", metadata={"n": 1})
        talk(s, "two")
        late = s.checkpoint("late", at=events[0])
        fork = s.fork(at=point, session_id="f")
        assert store.checkpoint(point.id).session_id == "s"
        again = fork.fork(session_id="g")
        store.delete("s")
        assert store.checkpoint(point.id).session_id == "f"
        store.delete("f")
        found = store.checkpoint(point.id)
        assert (found.label, found.metadata, found.session_id) == ("point", {"n": 1}, "g")
        for target in (point, point.id, "point", late, "late"):
            talk(again, "three")
            again.rewind(target)
            assert texts(again) == (["one"] if target in (late, "late") else ["one", "re: one"])
        assert again.checkpoints() == []
        own = again.checkpoint("point", at=point.seq, metadata={"n": 1})
        assert again.checkpoints() == [own] and own.id != point.id
        listed = [p.label for p in again.fork(copy_checkpoints=True).checkpoints()]
        assert listed == ["point", "late", "point"]


def test_a_fork_can_take_the_checkpoints_along(url: str) -> None:
    """`copy_checkpoints` lists those whose event is included, also after the parent's end."""
    with open_store(url) as store:
        s = Session.create(store, "s")
        events = talk(s, "one")
        first = s.checkpoint("first")
        talk(s, "two")
        later = s.checkpoint("later", at=events[0])
        s.checkpoint("beyond")
        fork = s.fork(at=first, copy_checkpoints=True)
        store.delete("s")
        assert [point.label for point in fork.checkpoints()] == ["first", "later"]
        assert [point.seq for point in fork.checkpoints()] == [first.seq, later.seq]
        assert "copy_checkpoints" not in fork.fork().info().metadata
        fork.rewind(later)
        assert texts(fork) == ["one"]


def test_a_fork_leaves_the_metadata_to_its_user(url: str) -> None:
    """What it lists is not noted there; a key of that name is the user's, like any other."""
    with open_store(url) as store:
        s = Session.create(store, "s", metadata={"mine": 1})
        talk(s, "one")
        s.checkpoint("first")
        fork = s.fork(copy_checkpoints=True)
        assert fork.info().metadata == {"mine": 1}
        assert [point.label for point in fork.checkpoints()] == ["first"]
        fork.update(metadata={"copy_checkpoints": "of mine"})
        plain = fork.fork()
        assert plain.info().metadata == {"mine": 1, "copy_checkpoints": "of mine"}
        assert plain.checkpoints() == []


def test_a_fork_of_an_earlier_version_lists_what_it_did(url: str) -> None:
    """Then the note was in the metadata, and the fork's first event had none."""
    with open_store(url) as store:
        s = Session.create(store, "s")
        talk(s, "one")
        s.checkpoint("first")
        for name, noted in (("old", {"copy_checkpoints": True}), ("plain", {})):
            info = SessionInfo(
                id=name, parent_id="s", relation="fork", fork_seq=s.info().head, metadata=noted
            )
            store.create(info, base=("s", s.info().head))
            store.append(name, [NewEvent("session_start", {"info": info.to_dict()})])
        with Session.resume(store, "old") as old, Session.resume(store, "plain") as plain:
            assert [point.label for point in old.checkpoints()] == ["first"]
            assert plain.checkpoints() == []


def test_a_parent_of_another_kind_is_no_parent(url: str) -> None:
    """A session made under the id of a deleted parent shares nothing with the fork."""
    with open_store(url) as store:
        s = Session.create(store, "s")
        talk(s, "one")
        fork = s.fork()
        store.delete("s")
        stranger = Session.create(store, "s")
        talk(stranger, "one")
        point = stranger.checkpoint("mine")
        for target in (point, point.id, "mine"):
            with pytest.raises(NotFound):
                fork.rewind(target)
        assert len(texts(fork)) == 2


def test_a_fork_is_a_session_of_its_own(url: str) -> None:
    """An id in use is refused; deleting one leaves the other whole."""
    with open_store(url) as store:
        s = Session.create(store, "s")
        talk(s, "one")
        fork = s.fork(session_id="f")
        with pytest.raises(AlreadyExists):
            s.fork(session_id="f")
        store.delete("s")
        assert texts(fork) == ["one", "re: one"]
        talk(fork, "two")
        store.delete("f")
        assert store.sessions() == []


def test_files_cannot_be_forked_in_this_version(url: str) -> None:
    """`into` is refused before anything is made."""
    with Session.create(url) as s:
        with pytest.raises(Unsupported):
            s.fork(into="elsewhere")
        assert len(s.store.sessions()) == 1
