"""The picker: what keys do, what a window shows, and that the terminal comes back."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail import Session
from backtrail.cli.output import width
from backtrail.cli.picker import Keys, List, clip

from .acting import BEGIN, BROKEN, Project, empty, work
from .terminal import CTRL_C, DOWN, ENTER, ESCAPE, UP

HOSTILE = "a\x1b[31m\x1b]0;t\x07\u202eb\r\nc\x9b2J\ud800 漢字"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return empty(tmp_path)


def lines(shown: List, columns: int = 40, height: int = 10) -> list[str]:
    return [text for text, _ in shown.lines(columns, height)]


# --- keys --------------------------------------------------------------------------------


def test_keys_are_known_whole_or_in_pieces() -> None:
    """A sequence that comes byte by byte is the same key; unknown ones do nothing."""
    keys = Keys()
    assert list(keys.feed(b"\x1b[A\x1bOBj\x1b[1;5C3\r")) == [
        "up", "down", "down", "unknown", "3", "choose",
    ]  # fmt: skip
    assert [key for byte in b"\x1b[6~" for key in keys.feed(bytes([byte]))] == ["page down"]
    assert list(keys.feed(b"\x1b")) == []
    assert keys.waiting
    assert list(keys.flush()) == ["leave"]
    assert not keys.waiting


@given(st.binary(max_size=60))
def test_no_bytes_confuse_the_keys(data: bytes) -> None:
    """Whatever comes, the keys after it are understood."""
    keys = Keys()
    found = [*keys.feed(data), *keys.flush()]
    assert len(found) <= len(data)
    assert list(keys.feed(b"\r")) == ["choose"]


# --- the list ----------------------------------------------------------------------------


def test_moving_stays_in_the_list() -> None:
    """Up and down end at the ends; pages and jumps too."""
    shown = List("Which?", [f"row {n}" for n in range(1, 21)])
    assert shown.at == 19
    lines(shown, height=7)
    for key, at in (
        ("down", 19), ("up", 18), ("page up", 13), ("first", 0), ("up", 0), ("page down", 5),
        ("last", 19), ("unknown", 19),
    ):  # fmt: skip
        assert shown.press(key) == "go on"
        assert shown.at == at, key
    assert shown.press("choose") == "chosen"
    assert shown.press("leave") == "left"


def test_a_number_jumps_there() -> None:
    """Digits add up as long as there is such a row, and can be rubbed out."""
    shown = List("Which?", [f"row {n}" for n in range(1, 21)])
    for key, at in (("1", 0), ("2", 11), ("9", 8), ("rub out", 8), ("0", 8), ("4", 3), ("up", 2)):
        shown.press(key)
        assert shown.at == at, key


def test_the_marked_row_is_always_seen() -> None:
    """However small the window is and wherever one goes."""
    rows = [f"row {n}" for n in range(1, 31)]
    for height in range(1, 12):
        shown = List("Which?", rows)
        for key in ("up", "page up", "first", "down", "page down", "last"):
            shown.press(key)
            marked = [text for text, is_marked in shown.lines(30, height) if is_marked]
            assert marked == [f"> {shown.at + 1:>2}  row {shown.at + 1}"]
            assert len(lines(shown, 30, height)) <= height


@given(st.text(max_size=80), st.integers(0, 60))
def test_a_line_never_leaves_its_width(text: str, columns: int) -> None:
    """Wide and combining characters counted; nothing in it breaks the line."""
    cut = clip(text + HOSTILE, columns)
    assert width(cut) <= columns
    assert not set(cut) & {"\n", "\r", "\t", "\x1b", "\x07", "\x9b", "\u202e", "\ud800"}


def test_what_is_cut_says_so() -> None:
    """A wide character that does not fit is left out whole."""
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdef", 5) == "abcd…"
    assert clip("漢字漢字", 6) == "漢字…"
    assert clip("a\tb\nc", 9) == "a b c"
    assert clip("abc", 0) == ""


# --- on a terminal -----------------------------------------------------------------------


def test_picking_with_arrows_and_enter(project: Project) -> None:
    """The prompts are listed newest last; the one that is picked goes, and all after it."""
    work(project)
    with project.terminal("rewind") as terminal:
        shown = terminal.wait_for("q: leave").splitlines()
        assert shown[0] == "Go back to before which prompt?  (The work)"
        assert shown[1].endswith("1 file +2              make a file")
        assert shown[2].startswith("> 2")
        assert shown[2].endswith("3 files +2 −4          now break things")
        terminal.press(UP)
        terminal.wait_for("> 1")
        terminal.press(DOWN, UP, ENTER)
        plan = terminal.wait_for("or [n]othing?")
        assert 'rewind to before prompt 1, "make a file":' in plan
        assert "delete  new.py  −2" in plan
        terminal.press("b", ENTER)
        assert terminal.end() == 0
        assert terminal.is_restored()
        assert "take it back with: backtrail undo" in terminal.screen.text
        assert terminal.screen.unknown == []
    assert project.files() == BEGIN
    assert project.said() == []


@pytest.mark.parametrize("key", ["q", ESCAPE, "\x04"])
def test_leaving_changes_nothing(project: Project, key: str) -> None:
    """Neither files nor log; the terminal is as it was."""
    work(project)
    with project.session("work") as session:
        head = session.info().head
    with project.terminal("rewind") as terminal:
        terminal.wait_for("q: leave")
        terminal.press(key)
        assert terminal.end() == 1
        assert terminal.is_restored()
        assert terminal.screen.text == "nothing was changed"
    assert project.files() == BROKEN
    with project.session("work") as session:
        assert session.info().head == head


def test_ctrl_c_gives_the_terminal_back(project: Project) -> None:
    """It ends with 130, and nothing was changed."""
    work(project)
    with project.terminal("rewind") as terminal:
        terminal.wait_for("q: leave")
        terminal.press(CTRL_C)
        assert terminal.end() == 130
        assert terminal.is_restored()
    assert project.files() == BROKEN


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(project: Project, number: signal.Signals) -> None:
    """Whatever ends the program, the shell after it has a usable terminal."""
    work(project)
    with project.terminal("rewind") as terminal:
        terminal.wait_for("q: leave")
        assert not terminal.is_restored()
        terminal.kill(number)
        assert terminal.end() == 128 + number
        assert terminal.is_restored()


def test_the_window_may_change_and_be_tiny(project: Project) -> None:
    """What is seen fits, and the marked row is in it."""
    with Session.create(project.url, "work", cwd=project.root) as session:
        for number in range(1, 16):
            session.append({"role": "user", "content": f"prompt {number} {HOSTILE[:-4]} 漢字" * 9})
    with project.terminal("rewind", columns=60, lines=8) as terminal:
        terminal.wait_for("> 15")
        for columns, height in ((30, 5), (12, 2), (9, 1), (90, 20)):
            terminal.resize(columns, height)
            terminal.wait_for("> 15")
        terminal.press("7")
        shown = terminal.wait_for(">  7").splitlines()
        assert shown[0].startswith("Go back to before which prompt?")
        assert all(width(line) <= 90 for line in shown)
        assert r"\x1b[31m" in shown[7]
        terminal.press("q")
        assert terminal.end() == 1
        assert terminal.screen.unknown == []


def test_a_dumb_terminal_asks_for_a_number(project: Project) -> None:
    """No keys, no codes; anything that is no number asks again, Enter leaves."""
    work(project)
    with project.terminal("rewind", TERM="dumb") as terminal:
        terminal.wait_for("number (Enter: none):")
        terminal.press("77\r")
        terminal.wait_for("none): 77")
        terminal.press("1\r")
        terminal.wait_for("or [n]othing?")
        terminal.press("\r")
        assert terminal.end() == 1
        assert b"\x1b" not in terminal.raw
    assert project.files() == BROKEN
