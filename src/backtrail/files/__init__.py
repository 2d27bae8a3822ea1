"""Files: what a workspace looks like, who changed it, and how it goes back.

    collect       remove contents that nothing relies on, and keep to the budget
    materialize   write the files of a checkpoint to a new directory
    verify        read everything and tell what is damaged or missing

names, trees, ignore     words: paths, directories as blobs, what is not captured
blobs, sqlite_blobs, sqlite_rows   contents by their digest; what relies on them
tray, content_tray       a small file before a database: what was stored last
known, marks, index, trail, glance, scan, capture   from a directory to a tree digest
brackets, timeline, lines, catalogue, attribution   who changed what between two scans
plan, conflicts, moves, outcome   what a restore would do, path by path; pure
beneath, workbench, deeds, restore, journal   doing it, so that a crash or a race loses nothing
roots, looking, rooted, workspace, depot   one watched directory; where a store keeps all this
changes/                 what calls do to the files, as events of a session
baseline, grabbing       the first import in the background, and calls that do not wait for it
differences, textdiff    what differs between two trees, for people
garbage, cleaning, repairs   what nothing relies on, the budget, the floor of free space
verifying, tombstones    what is damaged or missing, and what was erased on purpose
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..loading import loader

if TYPE_CHECKING:
    from .blobs import Blobs as Blobs
    from .blobs import MemoryBlobs as MemoryBlobs
    from .cleaning import Collected as Collected
    from .cleaning import collect as collect
    from .materializing import materialize as materialize
    from .sqlite_blobs import SQLiteBlobs as SQLiteBlobs
    from .verifying import verify as verify

_HOME = {
    "Blobs": "blobs",
    "Collected": "cleaning",
    "MemoryBlobs": "blobs",
    "SQLiteBlobs": "sqlite_blobs",
    "collect": "cleaning",
    "materialize": "materializing",
    "verify": "verifying",
}

__all__ = [
    "Blobs",
    "Collected",
    "MemoryBlobs",
    "SQLiteBlobs",
    "collect",
    "materialize",
    "verify",
]

# Those who only read paths and plans need no database.
__getattr__ = loader(globals(), _HOME)
