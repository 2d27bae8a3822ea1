"""The tables of the blob database, and what is done to their rows.

A content is a row of `blobs`; a large one has its pieces in `chunks`. It is packed: compressed, if
that helps. Compressors are not safe to share between threads, so each thread has its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import apsw

from ..._startup.frozen import NamedTuple
from ...errors import Damaged
from ...stores.disk.checks import typed, whole_number
from ...stores.disk.schema import Execute, Schema
from .blobs import Reference, checked, damaged, gone, missing

if TYPE_CHECKING:
    import zstandard

RAW, ZSTD = 0, 1

_SHORT = 64
_FEW = 10

# Every transaction touches many pages of the index, so few and large ones are cheaper.
_GATHERED = 8 << 20

# What a call changes is packed without asking whether it is there, which takes longer.
LITTLE = 64 << 10


class Packed(NamedTuple):
    """How a content is stored: its length, the codec, and the bytes."""

    size: int
    codec: int
    content: bytes


class _Codecs(threading.local):
    @cached_property
    def compressor(self) -> zstandard.ZstdCompressor:
        # Most hooks have nothing to pack or to unpack.
        import zstandard

        return zstandard.ZstdCompressor(level=1)

    @cached_property
    def decompressor(self) -> zstandard.ZstdDecompressor:
        import zstandard

        return zstandard.ZstdDecompressor()


_codecs = _Codecs()


def pack(content: bytes) -> Packed:
    """Compress, unless that saves less than a sixteenth."""
    if len(content) > _SHORT:
        return _smaller(content, _codecs.compressor.compress(content))
    return Packed(len(content), RAW, content)


def pack_all(contents: Sequence[bytes]) -> Iterator[Packed]:
    """The same for many, which are compressed in one go.

    Compressing one by one asks for the interpreter after each, and makes threads wait that read
    files meanwhile.
    """
    many: list[bytes | bytearray | memoryview] = [c for c in contents if len(c) > _SHORT]
    if len(many) < _FEW or not _at_once():
        yield from map(pack, contents)
        return
    smaller = iter(_codecs.compressor.multi_compress_to_buffer(many))
    for content in contents:
        if len(content) > _SHORT:
            yield _smaller(content, next(smaller).tobytes())
        else:
            yield Packed(len(content), RAW, content)


@cache
def _at_once() -> bool:
    """Whether many can be compressed in one go: not every build of zstandard does it."""
    import zstandard

    return "multi_compress_to_buffer" in zstandard.backend_features


def _smaller(content: bytes, compressed: bytes) -> Packed:
    size = len(content)
    if len(compressed) < size - (size >> 4):
        return Packed(size, ZSTD, compressed)
    return Packed(size, RAW, content)


def unpack(packed: Packed) -> bytes:
    """The content again; `Damaged` if it is none, however large it claims to be."""
    size, codec, content = packed
    if codec == ZSTD:
        import zstandard

        try:
            # A damaged length must not ask for more memory than was ever stored.
            if zstandard.frame_content_size(content) == size:
                content = _codecs.decompressor.decompress(content, max_output_size=size)
        except (zstandard.ZstdError, MemoryError) as error:
            raise Damaged(f"it cannot be unpacked ({error})") from error
    elif codec != RAW:
        raise Damaged(f"it is packed in an unknown way ({codec})")
    if len(content) != size:
        raise Damaged(f"{len(content)} bytes are there and {size} were stored")
    return content


def gathered(contents: Iterable[tuple[bytes, bytes]]) -> Iterator[dict[bytes, bytes]]:
    """Contents in batches, each once."""
    batch: dict[bytes, bytes] = {}
    total = 0
    for digest, content in contents:
        batch[digest] = content
        total += len(content)
        if total >= _GATHERED:
            yield batch
            batch, total = {}, 0
    if batch:
        yield batch


def is_little(batch: dict[bytes, bytes]) -> bool:
    """Whether a batch is what one call changes."""
    return len(batch) <= 10 and sum(map(len, batch.values())) <= LITTLE


_FIRST = """
CREATE TABLE blobs(
  n INTEGER PRIMARY KEY, digest BLOB NOT NULL, stamp REAL NOT NULL, size INTEGER NOT NULL,
  codec INTEGER NOT NULL, chunks INTEGER, content BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX blobs_digest ON blobs(digest);
CREATE TABLE chunks(key INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT;
CREATE TABLE pending(n INTEGER PRIMARY KEY AUTOINCREMENT, stamp REAL NOT NULL) STRICT;
CREATE TABLE "references"(
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  store TEXT NOT NULL, log TEXT NOT NULL, root BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX references_whole ON "references"(store, log, root);
CREATE TABLE about(id TEXT NOT NULL, epoch INTEGER NOT NULL) STRICT;
INSERT INTO about VALUES(lower(hex(randomblob(16))), 1);
"""

SCHEMA = Schema(0x426B7462, (_FIRST,), "PRAGMA page_size = 8192; PRAGMA auto_vacuum = INCREMENTAL")
"""The database of `SQLiteBlobs` ("Bktb")."""

_ROW = "(?, ?, ?, ?, ?, ?)"
_PUT = (
    f"INSERT INTO blobs(stamp, digest, size, codec, chunks, content) VALUES{_ROW}"
    " ON CONFLICT(digest) DO UPDATE SET stamp = max(stamp, excluded.stamp)"
)

# Each statement hands the interpreter to another thread, so many rows go by one.
ROWS = 50
_PUT_MANY = _PUT.replace(_ROW, ", ".join([_ROW] * ROWS))
GET = """
SELECT b.size, b.codec, coalesce(c.content, b.content) FROM blobs b
LEFT JOIN chunks c ON c.key >= b.chunks << 20 AND c.key < (b.chunks + 1) << 20
WHERE b.digest = ? ORDER BY c.key
"""
EPOCH = "SELECT epoch FROM about"

# One query for many digests is four times faster; not every build of apsw has it.
_ARRAYS = "ENABLE_CARRAY" in apsw.compile_options


class Slice(NamedTuple):
    """What one transaction stores: new contents, and those that seemed to be there.

    A large content is alone in its slice, which becomes several transactions.
    """

    new: list[tuple[bytes, Packed]]
    present: list[tuple[bytes, bytes]]
    large: bool = False

    def digests(self) -> list[bytes]:
        """All of them."""
        return [digest for digest, _ in self.new] + [digest for digest, _ in self.present]


def present(connection: apsw.Connection, digests: Collection[bytes]) -> set[bytes]:
    """Which of these are there."""
    if _ARRAYS and len(digests) > 10:
        query = "SELECT b.digest FROM carray(?) a CROSS JOIN blobs b ON b.digest = a.value"
        rows = connection.execute(query, (apsw.carray(tuple(digests)),))
    else:
        query = "SELECT digest FROM blobs WHERE digest = ?"
        rows = connection.executemany(query, ((digest,) for digest in digests))
    return {cast(bytes, digest) for (digest,) in rows}


def put(writer: apsw.Connection, ready: Slice, now: float) -> None:
    """Store contents; those that are there get a new stamp."""
    new = ready.new
    if ready.present:
        touch = "UPDATE blobs SET stamp = ? WHERE digest = ? RETURNING digest"
        rows = writer.executemany(touch, ((now, digest) for digest, _ in ready.present))
        there = {digest for (digest,) in rows}
        # Removed since they were seen.
        new = new + [(d, pack(content)) for d, content in ready.present if d not in there]
    values = [(now, digest, size, codec, None, data) for digest, (size, codec, data) in new]
    whole = len(values) - len(values) % ROWS
    for at in range(0, whole, ROWS):
        writer.execute(_PUT_MANY, tuple(chain.from_iterable(values[at : at + ROWS]))).fetchall()
    writer.executemany(_PUT, values[whole:]).fetchall()


def check(writer: apsw.Connection, now: int, epoch: int | None, relies: Collection[bytes]) -> None:
    """Whether what was found in an epoch is there now."""
    if epoch == now:
        return
    lost = set(relies) - present(writer, relies)
    if lost or (epoch is not None and not relies):
        raise gone(lost)


def epoch_in(execute: Execute) -> int:
    """The epoch now."""
    return whole_number(execute(EPOCH).get, "the epoch of the contents")


def refer(writer: apsw.Connection, references: Collection[Reference]) -> None:
    """Note which logs rely on what."""
    query = 'INSERT OR IGNORE INTO "references"(store, log, root) VALUES(?, ?, ?)'
    writer.executemany(query, references).fetchall()


def goes_on(execute: Execute, number: int, now: float) -> bool:
    """Another piece comes; False if a sweep removed those before it."""
    query = "UPDATE pending SET stamp = ? WHERE n = ? AND stamp > 0 RETURNING n"
    return execute(query, (now, number)).get is not None


def finish(execute: Execute, number: int, digest: bytes, packed: Packed) -> None:
    """All pieces are there: the row makes them a content, unless another writer was faster."""
    row = (time.time(), digest, packed.size, packed.codec, number, b"")
    if execute(f"{_PUT} RETURNING chunks", row).get == number:
        execute("DELETE FROM pending WHERE n = ?", (number,))
    else:
        execute("UPDATE pending SET stamp = 0 WHERE n = ?", (number,))


def read(execute: Execute, digest: bytes) -> bytes:
    """A content, through a given connection."""
    return unpacked(digest, execute(GET, (digest,)).fetchall())


def unpacked(digest: bytes, rows: list[Any]) -> bytes:
    """A content, from its rows."""
    if not rows:
        raise missing(digest)
    for row in rows:
        typed(row, f"the row of the blob `{digest.hex()}`", int, int, bytes)
    size, codec, content = rows[0]
    if len(rows) > 1:
        content = b"".join(row[2] for row in rows)
    try:
        content = unpack(Packed(size, codec, content))
    except Damaged as error:
        raise damaged(digest, str(error)) from error
    return checked(digest, content)
