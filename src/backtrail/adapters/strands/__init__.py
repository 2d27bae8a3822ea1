"""Strands Agents: its `SessionRepository` and `Storage` on a Backtrail store, and hooks for files.

    repository = BacktrailSessionRepository("sqlite:///agent.db", cwd=".")
    sessions = RepositorySessionManager("chat-1", session_repository=repository)
    agent = Agent(model, session_manager=sessions, hooks=[repository.hooks("chat-1")])

The first agent's messages are the main log, those of others are subagents. A message that another
writer has stored under the same number is an error, never overwritten. What is redacted is purged.
"""

from __future__ import annotations

from .. import needs

with needs("strands"):
    from .hooks import BacktrailHooks as BacktrailHooks
    from .repository import BacktrailSessionRepository as BacktrailSessionRepository
    from .storage import BacktrailStorage as BacktrailStorage

__all__ = ["BacktrailHooks", "BacktrailSessionRepository", "BacktrailStorage"]
