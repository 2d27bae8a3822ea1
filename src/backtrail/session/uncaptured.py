"""The one account of what is not captured, for status, plans, exports and everything else.

It has three sources: what the last scan did not keep (the index), what events say that were not
captured whole (the log), and a project's root that was not taken (the record). A row is a path,
a reason and a size; what stands for a call, or lies elsewhere, has the size 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from .._startup.frozen import NamedTuple
from ..events import Event, Json, SessionInfo
from ..files.workspace.firstimport import PARTIAL
from ..files.workspace.roots import REFUSED

if TYPE_CHECKING:
    from ..stores.base import Store

Row = tuple[str, str, int]
"""A path, why it is not captured, and its size."""

KINDS = ("user_message", "tool_result", "action")
"""The kinds of events that may have missed something."""


class Missing(NamedTuple):
    """What one event did not capture, by path or by its number."""

    seq: int
    path: str
    reason: str
    sign: str

    @property
    def is_call(self) -> bool:
        """Whether it is a call as a whole, and it is not known which paths."""
        return self.sign == "missed"

    @property
    def warning(self) -> str:
        """What a plan says about it."""
        if self.is_call:
            return f"event {self.seq} was not captured: {self.reason}"
        if self.sign == "lost":
            return f"cannot be undone: {self.path} was not captured and is gone"
        return f"cannot be undone: {self.path} is outside the workspace"

    @property
    def row_text(self) -> str:
        """It on a line, beside its event."""
        return self.reason if self.is_call else f"{self.path}, {self.reason.partition(':')[0]}"

    @property
    def row(self) -> Row:
        """It in the account."""
        return self.path, self.reason, 0


def missing_in(event: Event) -> list[Missing]:
    """What an event says that was missed, lost, or named outside of the workspace."""
    files = event.data.get("files")
    if not isinstance(files, dict):
        return []
    name = event.data.get("name")
    by = name if isinstance(name, str) and name else event.kind.replace("_", " ")
    found: list[Missing] = []
    missed = files.get("missed")
    # A prompt that comes before the first import is done misses nothing: no call has run.
    if isinstance(missed, str) and not (event.kind == "user_message" and missed == PARTIAL):
        found.append(Missing(event.seq, f"event {event.seq} ({by})", missed, "missed"))
    for sign, why in (("lost", "gone, and was not captured"), ("outside", "outside the workspace")):
        for path in _texts(files.get(sign)):
            found.append(Missing(event.seq, path, f"{why}: {by}, event {event.seq}", sign))
    return found


def _texts(value: Json) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def missing(events: Iterable[Event]) -> list[Missing]:
    """What these events did not capture; a path that several of them name, once, by the last."""
    found: dict[tuple[str, str], Missing] = {}
    for event in events:
        for one in missing_in(event):
            key = one.path, one.sign
            found.pop(key, None)
            found[key] = one
    return list(found.values())


def account(info: SessionInfo, events: Iterable[Event], scanned: Iterable[Row] = ()) -> list[Row]:
    """All that is not captured of a session: of its calls, of its project, of its folder."""
    rows = [one.row for one in missing(events)]
    refused = info.metadata.get(REFUSED)
    if isinstance(refused, dict) and isinstance(refused.get("path"), str):
        why = f"{refused.get('why')}, so only the folder of the agent is captured"
        rows.append((refused["path"], why, 0))
    return [*rows, *scanned]


def logged(store: Store, info: SessionInfo) -> list[Row]:
    """The account without the folder, which may be gone or on another machine."""
    return account(info, store.read(info.id, kinds=KINDS))


def row_dict(row: Row) -> dict[str, Json]:
    """A row as JSON."""
    return dict(zip(("path", "reason", "size"), row, strict=True))


def whole(store: Store, info: SessionInfo) -> list[Row]:
    """The account of a session that is not open; without the folder where that cannot be had."""
    from ..errors import BacktrailError
    from ..files.depot import has_contents, opened
    from .filepoints import last_tree

    if info.root is None or not has_contents(store) or not Path(info.root).is_dir():
        return logged(store, info)
    if last_tree(store, info.id) is None:
        return logged(store, info)
    try:
        with opened(store) as depot, closing(depot.workspace(info.root, store)) as workspace:
            scanned = workspace.not_captured()
    except (BacktrailError, OSError):
        return logged(store, info)
    return account(info, store.read(info.id, kinds=KINDS), scanned)
