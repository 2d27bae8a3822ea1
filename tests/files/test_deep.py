"""Folders that lie deeper than Python calls: everything walks them all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.files.restore.materialize import materialize
from tests.talking import user

DEEP = 700


def dig(root: Path, depth: int = DEEP, text: bytes = b"bottom\n") -> None:
    """Folders in folders, each made in the one above, and a file in the last."""
    fd = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("f", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)
    os.write(file, text)
    os.close(file)
    os.close(fd)


def bottom(root: Path) -> tuple[int, bytes]:
    """How deep the folders go, and what the file in the last one says."""
    fd = os.open(root, os.O_RDONLY)
    found = 0
    while "d" in os.listdir(fd):
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
        found += 1
    content = b""
    if "f" in os.listdir(fd):
        file = os.open("f", os.O_RDONLY, dir_fd=fd)
        content = os.read(file, 100)
        os.close(file)
    os.close(fd)
    return found, content


def test_what_lies_deep_comes_and_goes(session: Session, project: Path, tmp_path: Path) -> None:
    """Made by a call, taken back, made again; and no session there is hindered by it."""
    before = sorted(os.listdir(project))
    with session.tool("bash"):
        dig(project)
    session.append(user("and then"))
    session.rewind(2)
    assert sorted(os.listdir(project)) == before
    session.undo()
    assert bottom(project) == (DEEP, b"bottom\n")
    session.append(user("still there"))
    point = session.checkpoint()
    assert point.tree is not None
    materialize(session.store, point, tmp_path / "copy")
    assert bottom(tmp_path / "copy") == (DEEP, b"bottom\n")
    session.fork(into=tmp_path / "fork").close()
    assert bottom(tmp_path / "fork") == (DEEP, b"bottom\n")
    assert session.diff(2).files
    session.rewind(2, mode="exact")
    assert sorted(os.listdir(project)) == before


def test_a_failed_copy_leaves_nothing_however_deep(
    session: Session, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was built beside its place is removed, all of it."""
    with session.tool("bash"):
        dig(project)
    point = session.checkpoint()

    rename = os.rename

    def refuse(a: str, b: str, **below: int) -> None:
        if not below:
            raise OSError(5, "broken")
        rename(a, b, **below)

    monkeypatch.setattr("backtrail.files.restore.materialize.os.rename", refuse)
    with pytest.raises(OSError, match="broken"):
        materialize(session.store, point, tmp_path / "out" / "copy")
    assert not (tmp_path / "out").exists()
