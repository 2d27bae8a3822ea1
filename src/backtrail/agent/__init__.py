"""The built-in agent: a loop over a model and tools.

factory.py       the agent that a name such as `ollama:qwen2.5-coder` stands for
loop.py          a turn: ask the model, run its calls, until it asks for no more
models/          how a model is asked, at OpenAI-compatible servers, at Anthropic, from a script
tools/           what a model can call
permissions.py   which calls may run; hooks.py: code of the caller around them
subagents.py     a loop inside a call; compaction.py: a conversation that became too long
oneshot.py       one turn without a session to hold
"""

from __future__ import annotations
