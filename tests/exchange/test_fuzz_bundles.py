"""Bundles at random, sealed as if they were right: refused whole, or harmless as a session.

The oracle knows nothing of the code: the bytes around the folder, the names in it, and that
no other error comes than the library's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import struct
import tempfile
from pathlib import Path

import pytest

from backtrail import BacktrailError, Session
from backtrail import files as tracked
from backtrail.events import Json
from backtrail.exchange.bundle import read_bundle
from backtrail.settings.allowance import allow
from backtrail.stores import open_store

from .forging import Files, packed, resealed

NAMES = [b"a", b"b", b"src", b"x.txt", b".env", b".git", b".GIT", b"git~1", b".g\xe2\x80\x8cit",
         b".hg", b".sl", b"CVS", b"..", b".", b"", b"a/b", b"\0", b"\xff", b"\\x41", b"HEAD",
         b"objects", b"refs", b"x" * 300, b".backtrail-tmp-1", b".envrc"]  # fmt: skip
KINDS = (
    "user_message", "assistant_message", "tool_result", "action", "files_changed", "checkpoint",
    "rewound", "undone", "redone", "session_start", "turn_end", "lost", "trimmed", "compaction",
    "odd",
)  # fmt: skip
MARKS = ("foreign", "shared", "uncertain", "lost", "parts", "partial", "missed", "moved", "outside")
TEXTS = ["", "x", "../x", "a\\x", "\\xff", "1" * 64, "zz", "\u202e", ".git/config", "e1", "bundle"]
TS = "2026-01-01T00:00:00.000Z"
CONTROL = {".git", ".hg", ".jj", ".svn", ".sl", "CVS", "git~1", ".g\u200cit"}


class Forger:
    """Makes one bundle from a seed."""

    def __init__(self, seed: int, cwd: Path) -> None:
        self.random = random.Random(seed)
        self.cwd = cwd
        self.blobs: dict[str, bytes] = {}
        self.trees: list[str] = []
        self.held: dict[str, list[str]] = {}

    def few(self, most: int) -> int:
        return self.random.randrange(most + 1)

    def seldom(self, one_in: int = 12) -> bool:
        return self.random.randrange(one_in) == 0

    def put(self, content: bytes) -> bytes:
        digest = hashlib.sha256(content)
        self.blobs[digest.hexdigest()] = content
        return digest.digest()

    def tree(self, depth: int = 0) -> bytes:
        entries = []
        held: list[str] = []
        pool = NAMES if self.seldom(8) else NAMES[:5]
        for name in self.random.sample(pool, min(len(pool), self.few(4))):
            kind = self.random.choice([1, 1, 1, 2, 3, 3, 4, 5] + ([0, 9] if self.seldom() else []))
            if kind == 3 and depth < 3:
                value = self.tree(depth + 1)
            elif kind in (1, 3):
                kind = 1 if not self.seldom(20) else kind
                value = self.put(self.random.choice([b"", b"one\n", b"two\n", b"BTT1", b"\0" * 99]))
            else:
                value = self.random.choice([b"../../out", b"a", b"/etc/passwd", b""])
            if kind in (1, 3):
                held.append(value.hex())
            if self.seldom(60):
                value = value[:-1]
            mode = self.random.choice([0o644, 0o755, 0, 0o1777, 0o777 + (self.seldom() << 15)])
            mode |= 0o6000 if self.seldom(60) else 0
            head = struct.pack(">BHQH", kind, mode, self.random.choice([0, 4, 2**63]), len(name))
            entries.append((name, head + name + struct.pack(">H", len(value)) + value))
        if not self.seldom(60):
            entries.sort()
        content = b"BTT1" + b"".join(part for _, part in entries)
        digest = self.put(content[: -self.few(3) or None] if self.seldom(60) else content)
        self.held[digest.hex()] = held
        return digest

    def state(self) -> str:
        if self.trees and self.random.random() < 0.5:
            return self.random.choice(self.trees)
        self.trees.append(self.tree().hex())
        return self.trees[-1]

    def odd(self, depth: int = 0) -> Json:
        """Any value."""
        pick = self.few(9)
        if pick == 0 and depth < 3:
            return [self.odd(depth + 1) for _ in range(self.few(3))]
        if pick == 1 and depth < 3:
            return {self.random.choice(TEXTS): self.odd(depth + 1) for _ in range(self.few(3))}
        return self.random.choice([None, True, -1, 0, 1, 2, 7, 2**53, 1.5, *TEXTS])

    def files(self) -> Json:
        found: dict[str, Json] = {"before": self.state(), "after": self.state()}
        for name in MARKS:
            if self.seldom(5):
                found[name] = self.odd()
        if self.seldom(6):
            found["parts"] = [{"before": self.state(), "after": self.state(), "shared": ["a"]}]
        if self.seldom(15):
            found[self.random.choice(["before", "after"])] = self.odd()
        return found

    def data(self, kind: str) -> dict[str, Json]:
        data: dict[str, Json] = {}
        if kind.endswith("message") or kind == "tool_result":
            data["message"] = {"role": "user", "content": "go"} if not self.seldom() else self.odd()
        if kind in ("user_message", "checkpoint") or self.seldom(6):
            data["tree"] = self.state() if not self.seldom(15) else self.odd()
        if kind in ("action", "tool_result", "files_changed", "rewound", "undone", "redone"):
            data["files"] = self.files() if not self.seldom(15) else self.odd()
        for name in ("at", "to", "of", "kind", "scope", "mode", "name", "label", "metadata", "git",
                     "took_back", "kept", "workspace", "info", "seq", "seqs", "usage"):  # fmt: skip
            if self.seldom(6):
                data[name] = self.odd()
        if kind == "checkpoint" and not self.seldom(8):
            data["at"] = self.few(3)
        return data

    def reached(self, trees: list[str]) -> list[str]:
        """What trees hold, themselves too; now and then not all of it."""
        found: dict[str, None] = {}
        todo = list(trees)
        while todo:
            name = todo.pop()
            if name not in found:
                found[name] = None
                todo += self.held.get(name, ())
        return [name for name in found if not self.seldom(400)]

    def made(self) -> Files:
        lines: list[dict[str, Json]] = []
        for seq in range(1, 2 + self.few(7)):
            kind = self.random.choice(KINDS)
            line: dict[str, Json] = {"seq": seq, "id": f"e{seq}", "kind": kind, "ts": TS}
            line["data"] = self.data(kind)
            if self.seldom(5):
                line["follows"] = self.few(seq - 1)
            if self.seldom(80):
                line[self.random.choice(["seq", "id", "kind", "ts", "data", "follows"])] = (
                    self.odd()
                )
            lines.append(line)
        log = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        session: dict[str, Json] = {"id": "theirs", "created_at": TS,
                                    "cwd": str(self.cwd)}  # fmt: skip
        for name in ("metadata", "tags", "title", "key", "parent_id", "relation", "fork_seq",
                     "model", "root"):  # fmt: skip
            if self.seldom(60):
                session[name] = self.odd()
        if self.seldom(3):
            session["metadata"] = {"imported_from": None, "native": self.odd()}
        said = json.dumps(lines)
        trees = [tree for tree in dict.fromkeys(self.trees) if tree in said]
        self.blobs = {name: self.blobs[name] for name in self.reached(trees)}
        manifest: dict[str, Json] = {
            "format": "backtrail-bundle", "version": 1, "session": session, "missing": [],
            "logs": [{"name": "messages", "events": len(lines), "size": len(log),
                      "sha256": hashlib.sha256(log).hexdigest()}],
            "trees": trees,
            "blobs": [{"sha256": n, "size": len(held)} for n, held in self.blobs.items()],
        }  # fmt: skip
        if self.seldom(20):
            manifest[self.random.choice(list(manifest))] = self.odd()
        contents = [(f"blobs/{name}", held) for name, held in self.blobs.items()]
        return resealed([("", b""), *contents, ("logs/0.jsonl", log), ("", b"")], manifest)


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every path below a folder with its mode and content, links as links."""
    found = {}
    for at, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(at, name)
            mode = path.lstat().st_mode
            held = b""
            if path.is_symlink():
                held = os.fsencode(path.readlink())
            elif path.is_file():
                held = path.read_bytes()
            found[str(path.relative_to(folder))] = (mode, held)
    return found


def tried(seed: int, place: Path) -> str:
    """Import one bundle, go everywhere in it, and say how it ended."""
    victim = place / "around" / "victim"
    (victim / ".git").mkdir(parents=True)
    (victim / ".git" / "config").write_text("mine\n")
    (victim / "a").write_text("one\n")
    (place / "around" / "precious").write_text("precious\n")
    path = place / "b"
    path.write_bytes(packed(Forger(seed, victim).made()))
    outside = everything(place / "around")
    with open_store(f"{'sqlite:///' if seed % 2 else 'file:'}{place}/store.db") as store:
        try:
            read_bundle(store, path)
        except BacktrailError:
            assert store.sessions() == []
            assert store.contents is not None and not store.contents.exists()
            return "refused"
        assert everything(place / "around") == outside
        assert store.info("theirs").metadata["imported_from"] == "bundle"
        events = list(store.read("theirs"))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert list(store.read("theirs", reverse=True)) == events[::-1]
        with Session.resume(store, "theirs") as s:
            # It knows another folder than this one, until `relocate`.
            with contextlib.suppress(BacktrailError):
                s.relocate()
            with contextlib.suppress(BacktrailError):
                s.rewind(1, mode="exact")
            assert everything(place / "around") == outside, "before it was allowed"
            allow(victim)
            for verb in (s.messages, s.branches, s.checkpoints, s.changes, s.history, s.undo,
                         s.redo, s.not_captured):  # fmt: skip
                with contextlib.suppress(BacktrailError):
                    verb()
            for event in events:
                for mode in ("mine", "exact"):
                    with contextlib.suppress(BacktrailError):
                        s.rewind(before=event, mode=mode, scope="files")
        tracked.verify(store)
        with contextlib.suppress(BacktrailError):
            tracked.collect(store, grace=0)
    now = everything(place / "around")
    kept = {name: held for name, held in outside.items() if not name.startswith("victim/a")}
    assert {name: now.get(name) for name in kept if name != "victim"} == {
        name: held for name, held in kept.items() if name != "victim"
    }
    new = [name for name in now if name not in outside]
    assert all(name.startswith("victim/") for name in new)
    assert not [n for n in new if CONTROL & {part.lower() for part in n.split("/")}]
    return "written" if new else "taken"


def fuzz(seeds: range) -> dict[str, int]:
    counts = {"refused": 0, "taken": 0, "written": 0}
    for seed in seeds:
        place = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            counts[tried(seed, place)] += 1
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            for folder, _, _ in os.walk(place):
                os.chmod(folder, 0o700)
            shutil.rmtree(place)
    return counts


def test_bundles_at_random() -> None:
    """A sample."""
    counts = fuzz(range(100, 150))
    assert min(counts.values()) > 3, counts


@pytest.mark.torture
def test_many_bundles_at_random() -> None:
    """All of them."""
    counts = fuzz(range(2000))
    assert min(counts.values()) > 200, counts
