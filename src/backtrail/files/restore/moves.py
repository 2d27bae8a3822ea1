"""What is not captured and in another place than it shall be: planned as moves. Pure.

A thing that a call only moved goes back, onto a name that is free or becomes so. What is in
the way of a file that comes back, and is not captured itself, is put aside under a name that
the plan says. Nothing here ever deletes what the store does not have.

Things are distinguished by where they first were, and by a number where others were there, too.
Where a tree does not say which of two is meant, none of them is moved.

The outcome of a plan must be a tree, so what depends on a path that stays is held back: a directory
does not go before all in it goes, nothing comes into what is no directory, and of a move either
both ends are taken back or none. Without recursion: directories may lie deeper than Python calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from ..._startup.frozen import dataclass, replace
from ..changes.effects import Conflict
from ..names import beside, shown
from ..trees import UNREADABLE, Difference, Entry, Get, Present, alike, control_in, is_veil
from ..workspace.ignore import MOUNTED, OUR_STORE
from ..workspace.index import origin_of, plain, thing_at
from .plan import Action, Plan, Step, creation, families, removal, step_to

ASIDE = b".aside"

STRANGER = "came from where nothing is captured, so it stays"
"""Why a captured file is not deleted."""


def _never(_: bytes) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Local:
    """What only this machine knows of the present state, and no tree says.

    `was_control` says whether what is not captured at a path was once version control's,
    `is_stranger` whether a file came from where nothing is captured; None if no file did.
    """

    was_control: Callable[[bytes], bool] = _never
    is_stranger: Callable[[bytes], bool] | None = None


NOWHERE = Local()
"""Nothing is known but the trees."""

Ends = dict[bytes, set[bytes]]
"""Both ends of moves, either to the other."""


def with_moves(get: Get, present: Present, plan: Plan, local: Local) -> tuple[Plan, Ends]:
    """The plan with its moves, and their ends."""
    found = any(_is_left_out(step.before) or _is_left_out(step.after) for step in plan.steps)
    if not found and local.is_stranger is None:
        return plan, {}
    moves = _Moves(get, present, plan, local)
    moves.back(moves.settled())
    for step in plan.steps:
        if moves.steps[step.path] is step and _is_in_the_way(step):
            moves.aside(step)
    if local.is_stranger is not None:
        moves.spare(local.is_stranger)
    return replace(plan, steps=list(moves.steps.values())), moves.ends


class _Moves:
    """The steps of one plan, with moves among them."""

    def __init__(self, get: Get, present: Present, plan: Plan, local: Local) -> None:
        self._get = get
        self._present = present
        self.steps = {step.path: step for step in plan.steps}
        self.ends: Ends = {}
        self._was_control = local.was_control
        self._below = {
            step.path: {inner.path: inner for inner in found}
            for step in plan.steps
            if (found := self._opened(step)) is not None
        }

    def _opened(self, step: Step) -> Iterator[Step] | None:
        """What happens in a directory that makes way for a thing, or the other way round.

        Where that is not in the plan, as it was not known whether they are the same.
        """
        if step.action != "skip" or step.before is None or step.after is None:
            return None
        if step.before.kind == "directory" and is_veil(step.after):
            return removal(self._get, step.path, step.before)
        if step.after.kind == "directory" and is_veil(step.before):
            return creation(self._get, step.path, step.after)
        return None

    def settled(self) -> dict[bytes, bytes]:
        """Where each thing goes that can go back: its home, and where it is.

        What happens in directories at either end is planned then.
        """
        given = self.steps
        opened = set(self._below)
        while True:
            self.steps = {p: s for at in opened for p, s in self._below[at].items()} | given
            found = self._free(self._matched())
            ends = {*found, *found.values()}
            still = {at for at in opened if at in ends or _is_in_the_way(given[at])}
            if still == opened:
                self.steps = dict(given)
                for at in opened:
                    self._open(at)
                return found
            opened = still

    def _matched(self) -> dict[bytes, bytes]:
        """The things that are elsewhere than they shall be: home and present place of each."""
        sources: dict[bytes, bytes] = {}
        homes: dict[bytes, bytes] = {}
        for path, step in self.steps.items():
            here, wanted = _thing(path, step.before), _thing(path, step.after)
            if step.action == "skip" and here != wanted:
                sources |= {path: here} if here else {}
                homes |= {path: wanted} if wanted else {}
        found = _pairs(homes, sources)
        return {
            home: source
            for home, source in found.items()
            if self._may_go(sources[source], source, home)
        }

    def _may_go(self, thing: bytes, source: bytes, home: bytes) -> bool:
        """Whether a thing may have a name: no tree from elsewhere makes a repository of it."""
        return not control_in(home) or bool(control_in(thing)) or self._was_control(source)

    def _free(self, found: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Those whose home is free, or becomes so."""
        while True:
            leaving = set(found.values())
            kept = {
                home: source
                for home, source in found.items()
                if home in leaving or not _is_left_out(self.steps[home].before)
            }
            if kept == found:
                return kept
            found = kept

    def back(self, found: dict[bytes, bytes]) -> None:
        """Move things to where they were."""
        for home, source in found.items():
            reason = f"from {shown(source)}"
            step = self.steps[home]
            self.steps[home] = replace(step, action="move", reason=reason, source=source)
        for home, source in found.items():
            self._leave(source, home)

    def aside(self, step: Step) -> None:
        """Put what is in the way beside its place."""
        assert step.before is not None

        def is_free(path: bytes) -> bool:
            return path not in self.steps and self._present.at(path) is None

        name = beside(step.path, ASIDE, is_free)
        why = STRANGER if step.before.kept else _text(step.before)
        reason = f"put aside, in the way of {shown(step.path)}: {why}"
        self.steps[name] = Step(name, "move", None, step.before, reason, source=step.path)
        self._leave(step.path, name)

    def spare(self, is_stranger: Callable[[bytes], bool]) -> None:
        """Let no file go from the workspace that came from where nothing is captured.

        Where its content is wanted in another place, it is moved there. What is in the way is
        put aside, and the rest stays.
        """
        acting = [step for step in self.steps.values() if step.acts and step.action != "chmod"]
        homes = {step.after: step.path for step in acting
                 if step.action != "move" and _is_content(step.after)}  # fmt: skip
        for step in acting:
            path = step.path
            if not _is_content(step.before) or alike(step.before, step.after):
                continue
            if not is_stranger(path):
                continue
            home = homes.pop(step.before, None)
            if home is not None:
                self.back({home: path})
            elif self.steps[path].after is None:
                self.steps[path] = replace(step, action="conflict", reason=STRANGER, code="held")
            else:
                self.aside(self.steps[path])
            if self.steps[path].source:
                # The place is free for what comes.
                self.steps[path] = replace(self.steps[path], before=None)

    def _open(self, path: bytes) -> None:
        """Plan what happens in a directory at one end of a move."""
        self.steps = self._below[path] | self.steps

    def _leave(self, path: bytes, home: bytes) -> None:
        """Plan what becomes of the path that a thing leaves."""
        step = self.steps[path]
        if step.source:
            # Another thing comes.
            pass
        elif step.after is None or not step.after.kept:
            reason = f"to {shown(home)}"
            self.steps[path] = replace(step, action="move", after=None, reason=reason)
        else:
            left = step_to(path, None, step.after)
            self.steps[path] = replace(left, uncertain=step.uncertain)
        self.ends.setdefault(path, set()).add(home)
        self.ends.setdefault(home, set()).add(path)


def cannot_go(plan: Plan) -> list[tuple[str, str, int]]:
    """What is not captured, was moved, and stays where it is: path, reason and size of each.

    Mostly something else has taken its place meanwhile.
    """
    return [
        (shown(step.path), step.before.value.decode("utf-8", "replace"), step.before.size)
        for step in plan.steps
        if step.action == "skip" and step.before is not None
        and _away(step.path, step.before) not in (b"", _away(step.path, step.after))
    ]  # fmt: skip


def _away(path: bytes, entry: Entry | None) -> bytes:
    """Where the thing at a path first was; empty if that is here, or it is captured."""
    origin = origin_of(_thing(path, entry))
    return origin if origin != path else b""


def things_moved(found: Iterable[Difference]) -> dict[bytes, bytes]:
    """What is not captured and only got another name: its new path, and its old one."""
    homes: dict[bytes, bytes] = {}
    sources: dict[bytes, bytes] = {}
    for path, before, after in found:
        was, now = _thing(path, before), _thing(path, after)
        if was != now:
            sources |= {path: was} if was else {}
            homes |= {path: now} if now else {}
    return _pairs(homes, sources)


def _pairs(homes: Mapping[bytes, bytes], sources: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Which thing belongs where, as far as that is the only way to see it.

    Where a thing first was, a tree does not distinguish it from others that were there: then any of
    them may be meant.
    """
    named = {path: thing for path, thing in homes.items() if path != thing}
    there = {path: thing for path, thing in sources.items() if path != thing}
    found = _alone(named, there)
    taken = set(found.values())
    named = {path: origin_of(thing) for path, thing in named.items() if path not in found}
    there = {path: origin_of(thing) for path, thing in there.items() if path not in taken}
    found |= _alone({path: path for path in homes if homes[path] == path}, there)
    found |= _alone(named, {path: path for path in sources if sources[path] == path})
    return found


def _alone(homes: Mapping[bytes, bytes], sources: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The homes and sources of each thing that has one of both."""
    counts = (Counter(names.values()) for names in (homes, sources))
    many = {thing for count in counts for thing, n in count.items() if n > 1}
    here = {thing: path for path, thing in sources.items() if thing not in many}
    return {path: here[thing] for path, thing in homes.items()
            if thing in here and thing not in many}  # fmt: skip


def _thing(path: bytes, entry: Entry | None) -> bytes:
    """The thing that is not captured at a path; empty if what is there is captured."""
    return thing_at(path, entry) if entry is not None and not entry.kept else b""


def _is_content(entry: Entry | None) -> bool:
    return entry is not None and entry.kind in ("file", "link")


def _is_left_out(entry: Entry | None) -> bool:
    return entry is not None and not entry.kept


def _is_in_the_way(step: Step) -> bool:
    """Whether what is not captured is where something captured shall be.

    What is in an opaque directory may be what was captured before: it stays where a
    directory is wanted, unless it is known to come from another place.
    """
    if step.action != "skip" or step.before is None or step.before.kept:
        return False
    if step.after is None or not step.after.kept:
        return False
    if plain(step.before.value) in (MOUNTED, OUR_STORE) or alike(step.before, step.after):
        return False
    is_other = step.before.kind == "skipped" or thing_at(step.path, step.before) != step.path
    return step.after.kind != "directory" or is_other


def _text(entry: Entry) -> str:
    return plain(entry.value).decode("utf-8", "replace")


# --- what depends on a path that stays ---------------------------------------------------


def settled(
    get: Get, plan: Plan, moves: Mapping[bytes, set[bytes]] | None = None,
    local: Local = NOWHERE,
) -> Plan:  # fmt: skip
    """Hold back what depends on a path that stays.

    `moves` has each name of a file that was renamed, with the others next to it.
    """
    present = Present(get, plan.now)
    plan, ends = with_moves(get, present, plan, local)
    names = {**families(moves or {}), **ends}
    ordered = sorted(plan.steps, key=lambda step: step.path)
    steps = {step.path: _said(step) for step in ordered}
    staying: dict[bytes, bytes] = {}
    while _hold_up(present, steps, names) | _hold_down(present, steps, staying):
        pass
    ready = list(steps.values())
    return replace(plan, steps=ready, opened=_locked(present, ready))


def _said(step: Step) -> Step:
    """The step, a conflict where it is unreadable: what is there was captured, or would be."""
    if step.action != "skip" or step.before is None or alike(step.before, step.after):
        return step
    if step.before.kept or not step.before.value.startswith(UNREADABLE):
        return step
    why = step.before.value.decode("utf-8", "replace")
    reason = f"{why}; allow it (`chmod u+rwx`), and go back again"
    return replace(step, action="conflict", reason=reason, code="held")


def _hold_up(present: Present, steps: dict[bytes, Step], names: Mapping[bytes, set[bytes]]) -> bool:
    """Hold back what has no place to come to, parents before children; whether any was."""
    held = False
    for path, step in steps.items():
        if not step.acts:
            continue
        reason = _impossible(present, steps, step)
        if not reason:
            others = [steps[name] for name in names.get(path, ()) if name in steps]
            if any(other.action == "conflict" for other in others):
                reason = "the other end of its move stays"
        if reason:
            steps[path] = replace(step, action="conflict", reason=reason, code="held")
            held = True
    return held


def _hold_down(present: Present, steps: dict[bytes, Step], staying: dict[bytes, bytes]) -> bool:
    """Hold back directories that something stays in, children before parents.

    `staying` has for a directory that was held what stays in it.
    """
    held = False
    for path in reversed(steps):
        step = steps[path]
        stays = _staying_in(present, steps, step, staying) if step.acts else None
        if stays is not None:
            action: Action = "skip" if step.after is None else "conflict"
            reason = f"holds {shown(stays)}, which stays"
            code: Conflict = "held" if action == "conflict" else ""
            steps[path] = replace(step, action=action, reason=reason, code=code)
            staying[path] = stays
            held = True
    return held


def _impossible(present: Present, steps: Mapping[bytes, Step], step: Step) -> str:
    """Why something cannot come where the plan wants it."""
    parent = step.path.rpartition(b"/")[0]
    if step.after is None or not parent:
        return ""
    above = steps.get(parent)
    if above is None:
        there = present.at(parent)
    else:
        there = above.after if above.acts else above.before
    if there is None or there.kind != "directory":
        return f"{shown(parent)} is not a directory"
    return ""


def _staying_in(
    present: Present, steps: Mapping[bytes, Step], step: Step, staying: Mapping[bytes, bytes]
) -> bytes | None:
    """What is in a directory to go, and would not go with it."""
    if step.before is None or step.before.kind != "directory":
        return None
    if step.after is not None and step.after.kind == "directory":
        return None
    for name in present.names(step.before):
        path = step.path + b"/" + name
        other = steps.get(path)
        if other is None or not other.acts or other.after is not None:
            return staying.get(path, path)
    return None


def _locked(present: Present, steps: Iterable[Step]) -> list[tuple[bytes, int]]:
    """The directories in which the plan changes names, but no process may write."""
    seen: set[bytes] = set()
    found: dict[bytes, int] = {}
    for step in steps:
        above = step.path.rpartition(b"/")[0] if step.acts else b""
        while above and above not in seen:
            seen.add(above)
            there = present.at(above)
            if there and there.kind == "directory" and there.mode & 0o700 != 0o700:
                found[above] = there.mode
            above = above.rpartition(b"/")[0]
    return sorted(found.items())
