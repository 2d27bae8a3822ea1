"""Kill a writer at a chosen call, look at what it left, and go on from there.

A warm parent forks a child that runs a script under the shim of `calls.py`. The child reports
through a pipe how many operations were acknowledged, and dies by SIGKILL in the middle of
the next one. Dying needs no disk, so all this runs in memory where there is such a folder.

    python -m tests.faults.kill SCRIPT --point N --seed M

strikes one point again (see `again.py`); each `Violation` of a sweep ends with that command.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

from tests.faults.calls import REAL, Calls, killing
from tests.faults.raw import is_damaged, log_file, numbers, raw_lines
from tests.faults.script import SCRIPTS, Content, Row, State, Step, after, observe
from tests.faults.variants import Broken, sound

from backtrail.errors import NotFound
from backtrail.events import MAIN_LOG, NewEvent, Problem
from backtrail.stores.base import Durability
from backtrail.stores.disk import sync
from backtrail.stores.jsonl import JSONLStore
from backtrail.stores.opening import Options

SLACK = 0.1
"""The share of its calls by which two runs of a script may differ."""

BYSTANDER = "bystander"
"""A session that is not touched while others are killed."""


class Violation(AssertionError):
    """A promise that a killed writer broke."""


@contextmanager
def repeatable(command: str) -> Iterator[None]:
    """Let a `Violation` say how to see it again."""
    try:
        yield
    except Violation as found:
        found.add_note(f"again: python -m tests.faults.{command}")
        raise


@dataclass
class Child:
    """How a forked child ended: what it reported, and by which signal or code."""

    reported: bytes
    status: int

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def calls(self) -> int:
        """How many calls it made; it reports that in the end, as JSON or as a number."""
        if self.reported.startswith(b"{"):
            return len(json.loads(self.reported)["calls"])
        return int(self.reported.rpartition(b"=")[2])


def over(child: Child, point: int, counted: int, where: str) -> bool:
    """Whether a run was over before its point; else it must have died there.

    Two runs do not always make the same calls: a scan in the very tick of the clock in which a
    file was made reads that file again. So a run may lack a few of the calls that were counted.
    It is then done, and its caller holds it to that; any other run that lives is a fault of the
    harness.
    """
    if child.killed:
        return False
    if not counted - max(1, counted * SLACK) <= child.calls < point:
        raise Violation(f"{where}: lives, after {child.calls} calls of {counted}")
    return True


Given = ParamSpec("Given")
Made = TypeVar("Made")


def apart(work: Callable[Given, Made], *args: Given.args, **options: Given.kwargs) -> Made:
    """Do something that forks often in a small process of its own.

    A fork costs as much as its process is large, and the one that runs the tests knows them all.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *args, **options).result()


def forked(body: Callable[[int], None]) -> Child:
    """Run `body` in a forked child; it may write to the pipe it is given."""
    ends = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            REAL["close"](ends[0])
            body(ends[1])
        except BaseException:
            REAL["write"](ends[1], b"!" + traceback.format_exc().encode())
            code = 70
        finally:
            os._exit(code)
    os.close(ends[1])
    reported = b""
    while part := os.read(ends[0], 65536):
        reported += part
    os.close(ends[0])
    child = Child(reported, os.waitpid(pid, 0)[1])
    if b"!" in reported:
        raise Violation(reported.decode(errors="replace"))
    return child


@dataclass
class Sweep:
    """Kill points in one script at one durability."""

    folder: Path
    name: str
    durability: Durability
    broken: Broken = sound
    points: int = 0
    killed: int = 0
    over: int = 0
    torn: int = 0
    again: int = 0
    counted: int = 0

    def __post_init__(self) -> None:
        self.script = SCRIPTS[self.name]
        self.template = self.folder / "template"
        if not self.template.exists():
            with JSONLStore(self.template) as store:
                Step("create", BYSTANDER).run(store)
                Step("append", BYSTANDER, "by", 3).run(store)
        self.untouched = _files(self.template / "sessions" / BYSTANDER)

    def length(self) -> int:
        """How many calls the whole script makes."""
        self.counted = self._run(self._fresh(), 0, 0).calls
        return self.counted

    def _fresh(self) -> Path:
        root = self.folder / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.template, root)
        return root

    def _run(self, root: Path, point: int, seed: int) -> Child:
        def body(pipe: int) -> None:
            sync.DELAY = 60.0
            with Calls(killing(random.Random(seed)), point) as calls:
                store = JSONLStore(root, Options(durability=self.durability))
                for step in self.script:
                    step.run(store)
                    REAL["write"](pipe, b".")
                store.close()
                REAL["write"](pipe, b"=%d" % calls.count)

        with self.broken():
            return forked(body)

    def strike(self, point: int, seed: int, *, again: bool = False) -> None:
        """One kill, what it left, recovery; with `again` a second kill in the recovery."""
        command = f"kill '{self.name}' --point {point} --seed {seed} --{self.durability}"
        with repeatable(f"{command} --twice" if again else command):
            self._strike(point, seed, again=again)

    def _strike(self, point: int, seed: int, *, again: bool) -> None:
        root = self._fresh()
        child = self._run(root, point, seed)
        self.points += 1
        where = f"point {point}, seed {seed}"
        self.over += over(child, point, self.counted, where)
        self.killed += child.killed
        done = child.reported.count(b".")
        other = self._strike_recovery(root, done, seed) if again else None
        with self.broken():
            Aftermath(self, root, done, other, where).check()

    def _strike_recovery(self, root: Path, done: int, seed: int) -> tuple[str, str] | None:
        """Kill the process that opens the store again and appends, early on."""
        step = self.script[done] if done < len(self.script) else self.script[-1]
        dice = random.Random(seed)
        sessions = [name for name in after(self.script, done) if name != BYSTANDER]
        if not sessions:
            return None
        name = step.session if step.session in sessions else sessions[0]
        log = step.log if step.verb == "append" else MAIN_LOG

        def body(pipe: int) -> None:
            sync.DELAY = 60.0
            with Calls(killing(dice), dice.randint(1, 8)):
                store = JSONLStore(root, Options(durability=self.durability))
                events = Step("append", name, "recovery", 3).events()
                with suppress(NotFound):
                    store.append(name, events, log=log)

        with self.broken():
            self.again += forked(body).killed
        return name, log


class Aftermath:
    """The checks on what a killed writer left."""

    def __init__(
        self, sweep: Sweep, root: Path, done: int, other: tuple[str, str] | None, where: str
    ) -> None:
        self.sweep = sweep
        self.other = other
        self.root = root
        self.where = where
        script = sweep.script
        self.step = script[done] if done < len(script) else Step("flush")
        self.before = after(script, done)
        self.after = after(script, done + 1)
        self.reported: list[Problem] = []

    def fail(self, what: str) -> None:
        raise Violation(f"{self.where}, in {self.step.verb} `{self.step.name}`: {what}")

    def check(self) -> None:
        with JSONLStore(self.root, Options(on_damage=self.reported.append)) as store:
            seen = observe(store)
            if seen.pop(BYSTANDER, None) is None:
                self.fail("another session is gone")
            self.check_state(seen)
            problems = store.verify()
            self.check_verify(problems)
            for session, content in seen.items():
                logs = [MAIN_LOG]
                if self.step.session == session and self.step.log != MAIN_LOG:
                    logs.append(self.step.log)
                for log in logs:
                    self.go_on(store, session, log, content.logs.get(log, []))
            self.check_worse(problems, store.verify())
        places = [(p.session_id, p.log, p.offset, p.what) for p in self.reported]
        if len(places) != len(set(places)):
            self.fail(f"damage is reported twice: {places}")
        if _files(self.root / "sessions" / BYSTANDER, but="lock") != self.sweep.untouched:
            self.fail("another session has changed")

    def check_state(self, seen: State) -> None:
        """Acknowledged operations are there; the one under way is whole or not there."""
        for session in set(seen) | set(self.before) | set(self.after):
            shown = self._without_recovery(seen.get(session))
            allowed = [self.before.get(session), self.after.get(session)]
            if self.step.verb == "delete" and self.step.session == session:
                # Side logs go first, so that a deletion cut short can be repeated.
                whole = self.before[session]
                allowed.append(Content(whole.title, {MAIN_LOG: whole.logs[MAIN_LOG]}))
            if shown not in allowed:
                self.fail(f"session `{session}` is {shown}, should be one of {allowed}")

    def _without_recovery(self, shown: Content | None) -> Content | None:
        """What is shown, less the whole batch that a second, killed writer added."""
        if shown is None:
            return None
        kept: dict[str, list[Row]] = {}
        for log, rows in shown.logs.items():
            added = [row for row in rows if row[1].startswith("recovery-")]
            if added and (len(added) != 3 or rows[-3:] != added):
                self.fail(f"half a batch in `{log}`: {added}")
            if len(rows) > len(added) or log == MAIN_LOG:
                kept[log] = rows[: len(rows) - len(added)]
        return Content(shown.title, kept)

    def check_verify(self, problems: list[Problem]) -> None:
        """What is damaged is reported, and nothing else is."""
        named = {(problem.session_id, problem.log) for problem in problems}
        damaged: set[tuple[str, str]] = set()
        for folder in (self.root / "sessions").iterdir():
            if not (folder / "messages.jsonl").exists():
                damaged.add((folder.name, MAIN_LOG))
                continue
            for path in folder.rglob("[!.]*.jsonl"):
                log = str(path.relative_to(folder)).removesuffix(".jsonl")
                data = path.read_bytes()
                if is_damaged(data):
                    damaged.add((folder.name, log))
                    self.sweep.torn += 1
        if named != damaged:
            self.fail(f"verify reports {sorted(named)}, damaged is {sorted(damaged)}")
        for session, _ in named - {(self.step.session, self.step.log), self.other}:
            if self.step.verb not in ("create", "delete") or session != self.step.session:
                self.fail(f"session `{session}` is damaged and was not being written: {problems}")

    def go_on(self, store: JSONLStore, session: str, log: str, rows: list[Row]) -> None:
        """Later events are stored, each on a line of its own, under unused numbers."""
        path = log_file(self.root, session, log)
        data = path.read_bytes() if path.exists() else b""
        used = numbers(data) | self._landed(session, log, data, rows)
        new = store.append(session, [NewEvent("later", {"n": 1}, id="later-1")], log=log)
        batch = [NewEvent("later", {"n": n}, id=f"later-{n}") for n in (2, 3)]
        new += store.append(session, batch, log=log)
        if new[0].seq <= max(used, default=0):
            self.fail(f"number {new[0].seq} is used again in `{log}`")
        shown = list(store.read(session, log=log))
        old = [(event.seq, event.id, event.data) for event in shown[:-3]]
        whole = self.after.get(session, Content()).logs.get(log)
        # Sealing may complete what lacked nothing but its newline.
        mended = [row for row in old if row in rows or not row[1].startswith("recovery-")]
        if shown[-3:] != new or not (old in (rows, whole) or mended in (rows, whole)):
            self.fail(f"after three more events `{log}` has {old} and {shown[-3:]}, before {rows}")
        if list(store.read(session, log=log, reverse=True)) != shown[::-1]:
            self.fail(f"`{log}` is not the same backwards")
        if store.tail(session, 4, log=log) != shown[-4:]:
            self.fail(f"the tail of `{log}` is another")
        ends = [line.seq for line in raw_lines(path.read_bytes())[-3:]]
        if ends != [event.seq for event in new]:
            self.fail(f"the last lines of `{log}` are {ends}")

    def _landed(self, session: str, log: str, data: bytes, rows: list[Row]) -> set[int]:
        """Numbers of the lines of the batch under way of which a byte was written."""
        if (session, log) != (self.step.session, self.step.log) or self.step.verb != "append":
            return set()
        acknowledged = self.before[session].logs.get(log, [])
        lines = [line for line in raw_lines(data) if line.text]
        count = min(len(lines) - len(acknowledged), self.step.count)
        first = acknowledged[-1][0] + 1 if acknowledged else 1
        return set(range(first, first + count))

    def check_worse(self, before: list[Problem], now: list[Problem]) -> None:
        """Going on repairs or keeps damage, and never adds to it."""
        known = {(p.session_id, p.log, p.offset) for p in before}
        extra = {(p.session_id, p.log, p.offset) for p in now} - known
        if extra:
            self.fail(f"new damage at {sorted(extra)}")


def _files(folder: Path, but: str = "") -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name not in (but, "lock") and path.is_file()
    }


def sweeps(
    folder: Path, points: int, broken: Broken = sound, scripts: Collection[str] = SCRIPTS
) -> list[Sweep]:
    """Run so many kill points, spread over the scripts and both durabilities."""
    made: list[Sweep] = []
    work: list[tuple[Sweep, int]] = []
    for name in scripts:
        for durability in ("written", "synced"):
            place = folder / f"{name}-{durability}".replace(" ", "-")
            sweep = Sweep(place, name, durability, broken)
            made.append(sweep)
            work.extend((sweep, point) for point in range(1, sweep.length() + 1))
    dice = random.Random(points)
    seed = 0
    while seed < points:
        dice.shuffle(work)
        for sweep, point in work[: points - seed]:
            seed += 1
            sweep.strike(point, seed, again=seed % 8 == 0)
    return made


def shown(made: list[Sweep]) -> str:
    """The counts of a run, for the report."""
    total: Counter[str] = Counter()
    for sweep in made:
        total.update(
            points=sweep.points,
            killed=sweep.killed,
            over=sweep.over,
            torn=sweep.torn,
            in_recovery=sweep.again,
        )
    return json.dumps(total)


if __name__ == "__main__":
    import sys

    from tests.faults.again import main

    sys.exit(main())
