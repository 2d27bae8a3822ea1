"""Verifying: every log, every content and every tree that a session relies on is read.

What is damaged or missing is reported with the sessions that need it and the path where it
was. One damaged thing never hides another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..._startup.frozen import NamedTuple
from ...errors import BacktrailError, Damaged, NotFound
from ...events import Problem
from ...stores.base import Store
from ...stores.opening import store_at
from ...stores.wrapper import store_names
from ..depot import Depot, has_contents, opened
from ..names import shown
from ..restore.unfinished import described
from ..trees import EMPTY_DIGEST, Tree, parse_tree
from .blobs import Blobs
from .collect import trees_of
from .garbage import erased_in

UNFINISHED = "unfinished"
"""What a problem is called that is no damage: a restore that was cut short, or is under way."""

LOG = "files"
"""What problems with contents give as their log."""


def verify(store: Store | str) -> list[Problem]:
    """Read everything in a store, contents of files too, and report what is wrong."""
    if not isinstance(store, Store):
        with store_at(store, create=False) as place:
            return verify(place)
    problems = store.verify()
    if not has_contents(store):
        problems.extend(_without_contents(store))
        return problems
    try:
        with opened(store) as depot:
            problems.extend(_contents(depot, store_names(store)))
            places = depot.catalogue.unfinished()
            problems += [Problem("", LOG, UNFINISHED, described(shown(p.path))) for p in places]
    except BacktrailError as error:
        problems.append(Problem("", LOG, "unreadable", str(error)))
    return problems


def _without_contents(store: Store) -> Iterator[Problem]:
    """Sessions whose events name states of files, in a store that has no contents at all."""
    for info in store.sessions():
        try:
            trees = {tree for event in store.read(info.id) for tree in trees_of(event)}
        except BacktrailError:
            # The store's own problems name it.
            continue
        trees.discard(EMPTY_DIGEST)
        if trees:
            place = store.contents or "this store"
            why = f"its events name states of the files, and no contents are in {place}"
            yield Problem(info.id, LOG, "missing contents", why, count=len(trees))


def _contents(depot: Depot, names: Collection[str]) -> Iterator[Problem]:
    """What is wrong with the contents, and for which sessions."""
    damaged: dict[bytes, str] = {}
    try:
        for digest, why in depot.blobs.verify():
            if digest:
                damaged[digest] = why
            else:
                yield Problem("", LOG, "damaged", why)
    except Damaged as error:
        yield Problem("", LOG, "damaged", str(error))
    faults = _Faults(depot.blobs, damaged, erased_in(depot.folder))
    reported: set[bytes] = set()
    for (store, log), found in _by_session(depot.blobs, faults).items():
        for digest, (fault, count) in found.items():
            reported.add(digest)
            where = f"{shown(fault.path)}: " if fault.path else ""
            whose = "" if store in names else f" (a session of {store})"
            yield Problem(log, LOG, fault.what, f"{where}{fault.why}{whose}", count=count)
    for digest in damaged.keys() - reported:
        why = f"{damaged[digest]}; no session relies on it"
        yield Problem("", LOG, "damaged content", why)


_Found = dict[bytes, tuple["_Fault", int]]
"""The faults of a session by digest, each at one path, and in how many of its trees."""


def _by_session(blobs: Blobs, faults: _Faults) -> dict[tuple[str, str], _Found]:
    sessions: dict[tuple[str, str], _Found] = {}
    for store, log, root in blobs.references():
        for fault in faults.of(root):
            found = sessions.setdefault((store, log), {})
            first, count = found.get(fault.digest, (fault, 0))
            found[fault.digest] = (first, count + 1)
    return sessions


class _Fault(NamedTuple):
    path: bytes
    digest: bytes
    what: str
    why: str


@dataclass(slots=True)
class _Open:
    """A tree on the way down: where it is, and what was found in it so far."""

    digest: bytes
    todo: list[tuple[bytes, bytes]]
    found: list[_Fault]


class _Faults:
    """What is wrong in trees. Each is read once, however many hold it."""

    def __init__(self, blobs: Blobs, damaged: dict[bytes, str], purged: set[bytes]) -> None:
        self._blobs = blobs
        self._damaged = damaged
        self._purged = purged
        self._known: dict[bytes, list[_Fault]] = {}

    def of(self, root: bytes) -> list[_Fault]:
        """The faults in a tree, with paths from its top."""
        stack = [self._entered(root)] if root not in self._known else []
        while stack:
            here = stack[-1]
            if not here.todo:
                self._known[here.digest] = here.found
                stack.pop()
                continue
            name, below = here.todo[-1]
            if below not in self._known:
                stack.append(self._entered(below))
                continue
            here.todo.pop()
            for fault in self._known[below]:
                path = name + b"/" + fault.path if fault.path else name
                here.found.append(fault._replace(path=path))
        return self._known[root]

    def _entered(self, digest: bytes) -> _Open:
        try:
            tree: Tree = {} if digest == EMPTY_DIGEST else parse_tree(self._blobs.get(digest))
        except (NotFound, Damaged) as error:
            what = "missing tree" if isinstance(error, NotFound) else "damaged tree"
            lost = isinstance(error, NotFound) and digest in self._purged
            return _Open(digest, [], [] if lost else [_Fault(b"", digest, what, str(error))])
        below = [(name, e.value) for name, e in tree.items() if e.kind == "directory"]
        return _Open(digest, below, list(self._files(tree)))

    def _files(self, tree: Tree) -> Iterator[_Fault]:
        files = {name: entry.value for name, entry in tree.items() if entry.kind == "file"}
        there = self._blobs.has(set(files.values())) if files else set()
        for name, digest in files.items():
            if digest in self._damaged:
                yield _Fault(name, digest, "damaged content", self._damaged[digest])
            elif digest not in there and digest not in self._purged:
                why = f"blob `{digest.hex()}` is not in the store"
                yield _Fault(name, digest, "missing content", why)
