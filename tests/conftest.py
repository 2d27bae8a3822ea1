"""What the tests of sessions share: a place on every store, and child processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from backtrail.cli.allow import MARKS
from backtrail.stores import Store, opening
from backtrail.stores.opening import Options

from . import postgres

# A busy machine makes any strategy slow at times; that says nothing about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("tests"), derandomize=True)

# A shell starts what runs in its background with SIGINT ignored, `nohup` with SIGHUP, and that
# is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Examples are the same in each run of `make test`; torture draws new ones."""
    settings.load_profile("tests" if config.getoption("markexpr") == "torture" else "same")


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the machine knows of roots: a folder of the test's own, also for child processes."""
    folder = tmp_path_factory.mktemp("state") / "backtrail"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKTRAIL_STATE", str(folder))
        # Copies of contents that lie on a server are kept below it.
        patch.setenv("XDG_DATA_HOME", str(folder.parent / "data"))
        for mark in MARKS:
            # An agent may run the tests.
            patch.delenv(mark, raising=False)
        yield folder


def _on_postgres(address: str, options: Options) -> Store:
    """The store of a schema that stands for the path of a database."""
    from backtrail.stores.postgres import open_postgres

    url = postgres.url_for(Path(address.removeprefix("//")))
    return open_postgres(url.removeprefix("postgresql:"), options)


@pytest.fixture(autouse=True)
def store_of_suites() -> Iterator[None]:
    """With `BACKTRAIL_TEST_STORE=postgresql`, `sqlite:///PATH` is a store in PostgreSQL.

    So suites that name a database run on the other store as they are. Child processes do not know.
    """
    # Not by `monkeypatch`: asked for here, it would be undone after all other fixtures.
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("BACKTRAIL_TEST_STORE") == "postgresql":
            patch.setitem(opening._openers, "sqlite", _on_postgres)
        yield


@pytest.fixture(params=["memory", "file", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh place that can be opened again, on each store."""
    if request.param == "postgres":
        return postgres.url_for(tmp_path)
    return {
        "memory": f"memory:{tmp_path}",
        "file": f"file:{tmp_path}/store",
        "sqlite": f"sqlite:///{tmp_path}/store.db",
    }[request.param]


@pytest.fixture(params=["file", "sqlite"])
def disk_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh place on the disk, which other processes can open."""
    if request.param == "file":
        return f"file:{tmp_path}/store"
    return f"sqlite:///{tmp_path}/store.db"
