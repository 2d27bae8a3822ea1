"""A live transcript is mirrored into the session that hooks write to."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail import NotFound, Session, Store, open_store
from backtrail.events import NewEvent
from backtrail.events.messages import text_of
from backtrail.exchange.claude_code import sessions as claude_code
from backtrail.exchange.foreign import import_session, mirror
from backtrail.exchange.transcript import all_lines

from .transcripts import SAMPLES, Script, call, encoded, rollout

Json = Any


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    """A session as hooks make it."""
    with open_store(url) as place:
        s = Session.create(place, key="claude-code:x", agent_name="claude-code", files=False)
        yield s
        s.close()


class Hooked:
    """A session that hooks and the mirror write to in turn."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self.script = Script()
        self.folder = folder

    def mirror(self) -> int:
        """What a hook does with the transcript."""
        path = self.script.write(self.folder)
        return mirror(self.session.store, self.session.id, path, "claude-code")

    def prompt(self, text: str, id: str | None = None, **fields: Json) -> None:
        """A prompt: the hook comes before the transcript has it."""
        self.mirror()
        message = {"role": "user", "content": text}
        data = {"message": message, "format": "openai", "tree": "00" * 32}
        self.session.store.append(self.session.id, [NewEvent("user_message", data, id=id)])
        self.script.user(text, promptId=id or "unknown", **fields)

    def action(self, name: str) -> None:
        """What a hook notes behind a tool."""
        self.session.store.append(self.session.id, [NewEvent("action", {"name": name})])


def kinds(session: Session) -> list[str]:
    """The kinds of events in the history, without the beginning."""
    return [event.kind for event in session.history()][1:]


@pytest.mark.parametrize("id", ["prompt-1", None])
def test_a_prompt_that_a_hook_noted_is_not_said_again(
    session: Session, tmp_path: Path, id: str | None
) -> None:
    """Known by its id, or by its words; what the hook noted of files stays with it."""
    hooked = Hooked(session, tmp_path)
    hooked.prompt("do it", id)
    hooked.script.says(call("c1"))
    hooked.action("Bash")
    hooked.script.result("c1")
    assert hooked.mirror() == 2
    hooked.script.says("done")
    assert hooked.mirror() == 1
    assert hooked.mirror() == 0
    assert kinds(session) == ["user_message", "action", "assistant_message", "tool_result",
                              "assistant_message"]  # fmt: skip
    assert session.branches() == []
    assert next(session.events(kinds=("user_message",))).data["tree"]


def test_a_prompt_whose_lines_were_not_kept(session: Session, tmp_path: Path) -> None:
    """Another process took in the answer and not yet the lines: nothing is said twice."""
    hooked = Hooked(session, tmp_path)
    for number in (1, 2):
        hooked.prompt("again", f"prompt-{number}")
        hooked.script.says("answer")
    hooked.mirror()
    session.store.delete(session.id, log="transcript")
    assert hooked.mirror() == 0
    assert kinds(session) == ["user_message", "assistant_message"] * 2
    assert session.branches() == []


@pytest.mark.parametrize("step", [1, 100])
def test_a_past_that_comes_with_the_first_prompt(
    session: Session, tmp_path: Path, step: int
) -> None:
    """A fork of the program's own: all its lines have the prompt's id, and come behind the hook."""
    hooked = Hooked(session, tmp_path)
    hooked.prompt("three", "prompt-3")
    hooked.script.lines.clear()
    hooked.script.last = None
    for text in ("one", "two"):
        hooked.script.user(text, promptId="prompt-3")
        hooked.script.says(f"answer {text}")
        if step == 1:
            hooked.mirror()
    hooked.script.user("three", promptId="prompt-3")
    hooked.script.says("answer three")
    hooked.mirror()
    reported = [text_of(message["content"]) for message in session.messages()]
    assert reported == ["one", "answer one", "two", "answer two", "three", "answer three"]
    assert session.branches() == []
    assert list(session.events(kinds=("rewound",))) == []
    info = session.info()
    assert (info.turn_count, info.message_count) == (3, 6)
    for left in (4, 2, 0):
        session.undo()
        assert len(session.messages()) == left
    with pytest.raises(NotFound, match="nothing to undo"):
        session.undo()


def test_two_prompts_of_the_same_words(session: Session, tmp_path: Path) -> None:
    """Each is one event."""
    hooked = Hooked(session, tmp_path)
    for number in range(3):
        hooked.prompt("again")
        hooked.script.says(f"answer {number}")
    hooked.mirror()
    assert kinds(session) == ["user_message", "assistant_message"] * 3


def test_a_prompt_that_no_hook_noted_is_mirrored(session: Session, tmp_path: Path) -> None:
    """A hook may have missed it."""
    hooked = Hooked(session, tmp_path)
    hooked.script.user("missed")
    hooked.script.says("answer")
    hooked.prompt("noted")
    hooked.script.says("another")
    hooked.mirror()
    assert kinds(session) == ["user_message", "assistant_message"] * 2


def test_only_whole_lines_are_taken(session: Session, tmp_path: Path) -> None:
    """Byte by byte, as a slow writer would write it, every message comes once."""
    script = Script()
    script.user("one", attachment="é" * 10)
    script.says("two")
    script.user("three")
    path = script.write(tmp_path)
    whole = path.read_bytes()
    total = 0
    for end in range(0, len(whole) + 1, 37):
        path.write_bytes(whole[:end])
        total += mirror(session.store, session.id, path, "claude-code")
    path.write_bytes(whole)
    total += mirror(session.store, session.id, path, "claude-code")
    assert total == 3
    assert len(session.messages()) == 3
    raw = [kept.line.raw + b"\n" for kept in all_lines(session.store, session.id)]
    assert b"".join(raw) == whole


def test_attachments_of_an_earlier_look_hold_the_chain(session: Session, tmp_path: Path) -> None:
    """The parent of a new line may be a line that was no event."""
    hooked = Hooked(session, tmp_path)
    hooked.script.user("one")
    hooked.script.add("attachment", attachment={"type": "date"})
    hooked.mirror()
    hooked.script.says("two")
    hooked.mirror()
    hooked.script.add("attachment", attachment={"type": "date"})
    hooked.script.user("three")
    hooked.mirror()
    assert kinds(session) == ["user_message", "assistant_message", "user_message"]
    assert session.branches() == []


def test_subagents_are_mirrored_too(session: Session, tmp_path: Path) -> None:
    """Into logs of their own, as they grow."""
    hooked = Hooked(session, tmp_path)
    hooked.script.user("one")
    path = hooked.script.write(tmp_path)
    side = Script(session=hooked.script.session)
    folder = path.with_suffix("") / "subagents"
    folder.mkdir(parents=True)
    side.user("subtask", isSidechain=True)
    (folder / "agent-a1.jsonl").write_bytes(b"".join(map(encoded, side.lines)))
    assert hooked.mirror() == 3
    side.says("sub answer", isSidechain=True)
    (folder / "agent-a1.jsonl").write_bytes(b"".join(map(encoded, side.lines)))
    (folder / "agent-a1.meta.json").write_text('{"finished": true}')
    # Its answer, its result, and in the main log what it used.
    assert hooked.mirror() == 3
    assert hooked.mirror() == 0
    assert session.info().usage == {"input_tokens": 10, "output_tokens": 5}
    log = list(session.store.read(session.id, log="subagents/a1"))
    assert [event.kind for event in log] == ["start", "message", "message", "result"]


def test_the_record_is_kept_up_to_date(session: Session, tmp_path: Path) -> None:
    """Title and model come from the transcript."""
    hooked = Hooked(session, tmp_path)
    hooked.script.user("one")
    hooked.script.says("two")
    hooked.script.note("ai-title", aiTitle="A good title")
    hooked.mirror()
    info = session.info()
    assert (info.title, info.model) == ("A good title", "claude-opus-5-5")
    assert info.metadata["git_branch"] == "main"


def test_what_is_not_there_is_empty(session: Session, tmp_path: Path) -> None:
    """No transcript yet, or one of an agent whose format is not known."""
    assert mirror(session.store, session.id, tmp_path / "none.jsonl", "claude-code") == 0
    assert mirror(session.store, session.id, tmp_path / "none.jsonl", "codex") == 0
    (tmp_path / "chat.json").write_text("{}")
    assert mirror(session.store, session.id, tmp_path / "chat.json", "gemini") == 0


def test_a_rollout_is_mirrored(session: Session, tmp_path: Path) -> None:
    """The prompt that the hook noted is not said again there either."""
    id = "0199aaaa-0000-7000-8000-000000000001"
    message = {"role": "user", "content": "hi"}
    session.store.append(session.id, [NewEvent("user_message", {"message": message})])
    lines: list[tuple[str, Json]] = [
        ("session_meta", {"id": id}),
        ("response_item", {"type": "message", "role": "user",
                           "content": [{"type": "input_text", "text": "hi"}]}),
        ("response_item", {"type": "message", "role": "assistant",
                           "content": [{"type": "output_text", "text": "yo"}]}),
    ]  # fmt: skip
    assert mirror(session.store, session.id, rollout(tmp_path, lines[:2], id), "codex") == 0
    assert mirror(session.store, session.id, rollout(tmp_path, lines, id), "codex") == 1
    assert kinds(session) == ["user_message", "assistant_message"]


def test_importing_what_was_mirrored_changes_nothing(session: Session, tmp_path: Path) -> None:
    """The session is found by its key."""
    hooked = Hooked(session, tmp_path)
    hooked.script.user("one")
    hooked.script.says("two")
    hooked.mirror()
    session.update(key=f"claude-code:{hooked.script.session}")
    (found,) = claude_code.find(hooked.script.write(tmp_path))
    result = import_session(session.store, found)
    assert (result.session_id, result.events) == (session.id, 0)


def test_what_was_purged_does_not_come_back(session: Session, tmp_path: Path) -> None:
    """Though the agent's own file still has it."""
    hooked = Hooked(session, tmp_path)
    hooked.script.user("one")
    hooked.script.says("the secret word")
    hooked.script.note("last-prompt", lastPrompt="the secret word")
    hooked.mirror()
    session.store.purge(session.id, [3])
    session.store.purge(session.id, [2, 3], log="transcript")
    assert hooked.mirror() == 0
    hooked.script.user("two")
    assert hooked.mirror() == 1
    stored = [session.store.read(session.id, log=log) for log in session.store.logs(session.id)]
    assert "secret" not in str([event.data for events in stored for event in events])
    assert kinds(session) == ["user_message", "assistant_message", "user_message"]


def blocks_of(content: Json) -> list[dict[str, Json]]:
    """The blocks of a message; a text is one."""
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


MIRROR = """
import sys, time
from pathlib import Path
from backtrail import Session
from backtrail.exchange.foreign import mirror
url, id, path, stop = sys.argv[1:]
print("ready", flush=True)
with Session.resume(url, id, files=False) as s:
    while True:
        last = Path(stop).exists()
        mirror(s.store, s.id, Path(path), "claude-code")
        if last:
            break
"""


def test_two_processes_mirror_one_file(disk_url: str, tmp_path: Path) -> None:
    """While it grows; each message comes once, in order, with all its blocks."""
    script = Script()
    for number in range(60):
        script.user(f"prompt {number}")
        script.says(call(f"c{number}a"), id=f"m{number}")
        script.says(call(f"c{number}b"), id=f"m{number}")
        script.result(f"c{number}a", parent=script.lines[-2]["uuid"])
        script.result(f"c{number}b", parent=script.lines[-2]["uuid"])
        script.says(f"answer {number}")
    path, stop = tmp_path / f"{script.session}.jsonl", tmp_path / "stop"
    path.touch()
    store: Store = open_store(disk_url)
    session = Session.create(store, "shared", files=False)
    given = [sys.executable, "-c", MIRROR, disk_url, "shared", str(path), str(stop)]
    others = [subprocess.Popen(given, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for other in others:
            assert other.stdout is not None and other.stdout.readline() == b"ready\n"
        with path.open("ab", buffering=0) as file:
            for at, line in enumerate(script.lines):
                file.write(encoded(line))
                # As long as a look takes, so that each sees the file at another length.
                time.sleep(0.002)
                if at % 7 == 0:
                    store.append("shared", [NewEvent("action", {"name": "hook"})])
        stop.touch()
        for other in others:
            assert other.wait(60) == 0
        mirror(session.store, session.id, path, "claude-code")
        blocks = [
            (message["role"], str(block.get("id", block.get("tool_use_id", block.get("text")))))
            for message in session.messages(repair=False)
            for block in blocks_of(message["content"])
        ]
        expected: list[tuple[str, str]] = []
        for number in range(60):
            expected += [("user", f"prompt {number}"), ("assistant", f"c{number}a"),
                         ("assistant", f"c{number}b"), ("user", f"c{number}a"),
                         ("user", f"c{number}b"), ("assistant", f"answer {number}")]  # fmt: skip
        # A result may be mirrored before the second call of its response is there.
        assert sorted(blocks) == sorted(expected)
        said = [text for _, text in blocks if text.startswith(("prompt", "answer"))]
        assert said == [text for _, text in expected if text.startswith(("prompt", "answer"))]
        assert session.pending() == []
        raw = [kept.line.raw + b"\n" for kept in all_lines(store, "shared")]
        assert sorted(raw) == sorted(path.read_bytes().splitlines(keepends=True))
    finally:
        for other in others:
            other.kill()
            other.wait()
            if other.stdout is not None:
                other.stdout.close()
        session.close()
        store.close()


@given(
    parents=st.lists(st.integers(0, 10_000), min_size=1, max_size=25),
    noted=st.sets(st.integers(0, 24)),
    looks=st.sets(st.integers(0, 24)),
)
def test_the_history_is_what_the_lines_say(
    parents: list[int], noted: set[int], looks: set[int]
) -> None:
    """Wherever lines hang, and whatever hooks noted and did before the lines came.

    The chain of parents is the history, every other way is a branch, and what was done to files
    is lost only where a prompt went back.
    """
    with tempfile.TemporaryDirectory() as folder, open_store("memory:") as place:
        s = Session.create(place, key="claude-code:x", agent_name="claude-code", files=False)
        hooked = Hooked(s, Path(folder))
        script = hooked.script
        for number, parent in enumerate(parents):
            above = script.lines[parent % number]["uuid"] if number else None
            if number % 2 == 0 and number in noted:
                hooked.prompt(f"m{number}", f"noted-{number}", parent=above)
                hooked.action("Bash")
            elif number % 2 == 0:
                script.user(f"m{number}", parent=above)
            else:
                script.says(f"m{number}", parent=above)
            if number in looks:
                hooked.mirror()
        hooked.mirror()
        by_uuid = {line["uuid"]: line for line in script.lines}
        way: list[str] = []
        at: str | None = script.lines[-1]["uuid"]
        while at is not None:
            content = by_uuid[at]["message"]["content"]
            way.append(content if isinstance(content, str) else content[0]["text"])
            at = by_uuid[at]["parentUuid"]
        reported = [text_of(message["content"]) for message in s.messages()]
        assert reported == way[::-1]
        assert s.info().turn_count == sum(int(text[1:]) % 2 == 0 for text in way)
        left = {line["uuid"] for line in script.lines} - {*_on(by_uuid, script.lines[-1]["uuid"])}
        assert sum(branch.message_count for branch in s.branches()) == len(left)
        s.close()


def _on(by_uuid: dict[str, Json], at: str | None) -> Iterator[str]:
    while at is not None:
        yield at
        at = by_uuid[at]["parentUuid"]


@pytest.mark.parametrize("step", [1, 2, 100])
def test_a_prompt_that_stops_a_call(session: Session, tmp_path: Path, step: int) -> None:
    """It is in the transcript before the result of the call, and behind it in what is sent."""
    text = (SAMPLES / "claude-scenes" / "queued.jsonl").read_text()
    hooked = Hooked(session, tmp_path)
    for number, line in enumerate(map(json.loads, text.splitlines())):
        if line["type"] == "user" and "promptSource" in line:
            hooked.mirror()
            message = {"role": "user", "content": line["message"]["content"]}
            data = {"message": message, "format": "anthropic"}
            noted = NewEvent("user_message", data, id=line["promptId"])
            session.store.append(session.id, [noted])
        hooked.script.lines.append(line)
        if number % step == 0:
            hooked.mirror()
    hooked.mirror()
    reported = [text_of(m["content"]) for m in session.messages() if m["role"] == "user"]
    assert (reported[0], reported[1], reported[3]) == ("say-one", "slow", "say-two")
    assert reported[2].startswith("The user doesn't want to proceed")
    assert reported[4].startswith("[Request interrupted")
    assert session.branches() == []
    assert session.info().turn_count == 3


_SHELL: dict[str, Json] = {"message": {"role": "user", "content": "<bash-input>ls</bash-input>"}}
_PRINTED: dict[str, Json] = {"message": {"role": "user", "content": "<bash-stdout>x</bash-stdout>"}}
_LOCAL: dict[str, Json] = {
    "subtype": "local_command",
    "content": "<command-name>/context</command-name>",
}


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
@pytest.mark.parametrize(("kind", "fields"), [("user", _SHELL), ("system", _LOCAL)],
                         ids=["shell", "local"])  # fmt: skip
def test_a_command_shows_that_the_agent_went_back(
    session: Session, tmp_path: Path, kind: str, fields: Json, is_late: bool
) -> None:
    """Its line answers another than the last; a hook may note the next prompt before it."""
    hooked = Hooked(session, tmp_path)
    hooked.prompt("one")
    goal = hooked.script.says("answer one")
    hooked.prompt("two")
    hooked.script.says("answer two")
    hooked.mirror()
    shows = hooked.script.add(kind, goal, **fields)
    if not is_late:
        hooked.mirror()
        (moved,) = session.events(kinds=("rewound",))
        assert moved.data["source"]["lines"] == [shows]
        said = [text_of(message["content"]) for message in session.messages()]
        assert said[:2] == ["one", "answer one"]
        assert "two" not in said
        hooked.prompt("three", "p3")
    else:
        message = {"role": "user", "content": "three"}
        data = {"message": message, "format": "openai", "tree": "00" * 32}
        session.store.append(session.id, [NewEvent("user_message", data, id="p3")])
        hooked.script.user("three", promptId="p3")
    hooked.script.says("answer three")
    hooked.mirror()
    hooked.mirror()

    def spoken() -> list[str]:
        reported = [text_of(message["content"]) for message in session.messages()]
        return [text for text in reported if not text.startswith("<")]

    assert spoken() == ["one", "answer one", "three", "answer three"]
    assert [event.data["events_dropped"] for event in session.events(kinds=("rewound",))] == [2]
    assert [branch.message_count for branch in session.branches()] == [2]
    session.undo()
    assert spoken() == ["one", "answer one"]
    session.undo()
    assert spoken() == ["one", "answer one", "two", "answer two"]
    session.undo()
    assert spoken() == ["one", "answer one"]


@pytest.mark.parametrize("step", [1, 100])
def test_a_shell_command_behind_a_start_over(session: Session, tmp_path: Path, step: int) -> None:
    """Its line names the last one as its parent; what it printed says that nothing was said."""
    hooked = Hooked(session, tmp_path)
    hooked.prompt("one")
    hooked.script.says("answer one")
    hooked.mirror()
    hooked.script.add("user", **_SHELL)
    if step == 1:
        hooked.mirror()
    hooked.script.add("user", **_PRINTED, turnPosition={"promptIndex": 1, "turnIndex": 1})
    hooked.script.says("hm")
    hooked.prompt("two", turnPosition={"promptIndex": 2, "turnIndex": 2})
    hooked.script.says("answer two")
    hooked.mirror()
    reported = [text_of(message["content"]) for message in session.messages()]
    # A line that was read alone does not say.
    shell = [] if step == 1 else ["<bash-input>ls</bash-input>"]
    assert reported == [*shell, "<bash-stdout>x</bash-stdout>", "hm", "two", "answer two"]
    assert len(list(session.events(kinds=("rewound",)))) == 1


def test_a_note_in_the_first_turn(session: Session, tmp_path: Path) -> None:
    """That a task is done bears the number of the first prompt, and starts nothing over."""
    hooked = Hooked(session, tmp_path)
    hooked.prompt("one", turnPosition={"promptIndex": 1, "turnIndex": 1})
    hooked.script.says("answer one")
    done = "<task-notification>done</task-notification>"
    hooked.script.user(done, turnPosition={"promptIndex": 1, "turnIndex": 2})
    hooked.script.says("was notified")
    hooked.mirror()
    reported = [text_of(message["content"]) for message in session.messages()]
    assert reported == ["one", "answer one", done, "was notified"]
    assert "rewound" not in kinds(session)


def test_a_command_that_is_read_again(session: Session, tmp_path: Path) -> None:
    """It says nothing of what came since: a file that was replaced moves no head."""
    hooked = Hooked(session, tmp_path)
    hooked.script.user("one")
    hooked.script.says("answer one")
    hooked.script.add("system", **_LOCAL)
    hooked.script.user("two")
    hooked.script.says("answer two")
    hooked.mirror()
    path = hooked.script.write(tmp_path, lines=hooked.script.lines[:-1])
    mirror(session.store, session.id, path, "claude-code")
    hooked.mirror()
    assert "rewound" not in kinds(session)
    reported = [text_of(message["content"]) for message in session.messages()]
    assert reported == ["one", "answer one", "two", "answer two"]


def spoken(session: Session) -> list[str]:
    """What was said, one text a message."""
    return [text_of(message["content"]) for message in session.messages()]


def unwound(session: Session) -> list[list[str]]:
    """What is said after each undo, until there is nothing to undo."""
    found = [spoken(session)]
    while spoken(session):
        session.undo()
        found.append(spoken(session))
    return found


def note(session: Session, text: str, id: str) -> None:
    """What a hook does with a prompt, before any line reports it."""
    data = {"message": {"role": "user", "content": text}, "format": "openai"}
    session.store.append(session.id, [NewEvent("user_message", data, id=id)])


def test_an_undo_before_the_line_of_a_prompt(session: Session, tmp_path: Path) -> None:
    """What was taken back and brought again is where it was: one turn, and one undo."""
    hooked = Hooked(session, tmp_path)
    hooked.prompt("one", "p1")
    hooked.script.says("answer one")
    hooked.mirror()
    note(session, "two", "p2")
    session.undo()
    session.redo()
    hooked.script.user("two", promptId="p2")
    hooked.script.says("answer two")
    hooked.mirror()
    assert unwound(session) == [
        ["one", "answer one", "two", "answer two"], ["one", "answer one"], [],
    ]  # fmt: skip
    assert not list(session.events(kinds=("rewound",)))


@pytest.mark.parametrize("before", [0, 1])
def test_two_prompts_before_their_lines(session: Session, tmp_path: Path, before: int) -> None:
    """Each is a turn of its own where it is said, and each undo takes one back."""
    hooked = Hooked(session, tmp_path)
    for number in range(before):
        hooked.prompt(f"zero {number}", f"p-{number}")
        hooked.script.says("answer zero")
        hooked.mirror()
    start = spoken(session)
    note(session, "one", "p1")
    note(session, "two", "p2")
    for number, text in enumerate(("one", "two"), 1):
        hooked.script.user(text, promptId=f"p{number}")
        hooked.script.says(f"answer {text}")
    hooked.mirror()
    one, two = ["one", "answer one"], ["two", "answer two"]
    found = unwound(session)
    assert found[:3] == [[*start, *one, *two], [*start, *one], start]
