"""Every row of the page on what can be rewound, tried."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from backtrail import Session

from .pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "what-can-be-rewound.md"
LARGE = 20 * 1024 * 1024 + 1

Look = Callable[["Case"], object]


@dataclass
class Case:
    """A folder with a session in it, and what is around it."""

    around: Path
    held: list[object] = field(default_factory=list)

    @property
    def project(self) -> Path:
        """The folder that is watched over."""
        return self.around / "project"

    @property
    def s(self) -> Session:
        """The session."""
        assert isinstance(self.held[0], Session)
        return self.held[0]

    def shell(self, command: str) -> None:
        """The agent runs a command."""
        with self.s.tool("bash", {"command": command}):
            self.run(command)

    def run(self, command: str) -> None:
        """Another program runs a command."""
        subprocess.run(command, shell=True, check=True, cwd=self.project)


@dataclass(frozen=True)
class Row:
    """How a row is tried: what is there before, what happens, what is looked at."""

    act: Callable[[Case], None]
    before: str = "true"
    look: Look | None = None


def things(case: Case) -> object:
    """Every name around and in the project, with its kind, mode and contents."""
    found: dict[str, object] = {}
    for folder, directories, files in os.walk(case.around):
        if Path(folder) == case.around:
            directories[:] = [name for name in directories if name != "store"]
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            content: object = None
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                content = Path(path).read_bytes()
            found[os.path.relpath(path, case.around)] = (mode, content)
    return found


ROWS: dict[str, Row] = {}


def row(name: str, before: str = "true", look: Look | None = None) -> Callable[..., None]:
    """This function is what happens in a row of the page."""

    def note(act: Callable[[Case], None]) -> None:
        ROWS[name] = Row(act, before, look)

    return note


def by_shell(name: str, command: str, before: str = "true", look: Look | None = None) -> None:
    """In this row the agent runs a command."""
    ROWS[name] = Row(lambda case: case.shell(command), before, look)


# --- who ---------------------------------------------------------------------------------


@row("an edit tool of the agent", "echo old > a")
def _edit(case: Case) -> None:
    with case.s.tool("edit", {"path": "a"}, paths=["a"]):
        (case.project / "a").write_text("new\n")


by_shell(
    "a shell command of the agent: `rm -rf`, `mv`, `sed -i`, a script",
    "rm -rf lib && mv a b && sed -i.bak s/o/0/ c && sh script",
    "mkdir lib && echo x > lib/x && echo a > a && echo foo > c && echo 'echo 1 > d' > script",
)


@row("a subagent", "echo old > a")
def _subagent(case: Case) -> None:
    replies = [
        _calling("task", description="help", prompt="Change it."),
        _calling("bash", command="echo new > a; rm -f b"),
        "Changed.",
        "Done.",
    ]
    options = {"replies": replies}
    with Session.open(
        case.s.store, case.s.id, cwd=case.project, agent="scripted:demo", tools="all",
        phase="trusted", agent_options=options,
    ) as other:  # fmt: skip
        other.send("Let somebody do it.")
        assert any(log.startswith("subagents/") for log in other.store.logs(other.id))
    assert (case.project / "a").read_text() == "new\n"


@row("a process that a call left running, after the call", "echo old > a")
def _left_running(case: Case) -> None:
    reading, writing = os.pipe()
    with case.s.tool("bash", {"command": "… &"}):
        late = subprocess.Popen(
            ["sh", "-c", "read _; echo late > a"], stdin=reading, cwd=case.project
        )
    os.close(reading)
    os.write(writing, b"\n")
    os.close(writing)
    assert late.wait() == 0


@row("you, in a file the agent did not touch", "echo 1 > a; echo 1 > mine")
def _between(case: Case) -> None:
    case.shell("echo 1 > a")
    case.run("echo 2 > mine")


@row("you, in a file the agent changed before", "echo 1 > a")
def _same_file(case: Case) -> None:
    case.shell("echo 2 > a")
    case.run("echo mine >> a")


@row("you, while a shell command of the agent runs", "echo 1 > a; echo 1 > mine")
def _meanwhile(case: Case) -> None:
    with case.s.tool("bash", {"command": "echo 2 > a"}):
        case.run("echo 2 > a")
        case.run("echo 2 > mine")


@row("another session in the same folder", "echo 1 > a")
def _another(case: Case) -> None:
    with Session.open(case.s.store, "other", cwd=case.project) as other:
        other.append({"role": "user", "content": "go"})
        with other.tool("bash", {"command": "echo 2 > a"}):
            case.run("echo 2 > a")


# --- what --------------------------------------------------------------------------------


def times(case: Case) -> object:
    """When the file was last changed."""
    return (case.project / "a").stat().st_mtime_ns


def is_one_file(case: Case) -> object:
    """Whether two names are one file."""
    return (case.project / "a").samefile(case.project / "b")


def attributes(case: Case) -> object:
    """What the file has beside its contents."""
    return os.listxattr(case.project / "a") if hasattr(os, "listxattr") else []


by_shell("contents, text or binary", r"printf '\0\377' > a; echo new > b", "echo a > a; echo b > b")
by_shell("a new file", "mkdir -p x/y && echo 1 > x/y/z")
by_shell("a deleted file", "rm a", "echo 1 > a")
by_shell("a moved file or folder", "mv a b && mv d e", "echo 1 > a; mkdir d; echo 2 > d/f")
by_shell("a mode, such as `chmod +x`", "chmod +x a; chmod 700 d", "echo 1 > a; mkdir -m 755 d")
by_shell("a symbolic link, its text", "ln -sfn other link; rm gone", "ln -s a link; ln -s b gone")
by_shell("a new empty folder", "mkdir d")
by_shell("a removed empty folder", "rmdir d", "mkdir d")


@row("a name that is not UTF-8")
def _odd_name(case: Case) -> None:
    with case.s.tool("bash", {"command": "…"}):
        Path(os.fsdecode(os.fsencode(case.project) + b"/\xff")).write_text("1\n")


by_shell(
    "two names for one file (hard links)", "rm b && echo 2 > b", "echo 1 > a; ln a b", is_one_file
)


@row("time of last change", "echo 1 > a; touch -t 202001010000 a", times)
def _time(case: Case) -> None:
    case.shell("echo 2 > a")


@row("extended attributes, access lists, owners", "echo 1 > a", attributes)
def _attributes(case: Case) -> None:
    if not hasattr(os, "setxattr"):
        pytest.skip("no extended attributes here")
    with case.s.tool("bash", {"command": "…"}):
        try:
            os.setxattr(case.project / "a", "user.note", b"1")
        except OSError as error:
            pytest.skip(f"no extended attributes in this file system: {error}")


@row("pipes, sockets, devices")
def _pipe(case: Case) -> None:
    with case.s.tool("bash", {"command": "mkfifo pipe"}):
        os.mkfifo(case.project / "pipe")


# --- where -------------------------------------------------------------------------------

by_shell(
    "files that git ignores, such as `.env` or `dev.db`",
    "rm .env && echo new > dev.db",
    "git init -q . && printf '.env\\n*.db\\n' > .gitignore && echo 1 > .env && echo 1 > dev.db",
)
by_shell(
    "`.git`: commits, branches, the index, stashes",
    "echo x > .git/description && git branch -q -m other",
    "git init -q .",
)
by_shell(
    "`node_modules`, `.venv`, caches, build output",
    "rm -r node_modules && echo 2 > .venv/x",
    "mkdir node_modules .venv; echo 1 > node_modules/x; echo 1 > .venv/x",
)
by_shell(
    "an ignored folder with over 2,000 files or 50 MB",
    "rm -r data",
    "git init -q .; echo data/ > .gitignore; mkdir data; i=0;"
    " while [ $i -lt 2001 ]; do : > data/$i; i=$((i+1)); done",
)


@row("a file over 20 MB")
def _large(case: Case) -> None:
    with case.s.tool("bash", {"command": "…"}), (case.project / "large").open("wb") as file:
        file.truncate(LARGE)


by_shell(
    "what `.backtrailignore` names",
    "echo 2 > secret",
    "echo secret > .backtrailignore; echo 1 > secret",
)
by_shell("outside the project", "echo 2 > ../outside", "echo 1 > ../outside")
by_shell(
    "behind a link that leads out of the project",
    "echo 2 > link/a",
    "mkdir ../elsewhere; echo 1 > ../elsewhere/a; ln -s ../elsewhere link",
)


@row("a file that a program holds open for writing", "echo 1 > log")
def _held_open(case: Case) -> None:
    case.held.append(subprocess.Popen(
        ["sh", "-c", "exec 3>>log; echo 2 >&3; read _"], stdin=subprocess.PIPE, cwd=case.project
    ))  # fmt: skip
    with case.s.tool("bash", {"command": "…"}):
        while (case.project / "log").read_text() != "1\n2\n":
            time.sleep(0.01)


@row("a database file that no program has open now")
def _database(case: Case) -> None:
    with case.s.tool("bash", {"command": "…"}):
        connection = sqlite3.connect(case.project / "data.db")
        connection.execute("CREATE TABLE t(x)")
        connection.close()


UNTRIED = {
    "tables of a database server": "they are nowhere in the folder",
    "what went over the network: a push, a deployment, a mail": "it is nowhere in the folder",
    "processes that were started or stopped": "a rewind knows only files",
}
"""Rows that no test of ours could make false, and why."""


# --- the page ----------------------------------------------------------------------------


def _calling(name: str, **input: str) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(input)}
    call = {"id": f"call-{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def reported() -> dict[str, str]:
    """The rows of the first three tables: what, and what the page says of it."""
    text = PAGE.read_text(encoding="utf-8").partition("## By how")[0]
    return dict(re.findall(r"^\| (.+?) \| (yes|no) \|", text, re.MULTILINE))


def stated_of_exact() -> list[str]:
    """The rows that name another mode which does take the change back."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^\| (.+?) \| no \|.*`--mode exact` takes it back", text, re.MULTILINE)


def test_every_row_is_tried() -> None:
    """And nothing is tried that the page does not name."""
    assert set(reported()) == {*ROWS, *UNTRIED}
    assert all(reported()[name] == "no" for name in UNTRIED)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_true(name: str, tmp_path: Path) -> None:
    """After a rewind to before the change, things are as they were, or as they had become."""
    tried = ROWS[name]
    look = tried.look or things
    case = Case(tmp_path)
    case.project.mkdir()
    case.run(tried.before)
    url = f"sqlite:///{tmp_path}/store/agent.db"
    with Session.create(url, "work", cwd=case.project) as session:
        case.held.append(session)
        point = session.append({"role": "user", "content": "go"})
        first = look(case)
        tried.act(case)
        changed = look(case)
        assert first != changed
        session.rewind(point)
        last = look(case)
        if name in stated_of_exact():
            session.rewind(point, mode="exact")
            assert look(case) == first
    for thing in case.held[1:]:
        assert isinstance(thing, subprocess.Popen)
        thing.communicate(b"\n")
    if reported()[name] == "yes":
        assert last == first
    elif tried.look is None:
        assert last == changed
    else:
        assert last != first
