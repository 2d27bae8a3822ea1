"""Messages that are refused, and messages that are appended again: whose are the files?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from backtrail import (
    Event,
    InvalidData,
    NewEvent,
    Session,
    StoreFailed,
    open_store,
)
from backtrail.events import Json
from backtrail.stores.buffered import Buffered
from tests.files.test_calls import changed
from tests.files.test_underway import brackets_of, passing, resumed
from tests.talking import assistant, calling, result, user

# --- results that cannot be stored ---------------------------------------------------------

ODD = os.fsdecode(b"caf\xe9")
"""Text that JSON has no word for, as a listing of odd names gives it."""


@contextmanager
def broken(session: Session) -> Iterator[None]:
    """A store that takes no results for a while."""
    take = session.store.append

    def refuse(id: str, events: Sequence[NewEvent], **how: Json) -> list[Event]:
        if any(event.kind in ("tool_result", "action") for event in events):
            raise StoreFailed("the disk is full")
        return take(id, events, **how)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreFailed, match="full"):
        patch.setattr(session.store, "append", refuse)
        yield


@pytest.mark.parametrize("why", ["odd", "full", "full by message", "odd by message"])
@pytest.mark.parametrize("then", ["message", "close"])
def test_a_call_whose_result_cannot_be_stored(
    why: str, then: str, session: Session, project: Path
) -> None:
    """What it did is the session's all the same, and is in the next event."""
    refused = broken(session) if "full" in why else pytest.raises(InvalidData)
    if "message" in why:
        session.append(calling("c1"))
        (project / "by-call").write_text("x\n")
        with refused:
            session.append(result("c1", ODD))
    else:
        with refused, session.tool("bash", id="c1") as call:
            (project / "by-call").write_text("x\n")
            call.result = ODD
    after = passing(session, then)
    (project / "by-person").write_text("y\n")
    after.append(user("next"))
    (reported,) = after.events(kinds=("action",))
    assert (reported.data["call"], changed(after, reported)) == ("c1", ["by-call"])
    assert brackets_of(after) == []
    after.rewind(2)
    assert sorted(os.listdir(project)) == ["README", "by-person", "src"]


def test_a_result_that_is_mended_has_what_its_call_did(session: Session, project: Path) -> None:
    """As if it had been stored at once."""
    for id in ("c1", "c2"):
        session.append(calling(id))
    (project / "by-call").write_text("x\n")
    for _ in range(2):
        with pytest.raises(InvalidData):
            session.append(result("c1", ODD))
    event = session.append(result("c1", "mended"))
    assert changed(session, event) == ["by-call"]
    (project / "later").write_text("x\n")
    event = session.append(result("c2"))
    assert changed(session, event) == ["later"]
    assert not list(session.events(kinds=("action",)))
    assert brackets_of(session) == []


# --- messages that are appended again ------------------------------------------------------


def said_again(session: Session, times: int) -> None:
    """A turn with a call, said with ids as often as a request may be repeated."""
    for _ in range(times):
        session.append(user("go"), id="u1")
        session.append(calling("c1"), id="m1")
        session.append(result("c1"), id="r1")
        session.append(assistant("done"), id="m2")


@pytest.mark.parametrize(
    "where", ["at once", "the turn", "after the turn", "elsewhere", "buffered"]
)
def test_a_message_that_is_appended_again_opens_no_call(
    where: str, session: Session, project: Path
) -> None:
    """What a person does later is not the session's."""
    if where == "at once":
        session.append(calling("c1"), id="m1")
        session.append(calling("c1"), id="m1")
        session.append(result("c1"))
    elif where == "buffered":
        session.close()
        session = Session.resume(Buffered(open_store(session.store.url)), "s")
        said_again(session, 2)
    else:
        said_again(session, 2 if where == "the turn" else 1)
    if where == "elsewhere":
        session.close()
        session = resumed(session)
    if where != "at once":
        session.append(calling("c1"), id="m1")
    (project / "by-person").write_text("y\n")
    session.append(user("next"))
    assert brackets_of(session) == []
    assert [e for e in session.events(kinds=("action",)) if "files" in e.data] == []
    session.rewind(2)
    assert (project / "by-person").exists()
    session.close()


def test_a_call_whose_id_comes_again_is_another(session: Session, project: Path) -> None:
    """Some models count anew. What the first did is recorded, and then it is over."""
    session.append(calling("c1"))
    (project / "first").write_text("x\n")
    session.append(calling("c1"))
    (project / "second").write_text("x\n")
    event = session.append(result("c1"))
    assert changed(session, event) == ["second"]
    assert brackets_of(session) == []
    (project / "by-person").write_text("y\n")
    session.append(user("next"))
    session.rewind(2)
    assert sorted(os.listdir(project)) == ["README", "by-person", "src"]
