"""How a JSONL log is read for views: backwards, a page at a time.

A page without damage is checked and decoded as a whole. Any other is read line by line, as
`read_backward` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..messages import Page, page_of
from .jsonl_reading import Back, Passed
from .lines import Backward, Line, OnLineDamage, Spoken, decode_line, lines_in, sound_page

_CACHED = 256 * 1024
"""Bytes of a page that stays in the processor's cache while it is looked at again."""


def pages_backward(
    path: str | Path, until: int | None, damage: OnLineDamage | None
) -> Iterator[Page]:
    """The log up to `until`: newest page first, each in order."""
    sorter = Backward(damage)
    passed = Passed()
    back = Back(path, until, _CACHED, front=1)
    for start, data, skip, high in back:
        page = _whole(sound_page(data, skip), high, back.top, sorter, passed)
        if page is None:
            lines = list(lines_in(data[skip:], start + skip, decode_line, damage))
            page = _by_line(sorter.take(lines, high), back.top, passed)
        if page.seqs:
            back.bound = page.seqs[0] - 1
            yield page


def _whole(
    lines: list[Spoken] | None, high: int, top: int | None, sorter: Backward, passed: Passed
) -> Page | None:
    """The page, if every line of it counts and is the next after those passed."""
    if not lines:
        return None
    seqs = [line.seq for line in lines]
    first = seqs[0]
    if first <= high or seqs != list(range(first, first + len(seqs))):
        return None
    if not sorter.take_all(seqs, [line.batch for line in lines]):
        return None
    if top is not None and seqs[-1] > top:
        lines = lines[: max(0, top + 1 - first)]
        seqs = seqs[: len(lines)]
    if seqs and not passed.take_run(first, seqs[-1]):
        return None
    return Page(
        seqs,
        [line.event for line in lines],
        [line.follows for line in lines],
        [line.data for line in lines],
    )


def _by_line(newest_first: list[Line], top: int | None, passed: Passed) -> Page:
    events = [
        line.event
        for line in newest_first
        if line.event is not None and (top is None or line.seq <= top) and passed.take(line.seq)
    ]
    events.reverse()
    return page_of(events)
