"""Two homes as two machines, with one store: a session goes from one to the other and back."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backtrail.stores import open_store
from tests import postgres

BEGIN = """
import json, os, sys
from pathlib import Path
from backtrail import Session
from backtrail.errors import Conflict, SessionBusy
url, home = sys.argv[1], Path.home()

def files(folder):
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in found}

def change(session, **contents):
    with session.tool("bash", {"command": "x"}) as call:
        for name, text in contents.items():
            (Path(session.info().root) / name).write_text(text)
        call.result = "done"
"""


def on(machine: Path, url: str, code: str) -> str:
    """Run lines on a machine, which has a home and a state of its own; what they print."""
    machine.mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BACKTRAIL", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(code), url],
        env={**env, "HOME": str(machine)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The store of both."""
    return postgres.url_for(tmp_path)


def record_on_a(a: Path, url: str) -> None:
    """A session with two turns, and files with odd modes and names."""
    on(
        a, url, """
        work = home / "work"
        (work / "deep" / "er").mkdir(parents=True)
        (work / "a.txt").write_text("one")
        (work / "deep" / "er" / "run.sh").write_text("#!/bin/sh")
        (work / "deep" / "er" / "run.sh").chmod(0o755)
        (work / "link").symlink_to("a.txt")
        with Session.create(url, "s", cwd=work) as s:
            s.append({"role": "user", "content": "on A"})
            change(s, **{"a.txt": "two", "b.txt": "b"})
            s.checkpoint("left A")
        """,
    )  # fmt: skip


def test_a_session_goes_on_elsewhere_with_its_files(tmp_path: Path, url: str) -> None:
    """Conversation and files; rewinds there; and the first machine takes what the other did."""
    a, b = tmp_path / "a", tmp_path / "b"
    record_on_a(a, url)
    said = on(
        b, url, """
        work = home / "other" / "place"
        with Session.resume(url, "s", cwd=work) as s:
            assert [m["content"] for m in s.messages()] == ["on A"]
            assert files(work) == {
                "a.txt": "two", "b.txt": "b", "link": "two", "deep/er/run.sh": "#!/bin/sh",
            }
            assert os.access(work / "deep/er/run.sh", os.X_OK)
            assert (work / "link").is_symlink()
            s.append({"role": "user", "content": "on B"})
            change(s, **{"a.txt": "three", "c.txt": "c"})
            s.undo()
            assert files(work)["a.txt"] == "two" and not (work / "c.txt").exists()
            s.redo()
            assert files(work)["a.txt"] == "three"
            done = s.rewind(s.checkpoints()[0])
            assert done.applied and files(work)["a.txt"] == "two"
            s.append({"role": "user", "content": "again on B"})
            change(s, **{"a.txt": "four", "d.txt": "d"})
            print(s.checkpoint("left B").id)
            assert s.info().cwd == str(work)
        """,
    )  # fmt: skip
    on(
        a, url, f"""
        work = home / "work"
        with Session.resume(url, "s", cwd=work) as s:
            # What another machine did is not put over this one's files unasked.
            assert files(work)["a.txt"] == "two"
            s.relocate(work)
            done = s.rewind({said.strip()!r}, mode="exact")
            assert done.applied, done
            assert files(work)["a.txt"] == "four" and files(work)["d.txt"] == "d", files(work)
            said = [m["content"] for m in s.messages()]
            assert said == ["on A", "again on B"], said
            s.append({{"role": "user", "content": "back on A"}})
            change(s, **{{"a.txt": "five"}})
            s.undo()
            assert files(work)["a.txt"] == "four"
        """,
    )  # fmt: skip


def test_a_folder_with_files_is_left_alone(tmp_path: Path, url: str) -> None:
    """What a person has there is not mixed with the session's."""
    a, b = tmp_path / "a", tmp_path / "b"
    record_on_a(a, url)
    on(
        b, url, """
        work = home / "mine"
        work.mkdir()
        (work / "mine.txt").write_text("mine")
        with Session.resume(url, "s", cwd=work) as s:
            assert [m["content"] for m in s.messages()] == ["on A"]
        assert files(work) == {"mine.txt": "mine"}
        with Session.resume(url, "s", files=False) as s:
            s.append({"role": "user", "content": "no files"})
        """,
    )  # fmt: skip


def test_a_folder_that_was_emptied_here_stays_empty(tmp_path: Path, url: str) -> None:
    """On its own machine, an empty folder is what a person or a call left."""
    a = tmp_path / "a"
    record_on_a(a, url)
    on(
        a, url, """
        import shutil
        work = home / "work"
        for path in work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with Session.resume(url, "s", cwd=work) as s:
            assert files(work) == {}
            s.rewind(s.checkpoints()[0], mode="exact")
            assert files(work)["a.txt"] == "two"
        """,
    )  # fmt: skip


def test_one_machine_drives_a_session_at_a_time(tmp_path: Path, url: str) -> None:
    """The other hears which one, and can go on when that one is done."""
    a, b = tmp_path / "a", tmp_path / "b"
    record_on_a(a, url)
    a_env = {k: v for k, v in os.environ.items() if not k.startswith(("BACKTRAIL", "XDG_"))}
    holder = subprocess.Popen(
        [
            sys.executable, "-c", BEGIN + textwrap.dedent("""
            with Session.resume(url, "s", lease="session") as s:
                print("held", flush=True)
                sys.stdin.readline()
            """), url,
        ],
        env={**a_env, "HOME": str(a)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        lines = """
        try:
            with Session.resume(url, "s", files=False, lease="session") as s:
                print("got it")
        except SessionBusy as error:
            print(error.owner.pid)
        """
        assert on(b, url, lines).strip() == str(holder.pid)
        holder.communicate("\n", timeout=30)
        assert on(b, url, lines).strip() == "got it"
    finally:
        holder.kill()
        holder.wait()


def test_the_command_line_brings_a_session_here(tmp_path: Path, url: str) -> None:
    """`resume ID --into DIR`; a folder that has something in it is refused."""
    a, b = tmp_path / "a", tmp_path / "b"
    record_on_a(a, url)
    b.mkdir()
    (b / "full").mkdir()
    (b / "full" / "x").touch()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BACKTRAIL", "XDG_"))}

    def run(folder: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "backtrail", "resume", "s", "--into", folder, "--store", url],
            env={**env, "HOME": str(b)}, cwd=b, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    assert run("full").returncode == 1
    assert [path.name for path in (b / "full").iterdir()] == ["x"]
    done = run("new")
    assert done.returncode == 0, done.stderr
    assert str(b / "new") in done.stdout
    assert (b / "new" / "a.txt").read_text() == "two"
    assert run("new").returncode == 1


def test_two_machines_work_at_once(tmp_path: Path, url: str) -> None:
    """Each with files of its own: no event is lost or twice, and neither undoes the other's."""
    a, b = tmp_path / "a", tmp_path / "b"
    record_on_a(a, url)
    lines = """
        name = home.name
        work = home / ("work" if name == "a" else "other")
        with Session.resume(url, "s", cwd=work, wait=30) as s:
            for n in range(12):
                s.append({"role": "user", "content": f"{name} {n}"})
                with s.tool("bash", {"command": "x"}) as call:
                    (work / f"{name}{n}.txt").write_text(f"{name}{n}")
                    (work / "both.txt").write_text(f"{name} {n}")
                    call.result = "done"
            left = files(work)
            assert left["both.txt"] == f"{name} 11", left
            assert not any(f.startswith("ab".replace(name, "")) and f[1:2].isdigit() for f in left)
            plan = s.rewind(s.checkpoints()[0], scope="files", dry_run=True)
            mine = {one.path for one in plan.files if one.action == "delete"}
            assert {f"{name}{n}.txt" for n in range(12)} <= mine, mine
            assert not any(f.startswith("ab".replace(name, "")) and f[1:2].isdigit() for f in mine)
    """
    # It takes what the first left; from here on each goes its own way.
    on(b, url, 'Session.resume(url, "s", cwd=home / "other").close()')
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(on, machine, url, lines) for machine in (a, b)]:
            done.result()
    with open_store(url) as store:
        said = [
            event.data["message"]["content"] for event in store.read("s", kinds={"user_message"})
        ]
        assert sorted(said) == sorted(["on A", *(f"{m} {n}" for m in "ab" for n in range(12))])
        for name in "ab":
            assert [one for one in said if one.startswith(f"{name} ")] == [
                f"{name} {n}" for n in range(12)
            ]
        assert store.verify() == []
        workspaces = {
            event.data["workspace"]["id"]
            for event in store.read("s") if "workspace" in event.data
        }  # fmt: skip
        assert len(workspaces) == 2
