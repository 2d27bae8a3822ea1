"""SHA-256, loaded when there is something to hash.

`hashlib` brings in OpenSSL, which takes some milliseconds. A hook has no use for it where no
file has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256 as sha256
else:
    _new = None

    def sha256(data: bytes = b"") -> object:
        """`hashlib.sha256`."""
        global _new
        if _new is None:
            from hashlib import sha256 as _new
        return _new(data)
