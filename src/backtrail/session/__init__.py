"""Sessions: the one object that people hold, sync and async, and the turns in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._startup.loading import loader

if TYPE_CHECKING:
    from .session import Session as Session

__all__ = ["Session"]

__getattr__ = loader(globals(), {"Session": "session"})
