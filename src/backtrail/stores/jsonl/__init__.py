"""Sessions as plain files: one folder a session, one line an event.

    DIR/sessions/<id>/metadata.json    what cannot be folded from the log
    DIR/sessions/<id>/messages.jsonl   the main log; the session exists while this does
    DIR/sessions/<id>/….jsonl          side logs
    DIR/sessions/<id>/lock, lease      flock
    DIR/sessions/<id>/fold.json        a cache of counts, safe to delete
    DIR/memory/                        project notes
    DIR/scopes/<scope>/                the same again for each scope that is not ""

`docs/format.md` is the normative text. `lines.py` is the format of a line, `course.py` which of
its numbers belong together, `file.py` a log's pages; `reading.py` and `writing.py` are its two
ends. `folder.py` is a session's folder (`layout.py`, `metadata.py`), `opened.py` has those that are
open and appends to them, `infos.py` knows the records and counts of all.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar, Unpack

from ...errors import (
    AlreadyExists,
    BacktrailError,
    Closed,
    InvalidId,
    NotFound,
    SessionBusy,
    StoreFailed,
)
from ...events import (
    MAIN_LOG,
    Event,
    Json,
    NewEvent,
    Problem,
    SessionInfo,
    check_log,
    check_session_id,
)
from ...events.history import Mark, walk_pages
from ...events.messages import Page
from .. import due
from ..adopting import Logs
from ..base import KnownIds, Lease, Store
from ..batches import Call, Outcome, drafts, observed, observed_each
from ..disk import forks, fs
from ..disk.identity import file_identity, make_identity
from ..disk.locks import FileLock, file_lease
from ..notes import FileMemory, Memory
from ..opening import Options
from ..records import Filters, Range, changed_record, new_record, resolved, select
from .folder import Marks, adopt_session, make_session
from .infos import Infos
from .layout import MAIN_FILE, is_session, log_names, log_path, scope_folder
from .lines import Damage, OnLineDamage
from .metadata import is_known_format
from .opened import Appender, OpenFolders
from .reading import (
    Span,
    as_far_as,
    marks_of,
    pages_backward,
    problem_of,
    read_backward,
    read_forward,
    tally_of,
)

T = TypeVar("T")


def open_jsonl(address: str, options: Options) -> JSONLStore:
    """`file:DIR`, `file:///ABSOLUTE/DIR`."""
    if address.startswith("///"):
        address = address[2:]
    if not address:
        raise InvalidId("`file:` needs a folder: file:DIR")
    options.check(os.path.expanduser(address))
    return JSONLStore(address, options)


class JSONLStore(Store):
    """A folder of sessions, each a folder of JSONL logs."""

    groups = True

    def __init__(self, root: str | os.PathLike[str], options: Options | None = None) -> None:
        options = options or Options()
        self.scope = options.scope
        self.root = Path(os.path.abspath(os.path.expanduser(root)))
        self.url = f"file:{self.root}"
        self.places = (self.root,)
        self._top = self.root / "scopes" / scope_folder(self.scope) if self.scope else self.root
        self._sessions = self._top / "sessions"
        self._place = str(self._sessions)
        self.durability = options.durability
        self._synced = options.durability == "synced"
        self._on_damage = options.on_damage
        self._reported: set[tuple[str, str, int, str]] = set()
        self._known: set[str] = set()
        self._closed = False
        self._infos = Infos(self, self._sessions, self._report)
        self._open = OpenFolders(self._path, self._report)
        self._appender = Appender(self._open, self._failed, synced=self._synced)
        self._names = self._lock()
        with self._failing(f"open the store in {self.root}"):
            if self.scope:
                fs.refuse_links(self.root / "scopes", self._top)
            is_there = fs.has_folder(self._place)
            if not is_there:
                fs.make_store_folder(self.root)
            # A scan that comes by knows the folder for a store's before anything is in it.
            fs.mark(self.root)
            if not is_there:
                if not self.scope:
                    make_identity(self.root)
                fs.make_directory(self._sessions)
            fs.refuse_network(self._place)
        forks.register(self)

    @property
    def id(self) -> str:
        return self._identity[0]

    @property
    def former_name(self) -> str:
        return self._identity[1]

    @cached_property
    def _identity(self) -> tuple[str, str]:
        """The id in the folder, and the URL that was its name before; empty where read-only."""
        with self._failing(f"read the id of the store in {self.root}"):
            return file_identity(self.root, self.url)

    @cached_property
    def contents(self) -> Path | None:  # type: ignore[override]
        """The folder for contents of files. The path is made when asked for."""
        return self.root / "blobs"

    def after_fork(self) -> None:
        """Forget the parent's open files; they are opened again when needed."""
        self._names = self._lock()
        self._infos.after_fork()
        self._open.abandon()

    def _lock(self) -> FileLock:
        return FileLock(f"{self._top}/lock", f"the store in {self.root}")

    # --- folders -------------------------------------------------------------------------

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        try:
            yield
        except BacktrailError:
            raise
        except OSError as error:
            raise self._failed(error, doing) from error

    @contextmanager
    def _reading(self, session_id: str) -> Iterator[None]:
        """Around a look at a session's files: `NotFound` if it is deleted meanwhile."""
        doing = f"read session `{session_id}`"
        try:
            with self._failing(doing):
                yield
        except StoreFailed as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                self._path(session_id)
            raise

    def _failed(self, error: OSError, doing: str) -> StoreFailed:
        if error.errno == errno.EMFILE:
            # The next try finds some free.
            self._open.close_unused()
        return fs.failed(error, doing)

    def _path(self, session_id: str) -> Path:
        """The folder of a session that exists."""
        return Path(self._name(session_id))

    def _name(self, session_id: str) -> str:
        """The same as text: to join paths takes longer than to ask for what is there."""
        self.check_open()
        name = f"{self._place}/{check_session_id(session_id)}"
        try:
            if is_session(name):
                return name
        except OSError as error:
            raise self._failed(error, f"read session `{session_id}`") from error
        raise NotFound(f"no session `{session_id}` in {self.root}")

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self._closed:
            raise Closed(f"the store in {self.root} is closed")

    def _report(self, session_id: str, log: str, damage: Damage) -> None:
        if self._on_damage is None:
            return
        # A torn batch is met as a whole or line by line, depending on where pages begin.
        places = damage.seqs if damage.what == "torn batch" else (damage.offset,)
        names = {(session_id, log, place, damage.what) for place in places}
        if not names <= self._reported:
            self._reported |= names
            self._on_damage(problem_of(session_id, log, damage))

    # --- sessions ------------------------------------------------------------------------

    def create(self, info: SessionInfo, *, base: tuple[str, int] | None = None) -> None:
        record = new_record(info, self.scope, base)
        with self._making(record) as path:
            source = None
            if base is not None:
                source = self._path(base[0]) / MAIN_FILE
                if not 0 <= base[1] <= self._head(base[0]):
                    raise NotFound(f"no event {base[1]} in session `{base[0]}`")
            make_session(path, record, source, base[1] if base else 0)

    def adopt(self, info: SessionInfo, logs: Logs) -> None:
        record = new_record(info, self.scope)
        with self._making(record) as path:
            adopt_session(path, record, logs)

    @contextmanager
    def _making(self, record: SessionInfo) -> Iterator[Path]:
        """Where to make a session with an id and key that are free, and stay so meanwhile."""
        self.check_open()
        path = self._sessions / record.id
        with self._failing(f"create session `{record.id}`"), self._names.held():
            if is_session(path):
                raise AlreadyExists(f"session `{record.id}` exists: `Session.open` resumes it")
            self._infos.check_key(record)
            yield path
            fs.sync_directory(self._sessions)

    def _readable(self, session_id: str, log: str) -> str | Path:
        """A log's file, of a session in a format that we know; that is looked at once."""
        name = self._name(session_id)
        if session_id not in self._known:
            if not is_known_format(name):
                # A record that cannot be read must not hide the events.
                with suppress(OSError):
                    self._infos.record(session_id)
            self._known.add(session_id)
        return f"{name}/{MAIN_FILE}" if log == MAIN_LOG else log_path(Path(name), log)

    def _head(self, session_id: str) -> int:
        newest = next(self.read(session_id, reverse=True, limit=1), None)
        return newest.seq if newest else 0

    def info(self, session_id: str) -> SessionInfo:
        with self._reading(session_id):
            self._path(session_id)
            return self._infos.counted(session_id)

    def record(self, session_id: str) -> SessionInfo:
        with self._reading(session_id):
            self._path(session_id)
            return self._infos.record(session_id)

    def update(
        self, session_id: str, *, expected: int | None = None, **changes: Json
    ) -> SessionInfo:
        with self._failing(f"update session `{session_id}`"), self._names.held():
            with self._open.locked(session_id) as folder:
                folder.check_head(MAIN_LOG, expected)
                record = changed_record(self._infos.record(session_id), changes)
                if "key" in changes:
                    self._infos.check_key(record)
                self._infos.forget(session_id)
                folder.write_record(record)
            return self.info(session_id)

    def sessions(self, **filters: Unpack[Filters]) -> list[SessionInfo]:
        self.check_open()
        with self._failing(f"list the sessions in {self.root}"):
            infos, index = self._infos.listed(**filters)
        if index.is_worth_it:
            # Without the lock, if that is not to be had, it is left to the next list.
            with suppress(SessionBusy, OSError):
                self._names.acquire(0)
                try:
                    index.save()
                finally:
                    self._names.release()
        return select(infos, **filters)

    def delete(
        self, session_id: str, *, log: str | None = None, expected: int | None = None
    ) -> None:
        with self._failing(f"delete session `{session_id}`"), self._names.held():
            with self._open.locked(session_id) as folder:
                folder.check_head(log or MAIN_LOG, expected)
                if log is None:
                    folder.remove()
                elif check_log(log) == MAIN_LOG:
                    raise InvalidId("the main log goes only with its session")
                else:
                    folder.remove_log(log)
            if log is None:
                self._infos.forget(session_id)
                fs.sync_directory(self._sessions)
                self._infos.recount(session_id)
                due.note(self, due.name_of(self), due.GRACE)

    # --- events --------------------------------------------------------------------------

    @observed
    def append(
        self,
        session_id: str,
        events: Sequence[NewEvent],
        *,
        log: str = MAIN_LOG,
        expected: int | None = None,
        known: KnownIds = "follow",
    ) -> list[Event]:
        batch = drafts(events)
        if expected is None and len(batch) == 1 and not self._synced:
            # What nearly every append is.
            found = self._appender.append_usual(session_id, log, batch[0])
            if found is not None:
                return [found[0]]
        if type(session_id) is not str or type(log) is not str or not batch:
            check_log(log)
            self._path(session_id)
            return []
        call = Call(session_id, batch, log, expected, True, time.monotonic(), known)
        if self._synced and (
            self._appender.is_busy(session_id, log) or self._is_queued(session_id)
        ):
            return self.queue.do(call) or []
        [outcome] = self._appender.append_each([call])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    @observed_each
    def append_each(self, calls: Sequence[Call]) -> list[Outcome]:
        return self._appender.append_each(calls)

    @observed_each
    def _append_queued(self, calls: Sequence[Call]) -> list[Outcome]:
        return self._appender.append_each(calls, patient=False)

    def read(
        self, session_id: str, *, log: str = MAIN_LOG, **events: Unpack[Range]
    ) -> Iterator[Event]:
        path = self._readable(session_id, log)
        reading = read_backward if events.get("reverse") else read_forward
        until, limit, kinds = events.get("until"), events.get("limit"), events.get("kinds")
        span = Span(events.get("after", 0), until, limit, kinds)
        return self._guarded(session_id, reading(path, span, self._reporter(session_id, log)))

    def pages(
        self, session_id: str, *, until: int | None = None, log: str = MAIN_LOG
    ) -> Iterator[Page]:
        path = self._readable(session_id, log)
        report = self._reporter(session_id, log)

        pages = partial(pages_backward, path, damage=report)
        return walk_pages(lambda bound: self._guarded(session_id, pages(bound)), until)

    def outline(
        self, session_id: str, *, kinds: Collection[str] = (), after: int = 0,
        until: int | None = None,
    ) -> list[Mark]:  # fmt: skip
        return marks_of(self._pages_within(session_id, after, until), kinds, after)

    def tally(self, session_id: str, *, after: int = 0, until: int | None = None) -> dict[str, int]:
        return tally_of(self._pages_within(session_id, after, until), after)

    def _pages_within(self, session_id: str, after: int, until: int | None) -> Iterator[Page]:
        path = self._readable(session_id, MAIN_LOG)
        pages = pages_backward(path, until, self._reporter(session_id, MAIN_LOG))
        return as_far_as(self._guarded(session_id, pages), after)

    def _reporter(self, session_id: str, log: str) -> OnLineDamage | None:
        if self._on_damage is None:
            return None
        return lambda damage: self._report(session_id, log, damage)

    def _guarded(self, session_id: str, found: Iterator[T]) -> Iterator[T]:
        try:
            yield from found
        except FileNotFoundError:
            # A side log that was never written is empty; a session that went away is not.
            self._path(session_id)
        except OSError as error:
            raise self._failed(error, f"read session `{session_id}`") from error

    def purge(self, session_id: str, seqs: Collection[int], *, log: str = MAIN_LOG) -> None:
        wanted = set(seqs)
        with self._failing(f"purge session `{session_id}`"), self._names.held():
            self._path(session_id)
            marks: Marks = dict.fromkeys(wanted)
            with self._open.locked(session_id) as folder:
                if check_log(log) == MAIN_LOG:
                    found = (e for e in self.read(session_id) if e.seq in wanted)
                    shared = {event.seq: (event.id, event.ts) for event in found}
                folder.purge(log, marks)
            self._infos.recount(session_id)
            if log == MAIN_LOG:
                for id in self._infos.family(session_id):
                    with self._open.locked(id) as folder:
                        folder.purge(log, dict(shared))
                    self._infos.recount(id)

    def log_file(self, session_id: str) -> Path | None:
        return self._path(session_id) / MAIN_FILE

    def logs(self, session_id: str) -> list[str]:
        with self._reading(session_id):
            return log_names(self._name(session_id))

    def lease(self, session_id: str, *, wait: float = 0) -> AbstractContextManager[Lease]:
        return file_lease(self._path(session_id) / "lease", session_id, wait)

    def memory(self, cwd: str | os.PathLike[str]) -> Memory:
        return FileMemory(self.check_open, self._top / "memory", resolved(cwd))

    def verify(self) -> list[Problem]:
        """Read every line of every log under its lock; report each place that is damaged."""
        self.check_open()
        with self._failing(f"verify the store in {self.root}"):
            return list(self._open.verify(self._sessions))

    def flush(self) -> None:
        self.check_open()
        if self.relies_on is not None:
            self.relies_on()
        self._open.flush()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with self._failing(f"close the store in {self.root}"):
            try:
                self._open.close()
            finally:
                self._names.shut()
