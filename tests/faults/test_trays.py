"""Trays of earlier versions: their move killed, refused and full at every call loses nothing."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.faults.calls import REAL, Calls, Strike, filling, killing, refusing
from tests.faults.kill import forked
from tests.faults.variants import Broken
from tests.files.tray_samples import ALL_CONTENTS, check_lines, contents_in, unpack

from backtrail.errors import BacktrailError
from backtrail.files import trays
from backtrail.files.changes.catalogue import Catalogue
from backtrail.files.contents.sqlite import SQLiteBlobs

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

Open = Callable[[Path], SQLiteBlobs | Catalogue]


def check_contents(database: Path) -> None:
    assert contents_in(database) == ALL_CONTENTS


KINDS: dict[str, tuple[Open, Callable[[Path], None]]] = {
    "blobs": (SQLiteBlobs, check_contents),
    "catalogue": (Catalogue, check_lines),
}


def struck(folder: Path, name: str, calls: Calls) -> int:
    """Open a sample with these calls; all is there afterwards. How many calls it made."""
    database = unpack(name, folder)
    opening, check = KINDS[name]

    def body(pipe: int) -> None:
        with calls, suppress(BacktrailError):
            opening(database).close()
        REAL["write"](pipe, b"%d" % calls.count)

    reported = forked(body).reported
    check(database)
    # A second look, after whatever the first one moved.
    check(database)
    shutil.rmtree(folder)
    return int(reported or 0)


def everywhere(
    fast: Path, name: str, make: Callable[[int], Strike], *, lasting: bool = False
) -> None:
    count = struck(fast / "whole", name, Calls())
    assert count > 5
    for point in range(1, count + 1):
        struck(fast / str(point), name, Calls(make(point), point, lasting=lasting))


@pytest.mark.parametrize("name", KINDS)
def test_killed(fast: Path, name: str) -> None:
    everywhere(fast, name, lambda point: killing(random.Random(point)))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("name", KINDS)
def test_refused(fast: Path, name: str, code: int) -> None:
    everywhere(fast, name, lambda point: refusing(code))


@pytest.mark.parametrize("name", KINDS)
def test_full(fast: Path, name: str) -> None:
    """A disk that fills up in the middle of a write, and stays so."""
    everywhere(fast, name, lambda point: filling(errno.ENOSPC, random.Random(point)), lasting=True)


@contextmanager
def emptying_first() -> Iterator[None]:
    """A move that empties the tray before the rows have what lay there."""
    real = trays._move

    def move(database: object, writer: object, path: str, take: object) -> None:
        records = trays._read(path)
        fd = os.open(path, os.O_RDWR)
        trays._empty(fd, path)
        os.close(fd)
        with patch.object(trays, "_read", lambda _: records):
            real(database, writer, path, take)  # type: ignore[arg-type]

    with patch.object(trays, "_move", move):
        yield


@pytest.mark.parametrize("broken", [emptying_first])
@pytest.mark.parametrize("name", KINDS)
def test_a_broken_move_is_found(fast: Path, name: str, broken: Broken) -> None:
    """Killing fails on a move in the wrong order."""
    with broken(), pytest.raises(AssertionError):
        test_killed(fast, name)
