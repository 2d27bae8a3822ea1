"""A session whose files are about to be rewound, and what may become of them.

`Scene` holds a workspace with every kind of change in it, ready to be copied and rewound
again and again, each time in a forked child. The parent looks at the files alone, so that
what the library says about itself is never the proof.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from tests.faults.calls import REAL
from tests.faults.kill import Child, Violation, forked
from tests.faults.restore_calls import RestoreCalls
from tests.faults.variants import Broken, sound
from tests.faults.workers import url_of

from backtrail import Session
from backtrail.errors import BacktrailError
from backtrail.files import materialize
from backtrail.stores.disk import sync

Shown = dict[str, tuple[str, int, bytes]]
"""A directory as it is compared: each path with its kind, mode and content."""

# A child would import it anew each time.
importlib.import_module("backtrail.files.depot")

SESSION = "s"

FIRST = 2
"""The event to which the session is rewound: its first message."""


# --- files -------------------------------------------------------------------------------


def look(root: Path, skip: str = ".git") -> Shown:
    """What is in a directory, read without the library."""
    shown: Shown = {}
    for folder, directories, files in os.walk(root):
        if skip in directories and folder == str(root):
            directories.remove(skip)
        for name in [*directories, *files]:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content = b""
            if stat.S_ISLNK(status.st_mode):
                content = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                content = Path(path).read_bytes()
            kind = {stat.S_IFDIR: "directory", stat.S_IFLNK: "link", stat.S_IFREG: "file"}.get(
                stat.S_IFMT(status.st_mode), "special"
            )
            shown[os.path.relpath(path, root)] = (kind, stat.S_IMODE(status.st_mode), content)
    return shown


def stamps(root: Path) -> dict[str, tuple[int, ...]]:
    """What no restore may change in a directory: identity and times of all in it."""
    found: dict[str, tuple[int, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        s = path.lstat()
        numbers = (s.st_ino, s.st_mode, s.st_nlink, s.st_size, s.st_mtime_ns)
        found[str(path.relative_to(root))] = numbers
    return found


def differing(a: Shown, b: Shown) -> list[str]:
    """The paths that two directories do not agree on."""
    return sorted(path for path in a.keys() | b.keys() if a.get(path) != b.get(path))


def erase(path: Path) -> None:
    """Remove a tree, also where it cannot be written in."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    os.chmod(path, 0o700)
    for folder, directories, _ in os.walk(path):
        for name in directories:
            full = os.path.join(folder, name)
            if not os.path.islink(full):
                os.chmod(full, 0o700)
    shutil.rmtree(path)


# --- the scene ---------------------------------------------------------------------------


def _put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def before_the_agent(root: Path) -> None:
    """The files as they are when the session begins."""
    names = ["keep/a.txt", "keep/b.txt", "keep/sub/c.txt", "w1.txt", "w2.txt", "in/w3.txt"]
    names += ["gone.txt", "tree/gone/deep/x", "tree/gone/y", "mode.sh", "dirmode/f", "file2link"]
    names += ["file2dir", "dir2file/x", "dir2file/in/y", "dir2link/z", "move-me.txt", "pkg/m.py"]
    names += ["pkg/in/n.py", "ro/f", "ro/gone", "same.txt", "empty-me/e"]
    _put(root, {name: f"{name} as it was\n" for name in names})
    (root / "big.bin").write_bytes(b"big" * 100_000)
    (root / "keep/empty").mkdir()
    (root / "keep/link").symlink_to("a.txt")
    (root / "link").symlink_to("keep/a.txt")
    (root / "link2file").symlink_to("w1.txt")
    (root / "link2dir").symlink_to("nowhere")
    (root / "name \udcff.txt").write_text("not UTF-8\n")
    os.chmod(root / "mode.sh", 0o644)
    os.chmod(root / "ro", 0o555)


AGENT = r"""
echo changed > w1.txt; echo longer than it was before >> w2.txt; : > in/w3.txt
echo changed > "$(printf 'name \377.txt')"
printf big > big.bin
rm gone.txt; rm -r tree/gone
chmod 755 mode.sh; chmod 700 dirmode; echo changed > dirmode/f; chmod 640 hard.txt
rm file2link; ln -s keep/b.txt file2link; rm link; ln -s w2.txt link
rm link2file; echo now a file > link2file
rm file2dir; mkdir -p file2dir/in; echo x > file2dir/x; echo y > file2dir/in/y
rm -r dir2file; echo now a file > dir2file; rm -r dir2link; ln -s keep dir2link
rm link2dir; mkdir link2dir; echo z > link2dir/z
mv move-me.txt moved.txt; mv pkg pkg2; rm empty-me/e
echo new > new.txt; mkdir -p new/er/est void; echo new > new/er/est/f; ln -s nowhere new/link
chmod 755 ro; echo changed > ro/f; rm ro/gone; echo new > ro/new; chmod 555 ro
"""

PERSON = {"w2.txt": b"repaired by hand\n", "gone.txt": b"mine now\n", "new.txt": b"I use it\n"}
"""What a person does to the files between a crash and its recovery."""


class Scene:
    """A workspace and a session in it, before a rewind to its first event."""

    def __init__(
        self, folder: Path, kind: str = "jsonl", broken: Broken = sound, disk: Path | None = None
    ) -> None:
        self.kind = kind
        self.broken = broken
        self.place = (disk or folder) / "place"
        self.template = folder / "template"
        self.outside = (disk or folder) / "outside"
        self.work = self.place / "work"
        self.url = url_of(kind, self.place)
        if not self.template.exists():
            _build(self)
        self.fresh()
        self.before = look(self.work)
        self.git = look(self.work / ".git", "")
        child = self.rewind()
        if child.killed or "error" in json.loads(child.reported):
            raise Violation(f"a plain rewind fails: {child}")
        self.after = look(self.work)
        self.fresh()

    def fresh(self) -> None:
        """All as it is before the rewind; the workspace stays the same directory."""
        for old in (*self.place.iterdir(), *self.work.iterdir()):
            if old != self.work:
                erase(old)
        shutil.copytree(self.template, self.place, symlinks=True, dirs_exist_ok=True)
        hard = self.work / "hard.txt"
        hard.unlink()
        os.link(self.outside / "hard", hard)
        self.untouched = stamps(self.work / "keep")
        self.foreign = stamps(self.outside)

    def forked(self, body: Callable[[], object]) -> Child:
        """Run `body` in a child; what it returns is reported as JSON."""

        def report(pipe: int) -> None:
            sync.DELAY = 60.0
            REAL["write"](pipe, json.dumps(body()).encode())

        with self.broken():
            return forked(report)

    def rewind(self, calls: RestoreCalls | None = None) -> Child:
        """Rewind in a child that is struck at one call; it reports what came of it."""
        calls = calls or RestoreCalls()

        def body() -> dict[str, Any]:
            with Session.open(self.url, SESSION, cwd=self.work) as session:
                with calls:
                    try:
                        conflicts = session.rewind(to=FIRST).conflicts
                        reported: dict[str, Any] = {"conflicts": [c.path for c in conflicts]}
                    except BacktrailError as error:
                        reported = {"error": str(error), "type": type(error).__name__}
                return {**reported, "calls": calls.made, "struck": calls.struck}

        return self.forked(body)

    def copy(self, calls: RestoreCalls | None = None) -> Child:
        """Write the files of the first message to a new directory, struck at one call."""
        calls = calls or RestoreCalls()

        def body() -> dict[str, Any]:
            self.copy_here(calls)
            return {"calls": calls.made}

        return self.forked(body)

    def copy_here(self, calls: RestoreCalls | None = None) -> None:
        """The same in this process."""
        with Session.open(self.url, SESSION, cwd=self.work) as session:
            point = session.checkpoint(at=FIRST)
            with calls or nullcontext():
                materialize(session.store, point, self.copied)

    def check_copy(self, where: str, expected: Shown, *, returned: bool = False) -> str:
        """A copy is whole or not there; once its call returned, it is whole."""
        if not self.copied.exists():
            if returned:
                raise Violation(f"{where}: there is no copy")
            return "absent"
        if wrong := differing(look(self.copied), expected):
            raise Violation(f"{where}: the copy differs: {wrong}")
        return "whole"

    @property
    def copied(self) -> Path:
        """Where `copy` puts the files."""
        return self.place / "copy"

    def use(self, calls: RestoreCalls | None = None) -> Child:
        """Use the workspace again in a child, perhaps struck; it reports the history."""
        calls = calls or RestoreCalls()

        def body() -> dict[str, Any]:
            with ExitStack() as stack:
                try:
                    with calls:
                        session = Session.open(self.url, SESSION, cwd=self.work)
                        stack.enter_context(session)
                        session.append({"role": "user", "content": "later"})
                except BacktrailError as error:
                    return {"error": str(error), "calls": calls.made, "struck": calls.struck}
                return {
                    "log": [event.kind for event in session.events()],
                    "said": [message["content"] for message in session.messages()],
                    "problems": [problem.detail for problem in session.problems],
                    "calls": calls.made,
                    "struck": calls.struck,
                }

        return self.forked(body)

    def undo(self) -> None:
        """Take back the turn of `use`, and the rewind before it."""

        def body() -> list[int]:
            with Session.open(self.url, SESSION, cwd=self.work) as session:
                return [len(session.undo().conflicts) for _ in range(2)]

        self.forked(body)

    # --- checks --------------------------------------------------------------------------

    def check(
        self,
        where: str,
        person: dict[str, bytes] | None = None,
        said: Sequence[str] = (),
        *,
        perhaps: bool = False,
    ) -> str:
        """Use the workspace: it must be before or after, and so the conversation.

        `said` is what an earlier use said already; `perhaps` one that was killed did, too.
        """
        child = self.use()
        if child.killed:
            raise Violation(f"{where}: the next use died")
        reported = json.loads(child.reported)
        if "error" in reported:
            raise Violation(f"{where}: the next use fails: {reported['error']}")
        state = self.check_files(where, person)
        later = [*said, "later"]
        if perhaps and reported["said"][-2:] == ["later", "later"]:
            # It was written whole, and not acknowledged.
            later.append("later")
        self.check_conversation(where, reported, state, later)
        return state

    def check_undo(self, where: str) -> None:
        """A rewind that was finished after a crash can be taken back, and loses nothing."""
        self.undo()
        self.check_state(where, "after an undo", self.before)

    def check_files(self, where: str, person: dict[str, bytes] | None = None) -> str:
        """The files are all before or all after, and nothing else was touched."""
        seen = look(self.work)
        left = [path for path in seen if ".backtrail-tmp-" in path]
        if left:
            raise Violation(f"{where}: left behind: {left}")
        for path, content in (person or {}).items():
            if seen.get(path, ("", 0, b""))[2] != content:
                raise Violation(f"{where}: a person's {path} is gone: {seen.get(path)}")
        self.check_bystanders(where)
        now, was, will = (_without(state, person) for state in (seen, self.before, self.after))
        if now not in (was, will):
            apart = f"neither before ({differing(now, was)}) nor after ({differing(now, will)})"
            raise Violation(f"{where}: {apart}")
        return "before" if now == was else "after"

    def check_state(self, where: str, when: str, expected: Shown) -> None:
        seen = look(self.work)
        if seen != expected:
            raise Violation(f"{where}: {when} these differ: {differing(seen, expected)}")

    def check_bystanders(self, where: str) -> None:
        """What is not in the plan is as it was: files, git's own, and all outside."""
        if stamps(self.work / "keep") != self.untouched:
            raise Violation(f"{where}: files that are not in the plan were touched")
        if look(self.work / ".git", "") != self.git:
            raise Violation(f"{where}: .git was touched")
        # The number of names of a file outside may fall: its link in the workspace goes.
        now, then = (_but_links(found) for found in (stamps(self.outside), self.foreign))
        if now != then:
            raise Violation(f"{where}: something outside was touched: {now} {then}")

    def check_conversation(
        self, where: str, reported: dict[str, Any], state: str, later: Sequence[str]
    ) -> None:
        """The history is at the rewound point if, and only if, the files are."""
        rewinds = reported["log"].count("rewound")
        said = [*(["first"] if state == "after" else ["first", "second"]), *later]
        if rewinds != (state == "after") or reported["said"] != said:
            raise Violation(
                f"{where}: the files are {state}, the log is {reported['log']}: {reported['said']}"
            )


def _without(state: Shown, person: dict[str, bytes] | None) -> Shown:
    return {path: what for path, what in state.items() if path not in (person or {})}


def _but_links(found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {path: (*numbers[:2], *numbers[3:]) for path, numbers in found.items()}


def _build(scene: Scene) -> None:
    """Make the template: a git repository, a session, and a call that changes everything."""
    scene.work.mkdir(parents=True)
    scene.outside.mkdir()
    (scene.outside / "hard").write_text("one file, two names\n")
    os.link(scene.outside / "hard", scene.work / "hard.txt")
    before_the_agent(scene.work)
    git(scene.work, "init", "-q", "--template=")
    git(scene.work, "add", "-A")
    git(scene.work, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "first")

    def body(pipe: int) -> None:
        with Session.create(scene.url, SESSION, cwd=scene.work) as session:
            session.append({"role": "user", "content": "first"})
            with session.tool("bash") as call:
                subprocess.run(AGENT, shell=True, cwd=scene.work, check=True)
                call.result = "done"
            session.append({"role": "user", "content": "second"})

    forked(body)
    shutil.copytree(scene.place, scene.template, symlinks=True)


def git(root: Path, *words: str) -> str:
    """Run git, which leaves its own files alone if it can."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(
        ["git", *words], cwd=root, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise Violation(f"git {' '.join(words)} in {root}: {done.returncode}: {done.stderr}")
    return done.stdout + done.stderr
