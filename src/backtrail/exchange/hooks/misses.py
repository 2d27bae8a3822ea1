"""What hooks missed: a small file that only grows, and is cut when it has grown enough.

Writing a miss never fails: it is the last thing a hook in trouble does.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ..._startup.frozen import NamedTuple
from .places import append_line, state_folder

FILE = "misses.jsonl"
_KEEP = 500_000


class Miss(NamedTuple):
    """A hook that did not do all it should have: when, for whom, and why."""

    ts: str
    agent: str
    event: str
    session: str
    tool: str
    cwd: str
    why: str


def note(folder: Path | None, miss: Miss) -> bool:
    """Write it to `folder`, else to the user's state; False where neither can be written."""
    line = json.dumps(miss._asdict()).encode("ascii")
    for place in (folder, None):
        try:
            home = state_folder() if place is None else place
            home.mkdir(0o700, parents=True, exist_ok=True)
            path = home / FILE
            append_line(path, line)
            if path.stat().st_size > _KEEP:
                _cut(path)
            return True
        except OSError:
            continue
    return False


def read(folder: Path | None) -> list[Miss]:
    """All that is known, oldest first: beside the store and in the user's state."""
    found: list[Miss] = []
    for home in (folder, state_folder()):
        if home is not None:
            found += _lines(home / FILE)
    return sorted(set(found), key=lambda miss: miss.ts)


def now() -> str:
    """The present, as events have it."""
    moment = time.time()
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
    return f"{text}.{int(moment * 1000) % 1000:03d}Z"


def _lines(path: Path) -> list[Miss]:
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return []
    found: list[Miss] = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
            found.append(Miss(*(str(row.get(name, "")) for name in Miss._fields)))
        except (ValueError, AttributeError):
            # Torn by a full disk: it still counts as a miss.
            found.append(Miss("", "", "", "", "", "", "a note that could not be written whole"))
    return found


def _cut(path: Path) -> None:
    """Keep the newer half."""
    lines = path.read_bytes().splitlines(keepends=True)
    kept = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.writelines(lines[len(lines) // 2 :])
    kept.replace(path)
