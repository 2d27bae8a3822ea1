"""Names of a package that are loaded when somebody first uses them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any


def loader(
    package: dict[str, Any], home: Mapping[str, str], modules: Collection[str] = ()
) -> Callable[[str], object]:
    """The `__getattr__` of a package, given its `globals()`.

    `home` tells the module of each name; `modules` are names of modules themselves.
    """
    own: str = package["__name__"]

    def load(name: str) -> object:
        if name in modules:
            return importlib.import_module(f"{own}.{name}")
        if name not in home:
            raise AttributeError(f"module {own!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(f"{own}.{home[name]}"), name)
        package[name] = value
        return value

    return load
