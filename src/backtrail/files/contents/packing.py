"""Contents as they are stored: in batches, compressed where that helps.

Compressors are not safe to share between threads, so each thread has its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

from ..._startup.frozen import NamedTuple
from ...errors import Damaged

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

    Who compresses one by one asks for the interpreter after each, and makes those wait who
    read files meanwhile.
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
