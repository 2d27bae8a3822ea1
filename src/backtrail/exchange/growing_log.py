"""A session's main log while lines of a foreign transcript become events of it.

A batch of events is appended only if no other process appended since the log was looked at;
otherwise it is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from ..errors import Conflict, NotFound
from ..events import MESSAGE_KINDS, Event, Json, NewEvent
from ..events.history import BACK, BEGINS, NOTED, REPEATS, walk
from ..stores.base import Store
from .shapes import text_in
from .transcript import log_of

_RECENT = 50
"""How many lines may stand between a prompt and the result of a call that it stopped."""

SEEN = ("tree", "git", "files", "workspace")
"""What a hook's event of a prompt says of the files."""

SPOKEN = (*MESSAGE_KINDS, "compaction")
"""The kinds of events that a line of a transcript may become."""


class GrowingLog:
    """A session's main log, and the events that are to be appended to it next.

    Each event is given with the id of the one it answers. Where that is what was said last,
    the event simply comes next, behind whatever others noted in between; elsewhere it
    begins a branch. Results of one message's calls belong together.
    """

    def __init__(self, store: Store, session_id: str) -> None:
        self.store = store
        self.session_id = session_id
        newest = next(store.read(session_id, reverse=True, limit=1), None)
        self.head = newest.seq if newest else 0
        self.new: list[NewEvent] = []
        self._seqs: dict[str, int] = {}
        self._together: list[str] | None = None
        self._response: str | None = None
        self._scanned = False
        self._claimed: set[str] = set()
        self._overtaken = 0

    @property
    def tip(self) -> str | None:
        """The id of what was said last."""
        together = self._last()
        return together[-1] if together else None

    def continues(self, response: str | None, after: str | None) -> bool:
        """Whether more of a response would go on with what was said last."""
        together = self._last()
        return after in together and response is not None and response == self._response

    def event(self, id: str) -> Event | None:
        """A stored event."""
        seq = self.seq(id)
        if seq is None or seq > self.head:
            return None
        return next(self.store.read(self.session_id, after=seq - 1, until=seq), None)

    def seq(self, id: str) -> int | None:
        """The number of an event that is there or will be."""
        if id in self._seqs or self._scanned:
            return self._seqs.get(id)
        if type(self.store).find is Store.find:
            # A store that looks for an id by reading everything does so once.
            self._seqs = {event.id: event.seq for event in self.stored()} | self._seqs
            self._scanned = True
            return self._seqs.get(id)
        with suppress(NotFound):
            found = self.store.find(self.session_id, id)
            # What came since is for the next try.
            if found.seq <= self.head:
                self._seqs[id] = found.seq
        return self._seqs.get(id)

    def add(self, event: NewEvent, after: str | None = None, *, root: bool = False) -> None:
        """Append an event next, unless it is there already.

        `after` is the event it answers; None: what was said last, or with `root` nothing.
        """
        id, kind, data = event.id or "", event.kind, event.data
        if self.seq(id) is not None:
            return
        together = self._last()
        follows: int | None = None
        late: Event | None = None
        if root and together:
            follows = 0
        elif after is not None and after not in together:
            late = self._overtaking(kind, after)
            follows = self.seq(after)
            if late is not None:
                follows = late.previous if kind == "tool_result" else None
        self._push(NewEvent(kind, data, id=id, follows=follows, ts=event.ts))
        response = _response(kind, data)
        more = kind == "tool_result" or (response is not None and response == self._response)
        self._together = [*together, id] if more and follows is None else [id]
        self._response = self._response if kind == "tool_result" else response
        if late is not None and kind == "tool_result":
            # The model is sent it behind the results.
            again = {**late.data, NOTED: late.seq, "source": data.get("source") or {}}
            self.add(NewEvent("user_message", again, id=f"{late.id}-again"[-256:], ts=late.ts))

    def _overtaking(self, kind: str, after: str) -> Event | None:
        """The prompt said last, if it was typed while the call was at work that `after` is of.

        When a person stops a call with a prompt waiting, the transcript has the prompt first, and
        then the call's result and a note about the stop.
        """
        tip = self.tip
        prompt = self.known(tip) if kind in ("tool_result", "system_message") and tip else None
        if prompt is None or prompt.kind != "user_message" or not self.is_reported(prompt):
            return None
        if kind == "system_message" and NOTED not in prompt.data:
            return None
        return prompt if after in self._said(prompt.previous)[0] else None

    def is_reported(self, prompt: Event) -> bool:
        """Whether a line has reported a prompt."""
        if not _is_noted(prompt) or prompt.id in self._claimed:
            return True
        lines = self.store.read(self.session_id, log=log_of(), reverse=True, limit=_RECENT)
        return any(line.data.get("event") == prompt.id for line in lines)

    def note(self, event: NewEvent) -> None:
        """Append an event that says nothing, unless it is there already."""
        if self.seq(event.id or "") is None:
            self._last()
            self._push(event)

    def _push(self, event: NewEvent) -> None:
        self.new.append(event)
        self._seqs[event.id or ""] = self.head + len(self.new)

    def say(
        self, event: NewEvent, after: str | None, is_it: Callable[[Event], bool], *,
        root: bool = False, name: str | None = None,
    ) -> str:  # fmt: skip
        """Append a person's prompt next, unless a hook noted it in its place; its event's id.

        A prompt that answers anything but what was said last moves the head: the person went
        back in the agent, so a rewind comes before it. `is_it` says whether an event that a
        hook noted is this prompt. Standing in another place, it is said again. `name` is the
        id that a hook notes it under.
        """
        id, ts, data = event.id or "", event.ts, event.data
        if self.seq(id) is not None:
            return id
        if name is not None and self._is_in_place(name, after, root=root):
            self._claimed.add(name)
            return name
        noted = self._noted(is_it)
        last = self._last()
        if noted is not None and noted.id in last:
            last = self._said(noted.previous)[0]
        if noted is None and root and self._comes_before(self.pending, f"{id}-resumed", ts):
            data, last = {**data, NOTED: self._overtaken}, []
        goes_back = _is_elsewhere(after, last, root=root)
        if noted is not None:
            if not goes_back and noted.id == self.tip:
                self._claimed.add(noted.id)
                return noted.id
            seen = {name: noted.data[name] for name in SEEN if name in noted.data}
            again = {} if noted.seq == self._overtaken else {NOTED: noted.seq}
            data = {**seen, **data, **again}
        if goes_back:
            self._leave(after, id, ts, data.get("source"))
            after, root = None, False
        if noted is not None:
            self._claimed.add(noted.id)
        self.add(NewEvent("user_message", data, id=id, ts=ts), after, root=root)
        return id

    def _comes_before(self, pending: Event | None, id: str, ts: str | None) -> bool:
        """Make place for a past that is written only after a hook noted the first prompt.

        An agent that forks its own session writes the past down with the first new prompt. That
        is no rewind: nothing was said before the prompt, and the log goes on from there.
        """
        if pending is None or self._said(pending.previous)[0]:
            return False
        self._push(NewEvent("session_resume", {}, id=id[-256:], follows=pending.previous, ts=ts))
        self._overtaken = pending.seq
        self._together, self._response = [], None
        return True

    def _is_in_place(self, name: str, after: str | None, *, root: bool) -> bool:
        """Whether a hook noted a prompt of this id where its line stands, and it is answered.

        Another process may have taken in the answer, and not yet the lines, or died in between.
        """
        event = self.event(name)
        if event is None or not _is_noted(event) or name == self.tip or not self._is_live(event):
            return False
        before = self._said(event.previous)[0]
        return not before if root else after is not None and after in before

    def command(
        self, id: str, ts: str | None, after: str | None, source: Json, *, root: bool = False
    ) -> bool:
        """Follow a person that ran a command in the agent; whether they had gone back before.

        The command is no prompt, but stands where the conversation goes on, so a rewind that
        it shows comes before it. A prompt that a hook noted already was typed after it.
        """
        pending = self.pending
        last = self._last() if pending is None else self._said(pending.previous)[0]
        if self.seq(id) is not None or not _is_elsewhere(after, last, root=root):
            return False
        return self._leave(after, id, ts, source)

    def _leave(self, after: str | None, id: str, ts: str | None, source: Json) -> bool:
        """Append the rewind that the line of this id shows; False if it is there already."""
        to, dropped = self._parting(after)
        return self.rewind(f"{id}-rewound"[-256:], ts, to, source, dropped=dropped)

    def known(self, id: str) -> Event | None:
        """An event that is there or will be."""
        coming = (event for event in self.coming() if event.id == id)
        return next(coming, None) or self.event(id)

    def up_to(self, id: str) -> Iterator[Event]:
        """The way to an event that is there or will be, newest first."""
        return self._walk(self.seq(id) or 0)

    def has_spoken(self, until: str | None) -> bool:
        """Whether a person or the model said anything up to an event; notes do not count."""
        seq = self.seq(until) if until is not None else 0
        return any(e.kind in SPOKEN and e.kind != "system_message" for e in self._walk(seq or 0))

    def rewind(
        self, id: str, ts: str | None, to: int, source: Json, *,
        dropped: int = 0, noted: Event | None = None,
    ) -> bool:  # fmt: skip
        """Append a rewind of the conversation next; False if it is there already.

        A prompt that a hook noted, and no line has reported yet, was said after it. So was
        `noted`, which the caller says again.
        """
        if self.seq(id) is not None:
            return False
        data: dict[str, Json] = {"to": to, "scope": "conversation", "mode": "mine",
                                 "events_dropped": dropped, "source": source}  # fmt: skip
        pending = self.pending or noted
        if pending is not None:
            data[BEGINS] = begins = self._beginning(pending)
            data["scope"] = "both" if begins < pending.seq else "conversation"
        self._push(NewEvent("rewound", data, id=id, follows=to, ts=ts))
        self._together, self._response = self._said(None)
        return True

    @property
    def pending(self) -> Event | None:
        """What was said last, if a hook noted it and no line has reported it."""
        tip = self.tip
        event = self.event(tip) if tip is not None and tip not in self._claimed else None
        return event if event is not None and _is_noted(event) else None

    def _noted(self, is_it: Callable[[Event], bool]) -> Event | None:
        """The newest prompt, if a hook noted it and no line has reported it.

        What is answered stays where it is, and what this program rewound does, too. But a prompt
        that an undo took back and a redo brought again is where it was, and is not said twice.
        """
        kinds = ("user_message", "rewound", "undone", "redone")
        found = self.store.read(self.session_id, until=self.head, reverse=True, kinds=kinds)
        is_moved = False
        for event in found if self.head else ():
            if event.kind != "user_message" or REPEATS in event.data:
                is_moved = is_moved or event.data.get("source") is None
                continue
            if not _is_noted(event) or event.id in self._claimed or not is_it(event):
                return None
            is_left = not is_moved and not self._is_live(event)
            return event if event.id == self.tip or is_left else None
        return None

    def _is_live(self, event: Event) -> bool:
        below = (one for one in self._walk() if one.seq <= event.seq)
        return next(below, None) == event

    def _beginning(self, noted: Event) -> int:
        """The first event that belongs to a rewind, of which a hook noted the prompt behind it."""
        before = next(self.store.read(self.session_id, until=noted.seq - 1, reverse=True), None)
        if before is not None and before.kind == "files_changed" and BACK in before.data:
            return before.seq
        return noted.seq

    def _parting(self, after: str | None) -> tuple[int, int]:
        """Where a conversation goes on that goes back to an event, and how much it leaves."""
        goal = (self.seq(after) if after is not None else 0) or 0
        to, dropped, pending = goal, 0, self.pending
        for event in self._walk():
            if event.seq <= goal:
                # Of a branch that was left earlier, the event itself.
                return to if event.seq == goal else goal, dropped
            if event.kind in SPOKEN:
                to = event.previous
                dropped += event != pending
        return goal or to, dropped

    def _walk(self, until: int | None = None) -> Iterator[Event]:
        """The history with what is to be appended, newest first."""
        coming = self.coming()[::-1]

        def read_back(bound: int | None) -> Iterator[Event]:
            yield from (event for event in coming if bound is None or event.seq <= bound)
            last = self.head if bound is None else min(bound, self.head)
            if last:
                yield from self.store.read(self.session_id, until=last, reverse=True)

        return walk(read_back, until) if until != 0 else iter(())

    def stored(self) -> Iterator[Event]:
        """All that is there."""
        return self.store.read(self.session_id, until=self.head) if self.head else iter(())

    def coming(self) -> list[Event]:
        """All that is to be appended, as it will be."""
        return [
            Event(number, new.id or "", new.ts or "", new.kind, dict(new.data), new.follows)
            for number, new in enumerate(self.new, self.head + 1)
        ]

    def _last(self) -> list[str]:
        """What was said last: a response, perhaps in parts, and the results of its calls."""
        if self._together is None:
            self._together, self._response = self._said(None)
        return self._together

    def _said(self, until: int | None) -> tuple[list[str], str | None]:
        """What was said last up to an event, and the response that it is of."""
        found: list[str] = []
        asked = False
        last: str | None = None
        for event in self._walk(until):
            if event.kind not in SPOKEN:
                continue
            response = _response(event.kind, event.data)
            if asked and (response is None or response != last):
                break
            found.append(event.id)
            if event.kind == "assistant_message":
                asked, last = True, response
            elif event.kind != "tool_result":
                break
        found.reverse()
        return found, last

    def append(self) -> list[Event]:
        """Append all that is new; `Conflict` if another process appended meanwhile."""
        if not self.new:
            return []
        stored = self.store.append(self.session_id, self.new, expected=self.head)
        for want, there in zip(self.new, stored, strict=True):
            # Not all data: a store may mask what it is given.
            if there.data.get("source") != want.data.get("source"):
                # All ids are there: another process took in the same lines, but fewer of them.
                raise Conflict(f"event `{there.id}` was made of other lines: make it anew")
        return stored


def _is_elsewhere(after: str | None, last: list[str], *, root: bool) -> bool:
    """Whether a line answers anything but what was said last; with `root`, it answers nothing."""
    return bool(last) if root else after is not None and after not in last


def _is_noted(event: Event) -> bool:
    """Whether a hook noted a prompt, and not a line of the transcript."""
    return event.kind == "user_message" and event.data.get("source") is None


def _response(kind: str, data: Mapping[str, Json]) -> str | None:
    """The id of the model's response that an event is a part of."""
    return text_in(data, "message", "id") if kind == "assistant_message" else None
