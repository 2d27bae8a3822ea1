"""rewind, undo, redo, restore: preview, ask, act, and say exactly what was done."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from .._startup.frozen import dataclass, replace
from .._startup.shell import quoted as shell_word
from ..errors import NotFound
from .allow import allow_option
from .folder import title
from .options import session_option, yes_option
from .picker import choose, pick
from .plan import why_unwatched
from .prompts import Rows, adding_up, looking, prompts, quoted, spans
from .undo import NOT_DONE, act, may_act, messages, preview, refuse_half, tell
from .verbs import Command, Usage
from .wording import ago, brief

if TYPE_CHECKING:
    from ..events import Event
    from ..events.history import Operation, Operations
    from ..files.restore.conflicts import OnConflict
    from ..session.filepoints import Mode, Scope
    from ..session.session import Session
    from ..session.views import Rewind
    from .call import Call


@dataclass(frozen=True, slots=True)
class Wish:
    """Where to go back to, and with what. `scope` None: the person is asked."""

    target: Event
    before: bool = False
    scope: Scope | None = None
    mode: Mode = "mine"
    on_conflict: OnConflict = "keep"
    paths: list[str] | None = None
    force: bool = False

    def act(self, session: Session, *, dry_run: bool) -> Rewind:
        """Go, or say what going would do."""
        to, before = (None, self.target) if self.before else (self.target, None)
        return session.rewind(
            to, before=before, scope=self.scope or "both", mode=self.mode,
            paths=self.paths, on_conflict=self.on_conflict, dry_run=dry_run, force=self.force,
        )  # fmt: skip

    @property
    def place(self) -> str:
        """Where that is, in words."""
        return _place(self.target, before=self.before)


def _place(target: Event, *, before: bool) -> str:
    """A point in words. Its number is always that of an event, which every verb takes."""
    said = f", the prompt {quoted(target)}" if target.kind == "user_message" else ""
    if target.kind == "checkpoint":
        label = target.data.get("label")
        said = f', the checkpoint "{brief(label, 60)}"' if isinstance(label, str) else ""
    name = target.data.get("name")
    if target.kind in ("tool_result", "action") and isinstance(name, str):
        said = f" ({brief(name, 60)}, {ago(target.ts)})"
    return f"{'before ' if before else ''}event {target.seq}{said}"


# --- rewind ------------------------------------------------------------------------------


def rewind(call: Call) -> int:
    """Go back to an earlier point."""
    given = call.arguments
    named = [name for name in (given.point, given.before, given.last or None) if name is not None]
    if len(named) > 1:
        raise Usage("give one of POINT, `--before POINT` and `--last`")
    if not named and not call.out.can_ask:
        raise Usage(
            "there is no terminal to pick a prompt on: give a POINT (an event's number, a "
            "checkpoint's label, `@-1` …), `--before POINT` or `--last`"
        )
    may_act(call)
    session = call.session(given.session)
    wish = _wished(call, session)
    if wish is None:
        call.out.note("nothing was changed")
        return NOT_DONE
    return go_back(call, session, wish)


def _wished(call: Call, session: Session) -> Wish | None:
    """What the arguments ask for; without a point, what the person picks."""
    given = call.arguments
    wish: Wish | None
    if given.last:
        wish = Wish(call.point(session, "@-1"), before=True)
    elif given.before is not None:
        wish = Wish(call.point(session, given.before), before=True)
    elif given.point is not None:
        wish = Wish(call.point(session, given.point))
    else:
        wish = picked(call, session)
    if wish is None:
        return None
    if given.rest and given.scope == "conversation":
        raise Usage("a PATH is of files, and `--scope conversation` leaves them as they are")
    paths = [_path(session, name) for name in given.rest] or None
    _check_known(session, wish, given.rest, paths or [])
    scope: Scope | None = given.scope
    if scope is None and paths:
        scope = "files"
    return replace(wish, scope=scope, mode=given.mode, on_conflict=given.on_conflict, paths=paths)


def _check_known(session: Session, wish: Wish, names: list[str], paths: list[str]) -> None:
    """`NotFound` for a path that is not there, nor was then or in between: a slip of the pen."""
    for name, path in zip(names, paths, strict=True):
        if os.path.lexists(path) or why_unwatched(session):
            continue
        plan = replace(wish, scope="files", paths=[path]).act(session, dry_run=True)
        if plan.files or session.diff(wish.target, paths=[path]):
            continue
        if not _was_changed(session, path):
            raise NotFound(f"there is no `{name}`, neither now nor then")


def picked(call: Call, session: Session) -> Wish | None:
    """The prompt that a person picks, to go back to before it; None if they leave."""
    found = prompts(session)
    if not found:
        raise NotFound(
            f"session `{session.id}` has no prompt to go back to: `backtrail log` lists its "
            "events, and `backtrail rewind NUMBER` goes to one"
        )
    name = title(session.store, session.info())
    question = f"Go back to before which prompt?  ({name})"
    with adding_up(session) as look:
        at = pick(question, Rows(session, found, look), in_color=call.out.in_color)
    return None if at is None else Wish(found[at], before=True)


def go_back(call: Call, session: Session, wish: Wish, file: str = "") -> int:
    """Preview, ask which of both, act, and tell; `file` is the only one that is meant."""
    out = call.out
    wish = replace(wish, force=getattr(call.arguments, "force", False))
    plan = wish.act(session, dry_run=True)
    verb, done = (f"restore {file}", f"restored {file}") if file else ("rewind", "rewound")
    if getattr(call.arguments, "dry_run", False):
        words = f"would {verb} to {wish.place}"
        return tell(call, session, plan, words, wish.scope or "both", messages(session))
    if not getattr(call.arguments, "yes", False):
        why = why_unwatched(session) if wish.scope != "conversation" else ""
        out.note(f"{verb} to {wish.place}:")
        preview(call, session, plan, why)
        scope = _which(call, verb, wish.scope, bool(why))
        if scope is None:
            out.note("nothing was changed")
            return NOT_DONE
        wish = replace(wish, scope=scope)
    else:
        refuse_half(session, wish.scope)
    scope = wish.scope or "both"
    return act(call, session, scope, f"{done} to {wish.place}", "undo",
                lambda: wish.act(session, dry_run=False))  # fmt: skip


def _which(call: Call, verb: str, scope: Scope | None, no_files: bool) -> Scope | None:
    """Which of conversation and files go back; None: neither."""
    if scope is not None or no_files:
        scope = scope or "conversation"
        what = "conversation and files" if scope == "both" else scope
        question = f"Rewind {what}?" if verb == "rewind" else f"{verb[0].upper()}{verb[1:]}?"
        return scope if call.confirm(question) else None
    question = "Rewind [b]oth, [c]onversation, [f]iles, or [n]othing?"
    words: tuple[Scope, ...] = ("both", "conversation", "files")
    answer = choose(call.out, question, words)
    return next((word for word in words if word == answer), None)


# --- undo and redo -----------------------------------------------------------------------


def undo(call: Call) -> int:
    """Take back the last turn or rewind."""
    from ..session.points import read_operations

    may_act(call)
    session = call.session(call.arguments.session)
    known = read_operations(session.store, session.id)
    if not (known.done or _finishes(call, known)):
        raise NotFound(
            f"session `{session.id}` has nothing to undo: `backtrail ls` lists the others of "
            "this folder, and `--session` names one"
        )
    return take_back(call, session, "undo")


def redo(call: Call) -> int:
    """Do again what was undone."""
    may_act(call)
    return take_back(call, call.session(call.arguments.session), "redo")


def take_back(call: Call, session: Session, verb: Literal["undo", "redo"]) -> int:
    """Preview, ask, act, and tell."""
    on_conflict: OnConflict = getattr(call.arguments, "on_conflict", "keep")
    force: bool = getattr(call.arguments, "force", False)
    take = session.undo if verb == "undo" else session.redo
    plan = take(on_conflict=on_conflict, dry_run=True, force=force)
    what = _described(call, session, verb)
    if getattr(call.arguments, "dry_run", False):
        words = "would take back" if verb == "undo" else "would do again"
        return tell(call, session, plan, f"{words} {what}", "both", messages(session))
    if not getattr(call.arguments, "yes", False):
        call.out.note(f"{verb} {what}:")
        preview(call, session, plan, why_unwatched(session))
        if not call.confirm(f"{verb.capitalize()}?"):
            call.out.note("nothing was changed")
            return NOT_DONE
    else:
        refuse_half(session, "both")
    words = "took back" if verb == "undo" else "did again"
    back: Literal["undo", "redo"] = "redo" if verb == "undo" else "undo"
    return act(call, session, "both", f"{words} {what}", back,
                lambda: take(on_conflict=on_conflict, force=force))  # fmt: skip


def _finishes(call: Call, known: Operations) -> bool:
    """Whether an undo goes on with the last one, which kept something."""
    choice = getattr(call.arguments, "on_conflict", "keep")
    return known.unfinished is not None and choice != "keep"


def _described(call: Call, session: Session, verb: Literal["undo", "redo"]) -> str:
    """What the next undo or redo is about, in words."""
    from ..session.points import read_operations

    known = read_operations(session.store, session.id)
    finishes = verb == "undo" and _finishes(call, known)
    last: Operation = (known.undone if verb == "redo" or finishes else known.done)[-1]
    what = _operation(session, last)
    return f"what was kept of {what}" if finishes else what


def _operation(session: Session, last: Operation) -> str:
    """A turn or rewind, in words."""
    from ..session.points import find_event

    event = find_event(session.store, session.id, last.seq)
    when = ago(event.ts)
    if last.kind == "user_message":
        return f"the turn {quoted(event)} ({when})"
    scope = event.data.get("scope")
    of = f" of {scope}" if scope in ("files", "conversation") else ""
    place = f"event {event.data.get('to')}"
    named = event.data.get("target")
    if isinstance(named, int):
        # What came from elsewhere may name anything.
        with suppress(NotFound):
            target = find_event(session.store, session.id, named)
            place = _place(target, before=event.data.get("before") is True)
    return f"the rewind{of} to {place} ({when})"


# --- restore -----------------------------------------------------------------------------


def restore(call: Call) -> int:
    """Bring back one file."""
    from ..files.names import one_line, shown

    given = call.arguments
    may_act(call)
    session = call.session(given.session)
    path = _path(session, given.file)
    name = one_line(shown(os.fsencode(given.file)))
    if given.at is not None:
        wish = Wish(call.point(session, given.at))
        _check_known(session, wish, [name], [path])
    else:
        change = _last_change(session, path)
        if change is None:
            return _nothing_to_restore(call, session, brief(name, 200))
        wish = Wish(change, before=True)
    wish = replace(wish, scope="files", mode=given.mode, on_conflict=given.on_conflict)
    return go_back(call, session, replace(wish, paths=[path]), brief(name, 200))


def _nothing_to_restore(call: Call, session: Session, name: str) -> int:
    """Say that a file holds nothing of the session any more; `--at` names a point all the same."""
    from ..session.views import Rewind

    count = messages(session)
    head = next((event.seq for event in session.events(reverse=True)), 0)
    words = f"nothing to do: no change of this session to {name} is in effect"
    return tell(call, session, Rewind(False, head, 0, count), words, "files", count)


def _last_change(session: Session, path: str) -> Event | None:
    """The last change of the session to a path, or below it, that is in effect; None if none is.

    `NotFound` where the session never changed it.
    """
    from ..files.contents.collect import has_contents, opened
    from ..files.names import shown
    from ..files.restore.plan import last_in_effect
    from ..session.filepoints import changes_by
    from ..session.points import find_event

    there = _inside(session, path)
    name = shown(there)
    if not _was_changed(session, path) or not has_contents(session.store):
        raise NotFound(
            f"session `{session.id}` did not change `{name or '.'}`: `backtrail log -- "
            f"{shell_word(os.fsdecode(there) or '.')}` lists which "
            "one did, to be named with `--session`; or give a point with `--at` and `--mode exact`"
        )
    with opened(session.store) as depot:
        changes = (change for event in session.events() for change in changes_by(event))
        seq = last_in_effect(depot.blobs.get, changes, [there] if there else None)
    return find_event(session.store, session.id, seq) if seq else None


def _was_changed(session: Session, path: str) -> bool:
    """Whether a call of the session changed a path or something below it, in effect or not."""
    from ..files.names import shown

    name = shown(_inside(session, path))
    with looking(session) as look:
        calls = (call for first, until in spans(session).items() for call in look(first, until))
        names = (n for call in calls for f in call.files for n in (f.path, f.old_path) if n)
        return any(not name or n == name or n.startswith(f"{name}/") for n in names)


def _inside(session: Session, path: str) -> bytes:
    """A path from the root of the workspace."""
    from ..files.names import inside

    return inside(os.fsencode(os.path.realpath(session.info().root or ".")), path)


def _path(session: Session, name: str) -> str:
    """A path as a person names it: from here if here is in the workspace, else from its root."""
    root = os.path.realpath(session.info().root or ".")
    here = os.path.realpath(".")
    inside = here == root or here.startswith(root.rstrip("/") + "/")
    return f"{here if inside else root}/{name}" if not name.startswith("/") else name


# --- options -----------------------------------------------------------------------------


def _common(parser: ArgumentParser) -> None:
    session_option(parser)
    parser.add_argument(
        "--on-conflict",
        choices=("keep", "merge", "aside", "overwrite"),
        default="keep",
        help="what to do with files that somebody else changed too (default: keep them)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what it would do")
    parser.add_argument(
        "--force",
        action="store_true",
        help="go back though a call is under way in that folder (default: refused, exit code 5)",
    )
    yes_option(parser)
    allow_option(parser)


def _mode(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=("mine", "exact"),
        default="mine",
        help="mine: take back what this session changed (default); exact: make the files "
        "equal to that point, whoever changed them",
    )


def _rewind_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "point",
        nargs="?",
        metavar="POINT",
        help="the event to keep as the last: its number or id, a checkpoint's label, `@-1` for "
        "your last prompt; without it you pick",
    )
    parser.add_argument("--last", action="store_true", help="to before your last prompt")
    parser.add_argument("--before", metavar="POINT", help="to before this event")
    parser.add_argument(
        "--scope",
        choices=("both", "conversation", "files"),
        help="what goes back (default: you are asked; without asking both, or files with PATH)",
    )
    _mode(parser)
    _common(parser)


def _restore_options(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file or folder")
    parser.add_argument(
        "--at",
        metavar="POINT",
        help="as it was then (default: before the last change of this session that is in effect)",
    )
    _mode(parser)
    _common(parser)


COMMANDS: dict[str, Command] = {
    "rewind": Command(
        _rewind_options,
        rewind,
        """
        backtrail rewind                         pick one of your prompts
        backtrail rewind --last                  to before the last prompt
        backtrail rewind --last --dry-run        what would that do?
        backtrail rewind "before the rewrite"    to a checkpoint
        backtrail rewind --before 12 --scope files -- src
        backtrail rewind 12 --yes --json         for scripts
        """,
        "Nothing is erased: what is left behind stays in the log, and `backtrail undo` takes\n"
        "the rewind back. Files that somebody else changed too are kept (exit code 4).",
        rest="PATH",
    ),
    "undo": Command(
        _common,
        undo,
        """
        backtrail undo                take back the last turn, or the last rewind
        backtrail undo --dry-run      what would that do?
        backtrail undo --yes
        """,
        "Again and again it walks further back; `backtrail redo` walks forward. Directly after an\n"
        "undo that kept files, `--on-conflict` with another choice decides on these alone.",
    ),
    "redo": Command(
        _common,
        redo,
        """
        backtrail redo
        backtrail redo --dry-run
        """,
        "Only directly after `undo`: once something new is said or done, there is no redo.\n"
        "Files that a rewind kept, and that are in conflict still, are said again (exit code 4).",
    ),
    "restore": Command(
        _restore_options,
        restore,
        """
        backtrail restore app.py                 before this session last changed it
        backtrail restore src --at 12            a folder, as it was at event 12
        backtrail restore app.py --at @-2 --yes
        """,
        "The conversation stays as it is. `backtrail undo` takes it back.",
    ),
}
