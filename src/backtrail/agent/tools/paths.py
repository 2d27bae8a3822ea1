"""Paths that a model names, and where they really lead.

Every path is walked name by name from the descriptor of a root. A link is read, never
followed by the system: it may lead elsewhere in the roots, and anything else is refused.
What is found is a `Place` without links, and it is opened by descriptors without following
any, so a link put there meanwhile leads nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import Unsafe
from ...events import new_id
from ...files.beneath import DIRECTORY, FILE, Directories, remove, write_file
from ...files.names import RESERVED, inside
from .tool import Context, ToolFailed

_HOPS = 40
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Mark = tuple[int, int, int, int]
"""What shows whether a file is still the one that was read."""


class Root:
    """One directory that paths may lead into, open."""

    def __init__(self, path: Path) -> None:
        self.path = os.fsencode(path.resolve())
        try:
            self._fd = os.open(self.path, DIRECTORY)
        except OSError as error:
            raise ToolFailed(f"The workspace {path} cannot be opened: {error.strerror}") from error
        self.directories = Directories(self._fd)

    def close(self) -> None:
        """Close it and all below."""
        self.directories.close()
        os.close(self._fd)

    def identity(self) -> tuple[int, int]:
        """What makes it the same directory under another name."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino


class Place:
    """A path in a root, without links on the way. Something may or may not be there."""

    def __init__(self, root: Root, path: bytes, shown: str) -> None:
        self.root = root
        self.path = path
        self.shown = shown

    @property
    def full(self) -> str:
        """The absolute path."""
        return os.fsdecode(_joined(self.root.path, self.path))

    def _parent(self) -> tuple[int, bytes]:
        if not self.path:
            raise ToolFailed(f"`{self.shown}` is the workspace itself")
        return self.root.directories.parent(self.path)

    def status(self) -> os.stat_result | None:
        """What is there, a link as such; None if nothing is."""
        if not self.path:
            return os.fstat(self.root.directories.at(b""))
        try:
            fd, name = self._parent()
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def listing(self) -> int:
        """The open directory at this place; it belongs to the root."""
        return self.root.directories.at(self.path)

    def open(self) -> int:
        """A descriptor of the file there, to read; `ToolFailed` if it is no plain file."""
        try:
            fd, name = self._parent()
            file = os.open(name, FILE, dir_fd=fd)
        except FileNotFoundError as error:
            raise ToolFailed(f"`{self.shown}` does not exist") from error
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise ToolFailed(f"`{self.shown}` is not a plain file") from error
            raise
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            os.close(file)
            what = "a directory" if stat.S_ISDIR(mode) else "not a plain file"
            raise ToolFailed(f"`{self.shown}` is {what}")
        return file

    def read(self, limit: int) -> tuple[bytes, os.stat_result]:
        """The whole content; `ToolFailed` if it is more than `limit` bytes."""
        with os.fdopen(self.open(), "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(limit + 1) if status.st_size <= limit else b""
            if max(status.st_size, len(content)) > limit:
                raise ToolFailed(
                    f"`{self.shown}` is too large: {status.st_size:,} bytes, at most {limit:,}"
                )
            return content, status

    def make_parents(self) -> list[bytes]:
        """Make the directories above; those that were not there, outermost first."""
        made: list[bytes] = []
        parts = self.path.split(b"/")[:-1]
        for count in range(1, len(parts) + 1):
            path = b"/".join(parts[:count])
            fd, name = self.root.directories.parent(path)
            try:
                os.mkdir(name, dir_fd=fd)
                made.append(path)
            except FileExistsError:
                continue
        return made

    def stage(self, content: bytes, like: os.stat_result | None, mode: int | None = None) -> bytes:
        """Write a file beside the place, with the mode and owner of `like`; its name."""
        fd, _ = self._parent()
        temporary = RESERVED + new_id().encode()
        try:
            if like is None:
                file = os.open(temporary, _NEW_FILE, 0o666, dir_fd=fd)
                with os.fdopen(file, "wb") as out:
                    out.write(content)
                    if mode is not None and mode & 0o111:
                        now = os.fstat(file).st_mode
                        os.fchmod(file, stat.S_IMODE(now) | (now & 0o444) >> 2)
            else:
                file = write_file(fd, temporary, content, 0o600)
                try:
                    _keep_owner(file, like)
                    os.fchmod(file, stat.S_IMODE(like.st_mode if mode is None else mode))
                finally:
                    os.close(file)
        except BaseException:
            remove(fd, temporary)
            raise
        return temporary

    def put(self, staged: bytes) -> None:
        """Let a staged file take the place, in one go."""
        fd, name = self._parent()
        os.rename(staged, name, src_dir_fd=fd, dst_dir_fd=fd)

    def drop(self, name: bytes | None = None) -> None:
        """Remove the file or link there, or what was staged beside it."""
        fd, own = self._parent()
        os.unlink(own if name is None else name, dir_fd=fd)


def _keep_owner(file: int, like: os.stat_result) -> None:
    now = os.fstat(file)
    if (now.st_uid, now.st_gid) == (like.st_uid, like.st_gid):
        return
    try:
        os.fchown(file, like.st_uid, like.st_gid)
    except PermissionError:
        # Only root may give a file away: it is the writer's own then, as with any editor.
        return


def mark_of(status: os.stat_result | None) -> Mark | None:
    """What shows whether a file is still the one that was looked at."""
    if status is None:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Places:
    """The roots of a context, open while a tool works."""

    def __init__(self, context: Context) -> None:
        self._roots: list[Root] = []
        try:
            for path in dict.fromkeys((context.cwd, *context.roots)):
                self._roots.append(Root(Path(path)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the roots."""
        while self._roots:
            self._roots.pop().close()

    def find(self, path: str, *, follow: bool = True) -> Place:
        """Where a path leads; `ToolFailed` if that is outside of the roots.

        Nothing need be there. Without `follow`, a link at its very end is not followed.
        """
        try:
            raw = os.fsencode(path)
        except UnicodeEncodeError as error:
            raise ToolFailed(f"{path!r} is not a path") from error
        if b"\0" in raw:
            raise _outside(path)
        try:
            return self._walk(raw, path, follow)
        except NotADirectoryError as error:
            raise ToolFailed(f"`{path}` leads through something that is not a directory") from error

    def _walk(self, raw: bytes, shown: str, follow: bool) -> Place:
        if raw.startswith(b"/"):
            root, names = self._enter(raw, shown)
        else:
            root, names = self._roots[0], _names(raw)
        done: list[bytes] = []
        hops = 0
        while names:
            name = names.pop()
            if name == b"..":
                if done:
                    done.pop()
                    continue
                above = _joined(root.path.rpartition(b"/")[0], *reversed(names))
                root, names = self._enter(above, shown)
                continue
            target = _link_at(root, b"/".join(done), name)
            if target is None or (not names and not follow):
                done.append(name)
                continue
            hops += 1
            if hops > _HOPS:
                raise _outside(shown)
            if target.startswith(b"/"):
                root, found = self._enter(target, shown)
                done = []
                names += found
            else:
                names += _names(target)
        return Place(root, b"/".join(done), shown)

    def _enter(self, path: bytes, shown: str) -> tuple[Root, list[bytes]]:
        """The root that an absolute path leads into, and the names from there, last first."""
        for candidate in (path, os.path.normpath(path)):
            for root in sorted(self._roots, key=lambda root: -len(root.path)):
                if candidate == root.path or candidate.startswith(root.path.rstrip(b"/") + b"/"):
                    return root, _names(candidate[len(root.path) :])
        return self._enter_by_another_name(os.path.normpath(path), shown)

    def _enter_by_another_name(self, path: bytes, shown: str) -> tuple[Root, list[bytes]]:
        """The same where the path comes to the root through a link above it."""
        known = {root.identity(): root for root in self._roots}
        names = _names(path)
        for count in range(len(names), 0, -1):
            try:
                status = Path(os.fsdecode(_joined(b"", *reversed(names[count - 1 :])))).stat()
            except OSError:
                break
            root = known.get((status.st_dev, status.st_ino))
            if root is not None:
                return root, names[: count - 1]
        raise _outside(shown)


def _joined(*parts: bytes) -> bytes:
    """One absolute path."""
    return b"/" + b"/".join(name for part in parts if (name := part.strip(b"/")))


def _names(path: bytes) -> list[bytes]:
    """The names in a path, last first."""
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


def _link_at(root: Root, above: bytes, name: bytes) -> bytes | None:
    """What a link says; None if there is no link."""
    try:
        fd = root.directories.at(above)
        return os.readlink(name, dir_fd=fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _outside(shown: str) -> ToolFailed:
    return ToolFailed(f"{shown!r} is outside the workspace")


@contextmanager
def places(context: Context) -> Iterator[Places]:
    """The roots of a context; errors of the system are said to the model."""
    opened = Places(context)
    try:
        yield opened
    except Unsafe as error:
        raise ToolFailed(str(error)) from error
    except OSError as error:
        named = f"`{os.fsdecode(error.filename)}`: " if _is_name(error.filename) else ""
        raise ToolFailed(f"{named}{error.strerror or error}") from error
    finally:
        opened.close()


def _is_name(value: object) -> bool:
    return isinstance(value, (str, bytes)) and bool(value)


def real_path(context: Context, path: str, *, follow: bool = True) -> str:
    """The absolute path that a path leads to, links resolved."""
    with places(context) as opened:
        return opened.find(path, follow=follow).full


def short(context: Context, path: str) -> str:
    """An absolute path as people say it: relative to `cwd` if it is in it."""
    home = os.fsencode(os.path.realpath(context.cwd))
    try:
        return os.fsdecode(inside(home, path)) or "."
    except Unsafe:
        return path
