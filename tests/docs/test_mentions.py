"""What pages, help texts and code say in passing is a command that exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from backtrail.cli.program import _chosen, parser
from backtrail.cli.verbs import Usage, command, modules

from .pages import PAGES, blocks, name_of

_INLINE = re.compile(r"(?<!`)`(backtrail(?: [^`]+)?)`(?!`)")
_FENCED = re.compile(r"```.*?```", re.DOTALL)


def mentions(page: Path) -> list[str]:
    """Commands in running text, and in blocks that are not run."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    found = [" ".join(line.split()) for line in _INLINE.findall(text)]
    for block in blocks(page, "text"):
        for line in block.text.splitlines():
            line = line.strip().removeprefix("$ ")
            # What stands behind two spaces says what the command is for.
            found += re.findall(r"^backtrail(?: \S+)*", line)
    return found


def understood(line: str) -> bool:
    """Whether the command line takes it."""
    line = re.split(r" (?:\||<|>|&&|#)", line)[0]
    words = shlex.split(line)[1:]
    verb, rest = _chosen(words)
    if verb in ("--help", "--version"):
        return True
    if verb == "VERB" or "…" in words:
        return True
    if verb not in modules():
        return False
    if command(verb).rest and "--" in rest:
        rest = rest[: rest.index("--")]
    try:
        parser(verb).parse_args(rest)
    except SystemExit as done:
        return not done.code
    except Usage as error:
        # A verb that is only named, as in "`backtrail restore` brings back a file".
        return not rest and "required" in str(error)
    return True


@pytest.mark.parametrize("page", [page for page in PAGES if mentions(page)], ids=name_of)
def test_what_a_page_mentions_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each verb, with these options."""
    assert [line for line in mentions(page) if not understood(line)] == []


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ("backtrail rewind --last", True),
        ("backtrail rewind --first", False),
        ("backtrail rewnd", False),
        ("backtrail restore", True),
        ("backtrail log -- src/app.py", True),
        ("backtrail --version", True),
    ],
)
def test_a_wrong_mention_is_seen(line: str, good: bool) -> None:
    """The check can fail."""
    assert understood(line) is good
