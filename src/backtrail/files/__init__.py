"""Files: what a workspace looks like, which call changed it, and how it goes back.

collect       remove contents that nothing relies on, and keep to the budget
materialize   write the files of a checkpoint to a new directory
verify        read everything and report what is damaged or missing

names, trees, beneath   words: paths, directories as blobs, walking without links
contents/      contents by their digest: storing, verifying, collecting, erasing
workspace/     from a directory to a tree digest: which directory, what is captured, scans
changes/       which call changed what between two scans, as events of a session
restore/       what a restore would do, path by path; doing it; recovery after a crash
differences    what differs between two trees, for people
depot          where a store keeps all this
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._startup.loading import homes, loader

if TYPE_CHECKING:
    from .contents.blobs import Blobs as Blobs
    from .contents.blobs import MemoryBlobs as MemoryBlobs
    from .contents.collect import Collected as Collected
    from .contents.collect import collect as collect
    from .contents.sqlite import SQLiteBlobs as SQLiteBlobs
    from .contents.verify import verify as verify
    from .restore.materialize import materialize as materialize

_HOME = homes(
    {
        "contents.blobs": "Blobs MemoryBlobs",
        "contents.collect": "Collected collect",
        "contents.sqlite": "SQLiteBlobs",
        "contents.verify": "verify",
        "restore.materialize": "materialize",
    }
)

__all__ = sorted(_HOME)  # noqa: PLE0605 - each name stands once, in `_HOME`

# Readers of paths and plans need no database.
__getattr__ = loader(globals(), _HOME)
