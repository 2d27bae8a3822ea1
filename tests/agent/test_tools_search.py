"""Finding files by name and by content."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backtrail.agent.tools import Context, ToolFailed
from backtrail.agent.tools.grep import matches
from tests.agent.tooling import context, run


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    """A workspace with files that a search finds, and files that it leaves out."""
    for name in ("a.py", "src/b.py", "src/deep/c.py", "src/d.ts", "src/e.js", ".hidden/f.py",
                 "node_modules/x/g.py", ".git/h.py", "__pycache__/i.py", "target/j.py",
                 ".backtrail-tmp-01a1ec19-7813-7160-8f24-34262000845a/k.py"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import os\n# {name}\nfoo = 1\nBar = 2\nend\n")
    (tmp_path / "binary.py").write_bytes(b"import os\0")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "link.py").symlink_to("a.py")
    return context(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", "a.py binary.py link.py"),
        ("**/*.py", ".hidden/f.py a.py binary.py link.py src/b.py src/deep/c.py target/j.py"),
        ("src/**", "src/b.py src/d.ts src/deep/c.py src/e.js"),
        ("src/*.{ts,js}", "src/d.ts src/e.js"),
        ("src/[bd].*", "src/b.py src/d.ts"),
        ("src/[!bd].*", "src/e.js"),
        ("./src/?.py", "src/b.py"),
        ("**/deep/**/*.py", "src/deep/c.py"),
        ("*.rs", ""),
    ],
)
def test_glob(ctx: Context, pattern: str, found: str) -> None:
    """What matches, sorted; packages, caches and version control are left out."""
    assert run(ctx, "glob", pattern=pattern) == (found.replace(" ", "\n") or "(no files match)")


def test_glob_starts_anywhere(ctx: Context) -> None:
    """Also in what it would not enter by itself; it says if there is more."""
    assert run(ctx, "glob", pattern="*.py", path="src") == "src/b.py"
    assert run(ctx, "glob", pattern="**", path="node_modules") == "node_modules/x/g.py"
    assert run(ctx, "glob", pattern="**", limit=2).endswith("(there are more than 2)")
    with pytest.raises(ToolFailed, match="not a directory"):
        run(ctx, "glob", pattern="*", path="a.py")
    with pytest.raises(ToolFailed, match="does not exist"):
        run(ctx, "glob", pattern="*", path="missing")


def test_build_output_is_left_out_where_its_tool_is_at_home(ctx: Context) -> None:
    """`target` beside a `Cargo.toml` is opaque."""
    (ctx.cwd / "Cargo.toml").touch()
    assert "target" not in run(ctx, "glob", pattern="**")


def test_grep(ctx: Context) -> None:
    """Lines, names or counts; links and binary files are left out."""
    assert run(ctx, "grep", pattern=r"^foo\s*=", path="src").split("\n") == [
        "src/b.py:3:foo = 1", "src/d.ts:3:foo = 1", "src/deep/c.py:3:foo = 1",
        "src/e.js:3:foo = 1",
    ]  # fmt: skip
    assert run(ctx, "grep", pattern="import", output="files", glob="*.py").split("\n") == [
        ".hidden/f.py", "a.py", "src/b.py", "src/deep/c.py", "target/j.py",
    ]  # fmt: skip
    assert run(ctx, "grep", pattern="o", output="count", path="a.py") == "a.py:2"
    assert run(ctx, "grep", pattern="BAR", path="a.py") == "(no matches)"
    assert run(ctx, "grep", pattern="BAR", path="a.py", ignore_case=True) == "a.py:4:Bar = 2"
    assert run(ctx, "grep", pattern="foo", glob="src/*.ts") == "src/d.ts:3:foo = 1"


def test_grep_shows_what_is_around(ctx: Context) -> None:
    """Overlapping parts once, others apart."""
    (ctx.cwd / "n").write_text("".join(f"{n}\n" for n in range(1, 21)))
    notified = run(ctx, "grep", pattern="^(3|5|15|20)$", path="n", context=1)
    assert notified == (
        "n-2-2\nn:3:3\nn-4-4\nn:5:5\nn-6-6\n--\nn-14-14\nn:15:15\nn-16-16\n--\nn-19-19\nn:20:20"
    )


def test_grep_keeps_within_its_limits(ctx: Context) -> None:
    """Matches, characters, and long lines."""
    (ctx.cwd / "many").write_text("x\n" * 10_000)
    notified = run(ctx, "grep", pattern="x", path="many", limit=3)
    assert notified == "many:1:x\nmany:2:x\nmany:3:x\n(there is more: narrow the search)"
    notified = run(ctx, "grep", pattern="x", path="many", limit=100_000)
    assert len(notified) < ctx.output_limit + 100
    (ctx.cwd / "long").write_text("y" * 100_000)
    assert len(run(ctx, "grep", pattern="y", path="long")) < 600
    with pytest.raises(ToolFailed, match="no regular expression"):
        run(ctx, "grep", pattern="(")
    with pytest.raises(ToolFailed, match="binary"):
        run(ctx, "grep", pattern="x", path="binary.py")


def test_a_search_can_be_cancelled(ctx: Context) -> None:
    """And ends in time."""
    ctx.cancelled = lambda: True
    with pytest.raises(ToolFailed, match="cancelled"):
        run(ctx, "grep", pattern="x")
    ctx.cancelled = lambda: False
    ctx.timeout = -1
    with pytest.raises(ToolFailed, match="took more than"):
        run(ctx, "glob", pattern="**")


def test_patterns_are_whole() -> None:
    """Signs of regular expressions mean themselves, and braces do not explode."""
    assert matches("a.b(c)+[", "a.b(c)+[")
    assert not matches("a.b", "axb")
    assert matches("[]]", "]") and not matches("*", "a/b") and matches("**", "a/b")
    assert matches("a/**/b", "a/b") and matches("a/**/b", "a/x/y/b")
    assert matches("[\\d]", "\\") and not matches("[\\d]", "5")
    assert isinstance(matches("{a,b}" * 12, "a"), bool)
    assert matches("*.md", "x/y.md", anywhere=True) and not matches("*.md", "x/y.md")
    with pytest.raises(re.error):
        matches("[z-a]", "x")
