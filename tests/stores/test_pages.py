"""`pages` against `walk`: the fast way to the messages shows what the plain one shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.talking import result, user

from backtrail import Session
from backtrail.events import Event, Json, NewEvent, Problem, SessionInfo
from backtrail.events.calls import repair
from backtrail.events.history import walk_pages
from backtrail.events.messages import Page, Said, page_of, paged, said_in
from backtrail.session.views import conversation, spoken
from backtrail.stores import Store, open_store
from backtrail.stores.buffered import Buffered
from backtrail.stores.jsonl import file, reading
from backtrail.stores.jsonl.lines import encode_line
from backtrail.stores.sqlite import pages as sqlite_pages

URLS = {
    "sqlite": "sqlite:///{place}/x.db",
    "jsonl": "file:{place}/store",
    "memory": "memory:{place}",
}
Shown = tuple[int, str, int | None, Said]


def opened(scheme: str, place: Path, reported: list[Problem] | None = None) -> Store:
    return open_store(URLS[scheme].format(place=place), on_damage=(reported or []).append)


def in_pages(pages: Iterator[Page]) -> list[Shown]:
    """Everything in pages, oldest first; fields that no view looks at are left out."""
    columns = [zip(p.seqs, p.kinds, p.follows, p.said, strict=True) for p in pages]
    return [
        (seq, kind, follows, Said(said.message, said.format, said.pinned, said.purged))
        for page in reversed(columns)
        for seq, kind, follows, said in page
        if kind.endswith("_message") or kind == "tool_result"
    ]


def walked(store: Store, id: str, until: int | None) -> list[Shown]:
    """The same by `walk`."""
    return in_pages(paged(store.walk(id, until=until), 7))


def same(store: Store, id: str, until: int | None = None) -> None:
    assert in_pages(store.pages(id, until=until)) == walked(store, id, until)


@contextmanager
def small_pages(most: int) -> Iterator[None]:
    """Pages so small that a short log has many."""
    with ExitStack() as stack:
        for module, name in (
            (reading, "FIRST"),
            (reading, "MOST"),
            (reading, "_CACHED"),
            (file, "FIRST"),
            (file, "MOST"),
            (sqlite_pages, "_PAGE_BYTES"),
        ):
            stack.enter_context(patch.object(module, name, most))
        stack.enter_context(patch.object(sqlite_pages, "_FIRST_PAGE", 3))
        stack.enter_context(patch.object(sqlite_pages, "_LAST_PAGE", 11))
        yield


def some_event(rng: random.Random, number: int) -> NewEvent:
    """A message of some kind, a note, or a prompt."""
    text = f"{number} " + "größer ↵\n" * rng.randrange(6)
    data: dict[str, Json] = {"message": user(text), "format": rng.choice(["openai", "?", None])}
    choice = rng.randrange(9)
    if choice == 0:
        return NewEvent("my.note", {"message": 5, "list": [text]})
    if choice == 1:
        return NewEvent("checkpoint", {"at": number, "label": None})
    if choice == 2:
        prompt = {"role": "system", "content": text}
        return NewEvent("system_message", {"message": prompt, "pinned": rng.random() < 0.7})
    if choice == 3:
        data |= {"usage": {"input_tokens": 3}, "cost_usd": 0.5}
    if choice == 4:
        data |= {"mine": {"nested": [text]}, "message": rng.choice([user(text), None, "?"])}
    if choice == 5:
        return NewEvent("tool_result", {"message": result("c1", text), "format": "openai"})
    return NewEvent(rng.choice(["user_message", "assistant_message"]), data)


def grow(
    store: Store, id: str, rng: random.Random, head: int, count: int, jumps: float = 0.15
) -> int:
    """Append batches, some of which go back."""
    while count > 0:
        batch = [some_event(rng, head + n) for n in range(1, 1 + rng.choice([1, 1, 2, 5, 30]))]
        if head and rng.random() < jumps:
            first = batch[0]
            batch[0] = NewEvent(first.kind, first.data, follows=rng.randrange(head + 1))
        head = store.append(id, batch)[-1].seq
        count -= len(batch)
    return head


@pytest.mark.parametrize("most", [300, 2000, 1 << 17])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scheme", URLS)
def test_any_log(tmp_path: Path, scheme: str, seed: int, most: int) -> None:
    """Rewinds, forks, purges and notes of others: every history is the same both ways."""
    rng = random.Random(seed)
    reported: list[Problem] = []
    with small_pages(most), opened(scheme, tmp_path, reported) as store:
        store.create(SessionInfo("a"))
        head = grow(store, "a", rng, 0, 120)
        store.purge("a", rng.sample(range(1, head), 6))
        cut = rng.randrange(1, head)
        store.create(SessionInfo("b", parent_id="a", fork_seq=cut), base=("a", cut))
        grow(store, "b", rng, cut, 40)
        grow(store, "a", rng, head, 40)
        for id in ("a", "b"):
            same(store, id)
            for until in (0, 1, cut, head - 1, head, head + 9999):
                same(store, id, until)
            entries = conversation(paged(store.walk(id), 5))
            plain = [message for message, _ in entries]
            with Session.open(store, id) as session:
                assert session.messages(repair=False) == plain
                assert session.messages() == repair(plain)
        with Buffered(store, owns=False) as buffered:
            buffered.append("a", [some_event(rng, 0)])
            same(buffered, "a")
    assert reported == []


def reported_by(scheme: str, place: Path, read: Callable[[Store], object]) -> set[tuple[Any, ...]]:
    """The damage that a read meets, in a store of its own.

    Without copies of lines: of a block of them, pages that begin in it know only a part.
    """
    reported: list[Problem] = []
    with open_store(URLS[scheme].format(place=place), on_damage=reported.append) as store:
        read(store)
    return {(problem.what, problem.seqs) for problem in reported if problem.what != "duplicate"}


def same_damage(scheme: str, place: Path) -> set[tuple[Any, ...]]:
    fast = reported_by(scheme, place, lambda store: list(store.pages("a")))
    assert fast == reported_by(scheme, place, lambda store: list(store.walk("a")))
    return fast


BODIES = (
    b'{"cut',
    b"[]",
    b"\xff",
    b'{"message":{"role":"user"},"usage":"\xff"}',
    b'{"message":{"role":"user"},"other":"\xff"}',
    b'{"message":{"role":"user"},"other":1e999}',
    b'{"purged":true}\n{"purged":true}',
    b"",
)


@pytest.mark.parametrize("body", BODIES)
def test_damaged_rows(tmp_path: Path, body: bytes) -> None:
    """A row that cannot be decoded costs that row and is reported, whichever field is hit."""
    with opened("sqlite", tmp_path) as store:
        store.create(SessionInfo("a"))
        grow(store, "a", random.Random(1), 0, 60, jumps=0)
    connection = apsw.Connection(f"{tmp_path}/x.db")
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    with connection:
        change = "UPDATE events SET data = CAST(? AS TEXT), follows = NULL WHERE key & 7 = 3"
        connection.execute(change, (body,))
        connection.execute("UPDATE events SET follows = NULL, kind = 'x' WHERE key & 31 = 5")
        connection.execute("UPDATE events SET id = CAST(x'ff' AS TEXT) WHERE key & 127 = 7")
    connection.close()
    with small_pages(2000), opened("sqlite", tmp_path) as store:
        same(store, "a")
        assert in_pages(store.pages("a"))
        assert len(same_damage("sqlite", tmp_path)) > 5


def test_a_row_that_follows_itself(tmp_path: Path) -> None:
    """Damage to `follows` does not make a read go round for ever."""
    with opened("sqlite", tmp_path) as store:
        store.create(SessionInfo("a"))
        store.append("a", [some_event(random.Random(n), n) for n in range(9)])
        connection = apsw.Connection(f"{tmp_path}/x.db")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("UPDATE events SET follows = 7 WHERE key & 15 IN (5, 7)")
        connection.close()
        assert [event.seq for event in store.history("a")] == [1, 2, 3, 4, 6, 8, 9]
        same(store, "a")


def damaged(lines: list[bytes], rng: random.Random) -> list[bytes]:
    """A few lines torn, doubled, lost, glued or changed; the end of a batch among them."""
    lines = list(lines)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(lines))
        line = lines[at]
        lines[at : at + 1] = rng.choice(
            [
                [],
                [line[: len(line) // 2] + b"\n"],
                [line[: len(line) // 2]],
                [b"\0" * 40 + line],
                [b"\n", line],
                [line.replace(b'"seq":1', b'"seq":2', 1)],
                [line, *lines[max(0, at - rng.randrange(30)) : at + 1]],
            ]
        )
    return lines


@pytest.mark.parametrize("most", [300, 2000, 1 << 17])
@pytest.mark.parametrize("jumps", [0, 0.15])
@pytest.mark.parametrize("seed", range(20))
def test_damaged_lines(tmp_path: Path, seed: int, jumps: float, most: int) -> None:
    """A bad line costs that line, a torn batch is left out, on either way."""
    rng = random.Random(seed)
    with opened("jsonl", tmp_path) as store:
        store.create(SessionInfo("a"))
        grow(store, "a", rng, 0, 80, jumps)
    path = tmp_path / "store/sessions/a/messages.jsonl"
    path.write_bytes(b"".join(damaged(path.read_bytes().splitlines(keepends=True), rng)))
    with small_pages(most), opened("jsonl", tmp_path) as store:
        same(store, "a")
        same(store, "a", 40)
        # What was abandoned is met or not depending on where pages begin.
        if not jumps:
            same_damage("jsonl", tmp_path)


def test_a_purge_while_pages_are_read(tmp_path: Path) -> None:
    """The file is replaced; the pages that follow are found in the new one."""
    with small_pages(300), opened("jsonl", tmp_path) as store:
        store.create(SessionInfo("a"))
        store.append("a", [NewEvent("user_message", {"message": user(str(n))}) for n in range(50)])
        pages = store.pages("a")
        first = next(pages)
        store.purge("a", [1, 50])
        found = in_pages(iter([first, *pages]))
        assert [seq for seq, *_ in found] == list(range(1, 51))
        assert found[0][3].purged is True


def test_a_sum_that_is_right_over_a_line_that_is_not(tmp_path: Path) -> None:
    """What has a check sum and is no event is left out on either way."""
    with opened("jsonl", tmp_path) as store:
        store.create(SessionInfo("a"))
        store.append("a", [some_event(random.Random(n), n) for n in range(9)])
        path = tmp_path / "store/sessions/a/messages.jsonl"
        for seq, body in enumerate((b"[]", b'"x"', b'{"message":'), 10):
            event = Event(seq, f"e{seq}", "2030-01-01T00:00:00.000Z", "user_message", {})
            with path.open("ab") as file:
                file.write(encode_line(event, body))
        same(store, "a")
        assert len(same_damage("jsonl", tmp_path)) == 3


# --- pure --------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_walking_in_pages(data: st.DataObject) -> None:
    """Jumps within a page, to another one, and to the very beginning."""
    count = data.draw(st.integers(1, 25))
    jumps = data.draw(st.dictionaries(st.integers(1, count), st.integers(0, 24), max_size=6))
    lost = data.draw(st.sets(st.integers(1, count), max_size=4))
    size = data.draw(st.integers(1, 6))
    events = {
        seq: Event(seq, "", "", "x", {}, jumps[seq] if jumps.get(seq, seq) < seq else None)
        for seq in range(1, count + 1)
        if seq not in lost
    }

    def read_back(until: int | None) -> Iterator[Page]:
        top = count if until is None else until
        seqs = [seq for seq in sorted(events) if seq <= top]
        for end in range(len(seqs), 0, -size):
            yield page_of([events[seq] for seq in seqs[max(0, end - size) : end]])

    live: list[int] = []
    at = count
    while at > 0:
        event = events.get(at)
        live += [at] if event else []
        at = event.previous if event else at - 1
    found = [seq for page in walk_pages(read_back, None) for seq in reversed(page.seqs)]
    assert found == live


def test_only_views_of_pages_pause_the_collector() -> None:
    """Whatever a page raises, garbage is collected again."""
    import gc

    def failing() -> Iterator[Page]:
        assert not gc.isenabled()
        yield Page([1], ["user_message"], [None], [said_in({"message": user("a")})])
        raise KeyError

    with pytest.raises(KeyError):
        spoken(failing())
    assert gc.isenabled()
