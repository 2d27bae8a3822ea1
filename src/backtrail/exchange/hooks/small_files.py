"""The small files that hooks keep, beside the store or else with the user's state.

Misses: what hooks failed to record. The file only grows, and is cut when it has grown enough.
Writing a miss never fails: it is the last thing a hook in trouble does.

Notes: what the next prompt's hook reports to the live agent. After files went back, the agent's
idea of them is wrong until it is informed. The logs say which files these are, but for an agent
whose own conversation could not go back with ours: what it thinks is in no log, so a note is
left for it, and reported once.

Grabs: calls that began before the first import was done, from the hook before to the hook after.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ..._startup.hashing import sha256
from .places import append_line, folder_of, state_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...files.changes.brackets import Grab
    from ...stores.base import Store

FILE = "misses.jsonl"
"""The name of the file of misses."""

_KEEP = 500_000
_LIMIT = 4000
_MANY = 30
_NAME = 100


# --- misses ------------------------------------------------------------------------------


class Miss(NamedTuple):
    """A hook that did not do all it should have: when, for which agent, and why."""

    ts: str
    agent: str
    event: str
    session: str
    tool: str
    cwd: str
    why: str


def note_miss(folder: Path | None, miss: Miss) -> bool:
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


def read_misses(folder: Path | None) -> list[Miss]:
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
    from ...stores.disk.fs import replace_file

    lines = path.read_bytes().splitlines(keepends=True)
    replace_file(path, b"".join(lines[len(lines) // 2 :]))


# --- notes -------------------------------------------------------------------------------


def leave_note(store: Store, session_id: str, text: str) -> None:
    """Have the next prompt of a session report `text`; several notes are reported together."""
    path = _note_path(store, session_id)
    path.parent.mkdir(0o700, exist_ok=True)
    append_line(path, _plain(text).encode("utf-8", "replace"))


def take_notes(store: Store, session_id: str) -> list[str]:
    """What was left for a session, each once, and leave nothing."""
    path = _note_path(store, session_id)
    taken = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A move, so that of two hooks only one reports it.
        path.rename(taken)
        text = taken.read_text("utf-8", "replace")
    except FileNotFoundError:
        return []
    finally:
        taken.unlink(missing_ok=True)
    return list(dict.fromkeys(line for line in text.split("\n") if line))


def restored(paths: Sequence[str]) -> str:
    """A sentence for an agent whose idea of these files is wrong."""
    names = ", ".join(_plain(name)[:_NAME] for name in paths[:_MANY])
    more = f" and {len(paths) - _MANY} more" if len(paths) > _MANY else ""
    return (
        "The user restored these files to an earlier state with Backtrail: "
        f"{names}{more}; read them again before you change them."
    )


def _note_path(store: Store, session_id: str) -> Path:
    from ...events import check_session_id

    return folder_of(store) / "notes" / check_session_id(session_id)


def _plain(text: str) -> str:
    """One line without anything a terminal or a model would take for more than words."""
    return "".join(c if c.isprintable() else " " for c in text)[:_LIMIT]


# --- grabs -------------------------------------------------------------------------------


def keep_grab(store: Store, session_id: str, call: str, grab: Grab) -> None:
    """Keep what a call of this id, or else of this name, found."""
    path = _grab_path(store, session_id, call)
    path.parent.mkdir(0o700, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump([grab.before.hex(), [os.fsencode(path).hex() for path in grab.paths]], file)


def take_grab(store: Store, session_id: str, call: str) -> Grab | None:
    """What was kept for a call, and keep it no longer."""
    from ...files.changes.brackets import Grab

    path = _grab_path(store, session_id, call)
    try:
        before, paths = json.loads(path.read_bytes())
        return Grab(bytes.fromhex(before), [bytes.fromhex(path) for path in paths])
    except (OSError, ValueError):
        return None
    finally:
        path.unlink(missing_ok=True)


def _grab_path(store: Store, session_id: str, call: str) -> Path:
    name = sha256(f"{session_id} {call}".encode("utf-8", "replace")).hexdigest()[:32]
    return folder_of(store) / "grabs" / name
