"""pydantic-ai: its `ConversationStore` on a Backtrail store, and a toolset wrapper for files.

    store = BacktrailConversationStore("sqlite:///agent.db", cwd=".")
    agent = Agent(model, toolsets=[store.wrap(toolset)])
    conversation = await store.load("chat-1") or Conversation(conversation_id="chat-1")
    await store.save(await agent.run("fix the tests", conversation=conversation))

Each message is one event of the main log, each save one batch with a record behind its messages. A
branch continues from an earlier event, a fork is a fork. A wrapped toolset brackets each call, and
keeps what was said before it at once, so that files go back with the conversation.
"""

from __future__ import annotations

from .. import needs

with needs("pydantic-ai"):
    from .conversations import BacktrailConversationStore as BacktrailConversationStore
    from .toolset import BacktrailToolset as BacktrailToolset

__all__ = ["BacktrailConversationStore", "BacktrailToolset"]
