"""The keywords of a session, shared by all ways to begin one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict

from .events import Json

OnError = Literal["raise", "record"] | Callable[[Exception], None]
"""What a failing store does to an append: raise, be noted in `problems`, or be told."""


class SessionOptions(TypedDict, total=False):
    """Keywords shared by `create`, `open`, `resume`, `latest` and `fork`.

    `cwd`: the directory the session belongs to. `agent`: a callable that answers a turn, or
    "provider:model", or `provider` and `model` apart; `tools`, `can_use_tool`, `phase`,
    `hooks` and `agent_options` go to the agent that is made of it, and are never stored.
    `system_prompt`: pinned, never dropped by a rewind. `messages`: a history to begin with.
    `key`: a foreign name. `files`: watch over `cwd`, with "force" also where that is a home
    or a whole file system, with "background" without waiting for the first scan; `progress`
    is told how many files that one has seen.
    `lease`: hold the right to drive for each "turn", the whole "session", or never;
    `wait`: seconds to wait for it.
    `persist=False`: leave nothing behind.
    """

    cwd: str | os.PathLike[str] | None
    agent: Callable[..., Json] | str | None
    provider: str | None
    tools: Json
    can_use_tool: Callable[..., Json] | None
    phase: str
    hooks: Mapping[str, Callable[..., Json]]
    agent_options: Mapping[str, Json]
    system_prompt: str | None
    messages: Sequence[object]
    title: str | None
    key: str | None
    model: str | None
    agent_name: str | None
    metadata: Mapping[str, Json] | None
    tags: Sequence[str]
    files: bool | Literal["background", "force"]
    progress: Callable[[int], None] | None
    lease: Literal["turn", "session"] | None
    wait: float
    on_error: OnError
    persist: bool
