"""`rewind`: back to an earlier point, conversation and files."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from .._startup.frozen import dataclass, replace
from ..errors import NotFound
from ..session.titles import title_of
from .back import Deed, carry_out, common_options, may_act, mode_option, place_of
from .patch import show_files
from .picker import Rows, pick, prompts
from .plan import why_unwatched
from .verbs import NOT_DONE, Command, Usage

if TYPE_CHECKING:
    from ..events import Event, SessionInfo
    from ..files.restore.conflicts import Decisions
    from ..session.fileplans import Mode, Scope
    from ..session.session import Session
    from ..session.views import Rewind
    from ..stores.base import Store
    from .call import Call


@dataclass(frozen=True, slots=True)
class Wish:
    """Where to go back to, and with what. `scope` None: the person is asked.

    With `turn`, the target is the prompt of the one turn that is taken out.
    """

    target: Event
    before: bool = False
    scope: Scope | None = None
    mode: Mode = "mine"
    on_conflict: Decisions | None = None
    paths: list[str] | None = None
    force: bool = False
    turn: bool = False

    def act(self, session: Session, *, dry_run: bool) -> Rewind:
        """Go, or say what going would do."""
        if self.turn:
            return session.rewind(
                turn=self.target, paths=self.paths, on_conflict=self.on_conflict,
                dry_run=dry_run, force=self.force,
            )  # fmt: skip
        to, before = (None, self.target) if self.before else (self.target, None)
        return session.rewind(
            to, before=before, scope=self.scope or "both", mode=self.mode,
            paths=self.paths, on_conflict=self.on_conflict, dry_run=dry_run, force=self.force,
        )  # fmt: skip


def rewind(call: Call) -> int:
    """Go back to an earlier point."""
    given = call.arguments
    ways = (given.point, given.before, given.last or None, given.turn)
    named = [name for name in ways if name is not None]
    if len(named) > 1:
        raise Usage("give one of POINT, `--before POINT`, `--last` and `--turn N`")
    if given.turn is not None and (given.scope in ("both", "conversation") or given.mode != "mine"):
        raise Usage("`--turn` takes one turn out of the files: no other scope or mode goes with it")
    if not named and not call.out.can_ask:
        raise Usage(
            "there is no terminal to pick a prompt on: give a POINT (an event's number, a "
            "checkpoint's label, `@-1` …), `--before POINT`, `--last` or `--turn N`"
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
    elif given.turn is not None:
        wish = Wish(_turn(session, given.turn), scope="files", turn=True)
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
    paths = [path_of(session.info(), name) for name in given.rest] or None
    check_known(session, wish, given.rest, paths or [])
    scope: Scope | None = wish.scope or given.scope
    if scope is None and paths:
        scope = "files"
    return replace(wish, scope=scope, mode=given.mode, on_conflict=given.on_conflict, paths=paths)


def _turn(session: Session, name: str) -> Event:
    """The prompt of a turn, by its number, or as any other point."""
    from ..session.points import find_event, find_turn

    digits = name.removeprefix("prompt ")
    key = int(digits) if digits.removeprefix("-").isdecimal() else name
    return find_event(session.store, session.id, find_turn(session.store, session.id, key))


def check_known(session: Session, wish: Wish, names: list[str], paths: list[str]) -> None:
    """`NotFound` for a path that is not there, nor was then or in between: a slip of the pen."""
    for name, path in zip(names, paths, strict=True):
        if os.path.lexists(path) or why_unwatched(session):
            continue
        plan = replace(wish, scope="files", paths=[path]).act(session, dry_run=True)
        if plan.files or session.diff(wish.target, paths=[path]):
            continue
        if not was_changed(session.store, session.info(), path):
            raise NotFound(f"there is no `{name}`, neither now nor then")


def picked(call: Call, session: Session) -> Wish | None:
    """The prompt that a person picks, to go back to before it; None if they leave."""
    from ..exchange.export.document import Reader

    found = prompts(session)
    if not found:
        raise NotFound(
            f"session `{session.id}` has no prompt to go back to: `backtrail log` lists its "
            "events, and `backtrail rewind NUMBER` goes to one"
        )
    name = title_of(session.store, session.info())
    question = f"Go back to before which prompt?  ({name})"
    with Reader(session.store, session.info()) as reader:
        rows = Rows(session, found, reader)

        def look(at: int) -> None:
            show_files(call.out, rows.net(at).files)

        at = pick(question, rows, in_color=call.out.in_color, look=look)
    return None if at is None else Wish(found[at], before=True)


def go_back(call: Call, session: Session, wish: Wish, file: str = "") -> int:
    """Carry a wish out; `file` is the only one that is meant."""
    wish = replace(wish, force=getattr(call.arguments, "force", False))
    verb, done = (f"restore {file}", f"restored {file}") if file else ("rewind", "rewound")

    def go(scope: Scope, dry_run: bool, decided: Decisions | None) -> Rewind:
        given = wish.on_conflict if decided is None else decided
        return replace(wish, scope=scope, on_conflict=given).act(session, dry_run=dry_run)

    def what() -> str:
        if wish.turn:
            return place_of(session, wish.target, before=False)
        return f"to {place_of(session, wish.target, before=wish.before)}"

    turn = None
    if wish.turn:
        from ..session.points import prompts as numbered

        verb, done = "take out", "took out"
        known = numbered(session.store, session.id)
        turn = known.index(wish.target.seq) + 1 if wish.target.seq in known else wish.target.seq
    deed = Deed(verb, verb, done, what, go, wish.scope, turn=turn)
    return carry_out(call, session, deed)


def was_changed(store: Store, info: SessionInfo, path: str) -> bool:
    """Whether a call of a session changed a path or something below it, in effect or not."""
    from ..errors import Unsafe
    from ..files.depot import has_contents, opened
    from ..files.restore.plan import within
    from ..session.filepoints import own_paths

    try:
        there = inside_of(info, path)
    except Unsafe:
        return False
    if not has_contents(store):
        return False
    with opened(store) as depot:
        events = store.read(info.id)
        names = (name for event in events for name in own_paths(depot.blobs.get, event))
        return any(within(name, [there]) for name in names)


def inside_of(info: SessionInfo, path: str) -> bytes:
    """A path from the root of the workspace."""
    from ..files.names import inside

    return inside(os.fsencode(os.path.realpath(info.root or ".")), path)


def path_of(info: SessionInfo, name: str) -> str:
    """A path as a person names it: from here if here is in the workspace, else from its root."""
    root = os.path.realpath(info.root or ".")
    here = os.path.realpath(".")
    inside = here == root or here.startswith(root.rstrip("/") + "/")
    return f"{here if inside else root}/{name}" if not name.startswith("/") else name


def _options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "point",
        nargs="?",
        metavar="POINT",
        help="the event to keep as the last: its number or id, a checkpoint's label, `@-1` for "
        "your last prompt; without it you pick",
    )
    parser.add_argument(
        "--turn",
        metavar="N",
        help="take only what prompt N did out of the files, and leave what came later",
    )
    parser.add_argument("--last", action="store_true", help="to before your last prompt")
    parser.add_argument("--before", metavar="POINT", help="to before this event")
    parser.add_argument(
        "--scope",
        choices=("both", "conversation", "files"),
        help="what goes back (default: you are asked; without asking both, or files with PATH)",
    )
    mode_option(parser)
    common_options(parser)


COMMANDS: dict[str, Command] = {
    "rewind": Command(
        _options,
        rewind,
        """
        backtrail rewind                         pick one of your prompts
        backtrail rewind --last                  to before the last prompt
        backtrail rewind --last --dry-run        what would that do?
        backtrail rewind "before the rewrite"    to a checkpoint
        backtrail rewind --before 12 --scope files -- src
        backtrail rewind --turn 2                only what prompt 2 did to the files
        backtrail rewind 12 --yes --json         for scripts
        """,
        "Nothing is erased: what is left behind stays in the log, and `backtrail undo` takes\n"
        "the rewind back. Files that others changed too are kept (exit code 4).",
        rest="PATH",
    ),
}
