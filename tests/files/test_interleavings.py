"""Thousands of interleavings of a person and an agent in one file, against a naive model.

In the model every line that ever was keeps its place, its author and the names of all that
deleted it. What should be in the file follows from which of the agent's edits are in effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backtrail import NewEvent, Session
from backtrail.files.changes.effects import closed
from backtrail.files.restore.conflicts import OnConflict, resolve
from backtrail.files.restore.journal import Journal, kept
from backtrail.files.restore.merge import subtract
from backtrail.files.restore.moves import settled
from backtrail.files.restore.plan import Plan, plan_mine
from backtrail.files.trees import Entry, digest_of, encode_tree
from backtrail.session.fileplans import Way, finish_way, redo_way, undo_way
from backtrail.session.filepoints import own_changes, point_at
from backtrail.session.points import read_operations
from backtrail.stores import open_store

PERSON = 0
"""The author of what the agent did not write; the agent's edits have the numbers of events."""


# --- the model ---------------------------------------------------------------------------


@dataclass(eq=False)
class Line:
    """A line that was there at some time."""

    text: str
    author: int = PERSON
    deleted: set[int] = field(default_factory=set)

    def shows(self, effective: frozenset[int]) -> bool:
        """Whether it is there, with some of the agent's edits in effect."""
        if self.author != PERSON and self.author not in effective:
            return False
        return PERSON not in self.deleted and not self.deleted & effective


@dataclass(frozen=True)
class Edit:
    """Some lines go, others come in their place; numbers wrap around the file."""

    at: int
    gone: int
    new: tuple[str, ...]


class Document:
    """All lines there ever were, in order."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.lines = [Line(text) for text in texts]
        self.typed: set[Line] = set()

    def seen(self, effective: frozenset[int]) -> list[Line]:
        """The lines that are there."""
        return [line for line in self.lines if line.shows(effective)]

    def edit(self, edit: Edit, author: int, effective: frozenset[int]) -> None:
        """Carry out an edit of what is there."""
        seen = self.seen(effective)
        at = edit.at % (len(seen) + 1)
        for line in seen[at : at + edit.gone]:
            line.deleted.add(author)
        place = self.lines.index(seen[at]) if at < len(seen) else len(self.lines)
        new = [Line(text, author) for text in edit.new]
        self.lines[place:place] = new
        if author == PERSON:
            self.typed |= set(new)

    def added(self, effective: frozenset[int]) -> list[str]:
        """What a person typed and is there, in order."""
        return [line.text for line in self.seen(effective) if line in self.typed]

    def text(self, effective: frozenset[int]) -> bytes:
        """The file as it should be."""
        return _joined(line.text for line in self.seen(effective))


def _joined(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _is_within(few: Sequence[str], many: Iterable[str]) -> bool:
    """Whether some lines are among others, in their order."""
    rest = iter(many)
    return all(line in rest for line in few)


# --- taking one change out ---------------------------------------------------------------

words = st.sampled_from(["a", "b", "}", "", "x y"])
own_words = st.sampled_from(["agent 1", "agent 2", "agent }"])


def edits(new: st.SearchStrategy[str]) -> st.SearchStrategy[Edit]:
    """Edits in small files."""
    some = st.lists(new, max_size=3).map(tuple)
    return st.builds(Edit, st.integers(0, 12), st.integers(0, 3), some)


Merge = Callable[[bytes, bytes, bytes], bytes | None]


def check_one(
    texts: list[str], agent: list[Edit], person: list[Edit], merge: Merge = subtract
) -> None:
    """Either all that a person wrote and nothing of the agent's, or no answer."""
    document = Document(texts)
    for edit in agent:
        document.edit(edit, 1, frozenset({1}))
    left, found = document.text(frozenset({1})), document.text(frozenset())
    for edit in person:
        document.edit(edit, PERSON, frozenset({1}))
    less = merge(left, found, document.text(frozenset({1})))
    if less is None:
        return
    result = less.decode().split("\n")[:-1]
    wanted = document.seen(frozenset())
    assert _is_within(document.added(frozenset()), result)
    theirs = (line.text for line in document.seen(frozenset({1})) if line.author == PERSON)
    assert Counter(theirs) <= Counter(result) <= Counter(line.text for line in wanted)
    assert not any(line.startswith("agent") for line in result)


ONE = settings(
    max_examples=300, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
texts_of = st.lists(words, max_size=8)


@ONE
@given(texts_of, st.lists(edits(own_words), max_size=3), st.lists(edits(words), max_size=3))
def test_one_change_is_taken_out_whole_or_not(
    texts: list[str], agent: list[Edit], person: list[Edit]
) -> None:
    """Also among lines that are all the same."""
    check_one(texts, agent, person)


@dataclass(frozen=True)
class Block:
    """A part of a file between two lines that is not touched, and who edits it how."""

    texts: list[str]
    by_agent: bool
    edits: list[Edit]


anything = st.one_of(words, own_words)
blocks = st.builds(Block, texts_of, st.booleans(), st.lists(edits(anything), max_size=3))


def check_blocks(parts: list[Block]) -> None:
    """Edits that an untouched unique line separates always merge, line for line."""
    left, found, now, wanted = [], [], [], []
    for number, block in enumerate(parts):
        document = Document(block.texts)
        before = document.text(frozenset({1}))
        for edit in block.edits:
            document.edit(edit, 1, frozenset({1}))
        after = document.text(frozenset({1}))
        ours, theirs = (after, before) if block.by_agent else (before, before)
        line = _joined([f"unique {number}"])
        left += [ours, line]
        found += [theirs, line]
        now += [after, line]
        wanted += [before if block.by_agent else after, line]
    assert subtract(b"".join(left), b"".join(found), b"".join(now)) == b"".join(wanted)


@ONE
@given(st.lists(blocks, min_size=1, max_size=5))
def test_edits_that_an_untouched_unique_line_separates_merge(parts: list[Block]) -> None:
    """Whatever is in them, also lines that are elsewhere in the file, or were."""
    check_blocks(parts)


FIRST = ("a", "b", "c")
"""What the lines are that a file begins with, where they may be equal."""


# --- histories ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Something that happens."""

    verb: str
    edit: Edit = Edit(0, 0, ())
    point: int = 0
    choice: OnConflict = "merge"


class History:
    """A session that works on one file, without a disk; and what should become of the file."""

    def __init__(self, texts: list[str], *, unique: bool) -> None:
        self.store = open_store("memory:")
        Session.create(self.store, "s").close()
        self.blobs: dict[bytes, bytes] = {}
        self.unique = unique
        self.count = 0
        self.document = Document(self.named(texts))
        self.effective: frozenset[int] = frozenset()
        self.content = self.document.text(self.effective)
        # What is in effect at each event that one may go back to.
        self.points: dict[int, frozenset[int]] = {}
        # What each rewind, undo and redo took out of effect, and put back.
        self.moves: dict[int, tuple[frozenset[int], frozenset[int]]] = {}
        self.turn: int | None = None
        self.is_ambiguous = False

    def named(self, texts: Iterable[str], *, unique: bool = False) -> tuple[str, ...]:
        """Texts; all different, if they are to be."""
        found = []
        for text in texts:
            self.count += 1
            found.append(f"{text} {self.count}" if self.unique or unique else text)
        return tuple(found)

    def tree(self) -> bytes:
        """The state of the files, stored."""
        entry = Entry("file", 0o644, len(self.content), self.put(self.content))
        return self.put(encode_tree({b"f": entry}))

    def put(self, content: bytes) -> bytes:
        """Store a content."""
        self.blobs[digest_of(content)] = content
        return digest_of(content)

    def append(self, *events: NewEvent) -> int:
        """The number of the first."""
        return self.store.append("s", list(events))[0].seq

    def take(self, step: Step) -> None:
        """Let it happen, and compare."""
        if step.verb == "person":
            # Bytes that a person types again in the same place cannot be told from the old ones.
            new = self.named(step.edit.new, unique=True)
            edit = Edit(step.edit.at, step.edit.gone, new)
            self.document.edit(edit, PERSON, self.effective)
            self.content = self.document.text(self.effective)
        elif step.verb == "prompt":
            self.turn = self.append(NewEvent("user_message", {"message": {}}))
            self.points[self.turn] = self.effective
        elif step.verb == "agent":
            self.act(step)
        elif step.verb == "rewind" and self.points:
            self.rewind(step)
        elif step.verb in ("undo", "redo"):
            self.walk(step)

    def act(self, step: Step) -> None:
        """The agent edits, in its turn; its own texts can be told from a person's."""
        if self.turn is None:
            self.take(Step("prompt"))
        before = self.tree()
        author = next(self.store.read("s", reverse=True)).seq + 1
        new = self.named(f"agent {text}" for text in step.edit.new)
        self.effective |= {author}
        self.document.edit(Edit(step.edit.at, step.edit.gone, new), author, self.effective)
        self.content = self.document.text(self.effective)
        files = {"before": before.hex(), "after": self.tree().hex()}
        assert self.append(NewEvent("action", {"name": "edit", "files": files})) == author

    def rewind(self, step: Step) -> None:
        """To before a prompt."""
        target = sorted(self.points)[step.point % len(self.points)]
        way = Way(0, point_at(self.store, "s", target, before=True), {})
        self.go("rewound", way, step.choice, self.points[target])

    def walk(self, step: Step) -> None:
        """Undo or redo: the edits of the operation, or what it took back."""
        known = read_operations(self.store, "s")
        finishes = step.verb == "undo" and step.choice != "keep" and known.unfinished is not None
        if not (known.undone if step.verb == "redo" or finishes else known.done):
            return
        find = finish_way if finishes else undo_way if step.verb == "undo" else redo_way
        way = find(self.store, "s")
        self.go("undone" if step.verb == "undo" else "redone", way, step.choice, None)

    def go(self, kind: str, way: Way, choice: OnConflict, wanted: frozenset[int] | None) -> None:
        """Plan as a session does, act, and compare with the model."""
        plan, head = self.plan(way, choice)
        now = self.tree()
        wanted = wanted if wanted is not None else self.after(way)
        self.compare(plan, wanted)
        reported = NewEvent(kind, dict(way.data))
        if plan.acts:
            plan = Plan(plan.now, plan.steps, took=closed(way.chosen, head))
            journal = Journal("j", plan, now, "", "", "s", [reported])
            self.append(*journal.outcome(self.tree()))
        elif kind != "rewound" and "finishes" not in way.data:
            self.append(kept(reported, plan))
        if not plan.conflicts:
            # A rewind that finds the file as it is to be says nothing, and took nothing back.
            if plan.acts or kind != "rewound":
                self.effective = wanted
            if kind == "rewound":
                again, _ = self.plan(way, choice)
                assert not (again.acts or again.conflicts), "twice is the same as once"
        self.turn = None

    def plan(self, way: Way, choice: OnConflict) -> tuple[Plan, int]:
        """A plan as a session makes it, and the head it is made for."""
        head = next(self.store.read("s", reverse=True)).seq
        changes = own_changes(self.store, "s", way.chosen[0].first, head)
        get, whole = self.blobs.__getitem__, way.spans is None
        found = plan_mine(get, self.tree(), changes, way.chosen, whole=whole)
        plan = resolve(get, self.put, found.plan, choice, "x", found.taken)
        return settled(get, plan, found.moves), head

    def after(self, way: Way) -> frozenset[int]:
        """What is in effect without the events of a way: its edits go, its rewinds come back."""
        effective = self.effective
        for event in self.store.read("s", reverse=True):
            if any(one.has(event.seq) for one in way.chosen):
                gone, come = self.moves.get(event.seq, (frozenset(), frozenset()))
                effective = (effective - {event.seq} - come) | gone
        return effective

    def compare(self, plan: Plan, wanted: frozenset[int]) -> None:
        """All of the person's lines and none that were taken back, or a named conflict."""
        before = self.content
        for step in plan.steps:
            if step.acts:
                assert step.after is not None
                self.content = self.blobs[step.after.value]
            if step.action == "conflict":
                assert step.reason
        if plan.conflicts:
            assert self.content == before
            return
        if plan.acts:
            # The event that is recorded next.
            number = next(self.store.read("s", reverse=True)).seq + 1
            self.moves[number] = (self.effective - wanted, wanted - self.effective)
        expected = [line.text for line in self.document.seen(wanted)]
        result = self.content.decode().split("\n")[:-1]
        if self.unique:
            assert result == expected
            return
        theirs = Counter(x.text for x in self.document.seen(wanted) if x.author == PERSON)
        assert theirs <= Counter(result), "of equal lines, too, a person has as many as before"
        assert _is_within(self.document.added(wanted), result)
        more = Counter(result) - Counter(expected)
        if not plan.acts and all(line in FIRST for line in more):
            # A person removed one of the equal lines, and so the file is as it is to be: nothing
            # says which of them it was.
            self.is_ambiguous = bool(more)
            return
        assert not more


def steps() -> st.SearchStrategy[list[Step]]:
    """What a person and an agent do, and how they go to and fro."""
    edit = edits(st.sampled_from(["a", "b", "}"]))
    choice: st.SearchStrategy[OnConflict] = st.sampled_from(["merge", "merge", "merge", "keep"])
    one = st.one_of(
        st.builds(Step, st.just("person"), edit),
        st.builds(Step, st.just("agent"), edit),
        st.builds(Step, st.just("prompt")),
        st.builds(Step, st.just("agent"), edit),
        st.builds(Step, st.just("rewind"), point=st.integers(0, 9), choice=choice),
        st.builds(Step, st.just("undo"), choice=choice),
        st.builds(Step, st.just("redo"), choice=choice),
    )
    return st.lists(one, min_size=3, max_size=16)


def play(texts: list[str], history: list[Step], *, unique: bool) -> None:
    """Let all of it happen."""
    world = History(texts, unique=unique)
    for step in history:
        world.take(step)
        if world.is_ambiguous:
            return


SOME = settings(ONE, max_examples=150)
files_of = st.lists(st.sampled_from(FIRST), min_size=3, max_size=10)


@SOME
@given(files_of, steps())
def test_any_interleaving_keeps_what_a_person_wrote(texts: list[str], history: list[Step]) -> None:
    """Through turns, rewinds, undo and redo; all lines are different."""
    play(texts, history, unique=True)


@SOME
@given(files_of, steps())
def test_any_interleaving_among_equal_lines(texts: list[str], history: list[Step]) -> None:
    """Where lines are alike, what a person typed is still there."""
    play(texts, history, unique=False)


@pytest.mark.parametrize("unique", [True, False])
def test_what_a_person_deleted_after_a_rewind_stays_deleted(unique: bool) -> None:
    """A change and the rewind that took it back cancel, though that rewind began earlier."""
    gone = [Step("person", Edit(0, 1, ())), Step("person", Edit(0, 2, ()))]
    before = [Step("prompt"), Step("prompt"), Step("agent", Edit(0, 3, ())), Step("rewind")]
    play(["a", "a", "a"], [*before, *gone, Step("rewind", point=1)], unique=unique)


@pytest.mark.parametrize("unique", [True, False])
def test_a_turn_goes_after_its_rewind_was_undone_beside_a_persons_line(unique: bool) -> None:
    """An undo that merges puts the agent's change in effect again; the next undo takes it back."""
    line = Edit(1, 0, ("a",))
    history = [Step("agent", Edit(0, 0, ("a",))), Step("rewind"), Step("person", line)]
    play(["a", "a", "a"], [*history, Step("undo"), Step("undo")], unique=unique)


def dropping(left: bytes, found: bytes, now: bytes) -> bytes | None:
    """A merge that is wrong: of the lines of now that are alike, it keeps one less."""
    less = subtract(left, found, now)
    lines = [] if less is None else less.splitlines(keepends=True)
    for line in now.splitlines(keepends=True):
        if lines.count(line) > 1:
            lines.remove(line)
            return b"".join(lines)
    return less


def test_a_merge_that_drops_one_of_a_persons_equal_lines_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lines that a file begins with are a person's as well, and each of them counts."""
    person = Step("person", Edit(4, 0, ("b",)))
    history = [Step("agent", Edit(0, 0, ("a",))), person, Step("rewind")]
    play(["a", "a", "c"], history, unique=False)
    one = ["x y", "a", "}", "}"], [Edit(0, 1, ("agent 1",))], [Edit(4, 0, ("b",))]
    check_one(*one)
    monkeypatch.setattr("backtrail.files.restore.conflicts.subtract", dropping)
    with pytest.raises(AssertionError, match="as many as before"):
        play(["a", "a", "c"], history, unique=False)
    with pytest.raises(AssertionError):
        check_one(*one, dropping)


# --- thousands ---------------------------------------------------------------------------

MANY = settings(ONE, max_examples=5_000)


@pytest.mark.torture
@MANY
@given(texts_of, st.lists(edits(own_words), max_size=4), st.lists(edits(words), max_size=4))
def test_many_single_changes(texts: list[str], agent: list[Edit], person: list[Edit]) -> None:
    """The same, thousands of times."""
    check_one(texts, agent, person)


@pytest.mark.torture
@MANY
@given(st.lists(blocks, min_size=1, max_size=8))
def test_many_separated_edits(parts: list[Block]) -> None:
    """The same, thousands of times."""
    check_blocks(parts)


@pytest.mark.torture
@pytest.mark.parametrize("unique", [True, False])
def test_many_interleavings(unique: bool) -> None:
    """The same, thousands of times."""

    @MANY
    @given(files_of, steps())
    def run(texts: list[str], history: list[Step]) -> None:
        play(texts, history, unique=unique)

    run()
