"""Taking one turn out of the middle: what others wrote stays, or the file is a named conflict.

The oracle knows only bytes: no two lines are alike, and the test notes which turn wrote and which
removed each of them.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from backtrail import InvalidData, NotFound, Session
from tests.files.conftest import shell
from tests.files.test_subtracting import LINES
from tests.files.world import MEMORY, look
from tests.talking import user

NAMES = ["a", "b", "c"]


class Play:
    """Turns of a session, and a person in between, over lines of which no two are alike."""

    def __init__(self, place: Path, closing: ExitStack, random: Random) -> None:
        self.root = place / "project"
        self.root.mkdir()
        self.random, self.count = random, 0
        self.wrote: dict[int, set[str]] = {}
        self.removed: dict[int, dict[str, set[str]]] = {}
        self.before: dict[int, dict[str, list[str]]] = {}
        for name in NAMES[:2]:
            (self.root / name).write_text("".join(self.line() for _ in range(8)))
        url = f"sqlite:///{place}/store.db"
        self.session = closing.enter_context(Session.create(url, "s", cwd=self.root))

    def line(self) -> str:
        self.count += 1
        return f"line {self.count}\n"

    def look(self) -> dict[str, list[str]]:
        return {
            name: (self.root / name).read_text().splitlines(keepends=True)
            for name in NAMES if (self.root / name).exists()
        }  # fmt: skip

    def edit(self) -> None:
        name = self.random.choice(NAMES)
        lines = self.look().get(name, [])
        at = self.random.randint(0, len(lines))
        lines[at : at + self.random.randint(0, 1)] = [self.line()]
        (self.root / name).write_text("".join(lines))

    def turn(self, number: int) -> None:
        self.before[number] = self.look()
        with self.session.turn(f"turn {number}"):
            for _ in range(self.random.randint(1, 3)):
                with self.session.tool(self.random.choice(["edit", "bash"])):
                    self.edit()
        after = self.look()
        self.removed[number] = {
            name: set(lines) - set(after[name]) for name, lines in self.before[number].items()
        }
        known = {line for lines in self.before[number].values() for line in lines}
        self.wrote[number] = {line for lines in after.values() for line in lines} - known


def check_history(seed: int) -> tuple[int, int]:
    """One history; how many files were taken back, and how many are conflicts."""
    random = Random(seed)
    with TemporaryDirectory(dir=MEMORY) as place, ExitStack() as closing:
        play = Play(Path(place), closing, random)
        count = random.randint(2, 5)
        for number in range(1, count + 1):
            play.turn(number)
            if random.random() < 0.3:
                play.edit()
        chosen = random.randint(1, count)
        bytes_before, before = look(play.root), play.look()
        said = play.session.messages()
        plan = play.session.rewind(turn=chosen, dry_run=True)
        assert look(play.root) == bytes_before
        done = play.session.rewind(turn=chosen)
        assert [(f.path, f.action) for f in done.files] == [(f.path, f.action) for f in plan.files]
        assert play.session.messages() == said
        conflicts = {file.path for file in done.conflicts}
        after = play.look()
        for name, lines in before.items():
            if name in conflicts:
                assert after[name] == lines
                continue
            back = play.removed[chosen].get(name, set())
            wanted = (set(lines) - play.wrote[chosen]) | back
            assert set(after.get(name, [])) == wanted, (seed, name)
            assert len(after.get(name, [])) == len(wanted)
            kept = [line for line in after.get(name, []) if line in lines]
            assert kept == [line for line in lines if line in wanted]
        for name, lines in after.items():
            for line in play.session.blame(name) if name not in conflicts and lines else ():
                # What remains is never said to be of the turn that was taken out.
                assert line.turn != chosen
        if done.files_changed:
            play.session.undo()
            assert look(play.root) == bytes_before
            play.session.redo()
            assert play.look() == after
        again = play.session.rewind(turn=chosen)
        assert not again.files_changed
        assert play.look() == after
        return len(done.files_changed), len(conflicts)


@pytest.mark.parametrize("part", range(8))
def test_exactly_the_other_turns_lines_remain(part: int) -> None:
    """Or the file is a named conflict, its bytes unchanged; an undo brings the turn back."""
    found = [check_history(seed) for seed in range(part * 20, part * 20 + 20)]
    changed, conflicts = (sum(counts) for counts in zip(*found, strict=True))
    assert changed > conflicts > 0


@pytest.mark.torture
@pytest.mark.parametrize("part", range(100))
def test_exactly_the_other_turns_lines_remain_many(part: int) -> None:
    """2,000 histories more."""
    for seed in range(1000 + part * 20, 1000 + part * 20 + 20):
        check_history(seed)


@pytest.fixture
def turns(session: Session, project: Path) -> Session:
    """Three turns that change the same file, in lines apart."""
    (project / "f.py").write_text(LINES)
    for text, command in [
        ("first", "sed -i s/^1/ONE/ f.py"),
        ("second", "sed -i s/^3/THREE/ f.py"),
        ("third", "sed -i s/^5/FIVE/ f.py"),
    ]:
        session.append(user(text))
        shell(session, command, project)
    return session


def test_later_turns_stay(turns: Session, project: Path) -> None:
    """The turn is named by its prompt: the first prompt is the session's "begin"."""
    done = turns.rewind(turn=3)
    assert [(file.path, file.action) for file in done.files] == [("f.py", "merge")]
    assert (project / "f.py").read_text() == "import a\nONE\n2\n3\n4\nFIVE\nend\n"
    assert done.events_dropped == 0
    (event,) = turns.events(kinds=("rewound",))
    assert event.data["scope"] == "files"
    assert event.data["took_back"] == [[event.data["turn"], event.data["turn"] + 1]]


def test_a_turn_is_named_by_its_event_too(turns: Session, project: Path) -> None:
    """An event, its id, or a number that no prompt has."""
    second = [event for event in turns.events() if event.kind == "user_message"][2]
    for name in (second, second.id, second.seq):
        assert turns.rewind(turn=name, dry_run=True).files_changed == ["f.py"]
    assert turns.rewind(turn=-1, dry_run=True).insertions == 1


def test_keeping_conflicts_keeps_the_file(turns: Session, project: Path) -> None:
    """Only "merge", the default, looks into a file that later turns changed."""
    done = turns.rewind(turn=2, on_conflict="keep")
    assert [(file.path, file.code) for file in done.conflicts] == [("f.py", "later")]
    assert "ONE" in (project / "f.py").read_text()


def test_only_some_paths(turns: Session, project: Path) -> None:
    """The others stay as they are."""
    assert not turns.rewind(turn=2, paths=["README"]).files_changed
    assert turns.rewind(turn=2, paths=["f.py"]).files_changed == ["f.py"]


def test_what_makes_no_sense_is_refused(turns: Session) -> None:
    """No second target, no other scope or mode, no turn that is none."""
    for wrong in ({"to": 1}, {"before": 2}, {"scope": "conversation"}, {"mode": "exact"}):
        with pytest.raises(InvalidData):
            turns.rewind(turn=2, **wrong)
    head = turns.info().head
    for name in (9, 0, "nothing", head):
        with pytest.raises(NotFound):
            turns.rewind(turn=name)
    assert turns.info().head == head


def test_a_turn_that_was_undone_leaves_nothing_to_take(turns: Session, project: Path) -> None:
    """And one that was redone is there again."""
    turns.undo()
    third = [event for event in turns.events() if event.kind == "user_message"][3]
    assert not turns.rewind(turn=third).files_changed
    turns.redo()
    assert turns.rewind(turn=third).files_changed == ["f.py"]
    assert (project / "f.py").read_text() == LINES.replace("1", "ONE").replace("3", "THREE")
