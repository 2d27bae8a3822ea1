"""The stage of a scenario: a project on the disk, the people in it, and the verdict.

What a scenario does to files outside `agent()` is done by a person, or another program.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from .driver import Cannot, Driver, Token

Verdict = Literal["pass", "fail", "cannot"]
Play = Callable[["Stage"], None]
Make = Callable[[Path], Driver]
"""Makes the driver of a tool, given a folder for what it stores."""

Thing = tuple[str, int, str]
"""What is at a path: kind, mode, and digest or text."""

State = dict[str, Thing]
"""What is in a directory, by path."""


class Failed(Exception):
    """What a tool did wrong."""


@dataclass(frozen=True)
class Scenario:
    """One incident: its name says what should have happened, its text what did."""

    name: str
    topic: str
    story: str
    play: Play


@dataclass(frozen=True)
class Outcome:
    """The verdict on a tool, and why it is not a pass."""

    verdict: Verdict
    reason: str = ""


class Stage:
    """A folder with a project in it, and a tool that is to watch over that."""

    def __init__(self, folder: Path, make: Make) -> None:
        self.folder = folder
        self.root = folder / "project"
        self.root.mkdir(parents=True)
        self._make = make
        self.driver = self.tool("tool")

    def tool(self, place: str) -> Driver:
        """The tool, storing what it stores in a folder of this name."""
        return self._make(self.folder / place)

    def start(self, *files: str) -> None:
        """Begin, in a project with these files."""
        for name in files:
            self.write(name, f"{name}\n")
        self.driver.start(self.root)

    def again(self, root: Path | None = None) -> None:
        """Let the tool stop and start again."""
        self.driver.stop()
        self.driver.start(root or self.root)

    def checkpoint(self) -> Token:
        return self.driver.checkpoint()

    def restore(self, token: Token) -> None:
        self.driver.restore(token)

    def agent(self) -> AbstractContextManager[object]:
        """What happens in here, the agent does."""
        return self.driver.call()

    @contextmanager
    def turn(self) -> Iterator[Token]:
        """A checkpoint; what happens in here, the agent does behind it."""
        token = self.checkpoint()
        with self.agent():
            yield token

    @contextmanager
    def neighbour(self) -> Iterator[Driver]:
        """The same tool in another session of the project."""
        other = self.driver.another()
        try:
            yield other
        finally:
            other.stop()

    # --- files ---------------------------------------------------------------------------

    def write(self, name: str, content: str | bytes, mode: int | None = None) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            path.chmod(mode)
        return path

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is no such file."""
        path = self.root / name
        return path.read_bytes() if path.is_file() else None

    def shell(self, command: str) -> None:
        """Run a command in the project, and wait for it."""
        self._run(["sh", "-c", command], self.root)

    def git(self, *words: str, at: str = ".") -> bytes:
        """Run git as the user of the project does."""
        who = ["-c", "user.name=user", "-c", "user.email=user@example.com"]
        return self._run(["git", *who, *words], self.root / at)

    def _run(self, command: list[str], where: Path) -> bytes:
        quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            command, cwd=where, env={**os.environ, **quiet}, capture_output=True, check=True
        )
        return done.stdout

    def state(self, root: Path | None = None) -> State:
        """All that is in the project; of `.git` only that it is there."""
        return state_of(root or self.root)

    # --- expectations --------------------------------------------------------------------

    def expect(self, good: bool, what: str) -> None:
        """Fail with this text if it is not so."""
        if not good:
            raise Failed(what)

    def expect_file(self, name: str, content: str | bytes | None, what: str = "") -> None:
        """A file must have this content; with None it must not be there."""
        wanted = content.encode() if isinstance(content, str) else content
        found = self.read(name)
        if found == wanted:
            return
        if found is None or wanted is None:
            raise Failed(what or f"{name} {'is gone' if found is None else 'is there'}")
        raise Failed(what or f"{name} is {_short(found)}, not {_short(wanted)}")

    def expect_files(self, contents: Mapping[str, str | bytes | None]) -> None:
        """Each file must have its content; with None it must not be there."""
        for name, content in contents.items():
            self.expect_file(name, content)

    def expect_state(self, wanted: State, what: str = "") -> None:
        """The project must be exactly so."""
        found = self.state()
        wrong = sorted(p for p in {*found, *wanted} if found.get(p) != wanted.get(p))
        if wrong:
            says = f"{wrong[0]} {_difference(found.get(wrong[0]), wanted.get(wrong[0]))}"
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise Failed(f"{what}: {says}{more}" if what else says + more)


def state_of(root: Path) -> State:
    """All that is in a directory; of `.git` only that it is there."""
    found: State = {}
    for above, directories, files in os.walk(os.fsencode(root)):
        for name in [*directories, *files]:
            path = os.path.join(above, name)
            shown = os.fsdecode(os.path.relpath(path, os.fsencode(root)))
            status = os.lstat(path)
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                found[shown] = ("link", 0, os.fsdecode(os.readlink(path)))
            elif stat.S_ISDIR(status.st_mode):
                found[shown] = ("directory", mode, "")
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    found[shown] = ("file", mode, sha256(file.read()).hexdigest()[:16])
            else:
                found[shown] = ("special", mode, "")
        directories[:] = [name for name in directories if name != b".git"]
    return found


def perform(scenario: Scenario, make: Make, folder: Path) -> Outcome:
    """Put a tool through a scenario, in an empty folder."""
    stage = Stage(folder, make)
    try:
        scenario.play(stage)
        return Outcome("pass")
    except Cannot as reason:
        return Outcome("cannot", str(reason))
    except Failed as reason:
        return Outcome("fail", str(reason))
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or b"").decode(errors="replace").strip().splitlines()
        return Outcome("fail", lines[-1] if lines else str(error))
    except Exception as error:
        return Outcome("fail", f"{type(error).__name__}: {error}")
    finally:
        stage.driver.stop()


def _difference(found: Thing | None, wanted: Thing | None) -> str:
    """What is wrong with a path, for people."""
    if found is None:
        return "is not there"
    if wanted is None:
        return "should not be there"
    if found[0] != wanted[0]:
        return f"is a {found[0]}, not a {wanted[0]}"
    if found[2] != wanted[2]:
        return "has another content"
    return f"has mode {found[1]:o}, not {wanted[1]:o}"


def _short(content: bytes) -> str:
    return repr(content[:40].decode(errors="replace")) + ("…" if len(content) > 40 else "")
