"""The real `claude`, with a model on loopback, mirrored into a store and resumed from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from backtrail.adapters.claude_sdk import BacktrailSessionStore

from ...claude.running import Model, calls


async def say(prompt: str, options: ClaudeAgentOptions) -> str:
    """One prompt, to its end; the id of the session."""
    found = ""
    async for message in query(prompt=prompt, options=options):
        if isinstance(message, ResultMessage):
            assert not message.is_error, message
            found = message.session_id
    return found


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_session_goes_on_from_the_store(tmp_path: Path, backend: str) -> None:
    """On a clean disk the model hears what was said before, and files go back with it."""
    project = tmp_path / "project"
    project.mkdir()
    note = project / "note.txt"
    with Model() as model:
        store = BacktrailSessionStore(f"sqlite:///{tmp_path}/s.db")

        def options(home: str, **more: Any) -> ClaudeAgentOptions:
            env = {
                "CLAUDE_CONFIG_DIR": str(tmp_path / home),
                "HOME": str(tmp_path / home),
                "ANTHROPIC_BASE_URL": model.url,
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "IS_SANDBOX": "1",
            }
            return ClaudeAgentOptions(
                cwd=project, env=env, session_store=store, hooks=store.hooks(), system_prompt="x",
                permission_mode="bypassPermissions", tools=["Write", "Bash"], **more,
            )  # fmt: skip

        write = calls("Write", {"file_path": str(note), "content": "one"}, "w1")
        model.script(write, "written")
        id = anyio.run(say, "write a note", options("a"), backend=backend)
        assert note.read_text() == "one"
        model.script("a note")
        anyio.run(say, "what did I ask?", options("b", resume=id), backend=backend)
        assert "write a note" in model.heard()
        with store.session(id, project) as session:
            kinds = [event.kind for event in session.events()]
            assert kinds.count("action") == 1
            said = [e for e in session.events() if e.kind == "user_message"]
            assert "write a note" in json.dumps(said[0].data)
            session.rewind(before=said[0], scope="files")
            assert not note.exists()
            session.undo()
            assert note.read_text() == "one"
        store.close()
