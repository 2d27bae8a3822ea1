"""What sessions are called, everywhere alike; and finding one by what was said in it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from .stage import Stage

LONG = "please rename the parser to reader, and all that depends on it, wherever that may be"
SHORT = "please rename the parser to reader, and all that depends on…"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A session without a title, and a fork of it."""
    made = Stage(tmp_path)
    made.project.mkdir()
    with made.session("work") as session:
        session.append({"role": "user", "content": LONG})
        noted = {"role": "assistant", "model": "claude-opus-4", "stop_reason": "end_turn"}
        session.append({**noted, "content": "Renamed."})
        session.append({"role": "user", "content": "and now the tests"})
        session.append({**noted, "content": "The renaming broke none."})
        said = {"message": {"role": "assistant", "content": "a scout found a parser"}}
        session.subagent("scout").append(said, kind="message")
        session.fork(session_id="second").close()
    return made


def test_a_session_is_called_by_its_first_prompt(stage: Stage) -> None:
    """In lists, in JSON and in exports; a fork says that it is one."""
    titles = {row["id"]: row["title"] for row in stage.run("ls", "--json").json["sessions"]}
    assert titles == {"work": SHORT, "second": f"⑂ {SHORT}"}
    assert stage.run("show", "work", "--json").json["session"]["title"] == SHORT
    assert stage.run("status", "work", "--json").json["session"]["title"] == SHORT
    page = stage.run("export", "second", "--html", "-o", "-").out
    assert f"<h1>⑂ {SHORT}</h1>" in page
    assert stage.run("show", SHORT, "--json").code in (0, 3)


def test_rename_says_the_old_name_and_the_new(stage: Stage) -> None:
    """An empty title gives back the first prompt."""
    assert stage.run("rename", "Reader", "--session", "work").out == (
        f"{SHORT} (work) is now called Reader\n"
    )
    row = stage.run("rename", "Parser", "--session", "work", "--json").json
    assert (row["old_title"], row["title"]) == ("Reader", "Parser")
    assert stage.run("rename", "", "--session", "work").out == (
        f"Parser (work) is now called {SHORT}\n"
    )


def test_search_finds_what_was_said_and_nothing_beside_it(stage: Stage) -> None:
    """Beginnings and phrases; the model and why it stopped are no words."""

    def seqs(*words: str) -> list[int]:
        return [row["seq"] for row in stage.run("search", *words, "--json").json["hits"]]

    assert seqs("opus") == seqs("end_turn") == seqs("renam") == []
    assert sorted(seqs("renam*")) == [2, 3, 5]
    assert seqs('"the renam*"') == [5]


def test_each_hit_has_a_line_to_jump(stage: Stage) -> None:
    """It is a command that works; what a subagent said is found, too."""
    found = stage.run("search", "renaming OR", "--json").json["hits"]
    assert found == []
    ran = stage.run("search", "renaming").lines
    assert ran[1].strip().endswith("The renaming broke none.")
    assert ran[2].strip() in (
        "backtrail show work --turn 2", "backtrail show second --turn 2",
    )  # fmt: skip
    assert "> and now the tests" in stage.run(*shlex.split(ran[2])[1:]).out
    (hit,) = stage.run("search", "scout", "--json").json["hits"]
    assert (hit["subagent"], hit["show"]) == ("scout", "backtrail show work --subagent scout")
    assert "a scout found a parser" in stage.run(*shlex.split(hit["show"])[1:]).out
