"""A tree as a new directory: a fork's files, or any earlier state beside the present one."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import AlreadyExists, Damaged, InvalidData, NotFound, StoreFailed
from ..events import Checkpoint, new_id
from ..stores.base import Store, resolved
from ..stores.files import failed, sync_directory
from ..stores.opening import store_at
from .beneath import DIRECTORY, remove_tree
from .depot import Depot
from .ignore import RESERVED
from .names import shown
from .outcome import settled
from .plan import Plan, Step, plan_exact
from .restore import Restore
from .trees import EMPTY, EMPTY_DIGEST, Get


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
    depot = Depot.of(store)
    try:
        return write_tree(depot.blobs.get, root, into)
    finally:
        depot.close()


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

    It appears whole or not at all: it is built beside its place, and renamed.
    """
    target = Path(resolved(into))
    plan = settled(_with_empty(get), plan_exact(_with_empty(get), EMPTY_DIGEST, tree))
    _check(get, plan)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise AlreadyExists(f"{target} exists and is not empty: choose another directory")
        target.parent.mkdir(parents=True, exist_ok=True)
        id = new_id()
        building = target.with_name(os.fsdecode(RESERVED) + id)
        building.mkdir()
        fd = os.open(building, DIRECTORY)
        try:
            done = Restore(fd, id, get).apply(plan)
            os.rename(building, target)
        except BaseException:
            remove_tree(building)
            raise
        finally:
            os.close(fd)
        sync_directory(target.parent)
    except OSError as error:
        if isinstance(error, (AlreadyExists, StoreFailed)):
            raise
        raise failed(error, f"write {target}") from error
    return [step for step in done.steps if not step.acts]


def _check(get: Get, plan: Plan) -> None:
    """Refuse before anything is made if a content cannot be had."""
    for digest, path in plan.needed().items():
        try:
            get(digest)
        except (NotFound, Damaged) as error:
            raise type(error)(f"the content of {shown(path)} cannot be had: {error}") from error


def _with_empty(get: Get) -> Get:
    return lambda digest: EMPTY if digest == EMPTY_DIGEST else get(digest)
