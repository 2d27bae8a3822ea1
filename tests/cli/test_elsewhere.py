"""A session that came in a bundle from another machine goes on in the agent of this one.

The other machine is a folder with a home, an agent's folder and a project. Nothing in it may
change, whatever the bundle says about it: every name, mode, time and byte is compared.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backtrail.exchange.bundle import write_bundle
from backtrail.stores import open_store
from tests.exchange.forging import lines_of, manifest_of, packed, resealed, unpacked, with_lines
from tests.exchange.transcripts import Script, call, rollout

from .acting import Project, empty
from .terminal import ENTER

CLAUDE = "aaaaaaaa-0000-4000-8000-00000000000a"
CODEX = "0199aaaa-0000-7000-8000-00000000000a"
SAID = ["the first prompt", "the first answer", "the second prompt", "the second answer"]


def all_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a folder: mode, time of change, and bytes."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        held = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, held)
    return found


def claude_transcript(machine: Project) -> None:
    """Two turns with Claude Code, in the folder where it keeps them there."""
    script = Script(str(machine.root), CLAUDE)
    script.user(SAID[0], permissionMode="bypassPermissions")
    script.says(call("toolu_1", command="ls"))
    script.result("toolu_1", "a listing", toolUseResult={"stdout": "a listing"})
    script.says(SAID[1])
    script.user(SAID[2])
    script.says(SAID[3])
    script.write(machine.folder / ".claude")


def codex_rollout(machine: Project) -> None:
    """The same with Codex."""

    def words(role: str, text: str) -> tuple[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        content = [{"type": kind, "text": text}]
        return "response_item", {"type": "message", "role": role, "content": content}

    outer = str(machine.folder)
    meta = {
        "id": CODEX,
        "timestamp": "2026-03-04T05:05:59.000Z",
        "cwd": str(machine.root),
        "originator": "codex_cli_rs",
        "cli_version": "0.147.0",
        "source": "cli",
        "runtime_workspace_roots": [outer],
    }
    context = {"cwd": outer, "approval_policy": "never", "sandbox_policy": {"type": "none"}}
    said = [words("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(SAID)]
    lines = [("session_meta", meta), ("turn_context", context), *said]
    rollout(machine.folder / ".codex", lines, CODEX)


AGENTS: dict[str, Callable[[Project], None]] = {
    "claude-code": claude_transcript,
    "codex": codex_rollout,
}


@pytest.fixture(params=sorted(AGENTS))
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def there(agent: str, tmp_path: Path) -> Project:
    """The other machine, with a bundle of its session beside it."""
    (tmp_path / "there").mkdir()
    made = empty(tmp_path / "there")
    AGENTS[agent](made)
    assert made.run("import", agent).code == 0
    with open_store(made.url) as store:
        (info,) = store.sessions()
        write_bundle(store, info.id, tmp_path / "theirs.bundle")
    return made


@pytest.fixture
def here(tmp_path: Path) -> Project:
    """This machine: another home, and no session of any agent."""
    (tmp_path / "here").mkdir()
    return empty(tmp_path / "here")


def imported(here: Project, *more: str) -> str:
    done = here.run("import", str(here.folder.parent / "theirs.bundle"), *more)
    assert done.code == 0, done.err
    return done.out.strip()


def native_files(machine: Project) -> list[Path]:
    """What the agents of a machine keep."""
    folders = (machine.folder / ".claude", machine.folder / ".codex")
    return sorted(path for top in folders for path in top.rglob("*") if path.is_file())


def spoken(path: Path) -> list[str]:
    """The words in a native session, by its lines alone."""
    found: list[str] = []
    for line in map(json.loads, path.read_text().splitlines()):
        message = line.get("message") or (
            line["payload"] if line.get("type") == "response_item" else {}
        )
        content = message.get("content") or []
        blocks = [{"text": content}] if isinstance(content, str) else content
        found += [block["text"] for block in blocks if "text" in block]
    return found


RESUME = {"claude-code": "claude --resume", "codex": "codex resume"}


def test_resuming_writes_the_native_session_here(agent: str, there: Project, here: Project) -> None:
    """With the whole conversation; the line names it, and a second time nothing is written."""
    before = all_of(there.folder)
    id = imported(here, "--into", str(here.folder / "work"))
    line = here.run("resume", id).out.strip()
    (made,) = native_files(here)
    native = line.rpartition(" ")[2]
    assert line == f"cd {here.folder}/work && {RESUME[agent]} {native}"
    assert native in made.name and native not in (CLAUDE, CODEX)
    assert spoken(made) == SAID
    assert here.run("resume", id).out.strip() == line
    assert native_files(here) == [made]
    assert all_of(there.folder) == before


def test_a_fork_and_a_rewind_write_here_too(agent: str, there: Project, here: Project) -> None:
    """Though the folders that the bundle names are there, and this person's own."""
    before = all_of(there.folder)
    id = imported(here)
    forked = here.run("fork", "--session", id, "--json")
    assert forked.code == 0, forked.err
    (made,) = native_files(here)
    assert forked.json["native"]["path"] == str(made)
    assert spoken(made)[:4] == SAID
    done = here.run("rewind", "--before", "@-1", "-s", id, "--scope", "conversation", "--yes",
                    "--json")  # fmt: skip
    assert done.code == 0, done.err
    (again,) = set(native_files(here)) - {made}
    assert spoken(again)[:2] == SAID[:2] and SAID[2] not in spoken(again)
    assert all_of(there.folder) == before


def test_nothing_that_acts_comes_along(agent: str, there: Project, here: Project) -> None:
    """Rights, folders to write in and files to put back are not the stranger's to set."""
    bundle = here.folder.parent / "theirs.bundle"
    files = unpacked(bundle)
    said = lines_of(files, "transcript")
    event = next(one["data"]["event"] for one in said if "event" in one["data"])
    trap = {"type": "file-history-snapshot", "uuid": str(uuid.uuid4()), "messageId": "m",
            "snapshot": {"trackedFileBackups": {str(there.root / "x"): {}}}}  # fmt: skip
    row = {"file": CLAUDE, "at": 0, "end": 1, "line": trap, "event": event}
    said.append({"seq": len(said) + 1, "id": "trap", "ts": said[-1]["ts"], "kind": "line",
                 "data": row})  # fmt: skip
    bundle.write_bytes(packed(with_lines(files, said, "transcript")))
    id = imported(here, "--into", str(here.folder / "work"))
    assert here.run("resume", id).code == 0
    (made,) = native_files(here)
    text = made.read_text()
    assert str(there.folder) not in text
    for word in ("file-history-snapshot", "permissionMode", "turn_context", "sandbox_policy"):
        assert word not in text
    assert spoken(made) == SAID


HOSTILE = {
    "there": "{there}/.claude/projects/x/y.jsonl",
    "above": "../../{there}/x/projects/y/z.jsonl",
    "link": "{link}/projects/x/y.jsonl",
    "nul": "{there}/\0/projects/x",
    "long": "/" + "x" * 5000,
    "option": "--dangerously-skip-permissions; touch {there}/pwned",
}


@pytest.mark.parametrize("agent", ["claude-code"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_in_a_bundle_is_written_to(name: str, there: Project, here: Project) -> None:
    """As folder, root, file or id: what cannot be is reported, and nothing is made but our own."""
    link = there.folder / "link"
    link.symlink_to(there.folder / ".claude")
    (there.folder / ".claude" / "projects").mkdir(parents=True, exist_ok=True)
    value = HOSTILE[name].format(there=there.folder, link=link)
    bundle = here.folder.parent / "theirs.bundle"
    files = unpacked(bundle)
    before = all_of(there.folder)
    forgeries: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"cwd": value, "root": value}, {}),
        ({"key": value}, {"id": value, "path": value}),
    ]
    for number, (fields, native) in enumerate(forgeries):
        manifest = manifest_of(files)
        record = manifest["session"]
        record |= {"id": f"theirs-{number}", **fields}
        record["metadata"]["native"] |= native
        bundle.write_bytes(packed(resealed(files, manifest)))
        if here.run("import", str(bundle)).code:
            # It is refused as a whole.
            continue
        for verb in (["resume"], ["fork", "--session"], ["rewind", "1", "--yes", "-s"]):
            here.run(*verb, f"theirs-{number}")
    assert all_of(there.folder) == before
    ours = {".claude", ".codex", "config", "data", "project", "state", "store"}
    assert {path.name for path in here.folder.iterdir()} <= ours
    assert not list(here.root.iterdir())
    assert all(CLAUDE not in path.name for path in native_files(here))


def test_a_folder_that_is_not_here_is_reported(agent: str, there: Project, here: Project) -> None:
    """Nothing is written for it; once the session has one, it goes on there."""
    id = imported(here)
    there.root.rename(there.folder / "moved")
    done = here.run("resume", id)
    assert (done.code, native_files(here)) == (3, [])
    assert "not here" in done.err and "relocate" in done.err
    assert here.run("relocate", str(here.root), "--session", id).code == 0
    done = here.run("resume", id)
    assert done.out.startswith(f"cd {here.root} && {RESUME[agent]}")
    (made,) = native_files(here)
    assert spoken(made) == SAID


def test_a_chat_in_a_strangers_folder_is_asked_about(
    agent: str, there: Project, here: Project
) -> None:
    """The folder that a bundle names is none that the person chose to work in."""
    id = imported(here)
    before = all_of(there.root)
    ran = here.run("chat", "hi", "--resume", id, "--fork", "--model", "ollama:x")
    assert ran.code == 1 and "came from a bundle" in ran.err
    with here.terminal("chat", "--resume", id, "--fork", "--model", "ollama:x",
                       columns=400) as terminal:  # fmt: skip
        terminal.wait_for("[y/N]")
        terminal.press("n", ENTER)
        terminal.wait_for("Nothing was changed")
    assert all_of(there.root) == before
    assert os.listdir(there.root) == []
