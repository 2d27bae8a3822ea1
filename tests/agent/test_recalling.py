"""A turn that recalls the conversation sees what a session shows, whatever happens to the log."""

from __future__ import annotations

import random

from backtrail import Session
from backtrail.recalling import Recall
from tests.talking import calling


def test_what_is_recalled_is_what_is_shown(url: str) -> None:
    """Appends by this session and another, rewinds, undos, pinned prompts, open calls."""
    chance = random.Random(7)
    with Session.open(url, "s") as s, Session.resume(s.store, "s") as other:
        recall = Recall(s)
        for step in range(200):
            match chance.randrange(9):
                case 0:
                    s.append({"role": "user", "content": f"ask {step}"})
                case 1 | 2:
                    s.append({"role": "assistant", "content": f"say {step}"})
                case 3:
                    s.append(calling(f"c{step}"))
                case 4:
                    other.append({"role": "tool", "tool_call_id": f"c{step - 1}", "content": "x"})
                case 5:
                    other.checkpoint(f"point {step}")
                case 6 if events := list(s.events(kinds=("user_message",))):
                    other.rewind(chance.choice(events))
                case 7 if any(s.events(kinds=("rewound",))):
                    s.undo()
                case _:
                    s.record("note", {"step": step})
            assert recall.messages("openai") == s.messages("openai")
            assert recall.messages("anthropic") == s.messages("anthropic")


def test_only_what_is_new_is_read(url: str) -> None:
    """However long the conversation is."""
    with Session.open(url, "s") as s:
        s.extend([{"role": "user", "content": f"{n}"} for n in range(50)])
        recall = Recall(s)
        first = recall.messages("openai")
        s.append({"role": "assistant", "content": "more"})
        second = recall.messages("openai")
    assert second == [*first, {"role": "assistant", "content": "more"}]
    assert all(a is b for a, b in zip(first, second, strict=False))
