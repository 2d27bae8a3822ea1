"""The exported text: folded, fenced, and no HTML but our own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Session, Store
from backtrail.exchange.export.markdown import _words
from backtrail.exchange.exporting import export_markdown
from backtrail.files.depot import Depot
from backtrail.stores import open_store

from .sessions import KEY, golden, harmful

GOLDEN = Path(__file__).parent / "golden" / "session.md"
OURS = re.compile(r"</?(details|summary|b|code)>")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


def text_of(store: Store, session_id: str) -> str:
    with Session.resume(store, session_id, files=False) as session:
        return export_markdown(session)


def made(store: Store) -> str:
    depot = Depot.of(store)
    session_id = golden(store, depot)
    depot.close()
    return text_of(store, session_id)


def outside_fences(text: str) -> list[str]:
    """The lines that Markdown reads, without those in fences; every fence must be closed."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        mark = re.match(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})", line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            lines.append(line)
    assert not fence
    return lines


def test_the_golden_text(store: Store) -> None:
    """Byte for byte; set UPDATE_GOLDEN to write it anew, and read the difference."""
    text = made(store)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_what_is_in_it(store: Store) -> None:
    """Prompts and answers stand open, tools are folded, diffs are fenced."""
    text = made(store)
    assert "Fix `app.py`, please." in text
    assert (KEY in text, "[REDACTED:anthropic-key]" in text) == (False, True)
    assert "<summary><b>edit</b>" in text
    assert "```diff\n--- a/app.py" in text
    assert text.count("<details>") == text.count("</details>") >= 8
    # The result holds a fence of three, so it stands in one of four.
    assert "````\n# Found\n```\nx\n```\n````" in text


def test_nothing_in_it_is_obeyed(store: Store) -> None:
    """Outside of fences there is no HTML but ours, and no picture is fetched."""
    text = text_of(store, harmful(store))
    lines = outside_fences(text)
    read = "\n".join(lines)
    # What stands between backticks that pair within a line is text as well.
    bare = OURS.sub("", re.sub(r"(?<!`)(`+)[^`]+\1(?!`)", "", read).replace("\\<", ""))
    assert "<" not in bare
    # The line of a summary is HTML, in which Markdown means nothing.
    assert "![" not in "\n".join(line for line in lines if not line.startswith("<summary>"))
    assert read.count("<details>") == read.count("</details>")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "40,000 more characters left out" in text


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("plain", "plain"),
        ("a < b & c", "a &lt; b &amp; c"),
        ("use `List<int>` or <b>", "use `List<int>` or &lt;b>"),
        ("a ` b\n` <i> `", "a ` b\n` &lt;i> `"),
        ("\\` <i> `", "\\` &lt;i> `"),
        ("# heading", "\\# heading"),
        ("---", "\\---"),
        ("===", "\\==="),
        ("```\n<b>\n```", "```\n<b>\n```"),
        ("```\n<b>", "```\n<b>\n```"),
        ("~~~\n```\n<b>\n~~~\n<i>", "~~~\n```\n<b>\n~~~\n&lt;i>"),
        ("``` `\n<b>", "``` `\n&lt;b>"),
        ("![x](http://h/x.png)", "!\\[x](http://h/x.png)"),
    ],
)
def test_words(words: str, shown: str) -> None:
    """Words stay readable, code stays as it is, all else is shown and not obeyed."""
    assert _words(words) == shown
