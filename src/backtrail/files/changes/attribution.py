"""Which call changed what: from the transitions in a bracket to the changes that are its own.

A tool that declares its paths owns a change of these; any other change belongs to
the calls that declared nothing. Of the calls of one session, the first to end claims what
they may all have done. What calls of several sessions may have done is *shared*. So is it
with calls of other stores and roots that a call met: a path that one of these declared, and
the call did not, is not the call's.

What changed after the last sign of life of a call that was not ended is perhaps not its own. Pure
but for these signs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from ...errors import BacktrailError
from ...events import Json
from ..beneath import descriptor
from ..names import shown
from ..trees import Get, diff_trees
from ..workspace.index import origin_of, thing_at
from .brackets import Bracket, Met, Transition

if TYPE_CHECKING:
    from ...stores.base import Store


class Part(msgspec.Struct, frozen=True):
    """A span of a call: the trees around it, and what in between is not the call's alone.

    `sessions` are those of others whose calls may have changed what is `shared`.
    """

    before: bytes
    after: bytes
    foreign: list[bytes] = []
    shared: list[bytes] = []
    sessions: list[str] = []


class Attributed(msgspec.Struct, frozen=True):
    """What a call did to the files, as its event carries it.

    `before` and `after` are the trees around the call. `parts` are the spans its changes
    are in. `uncertain` are paths a person may have saved meanwhile, `lost` are things that
    went and were not captured: they cannot be undone. `doubtful` are paths that changed while
    a person was asked whether the call may run, or after its agent gave it up: going back
    leaves them, unless it is forced.
    """

    before: bytes
    after: bytes
    parts: list[Part]
    uncertain: list[bytes]
    lost: list[bytes]
    doubtful: list[bytes] = []

    def to_dict(self) -> dict[str, Json]:
        """The `files` of an event's data; lists only where they say something."""
        data: dict[str, Json] = {"before": self.before.hex(), "after": self.after.hex()}
        if self.parts != [Part(self.before, self.after)]:
            data["parts"] = [
                {"before": part.before.hex(), "after": part.after.hex()}
                | ({"foreign": _names(part.foreign)} if part.foreign else {})
                | ({"shared": _names(part.shared)} if part.shared else {})
                | ({"sessions": part.sessions} if part.sessions else {})
                for part in self.parts
            ]
        if self.uncertain:
            data["uncertain"] = _names(self.uncertain)
        if self.lost:
            data["lost"] = _names(self.lost)
        if self.doubtful:
            data["doubtful"] = _names(self.doubtful)
        return data


def attribute(
    get: Get, bracket: Bracket, tree: bytes, transitions: Iterable[Transition],
    open_now: Collection[str], *, long: bool, met: Collection[Met] = (), late: bool = False,
    doubt: Callable[[bytes], bool] | None = None,
) -> Attributed | None:  # fmt: skip
    """What `bracket`, which ends with `tree`, changed; None if nothing.

    `open_now` are the brackets still open, `met` the calls elsewhere that were; `long` says
    that a person may well have saved something meanwhile. The end of a call that is found
    `late` may be long ago: then that goes for the paths it declared, too. `doubt` says of a
    path that perhaps it changed when the call did not run.
    """
    parts: list[Part] = []
    mine: set[bytes] = set()
    lost: list[bytes] = []
    for transition in transitions:
        part, own, gone = _part(get, bracket, transition, open_now, met)
        if not own:
            continue
        mine |= own
        lost += gone
        last = parts[-1] if parts else None
        if last and last.after == part.before and not (last.foreign or last.shared
                                                       or part.foreign or part.shared):  # fmt: skip
            parts[-1] = Part(last.before, part.after)
        else:
            parts.append(part)
    parts = [part for part in parts if part.before != part.after]
    if not parts:
        return None
    uncertain = sorted(mine) if long and (late or bracket.paths is None) else []
    doubtful = sorted(path for path in mine if doubt(path)) if doubt is not None else []
    return Attributed(bracket.tree, tree, parts, uncertain, sorted(set(lost)), doubtful)


def _part(
    get: Get, bracket: Bracket, transition: Transition, open_now: Collection[str],
    met: Collection[Met],
) -> tuple[Part, set[bytes], list[bytes]]:  # fmt: skip
    """One transition seen from a bracket: its own paths, and what was lost with them."""
    own: set[bytes] = set()
    foreign: list[bytes] = []
    shared: list[bytes] = []
    lost: list[tuple[bytes, bytes]] = []
    moved: set[bytes] = set()
    sessions: set[str] = set()
    for path, before, after in diff_trees(get, transition.before, transition.after):
        if after is not None and not after.kept:
            moved.add(origin_of(thing_at(path, after)))
        claims, elsewhere = _claims(transition.brackets, met, path)
        claimed = any(
            other.owner == bracket.owner and other.id != bracket.id and other.id not in open_now
            for other in claims
        )
        if claimed or all(other.id != bracket.id for other in claims):
            foreign.append(path)
            continue
        own.add(path)
        others = {other.owner for other in claims if other.owner != bracket.owner}
        if elsewhere or others:
            shared.append(path)
            sessions |= others | {one.owner.partition("@")[0] for one in met if elsewhere}
        if before is not None and not before.kept and (after is None or after.kept):
            lost.append((path, origin_of(thing_at(path, before))))
    gone = [path for path, thing in lost if thing not in moved]
    part = Part(transition.before, transition.after, foreign, shared, sorted(sessions))
    return part, own, gone


def _claims(
    brackets: Iterable[Bracket], met: Iterable[Met], path: bytes
) -> tuple[list[Bracket], bool]:
    """The calls that may have changed a path, and whether one elsewhere may have."""
    declared = [bracket for bracket in brackets if _declares(bracket.paths, path)]
    elsewhere = any(_declares(one.paths, path) for one in met)
    if declared or elsewhere:
        return declared, elsewhere
    anything = [bracket for bracket in brackets if bracket.paths is None]
    return anything, any(one.paths is None and _is_below(one.under, path) for one in met)


def _declares(paths: Collection[bytes] | None, path: bytes) -> bool:
    return paths is not None and any(
        path == name or path.startswith(name + b"/") or name.startswith(path + b"/")
        for name in paths
    )


def _is_below(folder: bytes, path: bytes) -> bool:
    """Whether a path is a folder, or in it; the root is empty, and above all."""
    return not folder or path == folder or path.startswith(folder + b"/")


def _names(paths: Iterable[bytes]) -> list[str]:
    return [shown(path) for path in paths]


def joined(found: list[dict[str, Json]]) -> dict[str, Json]:
    """What several calls did, as one: their spans one after the other."""
    if len(found) == 1:
        return found[0]
    parts = [part for files in found for part in files.get("parts", [files]) if "before" in part]
    data: dict[str, Json] = {"parts": parts}
    if parts:
        data.update(before=parts[0]["before"], after=parts[-1]["after"])
    for name in ("uncertain", "lost", "doubtful", "brackets"):
        named = [one for files in found for one in files.get(name, ())]
        if named:
            data[name] = sorted(set(named))
    if any(files.get("partial") for files in found):
        data["partial"] = True
    missed = [files["missed"] for files in found if "missed" in files]
    if missed:
        data["missed"] = missed[0]
    return data


# --- signs of life -----------------------------------------------------------------------


GRACE = 1.0
"""Seconds after it began, or was stopped, in which a change is a call's without a later sign."""

_TAIL = 256 * 1024
_STOPPED = b"[Request interrupted by user"


def stopped_at(call: Bracket, store: Store) -> float | None:
    """When a person stopped the agent in a call, as Claude Code's transcript has it.

    No hook reports it. A subagent goes on when its parent is stopped, or has a transcript of
    its own that says that it was, too.
    """
    if call.program != "claude-code":
        return None
    try:
        native = store.info(call.owner).metadata.get("native")
    except BacktrailError:
        return None
    path = native.get("path") if isinstance(native, dict) else None
    if not isinstance(path, str) or "\0" in path + call.agent or "/" in call.agent:
        return None
    if call.agent:
        path = f"{path.removesuffix('.jsonl')}/subagents/agent-{call.agent}.jsonl"
    for line in reversed(_tail(path).split(b"\n")):
        at = _time_of(line) if _STOPPED in line else None
        if at is not None:
            return at if at > call.since else None
    return None


def _time_of(line: bytes) -> float | None:
    """When a line was written, if it says that a person stopped the agent."""
    # Only here, as every hook that ends a bracket comes by.
    import json
    from datetime import datetime

    try:
        value = json.loads(line)
        if value["type"] != "user" or not _says_so(value["message"]["content"]):
            return None
        return datetime.fromisoformat(value["timestamp"]).timestamp()
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _says_so(content: Json) -> bool:
    blocks = [{"text": content}] if isinstance(content, str) else content
    start = _STOPPED.decode()
    return any(str(block.get("text", "")).startswith(start) for block in blocks)


def _tail(path: str) -> bytes:
    try:
        with descriptor(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) as fd:
            size = os.fstat(fd).st_size
            return os.pread(fd, _TAIL, max(0, size - _TAIL))
    except OSError:
        return b""


def touched_at(path: bytes) -> float:
    """When a path last changed; of one that is gone, when the nearest folder there did."""
    while path:
        try:
            return os.lstat(path).st_ctime
        except (FileNotFoundError, NotADirectoryError):
            path = path.rpartition(b"/")[0]
        except OSError:
            break
    return 0.0
