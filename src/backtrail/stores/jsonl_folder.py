"""The folder of one JSONL session: its record, its logs, its locks.

The session exists while `messages.jsonl` does: it is the last file made and, of the logs,
the last removed. A crash leaves a session or a folder that counts as none; a session that was
being removed may have lost side logs.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import BacktrailError, Damaged, InvalidId, NotFound, StoreFailed, Unsafe, Unsupported
from ..events import MAIN_LOG, STORED_FIELDS, Event, Problem, SessionInfo, check_log, encode_data
from ..history import Fold
from .batches import PURGED
from .combining import Combiner, Job, fail
from .files import make_directory, read_file, replace_file, sync_directory, write_all
from .jsonl_reading import MOST, Span, read_forward, whole_lines
from .jsonl_writing import LogWriter, Usual, copy_prefix, last_of
from .lines import Damage, Forward, Line, decode_line, likely_seq, lines_in, purged_line
from .locks import FileLock
from .records import new_record

FORMAT = 1
"""The version of the format on disk, in every `metadata.json`."""

NEWER = "is newer than this version writes"

MAIN_FILE = f"{MAIN_LOG}.jsonl"

Tell = Callable[[str, str, Damage], None]

Marks = dict[int, tuple[str, str] | None]
"""Events by number and, unless any will do, by id and time."""


class Folder:
    """A session's files, open for writing. `lock` guards everything that changes them."""

    def __init__(self, path: Path, tell: Tell) -> None:
        self.path = path
        self.id = path.name
        self.lock = FileLock(path / "lock", f"session `{path.name}`")
        self._tell = tell
        self._writers: dict[str, LogWriter] = {}
        self._together = Combiner(self._append_all)
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
            self._tell(self.id, log, found)

        floor = self._writable().fork_seq or 0 if log == MAIN_LOG else 0
        writer = LogWriter(path, f"log `{log}` of session `{self.id}`", damage, floor)
        self._writers[log] = writer
        return writer

    def append_together(self, log: str, usual: Usual) -> Event | None:
        """Append and sync, together with what other threads append; None if it is gone."""
        return self._together.do((log, usual))

    def _append_all(self, jobs: list[Job[tuple[str, Usual], Event]]) -> None:
        """One write and one sync for each log, for everybody who waits."""
        by_log: dict[str, list[Job[tuple[str, Usual], Event]]] = {}
        for job in jobs:
            by_log.setdefault(job.value[0], []).append(job)
        waiting: list[tuple[LogWriter, int, list[Job[tuple[str, Usual], Event]], list[Event]]] = []
        try:
            self.lock.acquire()
        except FileNotFoundError:
            return
        try:
            for log, mine in by_log.items():
                try:
                    writer = self.writer(log)
                    if writer is not None:
                        events, ticket = writer.append_each([job.value[1] for job in mine])
                        waiting.append((writer, ticket, mine, events))
                except OSError as error:
                    # One log that fails does not stop the others.
                    fail(mine, error)
        finally:
            self.lock.release()
        for writer, ticket, mine, events in waiting:
            try:
                writer.sync.wait(ticket)
            except StoreFailed as error:
                fail(mine, error)
                continue
            for job, event in zip(mine, events, strict=True):
                job.result = event

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
                closing.callback(self.lock.close)
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
        self._writable()
        replace_file(self.path / "metadata.json", encode_record(record))

    def _writable(self) -> SessionInfo:
        """The record, if this version of the library may write to the session."""
        record, problem = read_record(self.path)
        if NEWER in problem:
            raise Unsupported(
                f"cannot write to session `{self.id}`: {problem}; use a newer version"
            )
        return record

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
            # Somebody who waited for the session made its lock file anew. It finds no log.
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
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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
                os.rename(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(source)
        sync_directory(path.parent)
        self._drop(log)

    # --- checking ------------------------------------------------------------------------

    def verify(self) -> Iterator[Problem]:
        """Every damaged place of the session. Under the lock, so a torn tail is damage."""
        _, problem = read_record(self.path)
        if problem:
            yield Problem(self.id, "metadata.json", "damaged record", problem)
        for log in log_names(self.path):
            yield from _verify_log(self.id, log, log_path(self.path, log))


def _unlink(log: Path) -> None:
    with last_of(log):
        os.unlink(log)


def make_session(path: Path, record: SessionInfo, source: Path | None, seq: int) -> None:
    """Make a session's folder, with a copy of `source` up to `seq` for a fork."""
    if path.is_symlink():
        raise Unsafe(f"{path} is a link, not a session: remove it, or take another id")
    make_directory(path)
    clear(path)
    replace_file(path / "metadata.json", encode_record(record))
    temporary = path / f".{MAIN_FILE}.{os.getpid()}.{os.urandom(4).hex()}"
    target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if source is not None and seq:
            origin = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                copy_prefix(origin, target, seq)
            finally:
                os.close(origin)
            os.fsync(target)
    finally:
        os.close(target)
    os.rename(temporary, path / MAIN_FILE)
    sync_directory(path)


def clear(path: Path) -> None:
    """Remove what is in a session's folder, links as links, and nothing above it."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                clear(Path(entry.path))
                os.rmdir(entry.path)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)


def is_session(path: Path) -> bool:
    """Whether `path` is a folder, not a link to one, that has a main log."""
    try:
        return not path.is_symlink() and stat.S_ISREG(os.lstat(path / MAIN_FILE).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def log_path(folder: Path, log: str) -> Path:
    """The file of a log, from its checked name."""
    *parents, name = check_log(log).split("/")
    path = folder.joinpath(*map(_as_folder, parents), f"{name}.jsonl")
    if "/" in log:
        for above in path.relative_to(folder).parents:
            if (folder / above).is_symlink():
                raise Unsafe(
                    f"log `{log}` of session `{folder.name}` lies behind a link: remove it"
                )
    return path


def _as_folder(part: str) -> str:
    """A part of a log's name as a folder that no file of the session can be."""
    taken = part in ("lock", "lease") or part.endswith((".json", ".jsonl"))
    return f"{part}%" if taken else part


def log_names(folder: Path, prefix: str = "") -> list[str]:
    """The logs in a folder, sorted; names that no log can have are left out."""
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner = f"{prefix}{entry.name.removesuffix('%')}/"
                names.extend(log_names(Path(entry.path), inner))
            elif entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False):
                if entry.name != MAIN_FILE and not entry.stat().st_size:
                    # Made for a first event that was refused.
                    continue
                name = prefix + entry.name.removesuffix(".jsonl")
                try:
                    names.append(check_log(name))
                except InvalidId:
                    continue
    return sorted(names)


# --- the record --------------------------------------------------------------------------


def encode_record(record: SessionInfo) -> bytes:
    """`metadata.json` for a record."""
    fields = {name: getattr(record, name) for name in STORED_FIELDS}
    return msgspec.json.format(msgspec.json.encode({"format": FORMAT, **fields}), indent=1) + b"\n"


def read_record(path: Path, scope: str = "") -> tuple[SessionInfo, str]:
    """What is stored of a session, and what is wrong with it.

    Where `metadata.json` cannot be used, the record is taken from the log's last
    `session_start`, and is bare where that has none.
    """
    try:
        return _checked(msgspec.json.decode(read_file(path / "metadata.json")), path.name), ""
    except FileNotFoundError:
        problem = "metadata.json is missing"
    except (msgspec.MsgspecError, BacktrailError, RecursionError, UnicodeDecodeError) as error:
        problem = f"metadata.json is damaged: {error}"
    found: object = None
    for event in read_forward(path / MAIN_FILE, Span(kinds=("session_start",)), None):
        found = event.data.get("info")
    try:
        return _checked(found, path.name), problem
    except BacktrailError:
        return new_record(SessionInfo(path.name), scope), problem


def _checked(value: object, id: str) -> SessionInfo:
    """A record out of stored data; nothing in it is trusted."""
    if not isinstance(value, dict):
        raise Damaged("not an object")
    version = value.get("format", FORMAT)
    if not isinstance(version, int):
        raise Damaged(f"format {version!r} is not a number")
    if version > FORMAT:
        raise Damaged(f"format {version} {NEWER} ({FORMAT})")
    fields = {name: value[name] for name in STORED_FIELDS if name in value}
    try:
        record = msgspec.convert(fields, SessionInfo)
    except msgspec.ValidationError as error:
        raise Damaged(str(error)) from error
    if record.id != id:
        raise Damaged(f"it names session `{record.id}`, the folder is `{id}`")
    return new_record(record, record.scope)


@dataclass(frozen=True, slots=True)
class FoldCache:
    """A fold of the main log, and how far into which file it goes. Safe to lose."""

    inode: int
    size: int
    fold: Fold

    def fits(self, status: os.stat_result) -> bool:
        """Whether the file only grew since."""
        return self.inode == status.st_ino and self.size <= status.st_size

    @staticmethod
    def load(path: Path) -> FoldCache | None:
        """The cache of a session, if there is one."""
        try:
            return msgspec.json.decode(read_file(path / "fold.json"), type=FoldCache)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def save(self, path: Path, before: FoldCache) -> None:
        """Keep the cache if making it took reading much; failing to is no loss."""
        if self.size - before.size < MOST // 4:
            return
        temporary = path / f".fold.json.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, msgspec.json.encode(self))
            finally:
                os.close(fd)
            os.rename(temporary, path / "fold.json")
        except OSError:
            return


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
                yield purged_line(line, event, tombstone)
            else:
                yield text + b"\n"
        elif line is not None or likely_seq(text) not in seqs:
            yield text + b"\n"
        else:
            yield b"\n"


def _verify_log(session_id: str, log: str, path: Path) -> Iterator[Problem]:
    damages: list[Damage] = []
    sorter = Forward(damages.append)
    ids: set[str] = set()
    last = end = 0
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        at = 0
        while True:
            data = whole_lines(fd, at, MOST)
            if not data:
                break
            for line in sorter.take(lines_in(data, at, decode_line, damages.append)):
                yield from _verify_line(session_id, log, line, last, ids, line.offset == end)
                last, end = line.seq, line.offset + line.length
            at += len(data)
        tail = os.fstat(fd).st_size - at
        sorter.drop()
        if tail:
            damages.append(Damage(at, tail, "torn line"))
    finally:
        os.close(fd)
    for damage in damages:
        yield problem_of(session_id, log, damage)


def _verify_line(
    session_id: str, log: str, line: Line, last: int, ids: set[str], adjacent: bool
) -> Iterator[Problem]:
    if line.uuid in ids:
        yield Problem(session_id, log, "duplicate", f"id `{line.uuid}` is used twice")
    ids.add(line.uuid)
    # A gap around a damaged place is that damage, and told as such.
    if line.seq > last + 1 and adjacent:
        count = line.seq - last - 1
        seqs = tuple(range(last + 1, min(line.seq, last + 1001)))
        detail = f"events {last + 1} to {line.seq - 1} are missing"
        yield Problem(session_id, log, "gap", detail, offset=line.offset, count=count, seqs=seqs)


def problem_of(session_id: str, log: str, damage: Damage) -> Problem:
    """A damaged place as it is told."""
    return Problem(
        session_id,
        log,
        damage.what,
        f"{damage.what} at byte {damage.offset}, {damage.length} bytes",
        offset=damage.offset,
        length=damage.length,
        count=damage.lines,
        seqs=damage.seqs,
    )
