"""Contents that machines share: the contract on PostgreSQL, with and without a copy in front."""

from __future__ import annotations

from pathlib import Path

from backtrail.files.contents.blobs import Blobs
from backtrail.files.contents.shared import SharedBlobs
from backtrail.files.contents.shared.cached import CachedContents
from backtrail.stores.postgres.address import parse
from backtrail.testing import BlobContract
from tests import postgres


class TestInPostgres(BlobContract):
    """The bytes in the database too."""

    def make(self, place: Path) -> Blobs:
        return SharedBlobs(parse(postgres.url_for(place)))


class TestCached(BlobContract):
    """With the contents of this machine in front."""

    def make(self, place: Path) -> Blobs:
        return CachedContents(SharedBlobs(parse(postgres.url_for(place))), place)
