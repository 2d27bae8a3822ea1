"""Rules of removing blobs: what a sweep spares, and how writers learn of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from ...errors import Conflict, NotFound
from ...files.contents.blobs import Swept
from ...files.trees import Get
from .base import LATER, BlobContractBase, Roots, blob, named, nothing, refer, some


class RemovingRules(BlobContractBase):
    """`sweep`, `remove`, `epoch`, and `write` with an epoch."""

    def test_sweep_removes_what_is_not_kept(self, tmp_path: Path) -> None:
        """What `keep` does not hold goes, large or small; the rest is whole."""
        blobs = self.open(tmp_path)
        contents = [*some(1500), blob(7000, 3 << 20), blob(7001, 3 << 20)]
        kept = named([*contents[::10], contents[-1]])
        blobs.write(contents)
        gone = [content for digest, content in contents if digest not in kept]
        swept = blobs.sweep(Roots(kept), LATER)
        assert swept == Swept(len(gone), sum(map(len, gone)))
        assert set(blobs.digests()) == kept
        for digest, content in contents:
            if digest in kept:
                assert blobs.get(digest) == content
            else:
                with pytest.raises(NotFound):
                    blobs.get(digest)
        assert list(blobs.verify()) == []
        blobs.write(contents)
        assert set(blobs.digests()) == named(contents)

    def test_sweep_gives_space_back(self, tmp_path: Path) -> None:
        """Removed bytes are free for others, at the latest when they are needed."""
        blobs = self.open(tmp_path)
        sizes = []
        for round in range(4):
            blobs.write(some(10, round * 10, 1 << 20))
            blobs.sweep(nothing, LATER)
            sizes.append(blobs.used())
        assert sizes[3] < sizes[0] + (5 << 20)

    def test_sweep_spares_what_was_written_since(self, tmp_path: Path) -> None:
        """Only what was last written before that time goes; written again counts."""
        blobs = self.open(tmp_path)
        first, again, large = blob(1), blob(2), blob(3, 3 << 20)
        blobs.write([first, again, large, blob(4, 3 << 20)])
        time.sleep(0.02)
        before = time.time()
        blobs.write([again, large, blob(5)])
        assert blobs.sweep(nothing, before).blobs == 2
        assert set(blobs.digests()) == named([again, large, blob(5)])
        assert blobs.sweep(nothing, before).blobs == 0

    def test_sweep_asks_about_every_reference(self, tmp_path: Path) -> None:
        """What `keep` says of the roots of references is obeyed; each is asked once."""
        blobs = self.open(tmp_path)
        blobs.write(some(9), [refer(digest) for digest, _ in some(3)])
        roots = Roots()
        assert blobs.sweep(roots, LATER).blobs == 6
        assert set(blobs.digests()) == named(some(3))
        assert [root for call in roots.calls for root in call].count(blob(0)[0]) == 1
        blobs.drop_references("store")
        assert blobs.sweep(Roots(), LATER).blobs == 3

    def test_sweep_asks_about_references_made_meanwhile(self, tmp_path: Path) -> None:
        """A reference stored after the marking, to an old content, is honoured."""
        blobs = self.open(tmp_path)
        blobs.write(some(9), [refer(blob(0)[0])])
        time.sleep(0.01)
        before = time.time()
        epoch = blobs.epoch()
        roots = Roots()

        def keep(asked: Collection[bytes], get: Get) -> set[bytes]:
            if not roots.calls:
                blobs.write([], [refer(blob(5)[0], "new")], epoch=epoch)
            return roots(asked, get)

        blobs.sweep(keep, before)
        assert set(blobs.digests()) == {blob(0)[0], blob(5)[0]}

    def test_sweep_that_is_dry_removes_nothing(self, tmp_path: Path) -> None:
        """A dry run says the same as the sweep after it, and changes nothing."""
        blobs = self.open(tmp_path)
        blobs.write([*some(20), blob(30, 3 << 20)], [refer(blob(0)[0])])
        epoch = blobs.epoch()
        planned = blobs.sweep(Roots(), LATER, dry_run=True)
        assert planned.blobs == 20
        assert len(list(blobs.digests())) == 21
        assert blobs.epoch() == epoch
        assert blobs.sweep(Roots(), LATER) == planned

    def test_epoch_moves_when_something_goes(self, tmp_path: Path) -> None:
        """It grows with each removal, and stays when nothing is removed."""
        blobs = self.open(tmp_path)
        epochs = [blobs.epoch()]
        blobs.write(some(3), [refer(blob(0)[0])])
        blobs.drop_references("none")
        blobs.sweep(Roots(named(some(3))), LATER)
        blobs.remove([blob(8)[0]])
        assert blobs.epoch() == epochs[0]
        for _ in range(3):
            blobs.sweep(Roots(), LATER)
            epochs.append(blobs.epoch())
            blobs.write(some(3))
            blobs.remove([blob(1)[0]])
            epochs.append(blobs.epoch())
            blobs.write(some(3))
        assert epochs == sorted(set(epochs))
        assert self.second(blobs, tmp_path).epoch() == epochs[-1]

    def test_write_refers_in_the_epoch_it_knows(self, tmp_path: Path) -> None:
        """References are stored if nothing was removed since, or all they need is there."""
        blobs = self.open(tmp_path)
        blobs.write(some(4))
        old = blobs.epoch()
        blobs.write([], [refer(blob(0)[0], "1")], epoch=old)
        blobs.remove([blob(3)[0]])
        there = named(some(3))
        blobs.write([], [refer(blob(0)[0], "2")], epoch=old, relies=there)
        blobs.write([], [refer(blob(0)[0], "3")], relies=there)
        blobs.write([], [refer(blob(0)[0], "4")], epoch=blobs.epoch(), relies=named(some(4)))
        assert [reference.log for reference in blobs.references()] == ["1", "2", "3", "4"]

    def test_write_does_not_refer_to_what_may_be_gone(self, tmp_path: Path) -> None:
        """The epoch moved and nothing can be checked, or it is gone: `Conflict`."""
        blobs = self.open(tmp_path)
        blobs.write(some(4))
        old = blobs.epoch()
        blobs.remove([blob(3)[0]])
        new = [refer(blob(0)[0])]
        with pytest.raises(Conflict):
            blobs.write([blob(9)], new, epoch=old)
        with pytest.raises(Conflict, match=blob(3)[0].hex()):
            blobs.write([blob(9)], new, epoch=old, relies=named(some(4)))
        with pytest.raises(Conflict):
            blobs.write([blob(9)], new, relies=[blob(3)[0]])
        assert list(blobs.references()) == []
        blobs.write([blob(3), blob(9)], new, epoch=old, relies=named(some(4)))
        assert list(blobs.references()) == new

    def test_write_notices_what_is_swept_under_it(self, tmp_path: Path) -> None:
        """Contents of one call that are swept before its references come are missed."""
        blobs = self.open(tmp_path)
        contents = [*some(40, length=500_000), blob(99, 3 << 20)]

        def handed() -> Iterator[tuple[bytes, bytes]]:
            yield from contents
            blobs.sweep(nothing, LATER)
            yield blob(100)

        try:
            blobs.write(handed(), [refer(blob(0)[0])])
        except Conflict:
            assert list(blobs.references()) == []
        else:
            assert blobs.has(named(contents)) == named(contents)
        blobs.write(contents, [refer(blob(0)[0])])
        assert blobs.has(named(contents)) == named(contents)

    def test_remove_takes_what_is_named(self, tmp_path: Path) -> None:
        """Referenced or not, large or small; what is not there does not matter."""
        blobs = self.open(tmp_path)
        contents = [*some(5), blob(6, 3 << 20)]
        blobs.write(contents, [refer(digest) for digest, _ in contents])
        blobs.remove([])
        blobs.remove([blob(0)[0], blob(6, 3 << 20)[0], blob(77)[0]])
        assert set(blobs.digests()) == named(some(4, 1))
        assert len(list(blobs.references())) == 6
        blobs.write(contents)
        assert blobs.get(blob(6, 3 << 20)[0]) == blob(6, 3 << 20)[1]
