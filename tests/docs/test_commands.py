"""Every command in the README and the pages runs, or says why it does not."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ..agent.servers import OpenAIServer
from .pages import PAGES, ROOT, Block, blocks, differences, name_of
from .sandbox import Sandbox

TRIED_ELSEWHERE = {
    "docs/how-to/claude-code.md": "tests/hooks/test_pages.py",
    "docs/how-to/codex.md": "tests/hooks/test_pages.py",
    "docs/how-to/gemini.md": "tests/hooks/test_pages.py",
    "docs/how-to/record.md": "tests/hooks/test_pages.py",
    "docs/how-to/import.md": "tests/exchange/test_import_pages.py",
}
"""Pages that need more of a world than there is here, and the tests that run them."""

WITH_A_SESSION = (
    "docs/how-to/export.md",
    "docs/how-to/secrets.md",
    "docs/how-to/strangers.md",
)
"""Pages about a session that the reader has."""

BEGIN_IN_PYTHON = ("docs/how-to/rewind.md",)
"""Pages whose Python makes what the commands are about; that of others runs by itself."""

ANSWERS = {
    "backtrail hooks install claude-code": [("[y/N]", "y\r")],
    "backtrail rewind": [("which prompt", "\r"), ("[b]oth", "b\r")],
    "backtrail undo": [("[y/N]", "y\r")],
}
"""What a person answers to commands of the README that ask."""

WITH_COMMANDS = [page for page in PAGES if blocks(page, "sh", "console")]
MARKED = [block for page in PAGES for block in blocks(page, "sh", "console") if block.reason]


@pytest.mark.parametrize(
    "page", [page for page in WITH_COMMANDS if name_of(page) not in TRIED_ELSEWHERE], ids=name_of
)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """A reader who types the page, from top to bottom, sees no error and what it shows."""
    languages = ["sh", "console", *(["python"] if name_of(page) in BEGIN_IN_PYTHON else [])]
    found = [block for block in blocks(page, *languages) if block.reason is None]
    with OpenAIServer() as server:
        server.script(*["Yes."] * 20)
        model = {
            "BACKTRAIL_MODEL": "openai:m",
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "not-needed",
        }
        sandbox = Sandbox(tmp_path, model)
        if name_of(page) in WITH_A_SESSION:
            sandbox.work()
        if name_of(page) in BEGIN_IN_PYTHON:
            sandbox.use_store()
        for block in found:
            _try(sandbox, block)


def _try(sandbox: Sandbox, block: Block) -> None:
    if block.language == "python":
        sandbox.python(block.text)
        return
    for step in block.steps:
        plain = shlex.join(shlex.split(step.command, comments=True))
        if plain in ANSWERS:
            sandbox.on_terminal(step.command, ANSWERS[plain])
        else:
            sandbox.run(step)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_every_block_has_commands(page: Path) -> None:
    """A block in `console` without a `$` would never be tried."""
    for block in blocks(page, "sh", "console"):
        assert block.reason or block.steps, block.place


@pytest.mark.parametrize("block", MARKED, ids=lambda block: block.place)
def test_what_is_not_run_says_why(block: Block) -> None:
    """The reason is printed with the results."""
    assert block.reason and len(block.reason) > 10
    pytest.skip(f"{block.place} is not run: {block.reason}")


@pytest.mark.parametrize("name", TRIED_ELSEWHERE)
def test_pages_tried_elsewhere_are_tried_there(name: str) -> None:
    """The page exists, has commands, none of them marked, and the test names it."""
    found = blocks(ROOT / name, "sh", "console")
    assert found
    assert {block.language for block in found if block.reason is None} == {"sh"}
    assert Path(name).name in (ROOT / TRIED_ELSEWHERE[name]).read_text(encoding="utf-8")


def test_output_is_compared() -> None:
    """Another word is a difference; an id, a time and the width of a column are none."""
    shown = ["01a1e256-f9b5  just now  Clean up", "…", "the end"]
    assert (
        differences(shown, "11111111-2222  3 s ago   Clean up\nmore\nand more\nthe end\n") is None
    )
    assert differences(shown, "11111111-2222  3 s ago   Clean up\nthe end\n") is None
    assert differences(shown, "11111111-2222  3 s ago   Clean out\nthe end\n")
    assert differences(shown, "11111111-2222  3 s ago   Clean up\n")
    assert differences(["a … c"], "a b c") is None
    assert differences(["a"], "a\nb")


def test_a_command_that_fails_is_seen(tmp_path: Path) -> None:
    """So the test of a page can fail; what a line sets lasts."""
    sandbox = Sandbox(tmp_path)
    assert sandbox.shell("mkdir sub && cd sub && export NAME=here")[0] == 0
    assert sandbox.shell('echo "$NAME" in "$(basename "$PWD")"') == (0, "here in sub\n")
    assert sandbox.shell("backtrail show nothing")[0] == 3
