"""What is stored of a JSONL session beside its logs: `metadata.json`, and the cache of counts."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...errors import BacktrailError, Damaged, Unsupported
from ...events import STORED_FIELDS, SessionInfo
from ...events.history import Fold
from ..disk.fs import open_file, read_file, replace_file
from ..records import new_record
from .file import MOST
from .layout import MAIN_FILE
from .reading import Span, read_forward

FORMAT = 1
"""The version of the format on disk, in every `metadata.json`."""


def encode_record(record: SessionInfo, ancestors: list[str]) -> bytes:
    """`metadata.json` for a record; a fork names all it descends from."""
    fields = {name: getattr(record, name) for name in STORED_FIELDS}
    if ancestors:
        fields["ancestors"] = ancestors
    return msgspec.json.format(msgspec.json.encode({"format": FORMAT, **fields}), indent=1) + b"\n"


_RECORD = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_BEGIN = b'{\n "format": %d,' % FORMAT


def is_known_format(path: str | Path) -> bool:
    """Whether a session's record begins as we write it; if not, it has to be read to know."""
    try:
        fd = open_file(f"{path}/metadata.json", _RECORD)
    except OSError:
        return False
    try:
        return os.read(fd, len(_BEGIN)) == _BEGIN
    except OSError:
        return False
    finally:
        os.close(fd)


def ancestors_of(path: Path) -> list[str]:
    """The sessions a fork descends from, also those that are gone by now."""
    try:
        found = msgspec.json.decode(read_file(path / "metadata.json"), type=_Fork)
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []
    if found.ancestors or found.relation != "fork" or found.parent_id is None:
        return found.ancestors
    return [found.parent_id]


class _Fork(msgspec.Struct):
    relation: str | None = None
    parent_id: str | None = None
    ancestors: list[str] = []


def read_record(path: Path, scope: str = "") -> tuple[SessionInfo, str]:
    """What is stored of a session, and what is wrong with it.

    Where `metadata.json` cannot be used, the record is taken from the log's last
    `session_start`, and is bare where that has none. A newer format is `Unsupported`.
    """
    try:
        return _checked(msgspec.json.decode(read_file(path / "metadata.json")), path.name), ""
    except Unsupported:
        raise
    except FileNotFoundError:
        problem = "metadata.json is missing"
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        problem = "metadata.json is a link"
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
        raise Unsupported(
            f"session `{id}` has format {version}, this library knows up to {FORMAT}: update it"
        )
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
        with suppress(OSError):
            replace_file(path / "fold.json", msgspec.json.encode(self), synced=False)
