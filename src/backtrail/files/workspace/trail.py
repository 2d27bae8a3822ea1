"""The way from the root of a workspace to where a scan is.

Every directory on it was opened from the one above, following no link. Only the nearest
are open at a time, so a tree may be as deep as it likes. The ignore rules that hold at the
end of the way are read when they are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping

import msgspec

from ...errors import StoreFailed
from ..beneath import DIRECTORY, descriptor
from ..trees import is_control
from .ignore import (
    IGNORE_FILES,
    IGNORED,
    LASTING,
    LEFT_OUT,
    LEFT_OUT_FILE,
    VERSION_CONTROL,
    Names,
    Rules,
    is_heavy,
    opaque_name,
    read_rules,
)
from .known import KnownDirectory

_OPEN = 32


class Paths(msgspec.Struct):
    """Declared paths by their first name; None stands for all that is there."""

    names: dict[bytes, Paths | None] = {}


def by_name(paths: Collection[bytes]) -> Paths | None:
    """Declared paths as a tree; None if the root is one of them. Those outside are dropped."""
    root = Paths()
    for path in paths:
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        if path.startswith(b"/") or b".." in parts:
            continue
        if not parts:
            return None
        at: Paths | None = root
        for part in parts[:-1]:
            at = at.names.setdefault(part, Paths()) if at is not None else None
        if at is not None:
            at.names[parts[-1]] = None
    return root


_NOTHING: Iterator[tuple[bytes, Paths | None]] = iter(())


class Frame(msgspec.Struct):
    """A directory on the way, and what is left to do in it.

    `only` are the names to look at, None for all. `relist`: list it whatever its numbers,
    and all below. `changed` are the names that may not be what they were, `moved` says that
    it is another itself. `names` are those in it, where they are known better than from the
    index, `before` what was known of it before it was listed. `ours` are those of a store,
    `reserved` those that restores use.
    """

    fd: int
    name: bytes
    known: KnownDirectory
    status: os.stat_result
    only: Paths | None = None
    relist: bool = False
    changed: set[bytes] = set()
    moved: bool = False
    names: Collection[bytes] | None = None
    before: tuple[object, ...] | None = None
    rules: Rules | None = None
    ours: Collection[bytes] = ()
    reserved: Collection[bytes] = ()
    todo: Iterator[tuple[bytes, Paths | None]] = _NOTHING

    def has(self, name: bytes) -> bool:
        """Whether a file of this name is in the directory, as far as known."""
        if self.names is not None:
            return name in self.names
        return self.known.has_file(name) or name in self.known.opaque


class Trail:
    """The frames from the root down. The root's descriptor belongs to the caller.

    `in_force` are the ignore files that count, by directory; None for those that are there.
    """

    def __init__(self, root: Frame, in_force: Mapping[bytes, Mapping[bytes, bytes]] | None) -> None:
        self.frames = [root]
        self._in_force = in_force

    def push(self, frame: Frame) -> None:
        """Go down; close what is far above."""
        self.frames.append(frame)
        if len(self.frames) > _OPEN + 1:
            far = self.frames[-_OPEN - 1]
            if far.fd >= 0:
                os.close(far.fd)
                far.fd = -1

    def pop(self) -> Frame:
        """Go up; open the directory above again if it is closed."""
        frame = self.frames.pop()
        if self.frames:
            try:
                if self.frames[-1].fd < 0:
                    self._reopen(self.frames[-1], frame.fd)
            finally:
                os.close(frame.fd)
        return frame

    def _reopen(self, above: Frame, below: int) -> None:
        """Open the directory above an open one."""
        try:
            above.fd = os.open(b"..", DIRECTORY, dir_fd=below)
            now, was = os.fstat(above.fd), above.status
        except OSError as error:
            raise StoreFailed(f"cannot scan: {error.strerror}", errno=error.errno) from error
        if (now.st_dev, now.st_ino) != (was.st_dev, was.st_ino):
            raise StoreFailed("cannot scan: a directory was moved meanwhile; scan again")

    def close(self) -> list[Frame]:
        """Close everything; the frames that were left."""
        frames, self.frames = self.frames, []
        for frame in frames[1:]:
            if frame.fd >= 0:
                os.close(frame.fd)
        return frames

    def path(self, name: bytes) -> str:
        """The path of a name in the last directory."""
        return os.fsdecode(self.path_in(self.frames[-1], name))

    def path_in(self, frame: Frame, name: bytes = b"") -> bytes:
        """The path of a directory on the way, or of a name in it."""
        depth = next(at for at, other in enumerate(self.frames) if other is frame)
        names = [above.name for above in self.frames[1 : depth + 1]]
        return b"/".join([*names, name] if name else names)

    # --- verdicts ------------------------------------------------------------------------

    def why_not(self, name: bytes, beside: Names) -> bytes:
        """Why a directory here that is not captured yet is not entered; empty if it is."""
        frame = self.frames[-1]
        old = frame.known.opaque.get(name, b"")
        if old in LASTING:
            return old
        reason = opaque_name(name, beside, lambda inner: is_there(frame.fd, name + b"/" + inner))
        if reason:
            return reason
        rules = self.rules()
        verdict = rules.verdict(self.path(name), directory=True) if rules else ""
        if verdict == "ours":
            return LEFT_OUT
        if verdict == "git" and (old == IGNORED or _is_heavy(frame.fd, name)):
            return IGNORED
        return b""

    def why_not_file(self, name: bytes, captured: bool) -> bytes:
        """Why a file here is not captured; empty if it is, or was before."""
        if is_control(name):
            return VERSION_CONTROL
        if captured:
            return b""
        rules = self.rules()
        if rules.ours and rules.verdict(self.path(name), directory=False) == "ours":
            return LEFT_OUT_FILE
        return b""

    def rules(self) -> Rules:
        """The ignore rules that hold in the last directory."""
        last = self.frames[-1].rules
        if last is not None:
            return last
        depth = len(self.frames) - 1
        while depth and self.frames[depth - 1].rules is None:
            depth -= 1
        above = self.frames[depth - 1].rules if depth else None
        rules = Rules() if above is None else above
        for at in range(depth, len(self.frames)):
            frame = self.frames[at]
            rules = frame.rules = self._inside(at, rules)
        return rules

    def _inside(self, at: int, rules: Rules) -> Rules:
        """The rules that hold in a directory on the way, below one with these."""
        if self._in_force is None:
            read = self.read(at)
        else:
            read = [*self._in_force.get(self.path_in(self.frames[at]), {}).items()]
        if not read:
            return rules
        above = b"".join(frame.name + b"/" for frame in self.frames[1 : at + 1])
        return rules.inside(os.fsdecode(above), read)

    def read(self, at: int) -> list[tuple[bytes, bytes]]:
        """The ignore files that are in a directory on the way."""
        frame = self.frames[at]
        names = [name for name in IGNORE_FILES if frame.has(name)]
        if not names:
            return []
        fd = self._open_again(at)
        try:
            return [(name, content) for name in names if (content := read_rules(fd, name))]
        finally:
            os.close(fd)

    def _open_again(self, at: int) -> int:
        """A descriptor of a directory on the way, even if it is closed."""
        nearest = at
        while self.frames[nearest].fd < 0:
            nearest -= 1
        fd = os.dup(self.frames[nearest].fd)
        for frame in self.frames[nearest + 1 : at + 1]:
            try:
                below = os.open(frame.name, DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd


def is_there(fd: int, path: bytes) -> bool:
    """Whether anything is at a path below an open directory."""
    try:
        os.stat(path, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _is_heavy(fd: int, name: bytes) -> bool:
    try:
        with descriptor(name, DIRECTORY, dir_fd=fd) as below:
            return is_heavy(below)
    except OSError:
        return False
