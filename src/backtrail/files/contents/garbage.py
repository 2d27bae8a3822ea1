"""Garbage: what no log and no workspace relies on; how much may be kept.

Marking begins at the references and at the present tree of each workspace, and follows
trees. A tree that is missing or damaged is reported, and marking goes on: what else is marked
stays marked. What a *damaged* tree held cannot be known any more, and some of it may only
be reachable through it; so nothing is swept until it is repaired or nothing refers to it.

The budget and the floor keep blobs from filling the disk. They decide, others act. The digests of
contents that were erased on purpose are kept beside the blobs.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from pathlib import Path

from ..._startup.frozen import NamedTuple
from ...errors import Damaged, DiskLow, InvalidData, NotFound
from ...stores.disk.fs import failed, sync_directory, write_all
from ...stores.due import GRACE, note_full
from ..beneath import descriptor
from ..trees import Get, parse_tree
from .blobs import Blobs, Reference

RECENT = 7 * 24 * 3600.0
"""Seconds for which automatic points are left alone, and calls that crashes left."""

BUDGET = "BACKTRAIL_BUDGET"
"""Names the variable that sets the budget: bytes, or such as `20GB`."""

_GB = 10**9
_NEARLY = 0.9


class Garbage(NamedTuple):
    """What was swept, or would be: blobs, and their bytes before compression.

    `problems` are trees that could not be read; if one of them is damaged, the sweep was
    `held` back.
    """

    problems: dict[bytes, Exception]
    held: bool
    blobs: int
    bytes: int


def mark_and_sweep(
    blobs: Blobs,
    roots: Iterable[bytes] = (),
    contents: Iterable[bytes] = (),
    *,
    without: Collection[Reference] = (),
    only: Container[bytes] | None = None,
    grace: float = GRACE,
    dry_run: bool = False,
) -> Garbage:
    """Remove what nothing relies on and was not written in the last `grace` seconds.

    A tree that becomes a root only after this began is safe if it is referred to, or if
    all of it was written within the grace.

    Args:
        roots: trees to keep besides those referred to.
        contents: single blobs to keep.
        without: in a dry run, references that would be dropped before.
        only: nothing else is removed.
    """
    before = time.time() - grace
    ignored: set[bytes] = set()
    if dry_run and without:
        stay = {reference.root for reference in blobs.references() if reference not in without}
        ignored = {reference.root for reference in without} - stay
    marks = _Marks(roots, contents, ignored, only)
    swept = blobs.sweep(marks.keep, before, dry_run=dry_run)
    return Garbage(marks.problems, marks.held, *swept)


def drop(blobs: Blobs, references: Iterable[Reference]) -> None:
    """Nothing relies on these any more: drop them."""
    logs: dict[tuple[str, str], list[bytes]] = {}
    for store, log, root in references:
        logs.setdefault((store, log), []).append(root)
    for (store, log), roots in logs.items():
        blobs.drop_references(store, log, roots)


class _Marks:
    """All that was reached so far; everything, once it is not known what that is."""

    def __init__(
        self,
        roots: Iterable[bytes],
        contents: Iterable[bytes],
        ignored: Collection[bytes],
        only: Container[bytes] | None,
    ) -> None:
        self._first = set(roots)
        self._reached = set(contents)
        self._ignored = ignored
        self._only = only
        self._trees: set[bytes] = set()
        self.problems: dict[bytes, Exception] = {}
        self.held = False

    def keep(self, roots: Collection[bytes], get: Get) -> _Marks:
        """Mark from more roots."""
        todo = self._first.union(root for root in roots if root not in self._ignored)
        self._reached.update(reach(get, todo, self._report, self._trees))
        return self

    def _report(self, digest: bytes, error: Exception) -> None:
        self.problems[digest] = error
        self.held = self.held or isinstance(error, Damaged)

    def __contains__(self, digest: object) -> bool:
        if self._only is not None and digest not in self._only:
            return True
        return self.held or digest in self._reached


def reach(
    get: Get,
    roots: Iterable[bytes],
    report: Callable[[bytes, Exception], None],
    walked: set[bytes] | None = None,
) -> Iterator[bytes]:
    """Every blob that trees hold, trees included; some more than once.

    A tree that cannot be read is reported, and passed over. Trees in `walked` are not entered
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
            tree = parse_tree(get(root))
        except (NotFound, Damaged) as error:
            report(root, error)
            continue
        for entry in tree.values():
            if entry.kind == "directory":
                todo.append(entry.value)
            elif entry.kind == "file":
                yield entry.value


# --- how much may be kept ----------------------------------------------------------------


class Point(NamedTuple):
    """A moment that can be gone back to: its tree, when, its label, and its reference."""

    root: bytes
    at: float
    label: str | None
    reference: Reference


def default_budget(path: str | Path) -> int:
    """The bytes that blobs may take: 10 GB, or 5 % of the disk if that is less.

    The environment's `BACKTRAIL_BUDGET` has the last word.
    """
    given = os.environ.get(BUDGET)
    if given is None:
        return min(10 * _GB, _space(path)[0] // 20)
    from ...settings import size_in_bytes

    size = size_in_bytes(given)
    if size is None:
        raise InvalidData(f"{BUDGET} is a number of bytes, or such as 20GB, not {given!r}")
    return size


def is_nearly_full(used: int, limit: int) -> bool:
    """Whether blobs take so much that a collection should make room before capture stops."""
    return used > limit * _NEARLY


def check_budget(used: int, path: str | Path, limit: int | None = None) -> None:
    """Raise `DiskLow` if blobs take more than they may; near that, a collection is noted."""
    most = default_budget(path) if limit is None else limit
    if is_nearly_full(used, most):
        note_full(Path(path))
    if used > most:
        raise DiskLow(
            f"contents of files take {used // 10**6} MB in {path}, and may take "
            f"{most // 10**6} MB: "
            "files are not captured until a collection (`backtrail gc`) has made room, sessions "
            f"are deleted, or {BUDGET} allows more",
            errno=errno.EDQUOT,
        )


def budget(
    points: Sequence[Point],
    limit: float,
    holds: Callable[[bytes, set[bytes]], Iterable[bytes]],
    weigh: Callable[[bytes], int],
    *,
    now: float,
) -> list[Reference]:
    """Which references to drop so that the rest fits into `limit` bytes, oldest first.

    Labelled points stay, and those of the last week, even if they alone do not fit. Of the
    others the newest stay, as many as there is room for. A point whose tree is held for
    another one's sake stays as well: to drop it would free nothing.

    Args:
        points: all there are, oldest first.
        holds: the blobs of a root, itself among them, as `reach` gives them.
        weigh: the bytes that one takes.
    """
    held: set[bytes] = set()
    walked: set[bytes] = set()
    kept: set[Reference] = set()
    total = 0
    free: list[Point] = []
    for point in points:
        if point.label is None and point.at < now - RECENT:
            free.append(point)
            continue
        new = set(holds(point.root, walked)) - held
        held |= new
        total += sum(map(weigh, new))
        kept.add(point.reference)
    full = False
    for point in reversed(free):
        if point.root not in held:
            if full:
                continue
            new = set(holds(point.root, walked)) - held
            weight = sum(map(weigh, new))
            if weight and total + weight > limit:
                full = True
                continue
            held |= new
            total += weight
        kept.add(point.reference)
    return list(dict.fromkeys(p.reference for p in free if p.reference not in kept))


def free_floor(path: str | Path) -> int:
    """The bytes that must stay free on the disk: 1 GB, or 2 % of it if that is less."""
    return _floor(_space(path)[0])


def _floor(total: int) -> int:
    return min(_GB, total // 50)


def check_floor(path: str | Path, floor: int | None = None) -> int:
    """The free bytes of the disk; `DiskLow` if they are fewer than the floor."""
    total, free = _space(path)
    least = _floor(total) if floor is None else floor
    if free < least:
        raise DiskLow(
            f"{free // 10**6} MB are free on the disk of {path}, and {least // 10**6} MB must stay "
            "free: files are not captured until there is space, or `gc` has made some",
            errno=errno.ENOSPC,
        )
    return free


def _space(path: str | Path) -> tuple[int, int]:
    """The bytes of a disk, and those of them that any user may still write."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise failed(error, f"ask for the free space at {path}") from error
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


# --- what was erased on purpose ----------------------------------------------------------


_TOMBSTONES = "purged"
"""The file beside the blobs with the digests of contents that were erased on purpose."""


def erased_in(folder: Path) -> set[bytes]:
    """What was erased on purpose."""
    found: set[bytes] = set()
    try:
        lines = (folder / _TOMBSTONES).read_bytes().split(b"\n")
    except FileNotFoundError:
        return found
    except OSError as error:
        raise failed(error, f"read {folder / _TOMBSTONES}") from error
    for line in lines:
        try:
            found.add(bytes.fromhex(line.decode()))
        except ValueError:
            # Half a line, left by a power cut.
            continue
    return found


def note_erased(folder: Path, digests: Collection[bytes]) -> None:
    """Remember that these are erased; on the disk when this returns."""
    new = sorted(set(digests) - erased_in(folder))
    if not new:
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with descriptor(folder / _TOMBSTONES, flags, 0o600) as fd:
            # An empty line first: the last one may be half.
            write_all(fd, b"".join(b"\n" + digest.hex().encode() for digest in new) + b"\n")
            os.fsync(fd)
        sync_directory(folder)
    except OSError as error:
        raise failed(error, f"write {folder / _TOMBSTONES}") from error
