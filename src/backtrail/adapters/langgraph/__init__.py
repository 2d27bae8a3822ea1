"""LangGraph: threads as sessions.

saver.py      `BacktrailSaver`, the checkpointer
building.py   from a checkpoint to events; records.py: what is in one, and back
thread.py     one namespace of a thread as a log
values.py     values of the state as JSON, and back
"""

from __future__ import annotations

from .saver import BacktrailSaver

__all__ = ["BacktrailSaver"]
