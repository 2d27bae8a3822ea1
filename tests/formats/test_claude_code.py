"""What lines of Claude Code say, and what its edits leave."""

from __future__ import annotations

from typing import Any

import pytest

from backtrail.exchange.claude_code.file_history import after, edit_in, edits_in
from backtrail.exchange.claude_code.format import merged, slug, title_in, what_is
from backtrail.exchange.claude_code.written import Chain

Json = Any

USER = {"type": "user", "message": {"role": "user", "content": "hi"}}
RESULT = [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]
LONG = "/var/tmp/project" + ("/ünïcode 😀 " + "x" * 40) * 5


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (USER, "prompt"),
        ({**USER, "isMeta": True}, "note"),
        ({**USER, "message": {"role": "user", "content": "<bash-stdout>x"}}, "note"),
        ({**USER, "message": {"role": "user", "content": RESULT}}, "result"),
        ({**USER, "isCompactSummary": True}, "summary"),
        ({"type": "assistant", "message": {"role": "assistant", "content": []}}, "assistant"),
        ({"type": "system", "subtype": "compact_boundary"}, "boundary"),
        ({"type": "system", "subtype": "informational"}, "link"),
        ({"type": "attachment"}, "link"),
        ({"type": "progress"}, "link"),
        ({"type": "queue-operation"}, "other"),
        ({"type": "user", "message": "no object"}, "other"),
        ({"type": "user", "message": {"role": "assistant", "content": "x"}}, "other"),
        ({"type": "user", "message": {"role": "user", "content": 3}}, "other"),
        ({}, "other"),
    ],
)
def test_lines_are_kept_apart(line: dict[str, Json], what: str) -> None:
    """By their type, and by what is in them."""
    assert what_is(line) == what


def test_the_lines_of_a_response_make_one_message() -> None:
    """All blocks, and the last word on the rest."""
    one = {"id": "m", "role": "assistant", "content": [{"type": "text", "text": "a"}],
           "stop_reason": None}  # fmt: skip
    two = {**one, "content": [{"type": "text", "text": "b"}], "stop_reason": "end_turn"}
    made = merged([one, two])
    assert [block["text"] for block in made["content"]] == ["a", "b"]
    assert made["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/home/dev/project", "-home-dev-project"),
        ("/a/b.c_d", "-a-b-c-d"),
        ("/tmp/ünï 😀 x", "-tmp--n-----x"),
        # As the program itself named it.
        (LONG, "-var-tmp-project" + ("--n-code----" + "x" * 40) * 3 + "--n-code----" + "x" * 16
         + "-9bzlni"),
    ],
)  # fmt: skip
def test_the_name_of_a_folder_s_transcripts(folder: str, name: str) -> None:
    """Every character that is no ASCII letter or digit is a dash; long names are cut."""
    assert slug(folder) == name


def test_titles_are_one_short_line() -> None:
    """Of those kinds of lines that give one."""
    assert title_in({"type": "custom-title", "customTitle": "a\n  b"}) == (3, "a b")
    assert title_in({"type": "ai-title", "aiTitle": "x" * 900}) == (2, "x" * 200)
    assert title_in({"type": "ai-title", "aiTitle": " "}) is None
    assert title_in({"type": "ai-title"}) is None
    assert title_in({"type": ["ai-title"], "aiTitle": "x"}) is None


EDIT = {"filePath": "/p/a", "oldString": "b", "newString": "c", "originalFile": "abb\n"}


@pytest.mark.parametrize(
    ("result", "before", "then"),
    [
        (EDIT, b"abb\n", b"acb\n"),
        ({**EDIT, "replaceAll": True}, b"abb\n", b"acc\n"),
        (EDIT, b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (EDIT, b"\xef\xbb\xbfab", b"\xef\xbb\xbfac"),
        (EDIT, b"nothing of it", None),
        (EDIT, b"\xff\xfeb", None),
        (EDIT, None, None),
        ({"type": "create", "filePath": "/p/a", "content": "x\n"}, None, b"x\n"),
        ({"type": "update", "filePath": "/p/a", "content": "x\n"}, b"old", b"x\n"),
        ({"filePath": "/p/a", "edits": [{"old_string": "a", "new_string": "b"},
                                        {"old_string": "b", "new_string": "c"}]}, b"a", b"c"),
        ({"notebook_path": "/p/n", "original_file": "1", "updated_file": "2"}, b"1", b"2"),
    ],
)  # fmt: skip
def test_what_an_edit_leaves(result: Json, before: bytes | None, then: bytes | None) -> None:
    """Computed on the bytes that were there; None where that is unknown."""
    edit = edit_in(result)
    assert edit is not None
    assert after(edit, before) == then


@pytest.mark.parametrize("result", [None, "Error: x", {}, {"filePath": 3}, {"filePath": "/a"},
                                    {"type": "text", "file": {"filePath": "/a"}}, []])  # fmt: skip
def test_other_results_are_no_edits(result: Json) -> None:
    """Errors, reads, and what has the wrong types."""
    assert edit_in(result) is None


def test_edits_of_a_subagent_are_in_its_calls() -> None:
    """Its results only say whether it went well."""

    def use(id: str, name: str, **given: Json) -> dict[str, Json]:
        return {"type": "tool_use", "id": id, "name": name, "input": given}

    def done(id: str, text: str, **more: Json) -> dict[str, Json]:
        return {"type": "tool_result", "tool_use_id": id, "content": text, **more}

    calls = [use("1", "Write", file_path="/p/a", content="x"),
             use("2", "Edit", file_path="/p/a", old_string="x", new_string="y"),
             use("3", "Write", file_path="/p/b", content="z"),
             use("4", "Bash", command="rm a")]  # fmt: skip
    results = [done("1", "File created successfully at: /p/a"), done("2", "updated"),
               done("3", "no", is_error=True), done("4", "")]  # fmt: skip
    found = list(edits_in([{"content": calls}, {"content": results}]))
    assert [(edit.tool, edit.path, edit.created) for edit in found] == [
        ("Write", "/p/a", True),
        ("Edit", "/p/a", False),
    ]


# --- writing -----------------------------------------------------------------------------


def test_a_chain_is_one_line_after_the_other() -> None:
    """Also where the old one forked, and all that is referred to has its new name."""
    chain = Chain("s2", "/new", "main")
    old: list[dict[str, Json]] = [
        {"uuid": "u", "parentUuid": None, "type": "user", "sessionId": "s1", "cwd": "/old",
         "message": {"role": "user", "content": "x"}, "odd": [1]},
        {"uuid": "a", "parentUuid": "u", "type": "assistant", "requestRef": "r",
         "message": {"role": "assistant", "id": "m",
                     "content": [{"type": "tool_use", "id": "c", "name": "n", "input": {}}]}},
        {"uuid": "r", "parentUuid": "u", "type": "user", "sourceToolAssistantUUID": "a",
         "message": {"role": "user", "content": RESULT}},
    ]  # fmt: skip
    chain.expect(["u", "a", "r"])
    for line in old:
        chain.copy(line)
    first, second, third = chain.end(None)
    assert [first["parentUuid"], second["parentUuid"]] == [None, first["uuid"]]
    assert third["parentUuid"] == third["sourceToolAssistantUUID"] == second["uuid"]
    assert {first["uuid"], second["uuid"], third["uuid"]}.isdisjoint({"u", "a", "r"})
    assert first["odd"] == [1] and "requestRef" not in second
    assert {line["cwd"] for line in (first, second, third)} == {"/new"}
    assert {line["sessionId"] for line in (first, second, third)} == {"s2"}


def test_an_open_call_is_answered() -> None:
    """Before something else is said, and at the end."""
    use = {"type": "tool_use", "id": "c1", "name": "n", "input": {}}
    ask = {"role": "assistant", "content": [use]}
    chain = Chain("s", "/p", "")
    chain.say(ask, "2026-01-01T00:00:00.000Z")
    chain.say({"role": "user", "content": "stop"}, "2026-01-01T00:00:01.000Z")
    again = {"role": "assistant", "content": [{**use, "id": "c2"}]}
    chain.say(again, "2026-01-01T00:00:02.000Z")
    lines = list(chain.end("A title"))
    said = [line["message"]["content"] for line in lines if line["type"] == "user"]
    answers = [content[0].get("tool_use_id") for content in said if isinstance(content, list)]
    assert answers == ["c1", "c2"]
    assert [line["type"] for line in lines] == [
        "assistant", "user", "user", "assistant", "user", "custom-title",
    ]  # fmt: skip
