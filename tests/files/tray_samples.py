"""Stores whose process died with records in a tray, as earlier versions left them.

`samples/trays/README.md` says how they were made.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import apsw

from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.contents.blobs import Reference
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.files.trees import digest_of
from backtrail.files.workspace.roots import Identity

SAMPLES = Path(__file__).parent / "samples" / "trays"
CONTENTS = (b"one", b"two", b"three")
ONE, TWO, THREE = (bytes([n]) * 32 for n in (1, 2, 3))

State = tuple[set[bytes], set[Reference]]


def unpack(name: str, folder: Path) -> Path:
    """Unpack a sample, and return its database."""
    with tarfile.open(SAMPLES / f"{name}.tar.xz") as file:
        file.extractall(folder, filter="data")
    return next(folder.glob("*.db"))


def tray_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-tray")


def rows(database: Path, query: str) -> list[tuple[object, ...]]:
    """What a query finds in the database alone."""
    connection = apsw.Connection(str(database))
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def contents_in(database: Path) -> State:
    """The contents and references that a store shows; each content is whole."""
    with SQLiteBlobs(database) as blobs:
        assert list(blobs.verify()) == []
        return {blobs.get(digest) for digest in blobs.digests()}, set(blobs.references())


ALL_CONTENTS: State = (
    {b"first", *CONTENTS},
    {Reference("store", content.decode(), digest_of(content)) for content in CONTENTS},
)


def check_lines(database: Path) -> None:
    """The line of time is as the dead process left it, and goes on."""
    catalogue = Catalogue(database)
    try:
        work = catalogue.place(Identity(1, 2, 3), b"/work").n
        other = catalogue.place(Identity(4, 5, 6), b"/other").n
        assert (catalogue.lines.tree(work), catalogue.lines.tree(other)) == (THREE, TWO)
        assert catalogue.lines.trees() == {ONE, TWO, THREE}
        long, ended = sorted(catalogue.lines.brackets(work), key=lambda call: call.ended)
        assert (long.name, long.call, ended.name, ended.ended) == ("long", "call-1", "ended", True)
        spans, others = catalogue.lines.seen_by(work, long)
        assert [(span.before, span.after) for span in spans] == [(ONE, TWO), (TWO, THREE)]
        assert [[call.name for call in span.brackets] for span in spans] == [
            ["long"],
            ["long", "ended"],
        ]
        assert others == set()
    finally:
        catalogue.close()
