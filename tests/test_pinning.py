"""The pinned system prompt: nothing loses it, and the newest counts."""

from __future__ import annotations

from backtrail import Session

from .talking import kinds, talk, texts, user


def test_the_system_prompt_is_pinned(url: str) -> None:
    """No rewind, undo, fork or resume loses it, and there is always one."""
    with Session.create(url, "s", system_prompt="P") as s:
        events = talk(s, "one", "two")
        s.rewind(0)
        assert texts(s) == ["P"]
        s.undo()
        assert texts(s) == ["P", "one", "re: one", "two", "re: two"]
        s.rewind(1)
        assert texts(s) == ["P"]
        assert s.info().message_count == 1
        s.undo()
        for _ in range(2):
            s.undo()
        assert texts(s) == ["P"]
        with s.fork(at=1) as fork, s.fork(at=0) as bare, s.fork() as whole:
            assert texts(fork) == texts(bare) == texts(whole) == ["P"]
        with s.fork(at=events[0]) as fork:
            assert texts(fork) == ["P", "one"]


def test_the_system_prompt_survives_resume_at(url: str) -> None:
    """Whatever comes first after it: an append, a rewind or a fork."""
    with Session.create(url, "s", system_prompt="P") as s:
        talk(s, "one")
    with Session.resume(url, "s", at=1) as s:
        assert texts(s) == ["P"]
        with s.fork() as fork:
            assert texts(fork) == ["P"]
        assert s.rewind(0, dry_run=True).message_count == 1
        s.rewind(0)
        assert texts(s) == ["P"]
        s.append(user("two"))
        assert texts(s) == ["P", "two"]
    with Session.resume(url, "s", at=0) as s:
        s.append(user("three"))
        assert texts(s) == ["P", "three"]


def test_a_new_system_prompt_replaces_the_old_one(url: str) -> None:
    """The newest counts, from the next event on; the same one is not written again."""
    with Session.create(url, "s", system_prompt="P") as s:
        talk(s, "one")
    with Session.open(url, "s", system_prompt="Q") as s:
        assert texts(s) == ["Q", "one", "re: one"]
        talk(s, "two")
    with Session.open(url, "s", system_prompt="Q") as s:
        talk(s, "three")
        assert texts(s)[0] == "Q"
        assert texts(s).count("P") == 0
        assert kinds(s).count("system_message") == 2
        s.rewind(before=2)
        assert texts(s) == ["Q"]
