"""What a store is opened with, whatever its scheme."""

from __future__ import annotations

from typing import NamedTuple

from .base import Durability, OnDamage


class Options(NamedTuple):
    """The keywords of `open_store`, as a scheme's opener gets them."""

    scope: str = ""
    durability: Durability = "written"
    on_damage: OnDamage | None = None
