"""The import paths that the documentation names: whatever moves inside, these stay."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import assert_type, get_args, get_type_hints

import pytest

import backtrail
from backtrail._startup.loading import loader
from backtrail.session.liveturn import Around

ROOT = Path(__file__).parents[1]

PATHS: dict[str, tuple[str, ...]] = {
    "backtrail.agent.hooks": ("Veto",),
    "backtrail.agent.loop": ("Loop",),
    "backtrail.agent.models.anthropic": ("AnthropicModel",),
    "backtrail.agent.models.base": ("Model",),
    "backtrail.agent.models.openai": ("OpenAIModel",),
    "backtrail.agent.models.scripted": ("ScriptedModel",),
    "backtrail.agent.permissions": ("Permissions",),
    "backtrail.agent.tools": ("tools_named",),
    "backtrail.aio": ("AsyncSession",),
    "backtrail.errors": ("BacktrailError", "Conflict", "Damaged", "NotFound", "StoreFailed"),
    "backtrail.events": ("MAIN_LOG", "Checkpoint", "Event", "NewEvent", "SessionInfo"),
    "backtrail.exchange.bundle": ("check_bundle", "read_bundle", "write_bundle"),
    "backtrail.exchange.exporting": ("export_html", "export_jsonl", "export_markdown"),
    "backtrail.exchange.lists": ("import_messages",),
    "backtrail.files": ("Blobs", "collect", "materialize", "verify"),
    "backtrail.formats.messages": ("convert",),
    "backtrail.history": ("Branch", "branches", "path"),
    "backtrail.secrets": ("Masking", "mask", "mask_json"),
    "backtrail.session": ("Session",),
    "backtrail.stores": ("JSONLStore", "MemoryStore", "SQLiteStore", "Store", "open_store"),
    "backtrail.stores.batches": ("drafts",),
    "backtrail.stores.buffered": ("Buffered",),
    "backtrail.stores.jsonl": ("JSONLStore",),
    "backtrail.stores.memory": ("MemoryStore",),
    "backtrail.stores.records": ("new_record",),
    "backtrail.stores.sqlite": ("SQLiteStore",),
    "backtrail.stores.wrapper": ("Wrapper",),
    "backtrail.telemetry": ("emit", "span"),
    "backtrail.testing": ("BlobContract", "StoreContract"),
    "backtrail.testing.replay": (),
    "backtrail.turns": ("Limits", "Result", "Run"),
}
"""Modules that stay importable, and names that each of them has."""


@pytest.mark.parametrize("path", PATHS)
def test_a_path_has_its_names(path: str) -> None:
    """A name that several paths have is one object, so that `isinstance` and `except` hold."""
    module = importlib.import_module(path)
    for name in PATHS[path]:
        found = getattr(module, name)
        for other in (importlib.import_module(other) for other in PATHS if name in PATHS[other]):
            assert getattr(other, name) is found, f"{path}.{name} and {other.__name__}.{name}"
        if name in backtrail.__all__:
            assert getattr(backtrail, name) is found


@pytest.mark.parametrize("path", [path for path in PATHS if path.count(".") == 1])
def test_a_path_needs_no_other_import(path: str) -> None:
    """A fresh process can begin with it."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {path}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def documented() -> list[tuple[str, str]]:
    """Every `from backtrail… import name` of README and docs that needs no framework."""
    found: set[tuple[str, str]] = set()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        if "<!-- runs with: " in page.read_text():
            # It is run where its framework is.
            continue
        lines = re.findall(r"^\s*from (backtrail[\w.]*) import ([\w, ]+)$", page.read_text(), re.M)
        found |= {(path, name.strip()) for path, names in lines for name in names.split(",")}
    return sorted(found)


def test_what_the_pages_import_is_there() -> None:
    """An example that a page shows can be copied."""
    pages = documented()
    assert ("backtrail", "Session") in pages
    for path, name in pages:
        assert getattr(importlib.import_module(path), name) is not None


def mentioned(annotation: object) -> set[type]:
    """The classes of ours in an annotation."""
    found: set[type] = set()
    if isinstance(annotation, type) and annotation.__module__.startswith("backtrail"):
        found.add(annotation)
    for part in get_args(annotation):
        for one in part if isinstance(part, list) else [part]:
            found |= mentioned(one)
    return found


@pytest.mark.parametrize("name", ["Session", "AsyncSession", "LiveTurn", "Turn", "AsyncTurn"])
def test_what_a_method_takes_and_returns_can_be_imported(name: str) -> None:
    """A function around a session can be annotated, from `backtrail` alone."""
    for method, function in inspect.getmembers(getattr(backtrail, name), callable):
        if method.startswith("_"):
            continue
        plain = inspect.unwrap(getattr(function, "__func__", function))
        module = importlib.import_module(plain.__module__)
        names = {**vars(importlib.import_module("backtrail.session.capture")), **vars(module)}
        for annotation in get_type_hints(plain, names).values():
            for found in mentioned(annotation) - {Around}:
                assert getattr(backtrail, found.__name__, None) is found, (method, found)
                assert found.__name__ in backtrail.__all__, (method, found)


def test_a_bracket_of_a_turn_gives_a_call() -> None:
    """A type checker knows what `with turn.tool(…) as call` binds."""

    def agent(turn: backtrail.LiveTurn) -> Iterator[dict[str, str]]:
        with turn.tool("look", {"at": 1}) as call:
            assert_type(call, backtrail.Call)
            call.result = "seen"
        yield {"role": "assistant", "content": "done"}

    with backtrail.Session.create("memory:", agent=agent) as s:
        s.send("go")
        assert next(s.events(kinds=("action",))).data["result"] == "seen"


def test_modules_may_live_elsewhere() -> None:
    """A module's documented name may stand for another path."""
    load = loader(
        {"__name__": "backtrail"}, {}, {"errors": "errors", "convert": "formats.messages"}
    )
    assert load("errors") is importlib.import_module("backtrail.errors")
    assert load("convert") is importlib.import_module("backtrail.formats.messages")
    with pytest.raises(AttributeError):
        load("nonsense")
