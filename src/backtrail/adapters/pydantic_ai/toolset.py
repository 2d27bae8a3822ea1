"""A toolset that brackets each call of the one it wraps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

from ...session.threads import finish, run
from .._bridge import Brackets
from .conversations import BacktrailConversationStore


@dataclass
class BacktrailToolset(WrapperToolset[Any]):
    """Brackets around tool calls: what a call did to the files goes back with it.

    A run without a conversation is passed through as it is.
    """

    store: BacktrailConversationStore

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Call the tool in a bracket."""
        if ctx.conversation_id is None or ctx.run_id is None:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        said = [one for one in ctx.messages if one.run_id == ctx.run_id]
        session = await run(self.store.draft, ctx.conversation_id, ctx.run_id, said)
        brackets = Brackets()
        id = ctx.tool_call_id or name
        await run(brackets.begin, session, id, name, tool_args)
        try:
            result = await self.wrapped.call_tool(name, tool_args, ctx, tool)
        except BaseException as error:
            await finish(partial(brackets.end, id, None, error))
            raise
        await run(brackets.end, id, result)
        return result
