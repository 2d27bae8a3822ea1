"""Transcripts for tests: lines as the agents write them, and files of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Json = Any
SAMPLES = Path(__file__).parent / "samples"


class Script:
    """A Claude Code transcript under way; each method adds a line and returns its uuid."""

    def __init__(self, cwd: str = "/nowhere", session: str | None = None) -> None:
        self.cwd = cwd
        self.session = session or str(uuid.uuid4())
        self.lines: list[dict[str, Json]] = []
        self.last: str | None = None
        self._count = 0

    def add(self, kind: str, parent: str | type | None = str, **fields: Json) -> str:
        """A line of the chain; `parent` is by default the line before."""
        self._count += 1
        own = f"{self._count:08d}-0000-4000-8000-{self.session[-12:]}"
        line = {
            "parentUuid": self.last if parent is str else parent,
            "isSidechain": False,
            "type": kind,
            "uuid": own,
            "timestamp": f"2026-03-04T05:{self._count // 60:02d}:{self._count % 60:02d}.000Z",
            "cwd": self.cwd,
            "sessionId": self.session,
            "version": "2.1.325",
            "gitBranch": "main",
            **fields,
        }
        self.lines.append(line)
        self.last = str(line["uuid"])
        return self.last

    def note(self, kind: str, **fields: Json) -> None:
        """A line beside the chain."""
        self.lines.append({"type": kind, "sessionId": self.session, **fields})

    def user(self, text: Json, **fields: Json) -> str:
        """Something the user says."""
        return self.add("user", **{"message": {"role": "user", "content": text}, **fields})

    def says(self, *blocks: Json, id: str | None = None, **fields: Json) -> str:
        """A line of a model's response, of one block or more; a text is a block too."""
        content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
        message = {
            "id": id or f"msg_{self._count:04d}",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-5-5",
            "content": content,
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
        return self.add("assistant", **{"message": message, **fields})

    def result(self, call: str, text: str = "ok", **fields: Json) -> str:
        """The result of a tool call."""
        block = {"type": "tool_result", "tool_use_id": call, "content": text}
        return self.add("user", **{"message": {"role": "user", "content": [block]}, **fields})

    def write(self, folder: Path, *, lines: Iterable[Mapping[str, Json]] | None = None) -> Path:
        """The file of the transcript, in a folder of projects."""
        path = folder / "projects" / "-nowhere" / f"{self.session}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(encoded(line) for line in lines or self.lines))
        return path


def call(id: str, name: str = "Bash", **given: Json) -> dict[str, Json]:
    """A block that calls a tool."""
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def encoded(line: Json) -> bytes:
    """A line as JavaScript writes it."""
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def rollout(folder: Path, lines: Iterable[tuple[str, Json]], id: str) -> Path:
    """A Codex rollout of lines given as type and payload."""
    path = folder / "sessions" / "2026" / "03" / "04" / f"rollout-2026-03-04T05-06-07-{id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for number, (kind, payload) in enumerate(lines):
            ts = f"2026-03-04T05:06:{number:02d}.000Z"
            file.write(encoded({"timestamp": ts, "type": kind, "payload": payload}))
    return path
