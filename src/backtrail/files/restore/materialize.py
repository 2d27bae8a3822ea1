"""A tree as a new directory: a fork's files, or any earlier state beside the present one."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from ...errors import AlreadyExists, BacktrailError, Damaged, InvalidData, NotFound, Unsafe
from ...events import Checkpoint, new_id
from ...stores.base import Store
from ...stores.disk.fs import failed, sync_directory
from ...stores.opening import store_at
from ...stores.records import resolved
from ..beneath import DIRECTORY, Directories, remove_tree, write_file
from ..contents.blobs import Blobs, CachedBlobs
from ..depot import opened
from ..names import RESERVED, shown
from ..trees import EMPTY_DIGEST, Get, control_in, parse_tree
from .moves import settled
from .plan import Step, plan_exact
from .workbench import Unsynced


def materialize(
    store: Store | str, tree: str | bytes | Checkpoint, into: str | os.PathLike[str]
) -> list[Step]:
    """Write the files of a checkpoint, or a tree by its digest, to a new or empty directory.

    It appears whole or not at all. What was not captured is returned, with the reasons.
    """
    if not isinstance(store, Store):
        with store_at(store, create=False) as place:
            return materialize(place, tree, into)
    root = _digest(tree)
    with opened(store) as depot:
        _bring_near(depot.blobs, root)
        return write_tree(depot.blobs.get, root, into)


def _bring_near(blobs: Blobs, root: bytes) -> None:
    """Have all that a tree holds on this machine, by one question a level, not one a file.

    What cannot be had is missed when it is read.
    """
    if not blobs.far:
        return
    level, seen, files = {root} - {EMPTY_DIGEST}, {EMPTY_DIGEST}, set[bytes]()
    while level:
        blobs.fetch(level)
        seen |= level
        below: set[bytes] = set()
        for digest in level:
            try:
                tree = parse_tree(blobs.get(digest))
            except (Damaged, NotFound):
                continue
            for entry in tree.values():
                if entry.kind == "directory":
                    below.add(entry.value)
                elif entry.kind == "file":
                    files.add(entry.value)
        level = below - seen
    blobs.fetch(files)


def _digest(tree: str | bytes | Checkpoint) -> bytes:
    given = tree.tree if isinstance(tree, Checkpoint) else tree
    if given is None:
        raise NotFound("the files at that checkpoint were not captured")
    try:
        digest = bytes.fromhex(given) if isinstance(given, str) else bytes(given)
    except (TypeError, ValueError) as error:
        raise InvalidData(f"{given!r} is not the digest of a tree") from error
    if len(digest) != 32:
        raise InvalidData(f"{given!r} is not the digest of a tree: it has 32 bytes")
    return digest


def write_tree(get: Get, tree: bytes, into: str | os.PathLike[str]) -> list[Step]:
    """Write a tree to a directory that is new or empty; what was not captured is returned.

    It appears whole or not at all: it is built beside its place and renamed
    when all of it is on the disk.
    """
    target = Path(resolved(into))
    trees = CachedBlobs(get)
    plan = settled(trees, plan_exact(trees, EMPTY_DIGEST, tree))
    acting = [step for step in plan.steps if step.acts]
    for step in acting:
        if step.after is not None and step.after.kept and control_in(step.path) is not None:
            raise Unsafe(f"{shown(step.path)} is version control's: nothing was written")
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise AlreadyExists(f"{target} exists and is not empty: choose another directory")
        missing = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        building = target.with_name(os.fsdecode(RESERVED) + new_id())
        try:
            # An empty directory makes way for this one, which lets in no other user.
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
            building.mkdir(0o777 if mode is None else mode | 0o700)
            _build(get, acting, building)
            if mode is not None:
                building.chmod(mode)
            os.rename(building, target)
        except BaseException:
            remove_tree(building)
            for folder in missing:
                with suppress(OSError):
                    folder.rmdir()
            raise
        sync_directory(target.parent)
    except OSError as error:
        if isinstance(error, BacktrailError):
            raise
        raise failed(error, f"write {target}") from error
    return [step for step in plan.steps if not step.acts]


def _build(get: Get, steps: list[Step], building: Path) -> None:
    """Write what a plan for an empty directory brings, and sync it."""
    root = os.open(building, DIRECTORY)
    places, unsynced = Directories(root), Unsynced(root, len(steps))
    try:
        folders: list[tuple[bytes, int]] = [(b"", -1)]
        for step in sorted(steps, key=lambda step: step.path):
            parent, name = places.parent(step.path)
            if step.after is None:
                continue
            if step.after.kind == "link":
                os.symlink(step.after.value, name, dir_fd=parent)
            elif step.after.kind == "directory":
                os.mkdir(name, 0o700, dir_fd=parent)
                folders.append((step.path, step.after.mode))
            else:
                content = _content(get, step.path, step.after.value)
                unsynced.add(write_file(parent, name, content, step.after.mode))
        # Modes of directories come last: one that is read-only could not be filled.
        for path, mode in reversed(folders):
            fd = os.dup(places.at(path))
            if path:
                os.fchmod(fd, mode)
            unsynced.add(fd)
        unsynced.sync()
    finally:
        unsynced.close()
        places.close()
        os.close(root)


def _content(get: Get, path: bytes, digest: bytes) -> bytes:
    try:
        return get(digest)
    except (NotFound, Damaged) as error:
        raise type(error)(f"the content of {shown(path)} cannot be had: {error}") from error
