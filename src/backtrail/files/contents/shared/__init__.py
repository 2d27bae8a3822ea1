"""Contents for many machines: the index in PostgreSQL, the bytes there too or in packs on S3.

What a call changes is little, and goes into the index, in the statement that stores the references
to it. More goes into packs, each put once and never changed. Where a content is, and whether it is
there, is what the tables say: a bucket is never listed.

Every writer of references holds a share of the row with the epoch, what removes contents holds
it alone; `Blobs` has the two rules that rest on this.

    packindex.py    the rows: contents, references, packs
    packplaces.py   where packs are: PostgreSQL, or a bucket
    sweeper.py      removing; packs that are half empty
    nearcopy.py     the contents of this machine in front of it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ....errors import Damaged, NotFound, Unsupported
from ....stores.postgres import tables
from ....stores.postgres.address import Address, parse
from ....stores.postgres.link import Execute, Link
from ..blobs import Blobs, Keep, Reference, Swept, checked, damaged, missing
from ..rows import Packed, gathered, pack_all, unpack
from . import packindex as index
from .nearcopy import CachedContents
from .packplaces import Place, place_at

INLINE = 256 << 10
"""Bytes up to which a write goes into the index."""

PACK = 12 << 20
"""Bytes of a pack, about: many contents are gathered up to this."""


def open_shared(address: Address, scope: str, url: str, folder: Path) -> Blobs:
    """The contents of a PostgreSQL store, with those of this machine in front of them."""
    return CachedContents(SharedBlobs(address, scope, url), folder)


def open_postgres_blobs(address: str) -> Blobs:
    """`postgresql://USER@HOST/DATABASE`: contents there, for a store that is elsewhere."""
    return SharedBlobs(parse(f"postgresql:{address}"), "", "")


def open_s3_blobs(address: str) -> Blobs:
    """`s3://BUCKET/PREFIX` by itself is no place: what is in packs is known to a database."""
    raise Unsupported(
        f"contents in s3:{address} are indexed in PostgreSQL: they belong to a store there, "
        "open_store('postgresql://…', blobs='s3://…')"
    )


class SharedBlobs(Blobs):
    """Contents of one scope, in PostgreSQL or on S3."""

    def __init__(self, address: Address, scope: str = "", url: str = "") -> None:
        self._link = Link(address)
        self._scope = scope
        try:
            store = tables.check(self._link, True)
            self._place: Place = place_at(url, self._link)
        except BaseException:
            self._link.close()
            raise
        self.id = f"{store}#{scope}" if scope else store

    @property
    def link(self) -> Link:
        """The way to the database."""
        return self._link

    # --- reading -------------------------------------------------------------------------

    def get(self, digest: bytes) -> bytes:
        for last in (False, True):
            row = self._link.read(lambda e: index.locate(e, self._scope, digest))
            try:
                return self.content(digest, row)
            except NotFound:
                # It may have been moved to another pack since it was looked for.
                if last or row is None or row.key is None:
                    raise
        raise missing(digest)

    def content(self, digest: bytes, row: index.Row | None, packed: bytes | None = None) -> bytes:
        """The content that a row of the index is about, checked."""
        if row is None:
            raise missing(digest)
        if packed is None:
            packed = row.content
        if packed is None:
            if row.key is None:
                raise damaged(digest, "the index does not say where it is")
            packed = self._place.get(row.key, row.at, row.length)
        try:
            content = unpack(Packed(row.size, row.codec, packed))
        except Damaged as error:
            raise damaged(digest, str(error)) from error
        return checked(digest, content)

    def get_many(self, digests: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Contents, as far as they are there and sound: few requests, however many they are."""
        rows = self._link.read(lambda e: index.locate_many(e, self._scope, digests))
        packs: dict[str, list[index.Row]] = {}
        for row in rows:
            if row.content is not None or row.key is None:
                yield from self._sound(row, row.content)
            else:
                packs.setdefault(row.key, []).append(row)
        for key, some in packs.items():
            spans = [(row.at, row.length) for row in some]
            try:
                parts = self._place.get_ranges(key, spans)
            except NotFound:
                continue
            for row, part in zip(some, parts, strict=True):
                yield from self._sound(row, part)

    def _sound(self, row: index.Row, packed: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield row.digest, self.content(row.digest, row, packed)
        except (Damaged, NotFound):
            # One that is asked for by itself says what is wrong.
            return

    def has(self, digests: Collection[bytes]) -> set[bytes]:
        return self._link.read(lambda execute: index.present(execute, self._scope, digests))

    def size(self, digest: bytes) -> int:
        row = self._link.read(lambda execute: index.locate(execute, self._scope, digest))
        if row is None:
            raise missing(digest)
        return row.size

    def digests(self) -> Iterator[bytes]:
        self._link.check_open()
        return index.digests(self._link, self._scope)

    def references(self) -> Iterator[Reference]:
        self._link.check_open()
        return index.references(self._link, self._scope)

    def epoch(self) -> int:
        return self._link.read(index.epoch_in)

    def used(self) -> int:
        return self._link.read(lambda execute: index.used(execute, self._scope))

    def erased(self, after: int) -> tuple[int, list[bytes]]:
        """What was erased for good since a number, and the number to ask from next time."""
        return self._link.read(lambda execute: index.erased(execute, self._scope, after))

    # --- writing -------------------------------------------------------------------------

    def write(
        self,
        contents: Iterable[tuple[bytes, bytes]],
        references: Iterable[Reference] = (),
        *,
        epoch: int | None = None,
        relies: Collection[bytes] = (),
        sync: bool = True,
    ) -> None:
        self._link.check_open()
        began: int | None = None
        earlier: list[bytes] = []
        last: list[index.New] = []
        size = 0
        for batch in gathered(contents):
            for digest, packed in zip(batch, pack_all(list(batch.values())), strict=True):
                last.append(index.New(digest, packed))
                size += len(packed.content)
            if size > PACK:
                began = self.epoch() if began is None else began
                earlier += self._store(last)
                last, size = [], 0
        referring = list(references)
        if size > INLINE:
            began = self.epoch() if began is None else began
            earlier += self._store(last)
            last = []
        if last or referring:
            if epoch is not None and not earlier and self._in_one(last, referring, epoch):
                return
            known = index.Known(epoch, relies, began, earlier)
            self._link.write(
                lambda execute: index.store(execute, self._scope, last, referring, known)
            )

    def _in_one(self, new: list[index.New], referring: list[Reference], epoch: int) -> bool:
        """Store what a call changed by one statement, if nothing was removed since."""
        return self._link.read(
            lambda execute: index.store_in(execute, self._scope, new, referring, epoch)
        )

    def _store(self, new: list[index.New]) -> list[bytes]:
        """Store contents that no reference comes with; their digests."""
        there = self.has([one.digest for one in new])
        present = [one for one in new if one.digest in there]
        absent = [one for one in new if one.digest not in there]
        if present:
            touched = self._link.write(
                lambda e: index.touch(e, self._scope, [one.digest for one in present])
            )
            # Removed since they were seen.
            absent += [one for one in present if one.digest not in touched]
        for some in self._place.cut(absent, PACK):
            self._put(some)
        return [one.digest for one in new]

    def _put(self, new: list[index.New]) -> None:
        """One transaction's worth, into the index or into a pack of its own."""
        if not self._place.packs(new):
            self._link.write(lambda e: index.store(e, self._scope, new, [], index.NOTHING_KNOWN))
            return
        body = b"".join(one.packed.content for one in new)
        while not self._put_pack(new, body):
            # It took so long that a sweep gave it up.
            continue

    def _put_pack(self, new: list[index.New], body: bytes) -> bool:
        key, place = index.new_key(), self._place
        number = self._link.read(lambda e: index.begin(e, self._scope, place.name, key, len(body)))
        place.put(key, number, body)
        return self._link.write(lambda e: index.finish(e, self._scope, number, new))

    def flush(self) -> None:
        self._link.check_open()

    @property
    def dirty(self) -> bool:
        return False

    def close(self) -> None:
        self._link.close()

    # --- references ----------------------------------------------------------------------

    def drop_references(
        self, store: str, log: str | None = None, roots: Collection[bytes] | None = None
    ) -> None:
        def drop(execute: Execute) -> None:
            index.drop(execute, self._scope, store, log, roots)

        self._link.write(drop)

    def copy_references(self, store: str, log: str, new_log: str) -> None:
        self._link.write(lambda e: index.copy(e, self._scope, store, log, new_log))

    # --- removing ------------------------------------------------------------------------

    def sweep(self, keep: Keep, before: float, *, dry_run: bool = False) -> Swept:
        return self.swept(keep, before, dry_run=dry_run)[0]

    def swept(
        self, keep: Keep, before: float, *, dry_run: bool = False
    ) -> tuple[Swept, set[bytes]]:
        """`sweep`, and what went."""
        from .sweeper import Sweep

        self._link.check_open()
        sweep = Sweep(self, self._link, self._scope, self._place, keep, before)
        return sweep.run(dry_run=dry_run), sweep.gone

    def remove(self, digests: Collection[bytes]) -> None:
        from .sweeper import erase

        self._link.check_open()
        erase(self, self._link, self._scope, self._place, digests)
