"""What of a directory is captured, what is not and why, and what came from where nothing is.

Rules decide about a name when it is first seen: captured once, captured always. What is not
captured is marked, so that it is known again under another name; what is captured and was moved
here from elsewhere is a *stranger*.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from functools import cached_property

import msgspec

from ..trees import UNREADABLE, is_control
from .ignore import (
    FILE_LIMIT,
    IGNORE_FILES,
    LEFT_OUT_FILE,
    MOUNT_POINTS,
    MOUNTED,
    OUR_NAME,
    OUR_STORE,
    VERSION_CONTROL,
    is_mount_point,
    is_store,
    stores_among,
)
from .index import Index, Mark, Sightings, plain
from .known import KnownDirectory, KnownFile, left_out
from .roots import birth_at
from .trail import Frame, Trail

GRANULARITY = 20_000_000
"""Nanoseconds within which two changes may carry one time: two ticks of a slow kernel clock."""


class OwnPlaces:
    """The files and folders of a store of ours, which are never captured.

    A file is one of them by its name and by what it is: under another name, as a second
    link, it is a file like others.
    """

    def __init__(self, places: Collection[str] = ()) -> None:
        self._places = places

    @cached_property
    def names(self) -> set[bytes]:
        """What they are called, in lower case, also where the store was opened by a link."""
        paths = [*self._places, *map(os.path.realpath, self._places)]
        return {os.fsencode(os.path.basename(path)).lower() for path in paths}

    def identities(self) -> set[tuple[int, int]]:
        """The devices and inodes of those that are there."""
        found = set()
        for place in self._places:
            try:
                status = os.stat(place)
            except OSError:
                continue
            found.add((status.st_dev, status.st_ino))
        return found


class Limits(msgspec.Struct):
    """What a scan does not capture."""

    file_size: int = FILE_LIMIT
    own: OwnPlaces = OwnPlaces()
    granularity: int = GRANULARITY


class Hidden(Exception):
    """A directory turns out not to be entered, for a reason."""

    def __init__(self, reason: bytes) -> None:
        self.reason = reason


class Verdicts:
    """What one scan decides. Only one that `adopts` them brings new ignore rules into force.

    What a restore brought back is `kept` whatever a rule says: it was captured once.
    """

    def __init__(
        self, index: Index, trail: Trail, root: int, own: OwnPlaces, *, adopts: bool,
        kept: Collection[bytes],
    ) -> None:  # fmt: skip
        self.adopts = adopts
        self.arrivals = Arrivals(index)
        self._index = index
        self._trail = trail
        self._root = root
        self._own = own
        self._kept = frozenset(kept)
        self._ours: set[tuple[int, int]] | None = None
        # Of what was known before the scan, which changes the marks.
        self._sightings = Sightings(index.marks, root) if index.marks else None

    def is_moved_here(self, above: Frame, frame: Frame) -> bool:
        """Whether a directory is one that was not captured under another name.

        Then it is not captured under this one either.
        """
        name = frame.name
        reason = self.moved(above, name, frame.status)
        if not reason:
            return False
        self.arrivals.left_all(above.known.directories.pop(name))
        above.known.opaque[name] = reason
        above.changed.add(name)
        self.mark(above, {name})
        return True

    def moved(self, frame: Frame, name: bytes, status: os.stat_result) -> bytes:
        """Why a thing is not captured that was known under another name; empty if it was not.

        Where it first was, the rules decide, with the next prompt.
        """
        if self._sightings is None or not self._sightings.may_be(status.st_ino):
            return b""
        path = self._trail.path_in(frame, name)
        known = self._sightings.known(frame.fd, name, path)
        if known is None or (self.adopts and known[0] == known[1].origin == path):
            return b""
        return known[1].reason_at(path)

    def mark(self, frame: Frame, names: Collection[bytes] | None = None) -> None:
        """Note which things are not captured in a directory (or these of them), and whence."""
        marks = self._index.marks
        left = list(left_out(frame.known))
        if not left and not marks:
            return
        where = self._trail.path_in(frame)
        old = marks.get(where, {})
        new: dict[bytes, Mark] = {}
        for name, reason in left:
            base = plain(reason)
            if base in (OUR_STORE, OUR_NAME, MOUNTED) or base.startswith(UNREADABLE):
                continue
            if names is not None and name not in names:
                if name in old:
                    new[name] = old[name]
                continue
            path = where + b"/" + name if where else name
            if self._sightings is None:
                self._sightings = Sightings({}, self._root)
            mark = self._sightings.mark(frame.fd, name, path, base)
            if mark is not None:
                new[name] = mark
                self._explain(frame, name, reason, mark.reason_at(path))
        if new != old:
            self._index.changed = True
            if new:
                marks[where] = new
            else:
                del marks[where]

    def _explain(self, frame: Frame, name: bytes, noted: bytes, reason: bytes) -> None:
        """Note where a thing came from, or that it is back."""
        if reason == noted:
            return
        known = frame.known
        if name in known.opaque:
            known.opaque[name] = reason
        else:
            known.files[name].value = reason
        frame.changed.add(name)
        self._index.changed = True

    def changes_rules(self, frame: Frame, names: Collection[bytes]) -> bool:
        """Whether other rules are in force here from now on, and all below is looked at.

        Rules that change inside a call wait for the next prompt.
        """
        touched = any(name in IGNORE_FILES for name in names)
        pending = self._index.pending
        if not (touched or pending):
            return False
        where = self._trail.path_in(frame)
        if self.adopts:
            return touched or where in pending
        if touched and where not in pending:
            pending.add(where)
            self._index.changed = True
        return False

    def keep_rules(self, frame: Frame) -> None:
        """Keep the ignore files of a directory that was listed: they are in force now."""
        rules = self._index.rules
        if not rules and not any(frame.has(name) for name in IGNORE_FILES):
            return
        where = self._trail.path_in(frame)
        read = dict(self._trail.read(len(self._trail.frames) - 1))
        if read != rules.get(where, {}):
            self._index.changed = True
            rules.pop(where, None)
            if read:
                rules[where] = read

    def choose(self, frame: Frame, names: Collection[bytes]) -> bool:
        """Decide which of the directories listed are entered, and which are opaque.

        Captured once, captured always; but version control never is. The answer is whether
        to list again next time.
        """
        known, again = frame.known, False
        directories, opaque = {}, dict.fromkeys(frame.ours, OUR_STORE)
        opaque.update(dict.fromkeys(frame.reserved, OUR_NAME))
        # A sandbox makes them in the folder it runs in, which may be below the root.
        mounts = not frame.name or MOUNT_POINTS.issubset(names)
        for name in names:
            child = None if is_control(name) else known.directories.get(name)
            reason = known.opaque.get(name, b"")
            if child is None and not reason and mounts and is_mount_point(frame.fd, name):
                # What may come into it does not show in the numbers of this folder.
                again = True
                continue
            if child is None:
                reason = self._trail.why_not(name, frame.has)
                if not reason:
                    child = KnownDirectory()
            if child is not None:
                directories[name] = child
            if reason:
                opaque[name] = reason
        for name in known.directories.keys() - directories.keys():
            self.arrivals.left_all(known.directories[name])
        frame.changed |= known.directories.keys() ^ directories.keys()
        frame.changed.update(name for name, _ in known.opaque.items() ^ opaque.items())
        known.directories, known.opaque = directories, opaque
        return again

    def stores_in(self, frame: Frame, names: Collection[bytes]) -> Collection[bytes]:
        """The names in a directory that belong to stores; `Hidden` if it is one as a whole.

        A directory that was captured is none as a whole, and nothing captured in it is a store's,
        unless it is the one that this session is in.
        """
        own = self.is_ours(frame.status)
        known = frame.known

        def captured(name: bytes) -> bool:
            if name in known.directories:
                return True
            file = known.files.get(name)
            return file is not None and file.kind != "skipped"

        ours = stores_among(frame.fd, names, captured, own=own)
        if len(self._trail.frames) > 1:
            is_whole = own if len(ours) < 2 else not known.inode and (own or is_store(ours, names))
            if is_whole:
                raise Hidden(OUR_STORE)
        return ours

    def is_ours(self, status: os.stat_result) -> bool:
        """Whether a directory belongs to a store of ours, which makes them before all else."""
        if self._ours is None:
            self._ours = self._own.identities()
        return identity_of(status) in self._ours

    def keeps(self, frame: Frame, name: bytes) -> bool:
        """Whether a restore brought this name back."""
        return bool(self._kept) and self._trail.path_in(frame, name) in self._kept

    # --- files ---------------------------------------------------------------------------

    def why_not_file(
        self, frame: Frame, name: bytes, now: os.stat_result, old: KnownFile | None
    ) -> bytes:
        """Why a file is not captured; empty if it is."""
        captured = old is not None and old.kind != "skipped"
        if name.lower() in self._own.names and identity_of(now) in self._own.identities():
            # A store makes files while we look; one that was found is there by now.
            return OUR_STORE
        reason = self._trail.why_not_file(name, captured or self.keeps(frame, name))
        if not reason and (old is None or not captured or old.inode != now.st_ino):
            moved = self.moved(frame, name, now)
            # What is too large, or no file, shows when it is looked at.
            reason = moved if moved and plain(moved) in (LEFT_OUT_FILE, VERSION_CONTROL) else b""
        return reason

    def arrived(self, frame: Frame, name: bytes, now: os.stat_result) -> None:
        """A captured file is new at a name."""
        if self._index.looked and not (self._sightings and self._sightings.may_be(now.st_ino)):
            self.arrivals.came(frame.fd, name, now)


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Which thing some numbers are of, on this machine."""
    return status.st_dev, status.st_ino


# --- arrivals ----------------------------------------------------------------------------


_MOST = 10_000
"""How many strangers are remembered; the oldest are forgotten first."""


class Arrivals:
    """What came and what left in one scan: so captured files are found that no call made.

    What is new in a workspace and older than the last look was moved there. If no captured file
    left with that number, it comes from an opaque folder, whose things are not known one by one, or
    from outside. It is captured like others; but a way back must not leave it in the store alone,
    so it is noted as a stranger. Where the system has no times of birth, none is.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._left: set[int] = set()
        self._came: dict[int, int] = {}

    def left(self, inode: int) -> None:
        """A captured file is not where it was."""
        self._left.add(inode)

    def left_all(self, known: KnownDirectory | None) -> None:
        """A captured directory is not where it was, with all in it."""
        todo = [known] if known is not None and self._index.looked else []
        while todo:
            one = todo.pop()
            self._left.add(one.inode)
            self._left.update(file.inode for file in one.files.values())
            todo += one.directories.values()

    def came(self, fd: int, name: bytes, status: os.stat_result) -> None:
        """A file is new at a name of an open directory.

        One with a second name is there, too, when this one goes.
        """
        born = birth_at(fd, name) if status.st_nlink == 1 else 0
        if 0 < born < self._index.looked:
            self._came[status.st_ino] = born

    def settle(self, *, partly: bool) -> None:
        """Note what came, and left no captured place.

        Where only some paths were looked at, what left is still known at its old place.
        """
        if partly and self._came:
            files = [file for one in self._index.directories() for file in one.files.values()]
            known = Counter(file.inode for file in files)
            self._left.update(inode for inode in self._came if known[inode] > 1)
        strangers = self._index.strangers
        for inode, born in self._came.items():
            if inode not in self._left and strangers.get(inode) != born:
                strangers[inode] = born
                self._index.changed = True
        while len(strangers) > _MOST:
            del strangers[next(iter(strangers))]
