"""Microsoft Agent Framework: `HistoryProvider` and `CheckpointStorage` on a Backtrail store.

    history = BacktrailHistoryProvider("sqlite:///agent.db", cwd=".")
    agent = Agent(client, context_providers=[history], middleware=[history.middleware()])
    await agent.run("fix the tests", session=agent.create_session(session_id="chat-1"))

Each message is one event of the main log. The middleware brackets each function call, so that files
go back with the conversation. Checkpoints of workflows are events of a session for each workflow;
nothing is pickled.
"""

from __future__ import annotations

from .. import needs

with needs("agent-framework"):
    from .provider import BacktrailHistoryProvider as BacktrailHistoryProvider
    from .provider import BacktrailMiddleware as BacktrailMiddleware
    from .workflows import BacktrailCheckpointStorage as BacktrailCheckpointStorage

__all__ = ["BacktrailCheckpointStorage", "BacktrailHistoryProvider", "BacktrailMiddleware"]
