"""Calls that meet: open at the same time in one root, but of several stores, or in roots
of which one lies in the other.

The catalogue of a store knows its own calls. Of all others a call learns here. Each
open call is a small file in the folder of its root. A call that opens writes its own first,
and then looks for others: so of two that open at once at least one sees the other. It takes
down which it met, and adds itself to the other's file, so that each of the two knows,
whichever ends first. Only then are the files scanned. A call that ends looks the other way
round: it scans, and then reads which it met.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from ..._startup.frozen import NamedTuple
from ...errors import Owner, SessionBusy
from ...events import timestamp
from ...stores.disk import forks
from ..beneath import descriptor
from ..changes.brackets import Met, is_gone
from .machine import Registered, Root

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MORE = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LIMIT = 4 << 20

_IDLE = b"-"
"""What the file of no call begins with."""

UNKNOWN = Met("a call that cannot be read", b"", None)
"""What a call met where its file is damaged: it may have done anything."""


class OpenCall(msgspec.Struct, frozen=True):
    """A call under way as other stores see it: whose it is, and which process ends it.

    `store` and `session` are its log, `agent` the program it belongs to, if that is not
    ours; `paths` are relative to its root, None for anything. `url` opens the store, if known.
    """

    store: str
    session: str
    name: str
    pid: int
    born: int
    paths: list[bytes] | None
    since: float
    agent: str = ""
    url: str = ""

    @property
    def owner(self) -> str:
        """Whose it is, in one word."""
        return f"{self.session}@{self.store}"


class Other(NamedTuple):
    """An open call of another store or root: its name in the registry, and where it is."""

    mark: str
    call: OpenCall
    root: Registered


class UnderWay(NamedTuple):
    """A call that is open, as it is shown to a person."""

    session: str
    name: str
    program: str
    pid: int
    since: float
    root: str

    def __str__(self) -> str:
        program = f" of {self.program}" if self.program else ""
        return (
            f"`{self.name}` in session `{self.session}`{program} (process {self.pid}, since "
            f"{timestamp(self.since)}) is under way in {self.root}"
        )

    def refusal(self) -> SessionBusy:
        """The error for a caller that wants to go back meanwhile."""
        return SessionBusy(
            f"{self}: what it does could not be told from a way back; nothing was changed. Wait "
            "for it, or insist with `--force` (in Python `force=True`)",
            owner=Owner(self.pid, os.uname().nodename, timestamp(self.since)),
        )


_decode_call = msgspec.json.Decoder(OpenCall).decode
_decode_met = msgspec.json.Decoder(Met).decode
_encode = msgspec.json.encode


class Meetings:
    """The open calls of a root and of those around it, as one store sees them.

    `depot` names the store's catalogue. Marks of its calls end with that name. A mark is the
    name of a file, which a process uses again for its next call: to make one takes longer than
    all the rest.
    """

    def __init__(self, root: Root, depot: str) -> None:
        self._root = root
        self._depot = depot
        self._folder = _calls_in(root)
        self._related: list[Registered] = []
        self._seen = -1
        self._files: dict[str, tuple[int, int]] = {}
        self._idle: list[str] = []
        forks.register(self)

    def after_fork(self) -> None:
        """Leave the files to the parent."""
        files, self._files, self._idle = self._files, {}, []
        for fd, _ in files.values():
            os.close(fd)

    # --- a call of this store ------------------------------------------------------------

    def open(self, id: str, call: OpenCall) -> tuple[str, list[Met]]:
        """A call opens: its mark, and which it meets. Its files are to be scanned after this."""
        mark = self._write(f"{id}.{self._depot}", _encode(call))
        met: list[Met] = []
        for other in self.others(call.owner):
            seen = met_by(other.root, other.call)
            if seen is not None and not is_gone(other.call.pid, other.call.born):
                met.append(seen)
            # One that was left open is noted too, so that its end does not claim this call's work.
            self._add(other, call)
        return mark, met

    def _write(self, mark: str, content: bytes) -> str:
        """Write a call to a file that is idle, or to a new one; its mark."""
        fd, length = -1, 0
        if self._idle:
            idle = self._idle.pop()
            fd, length = self._files[idle]
            if os.fstat(fd).st_nlink:
                mark = idle
            else:
                # The registry was cleared.
                del self._files[idle]
                os.close(fd)
                fd, length = -1, 0
        if fd < 0:
            fd = self._made(mark)
        line = content.ljust(length - 1) + b"\n"
        self._files[mark] = fd, len(line)
        # In one piece: others may look for it right now.
        os.pwrite(fd, line, 0)
        return mark

    def _made(self, mark: str) -> int:
        path = f"{self._folder}/{mark}"
        try:
            return os.open(path, _NEW, 0o600)
        except FileNotFoundError:
            self._root.machine.make(self._root.folder)
            with suppress(FileExistsError):
                os.mkdir(self._folder, 0o700)
            return os.open(path, _NEW, 0o600)

    def _add(self, other: Other, call: OpenCall) -> None:
        """Note in another call's file that this one met it."""
        seen = met_by(_back(other.root), call)
        if seen is not None:
            _append(f"{_calls_at(self._root, other.root.key)}/{other.mark}", seen)

    def met(self, mark: str, owner: str) -> list[Met]:
        """The calls that a call met since it opened. Its files were scanned before this."""
        file = self._files.get(mark)
        noted = mark and (file is None or os.fstat(file[0]).st_size > file[1])
        found = _notes(f"{self._folder}/{mark}") if noted else []
        for other in self.others(owner):
            seen = met_by(other.root, other.call)
            if seen is not None and not is_gone(other.call.pid, other.call.born):
                found.append(seen)
        return found

    def close(self, mark: str) -> None:
        """A call is over, and what it met is taken down elsewhere."""
        file = self._files.get(mark)
        try:
            if file is None:
                os.unlink(f"{self._folder}/{mark}")
                return
            fd, length = file
            if os.fstat(fd).st_size > length:
                os.ftruncate(fd, 0)
                self._files[mark] = fd, 0
            else:
                os.pwrite(fd, _IDLE, 0)
            if mark not in self._idle:
                self._idle.append(mark)
        except OSError:
            # It is gone, or its root was registered under another name.
            return

    def beat(self, mark: str) -> None:
        """A call is at work: the time of its file says when that was seen last."""
        file = self._files.get(mark)
        with suppress(OSError):
            if mark:
                os.utime(f"{self._folder}/{mark}" if file is None else file[0])

    def beaten(self, mark: str) -> float:
        """When a call was last seen at work; 0 where that is not known."""
        try:
            return os.stat(f"{self._folder}/{mark}").st_mtime if mark else 0.0
        except OSError:
            return 0.0

    def shut(self) -> None:
        """Let go of the files; those of calls that are open stay."""
        for mark in self._idle:
            with suppress(OSError):
                os.unlink(f"{self._folder}/{mark}")
        self.after_fork()

    def restored(self, owner: OpenCall) -> None:
        """A restore changed the `paths` of `owner`: calls under way elsewhere did not."""
        for other in self.others(owner.owner):
            self._add(other, owner)

    def moved(self, root: Root) -> Meetings:
        """The directory is another one now; this store's calls go on there."""
        new = Meetings(root, self._depot)
        new._files, self._files = self._files, {}
        new._idle, self._idle = self._idle, []
        for mark in _listed(self._folder):
            if mark.endswith(f".{self._depot}"):
                root.machine.make(root.folder)
                with suppress(FileExistsError):
                    os.mkdir(new._folder, 0o700)
                os.rename(f"{self._folder}/{mark}", f"{new._folder}/{mark}")
        return new

    # --- calls of others -----------------------------------------------------------------

    def others(self, owner: str = "") -> Iterator[Other]:
        """The open calls around here, but those of this store in this root, and of `owner`.

        Also those whose process is gone: it is for their store to end them.
        """
        own = Registered(self._root.key, self._root.path)
        suffix = f".{self._depot}"
        for root in (own, *self.related()):
            folder = _calls_at(self._root, root.key)
            for mark in _listed(folder):
                if root is own and mark.endswith(suffix):
                    continue
                call = _read_call(f"{folder}/{mark}")
                if call is not None and call.owner != owner:
                    yield Other(mark, call, root)

    def related(self) -> list[Registered]:
        """The registered roots above and below; asked again when the map has grown."""
        size = self._root.machine.map_size()
        if size != self._seen:
            self._related = self._root.machine.related(self._root.key, self._root.path)
            self._seen = size
        return self._related


def met_by(root: Registered, call: OpenCall) -> Met | None:
    """A call as seen from a root that it meets; None if it stays away from it."""
    if call.paths is None:
        return Met(call.owner, root.below, None)
    paths: list[bytes] = []
    for path in call.paths:
        if root.above:
            if path == root.above or root.above.startswith(path + b"/"):
                return Met(call.owner, b"", None)
            if path.startswith(root.above + b"/"):
                paths.append(path[len(root.above) + 1 :])
        elif root.below:
            paths.append(root.below + b"/" + path)
        else:
            paths.append(path)
    return Met(call.owner, b"", paths) if paths else None


def _back(root: Registered) -> Registered:
    """The same two roots, seen from the other one."""
    return Registered(root.key, root.path, above=root.below, below=root.above)


def open_calls(root: Root) -> list[tuple[str, OpenCall | None]]:
    """Every open call in a root's folder, with its path; None where it cannot be read."""
    folder = _calls_in(root)
    return [(f"{folder}/{mark}", _read_call(f"{folder}/{mark}")) for mark in _listed(folder)]


def _calls_in(root: Root) -> str:
    return f"{root.folder}/calls"


def _calls_at(root: Root, key: str) -> str:
    return f"{root.machine.roots}/{key}/calls"


def _listed(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def _content(path: str) -> bytes | None:
    try:
        with descriptor(path, _READ) as fd:
            return os.read(fd, _LIMIT)
    except OSError:
        return None


def _read_call(path: str) -> OpenCall | None:
    content = _content(path)
    if content is None:
        return None
    try:
        return _decode_call(content.partition(b"\n")[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # Whose it is cannot be known, nor when it is over: `doctor` removes it.
        return None


def _notes(path: str) -> list[Met]:
    """The calls that others say a call met."""
    content = _content(path)
    if content is None:
        return []
    found: list[Met] = []
    for line in content.split(b"\n")[1:]:
        try:
            found += [_decode_met(line)] if line else []
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found.append(UNKNOWN)
    return found if len(content) < _LIMIT else [*found, UNKNOWN]


def _append(path: str, met: Met) -> None:
    try:
        fd = os.open(path, _MORE)
    except FileNotFoundError:
        # It is over just now, after its last look: then this call began after it.
        return
    try:
        status = os.fstat(fd)
        os.write(fd, b"\n" + _encode(met) + b"\n")
        # The time is when the call itself was seen.
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(fd)


def distinct(met: Iterable[Met]) -> list[Met]:
    """Each meeting once."""
    return list({(one.owner, one.under, tuple(one.paths or ()), one.paths is None): one
                 for one in met}.values())  # fmt: skip
