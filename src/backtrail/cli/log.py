"""`log` and `watch`: events as they are in the log, and as they come."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from itertools import takewhile
from typing import TYPE_CHECKING

from .._startup.frozen import dataclass
from ..errors import NotFound, Unsafe
from .call import Call
from .diff import LETTERS
from .plan import print_rows, rows_json
from .verbs import Command, number_option, session_argument
from .wording import ago, brief, lines, plural, short

if TYPE_CHECKING:
    from ..events import Event, Json, SessionInfo
    from ..files.differences import FileDiff
    from ..files.trees import Get

SHOWN = 40
"""Events that people see unless a number is given."""


# --- log ---------------------------------------------------------------------------------


def _log_options(parser: ArgumentParser) -> None:
    session_argument(parser)
    number_option(parser, f"the last so many; else {SHOWN} for people and all with --json; 0: all")
    parser.add_argument("--kind", action="append", metavar="KIND", help="only events of this kind")


def _log(call: Call) -> None:
    if call.arguments.rest:
        _changes(call)
        return
    from ..session.uncaptured import whole

    info = call.info(call.arguments.session)
    limit = call.arguments.number
    if limit is None:
        limit = 0 if call.out.as_json else SHOWN
    newest = call.store.read(
        info.id, reverse=True, limit=limit if limit > 0 else None, kinds=call.arguments.kind
    )
    events = list(newest)[::-1]
    live = _live(call, info.id, events[0].seq if events else 0)
    if call.out.as_json:
        marked = [{**event.to_dict(), "live": event.seq in live} for event in events]
        missing = rows_json(whole(call.store, info))
        call.out.data({"session": info.id, "events": marked, "not_captured": missing})
        return
    rows = [_row(event, live) for event in events]
    styles = {"event": "cyan", "when": "dim", "kind": "magenta"}
    call.out.table(["event", "when", "kind", "what"], rows, right=["event"], styles=styles)
    if events and events[0].seq > 1 and not call.arguments.kind:
        call.out.note(f"{plural(events[0].seq - 1, 'earlier event')}: `-n 0` shows all")
    print_rows(call.out, whole(call.store, info), "log")


def _live(call: Call, session_id: str, first: int) -> set[int]:
    """The events of the history from `first` on."""
    walk = call.store.walk(session_id)
    return {event.seq for event in takewhile(lambda event: event.seq >= first, walk)}


def _row(event: Event, live: set[int]) -> list[str]:
    left = "" if event.seq in live else " (left behind)"
    return [str(event.seq), ago(event.ts), event.kind, f"{summary_of(event)}{left}"]


def summary_of(event: Event) -> str:
    """An event on one line."""
    from ..exchange.export.step import step_of

    step = step_of(event)
    asks = step.calls if event.kind != "action" else []
    calls = ", ".join(f"{asked.name}(…)" for asked in asks)
    files = event.data.get("files")
    touched = "files changed" if isinstance(files, dict) and "after" in files else ""
    if event.kind == "files_changed" and not step.text:
        touched = "by others"
    missing = "".join(f"not captured: {brief(one.row_text, 100)}" for one in step.missing[:1])
    said = filter(None, (step.name or "", brief(step.text, 70), calls, touched, missing))
    return " · ".join(said)


# --- which call changed a file -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Touch:
    """One event that changed a file."""

    session: SessionInfo
    event: Event
    prompt: str
    file: FileDiff

    def to_dict(self) -> dict[str, Json]:
        from ..exchange.export.step import file_row
        from ..session.filepoints import author_of

        return {
            "session": self.session.id,
            "seq": self.event.seq,
            "ts": self.event.ts,
            "by": author_of(self.event),
            "prompt": self.prompt,
            **file_row(self.file),
        }


def _changes(call: Call) -> None:
    """What changed these paths: in the session named, else in all sessions of the folder."""
    from ..files.depot import has_contents, opened
    from ..session.filepoints import author_of

    info = call.info(call.arguments.session)
    sessions = [info]
    if call.arguments.session is None and info.root is not None:
        sessions = call.store.sessions(cwd=info.root)[::-1]
    found: list[_Touch] = []
    if has_contents(call.store):
        with opened(call.store) as depot:
            for session in sessions:
                found += _touches(call, session, depot.blobs.get)
    found.sort(key=lambda touch: (touch.event.ts, touch.event.seq))
    if call.arguments.number:
        found = found[-call.arguments.number :]
    if call.out.as_json:
        call.out.data({"paths": call.paths, "changes": [touch.to_dict() for touch in found]})
        return
    if not found:
        call.out.note(f"no call of these sessions changed {', '.join(call.arguments.rest)}")
        return
    call.out.table(
        ["when", "session", "event", "by", "change", "prompt"],
        [
            [
                ago(touch.event.ts),
                short(touch.session.id),
                str(touch.event.seq),
                author_of(touch.event),
                f"{LETTERS[touch.file.status]} {touch.file.path} "
                f"{lines(touch.file.insertions, touch.file.deletions)}",
                brief(touch.prompt, 50),
            ]
            for touch in found
        ],
        right=["event"],
        styles={"when": "dim", "session": "cyan", "by": "bold"},
    )


def _touches(call: Call, session: SessionInfo, get: Get) -> list[_Touch]:
    """The events of a session that changed the paths, in order."""
    from ..events.messages import speech_of
    from ..files.names import inside

    if session.root is None:
        return []
    paths: list[bytes] = []
    for path in call.paths:
        try:
            paths.append(inside(os.fsencode(session.root), path))
        except Unsafe:
            # Other paths, or other sessions, may be meant.
            if call.arguments.session is not None and len(call.paths) == 1:
                raise
    if not paths:
        return []
    found: list[_Touch] = []
    prompt = ""
    for event in call.store.read(session.id, after=session.fork_seq or 0):
        if event.kind == "user_message":
            prompt = speech_of(event.data.get("message"))
        files = event.data.get("files")
        if isinstance(files, dict) and "after" in files:
            touched = _touched(get, event.seq, files, paths)
            found += [_Touch(session, event, prompt, file) for file in touched]
    return found


def _touched(get: Get, seq: int, files: Json, paths: list[bytes]) -> list[FileDiff]:
    from ..files.changes.effects import changes_of
    from ..files.differences import diff
    from ..files.names import shown

    wanted = None if b"" in paths else paths
    found: list[FileDiff] = []
    for change in changes_of(seq, files):
        foreign = {shown(path) for path in change.foreign}
        try:
            differing = diff(get, change.before, change.after, wanted).files
        except NotFound:
            # The contents were collected; that it changed is all that is known.
            continue
        found += [file for file in differing if file.path not in foreign]
    return found


# --- watch -------------------------------------------------------------------------------


def _watch_options(parser: ArgumentParser) -> None:
    session_argument(parser)
    number_option(parser, "begin with the last so many events; else 5")


def _watch(call: Call) -> None:
    info = call.info(call.arguments.session)
    back = 5 if call.arguments.number is None else max(0, call.arguments.number)
    recent = call.store.tail(info.id, back) if back else []
    after = recent[0].seq - 1 if recent else info.head
    if not call.out.as_json:
        call.out.note(f"session {short(info.id)}; Ctrl-C ends this")
    if not back and _is_over(call, info):
        return
    for event in call.store.follow(info.id, after=after, poll=0.2):
        if call.out.as_json:
            call.out.data_line(event.to_dict())
        else:
            clock = event.ts[11:19]
            call.out.spans(
                (f"{clock} ", "dim"), (f"{event.seq:>5} ", "cyan"),
                (f"{event.kind:<18} ", "magenta"), (summary_of(event), ""),
            )  # fmt: skip
            call.out.flush()
        if event.kind == "session_end" and event.seq >= info.head:
            return


def _is_over(call: Call, info: SessionInfo) -> bool:
    return any(event.kind == "session_end" for event in call.store.tail(info.id, 1))


COMMANDS = {
    "log": Command(
        _log_options,
        _log,
        """
        backtrail log
        backtrail log latest -n 0 --json
        backtrail log --kind checkpoint
        backtrail log -- src/app.py
        """,
        about="Everything in the log, also what a rewind left behind. With paths behind `--`:\n"
        "which calls changed them, in all sessions of the folder or in the one that is named.",
        rest="PATH",
    ),
    "watch": Command(
        _watch_options,
        _watch,
        """
        backtrail watch
        backtrail watch latest --json
        """,
        about="Shows events as they come, from whatever process, until the session ends.\n"
        "With --json each event is a line.",
    ),
}
