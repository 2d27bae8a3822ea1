"""The tool that hands work to a subagent."""

from __future__ import annotations

from ...events import Json
from .tool import Context, ToolFailed, as_json, tool_from


def task(ctx: Context, description: str, prompt: str) -> Json:
    """Hand a task to a subagent that works on its own and answers once.

    It sees only the prompt, and you see only its answer: say all it needs to know, and what
    to report.

    Args:
        description: The task in a few words.
        prompt: The whole task.
    """
    if ctx.spawn is None:
        raise ToolFailed("There are no subagents here: do the task yourself.")
    return as_json(ctx.spawn(prompt, description))


TASK = tool_from(task, kind="run", subject="description")
