"""Reading, writing and editing single files, and where paths may lead."""

from __future__ import annotations

import base64
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.agent.tools import BUILT_IN, Context, ToolFailed
from backtrail.agent.tools import paths as places
from backtrail.agent.tools.files import replaced
from tests.agent.tooling import context, run, tree


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A workspace, with something to protect beside it."""
    (tmp_path / "secret.txt").write_text("secret\n")
    home = tmp_path / "home"
    (home / "src").mkdir(parents=True)
    (home / "src/a.txt").write_text("one\ntwo\nthree\n")
    return home


@pytest.fixture
def ctx(home: Path) -> Context:
    """Its context."""
    return context(home)


# --- read ----------------------------------------------------------------------------------


def test_read_numbers_lines(ctx: Context) -> None:
    """From where it is asked to, and says if there is more."""
    assert run(ctx, "read", path="src/a.txt") == "     1\tone\n     2\ttwo\n     3\tthree"
    notified = run(ctx, "read", path="src/a.txt", offset=2, limit=1)
    assert notified == "     2\ttwo\n(there is more: go on with offset=3)"
    assert run(ctx, "read", path="src/a.txt", offset=9) == "(`src/a.txt` has 3 lines)"


def test_read_keeps_within_its_limits(ctx: Context, home: Path) -> None:
    """A huge file is shown in parts, a huge line is cut."""
    (home / "huge").write_text("".join(f"line {n}\n" for n in range(100_000)))
    notified = run(ctx, "read", path="huge", limit=10**9)
    assert len(notified) < ctx.output_limit + 200
    next_line = int(notified.rpartition("offset=")[2].rstrip(")"))
    assert run(ctx, "read", path="huge", offset=next_line, limit=1).startswith(
        f"{next_line:6}\tline {next_line - 1}\n"
    )
    (home / "long").write_text("x" * 1_000_000 + "\nend\n")
    notified = run(ctx, "read", path="long")
    assert len(notified) < 3000
    assert "(line cut)\n     2\tend" in notified


def test_read_says_what_is_no_text(ctx: Context, home: Path) -> None:
    """Binary, empty, missing, a directory, a pipe."""
    (home / "binary").write_bytes(b"\0\1\2" * 100)
    (home / "empty").touch()
    os.mkfifo(home / "pipe")
    assert "is empty" in run(ctx, "read", path="empty")
    for path, notified in [
        ("binary", "binary file of 300 bytes"),
        ("missing", "does not exist"),
        ("src", "is a directory"),
        ("pipe", "not a plain file"),
        ("src/a.txt/b", "not a directory"),
    ]:
        with pytest.raises(ToolFailed, match=notified):
            run(ctx, "read", path=path)


def test_read_shows_images(ctx: Context, home: Path) -> None:
    """As a block with their data."""
    picture = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 100
    (home / "a.png").write_bytes(picture)
    block = BUILT_IN["read"].run(ctx, {"path": "a.png"})[0]
    assert block["type"] == "image"
    assert block["source"]["media_type"] == "image/png"
    assert base64.b64decode(block["source"]["data"]) == picture


# --- write and edit ------------------------------------------------------------------------


def test_write_makes_directories_and_replaces(ctx: Context, home: Path) -> None:
    """A new file gets the usual mode, an old one keeps its own."""
    run(ctx, "write", path="new/deep/b.txt", content="hé\n")
    assert (home / "new/deep/b.txt").read_bytes() == "hé\n".encode()
    plain = home / "plain"
    plain.touch()
    assert (home / "new/deep/b.txt").stat().st_mode == plain.stat().st_mode
    script = home / "run.sh"
    script.write_text("old")
    script.chmod(0o751)
    assert run(ctx, "write", path="run.sh", content="new").startswith("Replaced")
    assert script.read_text() == "new"
    assert script.stat().st_mode & 0o7777 == 0o751
    assert not [name for name in tree(home) if "backtrail" in name]


def test_write_is_whole(ctx: Context, home: Path) -> None:
    """A reader meanwhile sees all of the old or all of the new."""
    path = home / "whole"
    path.write_text("a" * 200_000)
    seen: set[tuple[str, int]] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            text = path.read_text()
            seen.add((text[:1] + text[-1:], len(text)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for n in range(60):
        run(ctx, "write", path="whole", content="ab"[n % 2] * (200_000 + n % 2))
    done.set()
    watcher.join()
    assert seen <= {("aa", 200_000), ("bb", 200_001)}


def test_edit_wants_one_match(ctx: Context, home: Path) -> None:
    """It says how many there are, and changes nothing."""
    path = home / "e.txt"
    path.write_text("a b a b aaa\n")
    for old, notified in [
        ("x", "0 matches"),
        ("b", "2 matches"),
        ("aa", "2 matches"),
        ("", "empty"),
    ]:
        with pytest.raises(ToolFailed, match=notified):
            run(ctx, "edit", path="e.txt", old_string=old, new_string="y")
    with pytest.raises(ToolFailed, match="the same"):
        run(ctx, "edit", path="e.txt", old_string="a", new_string="a")
    assert path.read_text() == "a b a b aaa\n"
    assert "2 replacements" in run(
        ctx, "edit", path="e.txt", old_string="b", new_string="c", replace_all=True
    )
    assert path.read_text() == "a c a c aaa\n"


def test_edit_keeps_endings_and_mode(ctx: Context, home: Path) -> None:
    """A file with `\\r\\n` gets no `\\n`; bytes that are no UTF-8 stay."""
    path = home / "dos.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\xff\r\nthree\r\n")
    path.chmod(0o600)
    run(ctx, "edit", path="dos.txt", old_string="\nthree\n", new_string="\n3\n4\n")
    assert path.read_bytes() == b"\xef\xbb\xbfone\r\ntwo\xff\r\n3\r\n4\r\n"
    run(ctx, "edit", path="dos.txt", old_string="3", new_string="x\ny")
    assert path.read_bytes() == b"\xef\xbb\xbfone\r\ntwo\xff\r\nx\r\ny\r\n4\r\n"
    assert path.stat().st_mode & 0o777 == 0o600


@given(st.text("ab\n", max_size=12), st.text("ab\n", min_size=1, max_size=4), st.text("abc\n"))
def test_edit_is_plain_replacement(text: str, old: str, new: str) -> None:
    """As a naive model has it: exactly one place, counted at every position."""
    places = [at for at in range(len(text)) if text.startswith(old, at)]
    for end in ("\n", "\r\n"):
        content = text.replace("\n", end).encode()
        for every in (False, True):
            try:
                done, _ = replaced("f", content, old.encode(), new.encode(), every)
            except ToolFailed:
                assert not places or (len(places) > 1 and not every)
            else:
                assert len(places) == 1 or every
                wanted = text.replace(old, new)
                if end in content.decode():
                    wanted = wanted.replace("\n", end)
                assert done.decode() == wanted


def test_edit_refuses_half_characters(ctx: Context) -> None:
    """What a file cannot hold is said, not written."""
    with pytest.raises(ToolFailed, match="surrogate"):
        run(ctx, "write", path="x", content="\ud800")


# --- where paths lead ----------------------------------------------------------------------


def test_no_path_leads_out(ctx: Context, home: Path, tmp_path: Path) -> None:
    """However it is written, for every tool; nothing outside is read, changed or made."""
    (home / "out").symlink_to("..")
    (home / "etc").symlink_to("/etc")
    (home / "far").symlink_to("src/../out/secret.txt")
    (home / "new").symlink_to(tmp_path / "created.txt")
    (home / "loop").symlink_to("loop")
    (home / "ping").symlink_to("pong")
    (home / "pong").symlink_to("ping")
    (home / "twin").mkdir()
    (tmp_path / "home2").mkdir()
    (tmp_path / "home2/x").write_text("x")
    before = tree(tmp_path)
    hostile = [
        "../secret.txt", "src/../../secret.txt", "out/secret.txt", "etc/passwd", "/etc/passwd",
        "far", "new", "loop", "ping/x", f"{tmp_path}/secret.txt", "a\0b", "../home2/x",
        f"{home}2/x", f"{home}/../secret.txt", "//etc/passwd", "out/../out/secret.txt",
        "src/../out/home2/x", "missing/../../secret.txt",
    ]  # fmt: skip
    for path in hostile:
        for name, input in [
            ("read", {}),
            ("write", {"content": "x"}),
            ("edit", {"old_string": "s", "new_string": "x"}),
            ("glob", {"pattern": "*"}),
            ("grep", {"pattern": "."}),
        ]:
            with pytest.raises(ToolFailed, match="is outside the workspace"):
                run(ctx, name, path=path, **input)
        for patch in (
            f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch",
            f"*** Begin Patch\n*** Update File: src/a.txt\n*** Move to: {path}\n*** End Patch",
        ):
            if "\0" not in path:
                with pytest.raises(ToolFailed, match="is outside the workspace"):
                    run(ctx, "apply_patch", patch=patch)
    assert tree(tmp_path) == before


def test_links_within_are_followed(ctx: Context, home: Path) -> None:
    """Relative or absolute; a write goes to what they lead to."""
    (home / "rel").symlink_to("src/../src/a.txt")
    (home / "dir").symlink_to(home / "src")
    (home / "chain").symlink_to("dir/a.txt")
    for path in ("rel", "dir/a.txt", "chain", f"{home}/chain", "./src//a.txt", "src/../rel"):
        assert "one" in run(ctx, "read", path=path)
    run(ctx, "write", path="chain", content="new")
    assert (home / "src/a.txt").read_text() == "new"
    assert (home / "chain").is_symlink()
    run(ctx, "write", path="dir/more/b.txt", content="b")
    assert (home / "src/more/b.txt").read_text() == "b"


def test_a_chain_that_is_too_long_is_refused(ctx: Context, home: Path) -> None:
    """Forty links are enough."""
    (home / "l0").symlink_to("src/a.txt")
    for n in range(1, 50):
        (home / f"l{n}").symlink_to(f"l{n - 1}")
    assert "one" in run(ctx, "read", path="l39")
    with pytest.raises(ToolFailed, match="is outside"):
        run(ctx, "read", path="l40")


def test_the_workspace_may_be_reached_by_a_link(home: Path, tmp_path: Path) -> None:
    """Its name and its real path both lead into it."""
    (tmp_path / "alias").symlink_to("home")
    for cwd in (tmp_path / "alias", home):
        for path in (f"{tmp_path}/alias/src/a.txt", f"{home}/src/a.txt", "src/a.txt"):
            assert "one" in run(context(cwd), "read", path=path)


def test_other_roots(home: Path, tmp_path: Path) -> None:
    """Paths may lead from one to the other, by name and by link, and nowhere else."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.txt").write_text("two\n")
    (home / "to").symlink_to("../other")
    ctx = context(home, other)
    for path in (f"{other}/b.txt", "../other/b.txt", "to/b.txt", "../home/to/b.txt"):
        assert "two" in run(ctx, "read", path=path)
    with pytest.raises(ToolFailed, match="is outside"):
        run(ctx, "read", path="to/../secret.txt")


@pytest.mark.parametrize("name", ["read", "write", "edit", "glob", "grep"])
@pytest.mark.parametrize("looks", range(1, 4))
def test_a_link_put_there_meanwhile_leads_nowhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, looks: int
) -> None:
    """A path that was found good is opened without following links."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep/a.txt").write_text("outside\n")
    (home / "src/deep").mkdir()
    (home / "src/deep/a.txt").write_text("inside\n")
    look, seen = places._link_at, 0

    def then_swapped(root: places.Root, above: bytes, name: bytes) -> bytes | None:
        nonlocal seen
        found = look(root, above, name)
        seen += 1
        if seen == looks:
            (home / "src").rename(home / "away")
            (home / "src").symlink_to(outside)
        return found

    monkeypatch.setattr(places, "_link_at", then_swapped)
    path = "src/deep" if name in ("glob", "grep") else "src/deep/a.txt"
    more: dict[str, dict[str, str]] = {
        "read": {}, "write": {"content": "x"}, "glob": {"pattern": "*"}, "grep": {"pattern": "."},
        "edit": {"old_string": "side", "new_string": "x"},
    }  # fmt: skip
    try:
        assert "outside" not in run(context(home), name, path=path, **more[name])
    except ToolFailed as error:
        assert "not a directory" in error.message
    assert tree(outside) == {"deep": "directory", "deep/a.txt": b"outside\n"}
