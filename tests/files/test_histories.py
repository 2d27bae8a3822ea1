"""Any history of edits, by tools, shells, people and other sessions, can be gone back in.

In mode "exact" a rewind gives the very state of the point, and `undo` the very state before
the rewind. In mode "mine" nothing that a person wrote outside a running call is lost, and
where no other wrote, it gives the state of the point too.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backtrail import Checkpoint, Event, NotFound, Session
from backtrail.stores import open_store
from tests.files.world import MEMORY, Edit, Seen, Writers, do, edits, look
from tests.talking import calling

Who = Literal[
    "edit", "shell", "person", "other", "parallel", "turn", "rewind", "undo",
    "heard", "mid", "beside",
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """Who edits, and what.

    `parallel`: in calls of two sessions that overlap. `heard`: a call that gets no result.
    `mid`: a call with a point before its last edit. `beside`: a rewind in a call of the other
    session, which does nothing.
    """

    who: Who
    edits: list[Edit]


ALONE: list[Who] = ["edit", "shell", "turn", "rewind", "undo", "heard", "mid"]
ALL: list[Who] = [*ALONE, "shell", "person", "person", "other", "parallel", "beside"]


def steps(kinds: list[Who] = ALL) -> st.SearchStrategy[list[Step]]:
    who = st.sampled_from(kinds)
    return st.lists(st.builds(Step, who, st.lists(edits(), min_size=1, max_size=3)), max_size=12)


class Play:
    """A history being made: the sessions, the points so far, and who wrote what."""

    def __init__(self, place: Path, closing: ExitStack) -> None:
        self.root = place / "project"
        self.root.mkdir()
        do(self.root, Edit("write", "a", "first\n"))
        do(self.root, Edit("write", "d/x", "x\n"))
        store = closing.enter_context(open_store(f"sqlite:///{place}/store.db"))
        self.mine = closing.enter_context(Session.create(store, "mine", cwd=self.root))
        self.other = closing.enter_context(Session.create(store, "other", cwd=self.root))
        self.writers = Writers()
        self.points: list[tuple[Event | Checkpoint, Seen]] = []
        self.say()
        self.hello = self.other.append({"role": "user", "content": "hello"})

    def say(self) -> None:
        """A user's message: a point to come back to."""
        event = self.mine.append({"role": "user", "content": "go on"})
        self.points.append((event, look(self.root)))

    def take(self, step: Step) -> None:
        before = look(self.root)
        if step.who == "person":
            self._edit(step)
        elif step.who == "turn":
            self.say()
            return
        elif step.who == "rewind":
            self._rewind(step)
        elif step.who == "beside":
            with self.other.tool("make"):
                self._rewind(step)
        elif step.who == "heard":
            self.mine.append(calling("c1"))
            self._edit(step)
            self.say()
        elif step.who == "mid":
            with self.mine.tool("bash"):
                for edit in step.edits:
                    now = look(self.root)
                    self.points.append((self.mine.checkpoint(), now))
                    do(self.root, edit)
                    # What a call undoes again itself was its own at the points in between.
                    self.writers.note(now, look(self.root), step.who)
        elif step.who == "undo":
            with suppress(NotFound):
                self.mine.undo(force=True)
        elif step.who == "parallel":
            with self.mine.tool("bash"), self.other.tool("bash"):
                self._edit(step)
        elif step.who == "other":
            with self.other.tool("bash"):
                self._edit(step)
        elif step.who == "edit":
            paths = [path for e in step.edits for path in (e.path, e.to) if path]
            tops = {path.partition("/")[0] for path in paths}
            with self.mine.tool("edit", paths=sorted(tops)):
                self._edit(step)
        else:
            with self.mine.tool("bash"):
                self._edit(step)
        self.writers.note(before, look(self.root), step.who)

    def _rewind(self, step: Step) -> None:
        self.mine.rewind(self.points[len(step.edits) % len(self.points)][0], force=True)

    def _edit(self, step: Step) -> None:
        for edit in step.edits:
            do(self.root, edit)


EXAMPLES = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)


@EXAMPLES
@given(history=steps(), choice=st.integers(0, 100))
def test_exact_gives_the_state_of_the_point_and_undo_the_state_before(
    history: list[Step], choice: int
) -> None:
    """Bytes, modes and types, also of others' changes."""
    with TemporaryDirectory(dir=MEMORY) as place, ExitStack() as closing:
        play = Play(Path(place), closing)
        for step in history:
            play.take(step)
        before = look(play.root)
        event, seen = play.points[choice % len(play.points)]
        done = play.mine.rewind(event, mode="exact", force=True)
        assert look(play.root) == seen
        if not (done.files_changed or done.events_dropped):
            return
        play.mine.undo(force=True)
        assert look(play.root) == before
        play.mine.redo(force=True)
        assert look(play.root) == seen


@EXAMPLES
@given(history=steps(), choice=st.integers(0, 100))
def test_mine_loses_nothing_that_a_person_wrote(history: list[Step], choice: int) -> None:
    """And one undo gives back exactly what was there."""
    with TemporaryDirectory(dir=MEMORY) as place, ExitStack() as closing:
        play = Play(Path(place), closing)
        for step in history:
            play.take(step)
        before = look(play.root)
        event, _ = play.points[choice % len(play.points)]
        plan = play.mine.rewind(event, dry_run=True)
        assert look(play.root) == before
        done = play.mine.rewind(event, force=True)
        after = look(play.root)
        assert [(f.path, f.action) for f in done.files] == [(f.path, f.action) for f in plan.files]
        for path, seen in before.items():
            theirs = play.writers.last.get(path) in ("person", "other") and seen[0] != "directory"
            # A writer of what the session's own call left there last has it back.
            if theirs and play.writers.newest(path, besides=("person", "other")) != seen:
                assert after.get(path) == seen
        if done.files_changed:
            play.mine.undo(force=True)
            assert look(play.root) == before


@settings(EXAMPLES, max_examples=30)
@given(history=steps(), choice=st.integers(0, 100))
def test_overwriting_is_one_undo_away(history: list[Step], choice: int) -> None:
    """Whatever it took."""
    with TemporaryDirectory(dir=MEMORY) as place, ExitStack() as closing:
        play = Play(Path(place), closing)
        for step in history:
            play.take(step)
        before = look(play.root)
        done = play.mine.rewind(
            play.points[choice % len(play.points)][0], on_conflict="overwrite", force=True
        )
        if done.files_changed:
            play.mine.undo(force=True)
            assert look(play.root) == before


def _wrote(verb: Literal["write", "mkdir"], path: str) -> Edit:
    return Edit(verb, path, "1\n", 0o600, "a")


AGAIN = [
    Step("edit", [_wrote("write", "a")]),
    Step("mid", [_wrote("mkdir", "d/y"), _wrote("write", "a")]),
    Step("edit", [_wrote("write", "d")]),
    Step("edit", [_wrote("mkdir", "d/y")]),
    Step("rewind", [_wrote("write", "a")]),
]
"""A folder that is made, removed and made again by calls, and taken back by a rewind."""


@settings(EXAMPLES, max_examples=40)
@given(history=steps(ALONE), choice=st.integers(0, 100))
@example(history=AGAIN, choice=2)
def test_mine_gives_the_state_of_the_point_without_other_writers(
    history: list[Step], choice: int
) -> None:
    """Also in the middle of a call, and after calls that got no result."""
    with TemporaryDirectory(dir=MEMORY) as place, ExitStack() as closing:
        play = Play(Path(place), closing)
        for step in history:
            play.take(step)
        point, seen = play.points[choice % len(play.points)]
        assert play.mine.rewind(point, force=True).conflicts == []
        assert look(play.root) == seen
        assert not list(play.mine.events(kinds=("files_changed",)))


@settings(EXAMPLES, max_examples=30)
@given(history=steps())
def test_the_other_session_takes_back_only_what_it_did(history: list[Step]) -> None:
    """Not what a rewind of the first did during its calls."""
    with TemporaryDirectory(dir=MEMORY) as place, ExitStack() as closing:
        play = Play(Path(place), closing)
        for step in history:
            play.take(step)
        before = look(play.root)
        play.other.rewind(play.hello, force=True)
        after = look(play.root)
        theirs = [
            (path, seen) for who, path, seen in play.writers.ever if who in ("other", "parallel")
        ]
        for path, seen in before.items():
            # What the other left is its own, also where a person wrote or brought back the same.
            if (path, seen) not in theirs and seen[0] != "directory":
                assert after.get(path) == seen


@pytest.mark.torture
@pytest.mark.parametrize(
    ("check", "kinds"),
    [
        (test_exact_gives_the_state_of_the_point_and_undo_the_state_before, ALL),
        (test_mine_loses_nothing_that_a_person_wrote, ALL),
        (test_overwriting_is_one_undo_away, ALL),
        (test_mine_gives_the_state_of_the_point_without_other_writers, ALONE),
        (test_the_other_session_takes_back_only_what_it_did, ALL),
    ],
)
def test_many_histories(check: Any, kinds: list[Who]) -> None:
    """500 histories for each of these, other ones each time."""
    plain = check.hypothesis.inner_test
    given_to = {"history": steps(kinds), "choice": st.integers(0, 100)}
    asked = {name: given_to[name] for name in inspect.signature(plain).parameters}
    settings(EXAMPLES, max_examples=500)(given(**asked)(plain))()
