"""A tree as a new directory: a fork's files, or any earlier state beside the present one."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import AlreadyExists, Damaged, NotFound, StoreFailed
from ..events import new_id
from ..stores.files import failed, sync_directory
from .beneath import DIRECTORY
from .ignore import RESERVED
from .names import shown
from .plan import Plan, Step, plan_exact, settled
from .restore import Restore
from .trees import EMPTY, EMPTY_DIGEST, Get


def materialize(get: Get, tree: bytes, into: str | os.PathLike[str]) -> list[Step]:
    """Write a tree to a directory that is new or empty; what was not captured is returned.

    It appears whole or not at all: it is built beside its place, and renamed.
    """
    target = Path(os.path.abspath(into))
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
        finally:
            os.close(fd)
        os.rename(building, target)
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
