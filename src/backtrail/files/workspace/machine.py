"""What this machine knows of roots, for all stores of one user.

Two stores may watch over one directory, and one root may lie in another. So the lock of a
root, its id, its number and its open calls are kept per machine: a folder for each
directory, named by which directory it is, wherever it is. The folders are in
`BACKTRAIL_STATE`, else in the user's state folder. Other users of the machine have their
own, and are not seen.

Everything here is small files, written under the root's lock and never synced: the logs say
which call did what. A power cut may bring back an old number, so numbers leap with each boot.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from ..._startup.folders import state_folder
from ..._startup.frozen import NamedTuple
from ...errors import Unsupported
from ...stores.disk.fs import failed, refuse_network
from ...stores.disk.locks import WAIT, FileLock
from ..beneath import descriptor
from ..names import shown
from .roots import Identity, identity

VARIABLE = "BACKTRAIL_STATE"

_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ADD = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = 64
_ABOUT = 8192
_LEAP = 100_000
_TRIES = 5
_MAP_LIMIT = 64 << 20


def key_of(which: Identity, path: bytes) -> str:
    """The name of a directory in the registry: the same wherever it is.

    A device may get another number when the machine starts, so it counts only where the
    time of birth is not known. A directory that is not there goes by its path.
    """
    if not which.inode:
        from ..._startup.hashing import sha256

        return f"path-{sha256(path).hexdigest()[:32]}"
    if which.born:
        return f"{which.inode:x}-{which.born:x}"
    return f"{which.inode:x}-on-{which.device:x}"


def identity_at(path: bytes) -> Identity | None:
    """Which directory is at a path; None if there is none, or a link."""
    try:
        with descriptor(path, _DIRECTORY) as fd:
            return identity(fd)
    except (OSError, ValueError):
        return None


class About(NamedTuple):
    """What the lock's file says beside its last holder: the root's number, tree, id, place.

    The number counts the states of the root that any store's scan or restore found. `tree`
    is the one it stands for.
    """

    n: int
    tree: bytes
    id: str
    boot: str
    path: bytes

    def encoded(self) -> bytes:
        """The line in the file; number and tree have a fixed length."""
        return self.state() + b"%s %s %s\n" % (
            self.id.encode(),
            self.boot.encode(),
            _quoted(self.path),
        )

    def state(self) -> bytes:
        """The first part of the line, which changes with every new state."""
        return f"{self.n:020d} {self.tree.hex():64} ".encode()


class Registered(NamedTuple):
    """Another root in the registry, and where it is from here.

    `above` is the way from it down to this root, or `below` that from this root down to it;
    both are empty if it is this very root.
    """

    key: str
    path: bytes
    above: bytes = b""
    below: bytes = b""


class Machine:
    """The registry in one folder: `roots/KEY/` for each root, and `roots/map` with them all."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.roots = os.path.join(folder, "roots")
        self._map = os.path.join(self.roots, "map")

    @classmethod
    def here(cls, instead: str) -> tuple[Machine, str]:
        """The user's registry; where it cannot be written, one `instead`, and why."""
        machine = cls(state_folder())
        try:
            machine.make(machine.roots)
            if not os.access(machine.roots, os.W_OK | os.X_OK):
                raise PermissionError(13, "it cannot be written")
            refuse_network(machine.roots)
        except (OSError, Unsupported) as error:
            reason = getattr(error, "strerror", "") or str(error)
            why = (
                f"the state folder {machine.folder} cannot be used ({reason}): sessions of other "
                f"stores and of folders above and below are not seen; set {VARIABLE}"
            )
            machine = cls(instead)
            try:
                machine.make(machine.roots)
            except OSError as worse:
                raise failed(worse, f"make {machine.roots}") from worse
            return machine, why
        return machine, ""

    def make(self, folder: str) -> None:
        """Make a folder and those above it that are missing, each private; refuse a link."""
        try:
            status = os.lstat(folder)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self.folder), exist_ok=True)
            for part in (self.folder, self.roots, folder):
                try:
                    os.mkdir(part, 0o700)
                except FileExistsError:
                    continue
            status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(20, "it is not a folder")

    def root(self, which: Identity, path: bytes) -> Root:
        """The record of a directory."""
        key = key_of(which, path)
        if which.born and self._has_twin(key, which, path):
            key = f"{key}-{which.device:x}"
        return Root(self, key, path)

    def _has_twin(self, key: str, which: Identity, path: bytes) -> bool:
        """Whether a snapshot or copy of the whole file system has this name: both are there."""
        about = Root(self, key, path).about()
        if about is None or about.path == path:
            return False
        other = identity_at(about.path)
        return other is not None and other != which and other.is_same(which)

    # --- which roots there are -----------------------------------------------------------

    def map(self) -> bytes:
        """Every root that was registered, one a line: its key and where it was."""
        try:
            with descriptor(self._map, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC) as fd:
                return b"\n" + os.pread(fd, min(os.fstat(fd).st_size, _MAP_LIMIT), 0)
        except OSError:
            return b"\n"

    def map_size(self) -> int:
        """How long the map is: it changes when a root is registered."""
        try:
            return os.stat(self._map).st_size
        except OSError:
            return 0

    def enter(self, key: str, path: bytes) -> None:
        """Put a root on the map, unless it is there."""
        line = _line(key, path)
        if b"\n" + line in self.map():
            return
        with descriptor(self._map, _ADD, 0o600) as fd:
            os.write(fd, line)

    def related(self, key: str, path: bytes) -> list[Registered]:
        """The registered roots above and below a root."""
        known = self.map()
        return [*self._above(known, path), *self._below(known, key, path)]

    def _above(self, known: bytes, path: bytes) -> Iterator[Registered]:
        at = path
        while len(at) > 1:
            at = os.path.dirname(at)
            which = identity_at(at)
            if which is None:
                continue
            # A twin in a snapshot has a longer name.
            for name in _names(key_of(which, at), which):
                if b"\n%s " % name.encode() in known:
                    yield Registered(name, at, above=path[len(at.rstrip(b"/")) + 1 :])

    def _below(self, known: bytes, own: str, path: bytes) -> Iterator[Registered]:
        start = b" " + _quoted(path.rstrip(b"/")) + b"/"
        found: set[str] = set()
        at = known.find(start)
        while at >= 0:
            key, there = _parsed(known[known.rfind(b"\n", 0, at) + 1 : known.find(b"\n", at)])
            at = known.find(start, at + 1)
            which = identity_at(there)
            if key in found or key == own or which is None or key not in _names_of(which, there):
                continue
            found.add(key)
            yield Registered(key, there, below=there[len(path.rstrip(b"/")) + 1 :])

    def all(self) -> list[Root]:
        """Every root that has a folder here."""
        try:
            keys = sorted(os.listdir(self.roots))
        except OSError:
            return []
        found = []
        for key in keys:
            root = Root(self, key, b"")
            about = root.about()
            if about is not None:
                found.append(Root(self, key, about.path))
        return found


class RootIds:
    """The ids of roots as a store has them, too, in a file beside its contents."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "root-ids"
        self._known: dict[str, str] = {}

    def read(self, key: str) -> str:
        """The id of a root, from the file; empty if it has none."""
        try:
            lines = self._path.read_text("ascii").splitlines()
            self._known = dict(line.split() for line in lines)
        except (OSError, ValueError):
            self._known = {}
        return self._known.get(key, "")

    def note(self, key: str, id: str) -> None:
        """Have the store know the id of a root."""
        if self._known.get(key) == id:
            return
        self._known[key] = id
        # The registry knows it, and the store may do so the next time.
        with suppress(OSError), descriptor(self._path, _ADD, 0o600) as fd:
            os.write(fd, f"{key} {id}\n".encode())


class Root:
    """One directory in the registry: its lock, its number, its open calls.

    `acquire` first; only the holder of the lock reads and writes the rest.
    """

    def __init__(self, machine: Machine, key: str, path: bytes) -> None:
        self.machine = machine
        self.key = key
        self.path = path
        self.folder = os.path.join(machine.roots, key)
        self.lock = FileLock(os.path.join(self.folder, "lock"), f"the workspace {shown(path)}")
        self._about: About | None = None

    # --- the lock ------------------------------------------------------------------------

    def acquire(self, wait: float = WAIT) -> None:
        """Take the lock, or raise `SessionBusy`; a folder that is gone is made again."""
        for attempt in range(_TRIES):
            try:
                self.lock.acquire(wait)
            except FileNotFoundError:
                if attempt == _TRIES - 1:
                    raise
                self.machine.make(self.folder)
                continue
            if os.fstat(self.lock.fd).st_nlink:
                return
            # The registry was cleared, or the folder: no other process knows this lock.
            self.lock.drop()
            self.lock.release()
            self._about = None
        raise Unsupported(f"{self.folder} is removed again and again: nothing can be locked there")

    def release(self) -> None:
        """Give the lock back."""
        self.lock.release()

    def close(self) -> None:
        """Let go of the lock's file."""
        self.lock.close()

    def last_taker(self) -> bytes:
        """The name that the last one to hold the lock left. The caller holds it."""
        return os.pread(self.lock.fd, _NAME, 0).rstrip(b" \0")

    def leave_name(self, name: bytes) -> None:
        """Leave a name. The caller holds the lock."""
        os.pwrite(self.lock.fd, name[:_NAME].ljust(_NAME), 0)

    # --- the id and the number -----------------------------------------------------------

    def about(self) -> About | None:
        """What is known of the root, without its lock; None if that is nothing, or damaged."""
        if self.lock.fd >= 0:
            return _about(os.pread(self.lock.fd, _ABOUT, _NAME))
        try:
            with descriptor(self.lock.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC) as fd:
                return _about(os.pread(fd, _ABOUT, _NAME))
        except (OSError, ValueError):
            return None

    def moved(self, tree: bytes, like: About | None = None) -> About:
        """The root's state is `tree`: its number, a new one if that is news.

        `like` is what a root continues whose directory is another one now. The caller holds
        the lock.
        """
        about = _about(os.pread(self.lock.fd, _ABOUT, _NAME))
        if about is None or (about.path, about.boot) != (self.path, _boot()):
            about = self._registered(about, like)
        if about.tree != tree:
            about = about._replace(n=about.n + 1, tree=tree)
            os.pwrite(self.lock.fd, about.state(), _NAME)
        self._about = about
        return about

    def _registered(self, about: About | None, like: About | None) -> About:
        """Register the root, or say where it is now, or that the machine was started anew."""
        if about is None:
            start = like or About(0, b"", os.urandom(16).hex(), "", b"")
            about = start._replace(boot=_boot(), path=self.path)
        elif about.boot != _boot():
            about = about._replace(n=about.n + _LEAP, boot=_boot())
        if about.path != self.path:
            self._move_along(about.path)
        about = about._replace(path=self.path)
        os.ftruncate(self.lock.fd, _NAME)
        os.pwrite(self.lock.fd, about.encoded(), _NAME)
        self.machine.enter(self.key, self.path)
        return about

    def _move_along(self, old: bytes) -> None:
        """The directory was moved: so were the registered ones below it."""
        known = self.machine.map()
        start = b" " + _quoted(old) + b"/"
        at = known.find(start)
        while at >= 0:
            key, there = _parsed(known[known.rfind(b"\n", 0, at) + 1 : known.find(b"\n", at)])
            at = known.find(start, at + 1)
            now = self.path + there[len(old) :]
            which = identity_at(now)
            if which is not None and key in _names_of(which, now):
                self.machine.enter(key, now)


def _quoted(path: bytes) -> bytes:
    """A path in a line. Byte by byte, so that what begins alike still does."""
    return path.replace(b"%", b"%25").replace(b"\n", b"%0A")


def _unquoted(path: bytes) -> bytes:
    return path.replace(b"%0A", b"\n").replace(b"%25", b"%")


def _line(key: str, path: bytes) -> bytes:
    return b"%s %s\n" % (key.encode(), _quoted(path))


def _parsed(line: bytes) -> tuple[str, bytes]:
    key, _, path = line.partition(b" ")
    return key.decode("ascii", "replace"), _unquoted(path)


def _names(key: str, which: Identity) -> tuple[str, str]:
    return key, f"{key}-{which.device:x}"


def _names_of(which: Identity, path: bytes) -> tuple[str, str]:
    return _names(key_of(which, path), which)


def _about(line: bytes) -> About | None:
    """A line as `About.encoded` gave it; None if it is anything else."""
    try:
        n, tree, (rest, end, _) = line[:20], line[21:85].rstrip(b" "), line[86:].partition(b"\n")
        id, boot, path = rest.split(b" ", 2)
        if not (end and n.isdigit() and len(bytes.fromhex(id.decode())) == 16 and path):
            return None
        digest = bytes.fromhex(tree.decode())
        return About(int(n), digest, id.decode(), boot.decode(), _unquoted(path))
    except ValueError:
        return None


@cache
def _boot() -> str:
    """Which start of the machine this is; the same for all processes, `-` where unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip().replace(" ", "") or "-"
    except (OSError, ValueError):
        return "-"
