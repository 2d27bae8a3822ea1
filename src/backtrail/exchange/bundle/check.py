"""Reading a bundle, and believing nothing of it.

A bundle is read twice. The first time everything is checked and nothing kept: every digest,
every size, every event, every name in every tree, and that what is there is just what events
refer to. The second time it is written, and digests are checked again as it goes, so that a
file which changes in between is caught too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from ...errors import BacktrailError, Damaged, InvalidData, InvalidId, NotFound, Unsafe
from ...events import MAIN_LOG, Json, NewEvent, SessionInfo
from ...files.names import LONGEST, shown
from ...files.trees import MAGIC, Tree, is_bare, is_control, is_marker, parse_tree
from ...stores.adopting import whole
from ...stores.base import Store
from ...stores.disk.fs import failed
from . import manifest as layout
from .container import Limits, Unpacker
from .manifest import Manifest, blob_name


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was checked: its session's record, and what is in it."""

    info: SessionInfo
    manifest: Manifest
    seal: str

    @property
    def events(self) -> int:
        """How many events it holds, in all logs."""
        return sum(log.events for log in self.manifest.logs)

    def to_dict(self) -> dict[str, Json]:
        """What is in it, as JSON."""
        manifest = self.manifest
        size = sum(blob.size for blob in manifest.blobs)
        return {
            "session": self.info.id, "title": self.info.title, "created_at": self.info.created_at,
            "logs": len(manifest.logs), "events": self.events, "blobs": len(manifest.blobs),
            "bytes": size, "missing": len(manifest.missing), "masked": manifest.masked,
        }  # fmt: skip

    def again(self, file: BinaryIO, limits: Limits) -> Reading:
        """Read it once more; it must be what it was."""
        reading = Reading(file, limits)
        if reading.seal != self.seal:
            raise Damaged("the bundle changed while it was read: nothing was imported")
        return reading


@contextmanager
def opened_bundle(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The file of a bundle; what the system refuses is `StoreFailed`."""
    try:
        with Path(path).open("rb") as file:
            if not file.seekable():
                raise InvalidData(f"{os.fspath(path)} is no plain file: save the bundle first")
            yield file
    except FileNotFoundError:
        raise NotFound(f"there is no bundle at {os.fspath(path)}") from None
    except OSError as error:
        if isinstance(error, BacktrailError):
            raise
        raise failed(error, f"read {os.fspath(path)}") from error


def check_bundle(path: str | os.PathLike[str], limits: Limits | None = None) -> Bundle:
    """Check all of a bundle and say what is in it; nothing is written anywhere."""
    with opened_bundle(path) as file:
        return check_file(file, limits or Limits())


def check_file(file: BinaryIO, limits: Limits) -> Bundle:
    """Check a bundle in an open file."""
    reading = Reading(file, limits)
    manifest = reading.manifest
    trees: dict[bytes, Held | Damaged | Unsafe] = {}
    for digest, content in reading.contents():
        if content[:4] == MAGIC:
            trees[digest] = _held(content)
    _check_trees(manifest, trees)
    named: set[str] = set()
    for name, events in reading.logs().items():
        noted = _noted(events, named) if name == MAIN_LOG else events
        try:
            for _ in whole(noted):
                pass
        except (InvalidData, InvalidId) as error:
            raise Damaged(f"the log `{name}` holds what no session can hold: {error}") from error
    if named != set(manifest.trees):
        raise Damaged("the bundle's events name other states of files than its manifest")
    return Bundle(manifest.session.info(), manifest, reading.seal)


class Reading:
    """One way through a bundle: `contents`, then `logs`, each once and in order."""

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        file.seek(0)
        self._limits = limits
        self._unpacker = Unpacker(file, limits)
        content = self._unpacker.next(layout.MANIFEST, None, limits.manifest).content()
        self.seal = hashlib.sha256(content).hexdigest()
        self.manifest = layout.decode_manifest(content, limits)

    def contents(self) -> Iterator[tuple[bytes, bytes]]:
        """Every content with its digest, which is checked."""
        for blob in self.manifest.blobs:
            member = self._unpacker.next(blob_name(blob.sha256), blob.size, self._limits.blob)
            yield bytes.fromhex(blob.sha256), member.content(blob.sha256)

    def logs(self) -> dict[str, Iterator[NewEvent]]:
        """The events of each log; to be gone through in this order. The end is the bundle's."""
        last = len(self.manifest.logs) - 1
        return {
            log.name: self._log(number, is_last=number == last)
            for number, log in enumerate(self.manifest.logs)
        }

    def _log(self, number: int, *, is_last: bool) -> Iterator[NewEvent]:
        entry = self.manifest.logs[number]
        member = self._unpacker.next(layout.log_name(number), entry.size, self._limits.total)
        yield from layout.decode_events(member.lines(entry.sha256, layout.LONGEST_LINE), entry)
        if is_last:
            seal = self._unpacker.next(layout.SEAL, 65, 65).content()
            if seal != self.seal.encode() + b"\n":
                raise Damaged("the bundle's manifest is not what was written")
            self._unpacker.end()

    def is_in(self, store: Store, session_id: str) -> bool:
        """Whether a session holds all events of the bundle, and perhaps more behind them."""
        for _ in self.contents():
            pass
        for log, events in self.logs().items():
            for new, known in zip_longest(events, store.read(session_id, log=log)):
                if new is None:
                    break
                if known is None or new != NewEvent(
                    known.kind, known.data, known.id, known.follows, known.ts
                ):
                    return False
        return True


def _noted(events: Iterator[NewEvent], named: set[str]) -> Iterator[NewEvent]:
    for event in events:
        named.update(layout.trees_in(dict(event.data)))
        yield event


# --- trees -------------------------------------------------------------------------------

MOST_PATHS = 5_000_000
"""Paths that a state of files in a bundle may have."""

MOST_LEVELS = 2_000
"""Folders in each other that a state of files in a bundle may have: no path is that long."""

_RAISED = 0o6000

Held = list[tuple[bytes, str, bytes]]
"""What a tree holds that must be there: names, kinds and digests."""


def _held(content: bytes) -> Held | Damaged | Unsafe:
    """What a tree holds. A file may begin like one: then the error waits until it is used."""
    try:
        tree = parse_tree(content)
    except Damaged as error:
        return error
    refused = _refused(tree)
    if refused is not None:
        return refused
    kinds = ("directory", "file")
    return [(name, e.kind, e.value) for name, e in tree.items() if e.kind in kinds]


def _refused(tree: Tree) -> Unsafe | None:
    """Why a stranger's directory is not taken in: what is in it would run, or be hidden."""
    kept = [name for name, entry in tree.items() if entry.kept]
    for name in kept:
        if is_control(name):
            return Unsafe(f"{shown(name)} is version control's, and may run commands")
        if len(name) > LONGEST:
            return Unsafe(f"{shown(name[:40])}… is longer than a name may be")
        if is_marker(name):
            return Unsafe(f"{shown(name)} would pass a folder off as a store")
        if tree[name].kind == "file" and tree[name].mode & _RAISED:
            return Unsafe(f"{shown(name)} would run with the rights of its owner or group")
    if is_bare(kept):
        return Unsafe("it is shaped like a repository, whose settings are obeyed")
    return None


def _check_size(roots: Iterable[bytes], trees: Mapping[bytes, Held | Damaged | Unsafe]) -> None:
    """Refuse a state that has more paths, or a deeper one, than any project.

    A few trees that name each other twice are more paths than any program could ever list.
    """
    sizes: dict[bytes, int] = {}
    levels: dict[bytes, int] = {}
    todo = list(roots)
    while todo:
        digest = todo[-1]
        held = trees.get(digest)
        entries = held if isinstance(held, list) else []
        inner = [value for _, kind, value in entries if kind == "directory"]
        waiting = [one for one in inner if one not in sizes]
        if waiting:
            todo += waiting
            continue
        todo.pop()
        sizes[digest] = len(entries) + sum(sizes[one] for one in inner)
        if sizes[digest] > MOST_PATHS:
            raise Unsafe(f"a state of files in the bundle has over {MOST_PATHS:,} paths")
        levels[digest] = 1 + max((levels[one] for one in inner), default=0)
        if levels[digest] > MOST_LEVELS:
            raise Unsafe(
                f"a state of files in the bundle has folders over {MOST_LEVELS:,} levels deep"
            )


def _check_trees(manifest: Manifest, trees: dict[bytes, Held | Damaged | Unsafe]) -> None:
    """What events refer to must be there or listed as missing, be sound, and be all there is."""
    there = {bytes.fromhex(blob.sha256) for blob in manifest.blobs}
    missing = {bytes.fromhex(digest) for digest in manifest.missing}
    reached: set[bytes] = set()
    walked: set[bytes] = set()
    todo = [(bytes.fromhex(tree), b"") for tree in manifest.trees]
    while todo:
        digest, path = todo.pop()
        if digest in walked or digest in missing:
            reached.add(digest)
            continue
        walked.add(digest)
        reached.add(digest)
        held = trees.get(digest)
        if digest not in there:
            raise Damaged(f"the bundle lacks the tree `{digest.hex()}`")
        if isinstance(held, Unsafe):
            where = shown(path) or "the root"
            raise Unsafe(f"the bundle is refused for its folder {where}: {held}")
        if held is None or isinstance(held, Damaged):
            raise Damaged(f"`{digest.hex()}` in the bundle is no tree: {held or 'it is a file'}")
        for name, kind, value in held:
            if kind == "directory":
                todo.append((value, path + b"/" + name if path else name))
            else:
                reached.add(value)
    _check_size((bytes.fromhex(tree) for tree in manifest.trees), trees)
    if lacking := reached - there - missing:
        raise Damaged(f"the bundle lacks {len(lacking)} contents (`{min(lacking).hex()}`)")
    if extra := (there | missing) - reached:
        raise Damaged(f"the bundle holds {len(extra)} contents that no event refers to")
