"""Transcripts that the real Claude Code wrote, played again: lines and hooks in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..exchange.transcripts import SAMPLES, encoded
from .calling import Agent

Line = dict[str, Any]


def sample(name: str, project: Path) -> list[Line]:
    """The lines of a sample, as if written in `project`."""
    text = (SAMPLES / "claude-scenes" / f"{name}.jsonl").read_text()
    return [json.loads(line.replace("/project", str(project))) for line in text.splitlines()]


def said(line: Line) -> str:
    """What a line says: its text, or what a tool answered."""
    content = line["message"]["content"]
    if isinstance(content, str):
        return content
    return "".join(block.get("text") or str(block.get("content", "")) for block in content)


def live(lines: list[Line]) -> list[str]:
    """What the model is sent next, by the chain of parents alone.

    The first prompt of a conversation has nothing before it, whatever parent it names.
    """
    by_uuid = {line["uuid"]: line for line in lines if "uuid" in line}
    at = [line for line in lines if line["type"] in ("user", "assistant")][-1]
    found: list[str] = []
    while True:
        if at["type"] in ("user", "assistant"):
            found.append(said(at))
        above = by_uuid.get(at["parentUuid"] or "")
        if above is None or at.get("turnPosition", {}).get("turnIndex") == 1:
            return [text for text in reversed(found) if text]
        at = above


class Player:
    """Plays lines: a hook comes before the prompt's line, and around what a tool does."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.path = agent.world.root / "transcript.jsonl"
        self.played: list[Line] = []

    def play(self, lines: list[Line], until: str = "") -> None:
        """Play what was not played yet, up to the prompt of these words."""
        for line in lines[len(self.played) :]:
            is_prompt = line["type"] == "user" and "promptSource" in line
            if is_prompt and until and said(line) == until:
                return
            if is_prompt:
                self.agent.prompt(said(line), line["promptId"])
            self.played.append(line)
            with self.path.open("ab") as file:
                file.write(encoded(line))
            for name, given, id in _calls(line):
                self.act(name, given, id)
            if line["type"] == "system" and line.get("subtype") == "stop_hook_summary":
                self.agent.stop()

    def write_side(self, agent: str, lines: list[Line]) -> None:
        """Lines of a subagent, behind those in its file; a hook finds them."""
        folder = self.path.with_suffix("") / "subagents"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"agent-{agent}.jsonl").open("ab") as file:
            file.writelines(map(encoded, lines))

    def act(self, name: str, given: Line, id: str, **fields: Any) -> None:
        """What a tool does, with its hooks; a tool that only reads has none."""
        if name == "Write":
            self.agent.write(Path(given["file_path"]), given["content"], id, **fields)
        elif name == "Edit":
            path = Path(given["file_path"])
            text = path.read_text().replace(given["old_string"], given["new_string"])
            self.agent.tool(name, given, lambda: path.write_text(text), id, **fields)


def _calls(line: Line) -> Iterator[tuple[str, Line, str]]:
    for block in line["message"]["content"] if line["type"] == "assistant" else ():
        if block["type"] == "tool_use":
            yield block["name"], block["input"], block["id"]
