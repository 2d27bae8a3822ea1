"""From the lines of a Claude Code transcript to events.

All lines go into the log in the order of the file, each behind its parent. So the history
ends with the latest leaf, and every other way the conversation went is a branch.
"""

from __future__ import annotations

from functools import partial

import msgspec

from ...events import Event, Json, NewEvent
from ...events.messages import text_of
from ..growing_log import GrowingLog
from ..intake import FilesOf, Taken, no_files
from ..jsonlines import Line
from ..shapes import id_in, list_in, object_in
from ..transcript import find_line
from . import format as cc
from .resent import Resent
from .sides import Cost, note_usage, responses, side_events, side_name
from .unseen import Unseen

_KINDS = {
    "prompt": "user_message",
    "note": "system_message",
    "result": "tool_result",
    "assistant": "assistant_message",
}
_WALK = 100_000


class Maker(msgspec.Struct):
    """Makes events of lines of one file; `file` is its name in the side log.

    With `is_hooked`, hooks capture what calls do, and a result says so if they did not.
    """

    file: str
    files_of: FilesOf = no_files
    cost: Cost = lambda model, usage: None
    is_hooked: bool = False

    def __call__(self, lines: list[Line], log: GrowingLog) -> Taken:
        """Add the events of these lines to the log."""
        return _Batch(self, log).made(lines)


class _Batch:
    """Some lines on their way into the log."""

    def __init__(self, maker: Maker, log: GrowingLog) -> None:
        self.maker = maker
        self.log = log
        self.taken = Taken()
        self.by_uuid: dict[str, Line] = {}
        self.done: set[int] = set()
        self.homes: dict[str, str] = {}
        self.groups: dict[int, list[Line]] = {}
        self.anew: set[str | None] = set()
        self.latest: str | None = None
        self.aside: dict[str, list[Line]] = {}
        self.unseen = Unseen(log, self._line) if maker.is_hooked else None
        self.resent = Resent(maker.file, log, self._line, self._home)

    def made(self, lines: list[Line]) -> Taken:
        for line in lines:
            uuid, value = line.own_id, line.value or {}
            if uuid is not None and uuid in self.by_uuid:
                self._report(line, f"has the uuid of an earlier one, `{uuid}`")
            elif uuid is not None:
                self.by_uuid[uuid] = line
            if cc.starts_over(value) and cc.what_is(value) == "note":
                self.anew.add(cc.parent_of(value))
        self.groups = responses(lines, self.by_uuid)
        for line in lines:
            self._place(line)
        for name, some in self.aside.items():
            note_usage(name, some, self.log, self.maker.cost)
        return self.taken

    def _report(self, line: Line, problem: str) -> None:
        self.taken.problems.append(f"line at byte {line.at} {problem}")

    def _place(self, line: Line) -> None:
        """Put a line into the log, behind lines of this batch that it descends from.

        Children may be written before their parents.
        """
        waiting = [line]
        path = {line.at}
        while waiting:
            one = waiting[-1]
            parent = self.by_uuid.get(cc.parent_of(one.value or {}) or "")
            if one.at in self.done:
                waiting.pop()
            elif parent is None or parent.at in self.done:
                waiting.pop()
                self.done.add(one.at)
                self._take(one)
            elif parent.at in path:
                self._report(one, "is its own ancestor; it follows the line before it")
                self.done.add(one.at)
                waiting.pop()
                self._take(one, astray=True)
            else:
                path.add(parent.at)
                waiting.append(parent)

    def _take(self, line: Line, *, astray: bool = False) -> None:
        """Make an event of a line, or note which event it comes after."""
        if line.value is None:
            return
        what = cc.what_is(line.value)
        self.resent.take(line)
        if line.get("isSidechain") is True and what != "other":
            self._aside(line, what)
            return
        after, root = self._after(line) if not astray else (self._before(), False)
        by_hand = cc.is_command(line.value) or (what == "note" and self._starts_over(line))
        if by_hand and self._goes_back(line, after, root):
            after, root = None, False
        if what in _KINDS:
            self._say(line, what, after, root)
        elif what == "summary":
            self._at_home(line, self._compact(line, after))
        elif after is not None:
            self.taken.behind[line.at] = after
            if line.own_id is not None:
                self.homes.setdefault(line.own_id, after)

    # --- where a line belongs ------------------------------------------------------------

    def _after(self, line: Line) -> tuple[str | None, bool]:
        """The event that a line comes after, and whether it begins anew."""
        value = line.value or {}
        if cc.what_is(value) == "other":
            return self._before(), False
        parent = cc.parent_of(value)
        if self._starts_over(line) and (parent is None or self._is_spoken(parent)):
            return None, True
        if parent is None and value.get("parentUuid", "") is None:
            return None, cc.what_is(value) != "boundary"
        if parent is None:
            return self._before(), False
        found = self._home(parent)
        if found is None:
            self._report(line, f"has a parent that is not there, `{parent[:80]}`")
            return self._before(), False
        return found or None, not found

    def _starts_over(self, line: Line) -> bool:
        """Whether nothing was said before a line, whatever parent it names."""
        value = line.value or {}
        # Of a command behind `!`, only the line below it shows that.
        below = cc.is_command(value) and line.own_id in self.anew
        return below or cc.starts_over(value)

    def _is_spoken(self, last: str) -> bool:
        """Whether a person or the model said anything up to a line.

        Notes alone, as of the `/clear` that a session begins with, are sent with the first prompt.
        """
        home = self._home(last)
        return home is None or self.log.has_spoken(home or None)

    def _goes_back(self, line: Line, after: str | None, root: bool) -> bool:
        """Note that a person went back before a command, if they did."""
        id = line.own_id
        if id is None or find_line(self.log.store, self.log.session_id, id) is not None:
            # A line that was read before says nothing of what came since.
            return False
        return self.log.command(id, line.ts, after, self._source([line]), root=root)

    def _before(self) -> str | None:
        """The event of the line before; of what was said last, where there is none."""
        return self.resent.place(self.latest or self.log.tip)

    def _home(self, uuid: str) -> str | None:
        """The event of a line, or of the nearest line above that has one; "" at the root."""
        return self.resent.place(self._first_home(uuid))

    def _first_home(self, uuid: str) -> str | None:
        """The event that was made of a line, wherever it was repeated since."""
        passed: set[str] = set()
        # Lines may name each other as parents: then there is no way up.
        while uuid not in passed and len(passed) < _WALK:
            passed.add(uuid)
            if uuid in self.homes:
                return self.homes[uuid]
            if self.log.seq(uuid) is not None:
                return uuid
            line = self.by_uuid.get(uuid)
            if line is None:
                kept = find_line(self.log.store, self.log.session_id, uuid)
                if kept is None:
                    return None
                known = kept.event or kept.behind
                if known is not None and self.log.seq(known) is not None:
                    return known
                line = kept.line
            parent = cc.parent_of(line.value or {})
            if parent is None:
                return ""
            uuid = parent
        return None

    def _line(self, uuid: str | None) -> Line:
        """The line with this uuid; an empty one if there is none."""
        found = self.by_uuid.get(uuid or "")
        if found is None and uuid is not None:
            kept = find_line(self.log.store, self.log.session_id, uuid)
            found = kept.line if kept is not None else None
        return found or Line(0, 0, b"", None)

    # --- events --------------------------------------------------------------------------

    def _say(self, line: Line, what: str, after: str | None, root: bool) -> None:
        own, before = self.maker.files_of(line)
        if before is not None:
            self.log.note(before)
        group = self.groups.get(line.at, [line])
        self.done |= {one.at for one in group}
        more = what == "assistant" and self.log.continues(cc.response_of(line.value or {}), after)
        if what == "assistant":
            group, after, more = self._left(group, after, more)
        if not group:
            return
        data = self._data(group, what)
        if more:
            # The lines of a response all say what the whole of it used.
            data["usage"] = {}
            data.pop("cost_usd", None)
        if own is not None:
            data |= own
        if what == "result" and self.unseen is not None:
            data |= self.unseen.of(line, after)
        made = group[0].id
        event = NewEvent(_KINDS[what], data, id=made, ts=group[0].ts)
        if what == "prompt":
            name = id_in(line.value, "promptId")
            is_it = partial(self._is_it, line)
            made = self.log.say(event, after, is_it, root=root, name=name)
        else:
            self.log.add(event, after, root=root)
        if self.unseen is not None:
            self.unseen.said(made, line, what, after)
        for one in group:
            self._at_home(one, made)

    def _is_it(self, line: Line, event: Event) -> bool:
        """Whether a hook noted a line as this event, when the prompt was typed.

        A fork that the program makes gives the lines of the past the id of its first new prompt.
        They are older than the session.
        """
        words = cc.said(cc.message_of(line.value or {}))
        if text_of(event.data.get("message")).strip() == words.strip():
            return True
        if line.get("promptId") != event.id:
            return False
        first = next(self.log.stored(), None)
        return first is None or line.ts is None or line.ts >= first.ts

    def _left(
        self, group: list[Line], after: str | None, more: bool
    ) -> tuple[list[Line], str | None, bool]:
        """The lines of a response that are in no event yet, and what they come after.

        A process that read the file when it was shorter or longer may have taken in some.
        """
        for id in (after, group[0].id):
            event = self.log.event(id) if id is not None else None
            said = event.data if event is not None and event.kind == "assistant_message" else {}
            there = list_in(said, "source", "lines")
            taken = [one for one in group if (one.own_id or one.at) in there]
            for one in taken:
                self._at_home(one, id or "")
                after, more = id, True
            group = [one for one in group if one not in taken]
            if not group:
                break
        return group, after, more

    def _at_home(self, line: Line, home: str) -> None:
        """Note the event that a line is part of."""
        self.latest = self.taken.homes[line.at] = home
        if line.own_id is not None:
            self.homes[line.own_id] = home

    def _source(self, group: list[Line]) -> dict[str, Json]:
        """The lines that an event is made of."""
        return {"file": self.maker.file, "lines": [one.own_id or one.at for one in group]}

    def _data(self, group: list[Line], what: str) -> dict[str, Json]:
        messages = [cc.message_of(line.value) for line in group if line.value is not None]
        message = cc.merged(messages) if what == "assistant" else messages[0]
        source = self._source(group)
        data: dict[str, Json] = {"message": message, "format": "anthropic", "source": source}
        usage = object_in(message, "usage") if what == "assistant" else None
        model = cc.model_of(group[-1].value or {})
        price = self.maker.cost(model, usage) if model and usage else None
        return data if price is None else {**data, "cost_usd": price}

    def _compact(self, line: Line, after: str | None) -> str:
        """A compaction: the summary, and up to which event it goes."""
        value = line.value or {}
        until = self.log.seq(after) if after is not None else 0
        for uuid in cc.preserved(self._line(cc.parent_of(value)).value or {}):
            home = self._home(uuid)
            seq = self.log.seq(home) if home else None
            if seq is not None and until is not None:
                until = min(until, seq - 1)
        data = {"summary": value["message"], "until": until or 0, "format": "anthropic"}
        data["source"] = self._source([line])
        self.log.add(NewEvent("compaction", data, id=line.id, ts=line.ts), after)
        return line.id

    def _aside(self, line: Line, what: str) -> None:
        """A line of a subagent that older versions wrote into the main file."""
        if what not in _KINDS:
            return
        name = side_name(line.get("agentId")) or self._side_root(line)
        self.aside.setdefault(name, []).append(line)
        self.taken.sides.setdefault(f"subagents/{name}", []).extend(side_events([line]))

    def _side_root(self, line: Line) -> str:
        at: Line = line
        passed: set[int] = set()
        parent: Line | None = line
        while parent is not None and parent.get("isSidechain") is True and parent.at not in passed:
            at = parent
            passed.add(at.at)
            parent = self.by_uuid.get(cc.parent_of(at.value or {}) or "")
        return side_name(at.get("uuid")) or f"side-{line.at}"
