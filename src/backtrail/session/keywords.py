"""The keywords of a session, shared by all ways to begin one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict

from ..errors import InvalidData
from ..events import Json
from ..stores.records import resolved

OnError = Literal["raise", "record"] | Callable[[Exception], None]
"""What a failing store does to an append: raise, be noted in `problems`, or go to a callable."""


FilesOption = bool | Literal["background", "force"]
"""Whether files are captured, and how; see `SessionOptions`."""


class SessionOptions(TypedDict, total=False):
    """Keywords shared by `create`, `open`, `resume`, `latest` and `fork`.

    `cwd`: the directory the session belongs to. `root`: the directory that is watched over, if
    that is one above `cwd`; a session keeps the root it began with.
    `agent`: a callable that answers a turn, or
    "provider:model", or `provider` and `model` apart; `tools`, `can_use_tool`, `phase`,
    `hooks` and `agent_options` go to the agent that is made of it, and are never stored.
    `system_prompt`: pinned, never dropped by a rewind. `messages`: a history to begin with.
    `key`: a foreign name. `files`: watch over the root, with "force" also where that is a home
    or a whole file system, with "background" without waiting for the first scan; `progress`
    gets how many files that one has seen.
    `lease`: hold the right to drive for each "turn", the whole "session", or never;
    `wait`: seconds to wait for it.
    `persist=False`: leave nothing behind.
    """

    cwd: str | os.PathLike[str] | None
    root: str | os.PathLike[str] | None
    agent: Callable[..., object] | str | None
    provider: str | None
    tools: object
    can_use_tool: Callable[..., object] | None
    phase: str
    hooks: Mapping[str, Callable[..., object]]
    agent_options: Mapping[str, Json]
    system_prompt: str | None
    messages: Sequence[object]
    title: str | None
    key: str | None
    model: str | None
    agent_name: str | None
    metadata: Mapping[str, Json] | None
    tags: Sequence[str]
    files: FilesOption
    progress: Callable[[int], None] | None
    lease: Literal["turn", "session"] | None
    wait: float
    on_error: OnError
    persist: bool


def agent_named(options: SessionOptions) -> Callable[..., object] | str | None:
    """The agent that the keywords name: a callable, or "provider:model"."""
    provider = options.get("provider")
    named = f"{provider}:{options.get('model') or ''}" if provider else None
    return options.get("agent") or named


def options_of_agent(options: SessionOptions) -> dict[str, Json]:
    """The keywords that go to the agent which is made of a name."""
    return {
        **(options.get("agent_options") or {}),
        **{n: options[n] for n in ("tools", "can_use_tool", "phase", "hooks") if n in options},
    }


def checked(verb: str, options: SessionOptions) -> SessionOptions:
    """The keywords of `verb`, if each is known and has a value it can have.

    A directory gets its one name here, so that it stays the one that was meant wherever the
    process goes.
    """
    for name, value in options.items():
        if name not in SessionOptions.__optional_keys__:
            raise TypeError(f"{verb}() got an unexpected keyword argument {name!r}")
        allowed = _ALLOWED.get(name)
        if allowed is not None and not allowed[0](value):
            raise InvalidData(f"{name} is {allowed[1]}, not {value!r}")
    cwd, root = options.get("cwd"), options.get("root")
    if cwd is None:
        if root is not None:
            raise InvalidData("a `root` is that of a `cwd`: give both")
        return options
    place = folder(cwd)
    through = os.path.abspath(os.path.expanduser(cwd)) != place  # noqa: PTH100, PTH111
    named = Linked(place) if through else place
    if root is None:
        return {**options, "cwd": named}
    above = folder(root)
    if not f"{place}/".startswith(f"{above.rstrip('/')}/"):
        raise InvalidData(f"a root is `cwd` or a folder above it, and {above} is not above {place}")
    return {**options, "cwd": named, "root": above}


class Linked(str):
    """The one name of a directory that a caller reached through a link."""

    __slots__ = ()


def folder(path: str | os.PathLike[str]) -> str:
    """The one name of a directory that a caller gives."""
    name = resolved(path)
    if not isinstance(name, str):
        raise InvalidData(f"{path!r} is not the path of a directory: give it as text")
    return name


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_mapping(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes)


def _is_callable(value: object) -> bool:
    return value is None or callable(value)


_TEXT = (_is_text, "text or None")
_MAPPING = (_is_mapping, "a mapping")
_CALLABLE = (_is_callable, "a callable or None")

_ALLOWED: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("provider", "system_prompt", "title", "key", "model", "agent_name"), _TEXT),
    **dict.fromkeys(("metadata", "hooks", "agent_options"), _MAPPING),
    **dict.fromkeys(("can_use_tool", "progress"), _CALLABLE),
    **dict.fromkeys(("messages", "tags"), (_is_list, "a list")),
    "agent": (lambda v: _is_text(v) or callable(v), "a callable, 'provider:model' or None"),
    "phase": (lambda v: isinstance(v, str), "the name of a phase"),
    "files": (
        lambda v: isinstance(v, bool) or v in ("background", "force"),
        "True, False, 'background' or 'force'",
    ),
    "lease": (lambda v: v in ("turn", "session", None), "'turn', 'session' or None"),
    "wait": (lambda v: isinstance(v, int | float) and v >= 0, "a number of seconds"),
    "on_error": (
        lambda v: v in ("raise", "record") or callable(v),
        "'raise', 'record' or a callable",
    ),
    "persist": (lambda v: isinstance(v, bool), "True or False"),
}
