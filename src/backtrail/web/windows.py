"""A session as the page shows it: what it is, its prompts, and windows of its conversation."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from ..errors import InvalidData, NotFound
from ..events import Event
from ..events.messages import speech_of
from ..exchange.export.document import SUBAGENTS, Reader
from ..exchange.export.page import one_line, visible
from ..exchange.export.step import Call, Step, step_of
from ..files.differences import FileDiff
from ..formats.parts import Answer, Aside, Picture, Text, Thought, pretty, words
from ..session.filepoints import last_tree
from ..session.points import read_operations
from .answers import Asked
from .branches import back_to
from .home import session_row
from .outline import head_of, live

if TYPE_CHECKING:
    from ..events import Json, SessionInfo

WINDOW = 60
"""Events that a window has unless a number is given."""

_MOST = 200
_AROUND = 40
_LONG = 6_000
"""Characters of a text that a window has; the rest is fetched when it is asked for."""
_TURNS = 60


def session(asked: Asked) -> Json:
    """What a session is, and what may be done with it."""
    store, info = asked.store, asked.store.info(asked.id)
    operations = read_operations(store, info.id)
    return {
        **session_row(store, info),
        "head": head_of(store, info.id),
        "root": visible(info.root or ""),
        "files": last_tree(store, info.id) is not None,
        "subagents": _without_call(asked, info),
        "undo": _operation(asked, operations.done[-1].seq) if operations.done else None,
        "redo": _operation(asked, operations.undone[-1].seq) if operations.undone else None,
        "read_only": asked.read_only,
    }


def _without_call(asked: Asked, info: SessionInfo) -> list[Json]:
    """The subagents of which it is not known which call started them."""
    with Reader(asked.store, info) as reader:
        agents = [agent for agent in reader.agents() if agent.call is None]
    return [[visible(agent.name), one_line(agent.title)] for agent in agents]


def _operation(asked: Asked, seq: int) -> Json:
    """What an undo or redo is about, in words."""
    event = next(asked.store.read(asked.id, after=seq - 1, until=seq), None)
    if event is None:
        return {"seq": seq, "what": "the last turn"}
    if event.kind == "user_message":
        said = one_line(speech_of(event.data.get("message")), 80)
        return {"seq": seq, "what": f"the turn “{said}”"}
    went = back_to(event, asked.outlines.of(asked.store, asked.id))
    return {"seq": seq, "what": f"the rewind {went}".rstrip()}


def outline(asked: Asked) -> Json:
    """Where the history runs, and which of its events are prompts."""
    found = asked.outlines.of(asked.store, asked.id)
    return {
        "head": found.head,
        "ranges": [list(one) for one in found.ranges],
        "prompts": found.prompts,
    }


def prompts(asked: Asked) -> Json:
    """Some of the prompts, by number from `first`: what was said, and what the turn did."""
    found = asked.outlines.of(asked.store, asked.id)
    first = max(1, asked.number("first", 1) or 1)
    count = asked.count("count", _TURNS, _MOST)
    seqs = found.prompts[first - 1 : first - 1 + count]
    if not seqs:
        return {"prompts": []}
    wanted = set(seqs)
    said = asked.store.read(asked.id, after=seqs[0] - 1, until=seqs[-1], kinds=("user_message",))
    rows = [
        {
            "n": found.number_of(event.seq), "seq": event.seq, "ts": event.ts,
            "text": one_line(speech_of(event.data.get("message")), 160),
        }
        for event in said
        if event.seq in wanted
    ]  # fmt: skip
    return {"prompts": rows}


def turns(asked: Asked) -> Json:
    """What some turns did to the files: how many, and lines that came and went."""
    found = asked.outlines.of(asked.store, asked.id)
    rows: dict[str, Json] = {}
    with Reader(asked.store, asked.record()) as reader:
        for name in (asked.text("seqs") or "").split(",")[:_TURNS]:
            if name.isascii() and name.isdecimal() and len(name) < 16:
                first, last = found.turn(int(name))
                counts = reader.counts(_in_turn(asked, first, last))
                rows[name] = [counts.files, counts.insertions, counts.deletions]
    return {"turns": rows}


def _in_turn(asked: Asked, first: int, last: int) -> list[Event]:
    """The events of a turn in the history, by the numbers of its first and its last."""
    found = asked.outlines.of(asked.store, asked.id)
    return list(live(asked.store, asked.id, found, max(0, first - 1), last, 1 << 30))


def turn_events(asked: Asked, seq: int) -> list[Event]:
    """The events of the turn that begins with a prompt."""
    first, last = asked.outlines.of(asked.store, asked.id).turn(seq)
    if seq and first != seq:
        raise NotFound(f"event {seq} is no prompt of the history of session `{asked.id}`")
    return _in_turn(asked, first, last)


# --- windows -----------------------------------------------------------------------------


def window(asked: Asked) -> Json:
    """Events of the conversation: behind `after`, or up to `until`, or else the last ones."""
    limit = asked.count("limit", WINDOW, _MOST)
    log = asked.text("agent")
    if log is not None:
        return _subagent(asked, log, limit)
    after, until = asked.number("after"), asked.number("until")
    store, head = asked.store, 0
    if after is None:
        # Backwards from the end: nothing but what is shown is read.
        newest = islice(store.walk(asked.id, until=until), limit + _AROUND)
        events = list(newest)[::-1]
        shown = events[-limit:]
        head = head_of(store, asked.id) if until is not None else (shown[-1].seq if shown else 0)
    else:
        found = asked.outlines.of(store, asked.id)
        head = found.head
        last = head if until is None else min(until, head)
        earlier = list(islice(store.walk(asked.id, until=_at_most(found.ranges, after)), _AROUND))
        shown = list(live(store, asked.id, found, after, last, limit))
        end = shown[-1].seq if shown else last
        later = list(live(store, asked.id, found, end, head, _AROUND)) if shown else []
        events = [*earlier[::-1], *shown, *later]
    return {"head": head, "steps": _rows(asked, events, {event.seq for event in shown})}


def _at_most(ranges: list[tuple[int, int]], seq: int) -> int:
    """The last number of the history that is not above another one."""
    return max((min(high, seq) for low, high in ranges if low < seq), default=0)


def _subagent(asked: Asked, name: str, limit: int) -> Json:
    """The log of a subagent, in windows."""
    after = asked.number("after", 0) or 0
    log = SUBAGENTS + name
    if log not in asked.store.logs(asked.id):
        raise NotFound(f"session `{asked.id}` has no subagent `{visible(name)}`")
    events = list(asked.store.read(asked.id, log=log, after=after, limit=limit))
    with Reader(asked.store, asked.record()) as reader:
        steps = reader.steps(events, main=False)
    more = len(events) == limit
    return {"steps": [step_row(step, []) for step in steps], "more": more}


def _rows(asked: Asked, events: list[Event], wanted: set[int]) -> list[Json]:
    with Reader(asked.store, asked.record()) as reader:
        steps = reader.steps(events)
        by_seq = {event.seq: event for event in events}
        return [
            step_row(step, reader.files(by_seq[step.seq])) for step in steps if step.seq in wanted
        ]


def event(asked: Asked) -> Json:
    """One event in full: its texts as they are, up to a length that a page can show."""
    seq = int(asked.path["seq"])
    log = asked.text("agent")
    name = SUBAGENTS + log if log is not None else "messages"
    found = next(asked.store.read(asked.id, log=name, after=seq - 1, until=seq), None)
    if found is None:
        raise NotFound(f"session `{asked.id}` has no event {seq}")
    row = step_row(step_of(found), [], longest=400_000) | {"data": _raw(found)}
    return row if log is not None else row | {"place": asked.place(seq)}


def _raw(event: Event) -> str:
    return visible(pretty(dict(event.data)), 200_000)


def step_row(step: Step, files: Iterable[FileDiff], longest: int = _LONG) -> dict[str, Json]:
    """An event as the page shows it; what is empty is left out."""
    cut = _Cut(longest)
    row: dict[str, Json] = {
        "seq": step.seq, "ts": step.ts, "kind": step.kind, "speaker": step.speaker,
        "shown": step.stands, "at": step.at,
        "parts": [_part(part, cut) for part in step.parts],
        "loose": [_answer(one, cut) for one in step.loose],
        "note": cut(step.sentence),
        "by": one_line(step.by) if step.by != step.kind else "",
        "error": step.error,
        "files": [file_row(file) for file in files],
        "missing": [visible(one.row_text) for one in step.missing],
        "doubts": [visible(one) for one in step.doubts],
    }  # fmt: skip
    row["cut"] = cut.happened
    return {name: value for name, value in row.items() if value not in ("", [], False, 0)}


def file_row(file: FileDiff) -> list[Json]:
    """How a file differs: path, status, lines that came and went, old path."""
    old = None if file.old_path is None else visible(file.old_path)
    return [visible(file.path), file.status, file.insertions, file.deletions, old, file.folder]


class _Cut:
    """Cuts texts, and remembers that it did."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.happened = False

    def __call__(self, text: str) -> str:
        if len(text) <= self.longest:
            return visible(text, self.longest)
        self.happened = True
        return visible(text[: self.longest], self.longest)


def _part(part: Text | Thought | Picture | Aside | Call, cut: _Cut) -> dict[str, Json]:
    if isinstance(part, Text):
        return {"t": "text", "text": cut(part.text)}
    if isinstance(part, Thought):
        return {"t": "thought", "text": cut(part.text)}
    if isinstance(part, Picture):
        return {"t": "picture", "type": part.media_type, "data": part.data}
    if isinstance(part, Aside):
        return {"t": "aside", "title": one_line(part.title), "text": cut(words(part))}
    agent = part.subagent
    return {
        "t": "call", "id": part.id, "name": one_line(part.name), "brief": brief_of(part.arguments),
        "args": cut(pretty(part.arguments)),
        "answer": None if part.answer is None else _answer(part.answer, cut),
        "agent": None if agent is None else [agent.name, one_line(agent.title)],
    }  # fmt: skip


def _answer(one: Answer, cut: _Cut) -> dict[str, Json]:
    pictures = [{"type": picture.media_type, "data": picture.data} for picture in one.pictures]
    return {"text": cut(one.text), "failed": one.failed, "pictures": pictures}


_TELLING = ("command", "cmd", "file_path", "path", "filePath", "pattern", "query", "url",
            "description", "prompt", "input")  # fmt: skip


def brief_of(arguments: Json) -> str:
    """What a call is about, on a line: the argument that says most."""
    if isinstance(arguments, str):
        import msgspec

        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, UnicodeError):
            return one_line(str(arguments), 160)
    if not isinstance(arguments, dict):
        return one_line(pretty(arguments), 160)
    for name in _TELLING:
        value = arguments.get(name)
        if isinstance(value, list):
            value = " ".join(map(str, value))
        if isinstance(value, str) and value:
            return one_line(value, 160)
    return one_line(pretty(arguments), 160)


def check_seq(asked: Asked, name: str) -> int:
    """A number of an event that must be given."""
    found = asked.number(name)
    if found is None:
        raise InvalidData(f"`{name}` is missing")
    return found
