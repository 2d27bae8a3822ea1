"""Hooks in the real Codex: what it does is recorded, taken back, and gone on with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from backtrail import Session, open_store

from ..agent.servers.base import Answer
from ..hooks.calling import World
from ..programs import needs
from .running import USAGE, Codex, Model, binary, calls, patches, runs

pytestmark = needs("codex", binary())

SHELL_PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Add File: c.txt
+c
*** End Patch
EOF"""
AFTER = {"a.txt": "two\n", "b.txt": "b\n", "c.txt": "c\n"}


@pytest.fixture
def codex(tmp_path: Path, model: Model) -> Codex:
    """Codex with our hooks in its settings, and trusted."""
    made = Codex(World(tmp_path), model)
    done = made.world.run("hooks", "install", "codex", "--yes")
    assert done.returncode == 0, done.stderr
    made.trust()
    return made


def ran(codex: Codex, *arguments: str) -> Any:
    """What a verb says as JSON."""
    done = codex.world.run(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def files(folder: Path) -> dict[str, str]:
    """The files of a folder."""
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def new_session(said: str) -> str:
    """The id of the session that a verb says to go on with."""
    found = re.search(r"codex resume ([0-9a-f-]{36})", said)
    assert found is not None, said
    return found.group(1)


def heard(model: Model) -> list[dict[str, Any]]:
    """What was sent with the last request, without the instructions that are made anew."""
    items: list[dict[str, Any]] = model.requests[-1]["input"]
    return items[1:] if '"text": "You are' in json.dumps(items[0]) else items


def first_turn(codex: Codex, model: Model) -> str:
    """Shell commands and patches, one of which fails; the id of Codex's session."""
    (codex.world.project / "old.txt").write_text("old\n")
    model.script(
        patches("*** Add File: a.txt\n+one\n", "1"),
        patches("*** Update File: a.txt\n@@\n-one\n+two\n", "2"),
        patches("*** Update File: none.txt\n@@\n-one\n+two\n", "3"),
        runs("echo b > b.txt; rm old.txt", "4"),
        runs(SHELL_PATCH, "5"),
        "all is written",
    )
    native = codex.say("write some files")
    assert files(codex.world.project) == AFTER
    return native


def test_a_session_is_recorded(codex: Codex, model: Model) -> None:
    """Prompts, answers, calls, tokens, and which call changed which file."""
    native = first_turn(codex, model)
    world = codex.world
    assert world.misses() == []
    (info,) = world.sessions()
    assert (info.key, info.turn_count) == (f"codex:{native}", 1)
    assert info.usage["output_tokens"] == 6 * 7
    with world.session(info.key or "") as session:
        changed = [
            (call.by, [file.path for file in call.files])
            for turn in session.changes() for call in turn.calls
        ]  # fmt: skip
        assert changed == [
            ("apply_patch", ["a.txt"]),
            ("apply_patch", ["a.txt"]),
            ("Bash", ["b.txt", "old.txt"]),
            ("Bash", ["c.txt"]),
        ]
        words = json.dumps(session.messages())
        assert "all is written" in words
        assert words.count("write some files") == 1
        assert not session.pending()
        kinds = [event.kind for event in session.history()]
    assert kinds.count("user_message") == 1
    assert kinds[-2:] == ["turn_end", "session_end"]
    assert len(ran(codex, "ls")["sessions"]) == 1
    assert "b.txt" in world.run("diff", "--stat").stdout
    # Nothing of ours is an error to Codex.
    assert not [one for one in codex.ran if "hook" in str(one.get("item", {}).get("message"))]


def test_rewinding_takes_codex_along(codex: Codex, model: Model) -> None:
    """Files go back, and a new session goes on with exactly what was kept."""
    native = first_turn(codex, model)
    kept = heard(model)
    model.script(runs("echo spoilt > a.txt; rm b.txt", "7"), "I have spoilt it")
    codex.resume(native, "spoil it")
    assert files(codex.world.project) != AFTER
    done = codex.world.run("rewind", "--last", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert files(codex.world.project) == AFTER
    found = new_session(done.stdout)
    assert found != native
    model.script("going on")
    codex.resume(found, "what now?")
    now = heard(model)
    assert now[: len(kept)] == kept
    assert [item["type"] for item in now[len(kept) :]] == ["message", "message"]
    assert "all is written" in json.dumps(now[-2])
    assert "what now?" in json.dumps(now[-1])
    with codex.world.session(f"codex:{found}") as session:
        words = json.dumps(session.messages())
    assert len(codex.world.sessions()) == 1
    assert (words.count("write some files"), words.count("going on")) == (1, 1)
    assert "spoil" not in words
    assert codex.world.misses() == []
    # Codex itself shows it as it was.
    turns = [[item["type"] for item in turn["items"]] for turn in codex.turns(found)]
    assert turns[0][0] == "userMessage"
    assert (turns[0].count("fileChange"), turns[0].count("commandExecution")) == (3, 1)
    assert turns[1] == ["userMessage", "agentMessage"]


def test_rewinding_again_and_undoing(codex: Codex, model: Model) -> None:
    """Each time, what is kept is read as it was, whichever of the files it was in."""
    at = first_turn(codex, model)
    model.script("second answer")
    codex.resume(at, "second")
    for number in range(2):
        model.script(runs(f"echo {number} > a.txt", f"x{number}"), f"answer {number}")
        codex.resume(at, f"prompt {number}")
        done = codex.world.run("rewind", "--last", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        at = new_session(done.stdout)
    done = codex.world.run("undo", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    model.script("last answer")
    codex.resume(new_session(done.stdout), "last prompt")
    said = [
        item["content"][0]["text"]
        for item in heard(model) if item["type"] == "message" and item["role"] != "developer"
    ]  # fmt: skip
    words = ["write some files", "all is written", "second", "second answer", "prompt 1"]
    assert said[1:] == [*words, "answer 1", "last prompt"]
    assert codex.world.misses() == []


def test_a_fork_is_a_session_of_its_own(codex: Codex, model: Model) -> None:
    """In a folder of its own, with the files as they were; the first one goes on as it was."""
    native = first_turn(codex, model)
    there = codex.world.root / "plan-b"
    done = codex.world.run("fork", "--into", str(there))
    assert done.returncode == 0, done.stdout + done.stderr
    found = new_session(done.stdout + done.stderr)
    assert files(there) == AFTER
    model.script(runs("echo other > a.txt", "8"), "here I am")
    codex.resume(found, "go on here", cwd=there)
    words = json.dumps(heard(model))
    assert "all is written" in words
    assert f"<cwd>{there}</cwd>" in words
    assert (there / "a.txt").read_text() == "other\n"
    assert files(codex.world.project) == AFTER
    with codex.world.session(f"codex:{found}") as fork:
        assert fork.info().cwd == str(there)
        assert "here I am" in json.dumps(fork.messages())
        fork.undo()
    assert (there / "a.txt").read_text() == "two\n"
    with codex.world.session(f"codex:{native}") as session:
        assert "here I am" not in json.dumps(session.messages())
    assert len(codex.world.sessions()) == 2
    assert codex.world.misses() == []


def test_the_old_session_goes_on(codex: Codex, model: Model) -> None:
    """Who goes on in what was taken back does so in a fork; the rewound session stays as it is."""
    native = first_turn(codex, model)
    model.script(runs("echo spoilt > a.txt", "7"), "I have spoilt it")
    codex.resume(native, "spoil it")
    found = new_session(codex.world.run("rewind", "--last", "--yes").stdout)
    model.script(runs("echo d > d.txt", "8"), "gone on")
    codex.resume(native, "and more")
    assert "spoilt it" in model.heard()
    assert model.heard().count("a.txt; read them again") == 1
    with codex.world.session(f"codex:{found}") as session:
        assert "spoil" not in json.dumps(session.messages())
        parent = session.id
    with codex.world.session(f"codex:{native}") as session:
        words = json.dumps(session.messages())
        info = session.info()
    assert (info.relation, info.parent_id) == ("fork", parent)
    for said in ("write some files", "spoil it", "I have spoilt it", "and more", "gone on"):
        assert words.count(f'"{said}"') == 1, said
    assert codex.world.misses() == []


def test_a_rewind_of_files_alone_is_reported_to_codex(codex: Codex, model: Model) -> None:
    """With the next prompt, once."""
    native = first_turn(codex, model)
    done = codex.world.run("rewind", "--last", "--scope", "files", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert files(codex.world.project) == {"old.txt": "old\n"}
    model.script("I see", "really")
    codex.resume(native, "and now?")
    words = model.heard()
    assert "restored" in words
    assert words.count("to an earlier state") == 1
    codex.resume(native, "once more")
    assert model.heard().count("to an earlier state") == 1
    with codex.world.session(f"codex:{native}") as session:
        assert session.info().turn_count == 3


def test_turns_that_codex_takes_back_itself(codex: Codex, model: Model) -> None:
    """It goes on in another file; so do we, in a branch."""
    native = first_turn(codex, model)
    for number in range(2):
        model.script(f"wrong {number}", f"right {number}")
        codex.resume(native, f"wrong prompt {number}")
        codex.revert(native, codex.turns(native)[-1]["id"])
        codex.resume(native, f"right prompt {number}")
    kept = heard(model)
    assert "wrong" not in json.dumps(kept)
    assert len(list(codex.home.glob("sessions/*/*/*/*.jsonl"))) == 3
    words = ["write some files", "all is written", "right prompt 0", "right 0"]
    words += ["right prompt 1", "right 1"]

    def said(key: str, url: str = codex.world.url) -> list[str]:
        with open_store(url) as store:
            id = store.sessions(key=key)[0].id
        with Session.resume(url, id, files=False) as session:
            messages = session.messages("responses")
        texts = [m["content"][0]["text"] for m in messages if m.get("type") == "message"]
        return [text for text in texts if not text.startswith("<")]

    assert said(f"codex:{native}") == words
    assert len(codex.world.sessions()) == 1
    assert codex.world.misses() == []
    # What was never seen by hooks is read in the same way.
    other = f"sqlite:///{codex.world.root}/other/backtrail.db"
    done = codex.world.run("import", "codex", str(codex.home), "--store", other)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said(f"codex:{native}", other) == words
    done = codex.world.run("rewind", "--last", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    model.script("going on")
    codex.resume(new_session(done.stdout), "what now?")
    assert heard(model)[:-1] == kept[:-1]
    ends = [turn["status"] for turn in codex.turns(new_session(done.stdout))]
    assert ends == ["completed"] * 3


def test_a_fork_that_codex_makes_itself(codex: Codex, model: Model) -> None:
    """Its file has only what is new; what it has of its parent stays with it."""
    native = first_turn(codex, model)
    model.script("here I am", "spoilt")
    fork = codex.say("fork", native, "go on here")
    codex.resume(fork, "spoil it")
    kept = heard(model)[:-1]
    assert "all is written" in json.dumps(kept)
    with codex.world.session(f"codex:{fork}") as session:
        assert "all is written" not in json.dumps(session.messages())
    done = codex.world.run("rewind", "--last", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    model.script("going on")
    again = new_session(done.stdout)
    codex.resume(again, "what now?")
    assert heard(model)[:-1] == kept
    # To before its own first prompt: only the parent's is left, and that stays.
    with codex.world.session(f"codex:{again}") as session:
        first = next(session.events(kinds=("user_message",)))
    done = codex.world.run("rewind", "--before", str(first.seq), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    line = codex.world.run("resume").stdout
    model.script("from the start")
    codex.resume(new_session(line), "and now?")
    assert heard(model)[:-1] == kept[: len(kept) - 2]
    assert codex.world.misses() == []


def test_subagents_are_beside_their_session(tmp_path: Path, model: Model) -> None:
    """What one does to files is its session's; what it says is in a log of its own."""
    codex = Codex(World(tmp_path), model, "unknown-model")
    assert codex.world.run("hooks", "install", "codex", "--yes").returncode == 0
    codex.trust()

    def wait(body: dict[str, Any]) -> Any:
        agent = json.loads(body["input"][-1]["output"])["agent_id"]
        given = {"targets": [agent], "timeout_ms": 20_000}
        return calls("wait_agent", given, "2", namespace="multi_agent_v1")

    def answer(body: dict[str, Any]) -> Any:
        """The two talk at the same time: the one that asks is known by what was said."""
        ids = [item.get("call_id") for item in body["input"]]
        if "write c please" in json.dumps(body["input"]) and "call_1" not in ids:
            return "subagent is done" if "call_3" in ids else runs("echo c > c.txt", "3")
        if "call_1" not in ids:
            return calls(
                "spawn_agent", {"message": "write c please"}, "1", namespace="multi_agent_v1"
            )
        return "all is done" if "call_2" in ids else wait(body)

    model.script(*[answer] * 5)
    native = codex.say("have c written")
    assert files(codex.world.project) == {"c.txt": "c\n"}
    (info,) = codex.world.sessions()
    assert info.turn_count == 1
    with codex.world.session(f"codex:{native}") as session:
        (call,) = [call for turn in session.changes() for call in turn.calls]
        assert (call.by, [file.path for file in call.files]) == ("Bash", ["c.txt"])
        words = json.dumps(session.messages())
        (log,) = [name for name in session.store.logs(session.id) if name.startswith("subagents/")]
        side = json.dumps([event.data for event in session.store.read(session.id, log=log)])
        session.undo()
    assert words.count("subagent is done") == 2, "as its parent heard"
    assert '"role": "assistant"' in side
    assert "subagent is done" in side
    assert files(codex.world.project) == {}
    assert codex.world.misses() == []
    # An import finds the same: one session, with its subagent.
    other = f"sqlite:///{codex.world.root}/other/backtrail.db"
    done = codex.world.run("import", "codex", str(codex.home), "--store", other, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["sessions"]
    assert (row["native_id"], row["problems"]) == (native, [])
    shown = codex.world.run("show", "--subagent", log.partition("/")[2], "--store", other)
    assert "subagent is done" in shown.stdout


def test_code_mode_and_compaction(tmp_path: Path, model: Model) -> None:
    """Models that write scripts in place of calls; and a context that is summed up."""
    codex = Codex(World(tmp_path), model, "gpt-6-sol")
    assert codex.world.run("hooks", "install", "codex", "--yes").returncode == 0
    codex.trust()
    script = "const r = await tools.exec_command({cmd: 'echo b > b.txt'}); text(r.output);"
    item = {"type": "custom_tool_call", "name": "exec", "input": script, "call_id": "call_1"}
    full = {**USAGE, "input_tokens": 400_000, "total_tokens": 400_007}
    model.script({"items": [item]}, "it is written", Answer("much is said", usage=full))
    native = codex.say("write b")
    codex.resume(native, "say much")
    model.script("what was said in short", "after the summary", "spoilt")
    codex.resume(native, "go on")
    codex.resume(native, "spoil it")
    spoilt = heard(model)
    done = codex.world.run("rewind", "--last", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    model.script("here again")
    codex.resume(new_session(done.stdout), "spoil it")
    ids = [[item.get("id") for item in items[:-1]] for items in (spoilt, heard(model))]
    assert ids[0] == ids[1]
    with codex.world.session(f"codex:{new_session(done.stdout)}") as session:
        kinds = [event.kind for event in session.history()]
        (call,) = [call for turn in session.changes() for call in turn.calls]
    assert kinds.count("compaction") == 1
    assert (call.by, [file.path for file in call.files]) == ("Bash", ["b.txt"])
    assert codex.world.misses() == []


def test_importing_a_rollout(codex: Codex, model: Model) -> None:
    """A session that no hook saw, from its file."""
    assert codex.world.run("hooks", "uninstall", "codex", "--yes").returncode == 0
    native = first_turn(codex, model)
    assert codex.world.sessions() == []
    done = codex.world.run("import", "codex", str(codex.rollout(native)))
    assert done.returncode == 0, done.stdout + done.stderr
    (info,) = codex.world.sessions()
    assert (info.turn_count, info.model) == (1, "gpt-5.5")
    assert info.usage["output_tokens"] == 6 * 7
    model.script("spoilt")
    codex.resume(native, "spoil it")
    kept = heard(model)[:-1]
    assert codex.world.run("import", "codex", str(codex.home)).returncode == 0
    done = codex.world.run("rewind", "--last", "--scope", "conversation", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    model.script("going on")
    codex.resume(new_session(done.stdout), "what now?")
    assert heard(model)[:-1] == kept


def test_status_says_whether_codex_will_run_them(tmp_path: Path, model: Model) -> None:
    """Codex runs no hook that was not trusted, and no project's that is not."""
    codex = Codex(World(tmp_path), model)
    world = codex.world

    def problem() -> str | None:
        done = world.run("hooks", "status", "codex", "--json")
        (row,) = json.loads(done.stdout)["installed"]
        assert row["missing"] == []
        found: str | None = row["problem"]
        return found

    done = world.run("hooks", "install", "codex", "--yes")
    assert "`Trust all and continue`" in done.stderr
    assert {hook["trustStatus"] for hook in codex.hooks()} == {"untrusted"}
    assert "does not trust" in str(problem())
    model.script("unseen")
    codex.say("hello")
    assert world.sessions() == []
    codex.trust()
    assert {hook["trustStatus"] for hook in codex.hooks()} == {"trusted"}
    assert problem() is None
    settings = codex.home / "hooks.json"
    settings.write_text(settings.read_text().replace('"timeout": 10', '"timeout": 11'))
    assert "modified" in {hook["trustStatus"] for hook in codex.hooks()}
    assert "changed since" in str(problem())
    assert world.run("hooks", "uninstall", "codex", "--yes").returncode == 0
    assert world.run("hooks", "install", "codex", "--project", "--yes").returncode == 0
    assert codex.hooks() == []
    assert "only if you trust it" in str(problem())
    with (codex.home / "config.toml").open("a") as file:
        file.write(f'\n[projects."{world.project}"]\ntrust_level = "trusted"\n')
    assert "does not trust" in str(problem())
    codex.trust()
    assert problem() is None
    model.script("seen")
    codex.say("hello")
    assert len(world.sessions()) == 1
