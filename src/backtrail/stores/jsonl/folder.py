"""The folder of one JSONL session: its record, its logs, its locks.

The session exists while `messages.jsonl` does: it is the last file made and, of the logs,
the last removed. A crash leaves a session or a folder that counts as none; a session that was
being removed may have lost side logs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from ...errors import NotFound, Unsafe, Unsupported
from ...events import MAIN_LOG, Event, NewEvent, Problem, SessionInfo, encode_data
from ..adopting import Logs, whole, with_main
from ..batches import PURGED, check_head
from ..disk.fs import (
    make_directory,
    open_file,
    replace_file,
    sync_directory,
    temporary,
    write_all,
)
from ..disk.locks import FileLock
from .file import MOST, whole_lines
from .layout import MAIN_FILE, clear, is_session, log_names, log_path
from .lines import Damage, Line, decode_line, encode_line, likely_seq
from .metadata import ancestors_of, encode_record, read_record
from .reading import verify_log
from .writing import LogWriter, copy_prefix, last_of

Report = Callable[[str, str, Damage], None]

Marks = dict[int, tuple[str, str] | None]
"""Events by number and, unless any will do, by id and time."""


class Folder:
    """A session's files, open for writing. `lock` guards everything that changes them."""

    def __init__(self, path: Path, report: Report) -> None:
        self.path = path
        self.id = path.name
        self.lock = FileLock(path / "lock", f"session `{path.name}`")
        self._report = report
        self._writers: dict[str, LogWriter] = {}
        self._closed = False

    def current(self) -> bool:
        """Whether this is still the session at its path. Called under the lock."""
        return not self._closed and os.fstat(self.lock.fd).st_nlink > 0 and is_session(self.path)

    # --- logs ----------------------------------------------------------------------------

    def writer(self, log: str) -> LogWriter | None:
        """The end of a log, up to date; None if the session is gone. Under the lock."""
        writer = self._writers.get(log)
        if writer is not None:
            if writer.current():
                return writer
            self._drop(log)
        if not self.current():
            return None
        path = log_path(self.path, log)
        if not path.exists():
            make_directory(path.parent)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            sync_directory(path.parent)

        def damage(found: Damage) -> None:
            self._report(self.id, log, found)

        record, _ = read_record(self.path)
        floor = record.fork_seq or 0 if log == MAIN_LOG else 0
        name = f"log `{log}` of session `{self.id}`"
        return LogWriter(path, name, damage, floor, among=self._writers, log=log)

    def check_head(self, log: str, expected: int | None) -> None:
        """Raise `Conflict` if a log has not the head that is expected. Under the lock."""
        if expected is not None:
            there = log == MAIN_LOG or log in log_names(self.path)
            writer = self.writer(log) if there else None
            check_head(expected, writer.head if writer is not None else 0)

    def open_writer(self, log: str) -> LogWriter | None:
        """The end of a log that was written to before, if any."""
        return self._writers.get(log)

    def _drop(self, log: str) -> None:
        writer = self._writers.pop(log, None)
        if writer is not None:
            writer.close()

    @property
    def dirty(self) -> bool:
        """Whether something written is not known to be on the disk."""
        return any(writer.sync.dirty for writer in list(self._writers.values()))

    def flush(self) -> None:
        """Return when what was written to the logs is on the disk."""
        for writer in list(self._writers.values()):
            writer.sync.flush()

    def close(self, *, wait: bool = True) -> bool:
        """Let go of the files; False if they are in use and `wait` is false.

        A log whose sync failed stays open, so that it goes on refusing.
        """
        if not self.lock.enter(wait):
            return False
        try:
            if not wait:
                settled = [writer.sync.settle() for writer in self._writers.values()]
                if not all(settled):
                    return False
            self._closed = True
            with ExitStack() as closing:
                closing.callback(self.lock.drop)
                for log in self._writers:
                    closing.callback(self._drop, log)
        finally:
            self.lock.leave()
        return True

    def abandon(self) -> None:
        """In a forked child: close the copies of the parent's descriptors, and no more."""
        for writer in self._writers.values():
            os.close(writer.fd)
        self._writers.clear()
        self._closed = True

    # --- changes, all under the lock -----------------------------------------------------

    def write_record(self, record: SessionInfo) -> None:
        """Replace `metadata.json`."""
        read_record(self.path)
        content = encode_record(record, ancestors_of(self.path))
        replace_file(self.path / "metadata.json", content)

    def remove(self) -> None:
        """Remove the session; once the main log is gone it does not exist."""
        for log in list(self._writers):
            self._drop(log)
        main = self.path / MAIN_FILE
        for log in log_names(self.path):
            if log != MAIN_LOG:
                _unlink(log_path(self.path, log))
        _unlink(main)
        sync_directory(self.path)
        self._closed = True
        clear(self.path)
        try:
            os.rmdir(self.path)
        except OSError as error:
            # A writer that waited for the session made its lock file anew. It finds no log.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def remove_log(self, log: str) -> None:
        """Remove a side log."""
        path = log_path(self.path, log)
        if log not in log_names(self.path):
            raise NotFound(f"no log `{log}` in session `{self.id}`")
        self._drop(log)
        _unlink(path)
        sync_directory(path.parent)

    def purge(self, log: str, seqs: Marks) -> None:
        """Write the log anew without the bodies of these events."""
        path = log_path(self.path, log)
        if not path.exists():
            return
        beside = temporary(path)
        source = open_file(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            target = open_file(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
            try:
                at = 0
                while data := whole_lines(source, at, MOST):
                    write_all(target, b"".join(_without_bodies(data, at, seqs)))
                    at += len(data)
                tail = os.pread(source, os.fstat(source).st_size - at, at)
                if tail:
                    # A torn line stays, sealed: its number must not be used again.
                    write_all(target, b"".join(_without_bodies(tail + b"\n", at, seqs)))
                os.fsync(target)
            finally:
                os.close(target)
            with last_of(path):
                os.rename(beside, path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        finally:
            os.close(source)
        sync_directory(path.parent)
        self._drop(log)

    # --- checking ------------------------------------------------------------------------

    def verify(self, *, locked: bool = True) -> Iterator[Problem]:
        """Every damaged place of the session. Under the lock a torn tail is damage too."""
        try:
            _, problem = read_record(self.path)
        except Unsupported as error:
            yield Problem(self.id, "metadata.json", "newer format", str(error))
            return
        if problem:
            yield Problem(self.id, "metadata.json", "damaged record", problem)
        for log in log_names(self.path):
            yield from verify_log(self.id, log, log_path(self.path, log), locked=locked)


def _unlink(log: Path) -> None:
    with last_of(log):
        os.unlink(log)


def make_folder(path: Path) -> None:
    """An empty folder for a session; what a crash left there goes."""
    if path.is_symlink():
        raise Unsafe(f"{path} is a link, not a session: remove it, or take another id")
    if not path.exists():
        # Its name is synced by the caller, once all is there.
        os.mkdir(path, 0o700)
    clear(path)


def make_session(path: Path, record: SessionInfo, source: Path | None, seq: int) -> None:
    """Make a session's folder, with a copy of `source` up to `seq` for a fork.

    All is written before anything is synced: one commit of the file system takes it in, and
    the disk works while the rest is copied.
    """
    make_folder(path)
    ancestors = [] if source is None else [source.parent.name, *ancestors_of(source.parent)]
    ready = temporary(path / MAIN_FILE)
    with ExitStack() as opened:

        def made(name: Path) -> int:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, fd)
            return fd

        # Not replaced as a whole: while there is no main log, it is not read.
        about, target = made(path / "metadata.json"), made(ready)
        write_all(about, encode_record(record, ancestors))
        written = [about]
        if source is not None and seq:
            origin = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            opened.callback(os.close, origin)
            copy_prefix(origin, target, seq)
            written.append(target)
        for fd in written:
            os.fsync(fd)
    sync_directory(path)
    os.rename(ready, path / MAIN_FILE)
    sync_directory(path)


# --- lines -------------------------------------------------------------------------------


def _without_bodies(data: bytes, offset: int, seqs: Marks) -> Iterator[bytes]:
    """The lines of a page, those of `seqs` as tombstones, damaged ones of `seqs` left out."""
    tombstone = encode_data(PURGED)
    for text in data.split(b"\n")[:-1]:
        line = decode_line(text, offset)
        event = line.event if line is not None else None
        if line is not None and event is not None and line.seq in seqs:
            mark = seqs[line.seq]
            if mark is None or mark == (event.id, event.ts):
                yield _purged_line(line, event, tombstone)
            else:
                yield text + b"\n"
        elif line is not None or likely_seq(text) not in seqs:
            yield text + b"\n"
        else:
            yield b"\n"


# --- sessions from elsewhere -------------------------------------------------------------


_BUFFER = 1 << 20


def adopt_session(path: Path, record: SessionInfo, logs: Logs) -> None:
    """Make a session's folder with its logs; what a crash leaves of it is no session."""
    make_folder(path)
    try:
        replace_file(path / "metadata.json", encode_record(record, []))
        ready = temporary(path / MAIN_FILE)
        for log, events in with_main(logs).items():
            target = ready if log == MAIN_LOG else log_path(path, log)
            make_directory(target.parent)
            _write(target, events)
            if log != MAIN_LOG:
                sync_directory(target.parent)
        os.rename(ready, path / MAIN_FILE)
        sync_directory(path)
    except BaseException:
        clear(path)
        os.rmdir(path)
        raise


def _write(target: Path, events: Iterable[NewEvent]) -> None:
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb", _BUFFER) as file:
        for event, body in whole(events):
            file.write(encode_line(event, body))
        file.flush()
        os.fsync(file.fileno())


def _purged_line(line: Line, event: Event, body: bytes) -> bytes:
    """A line with another body in the same place of its batch."""
    batch = f',"batch":[{line.place},{line.size}]' if line.size > 1 else ""
    return encode_line(event, body, batch)
