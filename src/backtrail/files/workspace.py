"""A workspace: a directory being watched over. Scanned into trees, restored from trees.

All that touches the directory goes through here, under the workspace's lock: scans, the
line of time, restores and their recovery. Contents go to the blob store, who did what to
the catalogue beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import Conflict, NotFound, Unsafe
from ..events import Json, new_id
from ..stores.files import make_directory
from ..stores.locks import FileLock
from .blobs import Blobs, Reference
from .capture import Capture
from .catalogue import Bracket, Catalogue, Place, Transition
from .index import Index
from .plan import Change, Plan
from .restore import Restore
from .scan import DIRECTORY, Limits, Own, Scanner, not_captured
from .trees import EMPTY, EMPTY_DIGEST, diff_trees

LONG_CALL = 10.0
"""Seconds after which a person may well have saved a file during a shell call."""


@dataclass(frozen=True, slots=True)
class Attributed:
    """What a call did to the files, as its event carries it."""

    before: bytes
    after: bytes
    foreign: list[bytes]
    shared: list[bytes]
    uncertain: list[bytes]
    lost: list[bytes]

    def to_dict(self) -> dict[str, Json]:
        """The part of an event's data; lists only where they say something."""
        data: dict[str, Json] = {"before": self.before.hex(), "after": self.after.hex()}
        for name in ("foreign", "shared", "uncertain", "lost"):
            paths: list[bytes] = getattr(self, name)
            if paths:
                data[name] = [os.fsdecode(path).encode("utf-8", "backslashreplace").decode() for path in paths]
        return data


class Workspace:
    """One watched directory, on one blob store."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        blobs: Blobs,
        catalogue: Catalogue,
        state: Path,
        *,
        own: Own = lambda status: False,
        force: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.path = os.path.realpath(root)
        if not force:
            refuse_broad(self.path)
        self.blobs = blobs
        self.catalogue = catalogue
        self._own = own
        self._progress = progress
        make_directory(state)
        status = os.stat(self.path)
        self.place: Place = catalogue.place(status.st_dev, status.st_ino, self.path)
        self._index_path = state / f"index-{self.place.n}"
        self._lock = FileLock(state / f"lock-{self.place.n}", f"the workspace {self.path}")
        self._index: Index | None = None
        self._get = _cached(blobs.get)
        if EMPTY_DIGEST not in blobs.has([EMPTY_DIGEST]):
            blobs.write([(EMPTY_DIGEST, EMPTY)])

    @contextmanager
    def locked(self) -> Iterator[int]:
        """The root's descriptor, with nobody else at work in the workspace."""
        with self._lock:
            self._check_identity()
            fd = os.open(self.path, DIRECTORY)
            try:
                yield fd
            finally:
                os.close(fd)

    def _check_identity(self) -> None:
        """Make the root again if it is gone; refuse another directory in its place."""
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            os.mkdir(self.path)
            status = os.stat(self.path)
            self.catalogue.rebind(self.place.n, status.st_dev, status.st_ino, self.path)
            self._index = None
            self._index_path.unlink(missing_ok=True)
            self.place = self.catalogue.place(status.st_dev, status.st_ino, self.path)
        if (status.st_dev, status.st_ino) != (self.place.device, self.place.inode):
            raise Conflict(
                f"{self.path} is another directory than the one watched over: `relocate` binds "
                "it anew, after showing the difference"
            )

    # --- scanning ------------------------------------------------------------------------

    def scan(
        self, references: Iterable[tuple[str, str]] = (), paths: Collection[bytes] | None = None
    ) -> tuple[bytes, Transition | None]:
        """The present tree, stored, and what is new about it since anybody's last scan.

        `references` are (store, log) pairs that will rely on the tree.
        """
        with self.locked() as root:
            return self._scan(root, references, paths)

    def _scan(
        self, root: int, references: Iterable[tuple[str, str]], paths: Collection[bytes] | None
    ) -> tuple[bytes, Transition | None]:
        index = self._loaded()
        before = index.root.digest if index.root else b""
        capture = Capture(self.blobs)
        scanner = Scanner(index, capture, Limits(own=self._own), self._progress)
        tree = scanner.scan(root) if paths is None else scanner.scan_paths(root, paths)
        new = [Reference(store, log, tree) for store, log in references]
        if tree != before or capture.pending:
            capture.finish(new)
            index.save(self._index_path)
        elif new:
            self.blobs.write([], new)
        return tree, self.catalogue.record(self.place.n, tree)

    def _loaded(self) -> Index:
        """The index; doubted where the blob store may have dropped what it relies on."""
        epoch = self.blobs.epoch()
        index = self._index
        if index is None:
            index = self._index = Index.load(self._index_path, self.blobs.id, epoch)
        if index.doubtful or index.epoch != epoch:
            wanted = set(index.digests())
            index.doubt(wanted - self.blobs.has(wanted))
            index.epoch = epoch
        return index

    def not_captured(self) -> list[tuple[bytes, str, int]]:
        """What the last scan did not keep: path, reason, size."""
        root = self._loaded().root
        if root is None:
            return []
        return [(path, reason.decode("utf-8", "replace"), size)
                for path, reason, size in not_captured(root)]  # fmt: skip

    # --- who did what --------------------------------------------------------------------

    def begin(
        self, owner: str, log: tuple[str, str], paths: list[bytes] | None = None
    ) -> tuple[Bracket, Transition | None]:
        """A call begins: the bracket, and what others did before it."""
        with self.locked() as root:
            tree, change = self._scan(root, [log], None)
            named = None if paths is None else [os.fsdecode(path) for path in paths]
            return self.catalogue.open_bracket(self.place.n, owner, tree, named), change

    def end(self, bracket: Bracket, log: tuple[str, str]) -> Attributed | None:
        """A call is over: what it did to the files; None if nothing changed meanwhile."""
        with self.locked() as root:
            named = None if bracket.paths is None else [os.fsencode(p) for p in bracket.paths]
            tree, _ = self._scan(root, [log], named)
            self.catalogue.close_bracket(bracket)
        if tree == bracket.tree:
            return None
        return self._attribute(bracket, tree)

    def _attribute(self, bracket: Bracket, tree: bytes) -> Attributed:
        mine: set[bytes] = set()
        shared: set[bytes] = set()
        others: set[bytes] = set()
        lost: set[bytes] = set()
        for transition in self.catalogue.transitions(self.place.n, bracket.opened):
            for path, before, _ in diff_trees(self._get, transition.before, transition.after):
                claims = [b for b in transition.brackets if _claims(b, path)]
                if bracket.id not in [b.id for b in claims]:
                    others.add(path)
                    continue
                mine.add(path)
                if any(b.owner != bracket.owner for b in claims):
                    shared.add(path)
                if before is not None and before.kind == "opaque":
                    lost.add(path)
        long = bracket.paths is None and time.time() - bracket.since > LONG_CALL
        return Attributed(
            bracket.tree,
            tree,
            foreign=sorted(others - mine),
            shared=sorted(shared | (others & mine)),
            uncertain=sorted(mine) if long else [],
            lost=sorted(lost),
        )

    # --- restoring -----------------------------------------------------------------------

    def restore(
        self, make: Callable[[bytes], Plan], log: tuple[str, str], event: Callable[[Plan], Json]
    ) -> tuple[Plan, bytes, bytes]:
        """Apply the plan that `make` gives for the present tree.

        The present state is stored first; that is what undo goes back to. Returns the plan
        as it went, and the trees before and after.
        """
        with self.locked() as root:
            now, _ = self._scan(root, [log], None)
            plan = make(now)
            self._check_contents(plan)
            id = new_id()
            journal = {"plan": plan, "event": event(plan), "log": log}
            self.catalogue.write_journal(self.place.n, id, _encode_journal(journal))
            done = Restore(root, id, self._get, self._keep).apply(plan)
            after, _ = self._scan(root, [log], None)
            return done, now, after

    def _check_contents(self, plan: Plan) -> None:
        needed = plan.needed()
        gone = needed - self.blobs.has(needed)
        for digest in gone:
            paths = [s.path for s in plan.steps if s.after and s.after.value == digest]
            raise NotFound(
                f"the content of {os.fsdecode(paths[0])} is not in the store any more: "
                "nothing was changed; leave it out with `paths`"
            )
        for digest in needed:
            self.blobs.get(digest)

    def _keep(self, fd: int, name: bytes) -> None:
        """Store what is at a name, whatever it is."""
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        try:
            parts = []
            while part := os.read(file, 1 << 20):
                parts.append(part)
        finally:
            os.close(file)
        self.blobs.put(b"".join(parts))

    def close(self) -> None:
        """Let go of the lock's file."""
        self._lock.close()


def refuse_broad(path: str) -> None:
    """Refuse to watch over a whole home or file system."""
    home = os.path.realpath(os.path.expanduser("~"))
    broad = {home, "/", *(os.path.join(home, n) for n in ("Desktop", "Documents", "Downloads"))}
    if path in broad or os.path.ismount(path):
        raise Unsafe(f"{path} is too much to watch over: choose a project folder, or force it")


def _claims(bracket: Bracket, path: bytes) -> bool:
    """Whether a change of `path` may be this call's."""
    if bracket.paths is None:
        return True
    name = os.fsdecode(path)
    return any(name == p or name.startswith(p + "/") or p.startswith(name + "/") for p in bracket.paths)


def change_of(seq: int, files: Json) -> Change:
    """What an event's data says about the files, for a plan."""

    def paths(name: str) -> frozenset[bytes]:
        return frozenset(os.fsencode(path) for path in files.get(name, ()))

    return Change(
        seq,
        bytes.fromhex(files["before"]),
        bytes.fromhex(files["after"]),
        paths("foreign"),
        paths("shared"),
        paths("uncertain"),
    )


def _cached(get: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Trees are asked for again and again; small contents are kept."""
    known: dict[bytes, bytes] = {}

    def fetch(digest: bytes) -> bytes:
        found = known.get(digest)
        if found is None:
            found = get(digest)
            if len(found) < 100_000:
                if len(known) > 2000:
                    known.clear()
                known[digest] = found
        return found

    return fetch


_encode_journal = msgspec.msgpack.Encoder().encode

