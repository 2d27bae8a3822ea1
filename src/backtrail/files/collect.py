"""Collecting garbage: what no log and no workspace relies on goes.

Marking begins at the references and at the present tree of each workspace, and follows
trees. A tree that is missing or damaged is told, and marking goes on: what else is marked
stays marked. What a *damaged* tree held cannot be known any more, and some of it may only
be reachable through it; so nothing is swept until it is repaired or nobody refers to it.

The budget and the floor keep blobs from filling the disk. They decide, others act.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import Damaged, DiskLow, NotFound
from ..stores.files import failed
from .blobs import Blobs, Reference
from .trees import Get, decode_tree

GRACE = 3600.0
"""Seconds for which a blob that nobody relies on is spared: somebody may be about to."""

RECENT = 7 * 24 * 3600.0
"""Seconds for which the budget leaves automatic points alone."""

_GB = 1 << 30


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did, or would do in a dry run.

    `blobs` and `bytes` (as they were before compression) are gone, `dropped` are the
    references of logs that are not there any more. `problems` are trees that could not be
    read, and why; if one of them is damaged, the sweep was `held` back.
    """

    problems: tuple[tuple[bytes, str], ...]
    dropped: tuple[Reference, ...]
    held: bool
    dry_run: bool
    blobs: int
    bytes: int


def collect(
    blobs: Blobs,
    roots: Iterable[bytes] = (),
    *,
    live: Callable[[Reference], bool] = lambda reference: True,
    grace: float = GRACE,
    dry_run: bool = False,
) -> Collected:
    """Remove what nothing relies on and nobody wrote in the last `grace` seconds.

    References that are not `live` are dropped first. `roots` are trees to keep besides
    those referred to. A tree that becomes a root only after this began is safe if it is
    referred to, or if all of it was written within the grace.
    """
    before = time.time() - grace
    dead: dict[Reference, None] = {}
    alive: set[bytes] = set()
    for reference in blobs.references():
        if live(reference):
            alive.add(reference.root)
        else:
            dead[reference] = None
    if not dry_run:
        _drop(blobs, dead)
    marks = _Marks(roots, {reference.root for reference in dead} - alive if dry_run else ())
    swept = blobs.sweep(marks.keep, before, dry_run=dry_run)
    problems = tuple((digest, str(error)) for digest, error in marks.problems.items())
    return Collected(problems, tuple(dead), marks.held, dry_run, *swept)


def _drop(blobs: Blobs, dead: Iterable[Reference]) -> None:
    logs: dict[tuple[str, str], list[bytes]] = {}
    for store, log, root in dead:
        logs.setdefault((store, log), []).append(root)
    for (store, log), roots in logs.items():
        blobs.drop_references(store, log, roots)


class _Marks:
    """All that was reached so far; everything, once it cannot be told what that is."""

    def __init__(self, roots: Iterable[bytes], ignored: Collection[bytes]) -> None:
        self._first = set(roots)
        self._ignored = ignored
        self._reached: set[bytes] = set()
        self._trees: set[bytes] = set()
        self.problems: dict[bytes, Exception] = {}
        self.held = False

    def keep(self, roots: Collection[bytes], get: Get) -> _Marks:
        """Mark from more roots."""
        todo = self._first.union(root for root in roots if root not in self._ignored)
        self._reached.update(reach(get, todo, self._tell, self._trees))
        return self

    def _tell(self, digest: bytes, error: Exception) -> None:
        self.problems[digest] = error
        self.held = self.held or isinstance(error, Damaged)

    def __contains__(self, digest: object) -> bool:
        return self.held or digest in self._reached


def reach(
    get: Get,
    roots: Iterable[bytes],
    tell: Callable[[bytes, Exception], None],
    walked: set[bytes] | None = None,
) -> Iterator[bytes]:
    """Every blob that trees hold, trees included; some more than once.

    A tree that cannot be read is told, and passed over. Trees in `walked` are not entered
    again, and those entered are added to it.
    """
    walked = set() if walked is None else walked
    todo = list(roots)
    while todo:
        root = todo.pop()
        if root in walked:
            continue
        walked.add(root)
        yield root
        try:
            tree = decode_tree(get(root))
        except (NotFound, Damaged) as error:
            tell(root, error)
            continue
        for entry in tree.values():
            if entry.kind == "directory":
                todo.append(entry.value)
            elif entry.kind == "file":
                yield entry.value


# --- how much may be kept ----------------------------------------------------------------


class Point(NamedTuple):
    """A moment that can be gone back to: its tree, when, its label, and who relies on it."""

    root: bytes
    at: float
    label: str | None
    reference: Reference


def default_budget(path: str | Path) -> int:
    """The bytes that blobs may take: 10 GB, or 5 % of the disk if that is less."""
    return min(10 * _GB, _usage(path).total // 20)


def budget(
    points: Sequence[Point],
    limit: int,
    holds: Callable[[bytes], Iterable[bytes]],
    weigh: Callable[[bytes], int],
    *,
    now: float,
    recent: float = RECENT,
) -> list[Reference]:
    """Which references to drop so that the rest fits into `limit` bytes, oldest first.

    Labelled points stay, and those of the last week, even if they alone do not fit. Of the
    others the newest stay, as many as there is room for. A point that holds nothing of its
    own stays as well: to drop it would free nothing.

    Args:
        points: all there are, oldest first.
        holds: the blobs of a root. weigh: the bytes that one takes.
    """
    held: set[bytes] = set()
    total = 0

    def added(point: Point) -> tuple[set[bytes], int]:
        new = set(holds(point.root)) - held
        return new, sum(map(weigh, new))

    kept: set[Reference] = set()
    free: list[Point] = []
    for point in points:
        if point.label is None and point.at < now - recent:
            free.append(point)
            continue
        new, weight = added(point)
        held |= new
        total += weight
        kept.add(point.reference)
    full = False
    for point in reversed(free):
        new, weight = added(point)
        full = full or (weight > 0 and total + weight > limit)
        if not full or weight == 0:
            held |= new
            total += weight
            kept.add(point.reference)
    return list(dict.fromkeys(p.reference for p in free if p.reference not in kept))


def free_floor(path: str | Path) -> int:
    """The bytes that must stay free on the disk: 1 GB, or 2 % of it if that is less."""
    return min(_GB, _usage(path).total // 50)


def check_floor(path: str | Path, floor: int | None = None) -> int:
    """The free bytes of the disk; `StoreFailed` if they are fewer than the floor."""
    least = free_floor(path) if floor is None else floor
    free = _usage(path).free
    if free < least:
        raise DiskLow(
            f"{free >> 20} MB are free on the disk of {path}, and {least >> 20} MB must stay "
            "free: files are not captured until there is space, or `gc` has made some",
            errno=errno.ENOSPC,
        )
    return free


def _usage(path: str | Path) -> shutil._ntuple_diskusage:
    try:
        return shutil.disk_usage(path)
    except OSError as error:
        raise failed(error, f"ask for the free space at {path}") from error
