"""The index of a JSONL store is a cache: with it or without it, lists are equal."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backtrail import NotFound
from backtrail.events import NewEvent, SessionInfo
from backtrail.stores import open_store
from backtrail.stores.jsonl import infos as jsonl_index

TICK = 0.025  # seconds after which a file counts as untouched


@pytest.fixture(autouse=True)
def always_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_index, "_WORTH", 1)


def made(root: Path, count: int = 4) -> None:
    with open_store(f"file:{root}") as store:
        for n in range(count):
            info = SessionInfo(f"s{n}", cwd=f"/p{n % 2}", title=f"title {n}", tags=["t"] * (n % 2))
            store.create(info)
            store.append(f"s{n}", [said(n)] * (n + 1))


def said(n: int) -> NewEvent:
    return NewEvent("user_message", {"message": {"role": "user", "content": f"words {n}"}})


FILTERS: tuple[dict[str, Any], ...] = ({}, {"cwd": "/p1"}, {"tag": "t"}, {"key": "k"}, {"limit": 2})


def listed(root: Path) -> list[object]:
    """What a new process finds."""
    with open_store(f"file:{root}") as store:
        found: list[object] = [store.sessions(**filters) for filters in FILTERS]
        for cwd in ("/p0", "/p1", "/nowhere"):
            try:
                found.append(store.latest(cwd))
            except NotFound:
                found.append(None)
        return found


def plain(root: Path) -> list[object]:
    """The same where there is no index: each folder is read."""
    index, aside = root / "index.json", root / "aside"
    if index.exists():
        index.rename(aside)
    found = listed(root)
    if aside.exists():
        aside.rename(index)
    return found


def change(root: Path, rng: random.Random, names: list[str]) -> None:
    """One random call that changes what a list shows."""
    with open_store(f"file:{root}") as store:
        name, what = rng.choice(names), rng.random()
        if what < 0.4:
            store.append(name, [said(rng.randrange(9))])
        elif what < 0.6:
            store.update(name, title=f"title {rng.random()}", cwd=rng.choice(["/p0", "/p1"]))
        elif what < 0.7:
            store.update(name, key=rng.choice(["k", None]) if name == names[0] else None)
        elif what < 0.8:
            store.purge(name, [1])
        elif what < 0.9:
            seq = store.info(name).head
            names.append(f"s{rng.getrandbits(64)}")
            fork = SessionInfo(names[-1], parent_id=name, relation="fork", fork_seq=seq)
            store.create(fork, base=(name, seq))
        elif len(names) > 2:
            names.remove(name)
            store.delete(name)


@pytest.mark.parametrize("seed", range(3))
def test_lists_are_those_of_a_store_without_an_index(tmp_path: Path, seed: int) -> None:
    """After any change, however soon after it."""
    rng, names = random.Random(seed), [f"s{n}" for n in range(4)]
    made(tmp_path)
    for _ in range(25):
        listed(tmp_path)
        change(tmp_path, rng, names)
        if rng.random() < 0.5:
            time.sleep(TICK)
        assert listed(tmp_path) == plain(tmp_path)
    assert (tmp_path / "index.json").stat().st_mode & 0o777 == 0o600


def test_a_list_opens_no_file_of_an_untouched_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two looks at each are enough."""
    made(tmp_path)
    time.sleep(TICK)
    wanted = listed(tmp_path)
    opened: list[str] = []
    real = os.open

    def spy(path: Any, *arguments: Any, **more: Any) -> int:
        opened.append(os.fspath(path))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", spy)
    assert listed(tmp_path) == wanted
    assert [path for path in opened if "/sessions/" in path] == []


def test_a_write_within_a_tick_of_the_clock_is_seen(tmp_path: Path) -> None:
    """A record noted right after it was written is not believed: the next write may not show."""
    made(tmp_path)
    time.sleep(TICK)
    about = tmp_path / "sessions" / "s1" / "metadata.json"
    now = time.time_ns() + 10**10  # a moment that lasts for the whole test
    os.utime(about, ns=(now, now))
    listed(tmp_path)
    rows = json.loads((tmp_path / "index.json").read_bytes())["rows"]
    assert rows["s1"][0] == [0, 0, 0, 0]
    assert rows["s2"][0] != [0, 0, 0, 0]


def lying(change: Callable[[dict[str, Any], list[Any]], None]) -> Callable[[Path], None]:
    """A forged row, with the right stamps."""

    def forge(index: Path) -> None:
        content = json.loads(index.read_bytes())
        change(content, content["rows"]["s1"])
        index.write_text(json.dumps(content))

    return forge


def truncated(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-40])


def linked(index: Path) -> None:
    index.rename(index.with_name("elsewhere"))
    index.symlink_to("elsewhere")


def a_folder(index: Path) -> None:
    index.unlink()
    index.mkdir()


def a_pipe(index: Path) -> None:
    index.unlink()
    os.mkfifo(index)


def put(name: str, value: object) -> Callable[[Path], None]:
    return lying(lambda content, row: row[4].update({name: value}))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "empty": lambda index: index.write_bytes(b""),
    "no JSON": lambda index: index.write_bytes(b"\xff\x00{"),
    "deep": lambda index: index.write_bytes(b'{"format":1,"rows":' + b"[" * 100_000),
    "truncated": truncated,
    "linked": linked,
    "a folder": a_folder,
    "a pipe": a_pipe,
    "newer": lying(lambda content, row: content.update(format=99)),
    "a row of another": lying(lambda content, row: content["rows"].update(s0=row)),
    "no session": lying(lambda content, row: content["rows"].update({"../../x": row})),
    "another id": put("id", "../../x"),
    "another scope": put("scope", "other"),
    "a parent elsewhere": put("parent_id", "../../x"),
    "no time": put("updated_at", "yesterday"),
    "a head beyond": put("head", 1 << 40),
    "a count below": put("message_count", -1),
    "a list for a title": put("title", ["x"]),
    "a relation that is none": put("relation", "friend"),
    "stamps that are none": lying(lambda content, row: row.__setitem__(0, ["a", None, 1, 2])),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_damaged_or_forged_index_is_not_believed(tmp_path: Path, how: str) -> None:
    made(tmp_path)
    time.sleep(TICK)
    wanted = listed(tmp_path)
    HOSTILE[how](tmp_path / "index.json")
    assert listed(tmp_path) == wanted
    assert listed(tmp_path) == wanted


@pytest.mark.parametrize("verb", ["delete", "update"])
def test_the_index_keeps_nothing_that_was_erased(tmp_path: Path, verb: str) -> None:
    """Also where another process lists at that moment, and saves what it read before."""
    made(tmp_path)
    time.sleep(TICK)
    listed(tmp_path)
    with open_store(f"file:{tmp_path}") as slow, open_store(f"file:{tmp_path}") as store:
        _, index = slow._infos.listed()  # type: ignore[attr-defined]
        assert b"title 2" in (tmp_path / "index.json").read_bytes()
        if verb == "delete":
            store.delete("s2")
        else:
            store.update("s2", title=None)
        assert b"title 2" not in (tmp_path / "index.json").read_bytes()
        index.save()
    assert b"title 2" not in (tmp_path / "index.json").read_bytes()
    assert listed(tmp_path) == plain(tmp_path)


def test_a_store_that_cannot_be_written_is_listed(tmp_path: Path) -> None:
    """The index is left as it is, or out."""
    made(tmp_path)
    wanted = plain(tmp_path)
    a_folder(tmp_path / "index.json")
    assert listed(tmp_path) == wanted
    assert not list(tmp_path.glob(".index.json*"))
