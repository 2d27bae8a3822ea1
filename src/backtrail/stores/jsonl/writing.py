"""How a JSONL log is written, and copied for a fork.

A writer holds the session's lock. Only then is an unterminated tail known to be damage;
it is sealed with a newline before anything else is written. Nothing is ever cut off but
the part of a write of one's own that failed half way.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from zlib import crc32

import msgspec

from ...errors import BacktrailError, InvalidData, StoreFailed
from ...events import Event, make_event
from ..base import KnownIds
from ..batches import Call, Draft, Outcome, settle
from ..disk.fs import failed, open_file, write_all
from ..disk.locks import FileLock
from ..disk.sync import SyncFile, begin_writing
from .file import FIRST, MOST, locate_after, page_before, whole_lines
from .lines import (
    MAX_BATCH,
    PLAUSIBLE,
    Damage,
    Forward,
    Line,
    OnLineDamage,
    decode_header,
    decode_line,
    encode_batch,
    encode_line,
    likely_seq,
    lines_in,
)
from .reading import counted, course_of

# What is copied was read: it need not be checked again, nor refused.
_encode = msgspec.json.Encoder().encode

LOOK_AGAIN = 0.01
"""Seconds within which a log that was removed by hand is noticed."""


class LogWriter:
    """The open end of one log. Every method is called under the session's lock."""

    def __init__(
        self,
        path: Path,
        name: str,
        damage: OnLineDamage,
        floor: int = 0,
        *,
        among: dict[str, LogWriter],
        log: str,
    ) -> None:
        """Open a log, and stand `among` the others that are open, as `log`."""
        self.path = path
        self.head = 0
        self.last = floor
        # A hint: one caller writes and waits for the disk, and those that come meanwhile queue.
        self.busy = False
        self._name = name
        self._damage = damage
        self._looked = 0.0
        self._size = self._begun = 0
        self._ids: dict[str, int] | None = None
        self.fd = open_file(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # Deleting and purging, by any process, take the file away; `current` looks for that.
            self.sync = SyncFile(name, self.fd, lasting=False)
            self._find_end(os.fstat(self.fd).st_size)
            self._begun = self._size
            # Here and not by the caller: an interrupt may come in between.
            among[log] = self
        except BaseException:
            os.close(self.fd)
            raise

    def _find_end(self, size: int) -> None:
        """Learn the head and the last number used from the tail of the file."""
        window = FIRST
        while True:
            start = max(0, size - window)
            data = os.pread(self.fd, size - start, start)
            if start == 0:
                break
            cut = data.find(b"\n") + 1
            # Two events, since one may be a stray copy of an older line, and enough bytes that
            # no line in front can be believed instead (`course.ANCHOR`).
            if cut and len(data) - cut >= FIRST // 2 and _has_events(data[cut:], 2):
                start, data = start + cut, data[cut:]
                break
            window *= 4
        self._learn(data, start)

    def _learn(self, data: bytes, offset: int) -> None:
        """Take in bytes at the end of the log, written by others or before us."""
        size = offset + len(data)
        if data and not data.endswith(b"\n"):
            # The writer of this is gone: we hold the lock. Sealed, it costs one line at most.
            # Where sealing fails nothing is learnt, so that the next try begins here again.
            os.write(self.fd, b"\n")
            size += 1
        self._size = size
        bad: list[Damage] = []
        high = self.head or (_before_plain(data) if offset else 0)
        sorter = Forward(self._damage, high, course_of(self.fd))
        behind = -1
        good = lines_in(data, offset, decode_line, bad.append)
        for line in sorter.take(good):
            self.head = line.seq
            self.last = max(self.last, line.last)
            if self._ids is not None:
                self._ids[line.uuid] = line.offset
            behind = line.offset
        if sorter.held:
            self.last = max(self.last, sorter.held[-1].last)
            sorter.drop()
        for damage in bad:
            self._damage(damage)
        # A number that a damaged line at the end may have carried is not used again.
        top = self.last + PLAUSIBLE
        for damage in bad:
            if damage.offset > behind:
                self.last = max([self.last + 1, *(seq for seq in damage.seqs if seq <= top)])

    def current(self) -> bool:
        """Whether the file is still the log; reads what others wrote meanwhile."""
        status = os.fstat(self.fd)
        if status.st_nlink == 0:
            return False
        self._looked = time.monotonic()
        if status.st_size > self._size:
            behind = self._size
            self._learn(os.pread(self.fd, status.st_size - behind, behind), behind)
        return True

    def append(
        self, batch: list[Draft], expected: int | None, known: KnownIds = "follow"
    ) -> tuple[list[Event], int]:
        """Write a batch; the events as stored, and the ticket of the write (0: none)."""
        self.sync.check()
        result, fresh = settle(batch, self.head, self._find, expected, self.last, known)
        if not fresh:
            return result, 0
        if len(fresh) > MAX_BATCH:
            raise InvalidData(f"a batch of {len(fresh)} events: append at most {MAX_BATCH} at once")
        data = encode_line(*fresh[0]) if len(fresh) == 1 else encode_batch(fresh)
        return result, self._write(data, fresh[-1][0].seq)

    def append_usual(self, lock: FileLock, draft: Draft) -> Event | None:
        """Append one event with nothing special about it; None if the log is not as we left it.

        Every append comes through here.
        """
        if not lock.try_acquire():
            return None
        try:
            if self.sync.failure is not None or not self.unchanged():
                return None
            [event], _ = self._append_usual([draft])
            return event
        finally:
            lock.release()

    def append_each(self, calls: Sequence[Call]) -> tuple[list[Outcome], int]:
        """Write what several callers append; the outcome of each, and the ticket of the last."""
        outcomes: list[Outcome] = []
        ticket = 0
        if len(calls) > 1 and all(call.usual for call in calls):
            try:
                self.sync.check()
                stored, ticket = self._append_usual([call.batch[0] for call in calls])
                return [[event] for event in stored], ticket
            except StoreFailed:
                # Perhaps there is room for some of them.
                pass
        for call in calls:
            try:
                events, wrote = self.append(call.batch, call.expected, call.known)
                outcomes.append(events)
                ticket = wrote or ticket
            except (BacktrailError, OSError) as error:
                outcomes.append(error)
        return outcomes, ticket

    def _append_usual(self, batch: Sequence[Draft]) -> tuple[list[Event], int]:
        """Events, each for itself, by one call; they, and the ticket of the write."""
        stored: list[Event] = []
        lines: list[bytes] = []
        for seq, (id, _, ts, kind, _, data, body) in enumerate(batch, self.last + 1):
            stored.append(make_event(seq, id, ts, kind, data, None))
            lines.append(_usual_line(seq, id, ts, kind, body))
        return stored, self._write(b"".join(lines), self.last + len(batch))

    def begin_sync(self) -> None:
        """Let the disk begin with what is new, so that others can be synced meanwhile."""
        begin_writing(self.fd, self._begun, self._size - self._begun)
        self._begun = self._size

    def unchanged(self) -> bool:
        """Whether the log is as we left it.

        A process of ours that replaces or removes a log changes its length, so the length is
        compared; what people do by hand is looked for now and then, since that takes five times
        as long.
        """
        return (
            self.fd >= 0
            and os.lseek(self.fd, 0, os.SEEK_END) == self._size
            and time.monotonic() - self._looked <= LOOK_AGAIN
        )

    def _write(self, data: bytes, last: int) -> int:
        try:
            written = os.write(self.fd, data)
            while written < len(data):
                written += os.write(self.fd, data[written:])
        except OSError as error:
            self._take_back()
            raise failed(error, f"append to {self._name}") from error
        if self._ids is not None:
            self._remember(data)
        self._size += len(data)
        self.head = self.last = last
        return self.sync.note()

    def _take_back(self) -> None:
        """Remove what a failed write left; if even that fails, the next write seals it."""
        try:
            os.ftruncate(self.fd, self._size)
        except OSError:
            pass

    def _remember(self, data: bytes) -> None:
        assert self._ids is not None
        for line in lines_in(data, self._size, decode_header, None):
            self._ids[line.uuid] = line.offset

    def _find(self, id: str) -> Event | None:
        """The event with this id. The ids are read when first asked for."""
        if self._ids is None:
            ids: dict[str, int] = {}
            sorter = Forward(None, 0, course_of(self.fd))
            at = 0
            while data := whole_lines(self.fd, at, MOST):
                for found in sorter.take(lines_in(data, at, decode_header, None)):
                    ids[found.uuid] = found.offset
                at += len(data)
            self._ids = ids
        offset = self._ids.get(id)
        if offset is None:
            return None
        text = whole_lines(self.fd, offset, FIRST)
        line = decode_line(text[: text.index(b"\n")], offset)
        if line is not None:
            return line.event
        # A forged line took the place of the id: which line counts is found line by line.
        for at, size, _ in counted(self.fd, None):
            line = decode_line(os.pread(self.fd, size - 1, at), at)
            if line is not None and line.uuid == id:
                return line.event
        return None

    def close(self) -> None:
        """Sync what is left and let go of the file."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            try:
                self.sync.retire()
            finally:
                os.close(fd)


def _usual_line(seq: int, id: str, ts: str, kind: str, body: bytes) -> bytes:
    """`encode_line` of an event whose id and kind are our own and need no escapes."""
    front = f'{{"seq":{seq},"uuid":"{id}","ts":"{ts}","event":"{kind}","data":'.encode()
    return b"".join((front, body, f',"crc":"{crc32(body, crc32(front)):08x}"}}\n'.encode()))


def _before_plain(data: bytes) -> int:
    """The number before the first line, if every line bears the number behind the one before.

    Nothing is skipped then, so that the rest of the log need not be looked at. Else -1.
    """
    seqs = [likely_seq(text) for text in data.split(b"\n") if text]
    first = seqs[0] if seqs else None
    if first is None or len(seqs) < 2 or seqs != list(range(first, first + len(seqs))):
        return -1
    return max(0, first - 1)


def _has_events(data: bytes, count: int) -> bool:
    found = Forward(None).take(lines_in(data, 0, decode_line, None))
    return len(list(islice(found, count))) == count


# --- copying -----------------------------------------------------------------------------


def copy_prefix(source: int, target: int, seq: int) -> None:
    """Copy the lines up to `seq` from one descriptor to another.

    A batch that the cut would tear is written anew, without its marks. Where it is not plain
    which lines count, only those that do are copied.
    """
    end = locate_after(source, os.fstat(source).st_size, seq)
    front, cut = _torn_by(source, end, seq) if end else (None, [])
    if end == 0 or (cut and not _is_complete(source, front, cut, end)):
        _copy_counted(source, target, seq)
        return
    keep = cut[0].offset if cut else end
    at = 0
    while at < keep:
        count = _copy(source, target, min(keep - at, MOST), at)
        begin_writing(target, at, count)
        at += count
    events = [line.event for line in cut if line.event is not None]
    write_all(target, b"".join(encode_line(e, _encode(e.data)) for e in events))


def _copy_counted(source: int, target: int, seq: int) -> None:
    """Write anew the lines up to `seq` that count, without marks of batches.

    Where more numbers are lost than a reader believes without the bytes that they took, there are
    as many bytes in the copy, too.
    """
    high = end = 0
    for at, size, number in counted(source, None):
        line = decode_line(os.pread(source, size - 1, at), at)
        if line is not None and line.event is not None and number <= seq:
            if number - high > PLAUSIBLE and at > end:
                os.lseek(target, at - end - 1, os.SEEK_CUR)
                write_all(target, b"\n")
            write_all(target, encode_line(line.event, _encode(line.event.data)))
            high, end = number, at + size


def _torn_by(source: int, end: int, seq: int) -> tuple[Line | None, list[Line]]:
    """The last lines before `end` whose batch goes on beyond `seq`, and first the one before."""
    size = FIRST
    while True:
        start, data, skip, _ = page_before(source, end, size)
        lines = list(lines_in(data[skip:], start + skip, decode_line, None))
        whole = [at for at, line in enumerate(lines) if line.last <= seq]
        if whole or start == 0:
            return (lines[whole[-1]], lines[whole[-1] + 1 :]) if whole else (None, lines)
        size *= 4


def _is_complete(source: int, front: Line | None, cut: list[Line], end: int) -> bool:
    """Whether `cut` is one batch that goes on at `end` to its last line: then a reader counts it.

    Nor may a batch be left open in front of it, which lines without marks would end.
    """
    if front is not None and front.place < front.size:
        return False
    place = (cut[0].seq, 1, cut[0].size)
    for line in chain(cut, _lines_from(source, end)):
        if (line.seq, line.place, line.size) != place:
            return False
        if line.place == line.size:
            return True
        place = (line.seq + 1, line.place + 1, line.size)
    return False


def _lines_from(source: int, at: int) -> Iterator[Line]:
    while data := whole_lines(source, at, FIRST):
        yield from lines_in(data, at, decode_line, None)
        at += len(data)


def _copy(source: int, target: int, count: int, at: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, count, offset_src=at)
        except OSError as error:
            # Not on this file system, or not between these two.
            if error.errno not in (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP):
                raise
    data = os.pread(source, count, at)
    write_all(target, data)
    return len(data)


@contextmanager
def last_of(path: Path) -> Iterator[None]:
    """Around the replacement or removal of a log: afterwards its writers notice.

    What is no log any more changes its length, which is what they look at. It is made
    shorter, since that works on a full disk too.
    """
    fd = open_file(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield
        if os.fstat(fd).st_size:
            os.ftruncate(fd, 0)
        else:
            os.write(fd, b"\n")
    finally:
        os.close(fd)
