"""`dataclass(frozen=True, slots=True)` and `NamedTuple`, made in a fraction of the time.

A hook lives for a tenth of a second. The standard decorator takes a millisecond for each class,
since it compiles six functions, and its module brings in the inspector and the parser. Here the
first objects are made without it, and it is asked only when a caller first wants what it makes: a
comparison, a text, the fields.
So to all others these are data classes: to `dataclasses`, `copy`, `pickle`, `match`, msgspec
and type checkers.

A named tuple takes a tenth of a millisecond: its constructor is compiled, and the text of each
annotation. Here the first objects are made without it, and the annotations stay text.
"""

from __future__ import annotations

import sys
from collections import _tuplegetter, namedtuple  # type: ignore[attr-defined]
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

_PARTS = (
    *("__init__", "__repr__", "__eq__", "__hash__", "__getstate__", "__setstate__"),
    *("__dataclass_fields__", "__dataclass_params__"),
    *(("__replace__",) if sys.version_info >= (3, 13) else ()),
)


class _Factory:
    """A default that is made anew for each object."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make


def _field(*, default_factory: Callable[[], object]) -> object:
    """`dataclasses.field`, for what is mutable."""
    return _Factory(default_factory)


def _dataclass(*, frozen: bool, slots: bool, init: bool = True) -> Callable[[type], type]:
    """The decorator. Other kinds of data classes are the standard module's."""
    assert frozen and slots

    def decorate(plain: type) -> type:
        names = tuple(plain.__annotations__)
        own = dict(plain.__dict__)
        defaults = {name: own.pop(name) for name in names if name in own}
        del own["__dict__"], own["__weakref__"]
        own |= {"__slots__": names, "__match_args__": names, "__qualname__": plain.__qualname__}

        @cache
        def standard() -> type:
            return _standard(made, defaults, init)

        if init:
            own.setdefault("__init__", _Constructor(standard, names, defaults))
        for part in _PARTS:
            # What the class defines itself stays.
            own.setdefault(part, _Later(standard))

        def assign(self: object, name: str, value: object) -> None:
            if type(self) is made or name in names:
                _refuse(f"cannot assign to field {name!r}")
            super(made, self).__setattr__(name, value)

        def delete(self: object, name: str) -> None:
            if type(self) is made or name in names:
                _refuse(f"cannot delete field {name!r}")
            super(made, self).__delattr__(name)

        own |= {"__setattr__": assign, "__delattr__": delete}
        made: Any = type(plain)(plain.__name__, plain.__bases__, own)
        result: type = made
        return result

    return decorate


def _refuse(why: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(why)


class _Later:
    """A part of a class, which is the standard one from when a caller first asks for it."""

    def __init__(self, standard: Callable[[], type]) -> None:
        self._standard = standard

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, asked: type) -> object:
        part = vars(self._standard())[self._name]
        setattr(self._owner, self._name, part)
        return part.__get__(instance, asked) if hasattr(part, "__get__") else part


class _First(_Later):
    """A constructor that makes the first objects by itself: most classes have only some.

    A wrong call gets the standard one.
    """

    def __init__(
        self, standard: Callable[[], type], names: tuple[str, ...], defaults: dict[str, object]
    ) -> None:
        super().__init__(standard)
        self._names = names
        self._defaults = defaults
        self._left = 50

    def _values(self, args: tuple[object, ...], more: dict[str, object]) -> dict[str, Any] | None:
        """The values of all fields by name; None for arguments that do not fit."""
        named = dict(zip(self._names, args, strict=False))
        values = {**self._defaults, **named, **more}
        right = values.keys() == set(self._names) and len(named) == len(args)
        if right and not named.keys() & more.keys():
            return values
        self._left = 0
        return None


class _Constructor(_First):
    """That of a data class. A caller that looks at it gets the standard one, too."""

    def __get__(self, instance: object, asked: type) -> object:
        self._left -= 1
        if instance is None or self._left < 0:
            return super().__get__(instance, asked)
        return partial(self._fill, instance)

    def _fill(self, instance: object, /, *args: object, **more: object) -> None:
        values = self._values(args, more)
        if values is None:
            type(instance).__init__(instance, *args, **more)
            return
        for name, value in values.items():
            made = value.make() if isinstance(value, _Factory) else value
            object.__setattr__(instance, name, made)
        if hasattr(self._owner, "__post_init__"):
            instance.__post_init__()  # type: ignore[attr-defined]


def _standard(cls: type, defaults: dict[str, object], init: bool) -> type:
    """The class as the standard module makes it."""
    from dataclasses import dataclass, field

    own: dict[str, Any] = {
        name: field(default_factory=value.make) if isinstance(value, _Factory) else value
        for name, value in defaults.items()
    }
    kept = ("__annotations__", "__module__", "__qualname__", "__post_init__")
    own |= {name: getattr(cls, name) for name in kept if hasattr(cls, name)}
    plain: type = type(cls.__name__, (), own)
    return dataclass(frozen=True, slots=True, init=init)(plain)


def _replace(instance: object, /, **changes: object) -> object:
    """`dataclasses.replace`, for a class that is made here."""
    cls: Any = type(instance)
    new = object.__new__(cls)
    for name in cls.__slots__:
        object.__setattr__(new, name, changes.pop(name, getattr(instance, name)))
    assert not changes, f"not fields of {cls.__name__}: {', '.join(changes)}"
    return new


_TUPLE_PARTS = (
    *("__repr__", "__getnewargs__", "_make", "_replace", "_asdict"),
    *(("__replace__",) if sys.version_info >= (3, 13) else ()),
)


class _Gatherer(_First):
    """The constructor of a named tuple."""

    def __get__(self, instance: object, asked: type) -> object:
        self._left -= 1
        return super().__get__(instance, asked) if self._left < 0 else self._gather

    def _gather(self, cls: Any, /, *args: object, **more: object) -> object:
        values = self._values(args, more)
        if values is None:
            return cls.__new__(cls, *args, **more)
        return tuple.__new__(cls, map(values.__getitem__, self._names))


class _Naming(type):
    """Makes a plain class of each class that is derived from `NamedTuple`."""

    def __new__(cls, name: str, _bases: tuple[type, ...], own: dict[str, Any]) -> Any:
        names = tuple(own["__annotations__"])
        defaults = {field: own.pop(field) for field in names if field in own}
        standard = cache(partial(namedtuple, name, names, defaults=defaults.values()))
        own |= {field: _tuplegetter(at, f"Field {at}.") for at, field in enumerate(names)}
        own |= {"_fields": names, "_field_defaults": defaults, "__match_args__": names}
        own["__new__"] = _Gatherer(standard, names, defaults)
        for part in _TUPLE_PARTS:
            own.setdefault(part, _Later(standard))
        return type(name, (tuple,), {**own, "__slots__": ()})


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import NamedTuple as NamedTuple
else:
    dataclass, field, replace = _dataclass, _field, _replace
    NamedTuple = type.__new__(_Naming, "NamedTuple", (), {"__doc__": "`typing.NamedTuple`."})
