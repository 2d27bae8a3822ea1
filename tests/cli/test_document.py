"""One reader of a session for people: `show` and the pages say the same, and what is so.

The test keeps its own account of what it wrote and said; nothing of the reader is asked for it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backtrail import NewEvent, Session
from backtrail.events import Json
from backtrail.exchange.exporting import export_html, export_markdown
from tests.cli.stage import Stage

CALL = {"type": "tool_use", "name": "bash", "input": {"command": "make"}}


def answer(id: str, text: str) -> Json:
    """A message with one result."""
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": id, "content": text}],
    }


def pages(session: Session) -> list[str]:
    """The session in HTML and in Markdown."""
    return [export_html(session), export_markdown(session)]


def calls_in(page: str) -> int:
    """How many calls of `bash` a page lists."""
    return len(re.findall(r"<summary>(?:<b>)?bash\b", page))


@pytest.mark.parametrize("answered", [True, False], ids=["with a result", "by the hook alone"])
def test_a_call_is_listed_once_however_often_it_was_recorded(
    stage: Stage, *, answered: bool
) -> None:
    """An agent's message, a hook and a result record each of two parallel calls: two calls."""
    with stage.session("s", files=False) as s:
        s.append({"role": "user", "content": "go"})
        s.append({"role": "assistant", "content": [CALL | {"id": id} for id in ("a", "b")]})
        for id in ("a", "b"):
            done = {"name": "bash", "input": CALL["input"], "call": id, "result": f"made {id}"}
            s.store.append("s", [NewEvent("action", done)])
            if answered:
                s.append(answer(id, f"made {id}"))
        for page in pages(s):
            assert calls_in(page) == 2
            assert (page.count("made a"), page.count("made b")) == (1, 1)
            assert "no result" not in page


def test_an_action_without_a_message_is_a_call_of_its_own(stage: Stage) -> None:
    """What a hook recorded of a call that no message has is not lost."""
    with stage.session("s", files=False) as s:
        s.append({"role": "user", "content": "go"})
        done = {"name": "bash", "input": CALL["input"], "call": "x", "result": "made x"}
        s.store.append("s", [NewEvent("action", done)])
        assert [(calls_in(page), page.count("made x")) for page in pages(s)] == [(1, 1)] * 2


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"type": "reasoning", "summary": [], "content": [{"text": "so it is"}]}, "so it is"),
        ({"type": "reasoning", "summary": [{"text": "in short"}]}, "in short"),
        ({"role": "assistant", "content": None, "refusal": "not that"}, "not that"),
        ({"role": "assistant", "content": "yes", "reasoning_content": "hm, yes"}, "hm, yes"),
    ],
    ids=["reasoning", "summary", "refusal", "chat reasoning"],
)
def test_all_of_them_have_what_a_model_said(stage: Stage, message: Json, said: str) -> None:
    """Thoughts and refusals of every format are in `show --full` and on the pages, once."""
    with stage.session("s", files=False) as s:
        s.append({"role": "user", "content": "go"})
        s.append(message)
        found = pages(s)
    found.append(stage.run("show", "s", "--full").out)
    assert [text.count(said) for text in found] == [1, 1, 1]


def test_a_call_that_failed_is_marked_everywhere(stage: Stage) -> None:
    """Also where the event says so, and the message of the provider has no word for it."""
    with stage.session("s", files=False) as s:
        s.append({"role": "user", "content": "go"})
        s.append({"role": "assistant", "content": [CALL | {"id": "a"}]})
        data = {"message": answer("a", "boom"), "error": True}
        s.store.append("s", [NewEvent("tool_result", data)])
        html, markdown = pages(s)
    assert '<span class="failed">failed</span>' in html
    assert "</code> (failed)" in markdown
    (turn,) = stage.run("show", "s", "--turn", "1", "--json").json["turns"]
    assert [step.get("error", False) for step in turn["steps"]] == [False, True]


def test_a_turn_that_was_undone_and_redone_lists_its_files_once(stage: Stage) -> None:
    """What brings a turn back does nothing new; the lines are those of the bytes on disk."""
    path: Path = stage.project / "new.txt"
    with stage.session("s") as s:
        with s.turn("write"), s.tool("bash", {"command": "write"}):
            path.write_bytes(b"one\ntwo\nthree\n")
        s.undo()
        assert not path.exists()
        s.redo()
        lines = path.read_bytes().count(b"\n")
        html, markdown = pages(s)
    assert re.findall(r"<code>new.txt</code> added[^+]*\+(\d+)", html) == [str(lines)]
    assert re.findall(r"<code>new.txt</code> added \+(\d+)", markdown) == [str(lines)]
    turns = stage.run("show", "s", "--json").json["turns"]
    files = [row for turn in turns for step in turn["steps"] for row in step.get("files", ())]
    assert [(row["path"], row["insertions"]) for row in files] == [("new.txt", lines)]
    (last,) = stage.run("status", "s", "--json").json["last_turn"]
    assert (last["path"], last["insertions"]) == ("new.txt", lines)


def test_a_subagent_stands_at_its_call_and_its_own_subagent_within(stage: Stage) -> None:
    """Each subagent is listed once, inside the one that started it."""
    with stage.session("s", files=False) as s:
        s.append({"role": "user", "content": "go"})
        s.append({"role": "assistant", "content": [CALL | {"id": "a"}]})
        # In the order of names the inner one comes first.
        for name, call, inner in (("b", "a", "c"), ("a", "c", None)):
            log = f"subagents/{name}"
            start = NewEvent("start", {"call": call, "description": f"work of {name}"})
            said: Json = {"role": "assistant", "content": [CALL | {"id": inner}]}
            if inner is None:
                said = {"role": "assistant", "content": "deep down"}
            s.store.append("s", [start, NewEvent("message", {"message": said})], log=log)
        s.append(answer("a", "all done"))
        html, markdown = pages(s)
    for page in (html, markdown):
        order = ["Subagent: work of b", "Subagent: work of a", "deep down", "all done"]
        assert [page.count(text) for text in order] == [1] * 4
        places = [page.index(text) for text in order]
        assert places == sorted(places)


def test_what_is_doubtful_or_was_missed_is_on_every_page(stage: Stage) -> None:
    """What `show` calls perhaps not its own, or not captured, the pages do too."""
    with stage.session("s", files=False) as s:
        s.append({"role": "user", "content": "go"})
        files = {"missed": "the disk was full", "uncertain": ["maybe.txt"]}
        s.store.append("s", [NewEvent("action", {"name": "bash", "files": files})])
        found = pages(s)
    for text in [*found, stage.run("show", "s").out]:
        assert "not captured: the disk was full" in text
    for page in found:
        assert "perhaps not its own: maybe.txt" in page.replace("\\", "")
