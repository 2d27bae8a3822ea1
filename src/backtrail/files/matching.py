"""Matching the lines of two texts: which line of the new one was in the old one. Pure.

Equal lines are matched where both texts have them once, in the longest order that both have;
between two of these the same again, and what has no such line, as the longest sequences that are
the same. So nothing is guessed where each line is in the file once and stays in its order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

Lines = Sequence[bytes]

_LONG = 1_000_000
"""The product of two lengths above which what has no line of its own counts as written anew."""


def lines_of(text: bytes) -> list[bytes]:
    r"""The lines of a text, each with its `\n`; only the last may have none."""
    lines = text.split(b"\n")
    last = lines.pop()
    found = [line + b"\n" for line in lines]
    return [*found, last] if last else found


def match(old: Lines, new: Lines) -> list[int]:
    """For each line of `new`, the place in `old` where it comes from, or -1."""
    found = [-1] * len(new)
    spans = [(0, len(old), 0, len(new))]
    while spans:
        i, j, m, n = spans.pop()
        head = _alike(old, new, i, j, m, n)
        found[m : m + head] = range(i, i + head)
        i, m = i + head, m + head
        tail = _alike_at_end(old, new, i, j, m, n)
        found[n - tail : n] = range(j - tail, j)
        j, n = j - tail, n - tail
        if i == j or m == n:
            continue
        pairs = _anchors(old[i:j], new[m:n])
        for a, b in pairs:
            found[m + b] = i + a
        if pairs:
            ends = [(-1, -1), *pairs, (j - i, n - m)]
            spans += [
                (i + a + 1, i + c, m + b + 1, m + d)
                for (a, b), (c, d) in pairwise(ends)
                if c > a + 1 and d > b + 1
            ]
        elif (j - i) * (n - m) <= _LONG:
            for a, b, size in _blocks(old[i:j], new[m:n]):
                found[m + b : m + b + size] = range(i + a, i + a + size)
    return found


def _alike(old: Lines, new: Lines, i: int, j: int, m: int, n: int) -> int:
    """How many lines two spans begin with alike; whole slices compare quickly."""
    low, high = 0, min(j - i, n - m)
    while low < high:
        middle = (low + high + 1) // 2
        if old[i + low : i + middle] == new[m + low : m + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _alike_at_end(old: Lines, new: Lines, i: int, j: int, m: int, n: int) -> int:
    low, high = 0, min(j - i, n - m)
    while low < high:
        middle = (low + high + 1) // 2
        if old[j - middle : j - low] == new[n - middle : n - low]:
            low = middle
        else:
            high = middle - 1
    return low


def _anchors(old: Lines, new: Lines) -> list[tuple[int, int]]:
    """Lines that both texts have once, as many as keep their order."""
    pairs = in_both(old, new)
    if all(one < other for (_, one), (_, other) in pairwise(pairs)):
        return pairs
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for at, (_, place) in enumerate(pairs):
        rank = bisect_left(ends, place)
        before.append(last[rank - 1] if rank else -1)
        ends[rank : rank + 1] = [place]
        last[rank : rank + 1] = [at]
    chain: list[tuple[int, int]] = []
    at = last[-1] if last else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def once_in(lines: Lines) -> dict[bytes, int]:
    """The lines that a text has exactly once, and where."""
    counts = Counter(lines)
    return {line: at for at, line in enumerate(lines) if counts[line] == 1}


def in_both(a: Lines, b: Lines) -> list[tuple[int, int]]:
    """The lines that both texts have exactly once: where they are in each, in the first's order."""
    there = once_in(b)
    return [(at, there[line]) for line, at in once_in(a).items() if line in there]


def _blocks(old: Lines, new: Lines) -> Iterator[tuple[int, int, int]]:
    from difflib import SequenceMatcher

    yield from SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
