"""Objects hold their parts: few bases, short chains, and no reaching into what is another's."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import backtrail
from backtrail import AsyncSession, Session
from backtrail.adapters import MissingFramework

SOURCE = Path(backtrail.__file__).parent

ROOMS = sorted(
    path.relative_to(SOURCE).with_suffix("").as_posix()
    for path in SOURCE.rglob("*.py")
    if path.stem != "__main__" and path.relative_to(SOURCE).parts[0] != "testing"
)
"""Every module; the contract suites are made of bases, one a rule, and are not meant."""

MOST_BASES = 2
LONGEST_CHAIN = 3

BY_DESIGN = {"_replace", "_asdict", "_fields", "_exit", "_actions"}
"""What the standard library gives such names: named tuples, `os._exit`, a parser's actions."""

NAMESAKES = 20
"""So many names may be those of several modules: they mean the same there, as in agents' rooms."""

DOOR = 15
"""Lines of a module at the top that only shows what lives below."""

FILE = 450
FUNCTION = 60


def classes() -> Iterator[type]:
    """Every class of ours."""
    for name in ROOMS:
        dotted = name.removesuffix("__init__").strip("/").replace("/", ".")
        try:
            module = importlib.import_module(f"backtrail.{dotted}".strip("."))
        except MissingFramework:
            # An adapter is looked at where its framework is.
            continue
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                yield value


def ours(cls: type) -> list[type]:
    """The bases of a class that are ours."""
    return [base for base in cls.__bases__ if base.__module__.startswith("backtrail")]


def chain(cls: type) -> int:
    """How many classes of ours one must read to know what a class does."""
    return 1 + max((chain(base) for base in ours(cls)), default=0)


def test_a_class_has_few_bases_and_a_short_chain() -> None:
    """A class is not split into bases to be shorter."""
    found = list(classes())
    assert len(found) > 200
    assert [cls for cls in found if len(ours(cls)) > MOST_BASES] == []
    assert [cls for cls in found if chain(cls) > LONGEST_CHAIN] == []


@pytest.mark.parametrize("cls", [Session, AsyncSession])
def test_a_session_has_no_bases(cls: type) -> None:
    """It delegates to its parts."""
    assert cls.__bases__ == (object,)


@cache
def tree(name: str) -> ast.Module:
    """A module's syntax."""
    return ast.parse((SOURCE / f"{name}.py").read_text())


@cache
def private_names(name: str) -> set[str]:
    """What a module defines or sets under a private name."""
    found: set[str] = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {one for one in found if one.startswith("_")} | BY_DESIGN


def reaches(name: str) -> Iterator[tuple[int, str]]:
    """Where a module uses a private name of something that is not itself."""
    for node in ast.walk(tree(name)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        if node.attr.startswith("__") or ast.unparse(node.value) in ("self", "cls", "super()"):
            continue
        yield node.lineno, node.attr


def test_nothing_touches_a_private_member_of_another_module() -> None:
    """What a module uses under a private name, it has made itself."""
    found = [
        f"{name}:{line} {attr}"
        for name in ROOMS
        for line, attr in reaches(name)
        if attr not in private_names(name)
    ]
    assert found == []


def test_no_private_name_is_imported() -> None:
    """Nor does a module import one from another."""
    found = [
        f"{name}:{node.lineno} {alias.name}"
        for name in ROOMS
        for node in ast.walk(tree(name))
        if isinstance(node, ast.ImportFrom) and (node.level or node.module == "backtrail")
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    ]
    assert found == []


def length(name: str) -> int:
    """How many lines a module has."""
    return len((SOURCE / f"{name}.py").read_text().splitlines())


def lengths() -> Iterator[tuple[str, int, int]]:
    """Each file and each function with its lines, and how many it may have."""
    suites = [path.relative_to(SOURCE).with_suffix("") for path in SOURCE.glob("testing/**/*.py")]
    for name in [*ROOMS, *(path.as_posix() for path in suites)]:
        yield name, length(name), FILE
        for node in ast.walk(tree(name)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{name}: {node.name}", (node.end_lineno or 0) - node.lineno + 1, FUNCTION


def test_files_and_functions_are_short() -> None:
    """A file is read in one go, a function at a glance."""
    assert {name for name, lines, most in lengths() if lines > most} == set()


def test_few_modules_share_a_name() -> None:
    """Two modules of one name do the same for two things; where they do not, one is renamed."""
    doors = {name for name in ROOMS if "/" not in name and length(name) < DOOR}
    names = Counter(name.rpartition("/")[2] for name in ROOMS if name not in doors)
    again = [name for name, count in names.items() if count > 1]
    assert len(again) <= NAMESAKES, sorted(again)
