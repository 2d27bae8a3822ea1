"""Patches: both forms, all or nothing."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.agent.tools import Context, ToolFailed
from backtrail.agent.tools.patching import apply_hunks, parse
from backtrail.agent.tools.paths import Place
from tests.agent.tooling import context, run, tree


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A workspace with a few files."""
    home = tmp_path / "home"
    (home / "src").mkdir(parents=True)
    (home / "src/a.py").write_text("def a():\n    x = 1\n    return x\n\ndef b():\n    x = 1\n")
    (home / "old.txt").write_text("old\n")
    (home / "gone.txt").write_text("gone\n")
    return home


@pytest.fixture
def ctx(home: Path) -> Context:
    """Its context."""
    return context(home)


SECTIONS = """*** Begin Patch
*** Add File: new/deep.txt
+first

+third
*** Update File: src/a.py
@@ def b():
-    x = 1
+    x = 2
*** Update File: old.txt
*** Move to: moved/new.txt
@@
-old
+new
*** Delete File: gone.txt

*** End Patch
"""


def test_sections(ctx: Context, home: Path) -> None:
    """Add, update, move and delete in one patch."""
    notified = run(ctx, "apply_patch", patch=SECTIONS)
    assert notified.split("\n") == [
        "Added `new/deep.txt`.", "Updated `src/a.py`.",
        "Moved `old.txt` to `moved/new.txt`.", "Deleted `gone.txt`.",
    ]  # fmt: skip
    assert tree(home) == {
        "new": "directory", "new/deep.txt": b"first\n\nthird\n",
        "moved": "directory", "moved/new.txt": b"new\n", "src": "directory",
        "src/a.py": b"def a():\n    x = 1\n    return x\n\ndef b():\n    x = 2\n",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "notified"),
    [
        ("*** Update File: src/a.py\n@@\n-    y = 1\n+    y = 2", "hunk 1 of `src/a.py`"),
        ("*** Update File: src/a.py\n@@ def c():\n-    x = 1", "'def c\\(\\):' is not in"),
        ("*** Update File: src/a.py", "no hunk for"),
        ("*** Update File: none.py\n-x\n+y", "does not exist"),
        ("*** Delete File: none.py", "does not exist"),
        ("*** Add File: src/a.py\n+x", "exists already"),
        ("*** Add File: x\nline", "does not belong"),
        ("*** Update File: src/a.py\n*** Move to: other.txt\n", "exists already"),
        ("*** Update File: link\n-old\n+new\n*** Delete File: link", "is a link"),
        ("*** Delete File: src", "is a directory"),
        ("*** Add File: ../x\n+x", "is outside the workspace"),
        ("*** Add File: old.txt/x\n+x", "not a directory"),
    ],
)
def test_all_or_nothing(ctx: Context, home: Path, bad: str, notified: str) -> None:
    """One part that does not fit, and nothing is changed."""
    (home / "other.txt").write_text("x")
    (home / "link").symlink_to("other.txt")
    (home / "other.txt").write_text("old\n")
    before = tree(home)
    good = "*** Begin Patch\n*** Add File: d/n\n+x\n*** Update File: old.txt\n-old\n+new\n"
    with pytest.raises(ToolFailed, match=notified):
        run(ctx, "apply_patch", patch=f"{good}{bad}\n*** End Patch")
    assert tree(home) == before


def test_a_patch_that_is_cut_off_is_refused(ctx: Context, home: Path) -> None:
    """A model that ran out of tokens must not leave half a change."""
    before = tree(home)
    with pytest.raises(ToolFailed, match="cut off"):
        run(ctx, "apply_patch", patch=SECTIONS.replace("*** End Patch\n", ""))
    for nothing in ("", "hello", "*** Begin Patch\n*** End Patch"):
        with pytest.raises(ToolFailed):
            run(ctx, "apply_patch", patch=nothing)
    assert tree(home) == before


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_failing_disk_leaves_all_as_it_was(
    ctx: Context, home: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Whichever of the writes, moves and removals fails."""
    (home / "old.txt").chmod(0o640)
    before = tree(home)
    steps = 0

    def counted(name: str) -> None:
        real = getattr(Place, name)

        def step(self: Place, *args: object, **options: object) -> object:
            nonlocal steps
            steps += 1
            if steps == failing:
                raise OSError(28, "No space left on device")
            return real(self, *args, **options)

        monkeypatch.setattr(Place, name, step)

    for name in ("stage", "put", "drop"):
        counted(name)
    with pytest.raises(ToolFailed, match="No space left"):
        run(ctx, "apply_patch", patch=SECTIONS)
    assert steps >= failing
    assert tree(home) == before
    assert (home / "old.txt").stat().st_mode & 0o777 == 0o640


def test_a_file_changed_meanwhile_stops_the_patch(
    ctx: Context, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person's work between the check and the write is kept."""
    stage = Place.stage

    def slow(self: Place, *args: object) -> bytes:
        (home / "src/a.py").write_text("somebody else\n")
        return stage(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Place, "stage", slow)
    with pytest.raises(ToolFailed, match="changed meanwhile"):
        run(ctx, "apply_patch", patch=SECTIONS)
    assert (home / "src/a.py").read_text() == "somebody else\n"
    assert (home / "old.txt").exists()
    assert not (home / "new").exists()
    with pytest.raises(ToolFailed, match="changed meanwhile"):
        run(ctx, "edit", path="src/a.py", old_string="else", new_string="new")


def test_what_models_get_wrong(ctx: Context, home: Path) -> None:
    """Line numbers, counts, spaces at line ends and missing signs of empty lines."""
    path = home / "w.txt"
    path.write_text("a\nb  \n\nc\nd\na\nb\n")
    run(ctx, "apply_patch", patch="--- w.txt\n+++ w.txt\n@@ -40,2 +41,9 @@\n b\n\n-c\n+C\n")
    assert path.read_text() == "a\nb  \n\nC\nd\na\nb\n"
    run(ctx, "apply_patch", patch="--- a/w.txt\n+++ b/w.txt\n@@ -6,1 +6,1 @@\n a\n-b\n+B\n")
    assert path.read_text() == "a\nb  \n\nC\nd\na\nB\n"
    end = "*** Begin Patch\n*** Update File: w.txt\n@@\n a\n+end\n*** End of File\n*** End Patch"
    path.write_text("a\nb\na\n")
    run(ctx, "apply_patch", patch=end)
    assert path.read_text() == "a\nb\na\nend\n"


def test_patches_keep_endings(ctx: Context, home: Path) -> None:
    """Of a file with `\\r\\n`, whatever those of the patch."""
    path = home / "dos.txt"
    for patch in (
        "--- a/dos.txt\n+++ b/dos.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n",
        "--- a/dos.txt\n+++ b/dos.txt\n@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\r\n",
        "--- a/dos.txt\r\n+++ b/dos.txt\r\n@@ -1,2 +1,2 @@\r\n one\r\n-two\r\n+2\r\n",
    ):
        path.write_bytes(b"one\r\ntwo\r\n\xff\r\n")
        run(ctx, "apply_patch", patch=patch)
        assert path.read_bytes() == b"one\r\n2\r\n\xff\r\n"


def unified(old: str, new: str) -> str:
    """A diff as `diff -u` writes it, with its note on a missing newline."""
    a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    lines = difflib.unified_diff(a, b, "a/f", "b/f", n=2)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def sections(old: str, new: str) -> str:
    """The same change as a section with all lines of the file."""
    a, b = old.splitlines(), new.splitlines()
    lines = [line for line in difflib.ndiff(a, b) if not line.startswith("?")]
    body = "".join(f"{line[0]}{line[2:]}\n" for line in lines)
    return f"*** Begin Patch\n*** Update File: f\n{body}*** End Patch\n"


LINES = st.lists(st.sampled_from(["a", "b", "", "-- x", "++ y", "@@", " c"]), max_size=14)


@given(LINES, LINES, st.booleans(), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_a_diff_gives_the_new_text(
    old: list[str], new: list[str], open_old: bool, open_new: bool, end: str
) -> None:
    """Whatever the two texts are: the diff of them, applied to the old, is the new."""
    a, b = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    a, b = a[:-1] if open_old else a, b[:-1] if open_new else b
    if a == b or not a:
        return
    (change,) = parse(unified(a, b))
    there, wanted = (text.replace("\n", end) for text in (a, b))
    if "\n" in a:
        assert apply_hunks(change, there) == wanted


@given(LINES, LINES)
def test_a_section_gives_the_new_text(old: list[str], new: list[str]) -> None:
    """The same for the other form."""
    a, b = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    if a == b or not a:
        return
    (change,) = parse(sections(a, b))
    assert apply_hunks(change, a) == b


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_what_git_writes_is_understood(tmp_path: Path) -> None:
    """A diff of a real repository: modes, renames, odd names, new and deleted files."""

    def git(*args: str) -> str:
        author = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_CONFIG_GLOBAL": "/dev/null"}
        author |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a"}
        done = subprocess.run(
            ["git", *args], cwd=repo, env=os.environ | author, capture_output=True, check=True
        )
        return done.stdout.decode()

    repo = tmp_path / "repo"
    repo.mkdir()
    git("init", "-q")
    text = "".join(f"line {n}\n" for n in range(50))
    for name in ("keep", "change", "rename me", "run.sh", "delete"):
        (repo / name).write_text(text + name)
    git("add", "-A")
    git("commit", "-qm", "one")
    shutil.copytree(repo, tmp_path / "copy", ignore=shutil.ignore_patterns(".git"))
    (repo / "change").write_text(text.replace("line 7\n", "seven\n7b\n").replace("line 40\n", ""))
    (repo / "rename me").rename(repo / "naïve\tname")
    (repo / "run.sh").chmod(0o755)
    (repo / "delete").unlink()
    (repo / "sub").mkdir()
    (repo / "sub/new.sh").write_text("#!/bin/sh\n")
    (repo / "sub/new.sh").chmod(0o755)
    (repo / "empty").touch()
    git("add", "-A")
    git("commit", "-qm", "- two")
    patch = git("format-patch", "-1", "--stdout", "-M")
    run(context(tmp_path / "copy"), "apply_patch", patch=patch)
    shutil.rmtree(repo / ".git")
    assert tree(tmp_path / "copy") == tree(repo)
    for name in ("run.sh", "sub/new.sh", "change"):
        assert (tmp_path / "copy" / name).stat().st_mode == (repo / name).stat().st_mode
