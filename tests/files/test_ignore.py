"""What is not entered: names, ignore files as git reads them, and what is heavy."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backtrail.files.trees import Entry
from backtrail.files.workspace import ignore
from backtrail.files.workspace.ignore import (
    BUILD,
    PACKAGES,
    VERSION_CONTROL,
    Rules,
    is_heavy,
    opaque_name,
    read_rules,
)
from tests.files.scanning import Site, settle


def never(name: bytes) -> bool:
    return False


def only(*names: bytes) -> Callable[[bytes], bool]:
    return lambda name: name in names


@pytest.mark.parametrize(
    ("name", "beside", "inside", "reason"),
    [
        (b".git", never, never, VERSION_CONTROL),
        (b".jj", never, never, VERSION_CONTROL),
        (b"node_modules", never, never, PACKAGES),
        (b"__pycache__", never, never, PACKAGES),
        (b"target", never, never, b""),
        (b"target", only(b"Cargo.toml"), never, BUILD),
        (b"target", only(b"pom.xml"), never, BUILD),
        (b"vendor", only(b"go.mod"), never, b""),
        (b"venv", never, never, b""),
        (b"venv", never, only(b"pyvenv.cfg"), PACKAGES),
        (b"src", only(b"Cargo.toml"), only(b"pyvenv.cfg"), b""),
        (b".github", never, never, b""),
    ],
)
def test_names(
    name: bytes, beside: Callable[[bytes], bool], inside: Callable[[bytes], bool], reason: bytes
) -> None:
    """A name decides, a common word only where its tool is at home."""
    assert opaque_name(name, beside, inside) == reason


def git(*lines: str, prefix: str = "", above: Rules | None = None) -> Rules:
    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    return (above or Rules()).inside(prefix, [(b".gitignore", content)])


def ours(*lines: str, prefix: str = "", above: Rules | None = None) -> Rules:
    content = "\n".join(lines).encode()
    return (above or Rules()).inside(prefix, [(b".backtrailignore", content)])


def test_no_rules_leave_nothing_out() -> None:
    """They are false, so git need not be asked."""
    assert not Rules()
    assert Rules().verdict("a", directory=True) == ""


def test_patterns_belong_to_their_directory() -> None:
    """A slash anchors a pattern where its file is."""
    rules = git("/build", "*.log", prefix="sub/")
    assert rules.verdict("sub/build", directory=True) == "git"
    assert rules.verdict("sub/deep/build", directory=True) == ""
    assert rules.verdict("sub/deep/a.log", directory=False) == "git"


def test_the_nearest_file_decides() -> None:
    """A nested ignore file takes back what one above says, and only that."""
    rules = git("!keep.log", prefix="sub/", above=git("*.log"))
    assert rules.verdict("sub/keep.log", directory=False) == ""
    assert rules.verdict("sub/other.log", directory=False) == "git"


def test_ours_goes_before_git() -> None:
    """Neither file of git takes back what ours says, but ours takes back what git's say."""
    rules = git("!secret", prefix="sub/", above=ours("secret", "!dist", above=git("dist")))
    assert rules.verdict("sub/secret", directory=False) == "ours"
    assert rules.verdict("dist", directory=True) == ""


def test_directory_patterns_need_a_directory() -> None:
    """`dist/` is no file."""
    assert git("dist/").verdict("dist", directory=True) == "git"
    assert git("dist/").verdict("dist", directory=False) == ""


def test_odd_ignore_files() -> None:
    """A byte order mark, CRLF, other encodings, and lines that mean nothing."""
    rules = Rules().inside("", [(b".gitignore", b"\xef\xbb\xbfdist/\r\n!\n\xff*\n\n# no\nb/\n")])
    assert rules.verdict("dist", directory=True) == "git"
    assert rules.verdict("b", directory=True) == "git"
    assert rules.verdict("\udcffx", directory=False) == "git"
    assert rules.verdict("no", directory=False) == ""


PATTERN = st.from_regex(r"!?/?(\*\*/)?[ab]?[ab*?][ab]?(/[ab])?/?", fullmatch=True)
NAMES = ["a", "b", "ab", "aab", "c"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", place], check=True)
    for name in NAMES:
        (place / name).mkdir()
    return place


@settings(max_examples=40, deadline=None)
@given(lines=st.lists(PATTERN, min_size=1, max_size=4))
def test_plain_patterns_are_those_of_git(repository: Path, lines: list[str]) -> None:
    """For the directories a scan asks about, git's own verdict is the same."""
    (repository / ".gitignore").write_text("\n".join(lines))
    asked = ["git", "-c", "core.excludesFile=/dev/null", "check-ignore", *NAMES]
    found = subprocess.run(asked, cwd=repository, capture_output=True, text=True, check=False)
    rules = git(*lines)
    ignored = {name for name in NAMES if rules.verdict(name, directory=True)}
    assert ignored == set(found.stdout.split())


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def test_ignore_files_are_plain_files(tmp_path: Path) -> None:
    """A link, a directory or a pipe under that name is not read, and nothing hangs."""
    (tmp_path / "plain").write_bytes(b"a\n")
    (tmp_path / "link").symlink_to("plain")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    fd = opened(tmp_path)
    try:
        assert read_rules(fd, b"plain") == b"a\n"
        for name in (b"link", b"directory", b"pipe", b"missing"):
            assert read_rules(fd, name) is None
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("files", "directories", "size", "heavy"),
    [(20, 20, 0, False), (21, 1, 0, True), (1, 21, 0, True), (1, 1, 101, True), (1, 1, 100, False)],
)
def test_heavy_is_counted_all_the_way_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    files: int, directories: int, size: int, heavy: bool,
) -> None:  # fmt: skip
    """Too many files, directories or bytes, at any depth."""
    monkeypatch.setattr(ignore, "HEAVY_FILES", 20)
    monkeypatch.setattr(ignore, "HEAVY_BYTES", 100)
    place = tmp_path
    for number in range(directories):
        place = place / f"d{number}"
        place.mkdir()
    for number in range(files):
        (place / f"f{number}").write_bytes(b"x" * size)
    fd = opened(tmp_path)
    try:
        assert is_heavy(fd) is heavy
    finally:
        os.close(fd)


# --- in scans ----------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A directory in which six files are heavy."""
    monkeypatch.setattr(ignore, "HEAVY_FILES", 5)
    return Site(tmp_path / "site")


def fill(site: Site, path: str, count: int = 1) -> None:
    for number in range(count):
        place = site / (f"{path}/f{number}" if count > 1 else path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{path} {number}")


def kinds(site: Site) -> dict[bytes, str]:
    return {path: entry.kind for path, entry in site.paths().items()}


def test_ignored_files_are_kept_and_heavy_directories_are_not(site: Site) -> None:
    """Agents destroy `.env` too."""
    (site / ".gitignore").write_text(".env\nlight/\nheavy/\n*.db\n")
    for path, count in ((".env", 1), ("light", 5), ("heavy/in", 6), ("data/dev.db", 1)):
        fill(site, path, count)
    fill(site, "plain", 9)
    found = kinds(site)
    assert found[b"heavy"] == "opaque"
    assert found[b".env"] == found[b"light/f4"] == found[b"data/dev.db"] == "file"
    assert found[b"plain/f8"] == "file"
    assert site.reasons() == {b"heavy": ignore.IGNORED}


@pytest.mark.parametrize("where", ["", "a/", "a/b/"])
@pytest.mark.parametrize("reload", [False, True])
def test_rules_reach_down_to_what_comes_later(site: Site, where: str, reload: bool) -> None:
    """A directory changes deep below an ignore file in one that did not."""
    fill(site, "a/b/c/file")
    (site / f"{where}.gitignore").write_text("big/\n")
    (site / f"{where}.backtrailignore").write_text("*.tmp\n")
    settle(site)
    if reload:
        site.reload()
    fill(site, "a/b/c/big", 6)
    fill(site, "a/b/c/x.tmp")
    fill(site, "a/b/c/new/y.tmp")
    digest = site.scan([b"a/b/c/big/f0", b"a/b/c/x.tmp", b"a/b/c/new/y.tmp"])
    assert site.paths(digest)[b"a/b/c/big"].value == ignore.IGNORED
    assert digest == site.scan() == site.fresh()
    found = site.paths(digest)
    assert found[b"a/b/c/x.tmp"] == Entry("skipped", 0, 0, ignore.LEFT_OUT_FILE)
    assert found[b"a/b/c/new/y.tmp"].kind == "skipped"


@pytest.mark.parametrize("rules", [".gitignore", ".backtrailignore"])
def test_captured_once_captured_always(site: Site, rules: str) -> None:
    """No later rule, and no growth, takes anything out; what is new goes by the rules."""
    fill(site, "build", 3)
    fill(site, "note.txt")
    settle(site)
    (site / rules).write_text("build/\nnote.txt\n")
    site.scan()
    site.reload()
    (site / "build/sub").mkdir()
    fill(site, "build", 9)
    (site / "note.txt").write_text("changed")
    fill(site, "other/build", 9)
    found = kinds(site)
    assert found[b"build/f0"] == found[b"build/f2"] == found[b"note.txt"] == "file"
    assert found[b"other/build"] == "opaque"
    assert site.blobs.get(site.paths()[b"note.txt"].value) == b"changed"
    assert found[b"build/f8"] == ("file" if rules == ".gitignore" else "skipped")


def test_heavy_stays_opaque_until_it_is_not_ignored(site: Site) -> None:
    """A build that was cleaned is a build still."""
    (site / ".gitignore").write_text("build/\n")
    fill(site, "build", 6)
    assert kinds(site)[b"build"] == "opaque"
    for file in (site / "build").iterdir():
        file.unlink()
    fill(site, "beside")
    assert kinds(site)[b"build"] == "opaque"
    (site / ".gitignore").write_text("nothing\n")
    assert kinds(site)[b"build"] == "directory"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_rule_taken_back_captures_again(site: Site, replaced: bool) -> None:
    """Whether the ignore file, far above, is edited in place or replaced."""
    (site / ".backtrailignore").write_text("*.tmp\nout/\n")
    fill(site, "a/b/x.tmp")
    fill(site, "a/out/y")
    site.scan()
    settle(site)
    assert site.reasons() == {
        b"a/b/x.tmp": ignore.LEFT_OUT_FILE,
        b"a/out": ignore.LEFT_OUT,
    }
    if replaced:
        (site / ".backtrailignore").unlink()
    (site / ".backtrailignore").write_text("nothing\n")
    assert site.scan() == site.fresh()
    assert kinds(site)[b"a/out/y"] == kinds(site)[b"a/b/x.tmp"] == "file"
    (site / ".backtrailignore").write_text("*.tmp\nout/\n")
    assert kinds(site)[b"a/out/y"] == kinds(site)[b"a/b/x.tmp"] == "file"


def test_a_declared_ignore_file_is_one_too(site: Site) -> None:
    """The same, with a tool that says what it edited."""
    (site / ".backtrailignore").write_text("*.tmp\n")
    fill(site, "a/b/x.tmp")
    settle(site)
    (site / ".backtrailignore").unlink()
    assert site.scan([b".backtrailignore"]) == site.fresh()
    assert kinds(site)[b"a/b/x.tmp"] == "file"


def test_what_is_left_out_makes_no_noise(site: Site) -> None:
    """A log that grows changes no tree, and is not read."""
    (site / ".backtrailignore").write_text("*.log\n")
    fill(site, "a.log")
    digest = settle(site)
    (site / "a.log").write_text("more and more")
    assert site.scan() == site.scan([b"a.log"]) == digest
    (site / "a.log").unlink()
    assert site.scan() != digest


def test_a_tool_that_leaves_does_not_uncover_its_output(site: Site) -> None:
    """`target` stays opaque when `Cargo.toml` goes; and captured when it comes."""
    fill(site, "a/Cargo.toml")
    fill(site, "a/target/x")
    fill(site, "b/target/x")
    assert kinds(site)[b"a/target"] == "opaque"
    (site / "a/Cargo.toml").unlink()
    fill(site, "b/Cargo.toml")
    site.reload()
    found = kinds(site)
    assert found[b"a/target"] == "opaque"
    assert found[b"b/target/x"] == "file"
