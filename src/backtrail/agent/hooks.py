"""Hooks of the host: plain callables that hear what the agent does, and may say no.

`on_session_start`, `on_prompt`, `before_tool` and `before_compact` may veto, by raising
`Veto` or returning False; one that fails in another way counts as a no. `after_tool`,
`on_stop` and `on_error` only listen; what they raise is noted in the session's problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from weakref import WeakSet

from ..errors import BacktrailError, InvalidData
from ..events import Json
from ..session.liveturn import LiveTurn

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


class About(Mapping[str, Json]):
    """What a hook gets. The transcript is written when its path is asked for."""

    def __init__(self, values: dict[str, Json], transcript: Callable[[], str]) -> None:
        self._values = values
        self._transcript = transcript

    def __getitem__(self, name: str) -> Json:
        if name == "transcript_path" and name not in self._values:
            self._values[name] = self._transcript()
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._values, "transcript_path": None})

    def __len__(self) -> int:
        return len(self._values.keys() | {"transcript_path"})

    def __repr__(self) -> str:
        return f"About({self._values!r})"


@dataclass(slots=True)
class Hooks:
    """The host's callables by name."""

    known: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    session_id: str | None = None
    parent_session_id: str | None = None
    started: WeakSet[object] = field(default_factory=WeakSet)

    def __post_init__(self) -> None:
        unknown = set(self.known) - set(NAMES)
        if unknown:
            raise InvalidData(f"there is no hook {unknown.pop()!r}; there are {', '.join(NAMES)}")

    def start(self, turn: LiveTurn) -> None:
        """Call `on_session_start`, once for each session object."""
        if turn.session not in self.started:
            self.call("on_session_start", turn)
            self.started.add(turn.session)

    def call(self, name: str, turn: LiveTurn, **details: Json) -> None:
        """Call a hook that may veto."""
        try:
            said = self._said(name, turn, details)
        except Veto:
            raise
        except Exception as error:
            raise Veto(f"the hook {name} failed: {type(error).__name__}: {error}") from error
        if said is False:
            raise Veto(f"a hook of the host ({name}) said no")

    def notify(self, name: str, turn: LiveTurn, **details: Json) -> None:
        """Call a hook that only listens."""
        try:
            self._said(name, turn, details)
        except Exception as error:
            turn.log.complain(f"hook {name}", f"{type(error).__name__}: {error}")

    def _said(self, name: str, turn: LiveTurn, details: Mapping[str, Json]) -> object:
        """What a hook returned; None if there is none of this name."""
        hook = self.known.get(name)
        return None if hook is None else _plain(hook(self._about(turn, name, details)))

    def _about(self, turn: LiveTurn, name: str, details: Mapping[str, Json]) -> About:
        session = turn.session
        parent = self.parent_session_id or session.info().parent_id
        values = {
            "hook": name,
            "session_id": self.session_id or session.id,
            "parent_session_id": parent,
            "cwd": turn.workspace,
            **details,
        }
        return About(values, turn.log.transcript_path)


def _plain(said: object) -> object:
    if isawaitable(said):
        close = getattr(said, "close", None)
        if callable(close):
            close()
        raise InvalidData("a hook is a plain function, not an asynchronous one")
    return said
