"""What a tool is: schemas out of signatures, and input held against them."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail.agent.tools import (
    BUILT_IN,
    Context,
    Tool,
    ToolFailed,
    check_input,
    tool_from,
    tools_named,
    watched_paths,
)
from backtrail.errors import InvalidData
from backtrail.events import Json
from tests.agent.tooling import context, run


@dataclass
class Size:
    """Width and height."""

    width: int
    height: int = 1


class Person(TypedDict):
    """A person."""

    name: str
    age: int


@dataclass
class Node:
    """A tree."""

    name: str
    children: list[Node]


def resize(
    path: str,
    size: Size,
    by: Person | None = None,
    mode: Literal["fast", "good"] = "good",
    factors: list[float] | None = None,
    dry: bool = False,
) -> dict[str, object]:
    """Resize a picture.

    It takes a while.

    Args:
        path: The picture.
        size: The new size,
            in pixels.
        mode: How.

    Returns:
        What it did.
    """
    return {
        "path": path,
        "size": [size.width, size.height],
        "by": by,
        "mode": mode,
        "factors": factors,
        "dry": dry,
    }


def test_a_function_is_a_tool() -> None:
    """Its name, description and parameters are in the tool."""
    tool = tool_from(resize)
    assert tool.name == "resize"
    assert tool.description.startswith("Resize a picture.\n\nIt takes a while.")
    assert "pixels" not in tool.description
    properties = tool.schema["properties"]
    assert tool.schema["required"] == ["path", "size"]
    assert properties["path"] == {"type": "string", "description": "The picture."}
    assert properties["size"]["properties"]["width"] == {"type": "integer"}
    assert properties["size"]["description"] == "The new size, in pixels."
    assert properties["mode"]["enum"] == ["fast", "good"]
    assert properties["mode"]["default"] == "good"
    assert "$ref" not in msgspec.json.encode(tool.schema).decode()


def test_a_function_gets_what_its_annotations_say(tmp_path: Path) -> None:
    """Data classes are made; the result is JSON again."""
    tool = tool_from(resize)
    input = {"path": "a", "size": {"width": "5"}, "by": {"name": "x", "age": 3}, "dry": "true"}
    assert tool.run(context(tmp_path), check_input(tool, input)) == {
        "path": "a", "size": [5, 1], "by": {"name": "x", "age": 3},
        "mode": "good", "factors": None, "dry": True,
    }  # fmt: skip


def test_a_recursive_type_keeps_its_reference(tmp_path: Path) -> None:
    """It cannot be written out."""

    def count(node: Node) -> int:
        """Count."""
        return 1 + sum(count(child) for child in node.children)

    tool = tool_from(count)
    assert "Node" in tool.schema["$defs"]
    input = {"node": {"name": "a", "children": [{"name": "b", "children": []}]}}
    assert tool.run(context(tmp_path), check_input(tool, input)) == 2
    input["node"]["children"] = [{"name": 1}]
    with pytest.raises(ToolFailed, match="children"):
        check_input(tool, input)


def test_a_context_is_given_and_not_asked_for(tmp_path: Path) -> None:
    """Whatever its parameter is called."""

    def where(word: str, ctx: Context) -> str:
        """Say it."""
        return f"{word} {ctx.cwd}"

    tool = tool_from(where)
    assert list(tool.schema["properties"]) == ["word"]
    assert tool.run(context(tmp_path), {"word": "in"}) == f"in {tmp_path}"


def test_an_async_function_is_a_tool(tmp_path: Path) -> None:
    """Its result is awaited."""

    async def double(n: Annotated[int, msgspec.Meta(ge=0, le=10)]) -> int:
        """Double it."""
        return n * 2

    tool = tool_from(double)
    assert tool.is_async

    async def main() -> object:
        return await tool.run(context(tmp_path), check_input(tool, {"n": 4}))

    assert asyncio.run(main()) == 8
    with pytest.raises(ToolFailed, match="from 0 to 10"):
        check_input(tool, {"n": 11})


def test_other_callables_are_tools(tmp_path: Path) -> None:
    """Objects, methods, and functions without annotations."""

    class Adder:
        """Adds."""

        def __init__(self, n: int) -> None:
            self.n = n

        def __call__(self, n: int) -> int:
            """Add."""
            return self.n + n

        def add(self, n: int) -> int:
            """Add, too."""
            return self.n + n

    ctx = context(tmp_path)
    assert tool_from(Adder(1)).run(ctx, {"n": 2}) == 3
    assert tool_from(Adder(1).add).name == "add"
    assert tool_from(Adder(1).add).run(ctx, {"n": 2}) == 3
    assert tool_from(lambda x, **rest: [x, rest], name="any").run(ctx, {"x": 1, "y": 2}) == [
        1, {"y": 2},
    ]  # fmt: skip
    assert tool_from(functools.partial(resize, dry=True), name="r").schema["required"]


def test_what_cannot_be_a_tool_says_so() -> None:
    """At once, not when a model calls it."""

    def odd(thing: object, *args: int) -> None: ...
    def strange(thing: InvalidData) -> None: ...

    for fn in (odd, strange, lambda x: x):
        with pytest.raises(InvalidData):
            tool_from(fn)


def test_results_become_json(tmp_path: Path) -> None:
    """Data classes as objects, anything else as text."""

    def give(what: str) -> object:
        """Give it."""
        return {"size": Size(1), "set": {1}, "path": Path("/x"), "none": None}[what]

    tool = tool_from(give)
    results = [tool.run(context(tmp_path), {"what": w}) for w in ("size", "set", "path", "none")]
    assert results == [{"width": 1, "height": 1}, [1], "/x", None]


def test_tools_by_name() -> None:
    """All, none, some, and one's own."""
    assert [tool.name for tool in tools_named("all")] == [
        "read", "write", "edit", "apply_patch", "glob", "grep", "bash", "task",
    ]  # fmt: skip
    assert tools_named("none") == [] == tools_named([])
    mine = tools_named(["read", resize, BUILT_IN["grep"], "read"])
    assert [tool.name for tool in mine] == ["read", "resize", "grep"]
    with pytest.raises(InvalidData, match="there is no tool `reed`; there are read"):
        tools_named(["reed"])


SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "pattern": "^[a-z]+$"},
        "count": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "fixed": {"const": 1},
        "nested": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "kinds": {"type": ["string", "null"]},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def made(schema: dict[str, Json]) -> Tool:
    """A tool with a schema written by hand."""
    return Tool("made", "", schema, lambda _context, _input: None)


@pytest.mark.parametrize(
    ("input", "notified"),
    [
        ([], "type object"),
        ("{", "type object"),
        ({}, "`name` is missing"),
        ({"name": ""}, "too short"),
        ({"name": "A"}, "must match"),
        ({"name": 5}, "`name` must be of type string, and is 5"),
        ({"name": "a", "count": 9}, "below 9"),
        ({"name": "a", "count": 0}, "above 0"),
        ({"name": "a", "count": True}, "type integer"),
        ({"name": "a", "count": "many"}, "type integer"),
        ({"name": "a", "tags": ["x", 1]}, r"`tags`\[1\] must be of type string"),
        ({"name": "a", "tags": ["x", "y", "z"]}, "too long"),
        ({"name": "a", "either": []}, "integer.* or .*string"),
        ({"name": "a", "fixed": 2}, "must be 1"),
        ({"name": "a", "nested": {"x": "no"}}, r"`nested`\.x must be of type boolean"),
        ({"name": "a", "pair": ["x"]}, r"`pair`\[0\]"),
        ({"name": "a", "other": 1}, "`other` is not expected; known: name, count"),
        ({"name": None}, "type string"),
    ],
)
def test_what_does_not_fit_is_said_to_the_model(input: Json, notified: str) -> None:
    """Where, and what is asked for."""
    with pytest.raises(ToolFailed, match=notified):
        check_input(made(SCHEMA), input)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"name": "a", "count": "5"}, {"name": "a", "count": 5}),
        ({"name": "a", "count": 5.0}, {"name": "a", "count": 5}),
        ({"name": "a", "count": None}, {"name": "a"}),
        ({"name": "a", "tags": '["x"]'}, {"name": "a", "tags": ["x"]}),
        ({"name": "a", "either": "5"}, {"name": "a", "either": "5"}),
        ({"name": "a", "kinds": None}, {"name": "a", "kinds": None}),
        ({"name": "a", "nested": {"x": "True"}}, {"name": "a", "nested": {"x": True}}),
        ('{"name": "a"}', {"name": "a"}),
    ],
)
def test_what_can_be_meant_in_one_way_is_taken_so(sent: Json, meant: Json) -> None:
    """Numbers as text, nulls for options, lists as text."""
    assert check_input(made(SCHEMA), sent) == meant


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-20, 20) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), VALUES))
def test_checking_is_steady(input: dict[str, Any]) -> None:
    """Any input fits or is refused, and what fits, fits again."""
    try:
        once = check_input(made(SCHEMA), input)
    except ToolFailed:
        return
    assert check_input(made(SCHEMA), once) == once


def test_watched_paths(tmp_path: Path) -> None:
    """What a bracket looks at: nothing for a reader, all for a shell, else what is declared."""
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    (home / "link").symlink_to("real.txt")
    ctx = context(home, other)

    def paths(name: str, **input: Json) -> list[str] | None:
        return watched_paths(BUILT_IN[name], ctx, input)

    assert paths("read", path="a") == []
    assert paths("bash", command="ls") is None
    assert paths("write", path="a/b") == [str(home / "a/b")]
    assert paths("write", path="link") == [str(home / "real.txt")]
    assert paths("write", path=str(other / "x")) == [str(other / "x")]
    patch = "*** Begin Patch\n*** Add File: n\n+x\n*** Delete File: d/e\n*** End Patch"
    assert paths("apply_patch", patch=patch) == [str(home / "n"), str(home / "d/e")]


def test_a_task_goes_to_a_subagent(tmp_path: Path) -> None:
    """Through the context; without one the model gets an error."""
    ctx = context(tmp_path)
    with pytest.raises(ToolFailed, match="no subagents"):
        run(ctx, "task", description="d", prompt="p")
    ctx.spawn = lambda prompt, description: f"{description}: {prompt}"
    assert run(ctx, "task", description="d", prompt="p") == "d: p"
