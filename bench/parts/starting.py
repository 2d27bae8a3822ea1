"""Importing, and the start of the command-line tool."""

from __future__ import annotations

from ..environments import OWN, interpreter
from ..goals import Goal
from ..running import Contender, Kind
from .base import Column, Part, Sizes

BARE, ARGPARSE = "bare Python", "Python + argparse"
IMPORT, HELP = "import backtrail", "backtrail --help"
LANGGRAPH = "import langgraph.checkpoint.sqlite"

_PEERS = (
    (LANGGRAPH, "langgraph", "import langgraph.checkpoint.sqlite"),
    ("import strands FileSessionManager", "strands",
     "from strands.session.file_session_manager import FileSessionManager"),
    ("import google.adk SqliteSessionService", "adk",
     "from google.adk.sessions.sqlite_session_service import SqliteSessionService"),
    ("import claude_agent_sdk", "claude", "import claude_agent_sdk"),
    ("import agents SQLiteSession", "openai", "from agents.memory import SQLiteSession"),
)  # fmt: skip


def start_part(sizes: Sizes) -> Part:
    def run(name: str, kind: Kind, peer: str | None, code: str) -> Contender:
        return spawn(name, kind, [str(interpreter(peer)), "-c", code], peer)

    def spawn(name: str, kind: Kind, command: list[str], peer: str | None = None) -> Contender:
        times = sizes.few * 2 if peer is None else 2
        job = {"task": "spawn", "command": command, "times": times}
        return Contender(name, kind, "starting", job, starts=peer)

    tool = OWN.parent / "backtrail"
    help_code = "import argparse; argparse.ArgumentParser(prog='x').print_help()"
    use = "from backtrail.session import Session; from backtrail.stores import sqlite, jsonl"
    return Part(
        name="start",
        title="Process start to end",
        contenders=(
            run(IMPORT, "ours", None, "import backtrail"),
            run("import Session and both stores", "ours", None, use),
            spawn(HELP, "ours", [str(tool), "--help"]),
            *(run(name, "peer", peer, code) for name, peer, code in _PEERS),
            run(BARE, "limit", None, "pass"),
            run(ARGPARSE, "limit", None, help_code),
        ),
        columns=(Column("ms", "ms"),),
        goals=(
            Goal("import", IMPORT, "ms", (LANGGRAPH,), at_most=0.4),
            Goal("command-line help", HELP, "ms", (ARGPARSE,), at_most=4),
        ),
        note="Wall time of a whole process, with compiled files present.",
    )
