"""What a window's model is sent of files that went back, and which turn they count for."""

from __future__ import annotations

import json

import pytest

from backtrail.cli.picker import Rows, prompts
from backtrail.exchange.export.document import Reader

from .calling import Agent, World
from .test_mirroring import Transcript

SAYS = "The user restored these files to an earlier state with Backtrail: "


def bytes_of(world: World) -> dict[str, bytes]:
    """The files of the project."""
    return {path.name: path.read_bytes() for path in world.project.iterdir()}


class Window:
    """A window of Claude Code that stays open; its oracle is what the files were at its last look.

    `back` runs a command that goes back, and `says` what a prompt gives the model.
    """

    def __init__(self, world: World, agent: Agent, transcript: Transcript) -> None:
        self.world, self.agent, self.transcript = world, agent, transcript
        self.seen = bytes_of(world)
        agent.begin()

    def turn(self, words: str, path: str | None = None) -> None:
        self.agent.prompt(words, id=words)
        self.transcript.add("user", words, promptId=words)
        if path is not None:
            self.transcript.call(f"call-{words}")
            self.agent.write(self.world.project / path, words, f"call-{words}")
            self.transcript.result(f"call-{words}")
        self._end(words)

    def back(self, *command: str, code: int = 0) -> None:
        done = self.world.run(*command, "--yes")
        assert done.returncode == code, done.stdout + done.stderr

    def says(self, words: str) -> list[str]:
        """Say something; the files that the model is sent as changed."""
        ran = self.agent.prompt(words, id=words)
        self.transcript.add("user", words, promptId=words)
        self._end(words)
        return named(ran)

    def _end(self, words: str) -> None:
        self.transcript.add("assistant", [{"type": "text", "text": f"done {words}"}])
        self.agent.hook("Stop", last_assistant_message=f"done {words}")
        self.seen = bytes_of(self.world)

    def differing(self) -> list[str]:
        """The files that are other than at the window's last look."""
        now = bytes_of(self.world)
        return sorted(n for n in {*now, *self.seen} if now.get(n) != self.seen.get(n))


def named(ran: str) -> list[str]:
    """The files that a note names, all in one sentence."""
    if not ran:
        return []
    begin, _, rest = ran.partition(SAYS)
    assert not begin and SAYS not in rest
    names, _, end = rest.partition("; read them again")
    assert end
    return names.split(", ")


@pytest.fixture
def window(world: World, agent: Agent) -> Window:
    path = world.root / "config" / "projects" / "-project" / "s1.jsonl"
    path.parent.mkdir(parents=True)
    path.touch()
    agent.more = {"transcript_path": str(path)}
    return Window(world, agent, Transcript(path))


@pytest.fixture
def three(window: Window) -> Window:
    """Three turns, each of which wrote its file."""
    for name in ("n1", "n2", "n3"):
        window.turn(name, f"{name}.txt")
    return window


def files_of(world: World, key: str = "claude-code:s1") -> dict[str, list[tuple[str, str, str]]]:
    """Each turn's changes: by which call, of which file, and how."""
    with world.session(key) as session:
        return {
            one.prompt: [(c.by, f.path, f.status) for c in one.calls for f in c.files]
            for one in session.changes()
        }


def test_several_undos_are_reported_as_one(three: Window, world: World) -> None:
    """The old window hears of every file that went back since it last looked."""
    three.back("undo")
    three.back("undo")
    assert bytes_of(world) == {"n1.txt": b"n1"}
    assert three.differing() == ["n2.txt", "n3.txt"]
    assert three.says("four") == ["n2.txt", "n3.txt"]
    assert three.says("five") == []


def test_what_the_window_becomes_is_reported_too(three: Window, world: World) -> None:
    """A rewind in the fork, a prompt, and two undos: each prompt hears what differs by then."""
    three.back("undo")
    three.back("undo")
    three.says("four")
    with world.session() as fork:
        three.back("rewind", "--scope", "files", "--session", fork.id, "1")
        assert three.differing() == ["n1.txt"]
        assert three.says("five") == ["n1.txt"]
        three.back("undo", "--session", fork.id)
        three.back("undo", "--session", fork.id)
    assert bytes_of(world) == {"n1.txt": b"n1"}
    assert three.differing() == ["n1.txt"]
    assert three.says("six") == ["n1.txt"]


def test_what_is_as_it_was_is_not_reported(three: Window, world: World) -> None:
    """There and back again is nothing; half of the way back is the other half."""
    three.back("undo")
    three.back("undo")
    three.back("redo")
    assert three.differing() == ["n3.txt"]
    three.back("redo")
    assert three.differing() == []
    assert three.says("four") == []
    three.back("rewind", "--scope", "files", "1")
    three.back("undo")
    assert three.says("five") == []


def test_a_file_restored_alone(three: Window, world: World) -> None:
    """`restore`, and a person's own edits beside it, which are no restoring."""
    three.turn("n4", "n1.txt")
    three.back("restore", "n1.txt")
    (world.project / "mine.txt").write_text("mine")
    assert bytes_of(world)["n1.txt"] == b"n1"
    assert three.differing() == ["mine.txt", "n1.txt"]
    assert three.says("five") == ["n1.txt"]


def test_the_new_window_knows_its_files(three: Window, world: World) -> None:
    """What went back with its words is as it thinks; what went back besides is news to both."""
    done = world.run("undo", "--yes", "--json")
    native = json.loads(done.stdout)["native"]["id"]
    three.back("restore", "n1.txt")
    assert bytes_of(world) == {"n2.txt": b"n2"}
    new = Agent(world, session=native, more={"transcript_path": None})
    assert named(new.prompt("four", id="four")) == ["n1.txt"]
    assert three.differing() == ["n1.txt", "n3.txt"]
    assert three.says("five") == ["n1.txt", "n3.txt"]


def test_another_session_of_the_folder_is_reported(three: Window, world: World) -> None:
    """Its files are the same ones."""
    other = Agent(world, session="s2", more={"transcript_path": None})
    other.begin()
    assert other.prompt("hello", id="hello") == ""
    with world.session() as session:
        three.back("undo", "--session", session.id)
    assert named(other.prompt("go on", id="go on")) == ["n3.txt"]
    assert other.prompt("more", id="more") == ""


@pytest.mark.parametrize("name", ["codex", "gemini"])
def test_other_agents_are_reported(world: World, name: str) -> None:
    """In the form that each takes."""
    agent = Agent(world, name=name, more={"transcript_path": None})
    event = "UserPromptSubmit" if name == "codex" else "BeforeAgent"
    calls = ("PreToolUse", "PostToolUse") if name == "codex" else ("BeforeTool", "AfterTool")
    for n in (1, 2, 3):
        agent.hook(event, prompt=f"p{n}", turn_id=f"p{n}")
        fields = {"tool_name": "shell", "tool_input": {"command": f"{n}"}, "tool_use_id": f"t{n}"}
        agent.hook(calls[0], **fields)
        (world.project / f"n{n}.txt").write_text(f"{n}")
        agent.hook(calls[1], tool_response={}, **fields)
    for prompt in ("@-1", "@-2"):
        done = world.run("rewind", "--scope", "files", "--yes", "--before", prompt)
        assert done.returncode == 0, done.stderr
    assert sorted(bytes_of(world)) == ["n1.txt"]
    ran = json.loads(agent.hook(event, prompt="p4", turn_id="p4"))["hookSpecificOutput"]
    assert named(ran["additionalContext"]) == ["n2.txt", "n3.txt"]
    assert agent.hook(event, prompt="p5", turn_id="p5") == ""


def test_an_undo_is_never_the_agents(three: Window, world: World) -> None:
    """The person took files back with our own command: each turn of the fork did what it did."""
    three.back("undo")
    three.back("undo")
    three.says("four")
    assert files_of(world) == {
        "n1": [("Write", "n1.txt", "added")],
        "n2": [("Write", "n2.txt", "added")],
        "n3": [
            ("Write", "n3.txt", "added"),
            ("others", "n2.txt", "deleted"),
            ("others", "n3.txt", "deleted"),
        ],
        "four": [],
    }
    with world.session() as session, Reader(session.store, session.info()) as reader:
        found = prompts(session)
        rows = Rows(session, found, reader)
        shown = {event.id: row.split() for event, row in zip(found, rows, strict=True)}
        fork = session.id
    for name in ("n1", "n2", "n3"):
        assert "1 file +1" in " ".join(shown[name])
    assert "file" not in shown["four"]
    for verb in ("log", "show"):
        ran = world.run(verb, fork)
        assert ran.returncode == 0, ran.stderr
        assert "back as at event" not in ran.stdout
    # Nothing of these turns is left, so nothing is in the way.
    first = world.events("claude-code:s1", "user_message")[0].seq
    done = world.run("rewind", "--session", fork, "--before", str(first), "--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)["conflicts"]) == (0, [])
    assert bytes_of(world) == {}
