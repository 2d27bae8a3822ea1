"""What was stored last: contents and references that are not in the database of blobs yet.

One record for what one edit changes, and a sync of that is all the caller waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..._startup.frozen import NamedTuple
from ...stores.disk.sync import begin_writing
from ..changes.tray import Tray
from .blobs import Reference

SIZE = 512 << 10
"""The length of the file."""


class Laid(NamedTuple):
    """The body of a record: contents with their digests, references to them, and when that was."""

    contents: list[tuple[bytes, bytes]]
    references: list[Reference]
    stamp: float


_decode = msgspec.msgpack.Decoder(Laid).decode
_encode = msgspec.msgpack.Encoder().encode


class ContentTray(Tray):
    """A tray of contents, synced."""

    def __init__(self, database: Path, idle: Callable[[], None]) -> None:
        super().__init__(database, SIZE, idle)

    def _emptied(self) -> None:
        self._contents: dict[bytes, bytes] = {}
        self._references: dict[Reference, None] = {}
        self._stamp = 0.0

    def _take_in(self, body: bytes) -> None:
        self._add(_decode(body))

    def _add(self, laid: Laid) -> None:
        self._contents.update(laid.contents)
        self._references.update(dict.fromkeys(laid.references))
        self._stamp = max(self._stamp, laid.stamp)

    # --- reading -------------------------------------------------------------------------

    def contents(self) -> dict[bytes, bytes]:
        """What is in it now; not to be changed."""
        with self._mutex:
            self._look()
            return self._contents

    def laid(self) -> Laid:
        """All that is in it now."""
        with self._mutex:
            self._look()
            return Laid(list(self._contents.items()), list(self._references), self._stamp)

    @property
    def holds(self) -> bool:
        """Whether anything was in it when this process looked last."""
        return bool(self._contents or self._references)

    # --- writing: for who holds the lock of the database ---------------------------------

    def is_ready(self) -> bool:
        """Whether it can be written to, behind what others wrote; it is made if need be."""
        if not super().is_ready():
            return False
        with self._mutex:
            self._look()
            return True

    def lay(self, laid: Laid) -> bool:
        """Append a record, to be synced; False if the tray has to be emptied first."""
        with self._mutex:
            end = self._write(_encode(laid))
            if end:
                self._add(laid)
                self._wrote(end)
            return end > 0

    def hasten(self) -> None:
        """Let the disk begin: somebody is about to wait for it, and has other things to do."""
        if self.sync is not None and self.sync.dirty:
            begin_writing(self._fd, 0, self._end)
