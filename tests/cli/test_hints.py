"""Commands that are printed to be typed: they mean what they say, in any shell."""

from __future__ import annotations

import shlex

import pytest

from backtrail import Session
from tests.cli.stage import Stage


@pytest.mark.parametrize("label", ["3", "@-1", "-x", 'a "q" $(touch x)', "good", "two\nlines"])
def test_the_way_back_to_a_checkpoint_leads_there(stage: Stage, label: str) -> None:
    """Whatever its label looks like: where that means something else, the id is named."""
    with stage.session("work") as s:
        for text in ("one", "two", "three", "four"):
            s.append({"role": "user", "content": text})
    point = stage.run("checkpoint", "--json", "--", label).json
    words = shlex.split(point["rewind"])
    assert words[:2] == ["backtrail", "rewind"]
    assert (label in words) == (label in ("good", 'a "q" $(touch x)'))
    done = stage.run(*words[1:], "--yes", "--json").json
    assert (done["anchor"], done["events_dropped"]) == (point["seq"], 0)


def test_a_hint_has_the_options_of_this_run(worked: Stage) -> None:
    """Without them it would be about another session, or another store."""
    Session.create(worked.url, "newer", cwd=worked.project).close()
    other = f"sqlite:///{worked.folder}/other.db"
    given = ("-s", "work", "--store", worked.url)
    ran = worked.run("checkpoint", "a b", *given, BACKTRAIL_STORE=other).err
    assert ran.endswith(f"rewind 'a b' --session work --store {worked.url}\n")
    ran = worked.run("status", "work", "--store", worked.url, BACKTRAIL_STORE=other).out
    assert f"  backtrail diff --session work --store {worked.url}" in ran
    assert f"  backtrail undo --session work --store {worked.url}" in ran
    ran = worked.run(
        "record", "--store", worked.url, "--", "touch", "made", BACKTRAIL_STORE=other
    ).err
    assert f"`backtrail undo --store {worked.url}` takes it back" in ran
    elsewhere = worked.folder / "elsewhere"
    elsewhere.mkdir()
    ran = worked.run("--store", worked.url, cwd=elsewhere, BACKTRAIL_STORE=other).out
    assert f"  backtrail record --store {worked.url} -- COMMAND" in ran


@pytest.mark.parametrize("url", ["memory:", "null:"])
def test_record_runs_nothing_where_nothing_is_kept(stage: Stage, url: str) -> None:
    """There would be no way back."""
    ran = stage.run("record", "--", "touch", "made", BACKTRAIL_STORE=url)
    assert (ran.code, f"`{url}`" in ran.err) == (2, True)
    assert not (stage.project / "made").exists()


def test_record_runs_nothing_with_a_wrong_budget(stage: Stage) -> None:
    """A setting that makes no sense is reported before."""
    ran = stage.run("record", "--", "touch", "made", BACKTRAIL_BUDGET="lots")
    assert (ran.code, "BACKTRAIL_BUDGET" in ran.err) == (1, True)
    assert not (stage.project / "made").exists()
