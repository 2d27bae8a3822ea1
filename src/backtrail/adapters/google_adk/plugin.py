"""A plugin of ADK's runner that brackets each tool call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.adk.plugins.base_plugin import BasePlugin

from ...session.threads import run
from .._bridge import Brackets

if TYPE_CHECKING:
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext

    from .sessions import BacktrailSessionService


class BacktrailPlugin(BasePlugin):
    """Brackets around tool calls: what a call did to the files goes back with it."""

    def __init__(self, service: BacktrailSessionService, name: str = "backtrail") -> None:
        super().__init__(name=name)
        self._service = service
        self._brackets = Brackets()

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        """A tool call begins."""
        at = tool_context.session
        await run(lambda: self._brackets.begin(
            self._service.open(at.app_name, at.user_id, at.id),
            _call_of(tool_context, tool), tool.name, tool_args,
        ))  # fmt: skip

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext,
        result: dict[str, Any],
    ) -> None:  # fmt: skip
        """A tool call is over."""
        await run(self._brackets.end, _call_of(tool_context, tool), result)

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext,
        error: Exception,
    ) -> None:  # fmt: skip
        """A tool call has failed."""
        await run(self._brackets.end, _call_of(tool_context, tool), None, error)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """A run is over, and all its calls are."""
        await run(self._brackets.end_all)


def _call_of(context: ToolContext, tool: BaseTool) -> str:
    """What names a call: its id, where the model gave one."""
    return context.function_call_id or tool.name
