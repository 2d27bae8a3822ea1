"""A session against a plain model of undo: a list of states with a cursor."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backtrail import Event, Session
from backtrail.events.history import BOOKKEEPING
from backtrail.events.operations import operations
from backtrail.session.points import read_operations
from backtrail.stores import open_store

from .talking import assistant

PROMPT = {"role": "system", "content": "P"}


class Undoing(RuleBasedStateMachine):
    """Every state is a conversation. An operation adds one behind the cursor."""

    @initialize()
    def begin(self) -> None:
        """An empty session with a pinned prompt."""
        self.store = open_store("memory:")
        self.session = Session.create(self.store, "s", system_prompt="P")
        self.states: list[list[str]] = [[]]
        self.cursor = 0
        self.count = 0
        self.shown: dict[int, list[str]] = {}
        self.parent: dict[int, int] = {}
        self.kind: dict[int, str] = {}
        self.note()

    @property
    def now(self) -> list[str]:
        """The conversation as it should be."""
        return self.states[self.cursor]

    def note(self) -> None:
        """Remember what the conversation is at every event that is new."""
        events: list[Event] = list(self.session.events(after=max(self.kind, default=0)))
        for event in events:
            self.kind[event.seq] = event.kind
            self.parent[event.seq] = event.seq - 1 if event.follows is None else event.follows
            # A resume comes in front of what resumes.
            before = self.shown[event.seq - 1] if event.kind == "session_resume" else self.now
            self.shown[event.seq] = list(before)

    def said(self) -> str:
        """A text that was not said before."""
        self.count += 1
        return str(self.count)

    def operate(self, state: list[str]) -> None:
        """An operation: what could be redone is gone, and there is one more state."""
        del self.states[self.cursor + 1 :]
        self.states.append(state)
        self.cursor += 1

    @rule()
    def turn(self) -> None:
        """The user asks."""
        text = self.said()
        self.operate([*self.now, text])
        with self.session.turn(text):
            self.note()
        self.note()

    @rule()
    def answer(self) -> None:
        """The model answers: the present state grows, and there is nothing to redo."""
        text = self.said()
        del self.states[self.cursor + 1 :]
        self.states[self.cursor] = [*self.now, text]
        self.session.append(assistant(text))
        self.note()

    @rule()
    def record(self) -> None:
        """A note of the caller's is not in the conversation."""
        self.session.record("my.note")
        self.note()

    @rule(label=st.sampled_from(["a", "b"]))
    def checkpoint(self, label: str) -> None:
        """A checkpoint changes nothing."""
        self.session.checkpoint(label)
        self.note()

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        """To any event that ever was, abandoned ones too."""
        target = data.draw(st.sampled_from(sorted(self.kind)))
        anchor = target
        if self.kind[target] == "checkpoint":
            anchor = self.session.events(after=target - 1).__next__().data["at"]
        preview = self.session.rewind(target, dry_run=True)
        done = self.session.rewind(target)
        assert preview.events_dropped == done.events_dropped
        if self.moves(anchor):
            self.operate(self.shown[anchor])
        self.note()
        assert self.session.rewind(target).events_dropped == 0

    def moves(self, anchor: int) -> bool:
        """Whether going there leaves anything but notes, or the live path itself."""
        at, path = max(self.kind), []
        while at:
            path.append(at)
            at = self.parent[at]
        if anchor not in path:
            return True
        notes = {*BOOKKEEPING, "system_message"}
        return any(seq > anchor and self.kind[seq] not in notes for seq in path)

    @precondition(lambda self: self.cursor > 0)
    @rule()
    def undo(self) -> None:
        """One back."""
        self.cursor -= 1
        self.session.undo()
        self.note()

    @precondition(lambda self: self.cursor + 1 < len(self.states))
    @rule()
    def redo(self) -> None:
        """One forth."""
        self.cursor += 1
        self.session.redo()
        self.note()

    @rule()
    def reopen(self) -> None:
        """All there is, is in the log."""
        self.session.close()
        self.session = Session.open(self.store, "s", system_prompt="P")

    @invariant()
    def same(self) -> None:
        """The conversation is the state at the cursor, behind the pinned prompt."""
        messages = self.session.messages()
        assert messages[0] == PROMPT
        assert [message["content"] for message in messages[1:]] == self.now
        assert self.session.info().message_count == len(messages)

    @invariant()
    def limits(self) -> None:
        """What can be undone and redone is what the list says."""
        known = read_operations(self.store, "s")
        assert bool(known.done) == bool(self.cursor)
        assert len(known.undone) == len(self.states) - self.cursor - 1
        every = operations(self.store.read("s"))
        assert len(every.done) == self.cursor
        assert every.done[-1:] == known.done[-1:]


TestUndoing = Undoing.TestCase
TestUndoing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
