"""`search`: words in what was said, with their surroundings."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from ..errors import InvalidData
from .call import Call
from .folder import around, is_within, masking, title
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

    def snippet(hit: Hit) -> str:
        return _masked_snippet(hit, text) if call.arguments.mask else hit.snippet

    if call.out.as_json:
        rows = []
        for hit, info in found:
            row = {
                "session_id": info.id, "title": masked(info.title) if info.title else info.title,
                "cwd": info.cwd, "seq": hit.event.seq, "id": hit.event.id, "ts": hit.event.ts,
                "kind": hit.event.kind, "snippet": snippet(hit),
            }  # fmt: skip
            rows.append(row)
        call.out.data({"text": masked(text), "hits": rows})
        return
    last = None
    for hit, info in found:
        if info.id != last:
            if last is not None:
                call.out.line()
            named = title(call.store, info, masked=masked)
            call.out.spans((named, "bold"), (f"  {short(info.id)}  {info.cwd or ''}", "dim"))
            last = info.id
        author = hit.event.kind.removesuffix("_message").replace("_", " ")
        lead: list[Span] = [(f"  {hit.event.seq:>4} ", "cyan"), (f"{author}, ", "dim")]
        when: Span = (f"{ago(hit.event.ts)}  ", "dim")
        call.out.spans(*lead, when, *_marked(snippet(hit), text))
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


def _hits(call: Call, text: str, limit: int) -> list[tuple[Hit, SessionInfo]]:
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
        found: list[tuple[Hit, SessionInfo]] = []
        hits = call.store.search(text, limit=asked)
        for hit in hits:
            family = families.get(_eldest(sessions, hit.session_id), [])
            info = next((one for one in family if _has(call.store, one, hit)), None)
            if info is not None:
                found.append((hit, info))
        # The store knows no folders: ask for more until enough of its hits are from here.
        if len(found) >= limit or len(hits) < asked:
            return found[:limit]
        asked *= 4


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
    from ..stores.query import words_of

    wanted = "|".join(re.escape(word) for word in words_of(text))
    pieces = re.split(rf"(?i)\b({wanted})\b", snippet)
    return [(piece, "bold yellow" if at % 2 else "") for at, piece in enumerate(pieces)]


COMMANDS = {
    "search": Command(
        _options,
        _run,
        """
        backtrail search rename
        backtrail search '"connection refused"' --all
        backtrail search token --mask --json
        """,
        about="Finds messages that hold all the words, whole and whatever their case.",
    )
}
