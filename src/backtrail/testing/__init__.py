"""Prove your own store: its contract as tests to inherit.

    from backtrail.testing import StoreContract

    class TestMyStore(StoreContract):
        def make(self, place):
            return MyStore(place / "data")

pytest collects every rule of the contract. See `StoreContract` for the few settings.
`BlobContract` is the same for blob stores.
"""

from __future__ import annotations

import pytest

# Before the import below, so that a failed rule shows the values it compared.
pytest.register_assert_rewrite(f"{__name__}.blobs", f"{__name__}.store")

from .blobs import BlobContract  # noqa: E402
from .store import StoreContract  # noqa: E402

__all__ = ["BlobContract", "StoreContract"]
