"""chat against a real server on loopback: one turn in pipes, and conversations on a terminal."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.agent.permissions import PHASES
from backtrail.cli import chat
from backtrail.events import Json
from backtrail.stores import open_store
from tests.agent.servers import Answer, Failure, OpenAIServer
from tests.agent.test_turns import call, calling

from .acting import Project, empty
from .stage import Ran
from .terminal import CTRL_C, CTRL_D, DOWN, ENTER, UP, Terminal


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = empty(tmp_path)
    # Otherwise the first verb would say that it makes it.
    (tmp_path / "store").mkdir(mode=0o700, exist_ok=True)
    made.write("app.py", "foo = 1\n")
    return made


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def at(server: OpenAIServer) -> list[str]:
    return ["--model", "vllm:m", "--base-url", server.url]


def once(project: Project, server: OpenAIServer, *arguments: str, **more: Json) -> Ran:
    return project.run("chat", *at(server), *arguments, **more)


def on_terminal(project: Project, server: OpenAIServer, *arguments: str) -> Terminal:
    return project.terminal("chat", *at(server), *arguments, lines=60)


def latest(project: Project) -> list[str]:
    """What was said in the newest session, without the system prompt."""
    with open_store(project.url) as store:
        messages = store.latest(project.root)
    return project.said(messages.id)[1:]


def prompts(server: OpenAIServer) -> list[str]:
    """What the user said, as the model saw it last."""
    return [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "user"]


EDIT = calling(call("1", "edit", path="app.py", old_string="foo", new_string="bar"))
SHELL = calling(call("2", "bash", command="echo hi > out.txt"))


# --- one turn ----------------------------------------------------------------------------


def test_a_prompt_without_a_terminal_is_one_turn(project: Project, server: OpenAIServer) -> None:
    """The answer is on stdout, all of it and nothing else; the session is recorded."""
    server.script("Hello.\n\nIt is " + "x" * 5000)
    done = once(project, server, "who are you?")
    assert done.code == 0, done.err
    assert done.out == "Hello.\n\nIt is " + "x" * 5000 + "\n"
    assert done.err == ""
    assert latest(project)[0] == "who are you?"
    assert str(project.root) in server.requests[0]["messages"][0]["content"]


def test_hostile_answers_stay_text(project: Project, server: OpenAIServer) -> None:
    """Escape sequences of a model are shown, not sent."""
    server.script("a \x1b[2J\u202e b")
    assert once(project, server, "hi").out == "a \\x1b[2J\\u202e b\n"


def test_a_chat_in_a_folder_of_a_project_captures_the_project(
    project: Project, server: OpenAIServer
) -> None:
    """The agent works in the folder; what it does above goes back with the turn."""
    (project.root / ".git").mkdir()
    (project.root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    sub = project.root / "sub"
    sub.mkdir()
    above = calling(call("1", "bash", command="echo foo = 2 > ../app.py; pwd > here.txt"))
    server.script(above, "Done.")
    assert once(project, server, "--phase", "trusted", "go", cwd=sub).code == 0
    assert (sub / "here.txt").read_text().strip() == str(sub.resolve())
    with open_store(project.url) as store:
        info = store.latest(sub)
    assert (info.cwd, info.root) == (str(sub.resolve()), str(project.root.resolve()))
    assert (project.root / "app.py").read_text() == "foo = 2\n"
    assert project.run("undo", "--yes", cwd=sub).code == 0
    assert (project.root / "app.py").read_text() == "foo = 1\n"


def test_the_prompt_may_come_from_stdin(project: Project, server: OpenAIServer) -> None:
    """As `-`; an empty one is an error, and no model is asked."""
    server.script("Seen.")
    assert once(project, server, "-", input="look at\nthis").out == "Seen.\n"
    assert prompts(server) == ["look at\nthis"]
    assert once(project, server, "-", input=" \n").code == 2
    assert len(server.requests) == 1


def test_json_reports_how_the_turn_went(project: Project, server: OpenAIServer) -> None:
    """Text, reason, usage, files; an error has exit code 1."""
    server.script(EDIT, "Renamed.")
    done = once(project, server, "--phase", "accept_edits", "--json", "rename foo")
    assert done.code == 0
    row = done.json
    assert (row["text"], row["exit_reason"], row["files"]) == ("Renamed.", "end_turn", ["app.py"])
    assert row["usage"]["output_tokens"] == 14
    assert project.files() == {"app.py": "bar = 1\n"}
    assert project.run("undo", "--session", row["session"], "--yes").code == 0
    assert project.files() == {"app.py": "foo = 1\n"}
    server.script(Failure(400, "no such model"))
    failed = once(project, server, "--json", "again")
    assert failed.code == 1
    assert "no such model" in failed.json["error"]


def test_a_session_of_another_folder_says_where_the_agent_works(
    project: Project, server: OpenAIServer
) -> None:
    """It is named, so it is meant; but it does not work here."""
    server.script("One.", "Two.")
    first = once(project, server, "--json", "one").json["session"]
    other = project.home / "other"
    other.mkdir()
    done = once(project, server, "--resume", first, "two", cwd=other)
    assert (done.code, done.out) == (0, "Two.\n")
    assert f"the agent works in {project.root}" in done.err


def test_a_session_goes_on_at_its_own_server(project: Project, server: OpenAIServer) -> None:
    """With its own model too, whatever the settings say."""
    server.script("One.", "Two.", "Three.")
    first = project.run("chat", "--model", "openai:m", "--base-url", server.url, "--json", "one")
    assert first.code == 0, first.err
    id = first.json["session"]
    line = f"cd {project.root} && backtrail chat --resume {id} --base-url {server.url}\n"
    assert project.run("resume").out == line
    gone = "http://127.0.0.1:9/v1"
    done = project.run("chat", "-c", "two", BACKTRAIL_MODEL="vllm:x", BACKTRAIL_BASE_URL=gone)
    assert (done.code, done.out) == (0, "Two.\n"), done.err
    forked = project.run("fork", "--json").json["session"]
    done = project.run("chat", "--resume", forked, "three", BACKTRAIL_MODEL="vllm:x")
    assert (done.code, done.out) == (0, "Three.\n"), done.err
    assert [request["model"] for request in server.requests] == ["m", "m", "m"]


def test_credentials_in_an_address_are_not_kept(project: Project, server: OpenAIServer) -> None:
    """They are for this run alone."""
    address = f"{server.url.replace('//', '//me:secret@')}?key=secret"
    project.run("chat", "--model", "openai:m", "--base-url", address, "one")
    kept = project.run("ls", "--json").json["sessions"][0]["metadata"]
    assert kept["base_url"] == server.url
    assert "secret" not in str(kept)


def test_an_imported_session_chooses_no_server(project: Project, server: OpenAIServer) -> None:
    """Who packed it would get the conversation, and a key: the address must be said here."""
    server.script("One.", "Two.")
    first = project.run("chat", "--model", "openai:m", "--base-url", server.url, "one")
    assert first.out == "One.\n", first.err
    assert project.run("export", "-o", "../a.bundle").code == 0
    assert project.run("import", "../a.bundle", "--as", "copy").code == 0
    assert "--base-url" not in project.run("resume", "copy").out
    assert project.run("config", "allow").code == 0
    refused = project.run("chat", "--resume", "copy", "two")
    assert (refused.code, f"--base-url {server.url}" in refused.err) == (2, True)
    assert len(server.requests) == 1
    ran = project.run("chat", "--resume", "copy", "--base-url", server.url, "two")
    assert ran.out == "Two.\n", ran.err
    assert "--base-url" in project.run("resume", "copy").out


def test_without_a_terminal_tools_that_would_ask_are_refused(
    project: Project, server: OpenAIServer
) -> None:
    """The model gets an error; a phase lets them."""
    server.script(SHELL, "I may not.")
    assert once(project, server, "run it").out == "I may not.\n"
    assert "phase_gated" in server.requests[-1]["messages"][-1]["content"]
    assert "out.txt" not in project.files()
    server.script(SHELL, "Done.")
    assert once(project, server, "--phase", "trusted", "run it").code == 0
    assert project.files()["out.txt"] == "hi\n"


def test_tools_are_those_that_were_asked_for(project: Project, server: OpenAIServer) -> None:
    """All, none, or some by name; an unknown one is an error before any model is asked."""
    for given, names in (("none", []), ("read,grep", ["read", "grep"])):
        server.script("Yes.")
        assert once(project, server, "--tools", given, "hi").code == 0
        assert [t["function"]["name"] for t in server.requests[-1].get("tools", ())] == names
    wrong = once(project, server, "--tools", "drill", "hi")
    assert wrong.code == 1
    assert "`drill`" in wrong.err
    assert len(server.requests) == 2


def test_continue_resume_at_and_fork(project: Project, server: OpenAIServer) -> None:
    """The model sees the history that was meant, and a fork leaves its original alone."""
    server.script("One.", "Two.", "Three.", "Four.", "Five.")
    first = once(project, server, "--json", "one").json["session"]
    assert once(project, server, "-c", "two").out == "Two.\n"
    assert prompts(server) == ["one", "two"]
    assert once(project, server, "--resume", first[:13], "three").out == "Three.\n"
    assert prompts(server) == ["one", "two", "three"]
    forked = once(
        project, server, "--resume", first, "--at", "@-2", "--fork", "--json", "four"
    ).json
    assert forked["session"] != first
    assert prompts(server) == ["one", "two", "four"]
    assert len(project.said(first)) == 7
    assert once(project, server, "--resume", first, "--at", "@-3", "five").code == 0
    assert prompts(server) == ["one", "five"]


def test_a_session_remembers_its_model(project: Project, server: OpenAIServer) -> None:
    """Resumed without `--model`, the same one is asked; the settings and the flag count more."""
    server.script("One.", "Two.", "Three.")
    assert once(project, server, "one").code == 0
    again = project.run("chat", "-c", "--base-url", server.url, "two")
    assert again.out == "Two.\n"
    assert server.requests[-1]["model"] == "m"
    other = project.run("chat", "--base-url", server.url, "three", BACKTRAIL_MODEL="vllm:n")
    assert other.out == "Three.\n"
    assert server.requests[-1]["model"] == "n"


def test_no_persist_leaves_nothing(project: Project, server: OpenAIServer) -> None:
    """No session, no store, no history."""
    server.script("Hello.")
    done = once(project, server, "--no-persist", "--json", "hi")
    assert done.json["text"] == "Hello."
    assert done.json["session"] is None
    assert sorted(os.listdir(project.home)) == ["project", "store"]
    assert os.listdir(project.home / "store") == []


def test_what_makes_no_sense_is_refused(project: Project, server: OpenAIServer) -> None:
    """Each with what to give, before anything is made."""
    no_model = project.run("chat", "hi")
    assert no_model.code == 2
    assert "ollama:" in no_model.err
    assert "anthropic:" in no_model.err
    assert "BACKTRAIL_MODEL" in no_model.err
    for arguments, word in (
        (("--model", "gpt", "hi"), "PROVIDER:MODEL"),
        ((*at(server),), "PROMPT"),
        ((*at(server), "--json"), "PROMPT"),
        ((*at(server), "--at", "3", "hi"), "--resume"),
        ((*at(server), "-c", "--resume", "x", "hi"), "one of"),
        ((*at(server), "-c", "--no-persist", "hi"), "nothing behind"),
        ((*at(server), "--phase", "wild", "hi"), "accept_edits"),
    ):
        done = project.run("chat", *arguments)
        assert done.code == 2, arguments
        assert word in done.err
    assert project.run("chat", "--model", "nobody:m", "hi").code == 1
    assert once(project, server, "-c", "hi").code == 3
    assert once(project, server, "--resume", "nowhere", "hi").code == 3
    assert server.requests == []
    with open_store(project.url) as store:
        assert store.sessions() == []


def test_a_session_of_another_agent_is_forked_or_left(
    project: Project, server: OpenAIServer
) -> None:
    """Going on in it would part it from the agent's own record."""
    named = {"native": {"agent": "codex", "id": "x", "path": "/x"}}
    with Session.create(
        project.url, "theirs", cwd=project.root, agent_name="codex", metadata=named
    ) as session:
        session.append({"role": "user", "content": "theirs"})
    done = once(project, server, "-c", "mine")
    assert done.code == 1
    assert "`backtrail resume theirs`" in done.err
    server.script("Mine.")
    forked = once(project, server, "-c", "--fork", "--json", "mine")
    assert prompts(server) == ["theirs", "mine"]
    own = project.run("resume", forked.json["session"])
    assert "backtrail chat --resume" in own.out


def test_the_phases_are_those_of_the_agent() -> None:
    """They are written down a second time only so that help need not load the agent."""
    assert chat.PHASES == PHASES


# --- on a terminal -----------------------------------------------------------------------


def test_a_conversation_streams(project: Project, server: OpenAIServer) -> None:
    """Words as they come; a prompt may be given; before one, nothing is recorded."""
    held = threading.Event()
    server.script("Hello, you.", Answer("And again.", held=held))
    with on_terminal(project, server) as terminal:
        terminal.say(CTRL_D)
        assert terminal.end() == 0
    with open_store(project.url) as store:
        assert store.sessions() == []
    with on_terminal(project, server, "hi") as terminal:
        terminal.wait_for("> hi\nHello, you.\n27 tokens")
        terminal.say("more\\", ENTER)
        terminal.press("and more", ENTER)
        held.set()
        terminal.wait_for("And again.")
        terminal.say(CTRL_D)
        assert terminal.end() == 0
        assert terminal.is_restored()
    assert latest(project) == ["hi", "Hello, you.", "more\nand more", "And again."]


def test_a_tool_asks_first(project: Project, server: OpenAIServer) -> None:
    """No, yes, and always, which lasts as long as the chat."""
    server.script(SHELL, "Not run.", SHELL, "Run.", SHELL, "Always.", SHELL, "Unasked.")
    with on_terminal(project, server) as terminal:
        for prompt, answer, end in (
            ("one", "n", "Not run."),
            ("two", "y", "Run."),
            ("three", "a", "Always."),
        ):
            terminal.say(prompt, ENTER)
            terminal.wait_for(f"> {prompt}\n• bash echo hi > out.txt\nAllow bash?")
            terminal.press(answer, ENTER)
            terminal.wait_for(end)
            assert ("out.txt" in project.files()) == (prompt != "one")
        terminal.say("four", ENTER)
        text = terminal.wait_for("Unasked.")
        assert "> four\n• bash echo hi > out.txt\nUnasked." in text
        assert "user_denied" in server.requests[1]["messages"][-1]["content"]
        terminal.say("/quit", ENTER)
        assert terminal.end() == 0


def test_what_was_typed_ahead_allows_nothing(project: Project, server: OpenAIServer) -> None:
    """A key that was pressed before the question was there is no answer to it."""
    held = threading.Event()
    server.script(Answer(SHELL, held=held), "Not run.")
    with on_terminal(project, server) as terminal:
        terminal.say("go", ENTER)
        while not server.requests:
            terminal.wait_for("> go")
        terminal.press("y", ENTER)
        terminal.wait_for("y")
        held.set()
        terminal.wait_for("Allow bash?")
        terminal.press("n", ENTER)
        terminal.wait_for("Not run.")
    assert "out.txt" not in project.files()


def test_ctrl_c_interrupts_and_twice_leaves(project: Project, server: OpenAIServer) -> None:
    """The turn is recorded as interrupted, and the chat goes on."""
    server.script(Answer("slow " * 100, pause=0.05), "Quick.")
    with on_terminal(project, server) as terminal:
        terminal.ask("begin", "slow slow")
        terminal.press(CTRL_C)
        terminal.wait_for("interrupted; once more, or /quit, leaves")
        terminal.ask("go on", "Quick.")
        terminal.wait_for("tokens")
        terminal.say()
        assert terminal.interrupt() == 0
        terminal.wait_for("interrupted; once more, or /quit, leaves", times=2)
        assert terminal.is_restored()
    with Session.latest(project.url, cwd=project.root) as session:
        ends = [event.data["reason"] for event in session.events(kinds=("turn_end",))]
    assert ends == ["interrupted", "end_turn"]


def test_going_back_in_a_chat(project: Project, server: OpenAIServer) -> None:
    """/undo, /redo and /rewind move conversation and files; the prompt comes back to be changed."""
    server.script(EDIT, "Renamed.", "Fine.", "Better.")
    with on_terminal(project, server, "--phase", "accept_edits") as terminal:
        terminal.ask("rename", "1 file changed (app.py)")
        terminal.ask("/diff", "+bar = 1")
        terminal.ask("/undo", "Undo? [y/N]")
        terminal.press("y", ENTER)
        terminal.wait_for("take it back with: /redo")
        assert project.files() == {"app.py": "foo = 1\n"}
        terminal.ask("/redo", "Redo? [y/N]")
        terminal.press("y", ENTER)
        terminal.wait_for("take it back with: /undo")
        assert project.files() == {"app.py": "bar = 1\n"}
        terminal.ask("thanks", "Fine.")
        terminal.ask("/rewind", "> 2")
        terminal.press(UP, ENTER)
        terminal.wait_for("or [n]othing?")
        terminal.press("b", ENTER)
        terminal.say(" it", ENTER, mark="> rename")
        assert project.files() == {"app.py": "foo = 1\n"}
        terminal.wait_for("Better.")
        terminal.say(CTRL_D)
        assert terminal.end() == 0
        assert terminal.screen.unknown == []
    assert prompts(server) == ["rename it"]


def test_checkpoints_forks_and_sessions(project: Project, server: OpenAIServer) -> None:
    """A label to go back to, a copy to go on in, and the way to another session."""
    server.script("One.", "Two.", "Three.", "Four.")
    with on_terminal(project, server) as terminal:
        terminal.ask("/checkpoint", "nothing was said yet in this chat")
        terminal.ask("one", "One.")
        terminal.ask('/checkpoint "good"', 'checkpoint "good" at prompt 1')
        terminal.ask("/fork plan B", "now in the fork")
        terminal.ask("two", "Two.")
        terminal.ask("/rewind good", "or [n]othing?")
        terminal.press("c", ENTER)
        terminal.wait_for("take it back with: /undo")
        terminal.ask("three", "Three.")
        assert prompts(server) == ["one", "three"]
        assert "plan B" in terminal.ask("/sessions", "Which session?")
        terminal.press(DOWN, ENTER)
        terminal.wait_for("now in session")
        terminal.ask("four", "Four.")
        assert prompts(server) == ["one", "four"]
        terminal.ask("/nonsense", "no command `/nonsense`")
        terminal.ask("/help", "/checkpoint  [LABEL]")
        terminal.say("/quit", ENTER)
        assert terminal.end() == 0


def test_errors_do_not_end_a_chat(project: Project, server: OpenAIServer) -> None:
    """A model that fails, a session that is busy: it says so, and one can try again."""
    server.script(Failure(400, "too \x1b[5m long"), "Now it works.")
    with on_terminal(project, server) as terminal:
        terminal.ask("one", r"too \x1b[5m long")
        with open_store(project.url) as store:
            id = store.latest(project.root).id
            with store.lease(id):
                terminal.ask("two", f"process {os.getpid()}")
        terminal.ask("three", "Now it works.")
        terminal.say(CTRL_D)
        assert terminal.end() == 0


def test_prompts_are_remembered_for_the_next_chat(project: Project, server: OpenAIServer) -> None:
    """In a file that no other can read; not with `--no-persist`."""
    server.script("One.", "Two.", "Three.")
    with on_terminal(project, server, "--no-persist") as terminal:
        terminal.ask("secret", "One.")
        terminal.say(CTRL_D)
        assert terminal.end() == 0
    history = project.home / "state/backtrail/chat_history"
    assert not history.exists()
    with on_terminal(project, server) as terminal:
        terminal.ask("remember me", "Two.")
        terminal.say(CTRL_D)
        assert terminal.end() == 0
    assert history.stat().st_mode & 0o777 == 0o600
    assert "secret" not in history.read_text()
    with on_terminal(project, server) as terminal:
        terminal.say(UP, ENTER)
        terminal.wait_for("Three.")
        terminal.say(CTRL_D)
        assert terminal.end() == 0
    assert prompts(server) == ["remember me"]


def test_picking_the_session_to_resume(project: Project, server: OpenAIServer) -> None:
    """`--resume` alone lists those of this folder, newest first; leaving begins nothing."""
    for name in ("older", "newer"):
        with Session.create(project.url, name, cwd=project.root, title=name) as session:
            session.append({"role": "user", "content": f"in {name}"})
    server.script("Back.")
    with on_terminal(project, server, "--resume") as terminal:
        shown = terminal.wait_for("Which session?")
        assert shown.index("newer") < shown.index("older")
        terminal.press("q")
        assert terminal.end() == 1
        assert terminal.is_restored()
    with on_terminal(project, server, "--resume") as terminal:
        terminal.wait_for("Which session?")
        terminal.press(DOWN, ENTER)
        terminal.wait_for(f"session older, 1 message, with vllm:m at {server.url}")
        terminal.ask("go", "Back.")
        terminal.say(CTRL_D)
        assert terminal.end() == 0
    assert prompts(server) == ["in older", "go"]
