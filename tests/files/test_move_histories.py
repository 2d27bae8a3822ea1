"""Any history of moves and swaps with things that are not captured, against a naive model.

Repositories, packages, what rules leave out, large files and pipes change names and places, also
with the rules themselves. The model is full snapshots and inodes, made by the test. Whatever an
operation does: it does what its preview says; each byte that was never captured is on the disk
afterwards; each captured path is as it was at the point, or named as staying; and one undo gives
back exactly what was there.
"""

from __future__ import annotations

import functools
import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import sleep
from typing import Literal

import pytest

from backtrail import Event, Rewind, Session
from backtrail.files.workspace.verdicts import Limits
from backtrail.session.fileplans import Mode
from backtrail.stores import open_store
from tests.files.wide import LIMIT, Seen, present, tokens
from tests.files.wide import look as look_at_all
from tests.files.world import MEMORY

NAMES = [
    "a", "b", "d", "d/x", "d/e", "d/e/z", "link", ".git", "node_modules", "d/node_modules",
    "private", "one.key", "big", "pipe", ".backtrailignore", "new", "d/new", "new/in",
    ".git/t", ".git/p", "node_modules/t", "node_modules/p", "private/diary",
]  # fmt: skip
TICK = 0.025
"""Seconds after which what was made is older than a look, for any clock."""
RULES = "private/\n*.key\n"
OPAQUE = (b".git", b"node_modules")

Verb = Literal["move", "swap", "write", "grow", "remove", "pipe", "folder"]
Who = Literal["call", "prompt", "rewind"]


@dataclass(frozen=True)
class Op:
    """One thing that the agent does; `a` and `b` are numbers of names."""

    verb: Verb
    a: int
    b: int = 0


@dataclass(frozen=True)
class Step:
    """A call, a prompt, or a way back and again forth."""

    who: Who
    ops: list[Op]
    point: int = 0
    mode: Mode = "mine"


def some_history(dice: Random, names: int) -> list[Step]:
    """A history of the first so many names."""
    verbs: list[Verb] = ["move", "move", "move", "swap", "swap", "swap", "write", "grow"]
    verbs += ["remove", "pipe", "folder"]
    kinds: list[Who] = ["call", "call", "call", "prompt", "rewind", "rewind"]
    modes: list[Mode] = ["mine", "mine", "exact"]

    def op() -> Op:
        return Op(dice.choice(verbs), dice.randrange(names), dice.randrange(names))

    return [
        Step(dice.choice(kinds), [op() for _ in range(dice.randint(1, 4))], dice.randrange(10),
             dice.choice(modes))
        for _ in range(dice.randint(2, 9))
    ] + [Step("rewind", [], dice.randrange(10), dice.choice(modes))]  # fmt: skip


class Agent:
    """Carries operations out; each content is a token of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0

    def content(self, size: int = 1) -> bytes:
        self.count += 1
        return f"token-{self.count}\n".encode() * size

    def do(self, op: Op) -> None:
        a, b = (self.root / NAMES[n] for n in (op.a, op.b))
        match op.verb:
            case "move" if _is_there(a):
                self._move(a, b)
            case "swap" if _is_there(a) and _is_there(b) and not _are_nested(a, b):
                between = self.root / "between"
                a.rename(between)
                b.rename(a)
                between.rename(b)
            case "remove":
                _clear(a)
            case "write" | "grow" | "pipe" | "folder":
                self._make(op.verb, a)
            case _:
                return

    def _move(self, a: Path, b: Path) -> None:
        if b.is_dir() and not b.is_symlink():
            b = b / a.name
        if _are_nested(a, b) or not _has_room(self.root, b) or b.is_dir():
            return
        b.parent.mkdir(parents=True, exist_ok=True)
        _clear(b)
        a.rename(b)

    def _make(self, verb: Verb, path: Path) -> None:
        if not _has_room(self.root, path) or (path.is_dir() and not path.is_symlink()):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear(path)
        if verb == "pipe":
            os.mkfifo(path)
        elif verb == "folder":
            path.mkdir()
            (path / "some").write_bytes(self.content())
        else:
            path.write_bytes(self.content(LIMIT if verb == "grow" else 1))


def look(root: Path) -> Seen:
    """What is there, but for an empty `.git`: to a workspace it is what a sandbox leaves."""
    seen = look_at_all(root)
    if not any(path.startswith(b".git/") for path in seen):
        seen = {p: what for p, what in seen.items() if p != b".git" or what[0] != "directory"}
    return seen


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _are_nested(a: Path, b: Path) -> bool:
    return a == b or a in b.parents or b in a.parents


def _has_room(root: Path, path: Path) -> bool:
    """Whether all above a path are folders, or nothing."""
    inner = [p for p in path.parents if root in p.parents]
    return all(not _is_there(p) or (p.is_dir() and not p.is_symlink()) for p in inner)


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif _is_there(path):
        path.unlink()


class Model:
    """What is captured, as a reader of the manual would say: by names, rules, sizes, inodes."""

    def __init__(self, root: Path) -> None:
        self.root = os.fsencode(root)
        self.rules: dict[bytes, bytes] = {}
        self.things: dict[int, bytes] = {}
        self.tokens: set[bytes] = set()
        self.ever: set[bytes] = set()

    def prompt(self, seen: Seen) -> None:
        """Rules are in force from a prompt on."""
        name = b".backtrailignore"
        self.rules = {
            path[: -len(name)]: content
            for path, (kind, _, content) in seen.items()
            if (path == name or path.endswith(b"/" + name)) and kind == "file"
        }
        # What a rule left out is captured where it stands, once there is no such rule.
        self.things = {
            inode: at for inode, at in self.things.items()
            if at not in seen or self._inode(at) != inode
        }  # fmt: skip
        hidden = [seen[path] for path in self.uncaptured(seen)]
        self.tokens &= {t for kind, _, text in hidden if kind == "file" for t in tokens(text)}
        self.note(seen)

    def note(self, seen: Seen) -> None:
        """The session has looked: what is not captured is known as such from now on."""
        for path in self.uncaptured(seen):
            self.ever.add(path)
            kind, _, content = seen[path]
            if kind == "file":
                self.tokens |= tokens(content)
            if path.rpartition(b"/")[0] not in self._hidden:
                self.things.setdefault(self._inode(path), path)

    def uncaptured(self, seen: Seen) -> set[bytes]:
        """The paths that are not captured, with all below them."""
        self._hidden: set[bytes] = set()
        for path in sorted(seen):
            kind, _, content = seen[path]
            above, _, name = path.rpartition(b"/")
            if (
                above in self._hidden
                or name == b".git"
                or (kind == "directory" and name in OPAQUE)
                or kind == "pipe"
                or (kind == "file" and len(content) > LIMIT)
                or self._is_left_out(path, kind)
                or self._inode(path) in self.things
            ):
                self._hidden.add(path)
        return self._hidden

    def _is_left_out(self, path: bytes, kind: str) -> bool:
        if not any(path.startswith(above) for above in self.rules):
            return False
        name = path.rpartition(b"/")[2]
        texts = [text for above, text in self.rules.items() if path.startswith(above)]
        lines = {line for text in texts for line in text.splitlines()}
        folder = b"private/" in lines and kind == "directory" and name == b"private"
        return folder or (b"*.key" in lines and name.endswith(b".key"))

    def _inode(self, path: bytes) -> int:
        return os.lstat(self.root + b"/" + path).st_ino


@dataclass
class Point:
    """A prompt, and what was there."""

    event: Event
    seen: Seen
    uncaptured: set[bytes]


class Play:
    """A history being made."""

    def __init__(self, place: Path, closing: ExitStack) -> None:
        self.root = root = place / "project"
        self.agent = agent = Agent(root)
        for folder in ("d/e", "d/node_modules", ".git/p", "node_modules/p", "private"):
            (root / folder).mkdir(parents=True)
        for path in ("a", "b", "d/x", "d/e/z", "d/node_modules/r", ".git/t", ".git/p/o",
                     "node_modules/t", "node_modules/p/q", "private/diary", "one.key"):  # fmt: skip
            (root / path).write_bytes(agent.content())
        (root / "big").write_bytes(agent.content(LIMIT))
        (root / ".backtrailignore").write_text(RULES)
        (root / "link").symlink_to("a")
        os.mkfifo(root / "pipe")
        sleep(TICK)
        store = closing.enter_context(open_store(f"sqlite:///{place}/one.db"))
        self.session = closing.enter_context(Session.create(store, "s", cwd=root))
        self.model = Model(root)
        self.points: list[Point] = []
        self.say()

    def say(self) -> None:
        event = self.session.append({"role": "user", "content": "go on"})
        seen = look(self.root)
        self.model.prompt(seen)
        self.points.append(Point(event, seen, set(self.model.uncaptured(seen))))

    def take(self, step: Step) -> None:
        match step.who:
            case "prompt":
                self.say()
            case "call":
                with self.session.tool("bash"):
                    for op in step.ops:
                        self.agent.do(op)
                    if any(op.verb in ("write", "grow", "folder") for op in step.ops):
                        sleep(TICK)
                self.model.note(look(self.root))
            case "rewind":
                self.rewind(step)

    def rewind(self, step: Step) -> None:
        point = self.points[step.point % len(self.points)]
        before = look(self.root)

        def act(dry: bool) -> Rewind:
            return self.session.rewind(point.event, mode=step.mode, dry_run=dry)

        plan = act(True)
        assert look(self.root) == before, "a preview changed something"
        done = act(False)
        after = look(self.root)
        self.check(plan, done, before, after)
        self.compare(point, done, after)
        # What a way back brings to the disk is in the store.
        self.model.tokens -= present(after) - present(before)
        self.model.note(after)
        if done.files_changed:
            plan, done = self.session.undo(dry_run=True), self.session.undo()
            assert look(self.root) == before, "undo is not exact"
            assert reported(done) == reported(plan), "an undo is not what its preview says"
            plan, done = self.session.redo(dry_run=True), self.session.redo()
            assert look(self.root) == after, "redo is not exact"
            assert reported(done) == reported(plan), "a redo is not what its preview says"

    def check(self, plan: Rewind, done: Rewind, before: Seen, after: Seen) -> None:
        assert reported(done) == reported(plan), "an operation is not what its preview says"
        lost = (self.model.tokens & present(before)) - present(after)
        assert not lost, f"not captured, and gone: {lost}"
        pipes = [sum(kind == "pipe" for kind, _, _ in x.values()) for x in (before, after)]
        assert pipes[0] == pipes[1], "a pipe is gone"

    def compare(self, point: Point, done: Rewind, after: Seen) -> None:
        """Each captured path is as it was at the point, or the plan says why not."""
        stay = ("conflict", "skip", "move")
        named = {os.fsencode(f.path) for f in done.files if f.action in stay}
        hidden = self.model.uncaptured(after)
        for path in point.seen.keys() - point.uncaptured:
            if after.get(path) != point.seen[path] and path not in hidden:
                assert _is_named(path, named), f"{path!r} is not as it was"
        # What came unseen is not the session's to take back.
        for path in after.keys() - point.seen.keys() - hidden - self.model.ever:
            # And what was put aside once stays, whatever is done next.
            assert _is_named(path, named) or b".aside" in path, f"{path!r} was not there"


def reported(done: Rewind) -> list[tuple[str, str, str]]:
    """What is said of each path, conflicts last."""
    return [(f.path, f.action, f.reason) for f in [*done.files, *done.conflicts]]


def _is_named(path: bytes, named: set[bytes]) -> bool:
    return any(path == n or path.startswith(n + b"/") or n.startswith(path + b"/") for n in named)


def play(history: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(dir=MEMORY) as place:
        patch.setattr(
            "backtrail.files.workspace.root.Limits", functools.partial(Limits, file_size=LIMIT)
        )
        with ExitStack() as closing:
            game = Play(Path(place), closing)
            for step in history:
                game.take(step)


def call(*ops: tuple[Verb, str, str]) -> Step:
    """A call, by names."""
    return Step("call", [Op(verb, NAMES.index(a), NAMES.index(b)) for verb, a, b in ops])


EXAMPLES = {
    "a file leaves a folder that makes way for a thing with that name in it": [
        call(("move", "private", "d"), ("move", ".backtrailignore", "private/diary")),
        Step("prompt", []),
        Step("rewind", [], mode="exact"),
    ],
    "a captured file that was lost in an opaque folder comes and goes again": [
        call(("swap", ".git/p", ".backtrailignore")),
        Step("prompt", []),
        call(("swap", "one.key", ".backtrailignore"), ("swap", ".git/p", "node_modules/t"),
             ("pipe", "node_modules/t", "a")),
        Step("rewind", [], point=0),
        Step("rewind", [], point=1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("history", EXAMPLES.values(), ids=list(EXAMPLES))
def test_examples(history: list[Step]) -> None:
    """Histories that were not what their previews said."""
    play(history)


WHOLE = NAMES.index(".git/t")
"""Without the names in opaque folders, things are moved as a whole."""


@pytest.mark.parametrize("names", [WHOLE, len(NAMES)], ids=["whole", "parts"])
def test_nothing_is_lost_by_moves(names: int) -> None:
    """A few histories."""
    for number in range(12):
        play(some_history(Random(number), names))


@pytest.mark.torture
@pytest.mark.parametrize("names", [WHOLE, len(NAMES)], ids=["whole", "parts"])
@pytest.mark.parametrize("part", range(10))
def test_nothing_is_lost_by_many_moves(part: int, names: int) -> None:
    """Two thousand of either kind."""
    for number in range(200):
        play(some_history(Random(1000 + 200 * part + number), names))
