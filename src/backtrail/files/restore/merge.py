r"""Taking one change out of a text that others edited: a merge of lines without guesses. Pure.

What the call left and what it had found are cut at lines that both have exactly once, in
the same order, and that are once in the text of now, too. Where a stretch between two cuts
differs, and lies between the same two lines now just as the call left it, it becomes what
the call found. Anything else is a question, and the answer is None. All other lines are not
even looked at. A line ends at `\n` and nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from ..patches import Lines, in_both, lines_of, once_in

Stretch = tuple[bytes | None, bytes | None, Lines, Lines]
"""Part of a text: the lines above and below it (None: there are none), what was left there, and
what was found."""

_BINARY = b"\0"


def is_binary(*texts: bytes) -> bool:
    """Whether any of some contents is no text."""
    return any(_BINARY in text for text in texts)


def subtract(left: bytes, found: bytes, now: bytes) -> bytes | None:
    """`now` without the change that led from `found` to `left`; None if that is a question.

    The result holds every line that others added, in their order, and none that the change
    added. Edits that an untouched line separates, one that each text has once, never
    hinder each other.
    """
    lines = lines_of(now)
    once = once_in(lines)
    spliced: list[tuple[int, int, Lines]] = []
    reverted: Counter[bytes] = Counter()
    for above, below, was_left, was_found in _stretches(lines_of(left), lines_of(found), once):
        first = 0 if above is None else once[above] + 1
        last = len(lines) if below is None else once[below]
        there = lines[first:last]
        if first <= last and there == was_left:
            spliced.append((first, last, was_found))
        elif first <= last and there == was_found:
            reverted += Counter(was_left) - Counter(was_found)
        else:
            return None
    more = Counter(lines) + reverted - Counter(lines_of(left))
    if any(line in more for line in reverted):
        # A line of the change was taken from its place and is elsewhere: whose is it now?
        return None
    for first, last, was_found in sorted(spliced, key=lambda splice: splice[:2], reverse=True):
        lines[first:last] = was_found
    return b"".join(lines)


def _stretches(left: Lines, found: Lines, once: Collection[bytes]) -> Iterator[Stretch]:
    """Where two texts differ, between lines of both that are `once` in a third."""
    i = j = 0
    above: bytes | None = None
    anchors = [(at, place) for at, place in _matches(left, found).items() if left[at] in once]
    for at, place in [*anchors, (len(left), len(found))]:
        below = left[at] if at < len(left) else None
        if left[i:at] != found[j:place]:
            yield above, below, left[i:at], found[j:place]
        i, j, above = at + 1, place + 1, below


def _matches(a: Lines, b: Lines) -> dict[int, int]:
    """Where lines of `a` are in `b`: those that both have once, and that did not move.

    Which of two lines that changed places moved is a matter of taste; only lines count that
    stay in every longest common order.
    """
    pairs = in_both(a, b)
    places = [place for _, place in pairs]
    ending = _longest(places)
    starting = _longest([-place for place in reversed(places)])[::-1]
    longest = max(ending, default=0)
    needed = [e + s - 1 == longest for e, s in zip(ending, starting, strict=True)]
    ranks = Counter(rank for rank, is_needed in zip(ending, needed, strict=True) if is_needed)
    return {
        at: place
        for (at, place), rank, is_needed in zip(pairs, ending, needed, strict=True)
        if is_needed and ranks[rank] == 1
    }


def _longest(numbers: Sequence[int]) -> list[int]:
    """For each number, how long a rising sequence can be that ends with it."""
    ends: list[int] = []
    found: list[int] = []
    for number in numbers:
        rank = bisect_left(ends, number)
        ends[rank : rank + 1] = [number]
        found.append(rank + 1)
    return found
