"""Loading: names of a package on first use, entry points, msgspec without ballast."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


def homes(modules: Mapping[str, str]) -> dict[str, str]:
    """The module of each public name, from the names of each module."""
    return {name: module for module, names in modules.items() for name in names.split()}


def loader(
    package: dict[str, Any], home: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> Callable[[str], object]:
    """The `__getattr__` of a package, given its `globals()`.

    `home` has the module of each name, `modules` the path of each module that is a name itself.
    """
    own: str = package["__name__"]
    modules = modules or {}

    def load(name: str) -> object:
        if name in modules:
            return importlib.import_module(f"{own}.{modules[name]}")
        if name not in home:
            raise AttributeError(f"module {own!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(f"{own}.{home[name]}"), name)
        package[name] = value
        return value

    return load


def installed(group: str, name: str) -> Any:
    """What another package registers in an entry-point group under a name; None if none does."""
    from importlib.metadata import entry_points

    return next((point.load() for point in entry_points(group=group, name=name)), None)


def load_msgspec() -> None:
    """Have msgspec take its types from `typing`, as it does without `typing_extensions`.

    That module brings in the inspector and the parser, a tenth of what a short command does.
    `uuid`, which msgspec loads, asks `platform` for one word, and that compiles ten patterns.
    """
    missing: dict[str, Any] = {
        # With None, import says it is not there.
        "typing_extensions": None,
        "platform": SimpleNamespace(system=lambda: os.uname().sysname),
    }
    missing = {name: module for name, module in missing.items() if name not in sys.modules}
    sys.modules.update(missing)
    try:
        importlib.import_module("msgspec")
    finally:
        for name in missing:
            del sys.modules[name]
