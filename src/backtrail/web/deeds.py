"""What a person does in the viewer: going back, with the plan first; forks, copies of files.

It is the same code that the command line runs. An act names the plan that it was shown: where disk
or log have moved since, nothing is done, and the page shows the new plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._startup.frozen import replace
from ..errors import BacktrailError, InvalidData, NotFound, Unsafe, Unsupported
from ..exchange.export.page import visible
from ..exchange.resume import hand_on, native_line
from ..files.beneath import Directories, descriptor, write_file
from ..files.depot import has_contents, opened
from ..files.names import beside, hidden, shown
from ..files.trees import Entry, Present, control_in
from ..session.fileplans import check_folder
from ..session.filepoints import last_tree, point_at
from ..session.parts import Parts
from ..session.points import find_event
from ..session.session import Session
from .answers import Asked
from .colour import diff_rows
from .home import session_row

if TYPE_CHECKING:
    from ..events import Json
    from ..files.restore.conflicts import Decisions
    from ..session.views import FileChange, Rewind

VERBS = ("rewind", "undo", "redo")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Deed:
    """A way back as the page asks for it."""

    verb: str
    to: int | None
    before: int | None
    turn: int | None
    scope: Json
    mode: Json
    paths: list[str] | None
    decisions: Decisions
    force: bool

    @classmethod
    def of(cls, asked: Asked) -> _Deed:
        verb = asked.given("verb", str, "rewind")
        if verb not in VERBS:
            raise InvalidData(f"`verb` is one of {', '.join(VERBS)}")
        paths = asked.given("paths", list)
        if paths is not None and not all(isinstance(path, str) for path in paths):
            raise InvalidData("`paths` is a list of paths")
        return cls(
            verb, asked.given("to", int), asked.given("before", int), asked.given("turn", int),
            asked.given("scope", str, "both"), asked.given("mode", str, "mine"), paths,
            asked.given("decisions", dict, {}), asked.given("force", bool, False),
        )  # fmt: skip

    def go(self, session: Session, *, dry_run: bool, expected: str | None = None) -> Rewind:
        """Go, or say what going would do."""
        choices: dict[str, Json] = {
            "on_conflict": self.decisions,
            "dry_run": dry_run,
            "force": self.force,
        }
        if self.verb == "undo":
            return session.undo(**choices, expected=expected)
        if self.verb == "redo":
            return session.redo(**choices, expected=expected)
        if self.turn is not None:
            prompt = find_event(session.store, session.id, self.turn)
            return session.rewind(turn=prompt, paths=self.paths, expected=expected, **choices)
        return session.rewind(
            self.to, before=self.before, scope=self.scope, mode=self.mode, paths=self.paths,
            expected=expected, **choices,
        )  # fmt: skip


def preview(asked: Asked) -> Json:
    """What going back would do, file by file, and what may be done about each conflict."""
    deed = _Deed.of(asked)
    with Session(Parts(asked.store, asked.record().id, {"files": True})) as session:
        plan = deed.go(session, dry_run=True)
        row = _row(asked, session, deed, plan)
        if plan.conflicts or deed.decisions:
            row["ways"] = _ways(session, deed)
    return row


def _ways(session: Session, deed: _Deed) -> dict[str, Json]:
    """For each conflict that is kept where nothing is decided, why it cannot be merged, if so."""
    kept = replace(deed, decisions="keep").go(session, dry_run=True)
    paths = {file.path for file in kept.conflicts}
    merged = replace(deed, decisions="merge").go(session, dry_run=True)
    found: dict[str, Json] = dict.fromkeys(paths, "")
    for file in merged.files:
        if file.path in paths and file.action == "conflict":
            found[file.path] = visible(file.no_merge or file.reason)
    return found


def _row(asked: Asked, session: Session, deed: _Deed, plan: Rewind) -> dict[str, Json]:
    """A plan, or what was done, as the page shows it."""
    why = "" if deed.scope == "conversation" else _why_unwatched(session)
    never = [] if why or deed.scope == "conversation" else session.not_captured()
    return {
        "verb": deed.verb,
        "plan": plan.plan,
        "applied": plan.applied,
        "anchor": plan.anchor,
        "dropped": plan.events_dropped,
        "left": plan.message_count,
        "before": session.info().message_count,
        "files": [_file(file) for file in plan.files],
        "conflicts": len(plan.conflicts),
        "plus": plan.insertions,
        "minus": plan.deletions,
        "warnings": [visible(one) for one in dict.fromkeys(plan.warnings)],
        "lost": [[visible(path), visible(why)] for path, why, _ in plan.not_captured],
        "never": [[visible(path), visible(why)] for path, why, _ in never[:20]],
        "error": None if plan.error is None else visible(plan.error),
        "no_files": visible(why),
    }


def _file(file: FileChange) -> dict[str, Json]:
    # `path` is what names it in the next request; what is shown is `name`.
    return {
        "path": file.path, "name": visible(file.path), "action": file.action,
        "reason": visible(file.reason), "plus": file.insertions, "minus": file.deletions,
        "folder": file.folder, "old": None if file.old_path is None else visible(file.old_path),
        "code": file.code, "modes": file.modes,
    }  # fmt: skip


def _why_unwatched(session: Session) -> str:
    """Why no files go back in this session; empty if they do."""
    try:
        session.not_captured()
    except Unsupported as error:
        return str(error)
    return ""


def act(asked: Asked) -> Json:
    """Go back, as the plan was that the page showed; `Conflict` where it is another one now."""
    deed = _Deed.of(asked)
    expected = asked.given("plan", str)
    if not expected:
        raise InvalidData("an act names the `plan` that was shown")
    with Session.resume(asked.store, asked.id) as session:
        before = session.info().message_count
        result = deed.go(session, dry_run=False, expected=expected)
        row = _row(asked, session, deed, result) | {"before": before}
        if result.events_dropped or session.info().message_count != before:
            native, failed = hand_on(session, result)
            row["resume"] = None if native is None else visible(native.command)
            row["native_error"] = None if failed is None else visible(str(failed))
    row["session"] = session_row(asked.store, asked.record())
    return row


def differing(asked: Asked) -> Json:
    """How a path on the disk differs from what it was at a point: both sides of a conflict."""
    path, at = asked.given("path", str), asked.given("at", int)
    if not isinstance(path, str) or not isinstance(at, int):
        raise InvalidData("`path` and `at` are missing")
    with Session(Parts(asked.store, asked.record().id, {"files": True})) as session:
        found = session.diff(at, paths=[path]).files
    rows = diff_rows(found[0].path, found[0].text) if found else []
    return {"rows": rows[:3_000], "total": len(rows)}


# --- beside ------------------------------------------------------------------------------


def fork(asked: Asked) -> Json:
    """A new session that goes on from a point, and the line that resumes it."""
    title = str(asked.given("title", str, "")).strip()[:500] or None
    at = asked.given("at", int)
    with Session.resume(asked.store, asked.id, files=False) as session:
        given: dict[str, Json] = {} if title is None else {"title": title}
        with session.fork(at, **given) as made:
            made_id = made.id
    info = asked.store.info(made_id)
    row = session_row(asked.store, info)
    try:
        row["resume"] = visible(native_line(asked.store, info))
    except (BacktrailError, OSError) as error:
        row["native_error"] = visible(str(error))
    return row


def copy_beside(asked: Asked) -> Json:
    """A file as it was at a point, under a free name beside where it is now."""
    path, at = asked.given("path", str), asked.given("at", int)
    if not isinstance(path, str):
        raise InvalidData("`path` is missing")
    info, store = asked.record(), asked.store
    if info.root is None or not has_contents(store):
        raise NotFound(f"no files of session `{info.id}` were captured")
    name = hidden(path)
    if control_in(name) is not None:
        raise Unsafe(f"{shown(name)} is version control's")
    check_folder(info, info.root)
    with opened(store) as depot:
        tree = last_tree(store, info.id) if at is None else point_at(store, info.id, at).tree
        entry = None if tree is None else Present(depot.blobs.get, tree).at(name)
        if entry is None or entry.kind != "file":
            raise NotFound(f"there is no file {shown(name)} at that point")
        content = depot.blobs.get(entry.value)
    made = _written(info.root, name, content, entry, f"at-{at}" if at is not None else "copy")
    return {"made": visible(shown(made))}


def _written(root: str, path: bytes, content: bytes, entry: Entry, suffix: str) -> bytes:
    with descriptor(root, _DIRECTORY) as fd, Directories(fd) as directories:
        try:
            folder, _ = directories.parent(path)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"the folder of {shown(path)} is not there now") from None

        def is_free(name: bytes) -> bool:
            try:
                os.lstat(name.rpartition(b"/")[2], dir_fd=folder)
            except FileNotFoundError:
                return True
            return False

        free: Callable[[bytes], bool] = is_free
        made = beside(path, b"." + suffix.encode(), free)
        out = write_file(folder, made.rpartition(b"/")[2], content, entry.mode & 0o777)
        try:
            os.fsync(out)
        finally:
            os.close(out)
    return made
