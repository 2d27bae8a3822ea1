"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import backtrail
from backtrail import AsyncSession, Session
from backtrail.adapters import MissingFramework
from backtrail.session.aio_parts import AsyncSubscription, AsyncTurn
from backtrail.session.listeners import Subscription
from backtrail.session.log import SideLog
from backtrail.session.threads import AsyncSideLog
from backtrail.session.turnlog import Turn
from backtrail.stores.disk.forks import ForkAware

SOURCE = Path(backtrail.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}
TALKING = ("cli", "__main__")

LAYERS = [
    ["_startup"],
    ["errors"],
    ["settings"],
    ["events", "history"],
    ["telemetry"],
    ["formats", "secrets"],
    ["stores"],
    ["files"],
    ["session", "aio", "turns"],
    ["agent"],
    ["exchange"],
    ["adapters"],
    ["testing"],
    ["web"],
    ["cli", "__main__"],
]
"""The layers, lowest first: a layer sees those above it in this list, and itself."""

ASYNCHRONOUS = {
    *("agent.oneshot", "session.aio_drive", "session.aio_parts"),
    *("session.awaiting", "session.threads"),
    "web.live",
}
"""The modules that may import an event loop."""


def module(path: Path) -> str:
    """The dotted name of a file, below the package."""
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(name: str) -> int:
    """The number of a module's layer."""
    top = name.split(".")[0]
    for number, names in enumerate(LAYERS):
        if top in names:
            return number
    raise AssertionError(f"`{name}` is in no layer: put it into LAYERS")


def imports(path: Path) -> Iterator[str]:
    """What a file imports of this package, in functions and for types too."""
    here = ["backtrail", *module(path).split(".")] if module(path) else ["backtrail"]
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "backtrail":
                    yield alias.name.partition(".")[2]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            if source.split(".")[0] != "backtrail":
                continue
            inner = source.partition(".")[2]
            for alias in node.names:
                deeper = f"{inner}.{alias.name}".strip(".")
                yield deeper if (SOURCE / f"{deeper.replace('.', '/')}.py").exists() else inner


def ids(path: Path) -> str:
    """A file as a test is named."""
    return module(path) or "backtrail"


every_file = pytest.mark.parametrize("path", FILES, ids=ids)


# --- names -------------------------------------------------------------------------------


def test_public_names_are_sorted_and_there() -> None:
    """Each can be imported, and comes once."""
    assert backtrail.__all__ == sorted(set(backtrail.__all__))
    for name in backtrail.__all__:
        assert getattr(backtrail, name) is not None
    with pytest.raises(AttributeError):
        _ = backtrail.nonsense


def test_public_names_are_the_same_for_types_and_at_run_time() -> None:
    """`__all__`, the imports for type checkers and the homes agree."""
    homes = backtrail._HOME
    tree = TREES[SOURCE / "__init__.py"]
    typed: dict[str, str] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 1
            and node.module != "_startup.loading"
        ):
            for alias in node.names:
                assert alias.asname == alias.name
                typed[alias.name] = node.module or ""
    modules = {name for name, home in typed.items() if not home}
    assert modules == set(backtrail._MODULES)
    assert {name: home for name, home in typed.items() if home} == homes
    assert sorted(homes) == backtrail.__all__
    for name, home in homes.items():
        value = getattr(backtrail, name)
        assert value.__module__ == f"backtrail.{home}"


@pytest.mark.parametrize("package", ["stores", "files"])
def test_packages_name_what_they_have(package: str) -> None:
    """Their public names are sorted and there, too."""
    found = importlib.import_module(f"backtrail.{package}")
    assert found.__all__ == sorted(set(found.__all__))
    for name in found.__all__:
        assert hasattr(found, name)


def test_modules_are_there_without_being_imported() -> None:
    """`import backtrail` is enough to name one."""
    code = "import backtrail\nfor name in backtrail._MODULES: getattr(backtrail, name).__doc__[0]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- layers ------------------------------------------------------------------------------


@every_file
def test_imports_go_one_way(path: Path) -> None:
    """No module imports from a layer above its own, at whatever place."""
    name = module(path)
    if not name:
        return
    for wanted in imports(path):
        if wanted:
            assert layer(wanted) <= layer(name), f"{name} imports {wanted}"


def test_the_layers_are_checked() -> None:
    """The check sees relative, absolute and nested imports."""
    seen = set(imports(SOURCE / "stores" / "sqlite" / "__init__.py"))
    assert {"errors", "events", "stores.base", "stores.records"} <= seen
    assert "telemetry" in set(imports(SOURCE / "stores" / "batches.py"))
    assert layer("agent") > layer("session") > layer("stores.base") > layer("events")


def test_importing_the_package_is_cheap() -> None:
    """It brings in none of the heavy modules, and nothing of the network."""
    heavy = ("asyncio", "anyio", "apsw", "msgspec", "sqlite3", "socket", "opentelemetry")
    code = f"import sys, backtrail; print([n for n in {heavy!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_a_session_needs_no_event_loop() -> None:
    """Nor the database, if it lives in files."""
    code = (
        "import sys; from backtrail import Session\n"
        "Session.create('memory:').close()\n"
        "print([n for n in ('asyncio', 'anyio', 'apsw', 'opentelemetry') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@every_file
def test_only_the_asynchronous_part_knows_anyio(path: Path) -> None:
    """A program without a loop pays for none."""
    names = {
        name.split(".")[0]
        for node in ast.walk(TREES[path])
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"}
    if module(path) not in ASYNCHRONOUS:
        assert not names & {"anyio", "asyncio", "trio"}


# --- docstrings --------------------------------------------------------------------------


def public(path: Path) -> Iterator[tuple[str, object]]:
    """The public module, classes, functions, methods and properties of a file."""
    name = f"backtrail.{module(path)}".rstrip(".")
    try:
        source: ModuleType = importlib.import_module(name)
    except MissingFramework:
        # An adapter is looked at where its framework is.
        return
    yield name, source
    for key, value in vars(source).items():
        if key.startswith("_") or getattr(value, "__module__", None) != name:
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            yield f"{name}.{key}", value
        if inspect.isclass(value):
            for inner, member in vars(value).items():
                plain = getattr(member, "__func__", member)
                if not inner.startswith("_") and (
                    inspect.isfunction(plain) or isinstance(member, property)
                ):
                    yield f"{name}.{key}.{inner}", getattr(value, inner)


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "__main__"], ids=ids)
def test_everything_public_says_what_it_is(path: Path) -> None:
    """In its own docstring, or that of what it overrides or of the protocol it follows."""
    protocols = vars(ForkAware)
    silent = [name for name, value in public(path) if not inspect.getdoc(value)]
    assert [name for name in silent if name.rpartition(".")[2] not in protocols] == []


# --- what is not done --------------------------------------------------------------------


def calls(tree: ast.AST) -> Iterator[str]:
    """The plain names that are called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


@every_file
def test_the_library_runs_no_text_and_prints_none(path: Path) -> None:
    """Neither `eval` nor `exec`; `print` only where it talks to people."""
    called = set(calls(TREES[path]))
    assert not called & {"eval", "exec", "compile", "__import__", "breakpoint"}
    if module(path).split(".")[0] not in TALKING:
        assert "print" not in called


@every_file
def test_no_error_is_swallowed(path: Path) -> None:
    """No bare `except`, and none that takes everything and does nothing."""
    for node in ast.walk(TREES[path]):
        if not isinstance(node, ast.ExceptHandler):
            continue
        assert node.type is not None, f"line {node.lineno}: a bare except"
        broad = isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
        empty = all(isinstance(step, (ast.Pass, ast.Continue)) for step in node.body)
        assert not (broad and empty), f"line {node.lineno}: an error is swallowed"


# --- sync and async ----------------------------------------------------------------------

PAIRS = [
    (Session, AsyncSession),
    (Turn, AsyncTurn),
    (SideLog, AsyncSideLog),
    (Subscription, AsyncSubscription),
]
WORKINGS = {"after", "begin", "put", "take", "fill", "behind", "closed", "after_fork"}
"""What a subscription has for its feeder, and for a fork of the process."""


def members(cls: type) -> dict[str, object]:
    """The public methods and properties of a class."""
    names = [name for name in dir(cls) if not name.startswith("_")]
    return {name: inspect.getattr_static(cls, name) for name in names}


def parameters(method: object) -> list[tuple[str, object, object, object]]:
    """Name, kind, default and annotation of each parameter."""
    plain = method.__func__ if isinstance(method, classmethod) else method
    assert callable(plain)
    found = inspect.signature(plain).parameters.values()
    return [(p.name, p.kind, p.default, p.annotation) for p in found]


@pytest.mark.parametrize(("sync", "other"), PAIRS, ids=lambda cls: str(cls.__name__))
def test_async_and_sync_are_the_same(sync: type, other: type) -> None:
    """Every public method and property, parameter by parameter."""
    here = {name: value for name, value in members(sync).items() if name not in WORKINGS}
    there = members(other)
    attributes = {name for name, value in there.items() if isinstance(value, property)}
    assert here.keys() <= there.keys()
    assert there.keys() - here.keys() <= attributes
    for name, value in here.items():
        if isinstance(value, property):
            assert name in attributes
            continue
        assert parameters(value) == parameters(there[name]), name
        assert isinstance(value, classmethod) == isinstance(there[name], classmethod)


def test_async_has_the_attributes_of_sync() -> None:
    """What a session simply has is there as well."""
    with Session.create("memory:") as s:
        simple = {name for name in vars(s) if not name.startswith("_")}
    for cls, plain in ((Session, simple), (AsyncSession, set())):
        properties = {n for n, v in members(cls).items() if isinstance(v, property)}
        assert properties | plain == {"agent", "id", "parts", "problems", "store"}


@pytest.mark.parametrize(("sync", "other"), PAIRS, ids=lambda cls: str(cls.__name__))
def test_async_waits_where_sync_works(sync: type, other: type) -> None:
    """Each method is awaited, but those that only hand something out."""
    handing = {"events", "follow", "subscribe", "log", "subagent", "read", "stream", "tool", "turn"}
    for name, value in members(other).items():
        plain = getattr(value, "__func__", value)
        if inspect.isfunction(plain) and name not in handing:
            assert inspect.iscoroutinefunction(plain), name


AT_THE_TOP = {
    *(".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
    *("SECURITY.md", "bench", "docs", "pyproject.toml", "src", "tests", "uv.lock"),
}
"""What may lie at the top of the repository."""

BINARY = (".svg", ".gz", ".xz", ".zst", ".bundle", ".png")
"""How the names of samples end that are no text."""


def test_nothing_stray_is_kept() -> None:
    """No database, log or folder of a trial was committed by mistake."""
    root = Path(__file__).parent.parent
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a clone of the repository")
    names = [name for name in done.stdout.decode().split("\0") if name]
    assert {name.split("/")[0] for name in names} <= AT_THE_TOP
    stray = [
        name
        for name in names
        if not name.endswith(BINARY)
        and (root / name).is_file()
        and b"\0" in (root / name).read_bytes()[:8192]
    ]
    assert stray == []
