"""Contents as they are stored: compressed where that helps.

Compressors are not safe to share between threads, so each thread has its own.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import zstandard

from ..errors import Damaged

RAW, ZSTD = 0, 1

_SHORT = 64


class Packed(NamedTuple):
    """How a content is stored: its length, the codec, and the bytes."""

    size: int
    codec: int
    content: bytes


class _Codecs(threading.local):
    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=1).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codecs = _Codecs()


def pack(content: bytes) -> Packed:
    """Compress, unless that saves less than a sixteenth."""
    size = len(content)
    if size > _SHORT:
        small = _codecs.compress(content)
        if len(small) < size - (size >> 4):
            return Packed(size, ZSTD, small)
    return Packed(size, RAW, content)


def unpack(packed: Packed) -> bytes:
    """The content again; `Damaged` if it is none, however large it claims to be."""
    size, codec, content = packed
    if codec == ZSTD:
        try:
            # A damaged length must not ask for more memory than was ever stored.
            if zstandard.frame_content_size(content) == size:
                content = _codecs.decompress(content, max_output_size=size)
        except (zstandard.ZstdError, MemoryError) as error:
            raise Damaged(f"it cannot be unpacked ({error})") from error
    elif codec != RAW:
        raise Damaged(f"it is packed in an unknown way ({codec})")
    if len(content) != size:
        raise Damaged(f"{len(content)} bytes are there and {size} were stored")
    return content
