"""LangGraph: threads as sessions.

saver.py      `BacktrailSaver`, the checkpointer
building.py   from a checkpoint to events; records.py: what is in one, and back
thread.py     one namespace of a thread as a log
values.py     values of the state as JSON, and back
kv.py         `BacktrailStore`, the long-term memory
tools.py      `Files`: what tools do to the files; importing.py: from SqliteSaver
"""

from __future__ import annotations

from .importing import import_threads
from .kv import BacktrailStore
from .saver import BacktrailSaver
from .tools import Files

__all__ = ["BacktrailSaver", "BacktrailStore", "Files", "import_threads"]
