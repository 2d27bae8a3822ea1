"""What a tool is: a name, a schema, and a function that runs with a `Context`.

Any plain function is one: its signature and docstring say the rest. A tool returns text or
JSON; `ToolFailed` carries a message that the model should see.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...errors import BacktrailError, InvalidData
from ...events import Json
from ...files.names import Anywhere
from .jsonschema import Mismatch, code_of, described, fitted, name_of, parameters_of, schema_of

if TYPE_CHECKING:
    from inspect import Parameter

Kind = Literal["read", "edit", "run"]
"""What a tool may do: look, change the files it declares, or anything."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolFailed(BacktrailError):
    """A tool that did not do its work. The message is for the model."""


@dataclass(slots=True)
class Context:
    """What a tool may use while it runs.

    `cwd` is the workspace; paths may lead into `roots`, `cwd` first among them. `timeout`
    is in seconds, `output_limit` in characters. `spawn(prompt, description)` runs a
    subagent and returns its answer.
    """

    cwd: Path
    roots: tuple[Path, ...]
    cancelled: Callable[[], bool]
    session_id: str = ""
    timeout: float = 120.0
    output_limit: int = 30_000
    spawn: Callable[..., object] | None = None


Run = Callable[[Context, dict[str, Json]], Json]
Paths = Callable[[Context, dict[str, Json]], list[str] | None]


@dataclass(frozen=True, slots=True)
class Tool:
    """Something a model can call.

    `run` raises `ToolFailed` for what the model should see; if `is_async`, its result is
    to be awaited. `paths` says which paths a call is about: absolute, links resolved; None
    if that is not known. `subject` is the input that a permission's pattern is held against
    where there are no paths.
    """

    name: str
    description: str
    schema: dict[str, Json]
    run: Run
    kind: Kind = "run"
    paths: Paths | None = None
    is_async: bool = False
    subject: str = ""


def tool_from(
    fn: Callable[..., object],
    *,
    name: str | None = None,
    kind: Kind = "run",
    paths: Paths | None = None,
    subject: str = "",
) -> Tool:
    """A plain function as a tool, sync or async.

    The schema comes from its annotations, the description and those of its parameters from
    the docstring (`Args:`). A parameter annotated `Context` is given the context and is
    not in the schema.
    """
    called = name or name_of(fn)
    if not _NAME.fullmatch(called):
        raise InvalidData(f"`{called}` cannot be a tool's name: letters, digits, `_` and `-`")
    parameters = parameters_of(fn)
    given = [key for key, p in parameters.items() if p.annotation is Context]
    asked = {key: p for key, p in parameters.items() if key not in given}
    text, about = described(fn)
    is_async = inspect.iscoroutinefunction(code_of(fn))
    return Tool(
        called,
        text or called,
        schema_of(asked, about),
        _run_async(fn, given, asked) if is_async else _run(fn, given, asked),
        kind,
        paths,
        is_async,
        subject,
    )


def _run(fn: Callable[..., Any], given: list[str], asked: Mapping[str, Parameter]) -> Run:
    def run(context: Context, input: dict[str, Json]) -> Json:
        return as_json(fn(**dict.fromkeys(given, context), **_arguments(asked, input)))

    return run


def _run_async(fn: Callable[..., Any], given: list[str], asked: Mapping[str, Parameter]) -> Run:
    async def run(context: Context, input: dict[str, Json]) -> Json:
        return as_json(await fn(**dict.fromkeys(given, context), **_arguments(asked, input)))

    return run


def _arguments(asked: Mapping[str, Parameter], input: Mapping[str, Json]) -> dict[str, object]:
    """The input as the function's annotations want it: data classes, enums, dates."""
    found: dict[str, object] = {}
    for key, value in input.items():
        annotation: Any = asked[key].annotation if key in asked else Any
        try:
            found[key] = msgspec.convert(value, annotation)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"`{key}` does not fit: {error}") from error
    missing = [k for k, p in asked.items() if p.default is p.empty and k not in found]
    missing = [k for k in missing if asked[k].kind is not asked[k].VAR_KEYWORD]
    if missing:
        raise ToolFailed(f"`{missing[0]}` is missing")
    return found


def as_json(value: object) -> Json:
    """What a function returned, as JSON: text for what JSON has no form for."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except TypeError:
        return str(value)


def tools_named(
    wanted: Literal["all", "none"] | Sequence[str | Tool | Callable[..., object]],
) -> list[Tool]:
    """The tools a caller asks for: "all" built-in ones, "none", or a list of these.

    A list holds names of built-in tools ("all" too), tools, and plain functions. The last
    of two with one name counts.
    """
    from . import BUILT_IN

    entries = [wanted] if isinstance(wanted, str) else list(wanted)
    found: dict[str, Tool] = {}
    for entry in entries:
        if entry == "none":
            continue
        if entry == "all":
            found |= BUILT_IN
        elif isinstance(entry, Tool):
            found[entry.name] = entry
        elif isinstance(entry, str):
            if entry not in BUILT_IN:
                known = ", ".join(BUILT_IN)
                raise InvalidData(f"there is no tool `{entry}`; there are {known}")
            found[entry] = BUILT_IN[entry]
        else:
            made = tool_from(entry)
            found[made.name] = made
    return list(found.values())


def check_input(tool: Tool, input: object) -> dict[str, Json]:
    """What a model sent, as the tool's schema asks for it; `ToolFailed` if it does not fit."""
    try:
        done = fitted(tool.schema, input if input is not None else {})
    except Mismatch as error:
        raise ToolFailed(f"The input of `{tool.name}` does not fit: {error}.") from error
    if not isinstance(done, dict):
        raise ToolFailed(f"The input of `{tool.name}` must be a JSON object.")
    return done


def watched_paths(tool: Tool, context: Context, input: dict[str, Json]) -> list[str] | None:
    """What to declare for a call's bracket: the paths it may change, in full.

    Empty for a tool that only reads; None for one that may change anything.
    """
    if tool.kind == "read":
        return []
    found = tool.paths(context, input) if tool.paths is not None else None
    if found is None:
        return None
    home = os.path.realpath(context.cwd)
    return Anywhere(str(Path(home, path)) for path in found)
