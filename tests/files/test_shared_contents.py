"""Contents that machines share: the contract on PostgreSQL, with and without a copy in front."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from backtrail.errors import Conflict
from backtrail.files.contents.blobs import Blobs
from backtrail.files.contents.shared import SharedBlobs, index
from backtrail.files.contents.shared.nearcopy import CachedContents
from backtrail.stores.postgres.address import parse
from backtrail.testing import BlobContract
from backtrail.testing.blobs.base import LATER, refer
from backtrail.testing.blobs.sharing import GROUPS, WRITERS, Groups, root
from backtrail.testing.blobs.sharing import group as contents_of
from backtrail.testing.store.base import child
from tests import postgres


class TestInPostgres(BlobContract):
    """The bytes in the database too."""

    def make(self, place: Path) -> Blobs:
        return SharedBlobs(parse(postgres.url_for(place)))


class TestCached(BlobContract):
    """With the contents of this machine in front."""

    def make(self, place: Path) -> Blobs:
        return CachedContents(SharedBlobs(parse(postgres.url_for(place))), place)


# --- collection among writers that are killed ----------------------------------------------


def churn(url: str, writer: int) -> None:
    """Refer to group after group and drop the references again, until killed."""
    with SharedBlobs(parse(url)) as blobs:
        n = 0
        while True:
            n += 1
            group = (writer * 7 + n) % (WRITERS * 25)
            reference = refer(root(group), f"log-{writer}")
            epoch = blobs.epoch()
            there = blobs.has(GROUPS[root(group)])
            new = [one for one in contents_of(group) if one[0] not in there]
            try:
                blobs.write(new, [reference], epoch=epoch, relies=GROUPS[root(group)])
            except Conflict:
                continue
            if n % 3 == 0:
                blobs.drop_references("store", f"log-{writer}")


def missing_after(url: str, seconds: float) -> int:
    """Kill writers and begin new ones while a sweep with no grace goes on; what is missing."""
    missing = 0
    pids = [child(partial(churn, url, n)) for n in range(WRITERS)]
    try:
        with SharedBlobs(parse(url)) as blobs:
            until = time.monotonic() + seconds
            turn = 0
            while time.monotonic() < until and not missing:
                turn += 1
                blobs.sweep(Groups(), LATER)
                if turn % 5 == 0:
                    victim = turn // 5 % WRITERS
                    os.kill(pids[victim], signal.SIGKILL)
                    os.waitpid(pids[victim], 0)
                    missing += lacking(blobs)
                    pids[victim] = child(partial(churn, url, victim))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    with SharedBlobs(parse(url)) as blobs:
        return missing + lacking(blobs)


def lacking(blobs: SharedBlobs) -> int:
    """How many contents are referred to and not there, in one look at the database."""
    there = "(SELECT array_agg(digest) FROM backtrail.blobs)"
    query = f'SELECT r.root, {there} FROM backtrail."references" r'
    rows = blobs.link.read(lambda execute: execute.all(query))
    return sum(len(GROUPS[root] - set(there or ())) for root, there in rows)


def test_a_sweep_among_killed_writers_loses_nothing(tmp_path: Path) -> None:
    """With no grace at all: everything referred to is there, whichever process died when."""
    assert missing_after(postgres.url_for(tmp_path), 4.0) == 0


def test_without_the_lock_it_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken variant loses contents: the check can fail."""
    plain = index.epoch_in
    monkeypatch.setattr(index, "epoch_in", lambda execute, lock="": plain(execute))
    monkeypatch.setattr(index, "LOCKED", "")
    assert missing_after(postgres.url_for(tmp_path), 15.0) > 0
