"""`BlobContract`: every rule of `backtrail.files.contents.blobs` as a test to inherit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from ...errors import Closed, Damaged, NotFound
from ...files.contents.blobs import Blobs, Reference
from ..store.base import Call, raised
from .base import LATER, BlobContractBase, blob, named, nothing, refer, some
from .removing import RemovingRules
from .sharing import BlobSharingRules

MB = 1 << 20

CONTENTS = {
    "empty": b"",
    "one byte": b"\0",
    "text": b"the same line again\n" * 500,
    "short noise": random.Random(1).randbytes(100),
    "noise of 64 KB": random.Random(2).randbytes(64 << 10),
    "noise just over 64 KB": random.Random(3).randbytes((64 << 10) + 1),
    "noise of 1 MB": random.Random(4).randbytes(MB),
    "noise of 2 MB": random.Random(5).randbytes(2 * MB),
    "noise of 5 MB": random.Random(6).randbytes(5 * MB + 1),
    "zeros of 9 MB": bytes(9 * MB),
}


class ContentRules(BlobContractBase):
    """`write`, `put`, `get`, `has`, `size`, `digests`, `verify`."""

    @pytest.mark.parametrize("name", CONTENTS)
    def test_get_returns_what_was_put(self, tmp_path: Path, name: str) -> None:
        """Contents of every length come back, compressible or not."""
        blobs, content = self.open(tmp_path), CONTENTS[name]
        digest = blobs.put(content)
        assert digest == sha256(content).digest()
        assert blobs.get(digest) == content
        assert blobs.size(digest) == len(content)
        assert self.second(blobs, tmp_path).get(digest) == content

    def test_write_takes_any_number(self, tmp_path: Path) -> None:
        """Nothing, one, and more than one transaction holds, in one call."""
        blobs = self.open(tmp_path)
        blobs.write([])
        assert list(blobs.digests()) == []
        contents = some(3000) + some(40, 5000, 100_000) + [blob(9000, 3 * MB)]
        blobs.write(iter(contents))
        assert set(blobs.digests()) == named(contents)
        assert len(list(blobs.digests())) == len(contents)
        for digest, content in contents[::100] + contents[-42:]:
            assert blobs.get(digest) == content

    def test_write_is_idempotent(self, tmp_path: Path) -> None:
        """The same content twice, in one call or in two, is stored once."""
        blobs = self.open(tmp_path)
        contents = [*some(3), blob(1), blob(7, 3 * MB), blob(7, 3 * MB)]
        for _ in range(3):
            blobs.write(contents)
        assert sorted(blobs.digests()) == sorted(named(contents))
        assert [blobs.get(digest) for digest, _ in contents] == [c for _, c in contents]

    def test_write_without_sync_is_seen_at_once(self, tmp_path: Path) -> None:
        """`sync=False` only delays durability."""
        blobs = self.open(tmp_path)
        blobs.write(some(5), [refer(blob(0)[0])], sync=False)
        other = self.second(blobs, tmp_path)
        assert other.has(named(some(5))) == named(some(5))
        assert list(other.references()) == [refer(blob(0)[0])]
        blobs.flush()
        assert other.get(blob(4)[0]) == blob(4)[1]

    def test_write_that_fails_leaves_no_reference(self, tmp_path: Path) -> None:
        """References come last: a caller that hands over half leaves contents at most."""
        blobs = self.open(tmp_path)

        def half() -> Iterator[tuple[bytes, bytes]]:
            yield from some(30, length=500_000)
            raise KeyError("on purpose")

        with pytest.raises(KeyError):
            blobs.write(half(), [refer(blob(0)[0])])
        assert list(blobs.references()) == []
        for digest in blobs.digests():
            blobs.get(digest)

    def test_get_checks_the_digest(self, tmp_path: Path) -> None:
        """Bytes under a digest that is not theirs are `Damaged`, and harm no others."""
        blobs = self.open(tmp_path)
        for length in (0, 100, 3 * MB):
            digest, content = blob(1, length)
            blobs.write([(digest, content + b"x"), blob(2, length)])
            with pytest.raises(Damaged, match=digest.hex()):
                blobs.get(digest)
            assert blobs.get(blob(2, length)[0]) == blob(2, length)[1]
        wrong = {blob(1, length)[0] for length in (0, 100, 3 * MB)}
        assert {digest for digest, _ in blobs.verify()} == wrong

    def test_get_of_nothing_is_not_found(self, tmp_path: Path) -> None:
        """A digest that is not there is `NotFound`, and the message names it."""
        blobs = self.open(tmp_path)
        blobs.put(b"other")
        for call in (blobs.get, blobs.size):
            with pytest.raises(NotFound, match=blob(1)[0].hex()):
                call(blob(1)[0])

    def test_has_names_those_there(self, tmp_path: Path) -> None:
        """Any number of digests, some of them there, some twice."""
        blobs = self.open(tmp_path)
        assert blobs.has([]) == set()
        assert blobs.has(named(some(3))) == set()
        blobs.write(some(2000))
        asked = [digest for digest, _ in some(3000, 1000)]
        assert blobs.has(asked) == named(some(1000, 1000))
        assert blobs.has(asked[:2] * 2) == set(asked[:2])

    def test_digests_may_change_meanwhile(self, tmp_path: Path) -> None:
        """Listing goes on while contents come and go."""
        blobs = self.open(tmp_path)
        blobs.write(some(2500))
        listing = blobs.digests()
        first = next(listing)
        blobs.remove(named(some(2500)) - {first})
        blobs.write(some(10, 5000))
        rest = set(listing)
        assert rest <= named(some(2500)) | named(some(10, 5000))

    def test_verify_finds_nothing_wrong(self, tmp_path: Path) -> None:
        """A sound store has no problems."""
        blobs = self.open(tmp_path)
        blobs.write([*some(20), blob(30, 3 * MB)], [refer(blob(0)[0])])
        assert list(blobs.verify()) == []
        assert blobs.used() >= 3 * MB


class ReferenceRules(BlobContractBase):
    """`references`, `drop_references`, `copy_references`."""

    def test_references_are_kept_once_and_in_order(self, tmp_path: Path) -> None:
        """Each is stored once, with contents or without, and to anything."""
        blobs = self.open(tmp_path)
        wanted = [refer(digest, log) for log in ("b", "a") for digest, _ in some(3)]
        blobs.write(some(3), iter(wanted[:3]))
        blobs.write([], wanted)
        blobs.write([], wanted[1:2])
        assert list(blobs.references()) == wanted
        assert all(isinstance(reference, Reference) for reference in blobs.references())

    def test_drop_takes_what_is_named(self, tmp_path: Path) -> None:
        """A log's at some roots, a log's, a store's; others stay."""
        blobs = self.open(tmp_path)
        digests = [digest for digest, _ in some(3)]
        every = [refer(d, log, store) for store in "st" for log in "ab" for d in digests]
        blobs.write(some(3), every)
        blobs.drop_references("s", "a", digests[:2])
        assert list(blobs.references()) == every[2:]
        blobs.drop_references("s", "a", [])
        assert list(blobs.references()) == every[2:]
        blobs.drop_references("s", "a")
        assert list(blobs.references()) == every[3:]
        blobs.drop_references("t")
        assert list(blobs.references()) == every[3:6]
        blobs.drop_references("none")
        assert list(blobs.references()) == every[3:6]
        assert blobs.has(digests) == set(digests)

    def test_copy_gives_a_fork_what_its_parent_has(self, tmp_path: Path) -> None:
        """The copy stays when the parent goes; its own are not lost."""
        blobs = self.open(tmp_path)
        digests = [digest for digest, _ in some(3)]
        blobs.write(some(3), [refer(d, "parent") for d in digests[:2]])
        blobs.write([], [refer(digests[1], "fork"), refer(digests[2], "fork")])
        blobs.write([], [refer(digests[0], "parent", "other")])
        blobs.copy_references("store", "parent", "fork")
        blobs.copy_references("store", "none", "fork")
        blobs.drop_references("store", "parent")
        blobs.drop_references("other")
        assert set(blobs.references()) == {refer(d, "fork") for d in digests}


def calls(blobs: Blobs) -> dict[str, Call]:
    """Every method."""
    digest, content = blob(1)
    return {
        "write": lambda: blobs.write([(digest, content)]),
        "write nothing": lambda: blobs.write([]),
        "put": lambda: blobs.put(content),
        "get": lambda: blobs.get(digest),
        "has": lambda: blobs.has([digest]),
        "size": lambda: blobs.size(digest),
        "digests": lambda: blobs.digests(),
        "references": lambda: blobs.references(),
        "drop": lambda: blobs.drop_references("store"),
        "copy": lambda: blobs.copy_references("store", "a", "b"),
        "epoch": lambda: blobs.epoch(),
        "sweep": lambda: blobs.sweep(nothing, LATER),
        "remove": lambda: blobs.remove([digest]),
        "used": lambda: blobs.used(),
        "verify": lambda: list(blobs.verify()),
        "flush": lambda: blobs.flush(),
    }


class BlobClosingRules(BlobContractBase):
    """`close`, and opening again."""

    def test_close_ends_every_method(self, tmp_path: Path) -> None:
        """A closed store raises `Closed`, whatever it is asked; closing twice is fine."""
        blobs = self.open(tmp_path)
        blobs.write(some(2))
        with blobs:
            pass
        blobs.close()
        wrong = {name: found for name, call in calls(blobs).items() if (found := raised(call))}
        assert wrong == dict.fromkeys(calls(blobs), Closed)

    def test_reopening_shows_the_same(self, tmp_path: Path) -> None:
        """Contents, references, the id and the epoch are there again."""
        self.need_persistent()
        blobs = self.open(tmp_path)
        blobs.write([*some(5), blob(9, 3 * MB)], [refer(blob(0)[0])])
        blobs.remove([blob(1)[0]])
        before = blobs.id, blobs.epoch(), set(blobs.digests()), list(blobs.references())
        for _ in range(2):
            blobs.close()
            blobs = self.open(tmp_path)
            now = blobs.id, blobs.epoch(), set(blobs.digests()), list(blobs.references())
            assert now == before
            assert blobs.get(blob(9, 3 * MB)[0]) == blob(9, 3 * MB)[1]

    def test_id_is_one_for_each_place(self, tmp_path: Path) -> None:
        """Two objects on a place have one id, another place another."""
        blobs = self.open(tmp_path)
        assert self.second(blobs, tmp_path).id == blobs.id
        (tmp_path / "other").mkdir()
        assert self.open(tmp_path / "other").id != blobs.id


class BlobContract(ContentRules, ReferenceRules, RemovingRules, BlobSharingRules, BlobClosingRules):
    """Subclass it with one method, and pytest runs every rule on your blob store.

    `make(place)` opens a blob store that keeps its data in the directory `place`, which
    exists. Opening the same place again must show the same data. Where that cannot be,
    say so:

    - `persistent = False`: the data goes with the object.
    - `shared = False`: one process at a time may use a place.
    """
