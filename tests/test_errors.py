"""Every error has a place in the tree of `errors.py`, which says where it lives."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import backtrail
from backtrail import errors
from backtrail.adapters import MissingFramework
from backtrail.errors import BacktrailError

SOURCE = Path(backtrail.__file__).parent
NAMED = "\n".join((errors.__doc__ or "").splitlines())
TREE, _, REST = NAMED.partition("Each also inherits")
ROOMS, _, SIGNALS = REST.partition("These are signals")


def raised() -> Iterator[tuple[str, type[BaseException]]]:
    """Each public class of an error outside `errors.py`, by its dotted name."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        classes = [
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef) and node.bases and not node.name.startswith("_")
        ]
        if not classes or name in ("errors", "__main__") or name.startswith("testing"):
            continue
        try:
            module = importlib.import_module(f"backtrail.{name}".rstrip("."))
        except MissingFramework:
            continue
        for found in (getattr(module, each) for each in classes):
            if issubclass(found, BaseException):
                yield f"{name}.{found.__name__}", found


def test_the_tree_is_drawn_as_it_is() -> None:
    """Each error of `errors.py`, with the builtin that it also is."""
    drawn = dict(re.findall(r"[├└]── (\w+) +(?:\((\w+)\) +)?", TREE))
    there = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, BacktrailError)
        and name != "BacktrailError"
    }
    assert drawn.keys() == there.keys()
    for name, builtin in drawn.items():
        bases = [base.__name__ for base in there[name].__bases__]
        assert bases == (["BacktrailError", builtin] if builtin else ["StoreFailed"]), name


def test_an_error_that_lives_elsewhere_is_named() -> None:
    """With its parent in the tree; one that is in no tree is a signal, and named as such."""
    drawn = dict(re.findall(r"([a-z_]+(?:\.\w+)+) +\((\w+)\)", ROOMS))
    signals = set(re.findall(r"\b[a-z_]+(?:\.\w+)+", SIGNALS))
    found = dict(raised())
    assert {name for name, kind in found.items() if issubclass(kind, BacktrailError)} == set(drawn)
    assert {name for name, kind in found.items() if not issubclass(kind, BacktrailError)} == signals
    for name, parent in drawn.items():
        assert found[name].__bases__[0].__name__ == parent, name
