"""What a search text means, the same on every store, and how a hit is shown.

The text is split at white space; a part in double quotes stays together. Each part is cut
into words of letters, digits and '_', compared without case, and its words must occur in
a row. A part that ends in `*` matches words that begin so. All parts must occur.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import InvalidData
from ..events import MESSAGE_KINDS, Hit
from ..events.messages import text_of

if TYPE_CHECKING:
    from .base import Store

_PART = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"\w+")
_WIDTH = 60


def words_of(text: str) -> list[str]:
    """The words of a text, folded for comparison."""
    return _WORD.findall(text.casefold())


class Query:
    """A parsed search text."""

    def __init__(self, text: str) -> None:
        parts = [quoted or bare for quoted, bare in _PART.findall(text)]
        found = [(words_of(part), part.endswith("*")) for part in parts]
        self.phrases = [words for words, _ in found if words]
        self.begins = [begins for words, begins in found if words]
        if not self.phrases:
            raise InvalidData(f"nothing to search for in {text!r}: give at least one word")

    def matches(self, text: str) -> bool:
        """Whether every phrase occurs in `text`."""
        line = f" {' '.join(words_of(text))} "
        return all(
            f" {' '.join(phrase)}{'' if begins else ' '}" in line
            for phrase, begins in zip(self.phrases, self.begins, strict=True)
        )

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Any of the phrases in a folded text."""
        found = (
            r"\W+".join(map(re.escape, phrase)) + (r"\w*" if begins else "")
            for phrase, begins in zip(self.phrases, self.begins, strict=True)
        )
        return re.compile(rf"(?<!\w)(?:{'|'.join(found)})(?!\w)")

    def snippet(self, text: str) -> str:
        """The surroundings of the first phrase that occurs in `text`, on one line."""
        found = self.pattern.search(text.casefold())
        # Folding may change lengths ("ß" becomes "ss"); then positions are only near.
        start, end = found.span() if found else (0, 0)
        first, last = max(0, start - _WIDTH), min(len(text), end + _WIDTH)
        shown = " ".join(text[first:last].split())
        return ("…" if first else "") + shown + ("…" if last < len(text) else "")


def in_side_logs(
    store: Store, session_id: str, query: Query, prefix: str
) -> Iterator[tuple[str, Hit]]:
    """The messages in a session's other logs that match, newest first; each with its log.

    `Store.search` looks at what was said to a person.
    """
    for log in store.logs(session_id):
        if not log.startswith(prefix):
            continue
        for event in store.read(session_id, log=log, reverse=True, kinds=("message",)):
            words = text_of(event.data.get("message"))
            if query.matches(words):
                yield log.removeprefix(prefix), Hit(session_id, event, query.snippet(words))


def search(store: Store, text: str, limit: int) -> list[Hit]:
    """`Store.search` by reading every session."""
    query = Query(text)
    hits: list[Hit] = []
    if limit < 1:
        return hits
    # Not by `parent_id`: that session may be gone, and its id used again.
    seen: set[tuple[int, str, str]] = set()
    for info in store.sessions():
        for event in store.read(info.id, reverse=True, kinds=MESSAGE_KINDS):
            words = text_of(event.data.get("message"))
            name = (event.seq, event.id, event.ts)
            if name not in seen and query.matches(words):
                seen.add(name)
                hits.append(Hit(info.id, event, query.snippet(words)))
                if len(hits) >= limit:
                    return hits
    return hits
