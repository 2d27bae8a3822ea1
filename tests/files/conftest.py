"""A project to work in, and a session that watches over it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backtrail import Session


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small directory with files."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "README").write_text("one\ntwo\nthree\n")
    (root / "src" / "main.py").write_text("print('hello')\n")
    return root


@pytest.fixture
def session(tmp_path: Path, project: Path) -> Iterator[Session]:
    """A session on a database, with one message said."""
    with Session.create(f"sqlite:///{tmp_path}/store.db", "s", cwd=project) as session:
        session.append({"role": "user", "content": "begin"})
        yield session


def shell(session: Session, command: str, cwd: Path) -> None:
    """A shell command as a bracketed call."""
    with session.tool("bash", {"command": command}) as call:
        subprocess.run(command, shell=True, check=True, cwd=cwd)
        call.result = "done"
