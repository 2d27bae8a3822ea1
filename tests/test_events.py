"""Events, ids, times and canonical JSON."""

from __future__ import annotations

import inspect
import math
import re
import sys
import time
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, timedelta, timezone
from types import MappingProxyType
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backtrail import events
from backtrail.errors import InvalidData, InvalidId
from backtrail.events import (
    MAX_DATA,
    MAX_DEPTH,
    Checkpoint,
    Event,
    Hit,
    Json,
    Message,
    Problem,
    SessionInfo,
    check_log,
    check_session_id,
    check_text,
    check_ts,
    decode_data,
    encode_data,
    new_id,
    now,
    timestamp,
)
from backtrail.events.messages import as_message, format_of, kind_of, normal_usage, text_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=4)


def nested(depth: int) -> dict[str, Json]:
    """An object of that many levels."""
    value: dict[str, Json] = {}
    for _ in range(depth - 1):
        value = {"": value}
    return value


# --- canonical JSON ----------------------------------------------------------------------


@given(OBJECTS)
def test_data_decodes_to_an_equal_value(data: dict[str, Json]) -> None:
    """Any JSON object comes back equal, with its order of keys and its kinds of numbers."""
    encoded = encode_data(data)
    decoded = decode_data(encoded)
    assert decoded == data
    assert repr(decoded) == repr(data)
    assert decode_data(encoded.decode()) == data


@given(OBJECTS)
def test_data_is_one_line(data: dict[str, Json]) -> None:
    """Encoded data holds no line break, so that a log may have one event a line."""
    assert b"\n" not in encode_data(data)
    assert b"\r" not in encode_data(data)


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        "a\udfffb",
        {"\ud800": 1},
        math.nan,
        math.inf,
        -math.inf,
        {1: 2},
        {None: 2},
        {True: 2},
        {("a",): 2},
        b"x",
        bytearray(b"x"),
        {1},
        frozenset(),
        (1, 2),
        date(2030, 1, 1),
        datetime(2030, 1, 1),
        timedelta(1),
        1j,
        Ellipsis,
        MappingProxyType({}),
        10**5000,
        range(3),
    ],
    ids=lambda value: (
        f"{type(value).__name__} {value!r}"[:40].encode("unicode_escape").decode()
        if not isinstance(value, int)
        else "huge int"
    ),
)
def test_data_that_would_change_is_refused(value: Json) -> None:
    """What JSON cannot say, or says differently, is `InvalidData`, however deep it is."""
    for data in ({"a": value}, {"a": [0, {"b": [value]}]}):
        with pytest.raises(InvalidData):
            encode_data(data)


def test_data_has_a_limit_of_depth() -> None:
    """Up to 200 levels are fine; more, or a circle, is refused and not a crash."""
    assert decode_data(encode_data(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    circle: list[Json] = []
    circle.append(circle)
    for deep in (nested(MAX_DEPTH + 1), nested(10_000), {"a": circle}):
        with pytest.raises(InvalidData):
            encode_data(deep)


def test_data_is_refused_where_the_stack_has_no_room() -> None:
    """A caller deep in its own recursion gets `InvalidData` like any other."""

    def further_down(left: int) -> bytes:
        return further_down(left - 1) if left else encode_data(nested(MAX_DEPTH))

    with pytest.raises(InvalidData):
        further_down(sys.getrecursionlimit() - len(inspect.stack(0)) - MAX_DEPTH // 2)


def test_data_has_a_limit_of_size() -> None:
    """The limit is on the encoded bytes."""
    room = MAX_DATA - len(encode_data({"a": ""}))
    assert len(encode_data({"a": "x" * room})) == MAX_DATA
    with pytest.raises(InvalidData):
        encode_data({"a": "x" * (room + 1)})


@pytest.mark.parametrize("data", [None, [], "a", 1, [("a", 1)]], ids=repr)
def test_data_is_an_object(data: Json) -> None:
    """Neither a list nor a text is the data of an event."""
    with pytest.raises(InvalidData):
        encode_data(data)


def test_data_may_be_any_kind_of_dictionary() -> None:
    """Mappings are taken for what they hold."""
    for data in (OrderedDict(a=[1]), MappingProxyType({"a": [1]}), defaultdict(list, a=[1])):
        assert decode_data(encode_data(data)) == {"a": [1]}


@pytest.mark.parametrize("text", ["[1]", "1", '"a"', "null"])
def test_decoding_something_else_is_refused(text: str) -> None:
    """Stored data that is no object is not data."""
    with pytest.raises(InvalidData):
        decode_data(text)


# --- ids ---------------------------------------------------------------------------------


def test_new_ids_are_unique_and_have_the_shape_of_uuid7() -> None:
    """Version 7, variant 1, the time in front."""
    shape = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    before = time.time_ns() // 1_000_000
    ids = [new_id() for _ in range(5000)]
    after = time.time_ns() // 1_000_000
    assert len(set(ids)) == 5000
    for id in ids:
        assert shape.fullmatch(id)
        assert before <= int(id[:8] + id[9:13], 16) <= after
        assert check_text(id, "an id") == id


@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", fullmatch=True))
def test_session_ids_of_the_alphabet_are_taken(id: str) -> None:
    """Letters, digits, `_`, and behind the first also `.` and `-`."""
    assert check_session_id(id) == id
    assert check_log(f"{id}/{id}") == f"{id}/{id}"


@given(st.text(max_size=5) | st.sampled_from(["x" * 129, "a\n", "../x", "a/", "", "-", "."]))
def test_session_ids_of_another_alphabet_are_refused(id: str) -> None:
    """The check agrees with a naive one, and the error can be printed."""
    good = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
    if 1 <= len(id) <= 128 and set(id) <= good and id[0] not in ".-":
        assert check_session_id(id) == id
    else:
        with pytest.raises(InvalidId) as caught:
            check_session_id(id)
        str(caught.value).encode("ascii")


@pytest.mark.parametrize("log", ["a", "messages", "subagents/a.1", "a/b/c", "/".join("a" * 256)])
def test_log_names_are_parts_joined_by_slashes(log: str) -> None:
    """Each part is like a session id."""
    assert check_log(log) == log


@pytest.mark.parametrize("log", ["", "/", "a/", "/a", "a//b", "a/..", ".", "a b", "a/" * 256 + "a"])
def test_log_names_are_refused(log: str) -> None:
    """Empty parts, dots in front and more than 512 characters are not names."""
    with pytest.raises(InvalidId):
        check_log(log)


def test_text_is_printable_and_short() -> None:
    """1 to 256 printable characters."""
    for good in ("a", "x" * 256, "ü🦜 b"):
        assert check_text(good, "an id") == good
    for bad in ("", "x" * 257, "a\n", "\0", "\u2028", "\ud800", None, 5, b"a"):
        with pytest.raises(InvalidId):
            check_text(bad, "an id")


# --- time --------------------------------------------------------------------------------


def test_now_is_the_present() -> None:
    """ISO 8601, UTC, milliseconds."""
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    reported = datetime.fromisoformat(check_ts(now()))
    assert before <= reported <= datetime.now(UTC)


@given(st.lists(st.integers(0, 4_000_000_000_000), min_size=1, max_size=4))
def test_now_follows_the_clock_wherever_it_jumps(stamps: list[int]) -> None:
    """Every call gives the clock's time, forwards and backwards."""
    with mock.patch.object(events, "time", wraps=time) as clock:
        for stamp in stamps:
            clock.time_ns.side_effect = lambda stamp=stamp: stamp * 1_000_000
            assert now() == timestamp(datetime.fromtimestamp(stamp // 1000, UTC))[:-4] + (
                f"{stamp % 1000:03d}Z"
            )


@given(
    st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)),
    st.integers(-14 * 60, 14 * 60),
)
def test_timestamp_is_utc_with_milliseconds(moment: datetime, minutes: int) -> None:
    """Any zone is turned into UTC; without one it is UTC already."""
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    for when in (zoned, zoned.isoformat()):
        reported = check_ts(timestamp(when))
        assert datetime.fromisoformat(reported) == zoned.astimezone(UTC).replace(
            microsecond=zoned.microsecond // 1000 * 1000
        )
        assert timestamp(reported) == reported
    assert timestamp(moment) == timestamp(moment.replace(tzinfo=UTC))


def test_timestamp_takes_seconds() -> None:
    """Seconds since 1970, whole or not."""
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1.25) == "1970-01-01T00:00:01.250Z"
    assert timestamp("2030-01-02") == "2030-01-02T00:00:00.000Z"


def test_timestamp_refuses_other_texts() -> None:
    """What is no time is `InvalidData`."""
    for text in ("", "yesterday", "2030-13-01", "2030-01-01T25:00", "9999-12-31T23:00-02:00"):
        with pytest.raises(InvalidData):
            timestamp(text)
    for number in (math.nan, math.inf, 1e20, -1e20):
        with pytest.raises(InvalidData):
            timestamp(number)
    for bad in ("", "2030-01-01T00:00:00Z", "2030-01-01T00:00:00.000+00:00", 5, None):
        with pytest.raises(InvalidData):
            check_ts(bad)


# --- messages ----------------------------------------------------------------------------

TOOL_RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"role": "system", "content": "x"}, "system_message"),
        ({"role": "developer", "content": "x"}, "system_message"),
        ({"role": "user", "content": "x"}, "user_message"),
        ({"role": "human", "content": "x"}, "user_message"),
        ({"role": "assistant", "content": "x"}, "assistant_message"),
        ({"type": "ai", "content": "x"}, "assistant_message"),
        ({"role": "tool", "content": "x"}, "tool_result"),
        (TOOL_RESULT, "tool_result"),
        ({"type": "function_call", "call_id": "1"}, "assistant_message"),
        ({"type": "reasoning", "encrypted_content": "x"}, "assistant_message"),
        ({"type": "function_call_output", "call_id": "1"}, "tool_result"),
        ({"type": "message", "role": "user", "content": []}, "user_message"),
    ],
    ids=str,
)
def test_the_kind_follows_from_the_speaker(message: dict[str, Json], kind: str) -> None:
    """By role, by type, or by holding a tool's result."""
    assert kind_of(message) == kind


@pytest.mark.parametrize("message", [{}, {"role": "wizard"}, {"role": 5}, {"type": "thing"}])
def test_kind_of_a_stranger_is_refused(message: dict[str, Json]) -> None:
    """No message becomes the user's by mistake."""
    with pytest.raises(InvalidData):
        kind_of(message)


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ({"role": "user", "content": "x"}, "openai"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "openai"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "openai"),
        ({"role": "user", "content": [{"type": "input_text", "text": "x"}]}, "responses"),
        ({"type": "function_call", "call_id": "1"}, "responses"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]}, "anthropic"),
        ({"role": "assistant", "content": [{"type": "thinking"}]}, "anthropic"),
        (TOOL_RESULT, "anthropic"),
    ],
    ids=str,
)
def test_the_format_follows_from_the_spelling(message: dict[str, Json], name: str) -> None:
    """Plain texts count as OpenAI's."""
    assert format_of(message) == name


def test_text_is_the_words_and_nothing_opaque() -> None:
    """Signatures, ids, roles and image bytes are left out; calls and results are in."""
    message = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hmm", "signature": "SECRET"},
            {"type": "text", "text": "hello"},
            {"type": "tool_use", "id": "ID", "name": "bash", "input": {"command": "ls"}},
            {"type": "image", "source": {"data": "BYTES"}},
        ],
        "n": 5,
    }
    assert text_of(message).split() == ["hmm", "hello", "bash", "ls"]
    assert text_of("") == text_of(None) == text_of([]) == ""


@given(JSON)
def test_text_of_anything_is_text(value: Json) -> None:
    """No JSON value is a problem."""
    assert isinstance(text_of(value), str)


def test_usage_has_one_set_of_names() -> None:
    """Both providers' names, cache and reasoning details included; the rest passes."""
    openai = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 2},
        "service_tier": "default",
    }
    assert normal_usage(openai) == {
        "input_tokens": 10,
        "output_tokens": 4,
        "total_tokens": 14,
        "cache_read_tokens": 3,
        "reasoning_tokens": 2,
    }
    anthropic = {"input_tokens": 1, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 3}
    expected = {"input_tokens": 1, "cache_read_tokens": 2, "cache_write_tokens": 3}
    assert normal_usage(anthropic) == expected
    assert normal_usage({"a": True, "b": None, "c": "5", "d": {"cached_tokens": False}}) == {}


def test_messages_are_taken_in_three_forms() -> None:
    """A mapping, a `Message`, or anything that can dump itself."""

    class Model:
        def model_dump(self, *, mode: str, exclude_none: bool) -> dict[str, Json]:
            assert (mode, exclude_none) == ("json", True)
            return {"role": "user", "content": "x"}

    plain = {"role": "user", "content": "x"}
    assert as_message(plain) == as_message(Message("user", "x")) == as_message(Model()) == plain
    assert as_message(Message("tool", "x", tool_call_id="1"))["tool_call_id"] == "1"
    for bad in ("hi", None, 5, object()):
        with pytest.raises(InvalidData):
            as_message(bad)


# --- records -----------------------------------------------------------------------------


def test_records_become_json() -> None:
    """Every record has `to_dict`, whose value can be stored."""
    event = Event(3, "id", "2030-01-01T00:00:00.000Z", "note", {"a": 1})
    assert "follows" not in event.to_dict()
    assert event.previous == 2
    back = Event(4, "id", "2030-01-01T00:00:00.000Z", "note", {}, follows=1)
    assert (back.to_dict()["follows"], back.previous) == (1, 1)
    for record in (
        event,
        SessionInfo("s", metadata={"a": 1}),
        Message("user", "x"),
        Checkpoint("c", 1),
        Problem("s", "messages", "gap", seqs=(1, 2)),
        Hit("s", event, "…"),
    ):
        row = record.to_dict()
        if isinstance(record, Problem):
            row["seqs"] = list(row["seqs"])
        assert decode_data(encode_data(row)) == row
