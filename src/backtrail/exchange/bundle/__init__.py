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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import BinaryIO

import msgspec

from ...errors import AlreadyExists, Damaged, NotFound
from ...events import MAIN_LOG, AsDict, Event, NewEvent, SessionInfo, check_session_id
from ...files.contents.blobs import Reference
from ...files.contents.garbage import check_floor, reach
from ...files.depot import has_contents, opened
from ...files.trees import EMPTY, EMPTY_DIGEST, Get
from ...formats.secrets import Masking
from ...stores.base import Store
from ...stores.copies import check_gap
from ...stores.opening import store_at
from ...stores.wrapper import store_name
from ..export.placing import placed
from .check import Bundle, Reading, check_bundle, check_file, opened_bundle
from .container import Limits, Packer
from .manifest import (
    FORMAT,
    MANIFEST,
    SEAL,
    VERSION,
    BlobEntry,
    LogEntry,
    Manifest,
    blob_name,
    encode_event,
    log_name,
    record_of,
    trees_in,
)

__all__ = [
    "Bundle",
    "Bundled",
    "Limits",
    "check_bundle",
    "pack",
    "read_bundle",
    "would_read",
    "write_bundle",
]

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
    store: Store | str,
    session_id: str,
    path: str | os.PathLike[str],
    *,
    masking: Masking | None = None,
    force: bool = False,
) -> Bundled:
    """Pack a session into a file at `path`, which appears whole or not at all.

    Nothing is masked unless `masking` is given, and contents of files never are.
    """
    if not isinstance(store, Store):
        with store_at(store, create=False) as place:
            return write_bundle(place, session_id, path, masking=masking, force=force)
    store.info(session_id)
    with placed(path, force=force) as file:
        return pack(store, session_id, file, masking=masking)


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
        get: Get = _nothing
        if has_contents(store) and trees:
            get = _with_empty(stack.enter_context(opened(store)).blobs.get)
        blobs, missing = _reached(get, trees)
        record = replace(info, title=masking.json(info.title), metadata=masking.json(info.metadata))
        manifest = Manifest(
            FORMAT, VERSION, record_of(record), [entry for entry, _ in spooled], list(trees),
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
        trees.update(dict.fromkeys(trees_in(event.data)))
        line = encode_event(replace(event, data=masking.json(event.data)))
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


def _nothing(digest: bytes) -> bytes:
    raise NotFound(f"no blob `{digest.hex()}` in this store")


def _with_empty(get: Get) -> Get:
    """An empty directory may be known by its digest alone."""
    return lambda digest: EMPTY if digest == EMPTY_DIGEST else get(digest)


def _pack(file: BinaryIO, manifest: Manifest, spools: list[BinaryIO], get: Get) -> None:
    packer = Packer(file)
    content = msgspec.json.encode(manifest)
    packer.add(MANIFEST, len(content), iter([content]))
    for blob in manifest.blobs:
        packer.add(blob_name(blob.sha256), blob.size, iter([get(bytes.fromhex(blob.sha256))]))
    for number, (entry, spool) in enumerate(zip(manifest.logs, spools, strict=True)):
        spool.seek(0)
        packer.add(log_name(number), entry.size, _chunks(spool))
    seal = hashlib.sha256(content).hexdigest().encode() + b"\n"
    packer.add(SEAL, len(seal), iter([seal]))
    packer.close()


def _chunks(spool: BinaryIO) -> Iterator[bytes]:
    while chunk := spool.read(_CHUNK):
        yield chunk


# --- reading -----------------------------------------------------------------------------


def read_bundle(
    store: Store | str,
    path: str | os.PathLike[str],
    *,
    as_id: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
) -> SessionInfo:
    """Make the session of a bundle in a store, and return its record.

    All of the bundle is checked first: what is hostile or damaged is refused, and nothing is
    written. A session of that id with the same events, and perhaps more, is left as it is;
    one with others is `AlreadyExists`, and `as_id` gives the new one another id. `cwd` binds
    it to another directory than the one it was made in.
    """
    if not isinstance(store, Store):
        with store_at(store) as place:
            return read_bundle(place, path, as_id=as_id, cwd=cwd, limits=limits)
    limits = limits or Limits()
    with opened_bundle(path) as file:
        bundle, info, is_there = _compared(store, file, as_id, limits)
        if cwd is not None:
            info = replace(info, cwd=os.fspath(cwd), root=None)
        if not is_there:
            _take(store, info, bundle, file, limits)
    return store.info(info.id)


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
    if not bundle.again(file, limits, lambda reading: reading.is_in(store, info.id)):
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
    manifest = bundle.manifest
    with ExitStack() as stack:
        put: Callable[[Iterator[tuple[bytes, bytes]]], None] = _drop
        if manifest.blobs:
            depot = stack.enter_context(opened(store))
            check_floor(depot.folder)
            name = store_name(store)
            references = [Reference(name, info.id, bytes.fromhex(t)) for t in manifest.trees]
            digests = [bytes.fromhex(blob.sha256) for blob in manifest.blobs]
            epoch = depot.blobs.epoch()

            def put(contents: Iterator[tuple[bytes, bytes]]) -> None:
                depot.blobs.write(contents, references, epoch=epoch, relies=digests)

        def take(reading: Reading) -> bool:
            put(reading.contents())
            logs: dict[str, Iterator[NewEvent]] = reading.logs()
            store.adopt(info, logs)
            return True

        bundle.again(file, limits, take)


def _drop(contents: Iterator[tuple[bytes, bytes]]) -> None:
    for _ in contents:
        pass
