"""Prove your own store: the store contract as tests to inherit.

    from backtrail.testing import StoreContract

    class TestMyStore(StoreContract):
        def make(self, place):
            return MyStore(place / "data")

pytest collects every rule of the contract. See `StoreContract` for the few settings.
"""

from __future__ import annotations

import pytest

# Before the import below, so that a failed rule shows the values it compared.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.contract_{part}"
        for part in (
            "append",
            "base",
            "closing",
            "forks",
            "ids",
            "info",
            "lease",
            "read",
            "search",
            "sessions",
            "sharing",
            "values",
            "verbs",
        )
    )
)

from .contract import StoreContract  # noqa: E402

__all__ = ["StoreContract"]
