"""A session's prompts, as people look for them: when, what they did to the files, what was said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import Unsupported
from .plans import signed
from .wording import ago, brief, plural

if TYPE_CHECKING:
    from ..events import Event
    from ..session import Session

BY_OTHERS = frozenset({"others", "rewound", "undone", "redone"})
"""Who changes files but is no call of a turn."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One thing a person said, and what the turn did to the files."""

    event: Event
    text: str
    files: int = 0
    insertions: int = 0
    deletions: int = 0

    @property
    def changes(self) -> str:
        """What the turn did to the files, in a few words."""
        if not self.files:
            return ""
        lines = signed(self.insertions, self.deletions)
        return f"{plural(self.files, 'file')} {lines}".rstrip()


def prompts(session: Session) -> list[Prompt]:
    """The prompts of the history, oldest first."""
    from ..messages import text_of

    live = [event for event in session.history() if event.kind == "user_message"]
    try:
        turns = {turn.seq: turn for turn in session.changes()} if live else {}
    except Unsupported:
        turns = {}
    found = []
    for event in live:
        calls = turns[event.seq].calls if event.seq in turns else []
        files = [file for call in calls if call.by not in BY_OTHERS for file in call.files]
        found.append(
            Prompt(
                event,
                text_of(event.data.get("message")),
                len({file.path for file in files}),
                sum(file.insertions for file in files),
                sum(file.deletions for file in files),
            )
        )
    return found


def rows(found: list[Prompt]) -> list[str]:
    """Prompts as lines of a list, in columns."""
    whens = [ago(prompt.event.ts) for prompt in found]
    broad = max(map(len, whens), default=0)
    wide = max((len(prompt.changes) for prompt in found), default=0)
    return [
        f"{when:>{broad}}  {prompt.changes:<{wide}}  {brief(prompt.text, 300)}"
        for when, prompt in zip(whens, found, strict=True)
    ]


def quoted(event: Event) -> str:
    """What was said, in quotes, short enough for a sentence."""
    from ..messages import text_of

    return f'"{brief(text_of(event.data.get("message")), 60)}"'
