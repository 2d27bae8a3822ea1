"""Which of a session's changes of a path are in effect. Pure.

A change is in effect until something took it back: a rewind, an undo or a redo, which say
whose changes they took, or a later call of the session that left exactly what the earlier
one had found. Taking back the taker puts the change in effect again. So files of a session
are never what its events add up to, but what of them stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from ..._startup.frozen import NamedTuple, dataclass
from ...errors import Damaged
from ...events import Json
from ..names import hidden
from ..trees import Entry, alike

Conflict = Literal["since", "between", "shared", "doubtful", "later", "held", "during", "lost", ""]
"""Why a path is a conflict, for programs; empty where it is none.

It was changed by others `since` or in `between`; another session may have changed it (`shared`),
or a person
while the call did not run (`doubtful`); a `later` change of the session stays. It is `held` back by
what stays around it, changed `during` the restore, or its content is `lost`.
"""

WHY: dict[Conflict, str] = {
    "later": "a later change of this session stays",
    "since": "changed since by somebody else",
    "between": "somebody else changed it in between",
    "shared": "another session may have changed it at the same time",
    "doubtful": "perhaps not changed by the call, which waited, was stopped or went on in the "
    "background then",
}
"""The same for people, where nothing else is to be said."""


class Range(NamedTuple):
    """Events of a log by number, both ends included; `last` None is the newest."""

    first: int
    last: int | None

    def has(self, seq: int) -> bool:
        """Whether an event is one of those."""
        return self.first <= seq and (self.last is None or seq <= self.last)


Ranges = tuple[Range, ...]
"""Some events of a log."""


def among(seq: int, ranges: Ranges) -> bool:
    """Whether an event is one of those."""
    return any(one.has(seq) for one in ranges)


@dataclass(frozen=True, slots=True)
class Change:
    """What one event of a session did to the files: the trees around it.

    `foreign` are paths that changed in between but by others alone, `shared` those that
    this session and another changed, `uncertain` those a person may have saved meanwhile,
    `doubtful` those that perhaps changed when the call did not run.
    `goes_back` marks a rewind, undo or redo; `took` are the events whose changes it took
    back, on each path that it changed (None: it does not say).
    """

    seq: int
    before: bytes
    after: bytes
    foreign: frozenset[bytes] = frozenset()
    shared: frozenset[bytes] = frozenset()
    uncertain: frozenset[bytes] = frozenset()
    doubtful: frozenset[bytes] = frozenset()
    goes_back: bool = False
    took: Ranges | None = None


class Own(msgspec.Struct, eq=False):
    """One change of one path by the session; `taken` are the changes that it took back.

    `is_more` says that it took back earlier ones, too, which are not looked at here,
    `goes_back` that it is a rewind, an undo or a redo.
    """

    seq: int
    before: Entry | None
    after: Entry | None
    shared: bool = False
    uncertain: bool = False
    doubtful: bool = False
    in_effect: bool = True
    taken: list[Own] = []
    is_more: bool = False
    goes_back: bool = False

    def turn(self) -> None:
        """Put it in effect or out of it, and what it took back the other way."""
        turned = [self]
        while turned:
            one = turned.pop()
            one.in_effect = not one.in_effect
            turned += one.taken


class Trail:
    """The session's changes of one path, from event `start` on, in the order of the log.

    With `whole`, all of them are to be taken back together. Then a rewind that took back
    earlier changes, too, counts as a change itself: the way back leads through it.
    """

    __slots__ = ("_all", "_start", "_whole")

    def __init__(self, start: int, *, whole: bool) -> None:
        self._all: list[Own] = []
        self._start = start
        self._whole = whole

    def note(self, change: Change, path: bytes, before: Entry | None, after: Entry | None) -> None:
        """Add what a change did to the path."""
        shared, uncertain = path in change.shared, path in change.uncertain
        doubtful = path in change.doubtful
        own = Own(change.seq, before, after, shared, uncertain, doubtful)
        own.goes_back = change.goes_back
        if change.took is not None:
            self._take(own, change.took)
        elif change.goes_back:
            own.taken = self._undone(own) or self._reverted(own, strict=False)
            _turn(own.taken)
        elif not (shared or uncertain or doubtful):
            own.taken = self._reverted(own, strict=True)
            _turn(own.taken)
        self._all.append(own)

    @property
    def standing(self) -> list[Own]:
        """The changes in effect, oldest first; what only took back others is none."""
        return [own for own in self._all if own.in_effect and (own.is_more or not own.taken)]

    def _take(self, own: Own, ranges: Ranges) -> None:
        """What the event says that it took back.

        Bringing something back over what others wrote since is a change of its own: the way
        back from it leads to what they wrote. A merge keeps what they wrote, and is none.
        """
        earlier = any(one.first < self._start for one in ranges)
        if earlier and self._whole and not self._took_these(own, ranges):
            return
        last = next((o for o in reversed(self._all) if o.in_effect and among(o.seq, ranges)), None)
        if last is not None and last.goes_back and _wrote_over(last, own):
            return
        known = [one for one in self._all if one.in_effect and among(one.seq, ranges)]
        is_all = bool(known) and alike(known[0].before, own.after)
        own.is_more = earlier and not self._whole and not is_all
        for one in reversed(self._all):
            if one.in_effect and among(one.seq, ranges):
                one.turn()
                own.taken.append(one)

    def _took_these(self, own: Own, ranges: Ranges) -> bool:
        """Whether it took back changes known here and, by what it left, no earlier ones."""
        taken = [one for one in self.standing if among(one.seq, ranges)]
        return bool(taken) and alike(taken[0].before, own.after)

    def _undone(self, own: Own) -> list[Own]:
        """The last taker, if this is its exact inverse."""
        last = self._all[-1] if self._all else None
        if last is None or not (last.in_effect and last.taken):
            return []
        inverse = alike(last.after, own.before) and alike(last.before, own.after)
        return [last] if inverse else []

    def _reverted(self, own: Own, *, strict: bool) -> list[Own]:
        """The changes in effect that this one took back exactly, newest first.

        `strict`: only where no change by others lies in between.
        """
        standing = self.standing
        if not standing or not alike(standing[-1].after, own.before):
            return []
        taken: list[Own] = []
        for one in reversed(standing):
            if strict and taken and not alike(one.after, taken[-1].before):
                return []
            taken.append(one)
            if alike(one.before, own.after):
                return taken
        return []


def _wrote_over(last: Own, own: Own) -> bool:
    """Whether `own` put back exactly what `last` had found, though others had changed it since."""
    return alike(last.before, own.after) and not alike(last.after, own.before)


def _turn(taken: Iterable[Own]) -> None:
    for one in taken:
        one.turn()


def conflict_with(there: Entry | None, taken: Sequence[Own], standing: Sequence[Own]) -> Conflict:
    """Why `taken`, of the changes `standing`, cannot simply be taken back; empty if they can."""
    if list(taken) != list(standing[-len(taken) :]):
        return "later"
    if not alike(there, taken[-1].after):
        return "since"
    if any(not alike(a.after, b.before) for a, b in pairwise(taken)):
        return "between"
    if any(own.shared for own in taken):
        return "shared"
    if any(own.doubtful for own in taken):
        return "doubtful"
    return ""


def is_already(there: Entry | None, taken: Sequence[Own]) -> bool:
    """Whether a path is as it was before `taken`, and nothing that others left there is lost."""
    wanted = taken[0].before
    between = [b.before for a, b in pairwise(taken) if not alike(a.after, b.before)]
    return all(alike(entry, wanted) for entry in (there, *between))


def changes_of(
    seq: int, files: Json, *, goes_back: bool = False, took: Json = None
) -> list[Change]:
    """The changes that an event's `files` record, for a plan; `Damaged` if it is not spelled so."""

    def paths(part: Json, name: str) -> frozenset[bytes]:
        return frozenset(hidden(path) for path in part.get(name, ()))

    def digest(part: Json, name: str) -> bytes:
        found = bytes.fromhex(part[name])
        if len(found) != 32:
            raise ValueError(name)
        return found

    try:
        uncertain, doubtful = paths(files, "uncertain"), paths(files, "doubtful")
        ranges = ranges_of(took) if goes_back else None
        return [
            Change(
                seq,
                digest(part, "before"),
                digest(part, "after"),
                paths(part, "foreign"),
                paths(part, "shared"),
                uncertain,
                doubtful,
                goes_back,
                ranges,
            )
            for part in files.get("parts", [files])
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"event {seq} does not say what it did to the files: {error!r}") from error


def ranges_of(took: Json) -> Ranges | None:
    """The ranges that a `took_back` spells; None if there is none."""
    if took is None:
        return None
    found = tuple(Range(first, last) for first, last in took)
    if not all(type(n) is int for one in found for n in one):
        raise ValueError("took_back")
    return found


def closed(ranges: Ranges, head: int) -> Ranges:
    """Ranges whose open ends are at `head`; empty ones are left out."""
    ends = [Range(first, head if last is None else last) for first, last in ranges]
    return tuple(one for one in ends if one.first <= (one.last or 0))
