"""Blame: each line has the author that wrote it first, in whatever history.

The oracle knows only bytes: every line that is ever written is another text, and a table says
who wrote it. Lines come back only by rewinds and undos, which write nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from backtrail import Event, NotFound, Session
from backtrail.files.patches import match
from backtrail.files.trees import digest_of
from backtrail.session.lineage import Lineage, Moment
from backtrail.stores import open_store
from tests.files.world import MEMORY
from tests.talking import user

Tag = tuple[str, str | None, int | None, str | None]
"""The author of a line: the word for it, the session, the prompt, the tool."""

PERSON: Tag = ("others", None, None, None)
NAMES = ["a.txt", "b.txt", "d/c.txt", "d/e.txt"]
STEPS = [
    *("edit", "edit", "shell", "shell", "person", "person", "other", "nested", "parallel"),
    *("say", "rename", "rename by person", "rewind", "exact", "turn out", "undo", "redo"),
]


class Play:
    """A random history of two sessions and a person over lines of which no two are alike."""

    def __init__(self, place: Path, closing: ExitStack, random: Random) -> None:
        self.root = place / "project"
        (self.root / "d").mkdir(parents=True)
        self.random = random
        self.count = 0
        self.authors: dict[str, Tag] = {}
        self.points: list[tuple[Event, dict[str, bytes]]] = []
        for name in NAMES[:2]:
            lines = [self.line(PERSON) for _ in range(12)]
            (self.root / name).write_text("".join(lines))
        store = closing.enter_context(open_store(f"sqlite:///{place}/store.db"))
        self.mine = closing.enter_context(Session.create(store, "mine", cwd=self.root))
        self.other = closing.enter_context(Session.create(store, "other", cwd=self.root))
        self.say()
        self.other.append(user("hello"))

    def line(self, tag: Tag) -> str:
        self.count += 1
        text = f"line {self.count} {'x' * self.random.randrange(20)}"
        self.authors[text] = tag
        return text + "\n"

    def say(self) -> None:
        event = self.mine.append(user("go on"))
        self.points.append((event, self.look()))

    def prompt(self) -> int:
        return sum(event.kind == "user_message" for event in self.mine.history())

    def look(self) -> dict[str, bytes]:
        return {
            name: (self.root / name).read_bytes() for name in NAMES if (self.root / name).exists()
        }

    def edit(self, tag: Tag) -> None:
        """Insert, replace or drop a few lines of a file."""
        there = sorted(self.look())
        name = self.random.choice(there or NAMES)
        path = self.root / name
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        for _ in range(self.random.randint(1, 2)):
            at = self.random.randint(0, len(lines))
            gone = self.random.randint(0, 2) if len(lines) > 10 else 0
            lines[at : at + gone] = [self.line(tag) for _ in range(self.random.randint(1, 2))]
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(lines))

    def rename(self) -> bool:
        there = sorted(self.look())
        free = [name for name in NAMES if name not in there]
        if not there or not free:
            return False
        (self.root / self.random.choice(free)).parent.mkdir(exist_ok=True)
        (self.root / self.random.choice(there)).rename(self.root / self.random.choice(free[:1]))
        return True

    def take(self, step: str) -> None:
        mine: Tag = ("agent", "mine", self.prompt(), "bash")
        other: Tag = ("agent", "other", 1, "edit")
        if step == "say":
            self.say()
        elif step == "edit":
            with self.mine.tool("edit", paths=NAMES):
                self.edit((*mine[:3], "edit"))
        elif step == "shell":
            with self.mine.tool("bash"):
                self.edit(mine)
                self.edit(mine)
        elif step == "person":
            self.edit(PERSON)
        elif step == "other":
            with self.other.tool("edit"):
                self.edit(other)
        elif step == "nested":
            with self.mine.tool("bash"):
                self.edit(mine)
                with self.other.tool("edit", paths=NAMES):
                    self.edit(other)
                self.edit(mine)
        elif step == "parallel":
            with self.mine.tool("bash"), self.other.tool("bash"):
                self.edit(("shared", None, None, None))
        elif step == "rename":
            with self.mine.tool("bash"):
                self.rename()
        elif step == "rename by person":
            # What a person does to a file as it moves must leave it recognizable.
            self.mine.diff()
            self.mine.append(user("look"))
            if self.rename():
                self.mine.append(user("look again"))
        else:
            self.go_back(step)

    def go_back(self, step: str) -> None:
        with suppress(NotFound):
            if step == "rewind":
                self.mine.rewind(self.random.choice(self.points)[0], scope="files")
            elif step == "exact":
                self.mine.rewind(self.random.choice(self.points)[0], scope="files", mode="exact")
            elif step == "turn out":
                self.mine.rewind(turn=self.random.randint(1, max(1, self.prompt())))
            elif step == "undo":
                self.mine.undo()
            else:
                self.mine.redo()

    def check(self, session: Session, name: str, content: bytes, at: Event | None) -> None:
        found = session.blame(name, at)
        assert [line.text.encode() + b"\n" for line in found] == content.splitlines(keepends=True)
        assert [line.line for line in found] == list(range(1, len(found) + 1))
        for line in found:
            author, owner, prompt, tool = self.authors[line.text]
            assert line.author == author, line
            if author == "agent":
                assert (line.session_id, line.tool) == (owner, tool), line
                # A prompt that an undo left behind has no number any more.
                assert line.turn in (prompt, None), line
                assert line.event is not None


def check_history(seed: int) -> None:
    random = Random(seed)
    with TemporaryDirectory(dir=MEMORY) as place, ExitStack() as closing:
        play = Play(Path(place), closing, random)
        for _ in range(random.randint(4, 16)):
            play.take(random.choice(STEPS))
        for name, content in play.look().items():
            play.check(random.choice([play.mine, play.other]), name, content, None)
        point, seen = random.choice(play.points)
        for name, content in seen.items():
            play.check(play.mine, name, content, point)


@pytest.mark.parametrize("part", range(10))
def test_each_line_has_the_author_that_wrote_it(part: int) -> None:
    """200 histories: agents, shells, a person, a second session, renames, rewinds and undos."""
    for seed in range(part * 20, part * 20 + 20):
        check_history(seed)


@pytest.mark.torture
@pytest.mark.parametrize("part", range(100))
def test_each_line_has_the_author_that_wrote_it_many(part: int) -> None:
    """2,000 histories more."""
    for seed in range(1000 + part * 20, 1000 + part * 20 + 20):
        check_history(seed)


# --- what is not known -------------------------------------------------------------------


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Session]:
    """A file of three lines that three turns add a line to each."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "f").write_text("a\nb\nc\n")
    with Session.create(f"sqlite:///{tmp_path}/s.db", "s", cwd=root) as session:
        for number in (1, 2, 3):
            with session.turn(f"turn {number}"), session.tool("edit"), (root / "f").open("a") as f:
                f.write(f"turn {number}\n")
        yield session


def authors(session: Session, lost: bytes) -> list[str]:
    """The authors where one content is not there any more."""
    workspace = session.parts.capture.needed()

    def get(digest: bytes) -> bytes:
        if digest == lost:
            raise NotFound(digest.hex())
        return workspace.get(digest)

    moment = Moment(session.parts.browser.present(), str(workspace.stamp()["id"]))
    lines = Lineage(session.store, session.info(), get).blame(b"f", moment)
    return [line.author for line in lines]


def test_contents_that_were_given_up_leave_lines_unknown(turns: Session) -> None:
    """Those lines, and no others: of the file itself, or of the state that it was in."""
    known = ["others"] * 3 + ["agent"] * 3
    assert authors(turns, b"") == known
    content = digest_of(b"a\nb\nc\nturn 1\n")
    unknown = ["others"] * 3 + ["unknown"] * 2 + ["agent"]
    assert authors(turns, content) == unknown
    first = next(event for event in turns.events(kinds=("action",)))
    assert authors(turns, bytes.fromhex(first.data["files"]["after"])) == unknown
    begin = next(event for event in turns.events(kinds=("user_message",)))
    assert authors(turns, bytes.fromhex(begin.data["tree"])) == [
        *["unknown"] * 4, "agent", "agent",
    ]  # fmt: skip


def test_what_has_no_lines_is_not_found(turns: Session) -> None:
    """A folder, a link, what is no text, what is not there; and at a point, what was not then."""
    workspace = turns.parts.capture.needed()
    root = Path(workspace.path)
    (root / "folder").mkdir()
    (root / "link").symlink_to("f")
    (root / "binary").write_bytes(b"\0\1")
    for name in ("folder", "link", "binary", "nothing"):
        with pytest.raises(NotFound, match=name):
            turns.blame(name)
    (root / "empty").write_text("")
    assert turns.blame("empty") == []
    begin = next(event for event in turns.events(kinds=("user_message",)))
    with pytest.raises(NotFound, match="empty"):
        turns.blame("empty", at=begin)
    assert [line.text for line in turns.blame(root / "f", at=begin)] == ["a", "b", "c"]


def test_what_a_call_under_way_wrote(turns: Session) -> None:
    """In this session it is known; a call of another session, or a person, is not told apart."""
    root = Path(turns.parts.capture.needed().path)
    with turns.tool("bash"):
        (root / "f").write_text((root / "f").read_text() + "now\n")
        last = turns.blame("f")[-1]
        assert (last.author, last.tool, last.turn) == ("agent", "bash", 3)
    with Session.create(turns.store, "other", cwd=root) as other, other.tool("bash"):
        (root / "f").write_text((root / "f").read_text() + "then\n")
        assert turns.blame("f")[-1].author == "uncertain"


def test_matching_moves_nothing() -> None:
    """Lines that both texts have once are matched in the longest order that both have."""
    rng = Random(3)
    for _ in range(300):
        old = [b"%d" % rng.randrange(12) for _ in range(rng.randrange(12))]
        new = [b"%d" % rng.randrange(12) for _ in range(rng.randrange(12))]
        found = match(old, new)
        kept = [place for place in found if place >= 0]
        assert kept == sorted(set(kept))
        assert all(old[place] == line for place, line in zip(found, new, strict=True) if place >= 0)
    lines = [[bytes([character]) for character in text] for text in (b"abcdef", b"xabyef")]
    assert match(*lines) == [-1, 0, 1, -1, 4, 5]
