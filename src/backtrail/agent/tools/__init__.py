"""The tools a model can call, and how to make more of them."""

from __future__ import annotations

from .bash import BASH
from .files import EDIT, READ, WRITE
from .grep import GLOB, GREP
from .patch import APPLY_PATCH
from .task import TASK
from .tool import Context, Tool, ToolFailed, check_input, tool_from, tools_named, watched_paths

BUILT_IN: dict[str, Tool] = {
    tool.name: tool for tool in (READ, WRITE, EDIT, APPLY_PATCH, GLOB, GREP, BASH, TASK)
}
"""Every built-in tool, by name."""

__all__ = [
    "BUILT_IN",
    "Context",
    "Tool",
    "ToolFailed",
    "check_input",
    "tool_from",
    "tools_named",
    "watched_paths",
]
