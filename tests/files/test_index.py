"""The index: it comes back as it was or not at all, and never vouches for what is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.files.trees import Entry, Kind
from backtrail.files.workspace.index import Index
from backtrail.files.workspace.known import KnownDirectory, KnownFile, PackedFiles

NAMES = st.binary(min_size=1, max_size=4).filter(lambda name: b"/" not in name)
NUMBERS = st.integers(0, 2**62)
KINDS: list[Kind] = ["file", "link", "skipped"]
FILES = st.builds(
    KnownFile,
    st.sampled_from(KINDS), st.integers(0, 0o7777), NUMBERS, NUMBERS, NUMBERS, NUMBERS,
    st.binary(max_size=32), st.booleans(),
)  # fmt: skip
DIRECTORIES: st.SearchStrategy[KnownDirectory] = st.deferred(
    lambda: st.builds(
        KnownDirectory,
        st.integers(0, 0o7777), NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.binary(max_size=32),
        st.dictionaries(NAMES, FILES, max_size=3),
        st.dictionaries(NAMES, DIRECTORIES, max_size=2),
        st.dictionaries(NAMES, st.binary(), max_size=2),
    )
)  # fmt: skip


def made(root: KnownDirectory, blobs: str = "b", epoch: int = 7) -> Index:
    index = Index(blobs, epoch)
    index.root, index.device, index.changed = root, 5, True
    return index


@given(DIRECTORIES)
def test_an_index_comes_back(
    tmp_path_factory: pytest.TempPathFactory, root: KnownDirectory
) -> None:
    """All of it, and believed, for the store it was made for."""
    path = tmp_path_factory.mktemp("index") / "index"
    index = made(root)
    index.save(path)
    loaded = Index.load(path, "b", 7)
    for directory in (*loaded.directories(), *index.directories()):
        assert isinstance(directory.files, dict)
    assert loaded.root == root
    assert (loaded.device, loaded.doubtful, loaded.changed) == (5, False, False)
    assert not index.changed
    assert [entry.name for entry in path.parent.iterdir()] == ["index"]


def test_depth_is_no_limit(tmp_path: Path) -> None:
    """Directories lie deeper than a decoder nests."""
    root = at = KnownDirectory()
    for _ in range(5000):
        at.directories = {b"d": KnownDirectory()}
        at = at.directories[b"d"]
    made(root).save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index", "b", 7)
    assert sum(1 for _ in loaded.directories()) == 5001


@pytest.mark.parametrize(("blobs", "epoch"), [("other", 7), ("b", 8), ("b", 6)])
def test_another_store_or_epoch_makes_it_doubtful(tmp_path: Path, blobs: str, epoch: int) -> None:
    """What it relies on may be gone."""
    made(KnownDirectory()).save(tmp_path / "index")
    assert Index.load(tmp_path / "index", blobs, epoch).doubtful


def test_doubt_survives_a_save(tmp_path: Path) -> None:
    """An index that may rely on what is not stored is not believed by the next process."""
    index = made(KnownDirectory())
    index.doubtful = True
    index.save(tmp_path / "index")
    assert Index.load(tmp_path / "index", "b", 7).doubtful


def test_a_damaged_index_is_none(tmp_path: Path) -> None:
    """Whatever a power cut leaves: cut short, zeros, a flipped bit, nothing."""
    path = tmp_path / "index"
    assert Index.load(path, "b", 7).root is None
    made(KnownDirectory(digest=b"1" * 32, opaque={b"a": b"b"})).save(path)
    whole = path.read_bytes()
    flipped = [bytes([*whole[:at], whole[at] ^ 4, *whole[at + 1 :]]) for at in range(len(whole))]
    cut = [whole[:length] for length in range(len(whole))]
    for wrong in (*flipped, *cut, bytes(len(whole))):
        path.write_bytes(wrong)
        assert Index.load(path, "b", 7).root is None
    path.write_bytes(whole)
    assert Index.load(path, "b", 7).root is not None


def file(digest: bytes, kind: Kind = "file") -> KnownFile:
    return KnownFile(kind, 0o644, 1, 2, 3, 4, digest)


def test_doubt_reaches_all_that_relies_on_a_blob() -> None:
    """The files that have it, and every directory above; nothing else."""
    lost = KnownDirectory(racy=False, digest=b"L", held={b"x": file(b"gone"), b"y": file(b"y")})
    kept = KnownDirectory(racy=False, digest=b"K", held={b"x": file(b"gone", "skipped")})
    tree = KnownDirectory(racy=False, digest=b"T")
    root = KnownDirectory(
        racy=False, digest=b"R", directories={b"lost": lost, b"kept": kept, b"tree": tree}
    )
    index = made(root)
    assert sorted(index.digests()) == sorted([b"L", b"K", b"T", b"R", b"gone", b"y"])
    index.doubtful, index.changed = True, False
    index.doubt({b"gone", b"T"})
    assert (root.digest, lost.digest, kept.digest, tree.digest) == (b"", b"", b"K", b"")
    assert (lost.files[b"x"].value, lost.files[b"x"].racy) == (b"", True)
    assert not lost.files[b"y"].racy
    assert not index.doubtful
    assert index.changed


def test_no_doubt_changes_nothing() -> None:
    """All there: the index stays as it is."""
    root = KnownDirectory(racy=False, digest=b"R", held={b"x": file(b"there")})
    index = made(root)
    index.changed = False
    index.doubt(set())
    assert root.digest == b"R"
    assert not index.changed


def test_what_cannot_be_entered_is_opaque_and_not_forgotten() -> None:
    """A tree shows the reason; the content waits."""
    known = KnownDirectory(
        directories={b"d": KnownDirectory(digest=b"1" * 32)}, opaque={b"d": b"unreadable"}
    )
    assert known.tree().tree == {b"d": Entry("opaque", 0, 0, b"unreadable")}


def test_a_link_has_the_length_of_its_text() -> None:
    """Whatever its file system says about its size."""
    assert KnownFile("link", 0o777, 0, 1, 1, 1, b"there").entry().size == 5


@given(st.dictionaries(NAMES, FILES))
def test_packed_files_come_back(files: dict[bytes, KnownFile]) -> None:
    """All of them, in their order; some questions are answered without unpacking."""
    packed = KnownDirectory(held=dict(files))
    packed.packed()
    assert len(packed.packed()) == len(files)
    assert packed.packed().steady != any(file.racy for file in files.values())
    assert packed.contents() == [f.value for f in files.values() if f.kind == "file"]
    assert packed.skips() == any(file.kind == "skipped" for file in files.values())
    assert all(map(packed.has_file, files))
    assert not packed.has_file(b"of no file")
    assert isinstance(packed.held, PackedFiles)
    assert list(packed.files.items()) == list(files.items())


def test_what_is_unpacked_counts() -> None:
    """A file that was changed in memory is packed as it is now."""
    known = KnownDirectory(held={b"a": file(b"old")})
    known.packed()
    known.files[b"a"].value = b"new"
    known.files[b"b"] = file(b"other")
    known.packed()
    assert known.contents() == [b"new", b"other"]


@pytest.mark.parametrize("time", [2**64, 2**70, -(2**70)])
def test_no_time_is_too_far_away(tmp_path: Path, time: int) -> None:
    """Some file systems keep any: such a file is never taken for unchanged."""
    (tmp_path / "a").write_text("x")
    far = KnownFile("file", 0o644, 1, time, 3, 4, b"1" * 32)
    index = made(KnownDirectory(held={b"a": far}))
    index.save(tmp_path / "index")
    root = Index.load(tmp_path / "index", "b", 7).root
    assert root is not None
    assert root.files[b"a"].value == far.value
    assert root.files[b"a"].mtime != time


def test_packed_files_know_whether_they_are_as_they_were(tmp_path: Path) -> None:
    """Any number that differs, a racy file, and a file that is gone make them say no."""
    (tmp_path / "a").write_text("x")
    now = os.stat(tmp_path / "a")
    fd = os.open(tmp_path, os.O_RDONLY)
    numbers = (1, now.st_mtime_ns, now.st_ctime_ns, now.st_ino)

    def is_calm(numbers: tuple[int, ...], racy: bool = False, name: bytes = b"a") -> bool:
        size, mtime, ctime, inode = numbers
        known = KnownFile("file", 0o644, size, mtime, ctime, inode, b"1" * 32, racy)
        return not PackedFiles.of({name: known}).stirred_in(fd)

    try:
        assert is_calm(numbers)
        assert not PackedFiles.of({}).stirred_in(fd)
        for at in range(4):
            assert not is_calm(tuple(n + (i == at) for i, n in enumerate(numbers)))
        assert not is_calm(numbers, racy=True)
        assert not is_calm(numbers, name=b"b")
    finally:
        os.close(fd)
