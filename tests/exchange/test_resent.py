"""Turns of Claude Code that a new process sends to the model again, behind its own start over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Session, open_store
from backtrail.events.messages import text_of
from backtrail.exchange.native_lines import claude_code_lines

from .test_mirroring import Hooked
from .transcripts import Script


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    """A session as hooks make it."""
    with open_store(url) as place:
        s = Session.create(place, key="claude-code:x", agent_name="claude-code", files=False)
        yield s
        s.close()


def _request(script: Script, *hashes: str, base: str | None = None) -> None:
    """What a request sent, as the program notes it: all, or what comes behind an earlier one."""
    given = {"base": base} if base is not None else {}
    script.note("api-request", id=f"r-{len(script.lines)}", keep=0, tail=list(hashes), **given)


@pytest.mark.parametrize("step", [1, 100], ids=["line-by-line", "at-once"])
@pytest.mark.parametrize("is_late", [False, True], ids=["request-first", "prompt-first"])
@pytest.mark.parametrize("times", [1, 2])
def test_turns_that_a_new_process_sends_again(
    session: Session, tmp_path: Path, step: int, is_late: bool, times: int
) -> None:
    """Started over, and resumed: the request lists the old turns before the new ones."""
    hooked = Hooked(session, tmp_path)

    def turn(words: str, number: int, *hashes: str, base: str | None = None) -> None:
        position = {"promptIndex": number, "turnIndex": number}
        if not is_late:
            _request(hooked.script, *hashes, base=base)
            if step == 1:
                hooked.mirror()
        hooked.prompt(words, turnPosition=position)
        if step == 1:
            hooked.mirror()
        if is_late:
            _request(hooked.script, *hashes, base=base)
        hooked.script.says(f"answer {words}")
        if step == 1:
            hooked.mirror()

    def reported() -> list[str]:
        return [text_of(message["content"]) for message in session.messages()]

    turn("one", 1, "h1")
    turn("two", 2, "h1", "a1", "h2", base="r")
    turn("three", 1, "h3")
    sent = ["one", "answer one", "two", "answer two", "three", "answer three"]
    hashes = ["h1", "a1", "h2", "a2", "h3", "a3"]
    if times == 2:
        turn("four", 1, "h4")
        sent += ["four", "answer four"]
        hashes += ["h4", "a4"]
    hooked.mirror()
    before = reported()
    assert before == sent[-2:]
    turn("five", 2, *hashes, "h5")
    hooked.mirror()
    turn("six", 3, *hashes, "h5", "a5", "h6", base="r")
    hooked.mirror()
    assert reported() == [*sent, "five", "answer five", "six", "answer six"]
    assert session.branches() == []
    assert session.info().turn_count == len(sent) // 2 + 2
    history = list(session.history())
    lines = claude_code_lines(session.store, session.info(), history, "native", "/nowhere")
    written = [line for line, _ in lines if "turnPosition" in line]
    assert [line["message"]["content"] for line in written] == reported()[::2]
    numbers = [line["turnPosition"]["turnIndex"] for line in written]
    assert numbers == list(range(1, len(numbers) + 1))
    session.undo()
    session.undo()
    assert reported() == sent
    session.undo()
    assert reported() == before


def test_a_request_of_the_process_that_started_over(session: Session, tmp_path: Path) -> None:
    """It sends nothing from before, also where it sends everything anew."""
    hooked = Hooked(session, tmp_path)
    for number, (words, hashes) in enumerate(
        [("one", ["h1"]), ("three", ["h3"]), ("four", ["h3", "a3", "h4"])]
    ):
        position = {"promptIndex": number or 1, "turnIndex": number or 1}
        _request(hooked.script, *hashes)
        hooked.prompt(words, turnPosition=position)
        hooked.script.says(f"answer {words}")
        hooked.mirror()
    reported = [text_of(message["content"]) for message in session.messages()]
    assert reported == ["three", "answer three", "four", "answer four"]
    assert len(session.branches()) == 1
