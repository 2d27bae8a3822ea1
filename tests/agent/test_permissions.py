"""Who may do what: lists, phases, the callback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backtrail.agent.permissions import PHASES, Decision, Permissions, Phase
from backtrail.agent.tools import BUILT_IN, Context, tool_from
from backtrail.errors import InvalidData, Unsupported
from backtrail.events import Json
from tests.agent.tooling import context


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    """A workspace with two directories."""
    for name in ("src/deep", "secrets"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "src/way").symlink_to("../secrets")
    return context(tmp_path)


CALLS: dict[str, dict[str, Json]] = {
    "read": {"path": "src/a"},
    "edit": {"path": "src/a", "old_string": "a", "new_string": "b"},
    "bash": {"command": "ls"},
}


def allowed(permissions: Permissions, ctx: Context, name: str, **input: Json) -> bool:
    """Whether a call may run."""
    return permissions.check(BUILT_IN[name], input or CALLS[name], ctx).allowed


@pytest.mark.parametrize(
    ("phase", "able"),
    [
        ("plan", "read"),
        ("default", "read"),
        ("accept_edits", "read edit"),
        ("trusted", "read edit bash"),
        ("bypass_permissions", "read edit bash"),
    ],
)
def test_phases(ctx: Context, phase: Phase, able: str) -> None:
    """What each allows without asking; the rest is `phase_gated`."""
    permissions = Permissions(phase)
    assert [name for name in CALLS if allowed(permissions, ctx, name)] == able.split()
    for name in CALLS:
        decision = permissions.check(BUILT_IN[name], CALLS[name], ctx)
        assert decision.allowed or (decision.code == "phase_gated" and name in decision.reason)


@pytest.mark.parametrize("phase", PHASES)
def test_the_deny_list_wins(ctx: Context, phase: Phase) -> None:
    """Over the allow list, the phase and the callback."""
    permissions = Permissions(phase, ["read"], ["Read"], lambda *_: True)
    decision = permissions.check(BUILT_IN["read"], CALLS["read"], ctx)
    assert decision == Decision(False, "user_denied", "`read` is denied by `Read`.")


def test_the_allow_list_comes_before_the_phase(ctx: Context) -> None:
    """But `plan` changes nothing."""
    assert allowed(Permissions(allow=["bash"]), ctx, "bash")
    assert allowed(Permissions(allow=["b*"]), ctx, "bash")
    assert not allowed(Permissions(allow=["bash"]), ctx, "edit")
    assert not allowed(Permissions("plan", allow=["bash"]), ctx, "bash")


def test_the_callback_is_asked_last(ctx: Context) -> None:
    """For what neither lists nor phase decide."""
    asked: list[tuple[str, dict[str, Json], Context]] = []

    def ask(name: str, input: dict[str, Json], context: Context) -> bool | Decision:
        asked.append((name, input, context))
        return name == "edit" or Decision(False, "budget_exceeded", "too much")

    permissions = Permissions(can_use_tool=ask)
    assert allowed(permissions, ctx, "read")
    assert allowed(permissions, ctx, "edit")
    assert permissions.check(BUILT_IN["bash"], CALLS["bash"], ctx).code == "budget_exceeded"
    assert asked == [(name, CALLS[name], ctx) for name in ("edit", "bash")]
    for phase in ("plan", "trusted"):
        Permissions(phase, can_use_tool=ask).check(BUILT_IN["bash"], CALLS["bash"], ctx)
    assert len(asked) == 2


def test_answers_of_the_callback(ctx: Context) -> None:
    """False is the user's no; what is no answer allows nothing."""
    for answer, code in [
        (False, "user_denied"),
        (None, "unknown"),
        ("yes", "unknown"),
        (1, "unknown"),
    ]:
        permissions = Permissions(can_use_tool=lambda *_, a=answer: a)
        decision = permissions.check(BUILT_IN["bash"], CALLS["bash"], ctx)
        assert (decision.allowed, decision.code) == (False, code)

    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Permissions(can_use_tool=broken).check(BUILT_IN["bash"], CALLS["bash"], ctx)


def test_the_callback_may_be_async(ctx: Context) -> None:
    """Then `acheck` awaits it, and `check` says so."""

    async def ask(name: str, input: dict[str, Json], context: Context) -> bool:
        await asyncio.sleep(0)
        return True

    async def main(permissions: Permissions, name: str) -> Decision:
        return await permissions.acheck(BUILT_IN[name], CALLS[name], ctx)

    assert asyncio.run(main(Permissions(can_use_tool=ask), "bash")).allowed
    assert asyncio.run(main(Permissions(can_use_tool=lambda *_: True), "bash")).allowed
    assert not asyncio.run(main(Permissions(can_use_tool=ask, deny=["bash"]), "bash")).allowed
    with pytest.raises(Unsupported, match="AsyncSession"):
        Permissions(can_use_tool=ask).check(BUILT_IN["bash"], CALLS["bash"], ctx)


# --- patterns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "may"),
    [
        ("git status", True),
        ("git", True),
        ("  git   log  -1 ", True),
        ("git add . && git commit -m 'a; b | c'", True),
        ("git log | git diff", True),
        ('git commit -m "a & b"', True),
        ("gitk", False),
        ("git status; rm -rf .", False),
        ("git status\nrm -rf .", False),
        ("git status & rm x", False),
        ("git log $(rm x)", False),
        ("git log `rm x`", False),
        ('git log "$(rm x)"', False),
        ("git log > x", False),
        ("git diff <(rm x)", False),
        ("git log 'open", False),
        ("git log \\'; rm x; \\'", False),
        ("PAGER=evil git log", False),
        ("rm git x", False),
        ("", False),
    ],
)
def test_an_allowed_command_is_no_more_than_that(ctx: Context, command: str, may: bool) -> None:
    """`bash(git *)` allows plain git commands, and nothing that comes along with them."""
    assert allowed(Permissions(allow=["bash(git *)"]), ctx, "bash", command=command) is may


@pytest.mark.parametrize(
    "command",
    ["rm x", "ls; rm x", "ls && rm -rf /", "X=1 rm x", "(rm x)", "echo $(rm x)", "bash -c 'rm x'"],
)
def test_a_denied_command_is_denied_within_others(ctx: Context, command: str) -> None:
    """Wherever it stands in the line."""
    assert not allowed(Permissions("trusted", deny=["bash(rm *)"]), ctx, "bash", command=command)
    assert allowed(Permissions("trusted", deny=["bash(rm *)"]), ctx, "bash", command="ls rmdir")


def test_patterns_of_paths(ctx: Context) -> None:
    """They are held against where a path really leads."""
    permissions = Permissions(allow=["write(src/**)", "write(*.md)"])
    for path, may in [
        ("src/a", True),
        ("./src//deep/../b", True),
        (str(ctx.cwd / "src/a"), True),
        ("x.md", True),
        ("deep/x.md", True),
        ("src/../secrets/a", False),
        ("src/way/a", False),
        ("secrets/a", False),
    ]:
        assert allowed(permissions, ctx, "write", path=path, content="") is may, path
    permissions = Permissions("trusted", deny=["*(secrets)", "write(.env)"])
    for path, may in [
        ("secrets/a/b", False),
        ("src/../secrets", False),
        ("src/way/a", False),
        ("src/deep/.env", False),
        ("src/secrets.py", True),
    ]:
        assert allowed(permissions, ctx, "write", path=path, content="") is may, path
    assert not allowed(permissions, ctx, "read", path="src/way/key")


@pytest.mark.parametrize("tool", ["write", "edit", "apply_patch"])
def test_a_denied_kind_is_every_tool_of_it(ctx: Context, tool: str) -> None:
    """`edit(…)` keeps `write` and patches out as well; it does not forbid reading."""
    permissions = Permissions("trusted", deny=["edit(secrets/**)"])
    for path, may in (("secrets/key", False), ("src/a", True)):
        patch = f"*** Begin Patch\n*** Add File: {path}\n+a\n*** End Patch"
        given = {"patch": patch} if tool == "apply_patch" else {"path": path, "content": "a"}
        assert allowed(permissions, ctx, tool, **given) is may
    assert allowed(permissions, ctx, "read", path="secrets/key")


@pytest.mark.parametrize("phase", ["accept_edits", "trusted", "bypass_permissions"])
@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "src/.GIT/config", ".hg/hgrc", ".git"])
def test_version_control_is_never_edited(ctx: Context, phase: Phase, path: str) -> None:
    """What is not captured could not be taken back; it can be read, and names may be alike."""
    permissions = Permissions(phase, allow=["write"])
    decision = permissions.check(BUILT_IN["write"], {"path": path, "content": ""}, ctx)
    assert (decision.allowed, decision.code) == (False, "sandbox_violation")
    assert allowed(permissions, ctx, "read", path=path)
    assert allowed(permissions, ctx, "write", path=".github/x", content="")


def test_a_patch_is_as_good_as_its_worst_path(ctx: Context) -> None:
    """All paths must be allowed; one denied is enough."""
    both = "*** Begin Patch\n*** Add File: src/a\n+x\n*** Add File: {}\n+x\n*** End Patch"
    permissions = Permissions("default", ["apply_patch(src/**)"], ["apply_patch(src/deep/**)"])
    assert allowed(permissions, ctx, "apply_patch", patch=both.format("src/b"))
    assert not allowed(permissions, ctx, "apply_patch", patch=both.format("lib/b"))
    assert not allowed(permissions, ctx, "apply_patch", patch=both.format("src/deep/b"))
    broken = permissions.check(BUILT_IN["apply_patch"], {"patch": "nonsense"}, ctx)
    assert not broken.allowed


@pytest.mark.parametrize("phase", PHASES)
def test_a_path_outside_is_a_violation(ctx: Context, phase: Phase) -> None:
    """In every phase, for reading too."""
    for name in ("read", "write"):
        decision = Permissions(phase).check(BUILT_IN[name], {"path": "../x", "content": ""}, ctx)
        assert (decision.allowed, decision.code) == (False, "sandbox_violation")
        assert "outside the workspace" in decision.reason


def test_patterns_for_any_function(ctx: Context) -> None:
    """They are held against the input as JSON, or what it names as its subject."""

    def fetch(url: str) -> str:
        """Fetch a page."""
        return url

    plain, named = tool_from(fetch), tool_from(fetch, subject="url")
    input = {"url": "https://example.org/x"}
    assert Permissions(allow=["fetch(*example.org*)"]).check(plain, input, ctx).allowed
    assert Permissions(allow=["fetch(https://example.org/*)"]).check(named, input, ctx).allowed
    assert not Permissions(allow=["fetch(https://other.org/*)"]).check(named, input, ctx).allowed


def test_nonsense_is_refused() -> None:
    """A rule that would never match is an error, not a hole."""
    for entry in ("bash(git *", "", "two words", "bash)"):
        with pytest.raises(InvalidData):
            Permissions(deny=[entry])
    with pytest.raises(InvalidData, match="there is no phase"):
        Permissions("yolo")  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match="there is no phase"):
        Permissions().narrowed(phase="yolo")  # type: ignore[arg-type]


# --- children ------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("wanted", PHASES)
def test_a_child_never_gets_more(ctx: Context, phase: Phase, wanted: Phase) -> None:
    """Whatever it asks for."""
    parent = Permissions(phase, ["bash(git *)"], ["write"])
    child = parent.narrowed(phase=wanted, deny=["read"], allow=["bash(git *)", "bash"])
    assert PHASES.index(child.phase) == min(PHASES.index(phase), PHASES.index(wanted))
    assert child.deny == ("write", "read")
    assert child.allow == ("bash(git *)",)
    for name, input in [*CALLS.items(), ("write", {"path": "a", "content": ""})]:
        if allowed(child, ctx, name, **input):
            assert allowed(parent, ctx, name, **input)
    assert not allowed(child, ctx, "read")
    assert parent.narrowed() == parent
