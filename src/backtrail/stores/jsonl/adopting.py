"""A session's folder, made with all its logs; it is a session once its main log is in place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ...events import MAIN_LOG, NewEvent, SessionInfo
from ..adopting import Logs, whole, with_main
from ..disk.fs import make_directory, replace_file, sync_directory
from .folder import make_folder
from .lines import encode_line
from .paths import MAIN_FILE, clear, log_path
from .record import encode_record

_BUFFER = 1 << 20


def adopt_session(path: Path, record: SessionInfo, logs: Logs) -> None:
    """Make a session's folder with its logs; what a crash leaves of it is no session."""
    make_folder(path)
    try:
        replace_file(path / "metadata.json", encode_record(record, []))
        ready = path / f".{MAIN_FILE}.{os.getpid()}.{os.urandom(4).hex()}"
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
