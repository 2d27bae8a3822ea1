"""`stats`: disk space, sessions, tokens and cost."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..exchange.shelf import is_within
from .call import Call
from .verbs import Command
from .wording import moment, money, size

if TYPE_CHECKING:
    from ..events import Json, SessionInfo
    from ..stores.base import Store


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--project", metavar="DIR", help="only sessions of this folder and below")
    parser.add_argument("--since", metavar="TIME", help="only sessions changed since, such as 7d")


def _run(call: Call) -> None:
    wanted = call.arguments
    infos = call.store.sessions(after=moment(wanted.since) if wanted.since else None)
    if wanted.project is not None:
        folder = Path(wanted.project).expanduser().resolve()
        infos = [info for info in infos if is_within(info, folder)]
    disk = usage(call.store)
    found: dict[str, Json] = {
        "store": call.store.url,
        "disk": disk,
        **_sums(infos),
        "by_model": _groups(infos, lambda info: info.model or ""),
        "by_project": _groups(infos, lambda info: info.cwd or ""),
    }
    if call.out.as_json:
        call.out.data(found)
        return
    _print(call, found)


def usage(store: Store) -> dict[str, int]:
    """Bytes on the disk: of logs, of contents of files, and of what can be made again."""
    contents = index = 0
    if store.contents is not None:
        for path, count in _walk(store.contents):
            if path.name.startswith("blobs.db"):
                contents += count
            else:
                index += count
    # The contents may lie within the store's own folder.
    inner = store.contents
    sessions = sum(
        count
        for place in store.places
        for path, count in _walk(place)
        if inner is None or not path.is_relative_to(inner)
    )
    return {"sessions": sessions, "contents": contents, "index": index}


def _walk(place: Path) -> Iterable[tuple[Path, int]]:
    """Every file at or below a place, with the bytes it takes."""
    if place.is_file():
        yield place, _bytes(place)
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder, name)
            yield path, _bytes(path)


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        # Others go on working meanwhile.
        return 0


def _sums(infos: Iterable[SessionInfo]) -> dict[str, Json]:
    """What a number of sessions come to."""
    tokens: dict[str, int] = {}
    sessions = turns = messages = 0
    cost: float | None = None
    for info in infos:
        sessions += 1
        turns += info.turn_count
        messages += info.message_count
        for name, count in info.usage.items():
            tokens[name] = tokens.get(name, 0) + count
        if info.cost_usd is not None:
            cost = (cost or 0.0) + info.cost_usd
    return {
        "sessions": sessions, "turns": turns, "messages": messages, "tokens": tokens,
        "cost_usd": cost,
    }  # fmt: skip


def _groups(
    infos: list[SessionInfo], name_of: Callable[[SessionInfo], str]
) -> list[dict[str, Json]]:
    """The sums by a name, those with most turns first."""
    parts: dict[str, list[SessionInfo]] = {}
    for info in infos:
        parts.setdefault(name_of(info), []).append(info)
    rows = [{"name": name, **_sums(part)} for name, part in parts.items()]
    return sorted(rows, key=lambda row: (-row["turns"], row["name"]))


def _print(call: Call, found: dict[str, Json]) -> None:
    out, disk = call.out, found["disk"]
    out.line(found["store"], "bold")
    out.line(
        f"disk: {size(disk['sessions'])} sessions, {size(disk['contents'])} contents of files, "
        f"{size(disk['index'])} indexes"
    )
    for heading, name in (("by_model", "model"), ("by_project", "project")):
        rows = [_row(row, row["name"] or "–") for row in found[heading]]
        if rows:
            out.line()
            columns = [name, "sessions", "turns", "messages", "tokens in", "out", "cost"]
            total = [_row(found, "all")] if len(rows) > 1 and heading == "by_project" else []
            out.table(columns, [*rows, *total], right=columns[1:], styles={name: "cyan"})


def _row(row: dict[str, Json], name: str) -> list[str]:
    tokens = row["tokens"]
    numbers = [row["sessions"], row["turns"], row["messages"]]
    numbers += [tokens.get("input_tokens", 0), tokens.get("output_tokens", 0)]
    return [name, *(f"{number:,}" for number in numbers), money(row["cost_usd"])]


COMMANDS = {
    "stats": Command(
        _options,
        _run,
        """
        backtrail stats
        backtrail stats --since 30d --json
        """,
        about="Tokens and cost are those that agents reported.",
    )
}
