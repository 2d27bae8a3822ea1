"""A session goes on in the agent that it came from, as a new session of that agent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backtrail import Session, Store, Unsupported, open_store
from backtrail.exchange.claude_code import sessions as claude_code
from backtrail.exchange.codex import sessions as codex
from backtrail.exchange.foreign import import_session, mirror
from backtrail.exchange.native import write_session

from .test_codex import ID, LINES, META, screen, words
from .transcripts import SAMPLES, Script, call, rollout

Json = Any
FIRST = "aaaaaaaa-0000-4000-8000-000000000001"


@pytest.fixture
def store(disk_url: str) -> Iterator[Store]:
    """A store that stays open through a test."""
    with open_store(disk_url) as place:
        yield place


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The samples, in the config directory of this test."""
    place = tmp_path / "config"
    shutil.copytree(SAMPLES / "claude-code", place)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(place))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return place


def lines_of(path: Path) -> list[dict[str, Json]]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def taken(store: Store, path: Path) -> Session:
    """An imported transcript, open."""
    (found,) = claude_code.find(path)
    result = import_session(store, found)
    return Session.resume(store, result.session_id, files=False)


def sample(store: Store, config: Path) -> Session:
    """The first sample, open."""
    return taken(store, config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl")


def check_chain(lines: list[dict[str, Json]]) -> None:
    """Each line follows the one before; a compaction begins anew."""
    last = None
    for line in lines:
        if "uuid" not in line:
            continue
        mark = line.get("subtype") == "compact_boundary"
        assert line["parentUuid"] == (None if mark else last)
        assert not mark or line["logicalParentUuid"] == last
        last = line["uuid"]


def again(path: Path, tmp_path: Path) -> list[Json]:
    """The conversation in a file, as another store imports it."""
    with open_store(f"sqlite:///{tmp_path}/again-{path.stem}.db") as place:
        agent = codex if path.name.startswith("rollout") else claude_code
        (found,) = agent.find(path)
        result = import_session(place, found)
        # The folder is another one now, so files of the old one are outside.
        assert [note for note in result.problems if "outside" not in note] == []
        with Session.resume(place, result.session_id, files=False) as s:
            return s.messages("responses" if agent is codex else "anthropic", repair=False)


# --- Claude Code -------------------------------------------------------------------------


def test_a_rewound_session_is_written_anew(store: Store, config: Path, tmp_path: Path) -> None:
    """With the history as it stands, new ids, for its folder; the old one is not touched."""
    old = config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl"
    before = old.read_bytes()
    with sample(store, config) as s:
        third = list(s.events(kinds=("user_message",)))[2]
        s.rewind(before=third, scope="conversation")
        made = write_session(s, str(tmp_path / "my app"))
        assert again(made.path, tmp_path) == s.messages("anthropic", repair=False)
    assert old.read_bytes() == before
    assert made.command == f"cd '{tmp_path}/my app' && claude --resume {made.id}"
    assert made.path.parent.parent == config / "projects"
    assert made.path.parent.name.endswith("-my-app")
    assert os.stat(made.path).st_mode & 0o7777 == 0o600
    assert [file.name for file in made.path.parent.iterdir()] == [f"{made.id}.jsonl"]
    lines = lines_of(made.path)
    check_chain(lines)
    uuids = {line.get("uuid") for line in lines_of(old)} - {None}
    assert uuids.isdisjoint(line.get("uuid") for line in lines)
    assert {line["sessionId"] for line in lines} == {made.id}
    assert {line["cwd"] for line in lines} == {str(tmp_path / "my app")}
    # What was shown to the model beside the words comes along.
    assert any(line["type"] == "attachment" for line in lines)
    assert not any(FIRST in json.dumps(line) for line in lines)


def test_the_session_goes_on_in_the_new_file(store: Store, config: Path, tmp_path: Path) -> None:
    """Its key is the new one's; what is in the file is not taken in again, what comes is."""
    with sample(store, config) as s:
        second = list(s.events(kinds=("user_message",)))[1]
        s.rewind(before=second, scope="conversation")
        made = write_session(s)
        info = s.info()
        assert info.key == f"claude-code:{made.id}"
        assert info.metadata["native"]["id"] == made.id
        assert info.metadata["native"]["earlier"] == [FIRST]
        assert mirror(s.store, s.id, made.path, "claude-code") == 0
        last = [line for line in lines_of(made.path) if "uuid" in line][-1]["uuid"]
        more = Script(session=made.id)
        more.user("go on", parent=last)
        more.says("fine")
        with made.path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in more.lines)
        assert mirror(s.store, s.id, made.path, "claude-code") == 2
        assert [m["content"] for m in s.messages()][-2] == "go on"
        assert len(s.messages()) == 6
        # The old transcript is still this session's.
        (found,) = claude_code.find(config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl")
        assert import_session(store, found).session_id == s.id
        # And once more, from lines of both files.
        third = write_session(s)
        assert again(third.path, tmp_path) == s.messages("anthropic", repair=False)


def test_a_fork_has_a_native_session_of_its_own(store: Store, config: Path, tmp_path: Path) -> None:
    """Made of its parent's lines; the parent's stays what it was."""
    with sample(store, config) as s:
        store.update(s.id, title="Stubs")
    with Session.resume(store, s.id) as s, s.fork(at=5, files=False) as fork:
        made = write_session(fork, str(tmp_path))
        assert fork.info().key == f"claude-code:{made.id}"
        assert s.info().key == f"claude-code:{FIRST}"
        assert again(made.path, tmp_path) == fork.messages("anthropic", repair=False)
        assert any(line["type"] == "attachment" for line in lines_of(made.path))
        assert lines_of(made.path)[-1]["customTitle"] == "Stubs (fork)"


def test_a_compaction_comes_along(store: Store, tmp_path: Path) -> None:
    """The mark, the summary, and the names of what was left as it was."""
    script = Script()
    script.user("one")
    kept = script.says("two")
    about = {"trigger": "manual", "preservedMessages": {"anchorUuid": "?", "uuids": [kept]}}
    script.add("system", parent=None, logicalParentUuid=kept, subtype="compact_boundary",
               compactMetadata=about)  # fmt: skip
    summary = script.user("in short", isCompactSummary=True)
    about["preservedMessages"]["anchorUuid"] = summary  # type: ignore[index]
    script.user("three")
    with taken(store, script.write(tmp_path / "config")) as s:
        made = write_session(s, str(tmp_path))
    lines = lines_of(made.path)
    check_chain(lines)
    assert [line["type"] for line in lines] == ["user", "assistant", "system", "user", "user"]
    preserved = lines[2]["compactMetadata"]["preservedMessages"]
    assert preserved == {"anchorUuid": lines[3]["uuid"], "uuids": [lines[1]["uuid"]]}


def test_messages_of_our_own_are_made_into_lines(store: Store, tmp_path: Path) -> None:
    """Calls stay with their results, whatever the format they are in."""
    asked = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    options: Json = {"agent_name": "claude-code", "files": False, "model": "m"}
    with Session.create(store, "ours", cwd=tmp_path, system_prompt="be nice", **options) as s:
        s.append({"role": "user", "content": "hi"})
        s.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        s.append({"role": "tool", "tool_call_id": "c1", "content": "ok"})
        s.append({"role": "assistant", "content": "done"})
        made = write_session(s)
    lines = lines_of(made.path)
    check_chain(lines)
    assert [line["type"] for line in lines] == ["user", "assistant", "user", "assistant"]
    use = lines[1]["message"]["content"][0]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "f", {"a": 1})
    assert lines[2]["message"]["content"][0]["tool_use_id"] == use["id"]
    answer = lines[3]["message"]
    assert answer["model"] == "m" and answer["stop_reason"] == "end_turn" and answer["id"]
    assert answer["content"] == [{"type": "text", "text": "done"}]


def test_a_call_without_a_result_is_answered(store: Store, tmp_path: Path) -> None:
    """Where the history ends in the middle of a turn."""
    script = Script()
    script.user("one")
    script.says(call("c1"), id="m1")
    script.says(call("c2"), id="m1")
    script.result("c1")
    with taken(store, script.write(tmp_path / "config")) as s:
        made = write_session(s, str(tmp_path))
    last = lines_of(made.path)[-1]["message"]["content"]
    assert [block["tool_use_id"] for block in last] == ["c2"]
    assert last[0]["is_error"] is True


def test_what_was_purged_is_not_written(store: Store, tmp_path: Path) -> None:
    """Neither from the event nor from its line."""
    script = Script()
    script.user("the secret word")
    script.says("I see")
    with taken(store, script.write(tmp_path / "config")) as s:
        s.store.purge(s.id, [2])
        s.store.purge(s.id, [1], log="transcript")
        made = write_session(s, str(tmp_path))
    assert "secret" not in made.path.read_text()
    assert "I see" in made.path.read_text()


# --- Codex -------------------------------------------------------------------------------


def test_a_rollout_is_written_anew(store: Store, tmp_path: Path) -> None:
    """Its items as they were, under a new id, in today's folder."""
    home = tmp_path / "codex"
    more = [words("user", "two"), words("assistant", "second")]
    path = rollout(home, [*LINES, *more], ID)
    before = path.read_bytes()
    (found,) = codex.find(path)
    import_session(store, found)
    with Session.resume(store, ID, files=False) as s:
        second = list(s.events(kinds=("user_message",)))[1]
        s.rewind(before=second, scope="conversation")
        made = write_session(s, str(tmp_path))
        assert again(made.path, tmp_path) == s.messages("responses", repair=False)
        assert s.info().key == f"codex:{made.id}"
        assert mirror(s.store, s.id, made.path, "codex") == 0
    assert path.read_bytes() == before
    assert made.command == f"cd {tmp_path} && codex resume {made.id}"
    assert made.path.is_relative_to(home / "sessions")
    assert made.path.name.endswith(f"-{made.id}.jsonl")
    assert os.stat(made.path).st_mode & 0o7777 == 0o600
    first, *rest = lines_of(made.path)
    assert first["type"] == "session_meta"
    assert (first["payload"]["id"], first["payload"]["cwd"]) == (made.id, str(tmp_path))
    # Codex does not resume without it.
    assert first["payload"]["model_provider"] == "openai"
    assert first["payload"]["cli_version"] == "0.147.0"
    reported = [line["payload"] for line in rest if line["type"] == "event_msg"]
    assert [one["message"] for one in reported if "message" in one] == ["list files", "a and b"]
    # What the model was sent of its surroundings is not sent again where this says it was.
    assert [line["payload"]["cwd"] for line in rest if line["type"] == "turn_context"] == [
        str(tmp_path)
    ]


def numbered(**meta: Json) -> list[tuple[str, Json]]:
    """A rollout of two turns as newer versions write it; `rollout` gives no numbers."""
    return [
        ("session_meta", {**META, "session_id": ID, "history_mode": "paginated", **meta}),
        screen("task_started", turn_id="t1"),
        words("user", "<environment_context>\n<cwd>/nowhere</cwd>"),
        ("world_state", {"full": True, "state": {}}),
        ("turn_context", {"cwd": "/nowhere", "model": "gpt-5.5"}),
        words("user", "one"),
        screen("item_completed", thread_id=ID, item={"type": "UserMessage"}),
        ("response_item", {"type": "additional_tools", "role": "developer", "tools": []}),
        words("assistant", "first"),
        screen("task_complete", turn_id="t1"),
        screen("task_started", turn_id="t2"),
        ("turn_context", {"cwd": "/nowhere", "model": "gpt-6-sol"}),
        words("user", "two"),
        words("assistant", "second"),
    ]


@pytest.mark.parametrize("first", [0, 29])
def test_a_numbered_rollout_is_written_anew(store: Store, tmp_path: Path, first: int) -> None:
    """With all that stood between the items, numbered anew; a fork of Codex's has a first number.

    Codex does not resume a rollout of this kind whose lines have no numbers.
    """
    base = {"history_base": {"thread_id": FIRST, "end_ordinal_exclusive": 29}} if first else {}
    lines = numbered(**base)
    path = rollout(tmp_path / "codex", lines, ID)
    old = [{"ordinal": n, **line} for n, line in enumerate(lines_of(path), first)]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    (found,) = codex.find(path)
    import_session(store, found)
    with Session.resume(store, ID, files=False) as s:
        s.rewind(before=list(s.events(kinds=("user_message",)))[1], scope="conversation")
        made = write_session(s, "/nowhere")
        assert mirror(s.store, s.id, made.path, "codex") == 0
        assert again(made.path, tmp_path) == s.messages("responses", repair=False)
    meta, *rest = new = lines_of(made.path)
    # Of the turn that is no more, there is nothing.
    assert [line["payload"].get("turn_id") for line in rest] == [
        line["payload"].get("turn_id") for line in old[1:10]
    ]
    assert [line["ordinal"] for line in new] == list(range(first, first + 10))
    assert (meta["payload"]["id"], meta["payload"]["session_id"]) == (made.id, made.id)
    assert {k: v for k, v in meta["payload"].items() if k == "history_base"} == base
    kept = [json.loads(json.dumps(line).replace(ID, made.id)) for line in old[1:10]]
    assert rest == kept


def test_rewinding_a_rollout_twice_and_back(store: Store, tmp_path: Path) -> None:
    """What stands between two items comes from a file that has both."""
    path = rollout(tmp_path / "codex", numbered(), ID)
    (rolled,) = codex.find(path)
    import_session(store, rolled)
    with Session.resume(store, ID, files=False) as s:
        s.rewind(before=list(s.events(kinds=("user_message",)))[1], scope="conversation")
        made = write_session(s, "/nowhere")
        with made.path.open("a") as file:
            for kind, payload in (screen("task_started", turn_id="t3"), words("user", "three")):
                file.write(json.dumps({"type": kind, "payload": payload}) + "\n")
        mirror(s.store, s.id, made.path, "codex")
        turns = []
        for to in (None, 4, 6):
            if to is not None:
                s.rewind(to, scope="conversation")
            made = write_session(s, "/nowhere")
            assert mirror(s.store, s.id, made.path, "codex") == 0
            found = [line["payload"].get("turn_id") for line in lines_of(made.path)]
            turns.append([turn for turn in found if turn])
            assert again(made.path, tmp_path) == s.messages("responses", repair=False)
    assert turns == [["t1", "t1", "t3"], ["t1", "t1"], ["t1", "t1", "t2"]]


def test_an_open_call_of_a_rollout_is_answered(store: Store, tmp_path: Path) -> None:
    """In the spelling of the call."""
    path = rollout(tmp_path / "codex", LINES[:8], ID)
    (found,) = codex.find(path)
    import_session(store, found)
    with Session.resume(store, ID, files=False) as s:
        made = write_session(s, str(tmp_path))
    last = lines_of(made.path)[-1]["payload"]
    assert (last["type"], last["call_id"]) == ("function_call_output", "c1")


# --- nothing -----------------------------------------------------------------------------


def test_nothing_said_is_nothing_to_resume(store: Store, config: Path, tmp_path: Path) -> None:
    """The agent begins anew, under an id that is known already."""
    with sample(store, config) as s:
        s.rewind(before=2, scope="conversation")
        made = write_session(s, str(tmp_path))
        assert not made.path.exists()
        assert made.command == f"cd {tmp_path} && claude --session-id {made.id}"
        assert s.info().key == f"claude-code:{made.id}"
        script = Script(session=made.id)
        script.user("another beginning")
        made.path.parent.mkdir()
        made.path.write_text(json.dumps(script.lines[0]) + "\n")
        assert mirror(s.store, s.id, made.path, "claude-code") == 1
        assert [m["content"] for m in s.messages()] == ["another beginning"]


def test_nothing_said_to_codex(store: Store, tmp_path: Path) -> None:
    """It has no way to begin under a given id."""
    path = rollout(tmp_path / "codex", [*LINES[:3], words("user", "one")], ID)
    (found,) = codex.find(path)
    import_session(store, found)
    with Session.resume(store, ID, files=False) as s:
        # What is left is what Codex itself says first.
        s.rewind(before=4, scope="conversation")
        made = write_session(s, str(tmp_path))
        assert (made.command, made.path.exists()) == (f"cd {tmp_path} && codex", False)
        assert s.info().key == f"codex:{ID}"


# --- where -------------------------------------------------------------------------------


def test_it_is_written_where_the_old_one_is(
    store: Store, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says now; a place that is named counts before that."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "usual"))
    with sample(store, config) as s:
        assert write_session(s).path.is_relative_to(config)
        assert write_session(s, config_dir=tmp_path / "named").path.is_relative_to(
            tmp_path / "named"
        )


@pytest.mark.parametrize("path", ["/nowhere/projects/x/y.jsonl", "relative/projects/x.jsonl",
                                  "/tmp/\0/projects/x.jsonl", 7, None])  # fmt: skip
def test_a_place_that_is_not_there_is_not_believed(
    store: Store, config: Path, tmp_path: Path, path: Json
) -> None:
    """A session may come from another machine; the usual place is taken."""
    with sample(store, config) as s:
        s.update(metadata={"native": {"agent": "claude-code", "id": FIRST, "path": path}})
        made = write_session(s, str(tmp_path))
    assert made.path.is_relative_to(config)


# --- neither -----------------------------------------------------------------------------


def test_a_session_of_no_known_agent_is_refused(store: Store, tmp_path: Path) -> None:
    """And nothing is written."""
    with (
        Session.create(store, "mine", cwd=tmp_path, files=False) as s,
        pytest.raises(Unsupported, match="Claude Code, Codex or Gemini CLI"),
    ):
        write_session(s, config_dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_rollout_that_was_left_goes_on_as_a_fork(store: Store, tmp_path: Path) -> None:
    """What is said there does not come into the session that left it."""
    home = tmp_path / "codex"
    more = [words("user", "once more"), words("assistant", "the same")]
    path = rollout(home, [*LINES, *more], ID)
    (found,) = codex.find(path)
    import_session(store, found)
    with Session.resume(store, ID, files=False) as s:
        s.rewind(before=list(s.events(kinds=("user_message",)))[-1], scope="conversation")
        write_session(s)
        kept = s.messages(repair=False)
    rollout(home, [*LINES, *more, words("user", "no answer yet")], ID)
    assert import_session(store, found).lines == 0
    rollout(home, [*LINES, *more, words("user", "goes on"), words("assistant", "yes")], ID)
    reported = import_session(store, found, dry_run=True)
    assert (reported.created, len(store.sessions())) == (True, 1)
    done = import_session(store, found)
    assert (done.created, done.events, done.session_id != ID) == (True, 2, True)
    assert import_session(store, found).events == 0
    with Session.resume(store, done.session_id, files=False) as s:
        assert [m["content"][0]["text"] for m in s.messages(repair=False)[-4:]] == [
            *("once more", "the same", "goes on", "yes")
        ]
    with Session.resume(store, ID, files=False) as s:
        assert s.messages(repair=False) == kept
