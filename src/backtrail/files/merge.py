r"""Taking one change out of a text that others edited: a merge of lines without guesses. Pure.

The three texts (what the call found, what it left, what is there now) are cut at lines that
each of them has exactly once, in the same order. Between two cuts a stretch of lines is
taken whole: the call's way back where nobody else touched it, what is there now where the
call did not touch it. Anything else is a question, and the answer is None. A line ends at
`\n` and nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

Lines = Sequence[bytes]

Stretch = tuple[Lines, Lines, Lines]
"""The same part of three texts: what was left, what was found, what is there now."""

_BINARY = b"\0"


def lines_of(text: bytes) -> list[bytes]:
    r"""The lines of a text, each with its `\n`; only the last may have none."""
    lines = text.split(b"\n")
    last = lines.pop()
    found = [line + b"\n" for line in lines]
    return [*found, last] if last else found


def is_binary(*texts: bytes) -> bool:
    """Whether any of some contents is no text."""
    return any(_BINARY in text for text in texts)


def subtract(left: bytes, found: bytes, now: bytes) -> bytes | None:
    """`now` without the change that led from `found` to `left`; None if that is a question.

    The result holds every line that others added, in their order, and none that the change
    added. Edits that an untouched line separates, one that each text has once, never
    hinder each other.
    """
    merged: list[bytes] = []
    removed: Counter[bytes] = Counter()
    written: Counter[bytes] = Counter()
    for was_left, was_found, is_now in _stretches(lines_of(left), lines_of(found), lines_of(now)):
        if is_now == was_left:
            merged += was_found
        elif was_found in (was_left, is_now):
            merged += is_now
        else:
            return None
        before, after = Counter(was_left), Counter(is_now)
        removed += before - after
        written += after - before
    added = Counter(lines_of(left)) - Counter(lines_of(found))
    if any(line in removed and line in written for line in added):
        # A line of the change was moved elsewhere: whose is it now?
        return None
    return b"".join(merged)


def _stretches(left: Lines, found: Lines, now: Lines) -> Iterator[Stretch]:
    """The three texts, cut at their anchors; an anchor is a stretch of its own."""
    at_found, at_now = _matches(left, found), _matches(left, now)
    i = j = k = 0
    for number in sorted(at_found.keys() & at_now.keys()):
        m, n = at_found[number], at_now[number]
        yield left[i:number], found[j:m], now[k:n]
        yield left[number : number + 1], found[m : m + 1], now[n : n + 1]
        i, j, k = number + 1, m + 1, n + 1
    yield left[i:], found[j:], now[k:]


def _matches(a: Lines, b: Lines) -> dict[int, int]:
    """Where lines of `a` are in `b`: those that both have once, and that did not move.

    Which of two lines that changed places moved is a matter of taste; only lines count that
    stay in every longest common order.
    """
    once_a, once_b = _once(a), _once(b)
    pairs = [(at, once_b[line]) for line, at in once_a.items() if line in once_b]
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


def _once(lines: Lines) -> dict[bytes, int]:
    """The lines that a text has exactly once, and where."""
    counts = Counter(lines)
    return {line: at for at, line in enumerate(lines) if counts[line] == 1}


def _longest(numbers: Sequence[int]) -> list[int]:
    """For each number, how long a rising sequence can be that ends with it."""
    ends: list[int] = []
    found: list[int] = []
    for number in numbers:
        rank = bisect_left(ends, number)
        ends[rank : rank + 1] = [number]
        found.append(rank + 1)
    return found
