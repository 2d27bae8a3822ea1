"""The history of one file through all sessions of a root, for blame: whose deed each version is.

Every event that carries files says which state of the root it led to, so the events of all sessions
of a store fall into one line of time. The file is followed back along that line by its names, and
forward again by what each event did to it. Only reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from .._startup.frozen import NamedTuple
from ..errors import Damaged, NotFound
from ..events import Event, Json, SessionInfo
from ..events.calls import answers_in, calls_in
from ..events.history import BACK, root_of, tree_of
from ..files.changes.blame import OTHERS, UNKNOWN, BlameLine, Deed, History, Origin
from ..files.changes.effects import Change, changes_of
from ..files.names import shown
from ..files.restore.merge import is_binary
from ..files.restore.plan import moved
from ..files.trees import Entry, Get, alike, diff_trees, look_up
from ..stores.base import Store
from .filepoints import BACK_KINDS, author_of
from .points import Turns, prompts

_KINDS = ("user_message", "tool_result", "action", "files_changed", *BACK_KINDS)


class Moment(NamedTuple):
    """A state of the root: its tree, what others did last (`OTHERS`, or not sure), and until when.

    `until` is the last event of the session, with `root` the id of the folder then.
    """

    tree: bytes
    root: str
    until: int | None = None
    last: Origin = OTHERS


class _Claim(NamedTuple):
    """What one event says that it did in a span."""

    event: Event
    session: str
    change: Change


class _Span(NamedTuple):
    """A piece of the line of time: the trees around it, and the events whose doing it is.

    Where there is none, it is only a state that a session saw. `first` is the number of the state
    that it began with. One that is `partial` has trees of a few paths alone.
    """

    order: tuple[int, int, bool, str, int, int]
    before: bytes
    after: bytes
    claims: list[_Claim]
    first: int
    partial: bool = False


class Lineage:
    """Finds the authors of a file's lines, as a session sees its root."""

    def __init__(self, store: Store, info: SessionInfo, get: Get) -> None:
        self._store = store
        self._info = info
        self._get = get
        self._infos = {info.id: info}
        self._turns: dict[str, Turns] = {}
        self._numbers: dict[str, dict[int, int]] = {}
        self._events: dict[tuple[str, int], Event] = {}
        self._back: dict[tuple[bytes, bytes], list[Origin]] = {}

    def blame(self, path: bytes, moment: Moment, owed: Sequence[Event] = ()) -> list[BlameLine]:
        """The lines of a path at a moment; `owed` are events that are not in the log yet."""
        entry = look_up(self._get, moment.tree, path)
        if entry is None or entry.kind != "file":
            kind = "not there" if entry is None else f"a {entry.kind}, and no file"
            raise NotFound(f"`{shown(path)}` is {kind} at that point: it has no lines")
        if is_binary(self._get(entry.value)):
            raise NotFound(f"`{shown(path)}` is no text: it has no lines")
        spans = self._spans(moment, owed)
        return self._named(self._history(path, moment.tree, spans).lines(entry, moment.last))

    def _content(self, digest: bytes) -> bytes | None:
        try:
            return self._get(digest)
        except (NotFound, Damaged):
            return None

    # --- the line of time ----------------------------------------------------------------

    def _spans(self, moment: Moment, owed: Sequence[Event]) -> list[_Span]:
        """What all sessions of the root did up to a moment, and saw, in order."""
        own = [*self._read(self._info, moment.until), *owed]
        roots = list(dict.fromkeys(filter(None, map(root_of, own))))
        if moment.root and moment.root not in roots:
            roots.append(moment.root)
        places = {root: at for at, root in enumerate(roots)}
        last = max((_number(event) for event in own if root_of(event) == moment.root), default=0)
        end = (places.get(moment.root, 0), last) if moment.until is not None else None
        seen: dict[str, _Event] = {}
        for n, info in enumerate(self._sessions()):
            is_own = info.id == self._info.id
            at, number = 0, 0
            for event in own if is_own else self._read(info):
                root = root_of(event)
                if root:
                    at, number = places.get(root, -1), _number(event)
                beyond = at < 0 or (end is not None and (at, number) > end)
                if is_own or (root and not beyond):
                    # A fork has events of its parent, too.
                    name = event.id or f"{n} {event.seq}"
                    owner = self._owner(info, event.seq)
                    seen.setdefault(name, _Event(at, number, n, event, owner))
        numbers = _Numbers(seen.values())
        found = sorted(
            (span for one in seen.values() for span in one.spans(numbers)),
            key=lambda span: span.order,
        )
        return _joined(found)

    def _read(self, info: SessionInfo, until: int | None = None) -> list[Event]:
        """The events of a session that say something of files, its turns noted."""
        turns = self._turns[info.id] = Turns()
        found = []
        for event in self._store.read(info.id, until=until, kinds=_KINDS) if until != 0 else ():
            turns.note(event)
            if "files" in event.data or "tree" in event.data:
                found.append(event)
        return found

    def _sessions(self) -> list[SessionInfo]:
        """The sessions of the root, oldest first: a parent comes before its forks."""
        root = self._info.root or self._info.cwd
        found = self._store.sessions(cwd=root) if root is not None else []
        self._infos |= {one.id: one for one in found if (one.root or one.cwd) == root}
        return sorted(self._infos.values(), key=lambda one: (one.created_at, one.id))

    def _owner(self, info: SessionInfo, seq: int) -> str:
        """The session that an event is of: a fork shows its parent's as its own."""
        while info.relation == "fork" and info.parent_id and seq <= (info.fork_seq or 0):
            parent = self._infos.get(info.parent_id)
            if parent is None:
                break
            info = parent
        return info.id

    # --- one file ------------------------------------------------------------------------

    def _history(self, path: bytes, now: bytes, spans: list[_Span]) -> History:
        """The history of the file that is at a path now."""
        history = History(self._content)
        for deed, name, at in self._deeds(path, now, spans):
            if deed is None:
                history.gap()
                continue
            known = None
            if deed.back and deed.after is not None and not history.has(deed.after):
                known = self._restored(name, deed.after, spans[:at])
            history.add(deed, known)
        return history

    def _restored(self, path: bytes, entry: Entry, spans: list[_Span]) -> list[Origin] | None:
        """The authors of what comes back to a path from a time when another file had that name."""
        key = path, entry.value
        for at in range(len(spans), 0, -1) if key not in self._back else ():
            span = spans[at - 1]
            try:
                there = look_up(self._get, span.after, path)
                if there is not None and there[2:] == entry[2:] and not span.partial:
                    history = self._history(path, span.after, spans[:at])
                    self._back[key] = [origin for _, origin in history.lines(there, OTHERS)]
                    break
            except (NotFound, Damaged):
                continue
        return self._back.get(key)

    def _deeds(
        self, path: bytes, now: bytes, spans: list[_Span]
    ) -> list[tuple[Deed | None, bytes, int]]:
        """What was done to the file that is at a path now, in order, each with the path that it
        had, and the place of the span. None is for a span that cannot be read any more."""
        found: list[tuple[Deed | None, bytes, int]] = []
        tree: bytes | None = now
        for at in range(len(spans) - 1, -1, -1):
            span = spans[at]
            try:
                pieces = [(span.before, span.after, span.claims)]
                if not span.partial and tree is not None:
                    # What no session did lies between two spans.
                    pieces.insert(0, (span.after, tree, []))
                for before, after, claims in pieces:
                    deed, was = self._deed(path, before, after, claims)
                    found += [] if deed is None else [(deed, path, at)]
                    path = was
                tree = tree if span.partial else span.before
            except (NotFound, Damaged):
                tree = tree if span.partial else None
                found.append((None, path, at))
        return found[::-1]

    def _deed(
        self, path: bytes, before: bytes, after: bytes, claims: list[_Claim]
    ) -> tuple[Deed | None, bytes]:
        """What happened to the file between two trees, None if nothing; and its path before."""
        if before == after:
            return None, path
        old, new = (look_up(self._get, tree, path) for tree in (before, after))
        if alike(old, new):
            return None, path
        was = path
        if old is None and new is not None and new.kind == "file":
            was = moved(self._get, diff_trees(self._get, before, after)).get(path, path)
            old = look_up(self._get, before, was) if was != path else None
        claim = next((one for one in claims if path not in one.change.foreign), None)
        if claim is None:
            return Deed(old, new, OTHERS), was
        event, change = claim.event, claim.change
        origin = Origin("agent", claim.session, event.seq)
        if path in change.shared:
            origin = origin._replace(author="shared")
        elif path in change.uncertain or path in change.doubtful:
            origin = origin._replace(author="uncertain")
        self._events[claim.session, event.seq] = event
        return Deed(old, new, origin, event.kind in BACK_KINDS or BACK in event.data), was

    # --- for people ----------------------------------------------------------------------

    def _named(self, lines: Iterable[tuple[bytes, Origin]]) -> list[BlameLine]:
        known: dict[Origin, Mapping[str, Json]] = {}
        found = []
        for number, (line, origin) in enumerate(lines, 1):
            if origin not in known:
                known[origin] = self._described(origin)
            text = line.removesuffix(b"\n").decode("utf-8", "backslashreplace")
            found.append(BlameLine(number, text, author=origin.author, **known[origin]))
        return found

    def _described(self, origin: Origin) -> Mapping[str, Json]:
        """What is known of the call that a line comes from."""
        if not origin.session or origin.author == UNKNOWN.author:
            return {}
        event, session = self._events[origin.session, origin.event], origin.session
        agent = event.data.get("agent") or self._infos[session].agent_name
        turns = self._turns.get(session) or Turns()
        return {
            "session_id": session,
            "turn": self._number(session, turns.of(origin.event)),
            "event": origin.event,
            "tool": self._tool(session, event),
            "agent": agent if isinstance(agent, str) else None,
        }

    def _number(self, session: str, prompt: int) -> int | None:
        if session not in self._numbers:
            said = prompts(self._store, session)
            self._numbers[session] = {seq: number for number, seq in enumerate(said, 1)}
        return self._numbers[session].get(prompt)

    def _tool(self, session: str, event: Event) -> str:
        """The name of a call; a result that does not say it is of a call that a message names."""
        message = event.data.get("message")
        if event.kind != "tool_result" or "name" in event.data or not isinstance(message, dict):
            return author_of(event)
        answered = answers_in(message)
        asked = self._store.read(
            session, until=event.seq, reverse=True, kinds=("assistant_message",)
        )
        calls = chain.from_iterable(map(_calls_of, asked))
        return next((name for id, name in calls if id in answered), author_of(event))


class _Event(NamedTuple):
    """An event of a session, and where it is in the line of time: root, number, session."""

    at: int
    number: int
    n: int
    event: Event
    session: str

    def spans(self, numbers: _Numbers) -> Iterator[_Span]:
        """What it did, piece by piece; or the state that it saw."""
        event = self.event
        number = self.number
        order = self.at, number, True, event.ts or "~", self.n, event.seq
        tree = tree_of(event)
        if not _is_deed(event):
            if tree is not None:
                yield _Span(order, tree, tree, [], number)
            return
        files = event.data["files"]
        partial = files.get("partial") is True
        for change in reversed(changes_of(event.seq, files)):
            number = numbers.of(self.at, change.after, number)
            first = numbers.of(self.at, change.before, number - 1)
            place = self.at, number, False, *order[3:]
            claim = _Claim(event, self.session, change)
            yield _Span(place, change.before, change.after, [claim], first, partial)
            number = first


class _Numbers:
    """The numbers of the states of roots, as far as events name them."""

    def __init__(self, events: Iterable[_Event]) -> None:
        self._known: dict[tuple[int, bytes], list[int]] = {}
        for one in events:
            tree = tree_of(one.event)
            if tree is not None:
                self._known.setdefault((one.at, tree), []).append(one.number)
        for numbers in self._known.values():
            numbers.sort()

    def of(self, at: int, tree: bytes, most: int) -> int:
        """The last number of a state up to one; that one, if none is known."""
        known = self._known.get((at, tree), [])
        place = bisect_right(known, most)
        return known[place - 1] if place else most


def _joined(spans: Sequence[_Span]) -> list[_Span]:
    """The spans, those of several sessions as one, without what was seen in the midst of one."""
    found: list[_Span] = []
    begun: dict[int, int] = {}
    for span in reversed(spans):
        at, number = span.order[:2]
        last = found[-1] if found else None
        if not span.claims:
            if number <= begun.get(at, number):
                found.append(span)
        elif last is not None and (last.before, last.after, last.partial) == span[1:3] + span[5:]:
            last.claims.extend(span.claims)
        else:
            found.append(span)
            if not span.partial:
                begun[at] = min(span.first, begun.get(at, span.first))
    return found[::-1]


def _calls_of(event: Event) -> Iterator[tuple[str, str]]:
    message = event.data.get("message")
    for call in calls_in(message) if isinstance(message, dict) else ():
        yield call.id, call.name


def _is_deed(event: Event) -> bool:
    """Whether an event says what its session did to files, and not only what it saw."""
    files = event.data.get("files")
    is_seen = event.kind == "files_changed" and BACK not in event.data
    return isinstance(files, dict) and "after" in files and not is_seen


def _number(event: Event) -> int:
    """The number of the state that an event led to."""
    stamp = event.data.get("workspace")
    number = stamp.get("n") if isinstance(stamp, dict) else None
    return number if type(number) is int else 0
