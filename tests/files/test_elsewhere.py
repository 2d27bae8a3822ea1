"""Contents of files that another package keeps, by the entry-point group `backtrail.blobs`."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Session, open_store
from backtrail.errors import Unsupported
from backtrail.files import Blobs, collect
from backtrail.files.contents.blobs import MemoryBlobs
from backtrail.files.contents.sqlite import SQLiteBlobs
from backtrail.files.depot import open_blobs


@pytest.fixture
def shelves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Blobs]]:
    """What an installed package keeps, by address: contents that outlive a close."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shelf.py").write_text(
        "opened = {}\ndef open_shelf(address):\n    return opened[address]\n"
    )
    about = tmp_path / "lib" / "shelf-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[backtrail.blobs]\nshelf = shelf:open_shelf\n")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    import shelf  # type: ignore[import-not-found]

    opened: dict[str, Blobs] = shelf.opened
    yield opened
    del sys.modules["shelf"]


class Lasting(MemoryBlobs):
    """Contents that a depot closes and opens again."""

    def close(self) -> None:
        """Nothing to let go of."""


def test_a_package_keeps_contents(tmp_path: Path, shelves: dict[str, Blobs]) -> None:
    """A rewind takes files back from there, and a collection looks there."""
    kept = shelves["//one"] = Lasting()
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("before")
    with open_store(f"sqlite:///{tmp_path}/s.db", blobs="shelf://one") as store:
        with Session.create(store, cwd=project) as s:
            said = s.append({"role": "user", "content": "go"})
            with s.tool("edit"):
                (project / "a.txt").write_text("after")
        assert len(set(kept.digests())) > 2
        with Session.resume(store, s.id, cwd=project) as s:
            s.rewind(before=said)
        assert (project / "a.txt").read_text() == "before"
        assert collect(store).used == kept.used()
    folder = tmp_path / "s.db-files"
    assert (folder / "catalogue.db").exists()
    assert not (folder / "blobs.db").exists()


def test_a_scheme_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    """Before anything is captured."""
    with (
        open_store(f"sqlite:///{tmp_path}/s.db", blobs="nowhere://one") as store,
        pytest.raises(Unsupported, match="no contents for `nowhere:` are installed"),
    ):
        collect(store)


def test_our_own_schemes_are_registered(tmp_path: Path) -> None:
    """Each entry point of the package names a function that opens something."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    groups = project["project"]["entry-points"]
    for group in ("backtrail.blobs", "backtrail.stores"):
        for point in groups[group].values():
            module, _, name = point.partition(":")
            assert callable(getattr(importlib.import_module(module), name))
    with open_blobs(f"sqlite:///{tmp_path}/b.db") as blobs:
        assert isinstance(blobs, SQLiteBlobs)
