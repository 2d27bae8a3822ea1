"""The pure part of what a session shows."""

from __future__ import annotations

from backtrail import Event, Rewind
from backtrail.events import Json
from backtrail.events.messages import paged
from backtrail.session.views import (
    FileChange,
    beyond,
    conversation,
    is_pinned,
    last_of,
    user_message,
)

from .talking import assistant, calling, result, user


def event(seq: int, kind: str, data: dict[str, Json]) -> Event:
    """An event with nothing special about it."""
    return Event(seq, f"e{seq}", "", kind, data)


def message(seq: int, kind: str, said: dict[str, Json], **data: Json) -> Event:
    """An event that holds a message."""
    return event(seq, kind, {"message": said, **data})


def test_a_conversation_is_its_messages_oldest_first() -> None:
    """Notes are left out; each message comes with its format."""
    log = [
        message(4, "assistant_message", assistant("b"), format="openai"),
        event(3, "checkpoint", {"at": 2}),
        message(2, "user_message", {"role": "user", "content": [{"type": "tool_result"}]}),
        event(1, "session_start", {}),
    ]
    shown = conversation(paged(iter(log), 2))
    assert [said["role"] for said, _ in shown] == ["user", "assistant"]
    assert [format for _, format in shown] == ["anthropic", "openai"]


def test_the_newest_pinned_prompt_stands_in_front() -> None:
    """Other system messages stay where they were said."""
    old, new = {"role": "system", "content": "old"}, {"role": "system", "content": "new"}
    other = {"role": "system", "content": "aside"}
    log = [
        message(4, "system_message", new, pinned=True),
        message(3, "system_message", other),
        message(2, "user_message", user("a")),
        message(1, "system_message", old, pinned=True),
    ]
    assert [said for said, _ in conversation(paged(iter(log), 2))] == [new, user("a"), other]
    assert is_pinned(log[0])
    assert not is_pinned(log[1])


def test_an_unknown_format_follows_from_the_message() -> None:
    """A stored format that is unknown is not believed."""
    shown = conversation(paged(iter([message(1, "user_message", user("a"), format="morse")])))
    assert shown[0][1] == "openai"


def test_results_whose_call_was_purged_are_left_out() -> None:
    """No provider takes them; others stay."""
    log = [
        message(5, "tool_result", result("c2")),
        message(4, "assistant_message", calling("c2")),
        message(3, "tool_result", result("c1")),
        event(2, "assistant_message", {"purged": True}),
        event(1, "tool_result", {"purged": True}),
    ]
    shown = [said for said, _ in conversation(paged(iter(log), 2))]
    assert shown == [assistant("[purged]"), calling("c2"), result("c2")]


def test_beyond_is_what_is_new() -> None:
    """Behind the whole conversation, with or without its prompt, repaired or not."""
    prompt = {"role": "system", "content": "P"}
    known = [prompt, user("a"), assistant("b")]
    new = [user("c")]
    assert beyond(known, [*known, *new]) == new
    assert beyond(known, [*known[1:], *new]) == new
    assert beyond(known, known) == []
    assert beyond([], new) is new
    for other in ([user("a"), *new], known[:2], [*known[:2], *new]):
        assert beyond(known, other) is other
    broken = [user("a"), calling("c1"), user("b")]
    repaired = [user("a"), calling("c1"), result("c1", "?"), user("b")]
    assert beyond(broken, [*broken, *new]) == new
    assert beyond(broken, [*repaired, *new]) == [*repaired, *new]


def test_the_last_words_of_a_speaker() -> None:
    """None if they never spoke."""
    said = [user("a"), assistant("b"), user("c")]
    assert last_of(said, "user") == user("c")
    assert last_of(said, "tool") is None


def test_what_a_person_says_becomes_a_message() -> None:
    """Text, parts, or a message as it is."""
    assert user_message("a") == user("a")
    assert user_message([{"type": "text"}]) == {"role": "user", "content": [{"type": "text"}]}
    assert user_message({"role": "human", "x": 1}) == {"role": "human", "x": 1}


def test_a_rewind_counts_lines_over_all_files() -> None:
    """As JSON it also has the words that others expect."""
    files = [FileChange("a", "write", "", 2, 1), FileChange("b", "delete", "", 0, 5)]
    rewind = Rewind(True, 3, 2, 1, files)
    assert (rewind.files_changed, rewind.insertions, rewind.deletions) == (["a", "b"], 2, 6)
    row = rewind.to_dict()
    assert row["files"][0]["path"] == "a"
    assert (row["can_rewind"], row["error"], row["files_changed"]) == (True, None, ["a", "b"])


def test_a_rewind_reads_well() -> None:
    """What goes and what happens to each file, a line each."""
    files = [
        FileChange("a.py", "write", "", 2, 1),
        FileChange("b.py", "conflict", "changed since by somebody else"),
    ]
    plan = Rewind(False, 3, 2, 1, files, files[1:], ["cannot be undone: c was not captured"])
    assert str(plan).splitlines() == [
        "would continue from event 3: 2 events dropped, 1 message left",
        "  write a.py (+2 -1)",
        "  conflict b.py (changed since by somebody else)",
        "  cannot be undone: c was not captured",
    ]
    assert str(Rewind(True, 0, 2, 0)).startswith("continues from event 0")
