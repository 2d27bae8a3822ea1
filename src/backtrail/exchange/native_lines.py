"""The lines of a new native session: old lines where there are some, new ones where not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

import msgspec

from ..events import MESSAGE_KINDS, Event, Format, Json, SessionInfo, now
from ..events.calls import INTERRUPTED, answer_to, answers_in, calls_in
from ..events.history import original_of
from ..events.messages import page_of, speech_of
from ..formats.anthropic import CONTINUED
from ..formats.messages import convert
from ..session.views import conversation, is_pinned
from ..settings.allowance import ORIGIN
from ..stores.base import Store
from .claude_code import format as cc
from .claude_code.written import VERSION, Chain, spoken_alone
from .codex import format as codex
from .foreign_record import native_of
from .jsonlines import Line
from .shapes import text_in
from .transcript import all_lines

Made = list[tuple[dict[str, Json], Event | None]]
"""Lines, each with the event that it is of."""


ByFile = dict[str, list[Line]]
"""Lines by the file that they are in, the oldest file first."""


class _Kept:
    """The lines of a session's transcripts, by the event they are of or come after, and by file.

    Of a stranger's lines only what `trusted` makes of them.
    """

    def __init__(
        self, store: Store, info: SessionInfo,
        trusted: Callable[[dict[str, Json]], dict[str, Json] | None],
    ) -> None:  # fmt: skip
        self.of: dict[str, ByFile] = defaultdict(lambda: defaultdict(list))
        self.behind: dict[str, ByFile] = defaultdict(lambda: defaultdict(list))
        is_strangers = info.metadata.get(ORIGIN) is not None
        # A fork begins with its parent's events, and has no transcript of its own yet.
        for session_id in _line_of(store, info):
            for kept in all_lines(store, session_id):
                value = kept.line.value
                if value is not None and is_strangers:
                    value = trusted(value)
                if value is not None:
                    line = msgspec.structs.replace(kept.line, value=value)
                    into = self.of if kept.event is not None else self.behind
                    into[kept.event or kept.behind or ""][kept.file].append(line)
            if self.of:
                return


def _line_of(store: Store, info: SessionInfo) -> Iterable[str]:
    seen: set[str] = set()
    at: SessionInfo | None = info
    while at is not None and at.id not in seen:
        seen.add(at.id)
        yield at.id
        above = at.parent_id if at.relation == "fork" else None
        found = [one for one in store.sessions() if one.id == above]
        at = found[0] if found else None


# --- Claude Code -------------------------------------------------------------------------


def claude_code_lines(
    store: Store, info: SessionInfo, history: Sequence[Event], native_id: str, cwd: str
) -> Made:
    """The history as one chain of lines."""
    kept = _Kept(store, info, spoken_alone)
    branch = text_in(info.metadata, "git_branch") or ""
    version = text_in(native_of(info), "version") or VERSION
    chain = Chain(native_id, cwd, branch, version, info.model or "unknown")
    spoken = [event for event in history if event.kind in (*MESSAGE_KINDS, "compaction")]
    old = {event.id: _claude_group(kept, event) for event in spoken}
    chain.expect(one.own_id for lines in old.values() for one in lines if one.own_id)
    made: Made = []
    for run in _runs(spoken, lambda event: bool(old[event.id])):
        before = len(chain.lines)
        if old[run[0].id]:
            for line in old[run[0].id]:
                chain.copy(line.value or {})
        elif run[0].kind == "compaction":
            chain.compact(speech_of(run[0].data.get("summary")), run[0].ts)
        else:
            for message in _converted(run, "anthropic"):
                chain.say(message, run[0].ts)
        made += _homes(chain.lines[before:], run)
    ended = list(chain.end(info.title))
    return made + [(line, None) for line in ended[len(made) :]]


def _runs(events: Sequence[Event], alone: Callable[[Event], bool]) -> Iterator[list[Event]]:
    """Events that are converted together: a call must not be parted from its result."""
    run: list[Event] = []
    for event in events:
        single = alone(event) or event.kind == "compaction"
        if run and single:
            yield run
            run = []
        if single:
            yield [event]
        else:
            run.append(event)
    if run:
        yield run


def _homes(lines: list[dict[str, Json]], run: list[Event]) -> Made:
    """Lines with their events; the last line is of the last event."""
    return [(line, run[-1] if line is lines[-1] else run[0]) for line in lines]


def _converted(run: list[Event], format: Format) -> list[dict[str, Json]]:
    """Messages in a provider's format; the system prompt is not part of a transcript."""
    said = [event for event in run if not is_pinned(event)]
    found = convert(conversation([page_of(said)]), format)
    made_up = {"role": "user", "content": CONTINUED}
    return [m for m in found if m.get("role") not in ("system", "developer") and m != made_up]


def _claude_group(kept: _Kept, event: Event) -> list[Line]:
    """The lines of an event, with what was shown to the model right behind it."""
    id = event.id if event.id in kept.of else original_of(event)
    if id not in kept.of:
        return []
    # The same event may be in several files; the first is the original.
    file, own = next(iter(kept.of[id].items()))
    links = [line for line in kept.behind[id][file] if _is_link(line)]
    parent = text_in(own[0].value, "parentUuid")
    if event.kind != "compaction" or parent is None:
        return [*own, *links]
    above = (line for files in kept.behind.values() for line in files.get(file, ()))
    return [*(line for line in above if line.own_id == parent), *own, *links]


def _is_link(line: Line) -> bool:
    """Whether a line is part of the chain without saying anything."""
    if line.own_id is None or line.get("isSidechain") is True:
        return False
    return line.get("type") != "progress" and cc.what_is(line.value or {}) == "link"


# --- Codex -------------------------------------------------------------------------------


def _between(kept: _Kept, event: Event | None, then: Event | None) -> list[Line]:
    """The lines between two events; a file that was begun later has others behind the first.

    None is before everything, and after it.
    """
    name, next_name = event.id if event else "", then.id if then else ""
    files, next_files = kept.behind.get(name, {}), kept.of.get(next_name, {})
    own = [file for file in files if file in kept.of.get(name, {})] or list(files)
    both = [file for file in own if file in next_files]
    found: list[Line] = []
    if both:
        found = files[both[-1]]
    elif own:
        # Of a turn that is no more, nothing is written.
        last = files[own[-1]]
        found = list(takewhile(lambda line: not codex.begins_turn(line.value or {}), last))
        later = [file for file in files if file in next_files and file != own[-1]]
        found += files[later[-1]] if later else []
    skipped = ("meta", "rollback")
    return [line for line in found if codex.what_is(line.value or {}) not in skipped]


def codex_lines(
    store: Store, info: SessionInfo, history: Sequence[Event], native_id: str, cwd: str
) -> Made:
    """The history as a rollout: lines as they were, with all that stood between them."""
    kept = _Kept(store, info, codex.spoken_alone)
    behind = [lines for files in kept.behind.values() for lines in files.values()]
    for lines in (*behind, *(lines for files in kept.of.values() for lines in files.values())):
        # Some were noted later than those behind them.
        lines.sort(key=lambda line: line.at)
    values = (line.value or {} for lines in behind for line in lines)
    old = next((value for value in values if codex.what_is(value) == "meta"), {})
    ts, provider = now(), text_in(info.metadata, "model_provider") or "openai"
    first = codex.meta(native_id, cwd, ts, old, provider)
    spoken = [event for event in history if event.kind in (*MESSAGE_KINDS, "compaction")]
    made: Made = [(first, None)]
    waiting: dict[str, dict[str, Json]] = {}
    runs = list(_runs(spoken, lambda e: e.id in kept.of or e.data.get("format") == "responses"))

    def add(lines: list[Line], home: Event | None) -> None:
        made.extend((codex.again(line.value or {}, native_id, cwd, old), home) for line in lines)

    add(_between(kept, None, spoken[0] if spoken else None), None)
    for number, run in enumerate(runs, 1):
        event, items = run[0], _items(run)
        answered = {id for item in items for id in answers_in(item)}
        if waiting and not answered and event.kind != "assistant_message":
            made += _interrupted(waiting, event.ts)
            waiting = {}
        waiting |= {call.id: item for item in items for call in calls_in(item)}
        if event.id in kept.of:
            add(next(reversed(kept.of[event.id].values())), event)
        else:
            made += _homes(_fresh(event, items, screen=not codex.is_numbered(old)), run)
        waiting = {id: item for id, item in waiting.items() if id not in answered}
        add(_between(kept, run[-1], runs[number][0] if number < len(runs) else None), None)
    made += _interrupted(waiting, ts)
    if not codex.is_numbered(old):
        return made
    numbered = codex.numbered([line for line, _ in made], old)
    return list(zip(numbered, [home for _, home in made], strict=True))


def _fresh(event: Event, items: list[dict[str, Json]], *, screen: bool) -> list[dict[str, Json]]:
    """Lines for what no rollout has; with `screen`, also what the screen showed."""
    if event.kind == "compaction":
        return [codex.line("compacted", item, event.ts) for item in items]
    lines: list[dict[str, Json]] = []
    for item in items:
        shown = codex.shown(item, event.ts)
        if screen and shown is not None and event.kind != "system_message":
            lines.append(shown)
        lines.append(codex.line("response_item", item, event.ts))
    return lines


def _items(run: list[Event]) -> list[dict[str, Json]]:
    """Events as items of the Responses API."""
    if run[0].kind == "compaction":
        return [{"message": speech_of(run[0].data.get("summary"))}]
    if len(run) == 1 and run[0].data.get("format") == "responses":
        message = run[0].data.get("message")
        return [message] if isinstance(message, dict) else []
    return _converted(run, "responses")


def _interrupted(waiting: dict[str, dict[str, Json]], ts: str) -> Made:
    """Results for calls that have none."""
    return [
        (codex.line("response_item", answer_to(id, item, INTERRUPTED, failed=True), ts), None)
        for id, item in waiting.items()
    ]
