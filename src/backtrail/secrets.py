"""Secrets, and how to mask them; a door to `backtrail.formats.secrets`."""

from __future__ import annotations

from .formats.secrets import *  # noqa: F403 - all of it
