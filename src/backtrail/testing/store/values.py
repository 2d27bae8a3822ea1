"""Rules of values: what goes in comes back equal, or is refused before anything is written."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path

import pytest

from ...errors import InvalidData
from ...events import MAX_DATA, Json, NewEvent
from ...stores.batches import Call, drafts
from .base import ContractBase, everything, note, seqs


def nested(depth: int) -> Json:
    """Lists in lists."""
    value: Json = "core"
    for _ in range(depth):
        value = [value]
    return value


ODD = {
    "line separators": "a\u2028b\u2029c\u0085d\ne\r\nf\x0bg\x0ch",
    "emoji": "🦜🏳️‍🌈 é e\u0301 \U0010ffff",
    "NUL": "a\0b\0",
    "controls": "".join(map(chr, range(32))) + "\x7f",
    "noncharacters": "\ufeff\ufffe\uffff",
    "quotes": "'\"\\/`%s{}--;",
    "right to left": "\u202eabc",
    "64 bits": [2**63 - 1, 2**63, 2**64 - 1, -(2**63)],
    "above 64 bits": [2**64, 2**70 + 1, -(2**63) - 1, 10**400],
    "above 53 bits": [2**53 + 1, -(2**53) - 1],
    "floats": [0.1, 1e300, 5e-324, 1.7976931348623157e308, -0.0, 1e16, 123456789.123456789],
    "whole floats": [1.0, -3.0, 1e22],
    "constants": [None, True, False, 0, "", [], {}],
    "empty keys": {"": {"": {"": 1}}},
    "odd keys": {"a\0b": 1, "\n": 2, "🦜": 3, "a.b": 4, "$": 5, "1": 6, " ": 7},
    "order of keys": {"z": 1, "a": 2, "m": 3},
    "depth 150": nested(150),
    "2 MB": "0123456789abcdeé" * (2**21 // 16),
    "looks like JSON": '{"a": [1, 2]}',
    "many": list(range(5000)),
}

REFUSED = {
    "lone surrogate": "\ud800",
    "lone surrogate as key": {"\udfff": 1},
    "NaN": math.nan,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "integer key": {1: "a"},
    "None key": {None: "a"},
    "bytes": b"abc",
    "set": {1, 2},
    "tuple": (1, 2),
    "datetime": datetime(2030, 1, 1),
    "object": object(),
    "nested bytes": [{"a": [b"x"]}],
    "integer of 5000 digits": 10**5000,
    "depth 10000": nested(10_000),
}


class ValueRules(ContractBase):
    """`data` comes back equal or is refused."""

    @pytest.mark.parametrize("value", ODD.values(), ids=ODD)
    def test_value_comes_back_equal(self, tmp_path: Path, value: Json) -> None:
        """Every JSON value is read as it was written, types and order of keys included."""
        store = self.started(tmp_path)
        stored = self.put(store, "s", [NewEvent("note", {"value": value}, id="x"), note()])
        if self.persistent:
            store = self.reopen(store, tmp_path)
        events = everything(store, "s")
        assert events == stored
        assert same(events[0].data["value"], value)
        assert store.find("s", "x") == events[0]
        assert store.verify() == []

    @pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
    def test_value_is_refused(self, tmp_path: Path, value: Json) -> None:
        """What JSON would change is `InvalidData`; nothing of the batch is written."""
        store = self.started(tmp_path, events=1)
        with pytest.raises(InvalidData):
            store.append("s", [note(), NewEvent("note", {"value": value}), note()])
        with pytest.raises(InvalidData):
            store.append("s", [NewEvent("note", {"value": value})], log="side")
        assert seqs(everything(store, "s")) == [1]
        assert store.logs("s") == ["messages"]
        assert seqs(self.put(store, "s", [note()])) == [2]

    @pytest.mark.parametrize("data", [None, [], "text", 5, [("a", 1)]], ids=repr)
    def test_value_that_is_no_object_is_refused(self, tmp_path: Path, data: Json) -> None:
        """`data` is an object, not any JSON value."""
        store = self.started(tmp_path)
        with pytest.raises(InvalidData):
            store.append("s", [NewEvent("note", data)])
        assert everything(store, "s") == []

    @pytest.mark.parametrize(
        "ts",
        ["2026-13-45T99:00:00.000Z", "2026-02-30T00:00:00.000Z", "2026-01-01", "", 5],
        ids=repr,
    )
    def test_value_that_is_no_time_is_refused(self, tmp_path: Path, ts: str) -> None:
        """A given `ts` is a time that there is, in the one form."""
        store = self.started(tmp_path)
        for event in (NewEvent("note", {}, ts=ts), NewEvent("note", {}, ts=ts, id="x")):
            with pytest.raises(InvalidData):
                store.append("s", [event])
        assert everything(store, "s") == []

    def test_value_of_a_kind_may_be_any_printable_text(self, tmp_path: Path) -> None:
        """One event after another, by themselves and together."""
        kinds = ['say "it"', "a\\b", "{}", '"', "größer ✓"]
        store = self.started(tmp_path)
        for kind in kinds:
            self.put(store, "s", [NewEvent(kind, {})])
        store.append_each([Call("s", drafts([NewEvent(kind, {})])) for kind in kinds])
        assert [event.kind for event in everything(store, "s")] == kinds * 2
        assert store.verify() == []

    def test_value_over_the_limit_is_refused(self, tmp_path: Path) -> None:
        """A body above 64 MB is `InvalidData`."""
        store = self.started(tmp_path)
        with pytest.raises(InvalidData):
            store.append("s", [note(), NewEvent("note", {"value": "x" * MAX_DATA})])
        assert everything(store, "s") == []

    def test_value_of_metadata_comes_back_equal(self, tmp_path: Path) -> None:
        """Session records keep odd values as events do."""
        store = self.started(tmp_path)
        odd = {name: value for name, value in ODD.items() if value is not None}
        store.update("s", metadata=odd, title=ODD["NUL"], model=ODD["line separators"])
        if self.persistent:
            store = self.reopen(store, tmp_path)
        info = store.info("s")
        assert same(info.metadata, odd)
        assert (info.title, info.model) == (ODD["NUL"], ODD["line separators"])
        assert store.verify() == []


def same(one: Json, other: Json) -> bool:
    """Whether two JSON values are equal to the letter: 1 is not 1.0, nor True."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return repr(one) == repr(other)
    return bool(one == other)
