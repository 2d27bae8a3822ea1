"""Links below a store's path: nothing outside is read into it, made or changed.

The oracle: every part that a used store has is replaced by a link, to a copy of itself or to
nothing, one after the other. Whatever the store then does, what lies outside stays as it is.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from backtrail import BacktrailError, NewEvent, Session, SessionInfo
from backtrail import files as tracked
from backtrail.exchange.hooks.places import append_line, folder_of
from backtrail.stores import open_store

URLS = {"sqlite": "sqlite:///{}/s.db", "file": "file:{}/s"}


def used(url: str, project: Path, round: int) -> None:
    """All that a store does."""
    with open_store(url, retention="3000d") as store:
        store.sessions()
        with Session.open(store, "one", cwd=project, lease="session") as s:
            s.append({"role": "user", "content": f"go {round}"})
            with s.tool("edit"):
                (project / "a.txt").write_text(f"{round}\n")
            s.log("transcript").append({"raw": round})
            s.log("subagents/a").append({"raw": round})
            s.undo()
        store.memory(project).write(f"note {round}\n")
        store.memory(project).read()
        store.search("go")
        with suppress(OSError):
            # A hook's own files: what goes wrong there is the hook's to note.
            append_line(folder_of(store) / "notes", b"a miss\n")
        store.purge("one", [1])
        tracked.verify(store)
        tracked.collect(store, grace=0)
        store.flush()
    with open_store(url, scope="other") as store:
        store.create(SessionInfo(f"two-{round}"))
        store.append(f"two-{round}", [NewEvent("note", {"n": round})])


def everything(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def parts(folder: Path) -> list[str]:
    """Every file and folder of a store, as it is while it is open."""
    return [str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))]


@pytest.fixture(scope="module", params=sorted(URLS))
def template(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A store that was used, with the files that it has while it is open."""
    place = tmp_path_factory.mktemp("template")
    (place / "in").mkdir()
    project = place / "project"
    project.mkdir()
    url = URLS[request.param].format(place / "in")
    used(url, project, 0)
    with open_store(url) as store, Session.open(store, "open", cwd=project) as s:
        s.append({"role": "user", "content": "open"})
        with s.tool("edit"):
            (project / "b.txt").write_text("b\n")
            shutil.copytree(place / "in", place / "copy", ignore_dangling_symlinks=True)
    return URLS[request.param], place / "copy"


@pytest.mark.parametrize("kind", ["copy", "nothing"])
def test_no_part_of_a_store_is_reached_by_a_link(
    template: tuple[str, Path], kind: str, tmp_path: Path
) -> None:
    """Whichever part it is: it is an error that names it, or the link is replaced or ignored."""
    url, source = template
    bad: list[str] = []
    names = parts(source)
    for round, name in enumerate(names, 1):
        work = tmp_path / str(round)
        outside, project = work / "outside", work / "project"
        shutil.copytree(source, work / "in")
        outside.mkdir()
        project.mkdir()
        part = work / "in" / name
        if part.name in ("s.db", "s") and part.parent == work / "in":
            # The path that the person names may itself be a link.
            continue
        if kind == "copy":
            shutil.move(part, outside / "target")
        elif part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()
        part.symlink_to(outside / "target")
        before = everything(outside)
        with suppress(BacktrailError):
            used(url.format(work / "in"), project, round)
        if everything(outside) != before:
            bad.append(name)
        shutil.rmtree(work)
    assert len(names) > 20
    assert bad == [], bad


@pytest.mark.parametrize("kind", sorted(URLS))
def test_the_person_may_come_by_a_link(kind: str, tmp_path: Path) -> None:
    """The path to a store is the person's choice."""
    (tmp_path / "real").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "link").symlink_to("real")
    used(URLS[kind].format(tmp_path / "link"), tmp_path / "project", 1)
    used(URLS[kind].format(tmp_path / "real"), tmp_path / "project", 2)
    name = URLS[kind].format("").rpartition("/")[2]
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / name).symlink_to(tmp_path / "real" / name)
    used(URLS[kind].format(tmp_path / "third"), tmp_path / "project", 3)
    assert os.listdir(tmp_path / "third") == [name]


@pytest.mark.parametrize(
    ("kind", "part"),
    [("sqlite", "s.db-files"), ("sqlite", "s.db-wal"), ("sqlite", "s.db-lock"),
     ("file", "s/sessions"), ("file", "s/blobs"), ("file", "s/memory")],
)  # fmt: skip
def test_the_error_names_the_link(kind: str, part: str, tmp_path: Path) -> None:
    """And says what to do."""
    place = tmp_path / "in"
    (tmp_path / "project").mkdir()
    place.mkdir()
    used(URLS[kind].format(place), tmp_path / "project", 1)
    target = place / part
    shutil.rmtree(target, ignore_errors=True)
    target.unlink(missing_ok=True)
    target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BacktrailError, match="link") as caught:
        used(URLS[kind].format(place), tmp_path / "project", 2)
    assert part.removesuffix("-lock") in str(caught.value)
    assert not (tmp_path / "elsewhere").exists()
