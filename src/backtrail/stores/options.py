"""What a store is opened with, whatever its scheme."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Durability, OnDamage


@dataclass(frozen=True, slots=True)
class Options:
    """The keywords of `open_store`, as a scheme's opener gets them."""

    scope: str = ""
    durability: Durability = "written"
    on_damage: OnDamage | None = None
