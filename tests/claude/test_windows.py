"""Claude Code as people use it, on a terminal: our conversation is what the model is sent."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail.exchange.native import write_session

from ..hooks.calling import World
from ..programs import needs
from .running import Claude, binary, calls
from .window import READY, Planned, Step, Window, bash, edit, window, write

pytestmark = needs("claude", binary(), terminal=True, seconds=120)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return World(tmp_path).project


@pytest.fixture
def model(project: Path) -> Iterator[Planned]:
    a, b = project / "a.txt", project / "b.txt"
    agent = {"description": "d", "prompt": "sub-task", "subagent_type": "general-purpose"}
    plan: dict[str, list[Step]] = {
        "say-one": ["answer one"],
        "say-two": ["answer two"],
        "say-three": ["answer three"],
        "write-a": [write(a, "one\n", "1"), "wrote a"],
        "edit-a": [edit(a, "one", "two", "2"), "edited a"],
        "edit-both": [
            edit(a, "one", "two", "9"),
            edit(b, "b", "c", "10"),
            bash("echo s > s.txt", "11"),
            "edited both",
        ],
        "write-b": [write(b, "b\n", "3"), "wrote b"],
        "use-agent": [calls("Agent", agent, "4"), "started it"],
        "sub-task": [bash("sleep 1; echo x > sub.txt", "5"), "sub is done"],
        "run-slow": [bash("echo s > s.txt; sleep 60; echo t > t.txt", "6"), "ran slow"],
        "run-long": [bash("sleep 3; echo l > l.txt", "8"), "ran long"],
        "run-top": [bash("echo t > ../top.txt", "7"), "ran top"],
    }
    with Planned(plan) as server:
        yield server


@pytest.fixture
def claude(tmp_path: Path, model: Planned) -> Claude:
    """Claude Code with our hooks; edits, commands and agents need no question."""
    made = Claude(World(tmp_path), model)
    allowed = {"permissions": {"allow": ["Bash", "Agent"]}}
    (made.config / "settings.json").write_text(json.dumps(allowed))
    done = made.world.run("hooks", "install", "claude-code", "--yes")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def one(claude: Claude, model: Planned) -> Iterator[Window]:
    """A window with `claude` in it."""
    with window(claude) as terminal:
        terminal.wait(READY)
        yield Window(claude, model, terminal)


def goes_on(one: Window) -> list[str]:
    """What the model is sent if Claude goes on with the session that we write."""
    with one.session() as session:
        native = write_session(session)
    one.claude.say("say-one", "--resume", native.id)
    return one.model.sent("say-one")


def shown(one: Window, *arguments: str) -> str:
    done = one.claude.world.run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("choice", "text", "kept"), [(1, "one\n", False), (2, "two\n", False),
                                                      (3, "one\n", True)],
                         ids=["both", "conversation", "code"])  # fmt: skip
def test_its_own_rewind(one: Window, project: Path, choice: int, text: str, kept: bool) -> None:
    """`/rewind` or Esc Esc, in the three ways it offers."""
    for word in ("write-a", "edit-a", "say-two"):
        one.say(word)
    if choice == 2:
        # Until its hooks are done, the key stops the turn.
        one.terminal.until(lambda: one.terminal.screen().count(" · done ") == 3, what="the ends")
        one.terminal.press("Escape")
        one.terminal.press("Escape")
    else:
        one.enter("/rewind")
    one.rewind(2, choice)
    assert (project / "a.txt").read_text() == text
    one.say("say-three")
    sent = one.model.sent("say-three")
    assert ("edit-a" in sent) is kept
    assert one.ran() == [*sent, "answer three"]
    log = shown(one, "log")
    assert "by others" not in log
    assert ("branch edit-a" in shown(one, "tree")) is not kept
    ran = one.ran()
    assert goes_on(one) == [*ran, "say-one"]
    assert one.claude.world.misses() == []


@pytest.mark.parametrize("by", ["agent", "person"])
def test_the_one_that_put_files_back(one: Window, project: Path, by: str) -> None:
    """It restores all files that it edited, and nothing else; a person may put back one alone."""
    a, b, shell = (project / name for name in ("a.txt", "b.txt", "s.txt"))
    for word in ("write-a", "write-b", "edit-both"):
        one.say(word)
    if by == "agent":
        one.enter("/rewind")
        one.rewind(1, 3)
        one.terminal.until(lambda: b.read_text() == "b\n", what="the files")
    else:
        a.write_text("one\n")
    assert (a.read_text(), shell.read_text()) == ("one\n", "s\n")
    assert b.read_text() == ("b\n" if by == "agent" else "c\n")
    one.say("say-three")
    assert one.ran() == [*one.model.sent("say-three"), "answer three"]
    with one.session() as session:
        calls = [call for turn in session.changes() for call in turn.calls]
    ran = [(call.by, [file.path for file in call.files]) for call in calls][-1]
    assert ran == (("going back", ["a.txt", "b.txt"]) if by == "agent" else ("others", ["a.txt"]))


def test_tasks_in_the_background(one: Window, project: Path) -> None:
    """They are the default: what they do is the turn's, and what they use is counted."""
    one.say("use-agent")
    one.terminal.wait("was notified")
    one.say("say-two")
    assert one.ran() == [*one.model.sent("say-two"), "answer two"]
    with one.session() as session:
        assert session.branches() == []
        info = session.info()
        (turn,) = [turn for turn in session.changes() if turn.calls]
        assert [file.path for call in turn.calls for file in call.files] == ["sub.txt"]
        prompt = next(e for e in session.history() if e.seq == turn.seq)
    assert "use-agent" in json.dumps(prompt.data["message"])
    assert info.turn_count == 2
    spent = one.model.spent
    for name in ("input_tokens", "output_tokens"):
        assert info.usage[name] == sum(usage[name] for usage in spent), name
    assert "sub.txt" in shown(one, "show")
    assert "left behind" not in shown(one, "log")
    assert one.claude.world.misses() == []


def test_back_to_the_beginning(one: Window, project: Path) -> None:
    """To before the first prompt: the model is sent nothing of what was."""
    one.say("write-a")
    one.say("say-two")
    one.enter("/rewind")
    one.rewind(2, 1)
    assert not (project / "a.txt").exists()
    one.say("say-three")
    assert one.model.sent("say-three") == ["say-three"]
    assert one.ran() == ["say-three", "answer three"]
    assert "by others" not in shown(one, "log")
    assert goes_on(one) == ["say-three", "answer three", "say-one"]


@pytest.mark.parametrize("words", [["say-three"], ["say-three", "write-a", "back", "edit-a"]])
@pytest.mark.parametrize("is_typed", [True, False], ids=["typed", "headless"])
def test_resuming_what_was_started_over(
    claude: Claude, model: Planned, words: list[str], is_typed: bool
) -> None:
    """A new process follows the parents that lines name: the model is sent the old turns again."""
    with window(claude) as terminal:
        terminal.wait(READY)
        one = Window(claude, model, terminal)
        for word in ("say-one", "say-two", "back", *words):
            if word == "back":
                one.enter("/rewind")
                one.rewind(2, 1)
            else:
                one.say(word)
        started = model.sent(words[-1])
        assert started == words[-1:] or words[-1] == "write-a"
        assert one.ran()[: len(started)] == started
        one.enter("/exit")
        terminal.until(lambda: not one.is_open, what="the end")
    before = one.ran()
    if is_typed:
        with window(claude, "--continue") as terminal:
            terminal.wait(READY)
            one = Window(claude, model, terminal)
            one.say("write-b")
    else:
        claude.say("write-b", "--continue")
    sent = model.sent("write-b")
    if sent[:4] != ["say-one", "answer one", "say-two", "answer two"]:
        pytest.fail(f"claude sends something else now: {sent}")
    assert one.ran() == [*sent, "wrote b"]
    with one.session() as session:
        assert session.branches() == []
        usage = session.info().usage
        for name in ("input_tokens", "output_tokens"):
            assert usage[name] == sum(spent[name] for spent in model.spent), name
        session.undo()
        assert model.ran(session.messages()) == sent[:-1]
        session.undo()
        assert model.ran(session.messages()) == before


def chain(one: Window) -> list[str]:
    """The uuids of the transcript's lines from its last one up, by the parents they name."""
    (path,) = (one.claude.config / "projects").glob("*/*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_uuid = {line["uuid"]: line for line in lines if "uuid" in line}
    found = [list(by_uuid)[-1]]
    while parent := by_uuid[found[-1]]["parentUuid"]:
        found.append(parent)
    return found


@pytest.mark.parametrize("command", ["!echo hello", "/context"])
def test_a_command_right_after_its_rewind(one: Window, command: str) -> None:
    """The head moves with the command: neither it nor what follows is on the way that was left."""
    for word in ("say-one", "say-two"):
        one.say(word)
    one.enter("/rewind")
    one.rewind(1, 1)
    if command.startswith("!"):
        one.run(command[1:])
    else:
        one.enter(command)
        one.terminal.wait("Context Usage")
    one.say("say-three")
    sent = one.model.sent("say-three")
    assert "say-two" not in sent
    assert one.ran() == [*sent, "answer three"]
    with one.session() as session:
        (moved,) = session.events(kinds=("rewound",))
        (left,) = session.branches()
        assert left.message_count == 2
        assert session.info().turn_count == 2
        # The line that shows it is on the way which the transcript ends with.
        assert moved.data["source"]["lines"][0] in chain(one)
        behind = [event for event in session.events() if event.seq > moved.seq]
        assert behind[0].kind == "system_message"
        # One undo a turn, and one for the rewind.
        session.undo()
        assert one.model.ran(session.messages())[:2] == ["say-one", "answer one"]
        session.undo()
        assert one.model.ran(session.messages())[-2:] == ["say-two", "answer two"]


def test_a_shell_command_at_the_beginning(one: Window) -> None:
    """Behind a rewind to before the first prompt: the model is sent the command alone."""
    for word in ("say-one", "say-two"):
        one.say(word)
    one.enter("/rewind")
    one.rewind(2, 1)
    one.run("echo hello")
    one.say("say-three")
    assert one.model.sent("say-three") == ["say-three"]
    assert "<bash-stdout>hello" in json.dumps(one.model.requests[-1])
    assert one.ran() == ["say-three", "answer three"]
    with one.session() as session:
        said = json.dumps(session.messages())
        assert "<bash-input>echo hello" in said
        assert "<bash-stdout>hello" in said
        (moved,) = session.events(kinds=("rewound",))
        assert moved.data["to"] == 2


def test_clear(one: Window) -> None:
    """It begins a session of its own; the one before stays as it was."""
    one.say("say-one")
    one.enter("/clear")
    one.terminal.until(lambda: "answer one" not in one.terminal.screen(), what="the clearing")
    one.say("say-two")
    assert one.ran() == [*one.model.sent("say-two"), "answer two"] == ["say-two", "answer two"]
    first, second = one.claude.world.sessions()[::-1]
    with one.claude.world.session(first.key or "") as session:
        assert one.model.ran(session.messages()) == ["say-one", "answer one"]
        assert session.info().exit_reason == "clear"
    assert second.parent_id is None


def test_compact(one: Window) -> None:
    """The model is sent a summary; so it is by the session that we write."""
    one.model.plan["CRITICAL: Respond with TEXT ONLY"] = ["the sum of it"]
    for word in ("say-one", "say-two"):
        one.say(word)
    one.enter("/compact")
    one.terminal.wait("Compacted")
    one.say("say-three")
    sent = one.model.sent("say-three")
    assert "say-one" not in sent
    assert "the sum of it" in sent
    with one.session() as session:
        assert [event.kind for event in session.history()].count("compaction") == 1
        assert session.branches() == []
    assert one.ran()[-2:] == ["say-three", "answer three"]
    # A request for a summary is no prompt of ours.
    assert goes_on(one) == [*sent, "answer three", "say-one"]


def test_continue(claude: Claude, model: Planned) -> None:
    """`--continue` goes on with the same session, in another process."""
    with window(claude) as terminal:
        terminal.wait(READY)
        one = Window(claude, model, terminal)
        one.say("say-one")
        one.enter("/exit")
        terminal.until(lambda: not one.is_open, what="the end")
    with window(claude, "--continue") as terminal:
        terminal.wait(READY)
        one = Window(claude, model, terminal)
        one.say("say-two")
    assert one.ran() == [*model.sent("say-two"), "answer two"]
    assert len(one.ran()) == 4
    (info,) = claude.world.sessions()
    assert info.turn_count == 2
    with one.session() as session:
        assert session.branches() == []


def test_two_at_once(claude: Claude, model: Planned, project: Path) -> None:
    """Each has its own words and its own files."""
    with window(claude) as first, window(claude) as second:
        windows = [Window(claude, model, terminal) for terminal in (first, second)]
        for one, word in zip(windows, ("write-a", "write-b"), strict=True):
            one.terminal.wait(READY)
            one.enter(word)
        first.wait("wrote a")
        second.wait("wrote b")
        windows[0].terminal.until(lambda: windows[0].ends() == 2, what="the ends")
        infos = claude.world.sessions()
        assert len(infos) == 2
        ran = {}
        for info in infos:
            with claude.world.session(info.key or "") as session:
                (prompt, *answers) = model.ran(session.messages())
                ran[prompt] = answers
                changed = [file.path for turn in session.changes() for call in turn.calls
                           for file in call.files if call.by != "others"]  # fmt: skip
                assert changed == [f"{prompt[-1]}.txt"]
                assert model.sent(prompt) == [prompt]
        assert ran == {"write-a": ["wrote a"], "write-b": ["wrote b"]}


def test_an_interrupt_in_a_tool(one: Window, project: Path) -> None:
    """Esc stops the command; the next request has what we have."""
    one.enter("run-slow")
    one.terminal.until((project / "s.txt").exists, what="the command")
    one.terminal.press("Escape")
    one.terminal.wait("Interrupted")
    one.say("say-two")
    assert one.ran() == [*one.model.sent("say-two"), "answer two"]
    with one.session() as session:
        assert session.branches() == []
        assert not session.pending()
        assert session.info().turn_count == 2
        prompt = next(session.events(kinds=("user_message",)))
        changed = {file.path for turn in session.changes() for call in turn.calls
                   for file in call.files if call.by != "others"}  # fmt: skip
        assert changed == {"s.txt"}
        session.rewind(before=prompt, on_conflict="overwrite")
    assert not (project / "s.txt").exists()
    assert not (project / "t.txt").exists()


def test_a_denied_permission(claude: Claude, model: Planned, project: Path) -> None:
    """What was denied did nothing; what a person saves meanwhile is theirs."""
    with window(claude, mode="default") as terminal:
        terminal.wait("for shortcuts")
        one = Window(claude, model, terminal)
        one.enter("write-a")
        terminal.wait("Do you want to create a.txt?")
        (project / "mine.txt").write_text("mine\n")
        one.deny("Do you want to create a.txt?")
        terminal.wait("User rejected")
        one.say("say-two")
        assert one.ran() == [*model.sent("say-two"), "answer two"]
        assert not (project / "a.txt").exists()
        with one.session() as session:
            prompt = next(session.events(kinds=("user_message",)))
            session.rewind(before=prompt)
        assert (project / "mine.txt").read_text() == "mine\n"


def test_started_in_a_subfolder(claude: Claude, model: Planned, project: Path) -> None:
    """The project is watched over, wherever in it `claude` runs."""
    sub = project / "sub"
    sub.mkdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    with window(claude, cwd=sub) as terminal:
        terminal.wait(READY)
        one = Window(claude, model, terminal)
        one.say("run-top")
        assert (project / "top.txt").exists()
        with one.session() as session:
            info = session.info()
            assert (info.cwd, info.root) == (str(sub), str(project))
            assert [f.path for t in session.changes() for c in t.calls for f in c.files] == [
                "top.txt"
            ]
            session.undo()
        assert not (project / "top.txt").exists()


def test_resuming_a_fork_that_ends_in_a_prompt(one: Window) -> None:
    """Claude puts an answer of its own behind it: no branch, and all in its order."""
    one.say("say-one")
    one.say("say-two")
    with one.session() as session:
        prompt = list(session.events(kinds=("user_message",)))[-1]
    done = shown(one, "fork", str(prompt.seq))
    found = re.search(r"claude --resume ([0-9a-f-]{36})", done)
    assert found is not None, done
    with window(one.claude, "--resume", found.group(1)) as terminal:
        terminal.wait(READY)
        other = Window(one.claude, one.model, terminal)
        other.say("say-three")
        sent = one.model.sent("say-three")
        assert sent == ["say-one", "answer one", "say-two", "say-three"]
        assert other.ran() == [*sent, "answer three"]
        with other.session() as session:
            assert session.branches() == []
            assert session.info().turn_count == 3


def test_a_prompt_while_it_is_at_work(one: Window, project: Path) -> None:
    """It is sent with the next result: the call goes on, and all it did is captured."""
    one.enter("run-long")
    one.terminal.wait("Running")
    one.say("say-two")
    one.terminal.wait("answer two")
    sent = one.model.sent("say-two")
    assert sent == ["run-long", "say-two"]
    assert one.ran() == [*sent, "answer two"]
    with one.session() as session:
        assert session.branches() == []
        calls = [call for turn in session.changes() for call in turn.calls]
        assert [(call.by, [file.path for file in call.files]) for call in calls] == [
            ("Bash", ["l.txt"])
        ]
        assert session.not_captured() == []
        native = write_session(session)
    one.claude.say("say-one", "--resume", native.id)
    assert one.model.sent("say-one") == [*sent, "answer two", "say-one"]


def test_an_interrupt_with_a_prompt_waiting(one: Window, project: Path) -> None:
    """The transcript has the prompt before the result of the call that it stopped."""
    one.enter("run-slow")
    one.terminal.until((project / "s.txt").exists, what="the command")
    one.enter("say-two")
    one.terminal.wait("queued messages")
    before = one.ends()
    one.terminal.press("Escape")
    one.terminal.until(lambda: one.ends() > before, what="the end of the turn")
    one.say("say-three")
    sent = one.model.sent("say-three")
    assert sent == ["run-slow", "say-two", "answer two", "say-three"]
    assert one.ran() == [*sent, "answer three"]
    with one.session() as session:
        assert session.branches() == []
        assert session.info().turn_count == 3
        native = write_session(session)
    one.claude.say("say-one", "--resume", native.id)
    assert one.model.sent("say-one") == [*sent, "answer three", "say-one"]
