"""How a session begins: create, open, resume, latest, and what each leaves behind."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from backtrail import AlreadyExists, Conflict, InvalidId, NotFound, Session, StoreFailed
from backtrail.events import MAIN_LOG, Event
from backtrail.files import depot
from backtrail.stores import KnownIds, open_store
from backtrail.stores.wrapper import Wrapper

from .talking import assistant, calling, kinds, result, talk, texts, user


def test_create_makes_a_session_under_the_given_id(url: str) -> None:
    """The id is the caller's, or a new one."""
    with Session.create(url, "mine") as s, Session.create(url) as other:
        assert s.id == "mine"
        assert len({s.id, other.id}) == 2
        assert s.messages() == []


def test_create_refuses_an_id_in_use_and_names_open(url: str) -> None:
    """A second `create` is an error that says how to go on."""
    with Session.create(url, "mine") as s:
        talk(s, "one")
        with pytest.raises(AlreadyExists, match=r"`mine`.*open"):
            Session.create(url, "mine")
        assert texts(s) == ["one", "re: one"]


def test_create_refuses_an_id_that_is_none(url: str) -> None:
    """An id is checked before anything is written."""
    for id in ("../x", "", ".hidden", "a/b", "x" * 129):
        with pytest.raises(InvalidId):
            Session.create(url, id)
    with open_store(url) as store:
        assert store.sessions() == []


def test_start_holds_the_info_record(url: str, tmp_path: Path) -> None:
    """The log's first event says enough to rebuild the record."""
    options = {"title": "T", "model": "m", "agent_name": "a", "key": "user:1"}
    with Session.create(
        url,
        "s",
        cwd=tmp_path,
        metadata={"n": 1},
        tags=["t"],
        **options,  # type: ignore[arg-type]
    ) as s:
        start = next(s.events())
        assert start.kind == "session_start"
        record = start.data["info"]
        info = s.info().to_dict()
        for name in ("id", "key", "title", "cwd", "model", "agent_name", "tags", "metadata"):
            assert record[name] == info[name]
        assert record["created_at"] == info["created_at"]
        assert info["cwd"] == str(tmp_path.resolve())


def test_nothing_of_trust_is_stored(url: str) -> None:
    """Permissions and agents belong to the process: the log holds no word of them."""

    def agent(turn: object) -> None:
        """An agent."""

    with Session.create(url, "s", agent=agent, on_error="record", lease=None, wait=3.5) as s:
        data = next(s.events()).data
        assert not {"agent", "on_error", "lease", "wait", "files"} & data["info"].keys()
    with Session.open(url, "s") as s:
        assert s.agent is None


def test_open_creates_then_resumes(url: str) -> None:
    """The same call begins a session and goes on with it."""
    with Session.open(url, "s") as s:
        talk(s, "one")
    with Session.open(url, "s") as s:
        talk(s, "two")
        assert texts(s) == ["one", "re: one", "two", "re: two"]


def test_open_finds_a_session_by_key(url: str) -> None:
    """A foreign name is enough to come back."""
    with Session.open(url, key="thread/7") as s:
        id = s.id
        talk(s, "one")
    with Session.open(url, key="thread/7") as s:
        assert s.id == id
        assert texts(s)[0] == "one"
    with Session.open(url, key="thread/8") as other:
        assert other.id != id


def test_open_refuses_a_key_of_another_session(url: str) -> None:
    """An id and a key that mean two sessions are an error, not a guess."""
    with Session.open(url, "a", key="k"), pytest.raises(AlreadyExists, match="key `k`"):
        Session.open(url, "b", key="k")
    with open_store(url) as store:
        assert [info.id for info in store.sessions()] == ["a"]


def test_open_in_many_threads_makes_one_session(url: str) -> None:
    """A race to open one id has no loser: all hold the same session."""
    with open_store(url) as store:
        ready = threading.Barrier(6)
        failed: list[Exception] = []

        def enter(number: int) -> None:
            try:
                ready.wait()
                with Session.open(store, "s") as s:
                    s.append(user(str(number)))
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=enter, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        with Session.open(store, "s") as s:
            assert sorted(texts(s)) == [str(n) for n in range(6)]
            assert kinds(s).count("session_start") == 1


def test_open_in_many_threads_by_key_makes_one_session(url: str) -> None:
    """The same holds for a key, where each thread would make an id of its own."""
    with open_store(url) as store:
        ready = threading.Barrier(6)
        ids: list[str] = []

        def enter() -> None:
            ready.wait()
            with Session.open(store, key="k") as s:
                ids.append(s.id)

        threads = [threading.Thread(target=enter) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 6
        assert len(set(ids)) == 1
        assert len(store.sessions()) == 1


def test_resume_needs_a_session(url: str) -> None:
    """An unknown id is an error and makes nothing."""
    with pytest.raises(NotFound, match="`ghost`"):
        Session.resume(url, "ghost")
    with open_store(url) as store:
        assert store.sessions() == []


def test_latest_is_the_newest_of_its_directory(url: str, tmp_path: Path) -> None:
    """By the last event, in this directory only; forks count."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with open_store(url) as store:
        for id, cwd in (("a", here), ("b", here), ("c", there)):
            Session.create(store, id, cwd=cwd)
        with Session.resume(store, "a") as a:
            a.append(user("newer"), ts="2999-01-01T00:00:00.000Z")
            with Session.latest(store, cwd=f"{here}/../here/") as s:
                assert s.id == "a"
                assert texts(s) == ["newer"]
            fork = a.fork()
            fork.append(user("newest"), ts="2999-01-02T00:00:00.000Z")
            with Session.latest(store, cwd=here) as s:
                assert s.id == fork.id


def test_latest_says_where_it_found_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the directory, the current one by default."""
    open_store(url).close()
    with pytest.raises(NotFound) as caught:
        Session.latest(url, cwd="/nowhere")
    assert str(caught.value) == "no previous session found in /nowhere"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound) as caught:
        Session.latest(url)
    assert str(caught.value) == f"no previous session found in {tmp_path.resolve()}"


# --- going on ----------------------------------------------------------------------------


def test_reopening_writes_nothing_until_the_first_append(url: str) -> None:
    """`session_resume` comes with the first event after reopening, once."""
    with Session.create(url, "s") as s:
        talk(s, "one")
        head = s.info().head
    with Session.open(url, "s") as s:
        s.messages()
        s.checkpoints()
        assert s.info().head == head
    with Session.open(url, "s") as s:
        s.append(user("two"))
        s.append(assistant("re: two"))
        assert kinds(s)[head:] == ["session_resume", "user_message", "assistant_message"]


def test_a_repeated_id_after_reopening_writes_nothing(url: str) -> None:
    """A retry that only repeats does not count as resuming."""
    with Session.create(url, "s") as s:
        first = s.append(user("one"), id="req-1")
    with Session.open(url, "s") as s:
        again = s.append(user("one"), id="req-1")
        assert again == first
        assert s.info().head == first.seq
        s.append(user("two"), id="req-2")
        assert kinds(s)[-2:] == ["session_resume", "user_message"]


def test_resume_at_shows_up_to_the_event_and_goes_on_from_there(url: str) -> None:
    """The view ends at the event; the first append continues from it; nothing is erased."""
    with Session.create(url, "s") as s:
        events = talk(s, "one", "two", "three")
    with Session.resume(url, "s", at=events[1]) as s:
        assert texts(s) == ["one", "re: one"]
        assert s.history()[-1].id == events[1].id
        s.append(user("other"))
        assert texts(s) == ["one", "re: one", "other"]
        assert [branch.message_count for branch in s.branches()] == [4]
    with Session.resume(url, "s") as s:
        assert texts(s) == ["one", "re: one", "other"]


def test_resume_at_alone_changes_nothing(url: str) -> None:
    """Looking at an earlier point is no rewind."""
    with Session.create(url, "s") as s:
        events = talk(s, "one", "two")
    with Session.resume(url, "s", at=events[0].id) as s:
        assert texts(s) == ["one"]
    with Session.resume(url, "s") as s:
        assert texts(s) == ["one", "re: one", "two", "re: two"]


def test_resume_at_an_unknown_point_is_an_error(url: str) -> None:
    """It is never taken for "everything"."""
    with Session.create(url, "s") as s:
        talk(s, "one")
    for at in ("ghost", 99, -1, True):
        with pytest.raises(NotFound):
            Session.resume(url, "s", at=at)


def test_replay_ends_with_the_last_user_message(url: str) -> None:
    """What came after the last question is out of view, so that it is answered again."""
    with Session.create(url, "s", system_prompt="P") as s:
        talk(s, "one")
        s.append(user("two"))
        s.append(calling("c1"))
        s.append(result("c1"))
    with Session.resume(url, "s", replay_last_user_turn=True) as s:
        assert texts(s) == ["P", "one", "re: one", "two"]
        s.append(assistant("again"))
        assert texts(s) == ["P", "one", "re: one", "two", "again"]


def test_replay_without_a_user_message_is_empty(url: str) -> None:
    """There is nothing to answer, so nothing is shown."""
    with Session.create(url, "s") as s:
        s.append(assistant("hello"))
    with Session.resume(url, "s", replay_last_user_turn=True) as s:
        assert s.messages() == []
        s.append(user("one"))
        assert texts(s) == ["one"]


def test_seeding_begins_with_a_history(url: str) -> None:
    """`messages` are the conversation's first."""
    with Session.create(url, "s", messages=[user("one"), assistant("re: one")]) as s:
        assert texts(s) == ["one", "re: one"]
        assert s.info().turn_count == 1


def test_feeding_the_same_history_again_adds_nothing(url: str) -> None:
    """Resume, hand the messages back with the same id, and go on: nothing comes twice."""
    with Session.create(url, "s", system_prompt="P") as s:
        talk(s, "one")
        s.append(user("two"))
        s.append(calling("lost"))
        s.append(user("three"))
    with Session.resume(url, "s") as s:
        head, shown = s.info().head, s.as_map()["messages"]
    for given in (shown, shown[1:], [user("ignored")][:0]):
        with Session.open(url, "s", messages=given) as s:
            assert s.info().head == head
            assert s.messages() == shown


def test_feeding_a_longer_history_adds_what_is_new(url: str) -> None:
    """Only the part beyond what is stored is appended."""
    known = [user("one"), assistant("re: one")]
    with Session.create(url, "s", messages=known[:1]) as s:
        pass
    with Session.open(url, "s", messages=[*known, user("one")]) as s:
        assert texts(s) == ["one", "re: one", "one"]
    with Session.open(url, "s", messages=[*known, user("one"), *known]) as s:
        assert texts(s) == ["one", "re: one", "one", "one", "re: one"]


def test_feeding_another_history_is_a_conflict(url: str) -> None:
    """A session is never mixed with a conversation that is not its own."""
    with Session.create(url, "s", messages=[user("one")]) as s:
        head = s.info().head
    with pytest.raises(Conflict, match="`s`"):
        Session.open(url, "s", messages=[user("other")])
    with Session.open(url, "s") as s:
        assert s.info().head == head


def test_resuming_takes_over_what_the_caller_says(url: str, tmp_path: Path) -> None:
    """Title, model, key and directory follow the caller; metadata and tags are added."""
    with Session.create(url, "s", title="old", metadata={"a": 1}, tags=["x"]):
        pass
    with Session.open(
        url, "s", title="new", key="k", model="m", cwd=tmp_path, metadata={"b": 2}, tags=["y"]
    ) as s:
        info = s.info()
    assert (info.title, info.key, info.model) == ("new", "k", "m")
    assert info.cwd == str(tmp_path.resolve())
    assert info.metadata == {"a": 1, "b": 2}
    assert sorted(info.tags) == ["x", "y"]
    with Session.open(url, "s") as s:
        assert s.info().title == "new"


@pytest.mark.parametrize("scheme", ["sqlite:///", "file:"])
def test_a_store_that_must_be_there_is_not_made(tmp_path: Path, scheme: str) -> None:
    """`create=False` opens what is there, and nothing else."""
    place = tmp_path / "place"
    with pytest.raises(NotFound, match="there is no store at"):
        open_store(f"{scheme}{place}", create=False)
    assert not place.exists()
    open_store(f"{scheme}{place}").close()
    open_store(f"{scheme}{place}", create=False).close()


class Refusing(Wrapper):
    """A store that takes only so many appends."""

    left = 100

    def append(
        self,
        session_id: str,
        events: Any,
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        self.left -= 1
        if self.left < 0:
            raise StoreFailed("no")
        return self.inner.append(session_id, events, log=log, expected=expected, known=known)


@pytest.mark.parametrize("how", ["create", "resume", "fork"])
def test_a_session_that_cannot_be_opened_lets_go_of_all(
    how: str, disk_url: str, tmp_path: Path
) -> None:
    """Of its directory, of its lease, and of what it knows about files."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "file").write_text("text\n")
    said = [user("first"), user("next")]
    with Refusing(open_store(disk_url)) as store:
        with Session.create(store, "s", cwd=work) as session:
            session.append(user("first"))
        store.left = 1 if how == "fork" else 0
        with pytest.raises(StoreFailed):
            if how == "create":
                Session.create(store, "c", cwd=work, lease="session", messages=said)
            elif how == "resume":
                Session.resume(store, "s", lease="session", messages=said)
            else:
                with Session.resume(store, "s", files=False) as session:
                    point = next(session.events()).id
                    store.left = 100
                    session.checkpoint("noted later", at=point)
                    store.left = 1
                    session.fork(at=point, lease="session", messages=said, files=True)
        assert [place for place in depot._open if place[0].startswith(str(tmp_path))] == []
        assert _held(tmp_path) == []


def _held(folder: Path) -> list[str]:
    """The locks of workspaces and leases that this process has open."""
    names = (f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd"))
    found = (os.readlink(name) for name in names if os.path.lexists(name))
    mine = (name.removeprefix(str(folder)) for name in found if name.startswith(str(folder)))
    return sorted(name for name in mine if "/lock-" in name or "lease" in name)


# --- what is not there --------------------------------------------------------------------


def test_going_on_makes_no_store(disk_url: str, tmp_path: Path) -> None:
    """A place spelt wrong is named, and nothing is made there."""
    place = disk_url.rpartition("/")[2]
    with pytest.raises(NotFound, match=place):
        Session.resume(disk_url, "s")
    with pytest.raises(NotFound, match=place):
        Session.latest(disk_url)
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_is_not_there_is_reported_with_the_store(url: str) -> None:
    """Who looks into the wrong one of several stores reads which that was."""
    with open_store(url) as store:
        with pytest.raises(NotFound, match="`absent`") as failed:
            Session.resume(store, "absent")
        assert store.url in str(failed.value)
