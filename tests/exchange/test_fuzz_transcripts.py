"""Transcripts at random: every line is kept, nothing outside is touched, and twice is once.

Lines as agents write them, with any value in any place, cut, doubled and mixed up.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from backtrail import BacktrailError, Session
from backtrail import files as tracked
from backtrail.events import Json
from backtrail.exchange.foreign import find, import_found
from backtrail.stores import open_store

from .test_codex import ID, LINES
from .transcripts import SAMPLES

ODD: list[Json] = [
    None, True, False, -1, 0, 1, 2**70, 1.5, "", "x", "\u202e", "../../etc/x", "/etc/x", "\ud800",
    ".git/config", "a\0b", "9" * 5000, [], {}, [[]], {"": None}, {"type": 5}, {"type": ["x"]},
    [{"type": "text"}], [{"type": ["x"]}], {"role": "user"}, "2026-01-01T00:00:00Z",
]  # fmt: skip
BROKEN = (b"", b"null", b"[]", b"\xff\xfe", b"[" * 3000, b"{}", b"\0")


def claude_lines() -> list[Json]:
    """The lines of the samples, those of tools and snapshots of files too."""
    files = sorted((SAMPLES / "claude-code").rglob("*.jsonl"))
    return [json.loads(line) for file in files[:3] for line in file.read_bytes().splitlines()]


def codex_lines() -> list[Json]:
    """The lines of a rollout."""
    return [
        {"timestamp": f"2026-03-04T05:06:{number:02d}.000Z", "type": kind, "payload": payload}
        for number, (kind, payload) in enumerate(LINES)
    ]


class Forger:
    """Makes one transcript from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def spoilt(self, value: Json, rate: float) -> Json:
        """The value with others in some places."""
        if self.random.random() < rate:
            return copy.deepcopy(self.random.choice(ODD))
        if isinstance(value, dict):
            kept = {k: self.spoilt(v, rate) for k, v in value.items()}
            if kept and self.random.random() < rate:
                del kept[self.random.choice(list(kept))]
            return kept
        if isinstance(value, list):
            return [self.spoilt(one, rate) for one in value]
        return value

    def lines(self, lines: list[Json]) -> list[bytes]:
        rate = self.random.choice([0, 0.005, 0.02, 0.1])
        ids = [line["uuid"] for line in lines if isinstance(line, dict) and "uuid" in line]
        made: list[bytes] = []
        for line in self.random.sample(lines, self.random.randrange(1, min(len(lines), 40))):
            new = self.spoilt(line, rate)
            if isinstance(new, dict) and ids and self.random.random() < 0.2:
                # Cycles, parents that come later, and uuids that come twice.
                name = self.random.choice(["uuid", "parentUuid", "logicalParentUuid", "leafUuid"])
                new[name] = self.random.choice(ids)
            raw = json.dumps(new).encode()
            pick = self.random.random()
            if pick < 0.03:
                raw = raw[: self.random.randrange(len(raw) + 1)]
            elif pick < 0.05:
                raw = self.random.choice(BROKEN)
            made += [raw] * (1 + (self.random.random() < 0.05))
        return made


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def tried(seed: int, place: Path) -> int:
    """Import one transcript; how many events came of it."""
    forger = Forger(seed)
    around = place / "around"
    around.mkdir()
    (around / "precious").write_text("precious\n")
    if seed % 2:
        agent = "claude-code"
        path = around / "projects" / "-p" / "aaaaaaaa-0000-4000-8000-000000000001.jsonl"
        shutil.copytree(SAMPLES / "claude-code" / "file-history", around / "file-history")
        raw = forger.lines(claude_lines())
    else:
        agent = "codex"
        path = around / "sessions" / f"rollout-2026-03-04T05-06-07-{ID}.jsonl"
        raw = forger.lines(codex_lines())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    before = everything(around)
    events = 0
    with open_store(f"{'sqlite:///' if seed % 4 < 2 else 'file:'}{place}/store.db") as store:
        for one in import_found(store, find(agent, path)):  # type: ignore[arg-type]
            assert one.error is None, one.error
            if one.session_id:
                events += check(store.url, one.session_id)
        for one in import_found(store, find(agent, path)):  # type: ignore[arg-type]
            assert (one.error, one.events, one.lines) == (None, 0, 0)
        assert tracked.verify(store) == []
    assert everything(around) == before
    return events


def check(url: str, id: str) -> int:
    """The session can be read forwards and backwards, and shown."""
    with Session.resume(url, id, files=False) as s:
        events = list(s.events())
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert list(s.events(reverse=True)) == events[::-1]
        for verb in (s.messages, s.history, s.branches, s.checkpoints):
            try:
                verb()
            except BacktrailError:
                continue
        return len(events)


def fuzz(seeds: range) -> int:
    events = 0
    for seed in seeds:
        place = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            events += tried(seed, place)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            shutil.rmtree(place)
    return events


def test_transcripts_at_random() -> None:
    """A sample."""
    assert fuzz(range(50)) > 100


@pytest.mark.torture
def test_many_transcripts_at_random() -> None:
    """All of them."""
    assert fuzz(range(2000)) > 5_000


def test_a_block_of_any_type_can_be_shown() -> None:
    """A call without a result, and behind it a message whose block has a type that is no text."""
    with Session.create("memory:") as s:
        call = {"type": "tool_use", "id": "c1", "name": "bash", "input": {}}
        s.append({"role": "assistant", "content": [call]})
        s.append({"role": "user", "content": [{"type": ["x"]}]})
        assert [message["role"] for message in s.messages()] == ["assistant", "user", "user"]
