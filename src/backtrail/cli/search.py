"""`search`: words in what was said, with their surroundings."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from ..errors import InvalidData
from ..exchange.shelf import is_within
from ..session.titles import title_of
from .advice import hint
from .call import Call
from .nearby import around, masking
from .numbers import Numbers
from .output import Span
from .verbs import Command, Usage, mask_option, number_option
from .wording import ago, plural, short

if TYPE_CHECKING:
    from ..events import Hit, SessionInfo
    from ..stores import Store

SHOWN = 20


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="+", metavar="TEXT", help='words; "in quotes" in a row')
    parser.add_argument("-a", "--all", action="store_true", help="in sessions of every folder")
    parser.add_argument("-s", "--session", metavar="SESSION", help="only in this session")
    number_option(parser, f"at most so many; else {SHOWN}")
    mask_option(parser)


def _run(call: Call) -> None:
    text = " ".join(call.arguments.text)
    _check(text)
    limit = SHOWN if call.arguments.number is None else max(1, call.arguments.number)
    found = _hits(call, text, limit)
    masked = masking(call.arguments.mask)
    turns: dict[str, Numbers] = {}

    def snippet(hit: Hit) -> str:
        return _masked_snippet(hit, text) if call.arguments.mask else hit.snippet

    def jump(hit: Hit, info: SessionInfo, agent: str) -> str:
        if agent:
            return hint(call, "show", short(info.id), "--subagent", agent)
        if info.id not in turns:
            turns[info.id] = Numbers(call.store, info.id)
        turn = turns[info.id].of(hit.event.seq)
        # What was rewound is in no turn that is shown.
        words = ("show", short(info.id), "--turn", str(turn)) if turn else ("log", short(info.id))
        return hint(call, *words)

    if call.out.as_json:
        rows = []
        for hit, info, agent in found:
            row = {
                "session_id": info.id, "title": title_of(call.store, info, masked=masked) or None,
                "cwd": info.cwd, "seq": hit.event.seq, "id": hit.event.id, "ts": hit.event.ts,
                "kind": hit.event.kind, "subagent": agent or None, "snippet": snippet(hit),
                "show": jump(hit, info, agent),
            }  # fmt: skip
            rows.append(row)
        call.out.data({"text": masked(text), "hits": rows})
        return
    last = None
    for hit, info, agent in found:
        if info.id != last:
            if last is not None:
                call.out.line()
            named = title_of(call.store, info, masked=masked)
            call.out.spans((named, "bold"), (f"  {short(info.id)}  {info.cwd or ''}", "dim"))
            last = info.id
        author = "subagent" if agent else hit.event.kind.removesuffix("_message").replace("_", " ")
        call.out.spans((f"  {author}, {ago(hit.event.ts)}  ", "dim"), *_marked(snippet(hit), text))
        call.out.line(f"    {jump(hit, info, agent)}", "cyan")
    everywhere = call.arguments.all or call.arguments.session
    call.out.note(
        plural(len(found), "hit") + ("" if everywhere else " here; `--all` looks everywhere")
    )


def _check(text: str) -> None:
    from ..stores.query import Query

    try:
        Query(text)
    except InvalidData as error:
        raise Usage(str(error)) from error


Found = tuple["Hit", "SessionInfo", str]
"""A hit, the session that it is in, and the subagent that said it; empty for the session itself."""


def _hits(call: Call, text: str, limit: int) -> list[Found]:
    """The first hits in the sessions that are wanted."""
    only = call.info(call.arguments.session).id if call.arguments.session else None
    folder = None if call.arguments.all or only else around(call.store)[0]
    sessions = {info.id: info for info in call.store.sessions()}
    wanted = [
        info
        for info in sessions.values()
        if (only is None or info.id == only) and (folder is None or is_within(info, folder))
    ]
    families = _families(sessions, wanted)
    asked = limit
    while True:
        found: list[Found] = []
        hits = call.store.search(text, limit=asked)
        for hit in hits:
            family = families.get(_eldest(sessions, hit.session_id), [])
            info = next((one for one in family if _has(call.store, one, hit)), None)
            if info is not None:
                found.append((hit, info, ""))
        # The store knows no folders: ask for more until enough of its hits are from here.
        if len(found) >= limit or len(hits) < asked:
            break
        asked *= 4
    found = found[:limit]
    for info in wanted:
        if len(found) < limit:
            found += _of_subagents(call.store, info, text, limit - len(found))
    # The hits of a session stay together, in the order of the first of each.
    order = {id: at for at, id in enumerate(dict.fromkeys(info.id for _, info, _ in found))}
    return sorted(found, key=lambda one: order[one[1].id])


def _of_subagents(store: Store, info: SessionInfo, text: str, limit: int) -> list[Found]:
    from itertools import islice

    from ..stores.query import Query, in_side_logs

    hits = in_side_logs(store, info.id, Query(text), "subagents/")
    return [(hit, info, name) for name, hit in islice(hits, limit)]


def _masked_snippet(hit: Hit, text: str) -> str:
    """A snippet of what is left when secrets are hidden: cut first, one would not be known."""
    from ..events.messages import text_of
    from ..formats.secrets import mask
    from ..stores.query import Query

    said, _ = mask(text_of(hit.event.data.get("message")))
    return Query(text).snippet(said)


def _families(
    sessions: dict[str, SessionInfo], wanted: list[SessionInfo]
) -> dict[str, list[SessionInfo]]:
    """Sessions by the one that they all come from: forks share what they began with."""
    families: dict[str, list[SessionInfo]] = {}
    for info in wanted:
        families.setdefault(_eldest(sessions, info.id), []).append(info)
    return families


def _eldest(sessions: dict[str, SessionInfo], id: str) -> str:
    # The id of a deleted session may be used again, by a fork of its own fork.
    seen: set[str] = set()
    while id not in seen and (info := sessions.get(id)) and info.parent_id:
        seen.add(id)
        id = info.parent_id
    return id


def _has(store: Store, info: SessionInfo, hit: Hit) -> bool:
    """Whether a session has an event: a shared one is found once, in any of those that have it."""
    if info.id == hit.session_id:
        return True
    seq = hit.event.seq
    return any(event.id == hit.event.id for event in store.read(info.id, after=seq - 1, until=seq))


def _marked(snippet: str, text: str) -> list[Span]:
    """A snippet with the words that were searched for in bold."""
    from ..stores.query import Query

    pieces = re.split(f"(?i)({Query(text).pattern.pattern})", snippet)
    return [(piece, "bold yellow" if at % 2 else "") for at, piece in enumerate(pieces)]


COMMANDS = {
    "search": Command(
        _options,
        _run,
        """
        backtrail search rename
        backtrail search 'renam*'
        backtrail search '"connection refused"' --all
        backtrail search token --mask --json
        """,
        about="Finds messages that hold all the words, whole and whatever their case; `renam*`\n"
        "finds words that begin so. What subagents said is found, too.",
    )
}
