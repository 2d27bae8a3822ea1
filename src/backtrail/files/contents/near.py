"""A whole tree at once, from contents that are far: one question a level, not one a file."""

from __future__ import annotations

from ...errors import Damaged, NotFound
from ..trees import EMPTY_DIGEST, parse_tree
from .blobs import Blobs


def bring_near(blobs: Blobs, root: bytes) -> None:
    """Have everything that a tree holds here; what cannot be had is missed when it is read."""
    if not blobs.far:
        return
    level, seen, files = {root} - {EMPTY_DIGEST}, {EMPTY_DIGEST}, set[bytes]()
    while level:
        blobs.fetch(level)
        seen |= level
        below: set[bytes] = set()
        for digest in level:
            try:
                tree = parse_tree(blobs.get(digest))
            except (Damaged, NotFound):
                continue
            for entry in tree.values():
                if entry.kind == "directory":
                    below.add(entry.value)
                elif entry.kind == "file":
                    files.add(entry.value)
        level = below - seen
    blobs.fetch(files)
