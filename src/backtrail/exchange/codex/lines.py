"""Events made of the lines of Codex's rollouts."""

from __future__ import annotations

import msgspec

from ...agent.models.prices import cost
from ...events import Event, Json, NewEvent
from ...events.history import path as live_path
from ...events.messages import text_of
from ..growing_log import GrowingLog
from ..intake import Taken
from ..jsonlines import Line
from ..shapes import number_in, text_in, time_in
from ..transcript import all_lines
from . import format as codex

_KINDS = {
    "prompt": "user_message",
    "note": "system_message",
    "system": "system_message",
    "result": "tool_result",
    "assistant": "assistant_message",
}


class Maker(msgspec.Struct):
    """Makes events of the lines of one rollout; `file` is its name in the side log."""

    file: str

    def __call__(self, lines: list[Line], log: GrowingLog) -> Taken:
        """Add the events of these lines to the log."""
        taken = Taken()
        usage = _usage_by_line(lines)
        model: str | None = None
        for line in lines:
            if line.value is None:
                continue
            what = codex.what_is(line.value)
            if what == "context":
                model = text_in(line.value, "payload", "model") or model
            home: str | None = None
            if what in _KINDS:
                home = self._say(line, what, log, taken, usage.get(line.at), model)
            elif what == "compaction":
                home = self._compact(line, log)
            elif what == "rollback":
                home = self._roll_back(line, log)
            elif what == "meta":
                home = self._go_on(line, log)
            if home is not None:
                taken.homes[line.at] = home
            elif log.tip is not None:
                taken.behind[line.at] = log.tip
        return taken

    def _say(
        self, line: Line, what: str, log: GrowingLog, taken: Taken,
        usage: dict[str, int] | None, model: str | None,
    ) -> str:  # fmt: skip
        item = dict(codex.payload_of(line.value or {}))
        if what == "prompt":
            noted = _noted(log, item, taken)
            if noted is not None:
                return noted
        data: dict[str, Json] = {"message": item, "format": "responses", "source": self._from(line)}
        if usage is not None:
            data["usage"] = usage
            price = cost(model, usage) if model is not None else None
            data |= {"cost_usd": price} if price is not None else {}
        return self._add(log, _KINDS[what], data, line)

    def _compact(self, line: Line, log: GrowingLog) -> str:
        until = log.seq(log.tip) if log.tip is not None else 0
        said = text_in(line.value, "payload", "message") or ""
        summary = {"role": "assistant", "content": said}
        data = {"summary": summary, "until": until or 0, "format": "openai"}
        return self._add(log, "compaction", data | {"source": self._from(line)}, line)

    def _add(self, log: GrowingLog, kind: str, data: dict[str, Json], line: Line) -> str:
        log.add(NewEvent(kind, data, id=self._id(line), ts=line.ts))
        return self._id(line)

    def _roll_back(self, line: Line, log: GrowingLog) -> str | None:
        """Turns are taken back: a rewind, to before the first of them."""
        turns = codex.rolled_back(line.value or {})
        events = live_path([*log.stored(), *log.coming()])
        prompts = [event for event in events if event.kind == "user_message"]
        if not turns or not prompts:
            return None
        return self._rewind(line, log, events, prompts[max(0, len(prompts) - turns)])

    def _go_on(self, line: Line, log: GrowingLog) -> str | None:
        """Follow a rollback for which Codex began a new file."""
        base = codex.goes_on(line.value or {})
        if base is None:
            return None
        file, end = base
        numbers = _numbers(log, codex.payload_of(line.value or {}).get("id"), file)
        events = live_path([*log.stored(), *log.coming()])
        gone = next((event for event in events if numbers.get(event.id, -1) >= end), None)
        return self._rewind(line, log, events, gone) if gone is not None else None

    def _rewind(self, line: Line, log: GrowingLog, events: list[Event], first: Event) -> str:
        dropped = sum(event.seq >= first.seq for event in events)
        log.rewind(self._id(line), line.ts, first.previous, self._from(line), dropped=dropped)
        return self._id(line)

    def _id(self, line: Line) -> str:
        return f"{self.file[:64]}-{line.place_id}"

    def _from(self, line: Line) -> dict[str, Json]:
        return {"file": self.file, "lines": [line.at]}


def _numbers(log: GrowingLog, native_id: Json, base: str) -> dict[str, int]:
    """The numbers of the lines of events, in the files of a native session, if `base` is one."""
    files: set[str] = set()
    found: dict[str, int] = {}
    for kept in all_lines(log.store, log.session_id):
        value = kept.line.value or {}
        if codex.what_is(value) == "meta" and codex.payload_of(value).get("id") == native_id:
            files.add(kept.file)
        number = number_in(value, "ordinal")
        if kept.file in files and kept.event is not None and number is not None:
            found[kept.event] = number
    return found if base in files else {}


class SideMaker(msgspec.Struct):
    """Makes the events of a subagent's rollout, none of them for the main log.

    `first` is the rollout's first line.
    """

    name: str
    first: dict[str, Json]

    def __call__(self, lines: list[Line], log: GrowingLog) -> Taken:
        """The messages of these lines, for the subagent's own log."""
        values = [line.value or {} for line in lines]
        about = codex.begun(self.first, values)
        events = [NewEvent("start", about, id="start", ts=time_in(self.first, "timestamp"))]
        for line, value in zip(lines, values, strict=True):
            if codex.what_is(value) in _KINDS:
                data = {"message": dict(codex.payload_of(value)), "format": "responses"}
                events.append(NewEvent("message", data, id=line.place_id, ts=line.ts))
        return Taken(sides={f"subagents/{self.name}": events})


def _noted(log: GrowingLog, item: dict[str, Json], taken: Taken) -> str | None:
    """The event of a prompt that a hook noted when it was typed."""
    event: Event | None = log.event(log.tip) if log.tip is not None else None
    if event is None or event.kind != "user_message" or event.data.get("source") is not None:
        return None
    same = text_of(event.data.get("message")).strip() == text_of(item.get("content")).strip()
    return event.id if same and event.id not in taken.homes.values() else None


def _usage_by_line(lines: list[Line]) -> dict[int, dict[str, int]]:
    """The tokens of each response, by the place of its last line."""
    found: dict[int, dict[str, int]] = {}
    last: int | None = None
    total: Json = None
    for line in lines:
        if line.value is None:
            continue
        what = codex.what_is(line.value)
        if what == "assistant":
            last = line.at
        elif what == "usage":
            used = codex.usage_in(line.value)
            # The same numbers are repeated again and again.
            if used is not None and last is not None and used[0] != total:
                total = used[0]
                found[last] = used[1]
                last = None
    return found
