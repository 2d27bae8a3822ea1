"""The page on JSON says what the verbs print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backtrail import SessionInfo
from backtrail.cli.verbs import modules
from tests.cli.stage import Stage

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
SECTION = re.compile(r"^### (\S+)\n(.*?)(?=^##|\Z)", re.DOTALL | re.MULTILINE)
FIELD = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
SECTIONS = dict(SECTION.findall(PAGE.read_text("utf-8")))


def test_every_verb_is_on_the_page() -> None:
    """In the order of the help."""
    assert list(SECTIONS) == [verb for verb in modules() if verb != "hook"]


RUNS = {
    "status": ["status"],
    "ls": ["ls"],
    "show": ["show"],
    "diff": ["diff"],
    "blame": ["blame", "app.py"],
    "tree": ["tree"],
    "search": ["search", "readme"],
    "stats": ["stats"],
    "checkpoint": ["checkpoint", "x"],
    "relocate": ["relocate"],
    "delete": ["delete", "work", "--yes"],
    "purge": ["purge", "work", "--yes"],
    "gc": ["gc"],
    "verify": ["verify"],
    "doctor": ["doctor"],
    "config": ["config"],
}


@pytest.mark.parametrize("verb", RUNS)
def test_the_fields_are_those_of_the_page(worked: Stage, verb: str) -> None:
    """No more and no fewer."""
    ran = worked.run(*RUNS[verb], "--json")
    assert ran.code == 0, ran.err
    assert set(ran.json) == set(FIELD.findall(SECTIONS[verb]))


def test_the_two_shapes_of_log(worked: Stage) -> None:
    """Events, and changes of paths."""
    first, second = SECTIONS["log"].split("With paths")
    assert set(worked.run("log", "--json").json) == set(FIELD.findall(first))
    assert set(worked.run("log", "--json", "--", "app.py").json) == set(FIELD.findall(second))


@pytest.mark.parametrize("verb", ["rename", "tag", "pin", "archive"])
def test_verbs_that_print_the_session(worked: Stage, verb: str) -> None:
    """With all fields of a record, each on the page."""
    words = {"rename": ["rename", "x"], "tag": ["tag", "x"]}.get(verb, [verb])
    row = worked.run(*words, "--json").json
    more = {"old_title"} if verb == "rename" else set[str]()
    assert set(row) == set(SessionInfo("x").to_dict()) | more
    shapes = PAGE.read_text("utf-8").split("## See")[0]
    assert all(f"`{name}`" in shapes for name in set(row) - more)
