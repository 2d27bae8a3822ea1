"""Data classes and named tuples made quickly are what the standard modules make."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import typing
from typing import Any

import msgspec
import pytest

import backtrail._startup.frozen as frozen


def thing(by: Any, name: str) -> Any:
    """A class of some fields, and one method that is its own."""

    @by.dataclass(frozen=True, slots=True)
    class Thing:
        """A thing."""

        name: str
        size: int | None = None
        tags: list[str] = by.field(default_factory=list)

        def __str__(self) -> str:
            return self.name

    Thing.__qualname__ = name
    return Thing


def partly(by: Any) -> Any:
    """A class with a constructor of its own."""

    @by.dataclass(frozen=True, slots=True, init=False)
    class Partly:
        """A part."""

        a: int
        b: int = 2

        def __init__(self, a: int) -> None:
            object.__setattr__(self, "a", a)
            object.__setattr__(self, "b", 3)

    return Partly


Ours = thing(frozen, "Ours")
Theirs = thing(dataclasses, "Theirs")

both = pytest.mark.parametrize("cls", [Ours, Theirs], ids=["ours", "theirs"])


@both
def test_objects_are_made_shown_and_compared(cls: Any) -> None:
    """By position or name; equal if all fields are, and the class is the same."""
    one = cls("a", tags=["x"])
    assert (one.name, one.size, one.tags, str(one)) == ("a", None, ["x"], "a")
    assert repr(one) == f"{cls.__qualname__}(name='a', size=None, tags=['x'])"
    assert one == cls("a", None, ["x"]) != cls("b", None, ["x"])
    assert one != ("a", None, ["x"])
    assert one.__eq__(Ours if cls is Theirs else Theirs("a")) is NotImplemented
    assert hash(cls("a", 1, ())) == hash(cls("a", 1, ())) == hash(("a", 1, ()))
    assert cls("a").tags is not cls("a").tags
    one.tags.append(one)
    assert repr(one).endswith("tags=['x', ...])")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        cls()
    with pytest.raises(TypeError, match="unexpected keyword argument 'more'"):
        cls("a", more=1)


@both
def test_objects_do_not_change(cls: Any) -> None:
    """Neither known names nor others can be set, and there is no room for others."""
    one = cls("a")
    # The standard module of some versions fails in another way for what is no field.
    for name in ("name", "other") if cls is Ours else ("name",):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"assign to field '{name}'"):
            setattr(one, name, 1)
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"delete field '{name}'"):
            delattr(one, name)
    assert not hasattr(one, "__dict__")
    assert not hasattr(one, "__weakref__")
    assert cls.__slots__ == cls.__match_args__ == ("name", "size", "tags")


@both
def test_others_take_them_for_data_classes(cls: Any) -> None:
    """Copies, pickles, JSON, and what the standard module can do."""
    one = cls("a", 1, ["x"])
    assert dataclasses.is_dataclass(type(one))
    assert dataclasses.asdict(one) == {"name": "a", "size": 1, "tags": ["x"]}
    assert dataclasses.replace(one, size=2) == cls("a", 2, ["x"])
    assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == copy.deepcopy(one) == one
    assert msgspec.json.decode(msgspec.json.encode(one)) == dataclasses.asdict(one)
    assert msgspec.convert({"name": "a", "size": 1, "tags": ["x"]}, cls) == one
    if sys.version_info >= (3, 13):
        assert copy.replace(one, size=2) == cls("a", 2, ["x"])


def test_a_copy_with_some_fields_changed() -> None:
    """Without the standard module; a name that is no field is a mistake of ours."""
    one = Ours("a", 1, ["x"])
    assert frozen.replace(one, size=2) == Ours("a", 2, ["x"])
    assert frozen.replace(one) == one
    with pytest.raises(AssertionError, match="not fields of Thing: other"):
        frozen.replace(one, other=1)


def test_a_subclass_may_have_more() -> None:
    """It is made by the standard module, or not at all."""
    cls = thing(frozen, "Base")

    class Plain(cls):  # type: ignore[misc, valid-type]
        """Has a dictionary, and asks for what is not made yet."""

        def __init__(self, name: str) -> None:
            super().__init__(name, 7)

        def __repr__(self) -> str:
            return f"more than {super().__repr__()}"

    plain: Any = Plain("a")
    assert repr(plain).startswith("more than ")
    plain.more = 1
    assert (plain.more, plain == Plain("a"), plain == cls("a", 7)) == (1, True, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del plain.name
    del plain.more

    @dataclasses.dataclass(frozen=True)
    class More(cls):  # type: ignore[misc, valid-type]
        """Has one more field."""

        extra: int = 0

    assert [field.name for field in dataclasses.fields(More)] == ["name", "size", "tags", "extra"]
    assert More("a", extra=2) == More("a", None, [], 2)


def test_a_class_may_look_at_what_it_was_given() -> None:
    """`__post_init__` is called, as the standard one calls it."""

    @frozen.dataclass(frozen=True, slots=True)
    class Checked:
        number: int
        seen: list[int] = frozen.field(default_factory=list)

        def __post_init__(self) -> None:
            self.seen.append(self.number)

    one, other = Checked(1), Checked(number=2)
    assert (one.seen, other.seen) == ([1], [2])
    assert dataclasses.replace(one, number=3, seen=[]).seen == [3]


@pytest.mark.parametrize(
    ("args", "more"),
    [((), {}), ((1, [], 3), {}), ((1,), {"number": 2}), ((), {"seen": [], "other": 1})],
)
def test_a_wrong_call_is_refused_as_the_standard_one_refuses_it(
    args: tuple[Any, ...], more: dict[str, Any]
) -> None:
    """In the same words, and the next call that is right makes an object."""
    errors = []
    for module in (frozen, dataclasses):

        @module.dataclass(frozen=True, slots=True)
        class Checked:
            number: int
            seen: list[int] = module.field(default_factory=list)

        with pytest.raises(TypeError) as caught:
            Checked(*args, **more)
        errors.append(str(caught.value))
        again: Any = Checked
        assert again(1, seen=[2]).seen == [2]
    assert errors[0] == errors[1]


def test_what_can_be_known_is_the_same() -> None:
    """Signature, annotations, fields, parameters and names."""
    ours, theirs = thing(frozen, "Thing"), thing(dataclasses, "Thing")
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert typing.get_type_hints(ours.__init__) == typing.get_type_hints(theirs.__init__)
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    assert repr(dataclasses.fields(ours)) == repr(dataclasses.fields(theirs))
    assert dir(ours) == dir(theirs)
    assert ours.__doc__ == "A thing."


def test_a_constructor_of_its_own_stays() -> None:
    """Whatever else is made."""
    ours, theirs = partly(frozen), partly(dataclasses)
    assert repr(ours(1)) == repr(theirs(1)) == "partly.<locals>.Partly(a=1, b=3)"
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)


def test_the_standard_module_is_left_alone() -> None:
    """Until a caller asks for fields."""
    code = (
        "import sys; from backtrail._startup.frozen import replace\n"
        "from backtrail.events import NewEvent, make_event\n"
        "event = make_event(1, 'id', 'ts', 'kind', {}, None)\n"
        "assert (replace(event, seq=2).seq, NewEvent('kind').data) == (2, {})\n"
        "print('dataclasses' in sys.modules, len(event.__dataclass_fields__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False 6\n"


class Quick(frozen.NamedTuple):
    """A pair."""

    name: str
    size: int | None = None

    @property
    def label(self) -> str:
        """A method of its own."""
        return f"{self.name}!"


class Plain(typing.NamedTuple):
    """A pair."""

    name: str
    size: int | None = None

    @property
    def label(self) -> str:
        """A method of its own."""
        return f"{self.name}!"


@pytest.mark.parametrize("cls", [Quick, Plain], ids=["ours", "theirs"])
def test_named_tuples_are_what_the_standard_module_makes(cls: Any) -> None:
    """Made, shown, compared, replaced, copied, matched and read by msgspec alike."""
    one = cls("a", size=1)
    name, size = one
    assert (name, size, one.name, one.size, one.label) == ("a", 1, "a", 1, "a!")
    assert one == ("a", 1) == cls._make(["a", 1]) and cls("a") == ("a", None)
    assert repr(one) == f"{cls.__name__}(name='a', size=1)"
    assert one._replace(size=2) == ("a", 2) and type(one._replace(size=2)) is cls
    assert one._asdict() == {"name": "a", "size": 1}
    assert cls._fields == cls.__match_args__ == ("name", "size")
    assert cls._field_defaults == {"size": None} and cls.__doc__ == "A pair."
    assert type(pickle.loads(pickle.dumps(one))) is type(copy.deepcopy(one)) is cls
    assert msgspec.json.encode(one) == b'["a",1]'
    assert msgspec.convert(["a"], cls) == ("a", None)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(["a", "b"], cls)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        cls()
    with pytest.raises((TypeError, ValueError), match="unexpected field names"):
        one._replace(other=1)
    with pytest.raises(AttributeError):
        one.name = "b"
    assert not hasattr(one, "__dict__")
    if sys.version_info >= (3, 13):
        assert copy.replace(one, size=2) == ("a", 2)
