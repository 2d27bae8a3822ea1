"""Lines of Claude Code that belong together: those of one response, and those of one subagent.

A subagent's lines become the events of a log of its own; the main log says what they used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

from ...events import Json, NewEvent
from ...events.messages import normal_usage
from ..growing_log import GrowingLog
from ..intake import Taken
from ..jsonlines import Line
from ..shapes import number_in, object_in
from . import format as cc

_LARGEST = 32 << 20
_SPOKEN = ("prompt", "note", "result", "assistant")

Cost = Callable[[str, Mapping[str, Json]], float | None]
"""What a model's tokens cost; None if that is not known."""


def responses(lines: list[Line], by_uuid: Mapping[str, Line]) -> dict[int, list[Line]]:
    """The lines of each response of a model, by the place of its first line.

    They have one response id, and hang one below the other.
    """
    leaders: dict[str, Line] = {}
    groups: dict[int, list[Line]] = {}
    for line in lines:
        if line.value is None or cc.what_is(line.value) != "assistant":
            continue
        response = cc.response_of(line.value)
        above = leaders.get(cc.parent_of(line.value) or "")
        same = above is not None and cc.response_of(above.value or {}) == response
        leader = above if above is not None and same and response else line
        group = groups.setdefault(leader.at, [])
        if sum(len(one.raw) for one in group) + len(line.raw) > _LARGEST:
            leader = line
            group = groups.setdefault(leader.at, [])
        group.append(line)
        if line.own_id is not None and by_uuid.get(line.own_id) is line:
            leaders[line.own_id] = leader
    return groups


def side_name(value: Json) -> str | None:
    """`value` if a log may be called so."""
    found = isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", value)
    return str(value) if found else None


def side_events(lines: list[Line]) -> Iterator[NewEvent]:
    """The messages of a subagent, for its own log."""
    by_uuid = {uuid: line for line in reversed(lines) if (uuid := line.own_id)}
    groups = responses(lines, by_uuid)
    later = {one.at for group in groups.values() for one in group[1:]}
    for line in lines:
        if line.value is None or cc.what_is(line.value) not in _SPOKEN or line.at in later:
            continue
        group = groups.get(line.at, [line])
        messages = [cc.message_of(one.value) for one in group if one.value is not None]
        message = cc.merged(messages) if len(messages) > 1 else messages[0]
        yield NewEvent("message", {"message": message}, id=line.id, ts=line.ts)


def note_usage(name: str, lines: list[Line], log: GrowingLog, cost: Cost) -> None:
    """Note in the main log what a subagent's responses in these lines used, each once.

    Lines that are read again, as after a crash, begin with those that were noted before.
    """
    last = next(
        log.store.read(log.session_id, log=f"subagents/{name}", reverse=True, limit=1), None
    )
    known = cc.response_of(last.data) if last is not None else None
    said = (
        (cc.response_of(line.value or {}), line)
        for line in lines
        if line.get("type") == "assistant"
    )
    by_id = {id: line for id, line in said if id is not None and id != known}
    found = [(id, line) for id, line in by_id.items() if id is not None and id != known]
    while found:
        id = f"{name[-128:]}-{found[0][0][-100:]}-usage"
        there = log.event(id)
        if there is None:
            data = _used(name, [line for _, line in found], cost)
            log.note(NewEvent("subagent_usage", data, id=id, ts=found[-1][1].ts))
            return
        found = found[max(1, number_in(there.data, "responses") or 0) :]


def _used(name: str, lines: list[Line], cost: Cost) -> dict[str, Json]:
    """What responses used in all: tokens, and the cost where it is known."""
    total: dict[str, int] = {}
    price: float | None = None
    for line in lines:
        usage = object_in(line.value, "message", "usage")
        for kind, count in normal_usage(usage).items():
            total[kind] = total.get(kind, 0) + count
        model = cc.model_of(line.value or {})
        paid = cost(model, usage) if model is not None else None
        price = price if paid is None else (price or 0.0) + paid
    data: dict[str, Json] = {"subagent": name, "responses": len(lines), "usage": total}
    return data if price is None else {**data, "cost_usd": price}


class SideMaker(msgspec.Struct):
    """Makes the events of a subagent's own file."""

    name: str
    about: NewEvent
    cost: Cost

    def __call__(self, lines: list[Line], log: GrowingLog) -> Taken:
        """The events of these lines; for the main log, what they used."""
        note_usage(self.name, lines, log, self.cost)
        return Taken(sides={f"subagents/{self.name}": [self.about, *side_events(lines)]})
