"""Hooks of a Strands agent that bracket each tool call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strands.hooks import (
    AfterInvocationEvent,
    AfterToolCallEvent,
    BeforeToolCallEvent,
    HookProvider,
    HookRegistry,
)

from .._bridge import Brackets

if TYPE_CHECKING:
    from .repository import BacktrailSessionRepository


class BacktrailHooks(HookProvider):
    """Brackets around tool calls: what a call did to the files goes back with it."""

    def __init__(self, repository: BacktrailSessionRepository, session_id: str) -> None:
        self._repository = repository
        self._session_id = session_id
        self._brackets = Brackets()

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Hear of each call."""
        registry.add_callback(BeforeToolCallEvent, self._before)
        registry.add_callback(AfterToolCallEvent, self._after)
        registry.add_callback(AfterInvocationEvent, self._over)

    def _before(self, event: BeforeToolCallEvent) -> None:
        use = event.tool_use
        session = self._repository.open(self._session_id)
        self._brackets.begin(session, use["toolUseId"], use["name"], use["input"])

    def _after(self, event: AfterToolCallEvent) -> None:
        self._brackets.end(event.tool_use["toolUseId"], str(event.result), event.exception)

    def _over(self, event: AfterInvocationEvent) -> None:
        self._brackets.end_all()
