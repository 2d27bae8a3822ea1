"""What a store is opened with, whatever its scheme."""

from __future__ import annotations

import os

from .._startup.frozen import NamedTuple
from ..errors import NotFound
from .base import Durability, OnDamage


class Options(NamedTuple):
    """The keywords of `open_store`, as a scheme's opener gets them."""

    scope: str = ""
    durability: Durability = "written"
    on_damage: OnDamage | None = None
    create: bool = True

    def check(self, path: str) -> None:
        """Raise `NotFound` if a store at `path` would be a new one, and may not be."""
        if not self.create and not os.path.exists(path):
            raise NotFound(f"there is no store at {path}")
