"""Claude Code's transcripts become sessions."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail import NotFound, Redacting, Session, Store, StoreFailed, open_store
from backtrail.exchange import intake
from backtrail.exchange.claude_code import format as cc
from backtrail.exchange.claude_code import sessions as claude_code
from backtrail.exchange.claude_code.format import slug
from backtrail.exchange.foreign import import_session
from backtrail.exchange.foreign_record import Imported
from backtrail.exchange.native import write_session
from backtrail.exchange.transcript import all_lines, append_entries

from .transcripts import SAMPLES, Script, call, encoded

Json = Any
FIRST = "aaaaaaaa-0000-4000-8000-000000000001"
SECOND = "aaaaaaaa-0000-4000-8000-000000000002"
SUBAGENT = "aa54200a796f35a5b"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store that stays open through a test."""
    with open_store(url) as place:
        yield place


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The samples as a config directory whose project is a folder of this test."""
    place = tmp_path / "config"
    shutil.copytree(SAMPLES / "claude-code", place)
    (tmp_path / "project").mkdir()
    for file in place.rglob("*.jsonl"):
        text = file.read_text().replace("/home/dev/project", str(tmp_path / "project"))
        file.write_text(text)
    for file in (place / "file-history").rglob("*@v*"):
        file.chmod(0o644)
    return place


def imported(store: Store, path: Path) -> Imported:
    """One session, imported."""
    (found,) = claude_code.find(path)
    return import_session(store, found)


def said(session: Session) -> list[str]:
    """The words of the history, with a letter for the speaker."""
    words = []
    for message in session.messages(repair=False):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            text = block.get("text") or block.get("name") or f"={block.get('tool_use_id')}"
            words.append(f"{message['role'][0]}:{text}")
    return words


def snapshot(store: Store) -> Json:
    """All that a store holds."""
    return [
        (info.to_dict(), [[e.to_dict() for e in store.read(info.id, log=log)] for log in
                          store.logs(info.id)])
        for info in store.sessions()
    ]  # fmt: skip


# --- the samples -------------------------------------------------------------------------


def test_a_sample_becomes_a_session(store: Store, config: Path) -> None:
    """With its record, its messages and the times of the source."""
    results = [import_session(store, one) for one in claude_code.find(config)]
    assert [one.error for one in results] == [None, None]
    info = store.info(FIRST)
    assert info.key == f"claude-code:{FIRST}"
    assert info.agent_name == "claude-code"
    assert info.model == "claude-opus-5-5"
    assert info.cwd is not None and info.cwd.endswith("/project")
    assert info.created_at == "2026-11-15T18:15:32.349Z"
    assert info.updated_at == "2026-11-15T18:15:34.875Z"
    assert (info.turn_count, info.message_count) == (4, 22)
    # Eleven responses; the lines of one response give the same usage again and again.
    assert info.usage["output_tokens"] == 200
    native = info.metadata["native"]
    assert native["agent"] == "claude-code" and native["id"] == FIRST
    assert Path(native["path"]).is_file()
    assert info.metadata["git_branch"] == "HEAD"


def test_parallel_calls_are_one_message_with_all_results_behind_it(
    store: Store, config: Path
) -> None:
    """The lines of a response are merged, and no result is lost where the tree forks."""
    imported(store, config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl")
    with Session.resume(store, FIRST, files=False) as s:
        messages = s.messages("anthropic")
        both = [m for m in messages if m["role"] == "assistant" and len(m["content"]) == 2]
        assert [[b["name"] for b in m["content"]] for m in both] == [["Read"] * 2, ["Edit"] * 2]
        assert s.pending() == []
        assert s.branches() == []


def test_importing_twice_changes_nothing(store: Store, config: Path) -> None:
    """Not an event, not a record, not a time."""
    for one in claude_code.find(config):
        import_session(store, one)
    before = snapshot(store)
    for one in claude_code.find(config):
        again = import_session(store, one)
        assert (again.created, again.events, again.lines) == (False, 0, 0)
    assert snapshot(store) == before


def test_every_line_is_kept_as_it_was(store: Store, config: Path) -> None:
    """Also those of a kind that is unknown here."""
    path = config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl"
    with path.open("ab") as file:
        file.write(b'{"type":"of-tomorrow",  "x": [1.50, 1e3]}\n')
        file.write(b'{"type":"latin","x":"\xe9"}\n')
        file.write(b"no JSON at all\n")
    result = imported(store, path)
    lines = [kept.line for kept in all_lines(store, FIRST)]
    assert b"".join(line.raw + b"\n" for line in lines) == path.read_bytes()
    assert len(result.problems) == 2
    assert all("is not JSON" in problem for problem in result.problems)


def test_a_subagent_has_a_log_of_its_own(store: Store, config: Path) -> None:
    """As our own have: how it began, what was said, what came of it."""
    imported(store, config / "projects" / "-home-dev-project" / f"{SECOND}.jsonl")
    assert f"subagents/{SUBAGENT}" in store.logs(SECOND)
    events = list(store.read(SECOND, log=f"subagents/{SUBAGENT}"))
    assert [event.kind for event in events] == ["start", *["message"] * 4, "result"]
    assert events[0].data["description"] == "sub"
    assert events[0].data["prompt"].startswith("subtask")
    assert events[-1].data["text"] == "sub finished"
    kept = list(all_lines(store, SECOND, SUBAGENT))
    assert len(kept) == 19


# --- files -------------------------------------------------------------------------------


@pytest.fixture
def rewindable(disk_url: str, config: Path) -> Iterator[tuple[Session, Path]]:
    """The first sample, with its project as the session left it."""
    project = config.parent / "project"
    (project / "a.txt").write_text("a v4\n")
    (project / "pre.txt").write_text("pre v1\n")
    (project / "mine.txt").write_text("not of this session\n")
    with open_store(disk_url) as place:
        imported(place, config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl")
        with Session.resume(place, FIRST) as s:
            yield s, project


def contents(folder: Path) -> dict[str, str]:
    """The files of a folder."""
    return {file.name: file.read_text() for file in sorted(folder.iterdir())}


def test_an_imported_session_can_be_rewound_prompt_by_prompt(
    rewindable: tuple[Session, Path],
) -> None:
    """Files go back to what they were when the prompt came in; others' stay."""
    s, project = rewindable
    mine = {"mine.txt": "not of this session\n"}
    states = [
        {"pre.txt": "pre v0\n"},
        {"pre.txt": "pre v0\n", "a.txt": "a v1\n"},
        {"pre.txt": "pre v1\n", "a.txt": "a v2\n"},
        {"pre.txt": "pre v1\n", "a.txt": "a v2\nby-bash\n"},
    ]
    prompts = list(s.events(kinds=("user_message",)))
    for prompt, state in zip(reversed(prompts), reversed(states), strict=True):
        done = s.rewind(before=prompt, scope="files")
        assert done.conflicts == []
        assert contents(project) == state | mine
        s.undo()
        assert contents(project)["a.txt"] == "a v4\n"


def test_a_shell_command_is_distinguished(rewindable: tuple[Session, Path]) -> None:
    """What no edit tool did is the session's too, but uncertain."""
    s, _ = rewindable
    by = [
        (call.by, [file.path for file in call.files]) for turn in s.changes() for call in turn.calls
    ]
    assert by == [
        ("Write", ["a.txt"]),
        ("Edit", ["pre.txt"]),
        ("Edit", ["a.txt"]),
        ("outside edit tools", ["a.txt"]),
        ("Write", ["a.txt"]),
    ]
    third = list(s.events(kinds=("user_message",)))[2]
    (change,) = s.rewind(before=third, dry_run=True).files
    assert "perhaps" in change.reason


def test_a_later_edit_of_a_person_is_a_conflict(rewindable: tuple[Session, Path]) -> None:
    """It stays, and the rest goes back."""
    s, project = rewindable
    (project / "a.txt").write_text("a person was here\n")
    first = next(s.events(kinds=("user_message",)))
    done = s.rewind(before=first, scope="files")
    assert [file.path for file in done.conflicts] == ["a.txt"]
    assert contents(project)["a.txt"] == "a person was here\n"
    assert contents(project)["pre.txt"] == "pre v0\n"


def test_exact_mode_does_not_take_a_part_for_the_whole(rewindable: tuple[Session, Path]) -> None:
    """The state of all files is not known, so nothing may be made equal to it."""
    s, project = rewindable
    before = contents(project)
    second = list(s.events(kinds=("user_message",)))[1]
    with pytest.raises(NotFound):
        s.rewind(before=second, scope="files", mode="exact")
    assert contents(project) == before


def test_going_on_after_an_import_notes_nothing_false(rewindable: tuple[Session, Path]) -> None:
    """The first scan is no change by others."""
    s, _ = rewindable
    s.append({"role": "user", "content": "and now?"})
    assert list(s.events(kinds=("files_changed",))) == []


def test_a_backup_that_is_gone_is_reported(disk_url: str, config: Path) -> None:
    """What the results of tools say is used instead."""
    project = config.parent / "project"
    (project / "a.txt").write_text("a v4\n")
    (project / "pre.txt").write_text("pre v1\n")
    shutil.rmtree(config / "file-history")
    with open_store(disk_url) as place:
        result = imported(place, config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl")
        assert any("is gone" in problem for problem in result.problems)
        with Session.resume(place, FIRST) as s:
            second = list(s.events(kinds=("user_message",)))[1]
            s.rewind(before=second, scope="files", paths=["pre.txt"])
            assert contents(project)["pre.txt"] == "pre v0\n"


def test_edits_of_a_subagent_can_be_rewound(disk_url: str, config: Path) -> None:
    """Claude Code itself does not track them."""
    project = config.parent / "project"
    (project / "sub.txt").write_text("by sub\n")
    with open_store(disk_url) as place:
        imported(place, config / "projects" / "-home-dev-project" / f"{SECOND}.jsonl")
        with Session.resume(place, SECOND) as s:
            (turn,) = s.changes()
            assert [(c.by, c.files[0].path) for c in turn.calls] == [("Agent", "sub.txt")]
            s.rewind(before=turn.seq, scope="files")
            assert contents(project) == {}


def test_nothing_outside_the_folder_is_touched(disk_url: str, tmp_path: Path) -> None:
    """Names that lead out of it, or to git's own files, are reported and left alone."""
    project, config = tmp_path / "project", tmp_path / "config"
    project.mkdir()
    (tmp_path / "outside.txt").write_text("safe\n")
    script = Script(str(project))
    script.user("go")
    for number, name in enumerate(
        ("../outside.txt", str(tmp_path / "outside.txt"), ".git/config", "a\0b", "")
    ):
        script.says(call(f"c{number}", "Write"))
        reported = {"type": "update", "filePath": name, "content": "new\n", "originalFile": "old\n"}
        script.result(f"c{number}", toolUseResult=reported)
        backup = {"backupFileName": "../../../outside.txt", "version": 1}
        script.note("file-history-delta", trackingPath=name, backup=backup)
    with open_store(disk_url) as place:
        result = imported(place, script.write(config))
        assert "cannot be rewound" in result.problems[0]
        with Session.resume(place, script.session) as s:
            assert s.rewind(before=2, scope="files").files == []
    assert (tmp_path / "outside.txt").read_text() == "safe\n"


def test_line_ends_and_modes_survive(disk_url: str, tmp_path: Path) -> None:
    """The transcript has lost them; the backup has not."""
    project, config = tmp_path / "project", tmp_path / "config"
    (project / "bin").mkdir(parents=True)
    file = project / "bin" / "run"
    script = Script(str(project))
    backups = config / "file-history" / script.session
    backups.mkdir(parents=True)
    (backups / "0123456789abcdef@v1").write_bytes(b"one\r\ntwo\r\n")
    (backups / "0123456789abcdef@v1").chmod(0o755)
    prompt = script.user("go")
    script.note("file-history-snapshot", messageId=prompt, snapshot={"trackedFileBackups": {}})
    script.says(call("c1", "Edit"))
    backup = {"backupFileName": "0123456789abcdef@v1", "version": 1}
    script.note("file-history-delta", trackingPath="bin/run", backup=backup)
    reported = {"filePath": str(file), "oldString": "two", "newString": "three",
            "originalFile": "one\ntwo\n", "replaceAll": False}  # fmt: skip
    script.result("c1", toolUseResult=reported)
    script.says("done")
    file.write_bytes(b"one\r\nthree\r\n")
    file.chmod(0o755)
    with open_store(disk_url) as place:
        imported(place, script.write(config))
        with Session.resume(place, script.session) as s:
            done = s.rewind(before=prompt, scope="files")
            assert done.files_changed == ["bin/run"] and done.conflicts == []
    assert file.read_bytes() == b"one\r\ntwo\r\n"
    assert os.stat(file).st_mode & 0o7777 == 0o755


def test_a_command_by_hand_has_its_files_too(disk_url: str, tmp_path: Path) -> None:
    """Files are copied at a command of the program, as at a prompt: others changed this one."""
    project, config = tmp_path / "project", tmp_path / "config"
    project.mkdir()
    script = Script(str(project))
    backups = config / "file-history" / script.session
    backups.mkdir(parents=True)
    (backups / "0123456789abcdef@v2").write_text("mine\n")
    script.user("go")
    script.says(call("c1", "Write"))
    reported: Json = {"type": "create", "filePath": str(project / "a"), "content": "one\n",
                  "originalFile": None, "structuredPatch": []}  # fmt: skip
    script.result("c1", toolUseResult=reported)
    command = script.user("<bash-input>ls</bash-input>")
    files = {"trackedFileBackups": {"a": {"backupFileName": "0123456789abcdef@v2", "version": 2}}}
    script.note("file-history-snapshot", messageId=command, snapshot=files)
    with open_store(disk_url) as place:
        imported(place, script.write(config))
        with Session.resume(place, script.session) as s:
            (between,) = s.events(kinds=("action",))
            assert between.id == f"files-{command}"
            assert between.data["files"]["uncertain"] == ["a"]


# --- the tree ----------------------------------------------------------------------------


def test_a_grown_file_adds_what_is_new(store: Store, tmp_path: Path) -> None:
    """Wherever it was cut before, also in the middle of a response."""
    script = Script()
    script.user("one")
    script.says("let me", id="m1")
    script.says(call("c1"), id="m1")
    script.says(call("c2"), id="m1")
    script.result("c1", parent=script.lines[2]["uuid"])
    script.result("c2", parent=script.lines[3]["uuid"])
    script.says("done")
    script.user("two")
    script.says("done again")
    for stop in range(1, len(script.lines) + 1):
        path = script.write(tmp_path, lines=script.lines[:stop])
        imported(store, path)
    with Session.resume(store, script.session, files=False) as s:
        assert said(s) == ["u:one", "a:let me", "a:Bash", "a:Bash", "u:=c1", "u:=c2", "a:done",
                           "u:two", "a:done again"]  # fmt: skip
        assert s.pending() == [] and s.branches() == []
        # One response, though it came in parts.
        assert s.info().usage["output_tokens"] == 15


def test_what_was_left_behind_is_a_branch(store: Store, tmp_path: Path) -> None:
    """The history ends with the latest leaf."""
    script = Script()
    script.user("one")
    answer = script.says("first answer")
    script.user("wrong way")
    script.says("oh no")
    script.user("right way", parent=answer)
    script.says("fine")
    imported(store, script.write(tmp_path))
    with Session.resume(store, script.session, files=False) as s:
        assert said(s) == ["u:one", "a:first answer", "u:right way", "a:fine"]
        (branch,) = s.branches()
        assert branch.message_count == 2


def test_children_may_come_before_their_parents(store: Store, tmp_path: Path) -> None:
    """The tree counts, not the order of lines."""
    script = Script()
    script.user("one")
    script.says("two")
    script.user("three")
    script.says("four")
    a, b, c, d = script.lines
    imported(store, script.write(tmp_path, lines=[a, d, c, b]))
    with Session.resume(store, script.session, files=False) as s:
        assert said(s) == ["u:one", "a:two", "u:three", "a:four"]


def test_a_parent_that_is_not_there_is_reported(store: Store, tmp_path: Path) -> None:
    """What hangs below it goes on where the file does, so nothing is out of reach."""
    script = Script()
    script.user("one")
    script.says("two")
    script.user("three", parent="ffffffff-0000-4000-8000-000000000000")
    script.says("four")
    result = imported(store, script.write(tmp_path))
    assert len(result.problems) == 1 and "parent that is not there" in result.problems[0]
    with Session.resume(store, script.session, files=False) as s:
        assert said(s) == ["u:one", "a:two", "u:three", "a:four"]


def test_lines_in_a_ring_are_reported_and_kept(store: Store, tmp_path: Path) -> None:
    """Each is its own ancestor."""
    script = Script()
    one = script.user("one")
    two = script.says("two")
    three = script.user("three")
    script.lines[0]["parentUuid"] = three
    result = imported(store, script.write(tmp_path))
    assert any("its own ancestor" in problem for problem in result.problems)
    ids = {event.id for event in store.read(script.session)}
    assert {one, two, three} <= ids


def test_a_second_line_of_a_uuid_is_reported_and_kept(store: Store, tmp_path: Path) -> None:
    """The first one counts."""
    script = Script()
    one = script.user("one")
    script.user("another", uuid=one, parent=None)
    path = script.write(tmp_path)
    result = imported(store, path)
    assert len(result.problems) == 1 and "uuid of an earlier one" in result.problems[0]
    lines = [kept.line.raw for kept in all_lines(store, script.session)]
    assert b"".join(line + b"\n" for line in lines) == path.read_bytes()
    script.user("a third", uuid=one, parent=one)
    path = script.write(tmp_path)
    imported(store, path)
    lines = [kept.line.raw for kept in all_lines(store, script.session)]
    assert b"".join(line + b"\n" for line in lines) == path.read_bytes()


def test_a_compaction_is_an_event(store: Store, tmp_path: Path) -> None:
    """The log keeps all that was said; the event says up to where the summary goes."""
    script = Script()
    script.user("one")
    script.says("two")
    kept = script.user("three")
    last = script.says("four")
    about = {"trigger": "auto", "preservedMessages": {"uuids": [kept, last]}}
    script.add("system", parent=None, logicalParentUuid=last, subtype="compact_boundary",
               compactMetadata=about)  # fmt: skip
    script.user("In short: all went well.", isCompactSummary=True)
    script.user("five")
    imported(store, script.write(tmp_path))
    with Session.resume(store, script.session, files=False) as s:
        assert said(s) == ["u:one", "a:two", "u:three", "a:four", "u:five"]
        (event,) = s.events(kinds=("compaction",))
        assert event.data["summary"]["content"] == "In short: all went well."
        until = s.store.read(s.id, after=event.data["until"] - 1, until=event.data["until"])
        assert next(until).data["message"]["content"][0]["text"] == "two"
        assert s.info().turn_count == 3


def test_notes_are_no_turns(store: Store, tmp_path: Path) -> None:
    """What the program says in the user's name is kept, and counts for nothing."""
    script = Script()
    script.user("caveat", isMeta=True)
    script.user("<local-command-stdout>x</local-command-stdout>")
    script.user("real")
    imported(store, script.write(tmp_path))
    info = store.info(script.session)
    assert (info.turn_count, info.message_count) == (1, 3)


def test_commands_of_the_program_are_notes(store: Store, tmp_path: Path) -> None:
    """They are kept for the model, and are no turn, title or branch; a person's own are prompts."""
    own = "<command-message>mine</command-message>\n<command-name>/mine</command-name>"
    own += "\n<command-args>a <b>\nc</command-args>"
    script = Script()
    script.user("<local-command-caveat>x</local-command-caveat>", isMeta=True)
    script.user("<command-name>/clear</command-name>\n  <command-message>clear</command-message>")
    script.add("system", subtype="local_command", content="<local-command-stdout>")
    script.user("one", turnPosition={"promptIndex": 1, "turnIndex": 1})
    script.says("two")
    script.user("<bash-input>ls</bash-input>")
    script.user("<bash-stdout>a</bash-stdout><bash-stderr></bash-stderr>")
    script.says("three")
    script.user(own)
    script.says("four")
    reported = imported(store, script.write(tmp_path))
    assert reported.prompt == "one"
    with Session.resume(store, script.session, files=False) as s:
        spoken = [line for line in script.lines if "message" in line]
        assert len(said(s)) == len(spoken) == 9
        prompts = [event.data["message"]["content"] for event in s.events(kinds=("user_message",))]
        assert prompts == ["one", "/mine a <b>\nc"]
        assert s.branches() == []
        assert s.info().turn_count == 2
        native = write_session(s, config_dir=tmp_path / "native")
    assert json.dumps(own) in native.path.read_text()


def _positions(*numbers: tuple[int, int]) -> list[dict[str, int]]:
    return [{"promptIndex": prompt, "turnIndex": turn} for prompt, turn in numbers]


@pytest.mark.parametrize(
    ("positions", "kept"),
    [
        (_positions((1, 1), (2, 2), (3, 3)), ["p1", "p2", "p3"]),
        (_positions((0, 1), (0, 2), (0, 3)), ["p1", "p2", "p3"]),
        (_positions((1, 1), (1, 2), (1, 3), (2, 4)), ["p1", "p2", "p3", "p4"]),
        (_positions((0, 1), (1, 2), (1, 3)), ["p1", "p2", "p3"]),
        (_positions((1, 1), (2, 2), (1, 1)), ["p3"]),
        (_positions((0, 1), (1, 2), (1, 1), (1, 2)), ["p3", "p4"]),
    ],
    ids=["typed", "headless", "typed-then-headless", "headless-then-typed", "start-over",
         "mixed-start-over"],
)  # fmt: skip
def test_typed_and_headless_prompts(
    store: Store, tmp_path: Path, positions: list[dict[str, int]], kept: list[str]
) -> None:
    """Only the first turn of a conversation starts over, however its prompts are numbered."""
    script = Script()
    for number, position in enumerate(positions, 1):
        script.user(f"p{number}", turnPosition=position)
        script.says("answer")
    imported(store, script.write(tmp_path))
    with Session.resume(store, script.session, files=False) as s:
        assert [text[2:] for text in said(s) if text.startswith("u:")] == kept
        assert len(s.branches()) == (len(kept) < len(positions))
        assert s.info().turn_count == len(kept)


def test_titles_have_an_order(store: Store, tmp_path: Path) -> None:
    """A person's counts most, and one given here stays."""
    script = Script()
    script.user("one")
    script.note("summary", summary="from a summary", leafUuid="x")
    assert imported(store, script.write(tmp_path)).title == "from a summary"
    script.note("custom-title", customTitle="by a person")
    script.note("ai-title", aiTitle="by a model")
    assert imported(store, script.write(tmp_path)).title == "by a person"
    script.note("ai-title", aiTitle="by a model again")
    assert imported(store, script.write(tmp_path)).title == "by a person"
    store.update(script.session, title="mine")
    script.note("custom-title", customTitle="by that person again")
    assert imported(store, script.write(tmp_path)).title == "mine"


def test_subagents_in_the_main_file_go_aside(store: Store, tmp_path: Path) -> None:
    """Older versions wrote them there."""
    script = Script()
    script.user("one")
    ask = script.says(call("c1", "Task"))
    script.user("subtask", isSidechain=True, parent=None)
    script.says("sub answer", isSidechain=True)
    script.result("c1", parent=ask)
    imported(store, script.write(tmp_path))
    with Session.resume(store, script.session, files=False) as s:
        assert said(s) == ["u:one", "a:Task", "u:=c1"]
    (log,) = [name for name in store.logs(script.session) if name.startswith("subagents/")]
    assert [event.data["message"]["role"] for event in store.read(script.session, log=log)] == [
        "user",
        "assistant",
    ]


# --- what is wrong with files ------------------------------------------------------------


def test_a_torn_last_line_is_left_for_the_next_time(store: Store, tmp_path: Path) -> None:
    """It may yet be finished; what stands before it is imported."""
    script = Script()
    script.user("one")
    script.says("two")
    path = script.write(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    result = imported(store, path)
    assert len(result.problems) == 1 and "torn" in result.problems[0]
    assert store.info(script.session).message_count == 1
    path.write_bytes(whole)
    assert imported(store, path).problems == []
    assert store.info(script.session).message_count == 2


def test_a_last_line_without_its_end_counts(store: Store, tmp_path: Path) -> None:
    """It is whole, and the next line begins behind it."""
    script = Script()
    script.user("one")
    script.says("two")
    path = script.write(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert imported(store, path).problems == []
    script.user("three")
    imported(store, script.write(tmp_path))
    assert store.info(script.session).message_count == 3


@pytest.mark.parametrize(
    "wrong", [None, 7, [], {}, "x\0y", "../../etc", "", True, ["a", 1], "\x1b"]
)
def test_wrong_types_in_any_field_never_break_it(
    tmp_path: Path, wrong: Json, disk_url: str
) -> None:
    """Every field of every kind of line, one at a time; every line is kept."""
    sample = SAMPLES / "claude-code" / "projects" / "-home-dev-project" / f"{SECOND}.jsonl"
    rows = [json.loads(line) for line in sample.read_text().splitlines()]
    extra = Script()
    extra.note("file-history-snapshot", messageId="m", snapshot={"trackedFileBackups": {"a": {}}})
    extra.note("file-history-delta", trackingPath="a", backup={"backupFileName": "0@v1"})
    extra.note("custom-title", customTitle="t")
    extra.add("system", subtype="compact_boundary", compactMetadata={"preservedMessages": {}})
    extra.user("short", isCompactSummary=True)
    rows += extra.lines
    lines: list[Json] = []
    for row in rows:
        lines += [{**row, name: wrong} for name in row]
        message = row.get("message")
        if isinstance(message, dict):
            lines += [{**row, "message": {**message, name: wrong}} for name in message]
    path = tmp_path / "projects" / "p" / "hostile.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(map(encoded, lines)))
    with open_store(disk_url) as place:
        result = imported(place, path)
        assert result.error is None
        kept = [one.line.raw + b"\n" for one in all_lines(place, result.session_id)]
        assert b"".join(kept) == path.read_bytes()
        assert place.verify() == []
        with Session.resume(place, result.session_id, files=False) as s:
            s.messages("anthropic")
            s.messages("openai")


def test_hostile_lines_are_reported_and_kept(store: Store, tmp_path: Path) -> None:
    """Too long, too deep, with bytes of nothing, no objects."""
    script = Script()
    script.user("one")
    script.says("x" * 11_000_000)
    path = script.write(tmp_path)
    odd = [
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"type":"user","a":' + b"[" * 300 + b"]" * 300 + b"}",
        b"\0\0\0",
        b"[1,2]",
        b'"text"',
        b'{"type":"user","uuid":"u1","message":{"role":"user","content":"\\ud800"}}',
        b'{"type":"user","uuid":"n","message":{"role":"user","content":"nul \\u0000 here"}}',
    ]
    with path.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in odd))
    result = imported(store, path)
    assert result.error is None
    assert len(result.problems) == 6
    kept = [one.line.raw + b"\n" for one in all_lines(store, script.session)]
    assert b"".join(kept) == path.read_bytes()
    assert store.info(script.session).message_count == 3


def test_a_file_that_became_shorter_is_read_anew(store: Store, tmp_path: Path) -> None:
    """What is known stays, what is new comes."""
    script = Script()
    script.user("one")
    script.says("two")
    imported(store, script.write(tmp_path))
    script.user("three", parent=script.lines[0]["uuid"])
    imported(store, script.write(tmp_path, lines=[script.lines[0], script.lines[2]]))
    with Session.resume(store, script.session, files=False) as s:
        assert said(s) == ["u:one", "u:three"]


def test_links_are_not_followed(store: Store, tmp_path: Path) -> None:
    """A link in a folder of projects is no session."""
    script = Script()
    script.user("one")
    path = script.write(tmp_path / "elsewhere")
    folder = tmp_path / "config" / "projects" / "p"
    folder.mkdir(parents=True)
    (folder / path.name).symlink_to(path)
    with pytest.raises(NotFound):
        claude_code.find(tmp_path / "config")


def test_a_dry_run_writes_nothing(store: Store, config: Path) -> None:
    """It says what would come."""
    results = [import_session(store, one, dry_run=True) for one in claude_code.find(config)]
    assert {(one.native_id, one.lines, one.created) for one in results} == {
        (FIRST, 78, True),
        (SECOND, 27, True),
    }
    assert store.sessions() == []


def test_finding(monkeypatch: pytest.MonkeyPatch, config: Path, tmp_path: Path) -> None:
    """Where the environment says, in any folder above a transcript, or for a project."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(config))
    projects = config / "projects"
    for place in (None, config, projects, projects / "-home-dev-project"):
        assert {found.id for found in claude_code.find(place)} == {FIRST, SECOND}
    with pytest.raises(NotFound):
        claude_code.find(tmp_path / "project")
    (projects / "-home-dev-project").rename(projects / slug(str(tmp_path / "project")))
    monkeypatch.chdir(tmp_path / "project")
    found = claude_code.find(Path("."))
    assert {one.id for one in found} == {FIRST, SECOND}
    assert all(one.path.is_absolute() for one in found)


def test_subagents_beside_the_sessions(disk_url: str, tmp_path: Path) -> None:
    """Where older versions put them; their edits are the doing of the call that states their id."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "sub.txt").write_text("by sub\n")
    script, side, other = Script(str(project)), Script(), Script()
    script.user("one")
    script.says(call("c1", "Task"))
    script.result("c1", toolUseResult={"agentId": "a1", "status": "completed"})
    path = script.write(tmp_path / "config")
    side.session = script.session
    side.user("subtask", isSidechain=True)
    what = {"file_path": str(project / "sub.txt"), "content": "by sub\n"}
    side.says(call("s1", "Write", **what), isSidechain=True)
    side.result("s1", "File created successfully at: x", isSidechain=True)
    (path.parent / "agent-a1.jsonl").write_bytes(b"".join(map(encoded, side.lines)))
    other.user("of another session", isSidechain=True)
    (path.parent / "agent-a2.jsonl").write_bytes(b"".join(map(encoded, other.lines)))
    with open_store(disk_url) as place:
        imported(place, path)
        assert "subagents/a1" in place.logs(script.session)
        assert "subagents/a2" not in place.logs(script.session)
        with Session.resume(place, script.session) as s:
            s.rewind(before=2, scope="files")
        assert contents(project) == {}


# --- any tree, in any batches ------------------------------------------------------------


@given(
    parents=st.lists(st.integers(0, 10_000), min_size=1, max_size=30),
    links=st.sets(st.integers(0, 29)),
    chunk=st.integers(1, 4000),
    stops=st.lists(st.integers(1, 30), max_size=3),
)
def test_the_history_is_the_way_to_the_last_leaf(
    parents: list[int], links: set[int], chunk: int, stops: list[int]
) -> None:
    """Whatever tree the lines make, in whatever batches they come in."""
    script = Script()
    for number, parent in enumerate(parents):
        above = script.lines[parent % number]["uuid"] if number else None
        if number in links:
            script.add("attachment", parent=above)
        elif number % 2:
            script.says(f"m{number}", parent=above)
        else:
            script.user(f"m{number}", parent=above)
    by_uuid = {line["uuid"]: line for line in script.lines}
    said_lines = [line for line in script.lines if line["type"] != "attachment"]
    way: list[str] = []
    at = said_lines[-1]["uuid"] if said_lines else None
    while at is not None:
        if by_uuid[at]["type"] != "attachment":
            way.append(at)
        at = by_uuid[at]["parentUuid"]
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store("memory:") as place,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(intake, "_CHUNK", 0)
        patch.setattr(intake, "_MOST", chunk)
        for stop in [*sorted(stops), len(script.lines)]:
            result = imported(place, script.write(Path(folder), lines=script.lines[:stop]))
            assert result.problems == []
        passed = ("session_start", "rewound")
        history = [e.id for e in place.history(script.session) if e.kind not in passed]
        assert history == way[::-1]
        ids = [e.id for e in place.read(script.session) if e.kind not in passed]
        assert sorted(ids) == sorted(line["uuid"] for line in said_lines)


def test_batches_leave_no_trace(tmp_path: Path, config: Path) -> None:
    """The sample in one go, and cut wherever a prompt is."""
    path = config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl"
    stored = []
    for size in (1, 1 << 30):
        with pytest.MonkeyPatch.context() as patch, open_store(f"file:{tmp_path}/{size}") as place:
            patch.setattr(intake, "_CHUNK", size)
            imported(place, path)
            stored.append([(e.id, e.kind, e.data) for e in place.read(FIRST, after=1)])
    assert stored[0] == stored[1]


def test_a_store_that_masks_takes_it_too(tmp_path: Path) -> None:
    """What is stored is not what was given, and that is no conflict."""
    script = Script()
    script.user("my key is sk-ant-api03-" + "A1b2" * 22)
    script.says("I will not tell")
    with open_store(f"sqlite:///{tmp_path}/s.db") as inner, Redacting(inner) as place:
        result = imported(place, script.write(tmp_path))
        assert result.events == 2
        assert imported(place, script.write(tmp_path)).events == 0
        assert "REDACTED" in str(next(inner.read(script.session, after=1)).data)


@pytest.mark.parametrize("crash", range(1, 6))
def test_an_import_that_was_cut_short_is_finished(
    disk_url: str, config: Path, tmp_path: Path, crash: int
) -> None:
    """Between any two writes; the outcome is that of an import in one go."""
    path = config / "projects" / "-home-dev-project" / f"{FIRST}.jsonl"
    with open_store(f"sqlite:///{tmp_path}/whole.db") as place:
        imported(place, path)
        whole = [(e.id, e.kind, e.data, e.follows) for e in place.read(FIRST, after=1)]
        lines = [(e.id, e.data) for e in place.read(FIRST, log="transcript")]
    writes = 0

    def failing(*given: Json, **options: Json) -> None:
        nonlocal writes
        writes += 1
        if writes == crash:
            raise StoreFailed("the process was killed here")
        append_entries(*given, **options)

    with open_store(disk_url) as place:
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(StoreFailed):
            patch.setattr(intake, "_CHUNK", 1)
            patch.setattr(intake, "append_entries", failing)
            imported(place, path)
        imported(place, path)
        assert [(e.id, e.kind, e.data, e.follows) for e in place.read(FIRST, after=1)] == whole
        assert [(e.id, e.data) for e in place.read(FIRST, log="transcript")] == lines
        assert imported(place, path).events == 0


@pytest.mark.parametrize("kind", ["attachment", "system", "progress", "user"])
@pytest.mark.parametrize("apart", [False, True], ids=["one import", "two imports"])
def test_lines_that_are_their_own_parents_cost_a_look(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, apart: bool
) -> None:
    """A line that is its own ancestor ends the way up at once, from wherever it is met."""
    script = Script()
    script.user("hello")
    own = "77777777-0000-4000-8000-000000000001"
    script.add(kind, own, uuid=own, isMeta=True)
    script.add(kind, own[:-1] + "2", uuid=own[:-1] + "2", isSidechain=True)
    looks = 0
    real = cc.parent_of

    def counting(value: Json) -> str | None:
        nonlocal looks
        looks += 1
        return real(value)

    monkeypatch.setattr(cc, "parent_of", counting)
    if apart:
        imported(store, script.write(tmp_path))
    script.user("on", parentUuid=own)
    script.user("and on", parentUuid=own[:-1] + "2")
    imported(store, script.write(tmp_path))
    assert looks < 1000
