"""Blob stores: the contract on each, and what is peculiar to the one in SQLite."""

from __future__ import annotations

from pathlib import Path

from backtrail.files.blobs import Blobs, MemoryBlobs
from backtrail.files.sqlite_blobs import SQLiteBlobs
from backtrail.testing import BlobContract


class TestMemoryBlobs(BlobContract):
    """In this process only."""

    persistent = False
    shared = False

    def make(self, place: Path) -> Blobs:
        return MemoryBlobs()


class TestSQLiteBlobs(BlobContract):
    """One database."""

    def make(self, place: Path) -> Blobs:
        return SQLiteBlobs(place / "blobs.db")
