"""The first import in the background: who must not wait does not, and it is said."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from backtrail import Session
from backtrail.files.workspace import firstimport, scan
from tests.talking import user


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds the first import up until it is set."""
    opened = threading.Event()
    plain = scan.Scanner.scan

    def slow(self: scan.Scanner, root: int, paths: Collection[bytes] | None = None) -> bytes:
        if threading.current_thread().name == "backtrail-baseline":
            while not opened.wait(0.01):
                if self.stop is not None and self.stop():
                    raise scan.Stopped("asked to")
        return plain(self, root, paths)

    monkeypatch.setattr(scan.Scanner, "scan", slow)
    return opened


def open_session(tmp_path: Path, project: Path) -> Session:
    url = f"sqlite:///{tmp_path}/store.db"
    return Session.open(url, "s", cwd=project, files="background")


def test_a_message_and_an_edit_do_not_wait(
    tmp_path: Path, project: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edit is captured, a shell call says that it was not, and all can be rewound."""
    monkeypatch.setattr("backtrail.session.capture.BASELINE_WAIT", 0.01)
    with open_session(tmp_path, project) as s:
        event = s.append(user("go"))
        assert event.data["files"] == {"missed": firstimport.PARTIAL}
        with s.tool("edit", paths=["src/main.py", "lib/new.py"]) as edit:
            (project / "src/main.py").write_text("changed\n")
            (project / "lib").mkdir()
            (project / "lib/new.py").write_text("new\n")
        with s.tool("bash") as bash:
            pass
        assert edit.event is not None
        assert edit.event.data["files"]["partial"] is True
        assert bash.event is not None
        assert bash.event.data["files"] == {"missed": firstimport.PARTIAL}
        gate.set()
        done = s.rewind(before=event)
        assert done.files_changed == ["lib", "lib/new.py", "src/main.py"]
        assert (project / "src/main.py").read_text() == "print('hello')\n"
        assert not (project / "lib").exists()
        assert any(firstimport.PARTIAL in warning for warning in done.warnings)


def test_closing_stops_it_and_the_next_goes_on(
    tmp_path: Path, project: Path, gate: threading.Event
) -> None:
    """Nothing hangs, and the session is as any other afterwards."""
    with open_session(tmp_path, project) as s:
        s.append(user("go"))
    gate.set()
    with open_session(tmp_path, project) as s:
        s.parts.capture.needed()
        assert "tree" in s.append(user("again")).data


def test_progress_is_reported(tmp_path: Path, project: Path) -> None:
    """With the number of files seen."""
    seen: list[int] = []
    with Session.create("memory:", cwd=project, progress=seen.append) as s:
        s.append(user("go"))
    assert seen[-1] >= 2
