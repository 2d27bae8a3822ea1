"""Codex's rollouts become sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from backtrail import NotFound, Session, Store, open_store
from backtrail.exchange import jsonlines
from backtrail.exchange.codex import sessions as codex
from backtrail.exchange.foreign import import_found, import_session
from backtrail.exchange.foreign_record import Imported
from backtrail.exchange.transcript import all_lines

from .transcripts import encoded, rollout

Json = Any
ID = "0199aaaa-0000-7000-8000-000000000001"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store that stays open through a test."""
    with open_store(url) as place:
        yield place


def words(role: str, text: str) -> tuple[str, Json]:
    """A message of the conversation."""
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return "response_item", {"type": "message", "role": role, "content": content}


def screen(kind: str, **more: Json) -> tuple[str, Json]:
    """What the screen showed."""
    return "event_msg", {"type": kind, **more}


def tokens(total: int, last: int) -> tuple[str, Json]:
    """A count of tokens."""
    info = {"total_token_usage": {"total_tokens": total},
            "last_token_usage": {"input_tokens": last, "cached_input_tokens": 1,
                                 "output_tokens": 2, "reasoning_output_tokens": 1}}  # fmt: skip
    return screen("token_count", info=info)


META = {
    "id": ID,
    "timestamp": "2026-03-04T05:05:59.000Z",
    "cwd": "/nowhere",
    "originator": "codex_cli_rs",
    "cli_version": "0.147.0",
    "source": "cli",
    "model_provider": "openai",
    "git": {"branch": "main", "commit_hash": "abc"},
}
LINES: list[tuple[str, Json]] = [
    ("session_meta", META),
    words("developer", "be careful"),
    words("user", "<environment_context>\n<cwd>/nowhere</cwd>"),
    ("turn_context", {"cwd": "/nowhere", "model": "gpt-5.5", "approval_policy": "never"}),
    words("user", "list files"),
    screen("user_message", message="list files"),
    ("response_item", {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}),
    ("response_item", {"type": "function_call", "name": "shell", "arguments": "{}",
                       "call_id": "c1"}),
    tokens(10, 10),
    tokens(10, 10),
    ("response_item", {"type": "function_call_output", "call_id": "c1", "output": "a b"}),
    words("assistant", "a and b"),
    screen("agent_message", message="a and b"),
    tokens(25, 15),
]  # fmt: skip


def imported(store: Store, path: Path) -> Imported:
    """One rollout, imported."""
    (found,) = codex.find(path)
    return import_session(store, found)


def spoken(session: Session) -> list[Json]:
    """What was said, in short."""
    return [m.get("type") if m.get("type") != "message" else m["content"][0]["text"]
            for m in session.messages(repair=False)]  # fmt: skip


def test_a_rollout_becomes_a_session(store: Store, tmp_path: Path) -> None:
    """What the model saw is the conversation; what the screen showed is not said again."""
    result = imported(store, rollout(tmp_path, LINES, ID))
    assert (result.session_id, result.problems) == (ID, [])
    info = store.info(ID)
    assert (info.key, info.agent_name, info.model) == (f"codex:{ID}", "codex", "gpt-5.5")
    assert (info.cwd, info.created_at) == ("/nowhere", "2026-03-04T05:05:59.000Z")
    assert info.metadata["git_branch"] == "main"
    assert info.metadata["native"]["version"] == "0.147.0"
    assert info.turn_count == 1
    with Session.resume(store, ID, files=False) as s:
        assert spoken(s)[2:] == ["list files", "reasoning", "function_call",
                                 "function_call_output", "a and b"]  # fmt: skip
        # Items stay as they are, encrypted reasoning too.
        assert s.messages("responses")[3]["encrypted_content"] == "gAAA"
        assert s.pending() == []


def test_tokens_count_once(store: Store, tmp_path: Path) -> None:
    """They are stated again and again."""
    imported(store, rollout(tmp_path, LINES, ID))
    usage = store.info(ID).usage
    assert usage == {"input_tokens": 25, "cache_read_tokens": 2, "output_tokens": 4,
                     "reasoning_tokens": 2}  # fmt: skip


def test_again_and_grown(store: Store, tmp_path: Path) -> None:
    """Importing again changes nothing; a grown file adds what is new."""
    for stop in (3, 8, len(LINES)):
        path = rollout(tmp_path, LINES[:stop], ID)
        imported(store, path)
        head = store.info(ID).head
        assert imported(store, path).events == 0
        assert store.info(ID).head == head
    with Session.resume(store, ID, files=False) as s:
        assert len(spoken(s)) == 7
    raw = [kept.line.raw + b"\n" for kept in all_lines(store, ID)]
    assert b"".join(raw) == path.read_bytes()


def test_turns_rolled_back_are_a_rewind(store: Store, tmp_path: Path) -> None:
    """What was taken back stays as a branch."""
    more = [
        words("user", "two"),
        words("assistant", "second"),
        words("user", "three"),
        words("assistant", "third"),
        screen("thread_rolled_back", num_turns=2),
        words("user", "four"),
        words("assistant", "fourth"),
    ]
    imported(store, rollout(tmp_path, [*LINES, *more], ID))
    with Session.resume(store, ID, files=False) as s:
        assert spoken(s)[-3:] == ["a and b", "four", "fourth"]
        (branch,) = s.branches()
        assert branch.message_count == 4
        assert s.info().turn_count == 2


def test_rolled_back_further_than_it_goes(store: Store, tmp_path: Path) -> None:
    """Then everything is taken back."""
    lines = [words("user", "one"), screen("thread_rolled_back", num_turns=99), words("user", "two")]
    imported(store, rollout(tmp_path, lines, ID))
    with Session.resume(store, ID, files=False) as s:
        assert spoken(s) == ["two"]


def test_a_compaction_is_an_event(store: Store, tmp_path: Path) -> None:
    """With its summary, and up to where it goes."""
    more = [("compacted", {"message": "in short"}), words("user", "go on")]
    imported(store, rollout(tmp_path, [*LINES, *more], ID))
    with Session.resume(store, ID, files=False) as s:
        (event,) = s.events(kinds=("compaction",))
        assert event.data["summary"]["content"] == "in short"
        assert event.data["until"] == event.seq - 1


@pytest.mark.parametrize("wrong", [None, 7, [], {}, "x\0y", "../..", True])
def test_wrong_types_in_any_field_never_break_it(tmp_path: Path, wrong: Json) -> None:
    """Every field of every line, one at a time; every line is kept."""
    rows: list[Json] = []
    for kind, payload in [*LINES, screen("thread_rolled_back", num_turns=1), ("compacted", {})]:
        row = {"timestamp": "2026-03-04T05:06:07.000Z", "type": kind, "payload": payload}
        rows += [{**row, name: wrong} for name in row]
        rows += [{**row, "payload": {**payload, name: wrong}} for name in payload]
    path = tmp_path / "sessions" / f"rollout-2026-{ID}.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"".join(map(encoded, rows)))
    with open_store(f"sqlite:///{tmp_path}/s.db") as place:
        result = imported(place, path)
        kept = [one.line.raw + b"\n" for one in all_lines(place, result.session_id)]
        assert b"".join(kept) == path.read_bytes()
        assert place.verify() == []


def test_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Codex's home, archived ones too, in a folder, or a single file."""
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    with pytest.raises(NotFound):
        codex.find()
    path = rollout(tmp_path, LINES, ID)
    old = tmp_path / "archived_sessions" / f"rollout-2025-01-01T00-00-00-{ID[:-1]}2.jsonl"
    old.parent.mkdir()
    old.write_text(json.dumps({"type": "session_meta", "payload": META}) + "\n")
    (path.parent / "rollout-link.jsonl").symlink_to(path)
    assert [found.path for found in codex.find()] == [old, path]
    assert [found.path for found in codex.find(path.parent)] == [path]
    assert [found.id for found in codex.find(path)] == [ID]


def test_a_packed_rollout_is_read(store: Store, tmp_path: Path) -> None:
    """It is the same session as before it was packed."""
    path = rollout(tmp_path, LINES[:6], ID)
    imported(store, path)
    whole = rollout(tmp_path, LINES, ID).read_bytes()
    path.unlink()
    packed = path.with_name(f"{path.name}.zst")
    packed.write_bytes(zstandard.compress(whole))
    (found,) = codex.find(tmp_path)
    result = import_session(store, found)
    assert (result.session_id, result.created, result.path) == (ID, False, str(packed))
    with Session.resume(store, ID, files=False) as s:
        assert len(spoken(s)) == 7
    assert import_session(store, found).events == 0


@pytest.mark.parametrize("content", [b"", b"no zstd", zstandard.compress(b"x" * 100)[:-4]])
def test_a_packed_rollout_that_is_damaged_is_reported(
    store: Store, tmp_path: Path, content: bytes
) -> None:
    """Nothing is made of it, or only what can be read."""
    packed = tmp_path / f"rollout-2026-{ID}.jsonl.zst"
    packed.write_bytes(content)
    (result,) = import_found(store, codex.find(packed))
    assert result.error is not None or result.events == 0


def test_a_packed_rollout_that_never_ends_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is left of it."""
    monkeypatch.setattr(jsonlines, "_UNPACKED", 1 << 20)
    packed = tmp_path / f"rollout-2026-{ID}.jsonl.zst"
    packed.write_bytes(zstandard.compress(b"\n" * (8 << 20)))
    (result,) = import_found(store, codex.find(packed))
    assert result.error is not None and "refused" in result.error
    assert store.sessions() == []


# --- what newer versions write -----------------------------------------------------------


def test_tokens_stand_right_behind_a_response(store: Store, tmp_path: Path) -> None:
    """And once more later, which counts nothing."""
    usage = {"input_tokens": 10, "cached_input_tokens": 1, "output_tokens": 2}
    total = {"total_tokens": 12}
    lines = [
        *LINES[:8],
        ("token_usage_record", {"usage": usage, "thread_token_usage": total}),
        LINES[10],
        screen("token_count", info={"last_token_usage": usage, "total_token_usage": total}),
        words("assistant", "done"),
    ]
    imported(store, rollout(tmp_path, lines, ID))
    (event,) = [e for e in store.read(ID) if "usage" in e.data]
    assert event.data["message"]["type"] == "function_call"
    assert store.info(ID).usage["input_tokens"] == 10


def test_what_codex_says_in_the_users_name_is_no_prompt(store: Store, tmp_path: Path) -> None:
    """Newer versions note whose words they are."""

    def by(whose: str, text: str) -> tuple[str, Json]:
        kind, message = words("user", text)
        noted = {"content_item_metadata": [{"provenance": {"type": whose}}]}
        return kind, {**message, "internal_chat_message_metadata_passthrough": noted}

    lines = [LINES[0], by("harness", "something new"), by("user", "<b>hello</b>")]
    imported(store, rollout(tmp_path, lines, ID))
    kinds = [event.kind for event in store.read(ID)][1:]
    assert kinds == ["system_message", "user_message"]


@pytest.mark.parametrize(
    "named",
    [
        {"type": "CollabAgentToolCall", "receiver_thread_ids": ["{id}"]},
        {"type": "SubAgentActivity", "agent_thread_id": "{id}"},
    ],
    ids=["v1", "v2"],
)
def test_subagents_are_beside_their_session(store: Store, tmp_path: Path, named: Json) -> None:
    """Their rollouts are no sessions. The one that began them names them."""
    other, stranger = ID[:-1] + "2", ID[:-1] + "3"
    said = json.loads(json.dumps(named).replace("{id}", other))
    rollout(tmp_path, [*LINES, screen("item_completed", item=said)], ID)
    source = {"subagent": {"thread_spawn": {"parent_thread_id": ID}}}
    about = {"source": source, "thread_source": "subagent", "agent_nickname": "Ada"}
    for id in (other, stranger):
        meta = ("session_meta", {**META, "id": id, "session_id": ID, **about})
        rollout(tmp_path, [meta, words("user", "write c"), words("assistant", "c is there")], id)
    (found,) = codex.find(tmp_path)
    result = import_session(store, found)
    assert (result.session_id, result.problems) == (ID, [])
    assert [name for name in store.logs(ID) if name.startswith("subagents/")] == [
        f"subagents/{other}"
    ]
    start, *messages = store.read(ID, log=f"subagents/{other}")
    assert (start.data["prompt"], start.data["description"]) == ("write c", "Ada")
    assert [m.data["message"]["content"][0]["text"] for m in messages] == ["write c", "c is there"]
    assert len([e for e in store.read(ID) if e.kind == "user_message"]) == 1
    assert import_session(store, found).events == 0


def test_a_rollout_that_goes_on_in_another_file(store: Store, tmp_path: Path) -> None:
    """It is the same session; what its first file has behind that place is another branch."""
    meta = {**META, "history_mode": "paginated"}
    said = [words("user", "one"), words("assistant", "first"), words("user", "wrong")]
    path = rollout(tmp_path, [("session_meta", meta), *said], ID)

    def write(path: Path, lines: list[Json], first: int) -> None:
        reported = [{"ordinal": n, **line} for n, line in enumerate(lines, first)]
        path.write_bytes(b"".join(encoded(line) for line in reported))

    write(path, [json.loads(line) for line in path.read_text().splitlines()], 0)
    base = {"thread_id": ID, "end_ordinal_exclusive": 3, "end_byte_offset": 1}
    first = {"type": "session_meta", "payload": {**meta, "history_base": base}}
    kind, right = words("user", "right")
    segment = path.with_name(f"rollout-2026-03-04T06-00-00-{ID}_{ID[:-1]}9.jsonl")
    write(segment, [first, {"type": kind, "payload": right}], 3)
    found = codex.find(tmp_path)
    assert [(one.id, one.path) for one in found] == [(ID, path), (ID, segment)]
    assert [one.problems for one in import_found(store, found)] == [[], []]
    assert [info.id for info in store.sessions()] == [ID]
    with Session.resume(store, ID, files=False) as s:
        assert spoken(s) == ["one", "first", "right"]
    assert [one.events for one in import_found(store, found)] == [0, 0]
