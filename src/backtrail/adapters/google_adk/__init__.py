"""Google ADK: its session and artifact services on a Backtrail store, and a plugin for files.

    service = BacktrailSessionService("sqlite:///agent.db", cwd=".")
    runner = Runner(app_name="app", agent=agent, session_service=service,
                    artifact_service=BacktrailArtifactService(service.store),
                    plugins=[service.plugin()])

Events are ordered by their number, never by time; one whose id is there already is not appended
again; a writer that has not seen the newest event is refused. `Runner.rewind_async` takes the
files back, too.
"""

from __future__ import annotations

from .. import needs

with needs("google-adk"):
    from .artifacts import BacktrailArtifactService as BacktrailArtifactService
    from .importing import import_sessions as import_sessions
    from .plugin import BacktrailPlugin as BacktrailPlugin
    from .sessions import BacktrailSessionService as BacktrailSessionService

__all__ = [
    "BacktrailArtifactService",
    "BacktrailPlugin",
    "BacktrailSessionService",
    "import_sessions",
]
