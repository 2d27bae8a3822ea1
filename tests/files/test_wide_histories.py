"""Any history with things that are not captured, odd names, nested roots and two stores.

Whatever an operation does: it does what its preview says; what is not captured is on the disk
afterwards, all of it; what others wrote last stays, and of a merge their lines do; what is
refused changes nothing; and one undo gives back exactly what was there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from backtrail import Event, NotFound, Rewind, Session
from backtrail.errors import Conflict, Unsafe
from backtrail.files.restore.conflicts import OnConflict
from backtrail.files.workspace.verdicts import Limits
from backtrail.session.fileplans import Mode
from backtrail.stores import open_store
from tests.files.wide import (
    LIMIT,
    NESTED,
    PATHS,
    Edit,
    Hands,
    Seen,
    edits,
    look,
    not_captured,
    present,
)
from tests.files.world import MEMORY

Who = Literal[
    "shell", "edit", "person", "turn", "other", "other edit", "both", "rewind", "undo", "redo",
    "other rewind", "other undo",
]  # fmt: skip

ALL: list[Who] = [
    "shell", "shell", "shell", "edit", "person", "person", "turn", "turn", "other", "other edit",
    "both", "rewind", "rewind", "undo", "redo", "other rewind", "other undo",
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """Who does something, what, and how an operation goes about it."""

    who: Who
    edits: list[Edit]
    choice: int
    conflicts: OnConflict
    mode: Mode
    paths: int


def steps() -> st.SearchStrategy[list[Step]]:
    choices: list[OnConflict] = ["keep", "keep", "merge", "merge", "aside", "overwrite"]
    modes: list[Mode] = ["mine", "mine", "mine", "exact"]
    one = st.builds(
        Step, st.sampled_from(ALL), st.lists(edits(), min_size=1, max_size=3), st.integers(0, 50),
        st.sampled_from(choices), st.sampled_from(modes), st.integers(0, 30),
    )  # fmt: skip
    return st.lists(one, min_size=2, max_size=12)


class Play:
    """A history being made: a session at the root, another below it in a store of its own."""

    def __init__(self, place: Path, closing: ExitStack) -> None:
        self.root = place / "project"
        for folder in ("pkg", "d", "node_modules", ".git"):
            (self.root / folder).mkdir(parents=True)
        self.hands = Hands(self.root)
        for path in ("a", "pkg/m", "d/x", "node_modules/t", ".git/t"):
            self.hands.do("person", Edit("write", PATHS.index(path)), PATHS)
        one = closing.enter_context(open_store(f"sqlite:///{place}/one.db"))
        two = closing.enter_context(open_store(f"file:{place}/two"))
        self.mine = closing.enter_context(Session.create(one, "mine", cwd=self.root))
        self.other = closing.enter_context(Session.create(two, "other", cwd=self.root / "pkg"))
        self.points: dict[str, list[Event]] = {"mine": [], "other": []}
        self.undone: dict[str, tuple[Seen, Seen]] = {}
        self.uncaptured: dict[str, set[bytes]] = {"mine": set(), "other": set()}
        self.say("mine")
        self.say("other")

    def session(self, who: str) -> Session:
        return self.mine if who == "mine" else self.other

    def say(self, who: str) -> None:
        event = self.session(who).append({"role": "user", "content": "go on"})
        self.points[who].append(event)
        self.scanned(who)

    def scanned(self, who: str) -> None:
        """A session has seen all of its root: what is not captured there is known to it."""
        root = self.root if who == "mine" else self.root / "pkg"
        self.uncaptured[who] |= not_captured(look(root))

    def take(self, step: Step) -> None:
        before = look(self.root)
        owner = "other" if step.who.startswith("other") else "mine"
        match step.who:
            case "turn":
                self.say("mine")
            case "person":
                self.edit("person", step)
                self.hands.note("person", before, look(self.root))
            case "rewind" | "other rewind" | "undo" | "redo" | "other undo":
                self.operate(owner, step)
            case "both":
                with self.mine.tool("bash"), self.other.tool("bash"):
                    self.edit("both", step, NESTED)
                self.hands.note("both", before, look(self.root))
            case _:
                paths = NESTED if owner == "other" else PATHS
                with self.calling(owner, step, paths):
                    self.edit(owner, step, paths)
                self.hands.note(owner, before, look(self.root))
        for who in {"shell": ["mine"], "both": ["mine", "other"], "other": ["other"]}.get(
            step.who, []
        ):
            self.scanned(who)

    def calling(self, owner: str, step: Step, paths: list[str]) -> AbstractContextManager[object]:
        """A call, which declares its paths if it is an edit."""
        session = self.session(owner)
        if "edit" not in step.who:
            return session.tool("bash")
        named = {paths[e.where % len(paths)].partition("/")[0] for e in step.edits}
        named |= {"a", "b", "moved", "pkg"} if owner == "mine" else set()
        inner = ["m", "n", "in", "node_modules"]
        return session.tool("edit", paths=sorted(named) if owner == "mine" else inner)

    def edit(self, who: str, step: Step, paths: list[str] = PATHS) -> None:
        for edit in step.edits:
            self.hands.do(who, edit, paths)

    def operate(self, owner: str, step: Step) -> None:
        """One operation: as its preview says, and no other's loss."""
        session, before = self.session(owner), look(self.root)
        act = self.operation(session, owner, step)
        try:
            plan = act(True)
            assert look(self.root) == before, "a preview changed something"
            done = act(False)
        except (NotFound, Conflict, Unsafe):
            assert look(self.root) == before, "what was refused changed something"
            return
        after = look(self.root)
        reported, said = ([(f.path, f.action) for f in x.files] for x in (done, plan))
        assert reported == said, "an operation is not what its preview says"
        self.check(owner, step, before, after)
        self.hands.note(owner, before, after)
        start = self.start_of_undo(session, owner, before, after)
        if done.files_changed and step.choice % 2:
            (session.redo if step.who.endswith("undo") else session.undo)()
            now = look(self.root)
            assert start is None or now == start, "what was taken back is not what was there"
            self.hands.note(owner, after, now)

    def start_of_undo(self, session: Session, owner: str, before: Seen, after: Seen) -> Seen | None:
        """What taking the last operation back leads to; None if that cannot be said.

        One that finished an undo, which had kept conflicts, is taken back together with it. A
        redo removes the copies that its undo wrote beside conflicts; a plain undo, which keeps
        these, writes none.
        """
        last = next(session.store.read(session.id, reverse=True))
        begun, then = self.undone.get(owner, (before, before))
        finishes = "finishes" in last.data
        self.undone[owner] = (begun if finishes else before, after)
        if last.kind == "redone":
            copies = {path for path in before.keys() - after.keys() if b".rewind-" in path}
            return {path: seen for path, seen in before.items() if path not in copies}
        if not finishes:
            return before
        return begun if then == before else None

    def operation(self, session: Session, owner: str, step: Step) -> Callable[[bool], Rewind]:
        if "rewind" not in step.who:
            verb = session.redo if step.who == "redo" else session.undo
            return lambda dry: verb(on_conflict=step.conflicts, dry_run=dry)
        points = self.points[owner]
        point = points[step.choice % len(points)]
        names = PATHS if owner == "mine" else ["m", "n", "in"]
        paths = [names[step.paths % len(names)]] if step.paths < len(names) else None
        return lambda dry: session.rewind(
            point, mode=step.mode, on_conflict=step.conflicts, paths=paths, dry_run=dry
        )

    def check(self, owner: str, step: Step, seen: Seen, now: Seen) -> None:
        """What is not captured is there, and so is what others wrote last."""
        lost = (self.uncaptured[owner] & present(seen)) - present(now)
        assert not lost, f"not captured, and gone: {lost}"
        pipes = [sum(kind == "pipe" for kind, _, _ in x.values()) for x in (seen, now)]
        assert pipes[1] >= pipes[0], "a pipe is gone"
        if step.conflicts == "overwrite" or (step.mode == "exact" and "rewind" in step.who):
            return
        for path, theirs in self.hands.others(seen, owner):
            if _is_aside(path, seen, now):
                continue
            if step.conflicts == "merge" and seen[path][0] == "file":
                assert theirs <= present({path: now.get(path, ("", 0, b""))}), path
            else:
                assert now.get(path) == seen[path], f"others wrote {path!r}"


def _is_aside(path: bytes, seen: Seen, now: Seen) -> bool:
    """Whether what was too large to be captured, by whomever, made way as it was."""
    return len(seen[path][2]) > LIMIT and seen[path] == now.get(path + b".aside")


def play(history: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(dir=MEMORY) as place:
        patch.setattr(
            "backtrail.files.workspace.root.Limits", functools.partial(Limits, file_size=LIMIT)
        )
        with ExitStack() as closing:
            game = Play(Path(place), closing)
            for step in history:
                game.take(step)


FEW = settings(
    max_examples=25, deadline=None, print_blob=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@pytest.mark.parametrize("number", range(8))
def test_no_author_loses_anything(number: int) -> None:
    """200 histories, in eight parts."""

    @seed(number)
    @FEW
    @given(history=steps())
    def check(history: list[Step]) -> None:
        play(history)

    check()


@pytest.mark.torture
def test_no_author_loses_anything_in_many_histories() -> None:
    """2,000 histories, other ones each time."""

    @settings(FEW, max_examples=2000)
    @given(history=steps())
    def check(history: list[Step]) -> None:
        play(history)

    check()
