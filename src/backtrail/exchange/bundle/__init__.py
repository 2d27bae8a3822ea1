"""Bundles: a whole session in one file, to go on with it elsewhere.

`write_bundle` packs the logs of a session, its record, and the contents of the files that its
events refer to. `read_bundle` checks all of it before anything is written, and then makes the
session as one step: contents first, the session last.

    container.py   the archive: a strict tar, zstd, limits
    manifest.py    what is in it: manifest, lines
    check.py       reading it, and believing nothing
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import BinaryIO

import msgspec

from ...errors import AlreadyExists, Damaged, NotFound
from ...events import MAIN_LOG, AsDict, Event, SessionInfo, check_session_id
from ...files.contents.blobs import Reference
from ...files.contents.garbage import check_floor, reach
from ...files.depot import Depot, has_contents, opened
from ...files.trees import EMPTY, EMPTY_DIGEST, Get
from ...formats.secrets import Masking
from ...stores.base import Store
from ...stores.copies import check_gap
from ...stores.opening import store_at
from ...stores.wrapper import store_name
from ..export.placing import placed
from . import manifest as layout
from .check import Bundle, check_bundle, check_file, opened_bundle
from .container import Limits, Packer
from .manifest import FORMAT, VERSION, BlobEntry, LogEntry, Manifest, blob_name

__all__ = ["Bundle", "Bundled", "Limits", "check_bundle", "pack", "read_bundle", "would_read",
           "write_bundle"]  # fmt: skip

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Bundled(AsDict):
    """What was packed. `missing` counts contents that were gone or damaged in the store."""

    session_id: str
    logs: int
    events: int
    blobs: int
    missing: int
    masked: int


# --- writing -----------------------------------------------------------------------------


def write_bundle(
    store: Store | str, session_id: str, path: str | os.PathLike[str], *,
    masking: Masking | None = None, force: bool = False,
) -> Bundled:  # fmt: skip
    """Pack a session into a file at `path`, which appears whole or not at all.

    Nothing is masked unless `masking` is given, and contents of files never are.
    """
    with store_at(store, create=False) as place:
        place.info(session_id)
        with placed(path, force=force) as file:
            return pack(place, session_id, file, masking=masking)


def pack(
    store: Store, session_id: str, file: BinaryIO, *, masking: Masking | None = None
) -> Bundled:
    """Pack a session into an open file. The session may go on meanwhile."""
    masking = masking or Masking(on=False)
    info = store.info(session_id)
    with ExitStack() as stack:
        spooled: list[tuple[LogEntry, BinaryIO]] = []
        trees: dict[str, None] = {}
        for log in store.logs(session_id):
            spool = stack.enter_context(tempfile.TemporaryFile(prefix="backtrail-"))
            note = trees if log == MAIN_LOG else {}
            events = _filled(store.read(session_id, log=log), session_id)
            spooled.append((_spool(log, events, spool, masking, note), spool))
        has_any = has_contents(store) and bool(trees)
        get = _getter(stack.enter_context(opened(store)) if has_any else None)
        blobs, missing = _reached(get, trees)
        record = replace(info, title=masking.json(info.title), metadata=masking.json(info.metadata))
        manifest = Manifest(
            FORMAT, VERSION, layout.record_of(record), [entry for entry, _ in spooled], list(trees),
            [BlobEntry(digest, size) for digest, size in blobs.items()], missing, masking.count,
        )  # fmt: skip
        _pack(file, manifest, [spool for _, spool in spooled], get)
    total = sum(entry.events for entry, _ in spooled)
    return Bundled(session_id, len(spooled), total, len(blobs), len(missing), masking.count)


def _spool(
    log: str, events: Iterator[Event], spool: BinaryIO, masking: Masking, trees: dict[str, None]
) -> LogEntry:
    """Write a log aside, since the manifest comes first and states its length."""
    total = hashlib.sha256()
    size = count = 0
    for event in events:
        trees.update(dict.fromkeys(layout.trees_in(event.data)))
        line = layout.encode_event(replace(event, data=masking.json(event.data)))
        spool.write(line)
        total.update(line)
        size, count = size + len(line), count + 1
    return LogEntry(log, count, size, total.hexdigest())


def _filled(events: Iterator[Event], session_id: str) -> Iterator[Event]:
    """A log without gaps: what damage took is a `lost` event, as in any copy."""
    last = 0
    for event in events:
        check_gap(last, event.seq, session_id)
        while last + 1 < event.seq:
            last += 1
            yield Event(last, f"lost-{last}", event.ts, "lost", {"seq": last})
        last = event.seq
        yield event


def _reached(get: Get, trees: dict[str, None]) -> tuple[dict[str, int], list[str]]:
    """The contents that can be had, with their lengths, and those that cannot."""
    there: dict[str, int] = {}
    missing: dict[str, None] = {}
    roots = [bytes.fromhex(tree) for tree in reversed(trees)]
    for digest in reach(get, roots, lambda digest, error: None):
        name = digest.hex()
        if name in there or name in missing:
            continue
        try:
            there[name] = len(get(digest))
        except (NotFound, Damaged):
            missing[name] = None
    return there, list(missing)


def _getter(depot: Depot | None) -> Get:
    """What gets contents. An empty directory may be known by its digest alone."""

    def get(digest: bytes) -> bytes:
        if depot is None:
            raise NotFound(f"no blob `{digest.hex()}` in this store")
        return EMPTY if digest == EMPTY_DIGEST else depot.blobs.get(digest)

    return get


def _pack(file: BinaryIO, manifest: Manifest, spools: list[BinaryIO], get: Get) -> None:
    packer = Packer(file)
    content = msgspec.json.encode(manifest)
    packer.add(layout.MANIFEST, len(content), iter([content]))
    for blob in manifest.blobs:
        packer.add(blob_name(blob.sha256), blob.size, iter([get(bytes.fromhex(blob.sha256))]))
    for number, (entry, spool) in enumerate(zip(manifest.logs, spools, strict=True)):
        spool.seek(0)
        packer.add(layout.log_name(number), entry.size, _chunks(spool))
    seal = hashlib.sha256(content).hexdigest().encode() + b"\n"
    packer.add(layout.SEAL, len(seal), iter([seal]))
    packer.close()


def _chunks(spool: BinaryIO) -> Iterator[bytes]:
    while chunk := spool.read(_CHUNK):
        yield chunk


# --- reading -----------------------------------------------------------------------------


def read_bundle(
    store: Store | str, path: str | os.PathLike[str], *, as_id: str | None = None,
    cwd: str | os.PathLike[str] | None = None, limits: Limits | None = None,
) -> SessionInfo:  # fmt: skip
    """Make the session of a bundle in a store, and return its record.

    All of the bundle is checked first: what is hostile or damaged is refused, and nothing is
    written. A session of that id with the same events, and perhaps more, is left as it is;
    one with others is `AlreadyExists`, and `as_id` gives the new one another id. `cwd` binds
    it to another directory than the one it was made in.
    """
    limits = limits or Limits()
    with store_at(store) as place, opened_bundle(path) as file:
        bundle, info, is_there = _compared(place, file, as_id, limits)
        if cwd is not None:
            info = replace(info, cwd=os.fspath(cwd), root=None)
        if not is_there:
            _take(place, info, bundle, file, limits)
        return place.info(info.id)


def would_read(
    store: Store, path: str | os.PathLike[str], *, as_id: str | None = None
) -> tuple[Bundle, bool]:
    """What `read_bundle` would make, checked as a whole, and whether it is there already.

    Nothing is written, and what would be refused is refused.
    """
    with opened_bundle(path) as file:
        bundle, info, is_there = _compared(store, file, as_id, Limits())
    return replace(bundle, info=info), is_there


def _compared(
    store: Store, file: BinaryIO, as_id: str | None, limits: Limits
) -> tuple[Bundle, SessionInfo, bool]:
    """A bundle, the record it will have in a store, and whether it is there already."""
    if as_id is not None:
        check_session_id(as_id)
    bundle = check_file(file, limits)
    info = bundle.info
    if as_id is not None and as_id != info.id:
        # A key names one session, and that is the other one.
        info = replace(info, id=as_id, key=None)
    if not _known(store, info.id):
        return bundle, info, False
    if not bundle.again(file, limits).is_in(store, info.id):
        raise AlreadyExists(
            f"session `{info.id}` exists, and the bundle's is another: import it under "
            "a new name with --as ID"
        )
    return bundle, info, True


def _known(store: Store, session_id: str) -> bool:
    try:
        store.logs(session_id)
    except NotFound:
        return False
    return True


def _take(store: Store, info: SessionInfo, bundle: Bundle, file: BinaryIO, limits: Limits) -> None:
    """Contents and what relies on them first, the session last.

    A process that is killed in between leaves contents that the next collection removes.
    """
    with ExitStack() as stack:
        manifest = bundle.manifest
        depot = stack.enter_context(opened(store)) if manifest.blobs else None
        if depot is not None:
            check_floor(depot.folder)
        name = store_name(store)
        references = [Reference(name, info.id, bytes.fromhex(tree)) for tree in manifest.trees]
        digests = [bytes.fromhex(blob.sha256) for blob in manifest.blobs]
        epoch = depot.blobs.epoch() if depot is not None else 0

        reading = bundle.again(file, limits)
        if depot is not None:
            depot.blobs.write(reading.contents(), references, epoch=epoch, relies=digests)
        store.adopt(info, reading.logs())
