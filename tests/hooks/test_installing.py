"""Our hooks in an agent's settings: put in, found, taken out, and nothing else touched."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.errors import Conflict, InvalidData, Unsafe, Unsupported
from backtrail.exchange.hooks.dialects import DIALECTS, Dialect
from backtrail.exchange.hooks.entries import find_ours, is_ours, with_ours, without_ours
from backtrail.exchange.hooks.install import (
    BACKUP,
    apply,
    check_inside,
    own_command,
    plan_install,
    plan_uninstall,
    settings_file,
    vanishing,
)
from backtrail.exchange.hooks.installed import try_out

from .calling import PROGRAM, World

CLAUDE, CODEX, GEMINI = DIALECTS["claude-code"], DIALECTS["codex"], DIALECTS["gemini"]
COMMAND = "/opt/x/bin/backtrail hook claude-code"

FILES = {
    "nothing": "{}",
    "nothing, on lines": "{\n}\n",
    "spaces": "  { }  ",
    "one line": '{"model": "x", "n": 1.50}',
    "others": '{\n  "model": "x",\n  "permissions": {"allow": ["Bash(ls)"]}\n}\n',
    "tabs": '{\n\t"model": "x"\n}\n',
    "deep": '{\n    "hooks": {\n        "Stop": []\n    }\n}',
    "no hooks": '{\n  "hooks": {},\n  "last": null\n}\n',
    "hooks of others": (
        '{\n  "hooks": {\n    "PreToolUse": [\n      {"matcher": "Bash", "hooks": '
        '[{"type": "command", "command": "say \\u00e9 hi"}]}\n    ]\n  },\n  "x": [1,2,  3]\n}\n'
    ),
    "windows": '{\r\n  "model": "x"\r\n}\r\n',
    "odd names": '{"a\\"}": "]}", "hooks": {"Stop": [ ]}, "é": "\\u2028"}',
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
def test_in_and_out_again(tmp_path: Path, dialect: Dialect, text: str) -> None:
    """All that was there stays as it was, and taking ours out gives the same bytes."""
    path = tmp_path / "settings.json"
    path.write_bytes(text.encode())
    command = COMMAND.replace("claude-code", dialect.agent)
    change = plan_install(dialect, path, command)
    assert change.after is not None
    before, after = json.loads(text), json.loads(change.after)
    hooks = after.pop("hooks")
    theirs = before.pop("hooks", {})
    assert after == before
    assert list(after) == list(before)
    for event in dialect.events:
        assert hooks[event][: len(theirs.get(event, []))] == theirs.get(event, [])
        assert hooks[event][-1]["hooks"][-1]["command"] == command
    apply(change, copy="make")
    assert not plan_install(dialect, path, command).is_needed
    apply(plan_uninstall(dialect, path), copy="drop")
    assert path.read_bytes() == text.encode()
    assert list(tmp_path.iterdir()) == [path]


def test_lines_of_others_stay_as_they_are(tmp_path: Path) -> None:
    """The difference is only what is ours."""
    path = tmp_path / "settings.json"
    path.write_text(FILES["hooks of others"])
    lines = plan_install(CLAUDE, path, COMMAND).diff()
    gone = [line for line in lines if line.startswith("-") and not line.startswith("---")]
    assert len(gone) <= 2
    assert any('"x": [1,2,  3]' in line for line in lines if line.startswith(" "))


names = st.text(st.characters(codec="utf-8"), max_size=5)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(names.filter(lambda name: name != "hooks"), values, max_size=4),
    st.sampled_from([None, 1, 2, "\t"]),
    st.booleans(),
)
def test_any_settings_survive(
    settings: dict[str, Any], indent: int | str | None, plain: bool
) -> None:
    """Whatever the file holds and however it is written."""
    text = json.dumps(settings, indent=indent, ensure_ascii=plain)
    there = with_ours(text, "file", CLAUDE, COMMAND)
    assert {k: v for k, v in json.loads(there).items() if k != "hooks"} == settings
    assert len(find_ours(there, "file", "claude-code")) == len(CLAUDE.events)
    assert with_ours(there, "file", CLAUDE, COMMAND) == there
    assert without_ours(there, "file", "claude-code") == text


def test_another_path_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    """Installed again from elsewhere there is still one hook for each event."""
    path = tmp_path / "settings.json"
    path.write_text(with_ours("{}", "file", CLAUDE, COMMAND))
    new = "'/home/a b/bin/backtrail' hook claude-code"
    change = plan_install(CLAUDE, path, new)
    ours = find_ours(change.after or "", "file", "claude-code")
    assert {one.command for one in ours} == {new}
    assert len(ours) == len(CLAUDE.events)


def test_the_copy_survives_another_install(tmp_path: Path) -> None:
    """What is given back is what was there before the first one."""
    path = tmp_path / "settings.json"
    path.write_text('{ "hooks": {} }')
    apply(plan_install(CLAUDE, path, COMMAND), copy="make")
    apply(plan_install(CLAUDE, path, f"/new{COMMAND}"), copy="leave")
    apply(plan_uninstall(CLAUDE, path), copy="drop")
    assert path.read_text() == '{ "hooks": {} }'


def test_a_hook_that_a_person_put_beside_ours_stays(tmp_path: Path) -> None:
    """Only ours goes; and what else was changed since stays, too."""
    path = tmp_path / "settings.json"
    path.write_text('{"a": 1}\n')
    apply(plan_install(CLAUDE, path, COMMAND), copy="make")
    settings = json.loads(path.read_text())
    settings["hooks"]["Stop"][0]["hooks"].append({"type": "command", "command": "mine"})
    settings["b"] = 2
    path.write_text(json.dumps(settings))
    apply(plan_uninstall(CLAUDE, path), copy="drop")
    rest = {"Stop": [{"hooks": [{"type": "command", "command": "mine"}]}]}
    assert json.loads(path.read_text()) == {"a": 1, "hooks": rest, "b": 2}


def test_a_file_of_ours_alone_goes(tmp_path: Path) -> None:
    """Where there was none before."""
    path = tmp_path / "new" / "settings.json"
    apply(plan_install(CODEX, path, COMMAND.replace("claude-code", "codex")), copy="make")
    assert path.stat().st_mode & 0o777 == 0o600
    apply(plan_uninstall(CODEX, path), copy="drop")
    assert list(path.parent.iterdir()) == []
    assert not plan_uninstall(CODEX, path).is_needed


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{\n  // mine\n  "a": 1\n}', "line 2, column 3: a comment"),
        ('{"a": 1, /* x */ "b": 2}', "line 1, column 10: a comment"),
        ('{"a": 1,}', "line 1, column"),
        ('{\n "a": \n}', "line 3, column 1"),
        ("[1]", "an object, not a list"),
        ('{"a": 1, "a": 2}', "`a` stands twice"),
        ('{"hooks": []}', "`hooks` should be an object"),
        ('{"hooks": {"Stop": {}}}', "`hooks.Stop` should be a list"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_what_is_not_plain_json_is_refused(tmp_path: Path, text: str, place: str) -> None:
    """With the place, and nothing is written."""
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(InvalidData) as raised:
        plan_install(CLAUDE, path, COMMAND)
    assert place in str(raised.value)
    assert str(path) in str(raised.value)
    assert path.read_text() == text


def test_what_is_refused_can_be_put_in_by_hand(tmp_path: Path) -> None:
    """The error has all of it, and with that in the file nothing is left to do."""
    path = tmp_path / "settings.json"
    path.write_text('{"a": 1,}')
    with pytest.raises(InvalidData) as raised:
        plan_install(CLAUDE, path, COMMAND)
    path.write_text(str(raised.value).split("in it:\n", 1)[1])
    assert not plan_install(CLAUDE, path, COMMAND).is_needed


COMMENTED = [
    '{\n  // mine\n  "a": 1 // and this\n}\n',
    '{ /* x */ "a": 1 }',
    "{\n  // nothing yet\n}\n",
    '{\n  "url": "http://x/*y*/", /* a */ // b\n  /* c */ "hooks": {\n    // d\n  }\n  // e\n}',
    '{\n  "hooks": {\n    "BeforeTool": [ // f\n      {"hooks": []} // g\n    ], // h\n'
    '    "enabled": true\n  }\n}',
]


@pytest.mark.parametrize("text", COMMENTED)
def test_comments_stay_where_gemini_takes_them(tmp_path: Path, text: str) -> None:
    """Gemini CLI reads its settings with comments. Each stays, and what it says is the same."""
    path = tmp_path / "settings.json"
    path.write_text(text)
    command = COMMAND.replace("claude-code", "gemini")
    change = plan_install(GEMINI, path, command)
    assert change.after is not None
    assert _comments(change.after) == _comments(text)
    seen = json.loads(_uncommented(change.after))
    assert {event for event in seen["hooks"] if event[0].isupper()} == {*GEMINI.events}
    seen["hooks"] = {
        event: [group for group in groups if command not in json.dumps(group)]
        if isinstance(groups, list) else groups
        for event, groups in seen["hooks"].items()
    }  # fmt: skip
    before = json.loads(_uncommented(text))
    assert {k: v for k, v in seen["hooks"].items() if v != []} == before.get("hooks", {})
    apply(change, copy="make")
    assert not plan_install(GEMINI, path, command).is_needed
    # A person changes something else: only ours goes.
    path.write_text(change.after + "// later\n")
    left = plan_uninstall(GEMINI, path).after
    assert left is not None
    assert json.loads(_uncommented(left)).get("hooks", {}) == before.get("hooks", {})
    assert _comments(left) == [*_comments(text), "// later"]
    path.write_text(change.after)
    assert plan_uninstall(GEMINI, path).after == text


def _comments(text: str) -> list[str]:
    return re.findall(r"//[^\n]*|/\*.*?\*/", text.replace("http://x/*y*/", ""))


def _uncommented(text: str) -> str:
    """What Gemini CLI makes of a file, line by line and by hand."""
    out, at, quoted = [], 0, False
    while at < len(text):
        if quoted:
            quoted = text[at] != '"'
        elif text.startswith("//", at):
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
            continue
        elif text.startswith("/*", at):
            at = text.index("*/", at) + 2
            continue
        else:
            quoted = text[at] == '"'
        out.append(text[at])
        at += 1
    return "".join(out)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """They could not be written back."""
    path = tmp_path / "settings.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InvalidData, match="is not UTF-8"):
        plan_install(CLAUDE, path, COMMAND)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """It may be written by no process."""
    os.mkfifo(tmp_path / "settings.json")
    with pytest.raises(InvalidData, match="is no file"):
        plan_install(CLAUDE, tmp_path / "settings.json", COMMAND)


def test_links_and_modes_stay(tmp_path: Path) -> None:
    """Many people keep their settings elsewhere, and link to them."""
    real = tmp_path / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text("{}")
    real.chmod(0o640)
    link = tmp_path / "settings.json"
    link.symlink_to(real)
    apply(plan_install(CLAUDE, link, COMMAND), copy="make")
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert "backtrail hook" in real.read_text()


def test_a_change_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    """What a person wrote after the preview is not overwritten."""
    path = tmp_path / "settings.json"
    path.write_text("{}")
    change = plan_install(CLAUDE, path, COMMAND)
    path.write_text('{"new": 1}')
    with pytest.raises(Conflict, match="was changed meanwhile"):
        apply(change, copy="make")
    assert path.read_text() == '{"new": 1}'


# --- where -------------------------------------------------------------------------------


def test_where_settings_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As each agent has it, and where its variables say."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/x")
    project = Path("/p")
    found = {
        (dialect.agent, scope): str(settings_file(dialect, scope, project))
        for dialect in DIALECTS.values()
        for scope in ("user", "project", "local")
        if (dialect.agent, scope) not in (("codex", "local"), ("gemini", "local"))
    }
    assert found == {
        ("claude-code", "user"): "/home/x/.claude/settings.json",
        ("claude-code", "project"): "/p/.claude/settings.json",
        ("claude-code", "local"): "/p/.claude/settings.local.json",
        ("codex", "user"): "/home/x/.codex/hooks.json",
        ("codex", "project"): "/p/.codex/hooks.json",
        ("gemini", "user"): "/home/x/.gemini/settings.json",
        ("gemini", "project"): "/p/.gemini/settings.json",
    }
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "/c")
    monkeypatch.setenv("CODEX_HOME", "/d")
    monkeypatch.setenv("GEMINI_CLI_HOME", "/e")
    assert settings_file(GEMINI, "user", project) == Path("/e/.gemini/settings.json")
    assert settings_file(CLAUDE, "user", project) == Path("/c/settings.json")
    assert settings_file(CODEX, "user", project) == Path("/d/hooks.json")
    with pytest.raises(InvalidData, match="no `--local` settings"):
        settings_file(GEMINI, "local", project)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/tmp/x/bin/backtrail", "temporary"),
        ("/home/u/.cache/uv/archive-v0/abc/bin/backtrail", "cache"),
        ("/home/u/.local/pipx/.cache/abc/bin/backtrail", "cache"),
        ("/elsewhere/uv/bin/backtrail", "cache"),
    ],
)
def test_an_environment_that_will_vanish(
    path: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused; lasting ones are not."""
    monkeypatch.setenv("UV_CACHE_DIR", "/elsewhere/uv")
    assert why in (vanishing(Path(path)) or "")
    for lasting in ("/usr/bin/backtrail", "/home/u/.local/share/uv/tools/backtrail/bin/backtrail"):
        assert vanishing(Path(lasting)) is None


def test_the_command_is_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its full path; one that will vanish is refused, unless one wants it so."""
    monkeypatch.setenv("BACKTRAIL_ALLOW_TEMPORARY", "1")
    assert own_command(CODEX) == f"{PROGRAM} hook codex"
    assert is_ours(own_command(CODEX), "codex")
    assert not is_ours(own_command(CODEX), "claude-code")
    assert is_ours(f"{sys.executable} -m backtrail hook gemini", "gemini")
    for other in ("backtrailx hook codex", "say backtrail", "mybacktrail hook codex", None):
        assert not is_ours(other, "codex")
    monkeypatch.setenv("UV_CACHE_DIR", str(Path(PROGRAM).parents[1]))
    assert own_command(CODEX) == f"{PROGRAM} hook codex"
    monkeypatch.delenv("BACKTRAIL_ALLOW_TEMPORARY")
    with pytest.raises(Unsupported, match=r"pipx install \.`"):
        own_command(CODEX)


# --- the verb ----------------------------------------------------------------------------


def test_installing_shows_asks_and_does(world: World) -> None:
    """The change first; without a terminal it needs `--yes`."""
    path = world.home / ".claude" / "settings.json"
    shown = world.run("hooks", "install", "claude-code", "--dry-run")
    assert shown.returncode == 0
    assert "+++ " in shown.stdout
    assert "\x1b" not in shown.stdout
    refused = world.run("hooks", "install", "claude-code")
    assert (refused.returncode, path.exists()) == (2, False)
    assert "--yes" in refused.stderr
    done = world.run("hooks", "install", "claude-code", "--yes")
    assert done.returncode == 0
    assert len(find_ours(path.read_text(), "file", "claude-code")) == len(CLAUDE.events)
    again = world.run("hooks", "install", "claude-code", "--yes")
    assert "already" in again.stdout


def test_the_settings_of_a_project_are_for_all(world: World) -> None:
    """Others can read a new file; that it names a program of this machine is said before."""
    path = world.project / ".claude" / "settings.json"
    seen = world.run("hooks", "install", "claude-code", "--project")
    assert (seen.returncode, path.exists()) == (2, False)
    assert f"will call {PROGRAM}" in seen.stderr
    before = os.umask(0o022)
    try:
        world.run("hooks", "install", "claude-code", "--project", "--yes")
        world.run("hooks", "install", "claude-code", "--local", "--yes")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.with_name("settings.local.json").stat().st_mode & 0o777 == 0o600
    again = world.run("hooks", "install", "claude-code", "--project", "--yes")
    assert "will call" not in again.stderr


def test_installing_as_json(world: World) -> None:
    """One document, also for what is not to be done."""
    path = world.project / ".claude" / "settings.local.json"
    for flags, changed in ((("--dry-run",), False), (("--yes",), True), (("--yes",), False)):
        done = world.run("hooks", "install", "claude-code", "--local", "--json", *flags)
        seen = json.loads(done.stdout)
        assert (seen["path"], seen["changed"]) == (str(path), changed)
        assert seen["command"] == f"{PROGRAM} hook claude-code"
    seen = json.loads(world.run("hooks", "uninstall", "claude-code", "--local", "--json").stdout)
    assert seen["error"]["code"] == "usage"
    done = world.run("hooks", "uninstall", "claude-code", "--local", "--json", "--yes")
    assert json.loads(done.stdout)["changed"] is True
    assert not path.exists()


def test_what_else_codex_needs_is_printed(world: World) -> None:
    """Its hooks may be switched off, and run only when a person trusts them."""
    seen = world.run("hooks", "install", "codex", "--yes")
    assert "`Trust all and continue`" in seen.stderr
    (world.home / ".codex" / "config.toml").write_text("[features]\nhooks = false\n")
    seen = world.run("hooks", "install", "codex", "--yes")
    assert "switched off" in seen.stderr


def test_status_runs_what_is_installed(world: World) -> None:
    """It prints how long that took, what is wrong, and what was missed."""
    none = world.run("hooks", "status")
    assert (none.returncode, "no hooks are installed" in none.stdout) == (0, True)
    for agent in DIALECTS:
        assert world.run("hooks", "install", agent, "--yes").returncode == 0
    seen = json.loads(world.run("hooks", "status", "--json").stdout)
    assert [one["agent"] for one in seen["installed"]] == list(DIALECTS)
    assert all(one["seconds"] > 0 for one in seen["installed"])
    # Only Codex asks for trust first.
    assert [one["agent"] for one in seen["installed"] if one["problem"]] == ["codex"]
    assert seen["misses"] == {"count": 0, "last": None}
    assert world.sessions() == []


def test_status_finds_what_is_wrong(world: World) -> None:
    """A program that is gone, a file that is broken, a store that cannot be opened."""
    path = world.home / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(with_ours("{}", "file", CLAUDE, "/nowhere/backtrail hook claude-code"))
    gone = world.run("hooks", "status", "claude-code")
    assert gone.returncode == 1
    assert "exit code 127" in gone.stdout
    path.write_text("{ broken")
    broken = world.run("hooks", "status", "claude-code")
    assert (broken.returncode, "line 1, column 3" in broken.stdout) == (1, True)
    path.write_text(with_ours("{}", "file", CLAUDE, f"{PROGRAM} hook claude-code"))
    (world.root / "file").write_text("")
    world.env["BACKTRAIL_STORE"] = f"sqlite:///{world.root}/file/x.db"
    seen = json.loads(world.run("hooks", "status", "--json").stdout)
    assert seen["problem"]
    assert seen["installed"][0]["problem"]


def test_status_reports_a_full_disk(world: World) -> None:
    """Though nothing can be noted there."""

    def no_space() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    world.run("hooks", "install", "claude-code", "--yes")
    world.run("hooks", "status")
    seen = world.run("hooks", "status", "--json", preexec_fn=no_space)
    assert seen.returncode == 1
    assert "check the disk" in json.loads(seen.stdout)["installed"][0]["problem"]


def test_status_reports_misses(world: World) -> None:
    """How many, and why."""
    broken = json.dumps({"hook_event_name": "UserPromptSubmit", "prompt": "x"})
    assert world.run("hook", "claude-code", input=broken).stdout == ""
    seen = world.run("hooks", "status")
    assert "1 missed" in seen.stdout
    assert "the event names no session" in seen.stdout
    assert json.loads(world.run("hooks", "status", "--json").stdout)["misses"]["count"] == 1


def test_the_copy_is_private(tmp_path: Path) -> None:
    """Settings may hold keys."""
    path = tmp_path / "settings.json"
    path.write_text('{"env": {"KEY": "x"}}')
    apply(plan_install(CLAUDE, path, COMMAND), copy="make")
    copy = path.with_name(path.name + BACKUP)
    assert copy.read_text() == '{"env": {"KEY": "x"}}'
    assert os.stat(copy).st_mode & 0o777 == 0o600


# --- a stranger's project ----------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "folder"])
def test_settings_that_lead_out_of_the_project(world: World, what: str) -> None:
    """Nothing is changed through them; within the project a link is fine."""
    mine = world.home / "mine.json"
    mine.write_text("{}")
    folder = world.project / ".claude"
    if what == "file":
        folder.mkdir()
        (folder / "settings.json").symlink_to(mine)
    else:
        folder.symlink_to(world.home)
    for action in ("install", "uninstall"):
        done = world.run("hooks", action, "claude-code", "--project", "--yes")
        assert done.returncode == 1
        assert "outside of the project" in done.stderr
    assert sorted(path.name for path in world.home.iterdir()) == ["mine.json"]
    assert mine.read_text() == "{}"
    inner = world.project / "kept.json"
    inner.write_text("{}")
    (world.project / "link.json").symlink_to(inner)
    check_inside(world.project / "link.json", world.project)
    with pytest.raises(Unsafe):
        check_inside(world.project / ".." / "x.json", world.project)


@pytest.mark.parametrize(
    "command",
    [
        "touch {ran}; backtrail hook claude-code",
        "./backtrail hook claude-code",
        "{project}/backtrail hook claude-code",
        "backtrail hook claude-code",
        "$(touch {ran})/bin/backtrail hook claude-code",
        "'{project}'/backtrail hook claude-code",
        "{project}/link/backtrail hook claude-code",
        "{other}/backtrail hook claude-code",
        "/bin/sh {project}/backtrail hook claude-code",
        "/usr/bin/env {project}/backtrail hook claude-code",
        "{python} -m backtrail hook claude-code",
    ],
)
def test_the_status_runs_nothing_that_a_project_brings(world: World, command: str) -> None:
    """It says that it was not run, and not that it works."""
    ran = world.root / "ran"
    other = world.root / "other"
    other.mkdir()
    for folder in (world.project, other):
        program = folder / "backtrail"
        program.write_text(f"#!/bin/sh\ntouch {ran}\n")
        program.chmod(0o755)
    (world.project / "backtrail.py").write_text(f"open({str(ran)!r}, 'w')\n")
    if "{other}" in command and os.getuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    if os.getuid() == 0:
        os.chown(other / "backtrail", 12345, 12345)
    (world.project / "link").symlink_to(world.project)
    names = {"ran": ran, "project": world.project, "other": other, "python": sys.executable}
    command = command.format(**names)
    hooks = {"Stop": [{"hooks": [{"type": "command", "command": command}]}]}
    folder = world.project / ".claude"
    folder.mkdir()
    for name in ("settings.json", "settings.local.json"):
        (folder / name).write_text(json.dumps({"hooks": hooks}))
    world.env["PATH"] = f"{world.project}:{world.env['PATH']}"
    done = world.run("hooks", "status", "--json")
    assert done.returncode == 1
    rows = json.loads(done.stdout)["installed"]
    assert len(rows) == 2
    assert all("was not run" in row["problem"] for row in rows)
    assert not ran.exists()


def test_a_projects_own_installation_is_tried(world: World) -> None:
    """What we installed ourselves is run, in every scope."""
    for scope in ("--project", "--local"):
        assert world.run("hooks", "install", "claude-code", scope, "--yes").returncode == 0
    rows = json.loads(world.run("hooks", "status", "--json").stdout)["installed"]
    assert [(row["scope"], row["problem"]) for row in rows] == [("project", None), ("local", None)]


def test_without_a_script_the_module_is_called(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed one, and not a file of that name in the project."""
    for name in ("BACKTRAIL_ALLOW_TEMPORARY", "BACKTRAIL_STORE", "HOME"):
        monkeypatch.setenv(name, world.env[name])
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(world.root / "nothing"))
    command = own_command(CLAUDE)
    assert is_ours(command, "claude-code")
    ran = world.root / "ran"
    (world.project / "backtrail.py").write_text(f"open({str(ran)!r}, 'w')\n")
    assert try_out(command, world.project)[1] is None
    assert not ran.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
def test_the_owner_of_the_settings_stays(tmp_path: Path) -> None:
    """Who installs as root does not take a person's settings away."""
    path = tmp_path / "settings.json"
    path.write_text("{}")
    os.chown(path, 12345, 12346)
    apply(plan_install(CLAUDE, path, COMMAND), copy="make")
    assert find_ours(path.read_text(), "x", "claude-code")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346)


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini"])
def test_an_old_installation_is_to_be_renewed(world: World, agent: str) -> None:
    """It gives the hook before a call no time to wait; `hooks status` says so until then."""
    world.run("hooks", "install", agent, "--yes")
    dialect = DIALECTS[agent]
    path = settings_file(dialect, "user", world.project)
    path = world.home / path.relative_to(Path.home())
    settings = json.loads(path.read_text())
    before = "BeforeTool" if agent == "gemini" else "PreToolUse"
    (hook,) = settings["hooks"][before][0]["hooks"]
    unit = 1000 if agent == "gemini" else 1
    assert hook["timeout"] == 30 * unit
    others = [
        one["hooks"][0]["timeout"] for event, (one,) in settings["hooks"].items() if event != before
    ]
    assert max(others) == 10 * unit
    hook["timeout"] = 10 * unit
    path.write_text(json.dumps(settings))
    said = world.run("hooks", "status", agent).stdout
    assert "10 s" in said and f"`backtrail hooks install {agent}` renews it" in said
    world.env["BACKTRAIL_HOOK_WAIT"] = "40"
    world.run("hooks", "install", agent, "--yes")
    (hook,) = json.loads(path.read_text())["hooks"][before][0]["hooks"]
    assert hook["timeout"] == 50 * unit
    assert "renews it" not in world.run("hooks", "status", agent).stdout
    world.run("hooks", "uninstall", agent, "--yes")
    assert not path.exists()
