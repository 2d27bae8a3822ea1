"""The data types as they are in pydantic, FastAPI and msgspec."""

from __future__ import annotations

import dataclasses
import json
import warnings
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError

from backtrail import (
    Answer,
    Branch,
    Checkpoint,
    Delta,
    Event,
    Hit,
    Lease,
    Message,
    NewEvent,
    Problem,
    Result,
    Rewind,
    SessionInfo,
    State,
    ToolCall,
)
from backtrail.errors import Owner
from backtrail.exchange.copy import Copied
from backtrail.files.differences import FileDiff
from backtrail.session.filepoints import CallChanges, TurnChanges
from backtrail.session.views import FileChange

with warnings.catch_warnings():
    # Its HTTP client is about to change; either will do here.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

EVENT = Event(3, "e3", "2026-04-26T12:34:56.789Z", "user_message", {"message": {"a": [1]}}, 1)
CALL = ToolCall("c1", "bash", {"command": "ls"})
CHANGE = FileChange("a.py", "write", "", 2, 1)
DIFF = FileDiff("a.py", "modified", 2, 1)

VALUES: list[Any] = [
    EVENT,
    SessionInfo("s", key="k", relation="fork", usage={"input_tokens": 3}, tags=["t"]),
    Checkpoint("c", 3, "here", None, {"n": 1}, "2026-04-26T12:34:56.789Z", "s"),
    Message("assistant", "hi", tool_calls=[{"id": "c1"}]),
    Rewind(True, 3, 2, 1, [CHANGE], [CHANGE]),
    State("s", [{"role": "user", "content": "hi"}], {"input_tokens": 3}, 1, [CALL]),
    Problem("s", "messages", "gap", "events 2 to 3 are missing", count=2, seqs=(2, 3)),
    Hit("s", EVENT, "…hi…"),
    Branch(5, 3, 2),
    CALL,
    NewEvent("my.kind", {"n": 1}),
    Delta("text", {"text": "a"}),
    CHANGE,
    DIFF,
    CallChanges(3, "bash", [DIFF]),
    TurnChanges(2, "hi", [CallChanges(3, "bash", [DIFF])]),
    Result("hi", [{"role": "user", "content": "hi"}], {}, ["a.py"], "end_turn", event=EVENT),
    Answer("hi", {"role": "assistant", "content": "hi"}, {}, None, "end_turn", "m-1"),
    Lease("s", Owner(1, "here", "2026-04-26T12:34:56.789Z")),
    Copied(1, 2, 0),
]

every = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


@every
def test_values_are_frozen_and_small(value: Any) -> None:
    """What is shared is not changed, and there is no dictionary in each."""
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, "other")
    assert not hasattr(value, "__dict__")
    assert value == dataclasses.replace(value)


@every
def test_as_a_dictionary_a_value_is_json(value: Any) -> None:
    """`to_dict` gives what JSON can hold."""
    encoded = json.dumps(value.to_dict())
    assert json.dumps(json.loads(encoded)) == encoded


@every
def test_msgspec_takes_values_as_they_are(value: Any) -> None:
    """There and back."""
    encoded = msgspec.json.encode(value)
    assert msgspec.json.decode(encoded, type=type(value)) == value
    assert msgspec.convert(msgspec.to_builtins(value), type(value)) == value


@every
def test_pydantic_takes_values_as_they_are(value: Any) -> None:
    """There and back, with a schema, refusing what does not fit."""
    adapter: TypeAdapter[Any] = TypeAdapter(type(value))
    assert adapter.validate_json(adapter.dump_json(value)) == value
    assert adapter.validate_python(value) is value
    assert adapter.json_schema()["title"] == type(value).__name__
    with pytest.raises(ValidationError):
        adapter.validate_python({"nonsense": object()})


@every
def test_fastapi_takes_values_as_they_are(value: Any) -> None:
    """As a request body and as a response model, with an OpenAPI schema."""
    app = FastAPI()
    kind = type(value)
    seen: list[Any] = []

    async def echo(body: Any) -> Any:
        seen.append(body)
        return body

    echo.__annotations__ = {"body": kind, "return": kind}
    app.post("/echo", response_model=kind)(echo)
    app.post("/list", response_model=list[kind])(lambda: [value])  # type: ignore[valid-type]
    with TestClient(app) as client:
        row = TypeAdapter(kind).dump_python(value, mode="json")
        answer = client.post("/echo", json=row)
        assert answer.status_code == 200, answer.text
        assert seen == [value]
        assert answer.json() == row
        assert client.post("/list").json() == [row]
        assert client.post("/echo", json={"nonsense": True}).status_code == 422
        assert kind.__name__ in client.get("/openapi.json").text
