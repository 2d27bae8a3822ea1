"""Hooks of the host: plain callables that hear what the agent does, and may say no.

`on_session_start`, `on_prompt`, `before_tool` and `before_compact` may veto, by raising
`Veto` or returning False; `after_tool`, `on_stop` and `on_error` only listen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..errors import BacktrailError, InvalidData
from ..events import Json
from ..turns import LiveTurn

NAMES = (
    "on_session_start",
    "on_prompt",
    "before_tool",
    "after_tool",
    "on_stop",
    "on_error",
    "before_compact",
)
"""The hooks there are."""


class Veto(BacktrailError):
    """A hook said no; its message is for the model or the caller."""


@dataclass(slots=True)
class Hooks:
    """The host's callables by name."""

    known: Mapping[str, Callable[..., Json]] = field(default_factory=dict)
    parent_session_id: str | None = None

    def __post_init__(self) -> None:
        unknown = set(self.known) - set(NAMES)
        if unknown:
            raise InvalidData(f"there is no hook {unknown.pop()!r}; there are {', '.join(NAMES)}")

    def call(self, name: str, turn: LiveTurn, **details: Json) -> None:
        """Call a hook that may veto."""
        hook = self.known.get(name)
        if hook is not None and hook(self._input(turn, details)) is False:
            raise Veto(f"a hook of the host ({name}) said no")

    def tell(self, name: str, turn: LiveTurn, **details: Json) -> None:
        """Call a hook that only listens."""
        hook = self.known.get(name)
        if hook is not None:
            hook(self._input(turn, details))

    def _input(self, turn: LiveTurn, details: Mapping[str, Json]) -> dict[str, Json]:
        session = turn.session
        return {
            "session_id": session.id,
            "parent_session_id": self.parent_session_id,
            "cwd": turn.workspace,
            "transcript_path": session._transcript_path(),
            **details,
        }
