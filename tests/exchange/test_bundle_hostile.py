"""Bundles that lie, are damaged, or mean harm: refused, and nothing is left behind."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from backtrail import BacktrailError, Damaged, NewEvent, NotFound, Session, Unsafe, Unsupported
from backtrail.events import Json
from backtrail.exchange.bundle import Limits, check_bundle, read_bundle, write_bundle
from backtrail.exchange.bundle import check as bundle_checking
from backtrail.exchange.bundle.container import Unpacker
from backtrail.files.depot import Depot
from backtrail.stores import Store, open_store
from backtrail.testing.store.base import child, joined

from .forging import (
    Files,
    compressed,
    lines_of,
    manifest_of,
    packed,
    resealed,
    unpacked,
    with_lines,
    with_log,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a sound bundle."""
    place = tmp_path_factory.mktemp("good")
    project = place / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "app.py").write_text("print('one')\n")
    with open_store(f"sqlite:///{place}/s.db") as store:
        with Session.create(store, "work", cwd=project) as s:
            s.append({"role": "user", "content": "go"})
            with s.tool("edit"):
                (project / "src" / "app.py").write_text("print('two')\n")
            s.log("transcript").append({"raw": 1})
        write_bundle(store, "work", place / "w.bundle")
    return unpacked(place / "w.bundle")


@pytest.fixture(params=["sqlite:///{}/x.db", "file:{}/store"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_store(request.param.format(tmp_path)) as store:
        yield store


def refused(
    target: Store, path: Path, error: type[BacktrailError], says: str | None = None
) -> None:
    """It is refused so, no session is there, and no content."""
    with pytest.raises(error, match=says):
        read_bundle(target, path)
    assert target.sessions() == []
    with pytest.raises(NotFound):
        target.logs("work")
    assert target.contents is not None
    assert not target.contents.exists()


def test_a_bundle_made_by_others_is_fine(target: Store, good: Files, tmp_path: Path) -> None:
    """So what is refused below is refused for what was changed."""
    (tmp_path / "b").write_bytes(packed(good))
    assert read_bundle(target, tmp_path / "b").head == 3


# --- the archive -------------------------------------------------------------------------


def renamed(old: str, new: str) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        if member.name.startswith(old):
            member.name = new

    return change


def retyped(kind: bytes, link: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        if member.name == "logs/0.jsonl":
            member.type, member.linkname = kind, link

    return change


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (renamed("logs/0", "/etc/passwd"), Unsafe),
        (renamed("logs/0", "../../escape"), Unsafe),
        (renamed("logs/0", "logs/../../escape"), Unsafe),
        (renamed("blobs/", "blobs/.."), Unsafe),
        (renamed("logs/0", "logs/other.jsonl"), Damaged),
        (renamed("logs/1", "logs/0.jsonl"), Damaged),
        (renamed("logs/0", "x" * 90 + "/" + "y" * 60), Unsafe),
        (retyped(tarfile.SYMTYPE, "/etc/passwd"), Unsafe),
        (retyped(tarfile.LNKTYPE, "manifest.json"), Unsafe),
        (retyped(tarfile.DIRTYPE), Unsafe),
        (retyped(tarfile.FIFOTYPE), Unsafe),
        (retyped(tarfile.CHRTYPE), Unsafe),
        (retyped(tarfile.XHDTYPE), Unsafe),
        (retyped(tarfile.GNUTYPE_LONGNAME), Unsafe),
    ],
)
def test_names_and_kinds(
    target: Store,
    good: Files,
    tmp_path: Path,
    change: Callable[[tarfile.TarInfo], None],
    error: type[BacktrailError],
) -> None:
    """Absolute names, `..`, links, folders, devices, extensions, names that come twice."""
    (tmp_path / "b").write_bytes(packed(good, change))
    refused(target, tmp_path / "b", error)
    assert not (tmp_path.parent / "escape").exists()


def test_a_file_that_comes_twice(target: Store, good: Files, tmp_path: Path) -> None:
    """The second one is refused, also with another content."""
    (tmp_path / "b").write_bytes(packed([*good[:2], (good[1][0], b"other"), *good[2:]]))
    refused(target, tmp_path / "b", Damaged, "twice")


def test_more_or_less_than_listed(target: Store, good: Files, tmp_path: Path) -> None:
    """Every file must be there, and no other."""
    path = tmp_path / "b"
    for gone in range(len(good)):
        path.write_bytes(packed([file for at, file in enumerate(good) if at != gone]))
        refused(target, path, Damaged)
    path.write_bytes(packed([*good, ("more.txt", b"x")]))
    refused(target, path, Damaged, "more than")
    path.write_bytes(packed([good[0], *reversed(good[1:])]))
    refused(target, path, Damaged)


def test_every_cut_and_many_flips(target: Store, good: Files, tmp_path: Path) -> None:
    """A file that was cut short or damaged on its way, anywhere."""
    whole = packed(good)
    path = tmp_path / "b"
    for at in range(0, len(whole) - 1, 37):
        path.write_bytes(whole[:at])
        refused(target, path, Damaged)
    for at in range(0, len(whole), 61):
        broken = bytearray(whole)
        broken[at] ^= 0x55
        path.write_bytes(broken)
        with pytest.raises(BacktrailError):
            # A bit that no reader looks at may flip unseen; then nothing else is changed.
            read_bundle(target, path)
            target.delete("work")
            raise Damaged("unseen")
        assert target.sessions() == []


@pytest.mark.parametrize("content", [b"", b"x", b"PK\x03\x04" + bytes(50), b"{}\n" * 99])
def test_no_bundle_at_all(target: Store, tmp_path: Path, content: bytes) -> None:
    """Some other file, or none."""
    (tmp_path / "b").write_bytes(content)
    refused(target, tmp_path / "b", Damaged)
    refused(target, tmp_path / "none", NotFound)


# --- bombs -------------------------------------------------------------------------------


def header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.USTAR_FORMAT)


def test_a_bomb_costs_no_more_than_its_limit(target: Store, good: Files, tmp_path: Path) -> None:
    """Gigabytes of zeros in a few kilobytes, as a content that the manifest lists."""
    size = 3 << 30
    manifest = manifest_of(good)
    manifest["blobs"][0]["size"] = size
    first = resealed(good, manifest)[0][1]
    head = [header("manifest.json", len(first)), first, bytes(-len(first) % 512)]
    body = (bytes(1 << 20) for _ in range(300))
    path = tmp_path / "b"
    path.write_bytes(
        compressed([*head, header(f"blobs/{manifest['blobs'][0]['sha256']}", size), *body])
    )
    assert path.stat().st_size < 100_000
    refused(target, path, Damaged, "may have")
    with pytest.raises(Unsafe, match="times its size"):
        check_bundle(path, Limits(blob=4 << 30))
    with pytest.raises(Unsafe, match="over 16 MB"):
        check_bundle(path, Limits(blob=4 << 30, total=16 << 20))


def test_a_manifest_that_is_a_bomb(target: Store, tmp_path: Path) -> None:
    """It is limited before it is read."""
    path = tmp_path / "b"
    path.write_bytes(compressed([header("manifest.json", 7 << 30), bytes(1 << 20)]))
    refused(target, path, Damaged, "may have")


def test_too_many_files(good: Files, tmp_path: Path) -> None:
    """The number is limited as well."""
    (tmp_path / "b").write_bytes(packed(good))
    with pytest.raises(Damaged, match="over 3"):
        check_bundle(tmp_path / "b", Limits(files=3))


# --- the manifest ------------------------------------------------------------------------


def edited(good: Files, *keys: str | int, value: Json) -> Files:
    """The files with one value in the manifest changed."""
    manifest = manifest_of(good)
    place: Json = manifest
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return resealed(good, manifest)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("format",), "zip"),
        (("session", "id"), "../../etc"),
        (("session", "id"), "a/b"),
        (("session", "id"), ""),
        (("session", "id"), 7),
        (("session", "parent_id"), "../x"),
        (("session", "relation"), "friend"),
        (("session", "fork_seq"), 99),
        (("session", "created_at"), "yesterday"),
        (("session", "created_at"), ""),
        (("session", "tags"), ["\n"]),
        (("session", "metadata"), []),
        (("session", "title"), 5),
        (("logs", 0, "name"), "../messages"),
        (("logs", 0, "name"), "transcript"),
        (("logs", 0, "events"), 99),
        (("logs", 0, "events"), -1),
        (("logs", 0, "size"), 5),
        (("logs", 0, "size"), -5),
        (("logs", 0, "sha256"), "0" * 64),
        (("logs", 0, "sha256"), "../x"),
        (("logs",), []),
        (("blobs", 0, "size"), 1),
        (("blobs", 0, "sha256"), "0" * 64),
        (("blobs", 0, "sha256"), "../../x"),
        (("blobs",), []),
        (("trees",), []),
        (("trees", 0), "0" * 64),
        (("missing",), ["0" * 64]),
    ],
    ids=str,
)
def test_a_manifest_that_lies(
    target: Store, good: Files, tmp_path: Path, keys: tuple[str | int, ...], value: Json
) -> None:
    """Ids that lead elsewhere, sizes, counts and digests that are others."""
    (tmp_path / "b").write_bytes(packed(edited(good, *keys, value=value)))
    refused(target, tmp_path / "b", BacktrailError)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_version_that_is_not_known(
    target: Store, good: Files, tmp_path: Path, version: Json
) -> None:
    """It says what to do."""
    (tmp_path / "b").write_bytes(packed(edited(good, "version", value=version)))
    refused(target, tmp_path / "b", Unsupported, "update")


def test_a_manifest_that_is_not_sealed(target: Store, good: Files, tmp_path: Path) -> None:
    """Its own digest is in the bundle too."""
    broken = edited(good, "session", "title", value="another")
    (tmp_path / "b").write_bytes(packed([broken[0], *good[1:]]))
    refused(target, tmp_path / "b", Damaged, "manifest is not")


# --- events ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"seq": 5},
        {"seq": 1},
        {"seq": 0},
        {"seq": "2"},
        {"seq": 2.5},
        {"id": ""},
        {"id": "a\x1b[2J"},
        {"id": "x" * 300},
        {"ts": "now"},
        {"kind": ""},
        {"kind": "a\nb"},
        {"data": []},
        {"data": {"n": 1e999}},
        {"follows": 2},
        {"follows": 9},
        {"follows": -1},
        {"more": 1},
    ],
    ids=str,
)
def test_events_that_no_session_can_hold(
    target: Store, good: Files, tmp_path: Path, change: dict[str, Json]
) -> None:
    """Numbers out of order, ids, times and kinds that are none, values that are no JSON."""
    lines = lines_of(good)
    lines[1] = {**lines[1], **change}
    (tmp_path / "b").write_bytes(packed(with_lines(good, lines)))
    refused(target, tmp_path / "b", Damaged)


def test_an_id_that_comes_twice(target: Store, good: Files, tmp_path: Path) -> None:
    """Within a log; in two logs it may."""
    lines = lines_of(good)
    lines[2]["id"] = lines[0]["id"]
    (tmp_path / "b").write_bytes(packed(with_lines(good, lines)))
    refused(target, tmp_path / "b", Damaged, "twice")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"{}\n", b"null\n", b"\xff\xfe\n", b'{"seq":1', b'{"a":' * 5000 + b"\n"],
)
def test_logs_that_are_none(target: Store, good: Files, tmp_path: Path, content: bytes) -> None:
    """No lines, half a line, no JSON, no text, nested without end."""
    (tmp_path / "b").write_bytes(packed(with_log(good, content)))
    refused(target, tmp_path / "b", Damaged)


def test_a_line_without_end(target: Store, good: Files, tmp_path: Path) -> None:
    """It is not collected in memory beyond the longest event there may be."""
    (tmp_path / "b").write_bytes(packed(with_log(good, b"x" * (70 << 20) + b"\n")))
    refused(target, tmp_path / "b", Damaged, "a line of over")


# --- trees -------------------------------------------------------------------------------


def tree_bytes(*entries: tuple[int, bytes, bytes]) -> bytes:
    """A tree with these kinds, names and values."""
    parts = [b"BTT1"]
    for kind, name, value in entries:
        parts.append(struct.pack(">BHQH", kind, 0o644, 0, len(name)) + name)
        parts.append(struct.pack(">H", len(value)) + value)
    return b"".join(parts)


def with_tree(good: Files, content: bytes) -> Files:
    """The files with one tree as the only content, which the only event names."""
    digest = hashlib.sha256(content).hexdigest()
    manifest = manifest_of(good)
    manifest |= {"trees": [digest], "missing": []}
    manifest["blobs"] = [{"sha256": digest, "size": len(content)}]
    logs = [file for file in good if file[0].startswith("logs/")]
    files = resealed([good[0], (f"blobs/{digest}", content), *logs, good[-1]], manifest)
    line = {**lines_of(good)[0], "kind": "checkpoint", "data": {"at": 0, "tree": digest}}
    return with_lines(files, [line])


@pytest.mark.parametrize(
    "content",
    [
        tree_bytes((1, b"..", b"x" * 32)),
        tree_bytes((1, b"a/b", b"x" * 32)),
        tree_bytes((1, b"", b"x" * 32)),
        tree_bytes((1, b"a\0b", b"x" * 32)),
        tree_bytes((1, b"a", b"short")),
        tree_bytes((9, b"a", b"")),
        tree_bytes((2, b"b", b"x"), (2, b"a", b"x")),
        tree_bytes((2, b"a", b"x"), (2, b"a", b"y")),
        tree_bytes((1, b"a", b"x" * 32)),
        tree_bytes((3, b"a", b"x" * 32)),
        b"BTT1\x01",
        b"just a file",
    ],
    ids=range(12),
)
def test_trees_that_lead_elsewhere(
    target: Store, good: Files, tmp_path: Path, content: bytes
) -> None:
    """Names that leave the directory, contents that are not there, things that are no tree."""
    (tmp_path / "b").write_bytes(packed(with_tree(good, content)))
    refused(target, tmp_path / "b", Damaged)


def test_such_a_tree_is_fine_if_it_is_sound(target: Store, good: Files, tmp_path: Path) -> None:
    """So those above are refused for what is wrong in them."""
    (tmp_path / "b").write_bytes(packed(with_tree(good, tree_bytes((2, b"a", b"target")))))
    assert read_bundle(target, tmp_path / "b").head == 1


def test_contents_that_nothing_refers_to(target: Store, good: Files, tmp_path: Path) -> None:
    """A bundle brings nothing into the store that its session does not need."""
    content = b"smuggled"
    digest = hashlib.sha256(content).hexdigest()
    manifest = manifest_of(good)
    manifest["blobs"].insert(0, {"sha256": digest, "size": len(content)})
    files = [good[0], (f"blobs/{digest}", content), *good[1:]]
    (tmp_path / "b").write_bytes(packed(resealed(files, manifest)))
    refused(target, tmp_path / "b", Damaged, "no event refers to")


# --- in between --------------------------------------------------------------------------


def test_a_file_that_changes_while_it_is_read(
    target: Store, good: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was checked is what is written: another file in its place is noticed."""
    path = tmp_path / "b"
    path.write_bytes(packed(good))
    lines = lines_of(good)
    lines[1]["data"]["message"]["content"] = "delete everything"
    other = packed(with_lines(good, lines))
    check = bundle_checking.check_file

    def and_swap(*given: Json) -> Json:
        checked = check(*given)
        path.write_bytes(other)
        return checked

    monkeypatch.setattr("backtrail.exchange.bundle.check_file", and_swap)
    with pytest.raises(Damaged, match="changed while"):
        read_bundle(target, path)
    assert target.sessions() == []


@pytest.mark.parametrize("url", ["sqlite:///{}/x.db", "file:{}/store"])
def test_a_kill_in_the_middle_shows_nothing(url: str, good: Files, tmp_path: Path) -> None:
    """Killed while the events are written, contents being there; the next import works."""
    path = tmp_path / "b"
    path.write_bytes(packed(good))

    def work() -> None:
        target = open_store(url.format(tmp_path))
        read_logs = bundle_checking.Reading.logs

        def dying(self: bundle_checking.Reading) -> dict[str, Iterator[NewEvent]]:
            logs = read_logs(self)
            assert target.contents is not None
            if target.contents.exists():
                first = logs["messages"]

                def some() -> Iterator[NewEvent]:
                    yield next(first)
                    os.kill(os.getpid(), signal.SIGKILL)

                logs["messages"] = some()
            return logs

        bundle_checking.Reading.logs = dying  # type: ignore[method-assign]
        read_bundle(target, path)

    assert joined([child(work)]) == [-signal.SIGKILL]
    with open_store(url.format(tmp_path)) as target:
        assert target.sessions() == []
        depot = Depot.of(target)
        assert list(depot.blobs.digests())
        depot.close()
        assert read_bundle(target, path).head == 3
        with Session.resume(target, "work") as s:
            s.fork(at=2, into=tmp_path / "copy")
        assert (tmp_path / "copy" / "src" / "app.py").read_text() == "print('one')\n"


@pytest.mark.parametrize(("blocks", "is_whole"), [(2, True), (20, True), (21, True), (22, False)])
def test_the_end_is_as_long_as_tar_makes_it(blocks: int, is_whole: bool) -> None:
    """The mark of the end may begin with the last block of a record, and fill another."""
    unpacker = Unpacker(io.BytesIO(zstandard.compress(bytes(512 * blocks))), Limits())
    if is_whole:
        unpacker.end()
        return
    with pytest.raises(Damaged, match="more than its manifest"):
        unpacker.end()
