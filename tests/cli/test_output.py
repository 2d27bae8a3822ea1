"""What people and scripts see: cleaned text, tables, JSON, words for numbers and times."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.cli.output import LONGEST, Output, as_json, clean, shortened, width
from backtrail.cli.verbs import Usage
from backtrail.cli.wording import ago, brief, lines, moment, money, plural, short, size

OBEYED = set(map(chr, [*range(0x20), *range(0x7F, 0xA0)])) - {"\n", "\t"} | set(
    "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
)


@given(st.text(st.characters(codec=None)))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    """Whatever the text; and what is left can be written as UTF-8."""
    shown = clean(text)
    assert not set(shown) & OBEYED
    shown.encode("utf-8")
    assert "\n" not in clean(text, newlines=False)


def test_what_was_there_is_shown() -> None:
    """Hidden characters become visible; plain text stays as it is."""
    assert clean("a\x1b[31mb\x9b\u202e\ud800") == "a\\x1b[31mb\\x9b\\u202e\\ud800"
    assert clean("tab\there\nnext → 世界 é 🎉") == "tab\there\nnext → 世界 é 🎉"
    assert clean("dos\r\nline") == "dos\nline"
    assert clean("over\rwritten") == "over\\rwritten"
    assert clean("  two\n lines ", newlines=False) == "two lines"


def test_endless_lines_are_cut_and_say_so() -> None:
    """Each line for itself; the number of characters that are missing is reported."""
    text = shortened("short\n" + "x" * (LONGEST + 1_234_567))
    first, second = text.split("\n")
    assert first == "short"
    assert second == "x" * LONGEST + " … (1,234,567 more characters)"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_json_is_safe_and_says_the_same(value: object) -> None:
    """It decodes to the value, and holds nothing that a terminal obeys."""
    for pretty in (False, True):
        text = as_json(value, pretty=pretty)
        assert json.loads(text) == value
        assert not set(text) & OBEYED


def test_a_table_in_a_pipe_is_aligned_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers to the right, wide characters counted as two columns, no trailing space."""
    rows = [["世界", "1", "first"], ["a", "1,000", "x" * 300 + "\nnext"]]
    Output().table(["name", "count", "what"], rows, right=["count"])
    assert capsys.readouterr().out.splitlines() == [
        "name  count  what",
        "世界      1  first",
        f"a     1,000  {'x' * 300} next",
    ]


def test_width_counts_columns() -> None:
    """Wide characters take two, combining ones none."""
    assert [width(text) for text in ("abc", "世界", "e\u0301", "")] == [3, 4, 1, 0]


NOW = datetime(2026, 4, 26, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ts", "ran"),
    [
        ("2026-04-26T11:59:58.000Z", "just now"),
        ("2026-04-26T11:59:20.000Z", "40 s ago"),
        ("2026-04-26T11:57:00.000Z", "3 min ago"),
        ("2026-04-26T09:00:00.000Z", "3 h ago"),
        ("2026-04-20T12:00:00.000Z", "6 d ago"),
        ("2026-01-01T12:00:00.000Z", "2026-01-01"),
        ("2027-01-01T12:00:00.000Z", "2027-01-01"),
        ("no time", "no time"),
    ],
)
def test_times_are_counted_from_now(ts: str, ran: str) -> None:
    """After a month, and in the future, it is the day."""
    assert ago(ts, NOW) == ran


def test_times_that_people_give() -> None:
    """A day, a moment with or without a zone, or how long ago."""
    assert moment("3d", NOW) == datetime(2026, 4, 23, 12, 0, tzinfo=UTC)
    assert moment("10min", NOW) == datetime(2026, 4, 26, 11, 50, tzinfo=UTC)
    assert moment("2026-04-26T10:00+02:00") == datetime(2026, 4, 26, 8, 0, tzinfo=UTC)
    assert moment("2026-04-26") == datetime(2026, 4, 26).astimezone(UTC)
    for wrong in ("yesterday", "", "99999999999999d", "2026-13-01"):
        with pytest.raises(Usage, match="is not a time"):
            moment(wrong)


def test_numbers_for_people() -> None:
    """One file, two files; bytes with a unit; lines as git counts them; cents where they are."""
    assert [plural(n, "file") for n in (0, 1, 1200)] == ["0 files", "1 file", "1,200 files"]
    assert [size(n) for n in (0, 999, 1200, 12_345_678)] == ["0 B", "999 B", "1.2 kB", "12.3 MB"]
    assert lines(3, 1) == "+3 −1"
    assert [money(n) for n in (None, 0, 0.0042, 1234.5)] == ["–", "$0.00", "$0.0042", "$1,234.50"]
    assert brief("one\n  two " + "x" * 100, 12) == "one two xxx…"


def test_ids_are_shown_by_their_beginning() -> None:
    """Which finds the session; of ours it holds the time. An id that a caller chose is whole."""
    assert short("5f0c1e9a-1234-4abc-8def-0123456789ab") == "5f0c1e9a"
    assert short("019a8b2c-1234-7abc-8def-0123456789ab") == "019a8b2c-1234"
    assert short("my-own-id") == "my-own-id"


PROGRESS = """
import sys, time
from backtrail.cli.output import Output
out = Output()
began = time.monotonic()
with out.progress("reading", total=100) as step:
    while time.monotonic() - began < 1.5:
        step(50)
        time.sleep(0.05)
    out.note("beside it")
with out.busy("collecting"):
    time.sleep(1.5)
"""


def test_progress_is_for_people_only() -> None:
    """On a terminal after a second, and taken away again; in a pipe there is none."""
    piped = subprocess.run([sys.executable, "-c", PROGRESS], capture_output=True, text=True)
    assert (piped.stdout, piped.stderr) == ("", "beside it\n")
    main, side = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", PROGRESS], stderr=side, stdout=side) as running:
        os.close(side)
        seen = b""
        with contextlib.suppress(OSError):
            while more := os.read(main, 4096):
                seen += more
        os.close(main)
    assert running.returncode == 0
    bar = b"reading: [##########          ] 50 of 100"
    assert bar in seen and b"collecting: 1 s" in seen
    # Nothing of it is left before the next line.
    assert bar + b"\r" + b" " * len(bar) + b"\rbeside it\r\n" in seen


@pytest.mark.parametrize("odd", ["\u200b", "\u2060", "\ufeff", "\U000e0041"])
def test_what_takes_no_room_is_shown(odd: str) -> None:
    """It could hide a text; joiners are needed, and stay."""
    assert clean(f"a{odd}b") == f"a{ascii(odd)[1:-1]}b"
    text = as_json({"x": odd})
    assert odd not in text and json.loads(text) == {"x": odd}
    assert clean("\U0001f469\u200d\U0001f4bb \u0646\u200c\u06cc") == (
        "\U0001f469\u200d\U0001f4bb \u0646\u200c\u06cc"
    )
