"""One store, every framework: each writes a session from its own environment, people use them all.

`make test-frameworks` makes the environments and runs this last. It needs no framework itself.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .. import postgres
from .people import cli

ENVIRONMENTS = Path(__file__).parents[2] / ".frameworks"

WRITERS = {
    "openai_agents": """
from backtrail.adapters.openai_agents import BacktrailSession
session = BacktrailSession("of-openai_agents", url)
for turn in (1, 2):
    items = [{"role": "user", "content": ask(turn)}, {"role": "assistant", "content": "well"}]
    asyncio.run(session.add_items(items))
""",
    "google_adk": """
from google.adk.events import Event
from google.genai import types
from backtrail.adapters.google_adk import BacktrailSessionService
async def main():
    service = BacktrailSessionService(url)
    session = await service.create_session(
        app_name="app", user_id="u", session_id="of-google_adk")
    for turn in (1, 2):
        for role, text in (("user", ask(turn)), ("model", "well")):
            content = types.Content(role=role, parts=[types.Part(text=text)])
            event = Event(author=role, invocation_id=str(turn), content=content)
            await service.append_event(session, event)
asyncio.run(main())
""",
    "pydantic_ai": """
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from backtrail.adapters.pydantic_ai import BacktrailConversationStore
store, one = BacktrailConversationStore(url), Conversation(conversation_id="of-pydantic_ai")
for turn in (1, 2):
    one.messages.append(ModelRequest(parts=[UserPromptPart(ask(turn))]))
    one.messages.append(ModelResponse(parts=[TextPart("well")]))
    asyncio.run(store.save(one))
""",
    "strands": """
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType
from backtrail.adapters.strands import BacktrailSessionRepository
repository, name = BacktrailSessionRepository(url), "of-strands"
repository.create_session(Session(name, SessionType.AGENT))
repository.create_agent(name, SessionAgent("a", {}, {}))
texts = [("user", ask(1)), ("assistant", "well"), ("user", ask(2)), ("assistant", "well")]
for n, (role, text) in enumerate(texts):
    said = {"role": role, "content": [{"text": text}]}
    repository.create_message(name, "a", SessionMessage(said, n))
""",
    "agent_framework": """
from agent_framework import Message
from backtrail.adapters.agent_framework import BacktrailHistoryProvider
history = BacktrailHistoryProvider(url)
for turn in (1, 2):
    said = [Message("user", [ask(turn)]), Message("assistant", ["well"])]
    asyncio.run(history.save_messages("of-agent_framework", said))
""",
    "langgraph": """
from langgraph.graph import START, MessagesState, StateGraph
from backtrail.adapters.langgraph import BacktrailSaver
graph = StateGraph(MessagesState)
graph.add_node("answer", lambda state: {"messages": [("ai", "well")]})
graph.add_edge(START, "answer")
with BacktrailSaver(url) as saver:
    app = graph.compile(checkpointer=saver)
    for turn in (1, 2):
        config = {"configurable": {"thread_id": "of-langgraph"}}
        app.invoke({"messages": [("user", ask(turn))]}, config)
""",
    "claude_sdk": """
import uuid
from backtrail.adapters.claude_sdk import BacktrailSessionStore
store = BacktrailSessionStore(url)
key = {"project_key": "p", "session_id": "0a0a0a0a-1111-4222-8333-444444444444"}
for turn in (1, 2):
    for kind, text in (("user", ask(turn)), ("assistant", [{"type": "text", "text": "well"}])):
        entry = {"type": kind, "uuid": str(uuid.uuid4()), "sessionId": key["session_id"],
                 "message": {"role": kind, "content": text}}
        asyncio.run(store.append(key, [entry]))
""",
}

HEAD = """
import asyncio, sys
url, framework = sys.argv[1:]
def ask(turn):
    return f"prompt{turn} by {framework}"
"""

THERE = [name for name in WRITERS if (ENVIRONMENTS / name / "bin" / "python").exists()]


@pytest.mark.skipif(
    os.environ.get("BACKTRAIL_TEST_FRAMEWORK") != "all", reason="`make test-frameworks` runs it"
)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.timeout(600)
def test_people_use_every_session_alike(kind: str, tmp_path: Path) -> None:
    """ls, search, show, fork, undo, redo, rewind and export, whatever wrote it."""
    sqlite = f"sqlite:///{tmp_path}/store.db"
    url = sqlite if kind == "sqlite" else postgres.url_for(tmp_path)
    assert THERE
    for name in THERE:
        python = ENVIRONMENTS / name / "bin" / "python"
        code = HEAD + WRITERS[name]
        done = subprocess.run(
            [python, "-W", "ignore", "-c", code, url, name], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    listed = json.loads(cli(url, "ls", "--all", "--json"))["sessions"]
    by_title = {row["title"] or row.get("name"): row["id"] for row in listed}
    for name in THERE:
        found = [id for title, id in by_title.items() if title == f"prompt1 by {name}"]
        assert len(found) == 1, (name, by_title)
        id = found[0]
        assert id in cli(url, "search", f'"prompt2 by {name}"', "--all", "--json")
        assert _prompts(cli(url, "show", id)) == 2
        fork = json.loads(cli(url, "fork", "-s", id, "--json"))
        assert fork["parent"] == id
        cli(url, "undo", "-s", id, "--yes")
        assert _prompts(cli(url, "show", id)) == 1
        cli(url, "redo", "-s", id, "--yes")
        assert _prompts(cli(url, "show", id)) == 2
        cli(url, "diff", "-s", id)
        exported = tmp_path / f"{kind}-{name}.md"
        cli(url, "export", id, "--markdown", "-o", str(exported))
        assert f"prompt2 by {name}" in exported.read_text()


def _prompts(shown: str) -> int:
    return sum(row.startswith("> prompt") for row in shown.splitlines())
