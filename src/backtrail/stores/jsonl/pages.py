"""How a JSONL log is read for views: backwards, a page at a time.

A page whose lines bear one number after the other is checked and decoded as a whole. At the
first that is not as plain as that, the rest is read line by line, as `read_backward` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...events import Event
from ...events.messages import Page, page_of
from .lines import Backward, OnLineDamage, Spoken, sound_page
from .reading import Back, counted_backward

_CACHED = 256 * 1024
"""Bytes of a page that stays in the processor's cache while it is looked at again."""

_LINES = 512


def pages_backward(
    path: str | Path, until: int | None, damage: OnLineDamage | None
) -> Iterator[Page]:
    """The log up to `until`: newest page first, each in order."""
    sorter = Backward()
    back = Back(path, until, _CACHED)
    for _, data, skip, high in back:
        if back.replaced:
            sorter = Backward()
        page = None if back.lost else _whole(sound_page(data, skip), high, back.top, sorter)
        if page is None:
            break
        if page.seqs:
            back.bound = page.seqs[0] - 1
            yield page
    else:
        if not back.lost:
            return
    yield from _by_line(path, back.bound, damage)


def _whole(lines: list[Spoken] | None, high: int, top: int | None, sorter: Backward) -> Page | None:
    """The page, if every line of it counts and leads up to the page behind it."""
    if not lines:
        return None
    seqs = [line.seq for line in lines]
    first = seqs[0]
    if first != high + 1 or seqs != list(range(first, first + len(seqs))):
        return None
    if not sorter.take_all(seqs, [line.batch for line in lines]):
        return None
    if top is not None and seqs[-1] > top:
        lines = lines[: max(0, top + 1 - first)]
        seqs = seqs[: len(lines)]
    return Page(
        seqs,
        [line.event for line in lines],
        [line.follows for line in lines],
        [line.data for line in lines],
    )


def _by_line(path: str | Path, bound: int | None, damage: OnLineDamage | None) -> Iterator[Page]:
    events: list[Event] = []
    for line in counted_backward(path, bound, damage):
        if line.event is not None:
            events.append(line.event)
            if len(events) == _LINES:
                yield page_of(events[::-1])
                events = []
    if events:
        yield page_of(events[::-1])
