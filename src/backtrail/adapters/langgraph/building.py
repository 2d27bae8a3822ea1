"""From a checkpoint to the events that are stored of it: what is new since its parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ...events import Json, NewEvent
from .. import needs
from .codec import Codec, kind_of, message_fields, snapshot, spoken_in
from .deltas import CHECKPOINT, DEPTH, ITEMS, Ref, Whole, pack, settled
from .line import Line

with needs("langgraph"):
    from langchain_core.messages import BaseMessage
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

SMALL = 512
"""Bytes of JSON up to which a list without messages is stored as one value."""

_PRINTS = 4
_PACKED = 256
_PLAIN = Codec(JsonPlusSerializer())

Print = object
"""What an item was when it was stored: of a message its class and fields, else its JSON."""


class Builder:
    """One checkpoint to be stored on a line."""

    def __init__(
        self,
        line: Line,
        codec: Codec,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> None:
        self._line = line
        self._codec = codec
        self._checkpoint = checkpoint
        self._changed = new_versions
        self._source = metadata.get("source")
        self._metadata = codec.encode(dict(metadata))
        self._events: list[NewEvent] = []
        self._prints: dict[str, list[Print]] = {}
        self._heard = 0

    def put(self, parent_id: str | None) -> None:
        """Store it behind the checkpoint with this id."""
        line = self._line
        made: list[Whole] = []

        def make(id: str) -> Sequence[NewEvent]:
            made[:] = [self._whole(parent_id)]
            return self._finish(id, made[0])

        stored = line.append_checkpoint(make, self._checkpoint["id"])
        whole = settled(made[0], stored[-1].seq)
        line.early.pop(whole.id, None)
        line.keep(whole)
        line.prints[whole.seq] = self._prints
        while len(line.prints) > _PRINTS:
            line.prints.popitem(last=False)

    # --- the parts of it ---------------------------------------------------------------------

    def _whole(self, parent_id: str | None) -> Whole:
        line, given = self._line, self._checkpoint
        self._events = []
        self._prints = {}
        seq = None if parent_id is None else line.where(parent_id)
        base = None if seq is None else line.whole(seq)
        rest = {
            key: value
            for key, value in given.items()
            if key not in ("id", "channel_values", "channel_versions", "versions_seen")
        }
        whole = Whole(
            0, given["id"], parent_id, 0, dict(given["channel_versions"]),
            {node: dict(seen) for node, seen in given["versions_seen"].items()},
            {}, {}, self._codec.encode(rest), self._metadata,
        )  # fmt: skip
        whole.early = line.early.get(whole.id, [])
        if base is not None and base.depth + 1 < DEPTH:
            whole.depth = base.depth + 1
        self._base = base
        self._own: list[tuple[str, int, int]] = []
        self._kept: dict[str, int] = {}
        self._spoken: dict[int, Any] = {}
        if base is not None and base.spoken:
            events = {seq: line.event(seq).data for seq in base.spoken}
            self._spoken = {
                seq: data["message"] for seq, data in events.items() if "message" in data
            }
        if self._source == "input":
            self._speak(whole)
        for name, value in given["channel_values"].items():
            self._channel(whole, name, value)
        if base is not None:
            for name in (*base.values, *base.lists):
                # A channel that did not change may be left out of what is given.
                if name not in given["channel_values"] and self._is_unchanged(name):
                    self._inherit(whole, name)
        return whole

    def _finish(self, id: str, whole: Whole) -> Sequence[NewEvent]:
        count = len(self._events)
        for name, at, number in self._own:
            # Only the store gives numbers: those of one batch are counted back.
            whole.lists[name][at] = (number - count, *whole.lists[name][at][1:])
        whole.spoken = [number - count for number in range(self._heard)]
        data = pack(whole, self._base if whole.depth else None, self._kept)
        data["top"] = max(whole.id, self._line.top or "")
        events = [*self._events, NewEvent(CHECKPOINT, data, id=id)]
        if self._base is not None and self._base.seq != self._line.tip:
            first = events[0]
            events[0] = NewEvent(first.kind, first.data, first.id, self._base.seq)
        return events

    def _place(self, kind: str, data: dict[str, Json]) -> int:
        """Add an event to the batch; where it is, counted from the first."""
        self._events.append(NewEvent(kind, data))
        return len(self._events) - 1

    def _speak(self, whole: Whole) -> None:
        """Store what people said before the checkpoint that has it as input."""
        start = self._checkpoint["channel_values"].get("__start__")
        for message in spoken_in(start):
            data = self._codec.message_event(message)
            if data is not None:
                self._place("user_message", data)
        self._heard = len(self._events)

    def _is_unchanged(self, name: str) -> bool:
        base = self._base
        if base is None or name in self._changed or name not in base.versions:
            return False
        now = self._checkpoint["channel_versions"].get(name)
        return now is not None and now == base.versions[name]

    def _inherit(self, whole: Whole, name: str) -> None:
        base = self._base
        assert base is not None
        if name in base.values:
            whole.values[name] = base.values[name]
        else:
            whole.lists[name] = base.lists[name]
            self._kept[name] = len(base.lists[name])
            prints = self._line.prints.get(base.seq, {}).get(name)
            if prints is not None:
                self._prints[name] = prints

    def _channel(self, whole: Whole, name: str, value: object) -> None:
        base = self._base
        has = base is not None and (name in base.values or name in base.lists)
        if has and self._is_unchanged(name):
            self._inherit(whole, name)
        elif type(value) is list and value and self._is_long(name, value):
            self._list(whole, name, value)
        else:
            whole.values[name] = self._codec.encode(value)

    def _is_long(self, name: str, value: list[Any]) -> bool:
        if self._base is not None and name in self._base.lists:
            return True
        if any(isinstance(item, BaseMessage) for item in value):
            return True
        return len(msgspec.json.encode(self._codec.encode(value))) > SMALL

    # --- lists -------------------------------------------------------------------------------

    def _list(self, whole: Whole, name: str, value: list[Any]) -> None:
        """A list as the items it shares with the parent's, and new ones."""
        refs: list[Ref] = []
        prints: list[Print] = []
        if self._base is not None and name in self._base.lists:
            before = self._printed(self._base, name)
            keep = _same(before, value)
            refs, prints = self._base.lists[name][:keep], before[:keep]
        self._kept[name] = len(refs)
        packed: list[Json] = []
        for item in value[len(refs) :]:
            prints.append(_print(item))
            said = self._said(item) if isinstance(item, BaseMessage) else None
            data = None
            if said is None and isinstance(item, BaseMessage) and kind_of(item) is not None:
                data = self._codec.message_event(item)
            if said is not None:
                refs.append(said)
            elif data is not None:
                self._refer(name, refs, self._place(kind_of(item) or "", data), -1)
                packed = []
            else:
                if not packed or len(packed) >= _PACKED:
                    packed = []
                    self._place(ITEMS, {"channel": name, "items": packed})
                packed.append(self._codec.encode(item))
                self._refer(name, refs, len(self._events) - 1, len(packed) - 1)
        whole.lists[name] = refs
        self._prints[name] = prints

    def _refer(self, name: str, refs: list[Ref], number: int, place: int) -> None:
        """Refer to an item of an event of this batch."""
        self._own.append((name, len(refs), number))
        refs.append((0, place, None))

    def _said(self, message: BaseMessage) -> Ref | None:
        """What a person said, stored when it came in; the graph may have given it an id."""
        if not self._spoken or message.type != "human":
            return None
        fields = message_fields(message)
        for seq, said in self._spoken.items():
            if fields is None or {**said, "id": None} != {**fields, "id": None}:
                continue
            del self._spoken[seq]
            if said.get("id") == fields.get("id"):
                return seq, -1, None
            return seq, -1, {"id": fields.get("id")}
        return None

    def _printed(self, base: Whole, name: str) -> list[Print]:
        """What the items of the parent's list were when they were stored."""
        found = self._line.prints.get(base.seq, {}).get(name)
        if found is None:
            refs = base.lists[name]
            items = self._codec.listed(refs, self._line.items(refs))
            found = [_print(item) for item in items]
            self._line.prints.setdefault(base.seq, {})[name] = found
        return found


def _print(item: object) -> Print:
    if isinstance(item, BaseMessage):
        return type(item), snapshot(item)
    return msgspec.json.encode(_PLAIN.encode(item))


def _same(prints: list[Any], value: list[Any]) -> int:
    """How many items a list begins with are as they were."""
    count = min(len(prints), len(value))
    for at in range(count):
        was, item = prints[at], value[at]
        if type(was) is tuple:
            if type(item) is not was[0] or item.__dict__ != was[1]:
                return at
        elif isinstance(item, BaseMessage) or _print(item) != was:
            return at
    return count


def restate(line: Line, whole: Whole) -> None:
    """Store a checkpoint again, as one that builds on no other."""
    data = pack(replace(whole, depth=0), None, {})
    data["top"] = max(whole.id, line.top or "")
    line.append_checkpoint(lambda name: [NewEvent(CHECKPOINT, data, id=name)], whole.id)
