"""Another process changes the workspace while it is restored: nothing outside is touched, and
nothing of theirs is lost.

A child swaps names as fast as it can while this process restores, over and over. The same
race is run with a restore that goes by paths, which must be caught.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.faults.kill import Violation
from tests.faults.restore_calls import without_renameat2
from tests.faults.variants import Broken, sound
from tests.faults.workers import Worker

from backtrail.files import beneath
from backtrail.files.beneath import describe
from backtrail.files.restore import steps
from backtrail.files.restore.plan import Plan, Step, step_to
from backtrail.files.restore.restore import Restore
from backtrail.files.restore.workbench import Workbench
from backtrail.files.trees import Entry, digest_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.skipif(beneath.system.renameat2 is None, reason="the system cannot swap names"),
    pytest.mark.timeout(3600),
]

OLD, NEW = b"old content\n", b"new content\n"
BLOBS = {digest_of(content): content for content in (OLD, NEW)}
WAYS = {"renameat2": sound, "fallback": without_renameat2}

Apply = Callable[[Path, int, Plan, str], Plan]


def safely(root: Path, fd: int, plan: Plan, id: str) -> Plan:
    """The restore under test."""
    return Restore(fd, id, BLOBS.__getitem__).apply(plan)


def by_paths(root: Path, fd: int, plan: Plan, id: str) -> Plan:
    """A restore that checks where a path leads, and then uses it."""
    for step in plan.steps:
        path = os.path.join(os.fsencode(root), step.path)
        try:
            if not os.path.realpath(os.path.dirname(path)).startswith(os.fsencode(root)):
                continue
            if step.after is None:
                os.unlink(path)
            elif step.after.kind == "file":
                Path(os.fsdecode(path)).write_bytes(BLOBS[step.after.value])
                os.chmod(path, step.after.mode)
        except OSError:
            continue
    return plan


def file(content: bytes, mode: int = 0o644) -> Entry:
    return Entry("file", mode, len(content), digest_of(content))


# --- the arena ---------------------------------------------------------------------------


class Arena:
    """A workspace with a directory `d`, and a directory outside that looks just like it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.outside = folder / "outside"
        for place in (self.root / "d", self.outside):
            (place / "sub").mkdir(parents=True)
            for name in ("f", "m", "x", "sub/g"):
                (place / name).write_bytes(OLD)
                # A time of access this old is renewed by any reading.
                os.utime(place / name, ns=(1, 10**18))
        (self.root / "link").symlink_to(self.outside)
        (self.root / "d/link").symlink_to(self.outside / "f")
        os.mkfifo(self.root / "d/fifo")
        self.fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        self.inner = os.open(self.root / "d", os.O_RDONLY | os.O_DIRECTORY)
        self.deep = os.open(self.root / "d/sub", os.O_RDONLY | os.O_DIRECTORY)
        self.conflicts = self.acts = 0
        self.foreign = self.look_outside()

    def close(self) -> None:
        for fd in (self.fd, self.inner, self.deep):
            os.close(fd)

    def look_outside(self) -> dict[str, tuple[int, ...]]:
        """Everything about the directory outside, without reading its files."""
        found: dict[str, tuple[int, ...]] = {}
        for folder, names, files in os.walk(self.outside):
            for name in [*names, *files]:
                s = os.lstat(os.path.join(folder, name))
                found[name] = (s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_nlink)
                if name in files:
                    found[name] += (s.st_atime_ns, s.st_ctime_ns)
        return found

    def check_outside(self) -> None:
        now = self.look_outside()
        if now != self.foreign:
            raise Violation(f"outside was touched: {now}, was {self.foreign}")

    def plan(self) -> Plan:
        """What turns each file to its other state, whichever name its directory has now."""
        turns: list[tuple[int, bytes, bytes, Entry | None, Entry | None]] = [
            (self.inner, b"d/", b"f", file(OLD), file(NEW)),
            (self.inner, b"d/", b"m", file(OLD), file(OLD, 0o600)),
            (self.inner, b"d/", b"x", file(OLD), None),
            (self.deep, b"d/sub/", b"g", file(OLD), file(NEW)),
        ]
        steps: list[Step] = []
        for fd, above, name, one, other in turns:
            there = describe(fd, name)
            if there not in (one, other):
                # The other of two swapped things: nothing that a scan has stored.
                there = one
            steps.append(step_to(above + name, there, one if there == other else other))
        return Plan(b"", steps)

    def run(self, tries: int, apply: Apply) -> None:
        """Restore so many times; look outside now and then."""
        for at in range(tries):
            done = apply(self.root, self.fd, self.plan(), f"{at:012d}")
            self.conflicts += len(done.conflicts)
            self.acts += sum(step.acts for step in done.steps)
            if at % 50 == 49:
                self.check_outside()
        self.check_outside()


@contextmanager
def swapping(root: Path, a: str, b: str) -> Iterator[None]:
    """A child that swaps two names in a directory, without a pause."""

    def body(report: Callable[[str], None]) -> None:
        rename = beneath._find_renameat2()
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        assert rename is not None
        report("ready")
        while True:
            try:
                rename(fd, a.encode(), fd, b.encode(), beneath._EXCHANGE)
            except OSError:
                continue

    worker = Worker(body)
    worker.line()
    try:
        yield
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()


@pytest.fixture
def arena(fast: Path) -> Iterator[Arena]:
    made = Arena(fast)
    yield made
    made.close()


SWAPS = {"parent": ("d", "link"), "file": ("d/f", "d/link"), "fifo": ("d/f", "d/fifo")}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("swap", list(SWAPS))
def test_nothing_outside_is_touched(arena: Arena, swap: str, way: str) -> None:
    """A parent or a file turns into a link that leads out, or into a pipe, and back."""
    race(arena, swap, way, 700)


@pytest.mark.torture
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("swap", list(SWAPS))
def test_nothing_outside_is_touched_in_many_tries(arena: Arena, swap: str, way: str) -> None:
    """The same, 100,000 times for a parent."""
    race(arena, swap, way, 100_000 if swap == "parent" else 20_000)


def race(arena: Arena, swap: str, way: str, tries: int) -> None:
    with WAYS[way](), swapping(arena.root, *SWAPS[swap]):
        arena.run(tries, safely)
    print(swap, way, tries, "tries:", arena.acts, "steps,", arena.conflicts, "conflicts")
    # Without both, nothing was in anybody's way.
    assert arena.conflicts > 0 and arena.acts > 0
    assert not [name for name in os.listdir(arena.fd) if name.startswith(".backtrail")]
    if swap != "parent":
        kinds = {"file": "link", "fifo": "skipped"}
        there = [describe(arena.inner, os.fsencode(name)) for name in os.listdir(arena.inner)]
        assert kinds[swap] in [entry.kind for entry in there if entry is not None], there


def test_races_find_a_restore_by_paths(arena: Arena) -> None:
    """The same race catches a restore that goes by paths."""
    with (
        swapping(arena.root, *SWAPS["parent"]),
        pytest.raises(Violation, match="outside was touched"),
    ):
        arena.run(20_000, by_paths)


@pytest.mark.parametrize("way", list(WAYS))
def test_hard_links_lead_nowhere(arena: Arena, way: str) -> None:
    """A file with a second name outside is replaced here, and stays as it is there."""
    for name in ("f", "m", "x"):
        os.unlink(name, dir_fd=arena.inner)
        os.link(arena.outside / name, name, dst_dir_fd=arena.inner)
    before = [(arena.outside / name).stat() for name in ("f", "m", "x")]
    with WAYS[way]():
        done = safely(arena.root, arena.fd, arena.plan(), "1")
    assert not done.conflicts
    after = [(arena.outside / name).stat() for name in ("f", "m", "x")]
    for was, now in zip(before, after, strict=True):
        assert (was.st_ino, was.st_mode, was.st_mtime_ns) == (
            now.st_ino,
            now.st_mode,
            now.st_mtime_ns,
        )
        assert now.st_nlink == 1
    assert [(arena.outside / name).read_bytes() for name in ("f", "m", "x")] == [OLD] * 3
    assert describe(arena.inner, b"m") == file(OLD, 0o600)


# --- editors -----------------------------------------------------------------------------


def by_rename(fd: int, content: bytes, pause: float) -> None:
    """Save as most editors do: a new file takes the place of the old."""
    file = os.open("saving", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=fd)
    os.write(file, content)
    os.close(file)
    _spin(pause)
    os.rename("saving", "f", src_dir_fd=fd, dst_dir_fd=fd)


def in_place(fd: int, content: bytes, pause: float) -> None:
    """Save into the file itself."""
    file = os.open("f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd)
    _spin(pause)
    os.write(file, content)
    os.ftruncate(file, len(content))
    os.close(file)


def _spin(pause: float) -> None:
    end = time.perf_counter() + pause
    while time.perf_counter() < end:
        pass


Save = Callable[[int, bytes, float], None]
SAVES: dict[str, Save] = {"by_rename": by_rename, "in_place": in_place}


class Editing:
    """An editor that saves once in every round, at about the moment of the restore."""

    def __init__(self, arena: Arena, save: Save) -> None:
        self.arena = arena
        self.caught = self.rounds = 0
        self._length = 0.001
        self._turns = os.pipe()
        self._worker = Worker(lambda report: self._edit(report, save))

    def _edit(self, report: Callable[[str], None], save: Save) -> None:
        dice = random.Random(4)
        while turn := os.read(self._turns[0], 4):
            round = int.from_bytes(turn, "big")
            _spin(dice.random() * self._length)
            save(self.arena.inner, b"saved %d\n" % round, dice.random() * 0.0002)
            report(f"{round}")

    def round(self, id: int) -> None:
        """Restore while the editor saves: what it saved is on the disk afterwards."""
        arena = self.arena
        _reset(arena.inner)
        plan = Plan(b"", [step_to(b"d/f", file(OLD), file(NEW) if id % 3 else None)])
        os.write(self._turns[1], id.to_bytes(4, "big"))
        _spin(self._length * 0.5 * (id % 7) / 7)
        done = safely(arena.root, arena.fd, plan, f"{id:012d}")
        assert self._worker.line() == str(id)
        saved = file(b"saved %d\n" % id)
        there = describe(arena.inner, b"f")
        beside = [n for n in os.listdir(arena.inner) if n.startswith("f.kept")]
        self.rounds += 1
        self.caught += bool(done.conflicts)
        if saved != there:
            kept = [describe(arena.inner, n.encode()) for n in beside]
            if saved not in kept or not done.conflicts:
                raise Violation(f"round {id}: lost; there is {there}, beside {kept}, {done.steps}")
        for name in beside:
            os.unlink(name, dir_fd=arena.inner)

    def close(self) -> None:
        self._worker.kill()
        self._worker.wait()
        for fd in self._turns:
            os.close(fd)


def _reset(fd: int) -> None:
    new = os.open("start", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=fd)
    os.write(new, OLD)
    os.close(new)
    os.rename("start", "f", src_dir_fd=fd, dst_dir_fd=fd)


def edit(arena: Arena, save: str, rounds: int, broken: Broken) -> Editing:
    """So many rounds with one kind of editor."""
    editing = Editing(arena, SAVES[save])
    try:
        with broken():
            for id in range(rounds):
                editing.round(id)
    finally:
        editing.close()
    print(save, editing.rounds, "rounds,", editing.caught, "conflicts")
    return editing


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("save", list(SAVES))
def test_what_an_editor_saves_is_not_lost(arena: Arena, save: str, way: str) -> None:
    """A file saved in the very moment of its restore is at its path, or reported beside."""
    assert edit(arena, save, 700, WAYS[way]).caught > 10


@pytest.mark.torture
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("save", list(SAVES))
def test_what_an_editor_saves_is_never_lost(arena: Arena, save: str, way: str) -> None:
    """The same in many more rounds."""
    assert edit(arena, save, 50_000, WAYS[way]).caught > 1000


@contextmanager
def believing() -> Iterator[None]:
    """What comes out of a swap is not looked at."""
    with ExitStack() as stack:
        for name in ("holds", "knows"):
            stack.enter_context(patch.object(Workbench, name, lambda *_: True))
        yield


@contextmanager
def taking_out_by_link() -> Iterator[None]:
    """A thing gets its second name first, and loses its first one later."""

    def take_out(source: int, name: bytes, target: int, new: bytes) -> None:
        os.link(name, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        os.unlink(name, dir_fd=source)

    with without_renameat2(), patch.object(steps, "take_out", take_out):
        yield


@contextmanager
def looking_once() -> Iterator[None]:
    """What came out of a swap is looked at once, and not again before it is removed."""
    with patch.object(Workbench, "knows", lambda *_: True):
        yield


@pytest.mark.parametrize(
    ("save", "broken"),
    [("by_rename", believing), ("by_rename", taking_out_by_link), ("in_place", looking_once)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_editors_find_broken_restores(arena: Arena, save: str, broken: Broken) -> None:
    """The rounds fail on a restore that looks too little."""
    with pytest.raises(Violation, match="lost"):
        edit(arena, save, 20_000, broken)
