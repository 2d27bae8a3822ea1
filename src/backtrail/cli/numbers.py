"""Numbers of prompts, as people see them: the same in every verb."""

from __future__ import annotations

from ..session.points import prompts, read_turns
from ..stores.base import Store


class Numbers:
    """The prompts of a session by number, and the prompt that each event belongs to."""

    def __init__(self, store: Store, session_id: str) -> None:
        self._store, self._id = store, session_id
        self._prompts = prompts(store, session_id)
        self._turns = read_turns(store, session_id)

    def of(self, seq: int) -> int | None:
        """The number of the prompt whose turn an event is in; None if it was left behind."""
        turn = self._turns.of(seq)
        return self._prompts.index(turn) + 1 if turn in self._prompts else None

    def had(self, seq: int) -> int | None:
        """The number that the prompt of an event has, or had before it was left behind."""
        turn = self._turns.of(seq)
        return self.of(seq) or (len(prompts(self._store, self._id, turn)) if turn else None)

    def place(self, seq: int) -> str:
        """Where an event is: in the turn of a prompt, before the first, or by its own number."""
        number = self.of(seq)
        if number is not None:
            return f"prompt {number}"
        return "the beginning" if not self._turns.of(seq) else f"event {seq}"
