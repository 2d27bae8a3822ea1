"""JSON schemas: made of a function's signature, and held against what a model sends.

Models send nearly what was asked for: `"5"` for 5, `null` for an option they do not use,
a list as text. What can be meant in only one way is taken so; the rest is a `Mismatch`
that says where and what.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints

import msgspec

from ...errors import InvalidData
from ...events import Json

Schema = dict[str, Json]
"""A JSON schema."""

_DEFINED = "#/$defs/"
_ARGS = re.compile(r"^(?:Args|Arguments|Parameters):\s*$", re.MULTILINE)
_ARG = re.compile(r"^(\s*)(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class Mismatch(ValueError):
    """A value that is not what a schema asks for."""


# --- out of a signature --------------------------------------------------------------------


def name_of(fn: Callable[..., object]) -> str:
    """What a function, or an object that can be called, is called."""
    plain = fn.func if isinstance(fn, partial) else fn
    return str(getattr(plain, "__name__", type(plain).__name__))


def code_of(fn: Callable[..., object]) -> Callable[..., object]:
    """The function behind something that can be called; it has the annotations."""
    while isinstance(fn, partial):
        fn = fn.func
    return fn if inspect.isroutine(fn) else type(fn).__call__


def parameters_of(fn: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The parameters of a function, their annotations resolved; `InvalidData` for `*args`."""
    name = name_of(fn)
    hints = _hints(fn)
    found: dict[str, inspect.Parameter] = {}
    for key, parameter in inspect.signature(fn).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise InvalidData(f"`{name}` cannot be a tool: `{key}` cannot be given by name")
        hint = hints.get(key, Any if parameter.annotation is parameter.empty else None)
        found[key] = parameter.replace(annotation=parameter.annotation if hint is None else hint)
    return found


def _hints(fn: Callable[..., object]) -> dict[str, Any]:
    try:
        return get_type_hints(code_of(fn), include_extras=True)
    except NameError as error:
        raise InvalidData(f"`{name_of(fn)}` cannot be a tool: {error} at run time") from error


def schema_of(parameters: Mapping[str, inspect.Parameter], about: Mapping[str, str]) -> Schema:
    """The schema of an object with these parameters; `about` says what each is for."""
    named = {k: p for k, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    components: dict[str, Json] = {}
    properties: dict[str, Json] = {}
    for key, parameter in named.items():
        try:
            (found,), inner = msgspec.json.schema_components(
                [parameter.annotation], ref_template=_DEFINED + "{name}"
            )
        except TypeError as error:
            raise InvalidData(f"the parameter `{key}` has no JSON schema: {error}") from error
        components |= inner
        properties[key] = found | _described(parameter, about.get(key))
    required = [k for k, p in named.items() if p.default is p.empty]
    recursive: set[str] = set()
    schema: Schema = {
        "type": "object",
        "properties": _inlined(properties, components, (), recursive),
        "required": required,
        "additionalProperties": len(named) < len(parameters),
    }
    if recursive:
        schema["$defs"] = {name: components[name] for name in _closure(recursive, components)}
    return schema


def _described(parameter: inspect.Parameter, about: str | None) -> dict[str, Json]:
    found: dict[str, Json] = {"description": about} if about else {}
    if parameter.default is not parameter.empty and parameter.default is not None:
        try:
            found["default"] = msgspec.to_builtins(parameter.default)
        except TypeError:
            return found
    return found


def _inlined(
    schema: Json, components: Mapping[str, Json], within: tuple[str, ...], recursive: set[str]
) -> Json:
    """The same without references, which not every provider follows, but for recursive ones."""
    if isinstance(schema, list):
        return [_inlined(item, components, within, recursive) for item in schema]
    if not isinstance(schema, dict):
        return schema
    name = _referred(schema)
    if name is None:
        return {k: _inlined(v, components, within, recursive) for k, v in schema.items()}
    if name in within:
        recursive.add(name)
        return schema
    inner = _inlined(components[name], components, (*within, name), recursive)
    return inner | {k: v for k, v in schema.items() if k != "$ref"}


def _referred(schema: Mapping[str, Json]) -> str | None:
    ref = schema.get("$ref")
    return ref.removeprefix(_DEFINED) if isinstance(ref, str) else None


def _closure(names: set[str], components: Mapping[str, Json]) -> list[str]:
    """These components, and all they refer to."""
    known: set[str] = set()
    todo = sorted(names)
    while todo:
        name = todo.pop()
        if name not in known:
            known.add(name)
            text = msgspec.json.encode(components[name]).decode()
            todo += re.findall(rf'"{re.escape(_DEFINED)}([^"]+)"', text)
    return sorted(known)


def described(fn: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """What a docstring says: the function's description, and that of each argument."""
    text = inspect.getdoc(fn.func if isinstance(fn, partial) else fn) or ""
    start = _ARGS.search(text)
    if start is None:
        return text.strip(), {}
    about: dict[str, str] = {}
    deep, current = 0, ""
    rest = text[start.end() :].strip("\n").split("\n")
    for number, line in enumerate(rest):
        if line.strip() and not line.startswith((" ", "\t")):
            after = "\n".join(rest[number:])
            return f"{text[: start.start()].strip()}\n\n{after}".strip(), about
        match = _ARG.match(line)
        if match and (not about or len(match[1]) <= deep):
            deep, current = len(match[1]), match[2]
            about[current] = match[3].strip()
        elif line.strip() and current:
            about[current] = f"{about[current]} {line.strip()}".strip()
    return text[: start.start()].strip(), about


# --- against a value -----------------------------------------------------------------------


def fitted(schema: Schema, value: Json) -> Json:
    """The value as the schema asks for it; `Mismatch` if it cannot be meant so."""
    return _fit(schema, value, "", schema)


def _fit(schema: Json, value: Json, at: str, top: Schema) -> Json:
    if schema is False:
        raise Mismatch(f"{at or 'the input'} is not expected")
    if not isinstance(schema, dict):
        return value
    name = _referred(schema)
    if name is not None:
        return _fit(top.get("$defs", {}).get(name, True), value, at, top)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _fit_any(schema[key], value, at, top)
    for part in schema.get("allOf", ()):
        value = _fit(part, value, at, top)
    value = _typed(schema, value, at)
    if "enum" in schema and value not in schema["enum"]:
        raise Mismatch(f"{at or 'the input'} must be one of {_shown(schema['enum'])}")
    if "const" in schema and value != schema["const"]:
        raise Mismatch(f"{at or 'the input'} must be {_shown(schema['const'])}")
    _check_bounds(schema, value, at)
    if isinstance(value, dict):
        return _fit_object(schema, value, at, top)
    if isinstance(value, list):
        return _fit_list(schema, value, at, top)
    return value


def _fit_any(choices: list[Json], value: Json, at: str, top: Schema) -> Json:
    """The first choice whose type the value has as it is; else the first that it can be."""
    problems: list[str] = []
    exact = [c for c in choices if isinstance(c, dict) and _is(c.get("type"), value)]
    for choice in [*exact, *(c for c in choices if c not in exact)]:
        try:
            return _fit(choice, value, at, top)
        except Mismatch as error:
            problems.append(str(error))
    raise Mismatch(" or ".join(dict.fromkeys(problems)))


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "array": (list,), "object": (dict,), "null": (type(None),),
}  # fmt: skip


def _is(kind: Json, value: Json) -> bool:
    if isinstance(kind, list):
        return any(_is(one, value) for one in kind)
    if kind in ("integer", "number") and isinstance(value, bool):
        return False
    return kind is None or isinstance(value, _TYPES.get(kind, (object,)))


def _typed(schema: Mapping[str, Json], value: Json, at: str) -> Json:
    kind = schema.get("type")
    if _is(kind, value):
        return value
    kinds = kind if isinstance(kind, list) else [kind]
    for one in kinds:
        meant = _meant(one, value)
        if _is(one, meant):
            return meant
    wanted = " or ".join(str(one) for one in kinds)
    raise Mismatch(f"{at or 'the input'} must be of type {wanted}, and is {_shown(value)}")


def _meant(kind: Json, value: Json) -> Json:
    """What a value of another type stands for, where there is no doubt."""
    if isinstance(value, float) and kind == "integer" and value.is_integer():
        return int(value)
    if isinstance(value, str) and kind in ("integer", "number", "boolean", "array", "object"):
        try:
            return msgspec.json.decode(value.strip().lower() if kind == "boolean" else value)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return value
    return value


def _check_bounds(schema: Mapping[str, Json], value: Json, at: str) -> None:
    where = at or "the input"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            low, high = schema.get("minimum", "any"), schema.get("maximum", "any")
            raise Mismatch(f"{where} must be from {low} to {high}, and is {value}")
        if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
            raise Mismatch(f"{where} must be above {schema['exclusiveMinimum']}")
        if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
            raise Mismatch(f"{where} must be below {schema['exclusiveMaximum']}")
    if isinstance(value, (str, list)):
        unit = "Length" if isinstance(value, str) else "Items"
        if len(value) < schema.get("min" + unit, 0):
            raise Mismatch(f"{where} is too short: {len(value)}, at least {schema['min' + unit]}")
        if len(value) > schema.get("max" + unit, len(value)):
            raise Mismatch(f"{where} is too long: {len(value)}, at most {schema['max' + unit]}")
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        raise Mismatch(f"{where} must match {schema['pattern']}")


def _fit_object(
    schema: Mapping[str, Json], value: dict[str, Json], at: str, top: Schema
) -> dict[str, Json]:
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    missing = [f"`{name}`" for name in required if name not in value]
    if missing:
        raise Mismatch(f"{', '.join(missing)} is missing" + (f" in {at}" if at else ""))
    others = schema.get("additionalProperties", True)
    done: dict[str, Json] = {}
    for key, item in value.items():
        where = f"{at}.{key}" if at else f"`{key}`"
        if key not in properties:
            if others is False:
                known = ", ".join(properties) or "nothing"
                raise Mismatch(f"{where} is not expected; known: {known}")
            done[key] = _fit(others, item, where, top)
            continue
        try:
            done[key] = _fit(properties[key], item, where, top)
        except Mismatch:
            # An option that is not used, spelled out.
            if item is not None or key in required:
                raise
    return done


def _fit_list(schema: Mapping[str, Json], value: list[Json], at: str, top: Schema) -> list[Json]:
    first = schema.get("prefixItems", [])
    rest = schema.get("items", True)
    where = at or "the input"
    return [
        _fit(first[n] if n < len(first) else rest, item, f"{where}[{n}]", top)
        for n, item in enumerate(value)
    ]


def _shown(value: Json) -> str:
    text = msgspec.json.encode(value).decode("utf-8", "replace")
    return text if len(text) <= 80 else f"{text[:77]}..."
