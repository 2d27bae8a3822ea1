"""LangGraph: threads as sessions.

saver.py      `BacktrailSaver`, the checkpointer
building.py   from a checkpoint to events; deltas.py: what is in one, and back
line.py     one namespace of a thread as a log
codec.py     values of the state as JSON, and back
kv.py         `BacktrailStore`, the long-term memory
toolfiles.py      `Files`: what tools do to the files; migrate.py: from SqliteSaver
"""

from __future__ import annotations

from .kv import BacktrailStore
from .migrate import import_threads
from .saver import BacktrailSaver
from .toolfiles import Files

__all__ = ["BacktrailSaver", "BacktrailStore", "Files", "import_threads"]
