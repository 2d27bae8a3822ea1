"""Bundles made by hand, through the tools of others: the standard tar module, and zstd."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import struct
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import zstandard

from backtrail.events import Json

Files = list[tuple[str, bytes]]
"""Names and contents, in order."""


def unpacked(path: Path) -> Files:
    """The files of a bundle, as `tar --zstd` sees them."""
    raw = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    files: Files = []
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        for member in archive:
            held = archive.extractfile(member)
            assert member.isreg() and held is not None
            files.append((member.name, held.read()))
    return files


def packed(files: Files, change: Callable[[tarfile.TarInfo], None] | None = None) -> bytes:
    """A bundle of these files; `change` may edit their headers."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if change is not None:
                change(member)
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return compressed([raw.getvalue()])


def compressed(parts: Iterable[bytes]) -> bytes:
    """Parts as one compressed stream."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as writer:
        for part in parts:
            writer.write(part)
    return out.getvalue()


def manifest_of(files: Files) -> dict[str, Json]:
    """The manifest of a bundle."""
    manifest: dict[str, Json] = json.loads(files[0][1])
    return manifest


def resealed(files: Files, manifest: dict[str, Json]) -> Files:
    """The files with another manifest, sealed as if it were right."""
    content = json.dumps(manifest).encode()
    seal = hashlib.sha256(content).hexdigest().encode() + b"\n"
    return [("manifest.json", content), *files[1:-1], ("manifest.sha256", seal)]


def with_log(files: Files, content: bytes, log: str = "messages") -> Files:
    """The files with another content of a log, and a manifest that agrees with it."""
    manifest = manifest_of(files)
    number = [entry["name"] for entry in manifest["logs"]].index(log)
    entry = manifest["logs"][number]
    entry["size"], entry["sha256"] = len(content), hashlib.sha256(content).hexdigest()
    entry["events"] = content.count(b"\n")
    name = f"logs/{number}.jsonl"
    changed = [(n, content if n == name else held) for n, held in files]
    return resealed(changed, manifest)


def lines_of(files: Files, log: str = "messages") -> list[dict[str, Json]]:
    """The events of a log."""
    names = [entry["name"] for entry in manifest_of(files)["logs"]]
    held = dict(files)[f"logs/{names.index(log)}.jsonl"]
    return [json.loads(line) for line in held.splitlines()]


def with_lines(files: Files, lines: list[dict[str, Json]], log: str = "messages") -> Files:
    """The files with other events in a log."""
    return with_log(files, b"".join(json.dumps(line).encode() + b"\n" for line in lines), log)


# --- whole sessions ----------------------------------------------------------------------

State = dict[str, "bytes | State | tuple[str, str]"]
"""A directory: contents of files, directories, and ("link", target)."""


def tree_of(state: State, blobs: dict[str, bytes]) -> str:
    """The digest of a directory as a tree, made by hand; its contents are put into `blobs`."""

    def put(content: bytes) -> bytes:
        digest = hashlib.sha256(content)
        blobs[digest.hexdigest()] = content
        return digest.digest()

    parts = [b"BTT1"]
    for name, held in sorted((name.encode(), held) for name, held in state.items()):
        if isinstance(held, bytes):
            kind, mode, value = 1, 0o755 if held.startswith(b"#!") else 0o644, put(held)
        elif isinstance(held, tuple):
            kind, mode, value = 2, 0o777, held[1].encode()
        else:
            kind, mode, value = 3, 0o755, bytes.fromhex(tree_of(held, blobs))
        parts.append(struct.pack(">BHQH", kind, mode, 0, len(name)) + name)
        parts.append(struct.pack(">H", len(value)) + value)
    return put(b"".join(parts)).hex()


def forged(states: list[State], cwd: Path, id: str = "theirs") -> Files:
    """A bundle of one session in which each state of the files follows the one before it."""
    blobs: dict[str, bytes] = {}
    trees = [tree_of(state, blobs) for state in states]
    ts = "2026-01-01T00:00:00.000Z"
    said = {"message": {"role": "user", "content": "go"}, "format": "openai", "tree": trees[0]}
    lines: list[dict[str, Json]] = [{"seq": 1, "id": "e1", "kind": "user_message", "data": said}]
    for before, after in itertools.pairwise(trees):
        seq = len(lines) + 1
        data = {"name": "bash", "files": {"before": before, "after": after}}
        lines.append({"seq": seq, "id": f"e{seq}", "kind": "action", "data": data})
    log = b"".join(json.dumps(line | {"ts": ts}).encode() + b"\n" for line in lines)
    used = dict.fromkeys(trees)
    manifest = {
        "format": "backtrail-bundle",
        "version": 1,
        "session": {"id": id, "created_at": ts, "cwd": str(cwd), "title": "A stranger's"},
        "logs": [
            {
                "name": "messages",
                "events": len(lines),
                "size": len(log),
                "sha256": hashlib.sha256(log).hexdigest(),
            }
        ],
        "trees": list(used),
        "blobs": [{"sha256": name, "size": len(held)} for name, held in blobs.items()],
        "missing": [],
    }
    contents = [(f"blobs/{name}", held) for name, held in blobs.items()]
    files: Files = [("manifest.json", b""), *contents, ("logs/0.jsonl", log), ("", b"")]
    return resealed(files, manifest)
