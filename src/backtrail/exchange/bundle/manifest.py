"""The inside of a bundle: its manifest, its files, and the lines of its logs.

    manifest.json       what is in the bundle, with sizes and SHA-256
    blobs/<sha256>      contents of files, and trees
    logs/<n>.jsonl      the logs, one event a line
    manifest.sha256     the SHA-256 of manifest.json, and the end

`docs/reference/bundle.md` is the normative text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import msgspec

from ...errors import Damaged, Unsupported
from ...events import MAIN_LOG, MAX_DATA, Event, Json, NewEvent, SessionInfo, check_log
from ...settings.allowance import ORIGIN
from ...stores.records import new_record
from ..shapes import list_in, text_in
from .container import Limits

FORMAT = "backtrail-bundle"
VERSION = 1

MANIFEST = "manifest.json"
SEAL = "manifest.sha256"

LONGEST_LINE = MAX_DATA + 4096
"""Bytes of a line above which a log is refused."""

SERVER_THERE = "imported_base_url"
"""The metadata that says which model's server an imported session was talked with at."""

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class LogEntry(msgspec.Struct, frozen=True):
    """A log in the manifest."""

    name: str
    events: int
    size: int
    sha256: str


class BlobEntry(msgspec.Struct, frozen=True):
    """A content in the manifest."""

    sha256: str
    size: int


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the manifest says about the session."""

    id: str
    created_at: str
    key: str | None = None
    parent_id: str | None = None
    relation: Literal["fork", "subagent"] | None = None
    fork_seq: int | None = None
    title: str | None = None
    cwd: str | None = None
    root: str | None = None
    model: str | None = None
    agent_name: str | None = None
    tags: list[str] = []
    metadata: dict[str, Json] = {}

    def info(self) -> SessionInfo:
        """The session's record, as it is taken in.

        The address of a model's server is put aside: no person here has agreed to talk to it. And
        it is marked as a stranger's, whatever the bundle says.
        """
        info = SessionInfo(**{name: getattr(self, name) for name in self.__struct_fields__})
        if self.root is not None and not f"{self.cwd}/".startswith(f"{self.root.rstrip('/')}/"):
            # Only a folder above the agent's can be its workspace.
            info = replace(info, root=None)
        metadata = dict(self.metadata)
        server = metadata.pop("base_url", None)
        if server is not None:
            metadata[SERVER_THERE] = server
        return replace(info, metadata=metadata | {ORIGIN: "bundle"})


class Manifest(msgspec.Struct, frozen=True):
    """What is in a bundle. `trees` are the states that events name, `missing` what was gone."""

    format: str
    version: int
    session: Record
    logs: list[LogEntry]
    trees: list[str]
    blobs: list[BlobEntry]
    missing: list[str]
    masked: int = 0


class _Version(msgspec.Struct):
    format: Json = None
    version: Json = None


def record_of(info: SessionInfo) -> Record:
    """What is kept of a session's record: all that cannot be folded from its log."""
    kept = {name: getattr(info, name) for name in Record.__struct_fields__}
    if info.root == info.cwd:
        del kept["root"]
    return Record(**kept)


def blob_name(digest: str) -> str:
    """The name of a content in the archive."""
    return f"blobs/{digest}"


def log_name(number: int) -> str:
    """The name of a log in the archive."""
    return f"logs/{number}.jsonl"


def decode_manifest(content: bytes, limits: Limits) -> Manifest:
    """The manifest, if all in it can be believed; else `Damaged`, or `Unsupported`."""
    try:
        version = msgspec.json.decode(content, type=_Version)
        if version.format != FORMAT:
            raise Damaged("not a bundle of Backtrail: its manifest names another format")
        if version.version != VERSION:
            raise Unsupported(
                f"the bundle has version {version.version!r} of the format, and this Backtrail "
                f"reads version {VERSION}: update it, or export again with this version"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"the bundle's manifest cannot be read: {error}") from error
    _check_manifest(manifest, limits)
    return manifest


def _check_manifest(manifest: Manifest, limits: Limits) -> None:
    names = [check_log(log.name) for log in manifest.logs]
    if len(set(names)) < len(names) or MAIN_LOG not in names:
        raise Damaged("the bundle's manifest lists a log twice, or no main log")
    blobs = [blob.sha256 for blob in manifest.blobs]
    if len(blobs) + len(names) > limits.files:
        raise Damaged(f"the bundle holds {len(blobs) + len(names)} files: over {limits.files}")
    digests = [*blobs, *manifest.trees, *manifest.missing, *(log.sha256 for log in manifest.logs)]
    if not all(map(_DIGEST.fullmatch, digests)):
        raise Damaged("the bundle's manifest holds something that is no SHA-256")
    for listed in (blobs, manifest.trees, manifest.missing):
        if len(set(listed)) < len(listed):
            raise Damaged("the bundle's manifest lists a content twice")
    if set(blobs) & set(manifest.missing):
        raise Damaged("the bundle's manifest lists a content as missing and there")
    sizes = [*(blob.size for blob in manifest.blobs), *(log.size for log in manifest.logs)]
    if min(sizes) < 0 or min(log.events for log in manifest.logs) < 0:
        raise Damaged("the bundle's manifest holds a negative size")
    fork_seq = manifest.session.fork_seq
    if fork_seq is not None and not 0 <= fork_seq <= next(
        log.events for log in manifest.logs if log.name == MAIN_LOG
    ):
        raise Damaged(f"the session was forked at event {fork_seq}, which it does not have")
    if not manifest.session.created_at:
        raise Damaged("the bundle does not say when its session was made")
    new_record(manifest.session.info(), "")


# --- events ------------------------------------------------------------------------------


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    seq: int
    id: str
    ts: str
    kind: str
    data: dict[str, Json]
    follows: int | None = None


_decode_line = msgspec.json.Decoder(_Line).decode


def encode_event(event: Event) -> bytes:
    """Encode an event as a line, with its newline."""
    return msgspec.json.encode(event.to_dict()) + b"\n"


def decode_events(lines: Iterator[bytes], entry: LogEntry) -> Iterator[NewEvent]:
    """The events of a log, whose numbers must be 1, 2, 3 … up to as many as it has."""
    last = 0
    for line in lines:
        try:
            event = _decode_line(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            where = f"event {last + 1} of the log `{entry.name}`"
            raise Damaged(f"{where} cannot be read: {error}") from error
        if event.seq != last + 1:
            raise Damaged(f"event {event.seq} of the log `{entry.name}` comes after {last}")
        if event.follows is not None and not 0 <= event.follows < event.seq:
            raise Damaged(f"event {event.seq} of `{entry.name}` follows {event.follows}")
        last = event.seq
        yield NewEvent(event.kind, event.data, event.id, event.follows, event.ts)
    if last != entry.events:
        raise Damaged(f"the log `{entry.name}` has {last} events, not {entry.events}")


def trees_in(data: dict[str, Json]) -> Iterator[str]:
    """The digests of the states that an event names."""
    holders = [{"tree": data.get("tree")}, data.get("files"), *list_in(data, "files", "parts")]
    named = (text_in(one, name) for one in holders for name in ("tree", "before", "after"))
    yield from (digest for digest in named if digest and _DIGEST.fullmatch(digest))
