"""Settings: where each value comes from, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.errors import InvalidData, NotFound
from backtrail.settings import KEYS, Settings, load, project_file
from backtrail.settings.allowance import allow, allowed, is_allowed
from tests.cli.stage import Stage


@pytest.fixture(autouse=True)
def alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without settings."""
    for key in KEYS.values():
        monkeypatch.delenv(key.variable, raising=False)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, stage.environment()[name])
    monkeypatch.chdir(stage.project)


def user(stage: Stage, text: str) -> Path:
    path = stage.folder / "config" / "backtrail" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def project(stage: Stage, text: str) -> Path:
    path = stage.project / ".backtrail.toml"
    path.write_text(text)
    return path


def values(settings: Settings) -> dict[str, object]:
    return {name: setting.value for name, setting in settings.values.items()}


def test_without_any_file_there_are_defaults() -> None:
    """Each says that it is one."""
    found = load()
    assert (found.store, found.hook_timeout, found.why_unrecorded(".")) == (None, 2.0, None)
    assert {setting.origin for setting in found.values.values()} == {"default"}


@pytest.mark.parametrize("budget", ['"lots"', '"10 XB"', '""', "true", "-1", '"1.5GB"'])
def test_a_budget_is_a_size(stage: Stage, budget: str) -> None:
    """Else no files would be captured, and no reason given."""
    file = user(stage, f"budget = {budget}\n")
    with pytest.raises(InvalidData, match=str(file)):
        load()
    user(stage, 'budget = "20 GB"\n')
    assert load().text("budget") == "20 GB"
    user(stage, "budget = 5000000\n")
    assert load().text("budget") == "5000000"


def test_a_project_names_no_server_of_models(stage: Stage) -> None:
    """The project may be a stranger's, and the conversation is ours."""
    project(stage, 'base_url = "http://evil.example/v1"\n')
    found = load()
    assert found.text("base_url") is None
    assert "cannot be set by a project" in found.warnings[0]


def test_a_flag_beats_the_environment_beats_the_project_beats_the_user(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each value names its origin."""
    own = user(stage, 'model = "user:m"\nhook_timeout = 1\n')
    assert load().values["model"].origin == str(own)
    theirs = project(stage, 'model = "project:m"\n')
    assert (load().text("model"), load().values["model"].origin) == ("project:m", str(theirs))
    assert load().hook_timeout == 1.0
    monkeypatch.setenv("BACKTRAIL_MODEL", "environment:m")
    assert load().values["model"].origin == "environment BACKTRAIL_MODEL"
    found = load({"model": "flag:m", "store": None})
    assert (found.text("model"), found.values["model"].origin) == ("flag:m", "flag --model")
    assert found.values["store"].origin == "default"


def test_the_project_file_is_found_above_but_not_beyond_home(stage: Stage) -> None:
    """A file above the home folder may belong to a stranger."""
    path = project(stage, "hook_timeout = 3\n")
    deep = stage.project / "src" / "deep"
    deep.mkdir(parents=True)
    assert project_file(deep) == path
    path.unlink()
    (stage.folder.parent / ".backtrail.toml").write_text("hook_timeout = 9\n")
    try:
        assert project_file(deep) is None
    finally:
        (stage.folder.parent / ".backtrail.toml").unlink()


def test_paths_of_a_store_begin_at_the_file(stage: Stage) -> None:
    """So that the file means the same from every folder below."""
    allow(stage.project)
    project(stage, 'store = "sqlite:///logs/agent.db"\n')
    assert load().store == f"sqlite:///{stage.project}/logs/agent.db"
    project(stage, 'store = "file:logs"\n')
    assert load(cwd=stage.project).store == f"file:{stage.project}/logs"
    (stage.project / ".backtrail.toml").unlink()
    user(stage, 'store = "sqlite:////srv/agent.db"\n')
    assert load().store == "sqlite:////srv/agent.db"


@pytest.mark.parametrize(
    ("text", "ran"),
    [
        ("store = 3", "`store` is text"),
        ('store = ""', "`store` is text"),
        ('hook_timeout = "2"', "`hook_timeout` is a number of seconds"),
        ("hook_timeout = -1", "`hook_timeout` is a number of seconds"),
        ("hook_timeout = true", "`hook_timeout` is a number of seconds"),
        ("hook_timeout = nan", "`hook_timeout` is a number of seconds"),
        ("root = 'home'", "`root` is project or cwd"),
        ("hook_wait = -1", "`hook_wait` is 0 to 600 seconds"),
        ("root_files = 0.5", "`root_files` is a number of files"),
        ('hooks = "off"', "`hooks` is true or false"),
        ('color = "pink"', "`color` is auto or never"),
        ("store = ", "is not valid TOML"),
        ("[store]\nurl = 'x'", "`store` is text"),
    ],
)
def test_a_wrong_file_is_named(stage: Stage, text: str, ran: str) -> None:
    """With the setting and what it should be. A stranger's wrong file stops nothing."""
    path = user(stage, text)
    with pytest.raises(InvalidData) as caught:
        load()
    assert str(path) in str(caught.value) and ran in str(caught.value)
    path.unlink()
    plain = values(load())
    path = project(stage, text)
    found = load()
    assert values(found) == plain
    assert len(found.warnings) == 1
    assert str(path) in found.warnings[0] and "no effect" in found.warnings[0]


@pytest.mark.parametrize("whose", [user, project])
def test_an_unknown_setting_is_a_warning(stage: Stage, whose: Callable[[Stage, str], Path]) -> None:
    """Of a newer version, or misspelled: the others hold."""
    path = whose(stage, 'stroe = "x"\nmodel = "m:m"\n')
    found = load()
    assert found.text("model") == "m:m"
    assert found.warnings == (f"{path}: there is no setting `stroe`; there are {', '.join(KEYS)}",)


@pytest.mark.parametrize(
    "content",
    [b"a = " + b"[" * 30_000, b"model = " + b"9" * 5000, b"\xff\xfe", b"#" * (1 << 20), b"\0"],
    ids=["nested", "number", "no text", "long", "zero"],
)
def test_no_file_of_a_project_stops_anything(stage: Stage, content: bytes) -> None:
    """Whatever is in it."""
    plain = values(load())
    (stage.project / ".backtrail.toml").write_bytes(content)
    found = load()
    assert values(found) == plain and len(found.warnings) == 1


@pytest.mark.parametrize(
    "text", ["hooks = false", "hook_timeout = 0.0001", "hook_wait = 0", 'root = "cwd"',
             "root_files = 1", 'budget = "1"', 'hooks_off = ["."]']
)  # fmt: skip
def test_a_project_cannot_weaken_the_recording(stage: Stage, text: str) -> None:
    """That needs the person's own settings; every place that shows settings says so."""
    plain = values(load())
    project(stage, text)
    found = load()
    assert values(found) == plain
    assert "cannot be set by a project" in found.warnings[0]
    name = text.split(" ")[0]
    ran = stage.run("config", "show", "--json").json
    assert f"`{name}`" in ran["warnings"][0] and ran["settings"][name]["origin"] == "default"
    ran = stage.run("hooks", "status", "--json").json
    assert f"`{name}`" in ran["warnings"][0] and ran["on"] is True
    assert f"`{name}`" in stage.run("hooks", "status").out
    checks = stage.run("doctor", "--json").json["checks"]
    assert any(f"`{name}`" in c["detail"] and c["state"] == "warning" for c in checks)
    user(stage, text)
    assert values(load()) != plain


def test_a_store_of_a_project_is_used_once_it_is_allowed(stage: Stage) -> None:
    """It may come from a stranger, with sessions and contents of files in it."""
    own = partial(stage.run, BACKTRAIL_STORE="")
    path = project(stage, 'store = "file:brought"\n')
    with Session.create(f"file:{stage.project}/brought", "theirs", cwd=stage.project) as s:
        s.append({"role": "user", "content": "go"})
    ran = own("ls", "--json")
    assert ran.json["sessions"] == []
    assert "not used" in ran.err and f"config allow {stage.project}" in ran.err
    assert str(path) in own("hooks", "status").out
    assert own("undo", "--yes").code == 3
    # A store that the person names is the person's choice.
    named = own("ls", "--json", "--store", "file:brought")
    assert named.json["sessions"] and "not used" not in named.err
    assert own("config", "allow", "--json").json["allowed"] is True
    ran = own("ls", "--json")
    assert [one["id"] for one in ran.json["sessions"]] == ["theirs"] and not ran.err
    assert own("config", "show", "--json").json["allowed"] == [str(stage.project)]
    assert own("config", "forbid").code == 0
    assert own("ls", "--json").json["sessions"] == []


def test_an_allowance_is_for_this_very_folder(stage: Stage, state: Path) -> None:
    """Not for another one that comes in its place, and it is kept by the person alone."""
    allow(stage.project)
    assert is_allowed(stage.project) and allowed() == [str(stage.project)]
    (stage.folder / "link").symlink_to(stage.project)
    assert is_allowed(stage.folder / "link")
    assert not is_allowed(stage.folder)
    (stage.project / "sub").mkdir()
    assert not is_allowed(stage.project / "sub")
    stage.project.rename(stage.folder / "old")
    stage.project.mkdir()
    assert not is_allowed(stage.project) and allowed() == []
    assert not is_allowed(stage.folder / "old")
    modes = {path.stat().st_mode & 0o777 for path in (state / "allowed").iterdir()}
    assert modes == {0o600}
    with pytest.raises(NotFound):
        allow(stage.folder / "nothing")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("BACKTRAIL_HOOK_TIMEOUT", "soon"),
        ("BACKTRAIL_HOOKS", "perhaps"),
        ("BACKTRAIL_COLOR", "x"),
        ("BACKTRAIL_HOOK_WAIT", "-1"),
        ("BACKTRAIL_ROOT", "home"),
        ("BACKTRAIL_ROOT_FILES", "1.5"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, given: str) -> None:
    """The same for the environment."""
    monkeypatch.setenv(name, given)
    with pytest.raises(InvalidData, match=name):
        load()


def test_what_is_captured_is_set_by_the_person(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root of workspaces, how large it may be, and how long calls wait for it."""
    found = load()
    assert (found.text("root"), found.root_files, found.hook_wait) == ("project", 100_000, 20.0)
    user(stage, 'root = "cwd"\nroot_files = 7\nhook_wait = 0\n')
    found = load()
    assert (found.text("root"), found.root_files, found.hook_wait) == ("cwd", 7, 0.0)
    monkeypatch.setenv("BACKTRAIL_ROOT", "project")
    assert load().text("root") == "project"


def test_switches_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As people write them."""
    for text, meant in (("off", False), ("0", False), ("ON", True), ("true", True)):
        monkeypatch.setenv("BACKTRAIL_HOOKS", text)
        assert (load().why_unrecorded(".") is None) is meant


def test_a_project_cannot_do_harm(stage: Stage) -> None:
    """Its file may come from a stranger: no store elsewhere, no budget of nothing."""
    (stage.project / "out").symlink_to(stage.folder)
    for text in (
        'store = "postgresql://elsewhere/x"',
        'store = "memory:"',
        'store = "sqlite:////srv/agent.db"',
        'store = "file:../elsewhere"',
        'store = "file:out/elsewhere"',
        'store = "file:~/elsewhere"',
        'budget = "1"',
    ):
        plain = values(load())
        project(stage, text)
        assert values(load()) == plain and len(load().warnings) == 1
        (stage.project / ".backtrail.toml").unlink()
        user(stage, text)
        load()
        user(stage, "")


def test_a_wrong_file_is_an_error_of_the_command_line(stage: Stage) -> None:
    """With exit code 1 if it is one's own; `doctor` says that this is what is bad."""
    path = user(stage, "store = 1")
    ran = stage.run("ls")
    assert (ran.code, ran.out) == (1, "")
    assert "`store`" in ran.err
    ran = stage.run("doctor")
    assert ran.code == 1
    assert ran.out.startswith("bad     settings")
    path.unlink()
    project(stage, "nonsense = 1")
    ran = stage.run("ls")
    assert ran.code == 0 and "`nonsense`" in ran.err


def test_config_show_reports_value_and_origin(stage: Stage) -> None:
    """For people and as data."""
    path = project(stage, 'color = "never"\n')
    own = user(stage, "hook_timeout = 3\n")
    ran = stage.run("config", "show", "--json").json
    assert ran["settings"]["hook_timeout"] == {"value": 3.0, "origin": str(own)}
    assert ran["settings"]["color"] == {"value": "never", "origin": str(path)}
    assert ran["settings"]["store"]["origin"] == "environment BACKTRAIL_STORE"
    assert set(ran["settings"]) == set(KEYS)
    assert ran["files"]["project"] == str(path)
    lines = stage.run("config").lines
    at = lines.index(f"hook_timeout  3 s  ({own})")
    assert lines[at + 1].strip() == "the longest a hook may take"


def test_the_budget_of_the_user_reaches_the_library(worked: Stage) -> None:
    """What `gc` keeps to is what the file says."""
    user(worked, 'budget = "7GB"\n')
    assert worked.run("gc", "--json").json["budget"] == 7 * 10**9
