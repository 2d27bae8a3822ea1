"""`status`: the latest session here, what changed, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._startup.frozen import dataclass, field
from ..errors import BacktrailError, Conflict
from ..events import timestamp
from ..files.names import one_line
from ..files.restore.unfinished import UNDER_WAY, at_opening
from ..session.filepoints import author_of
from ..session.titles import title_of
from .advice import hint
from .call import Call
from .diff import print_files, summary
from .nearby import around, came_from, here, latest_in, titled
from .plan import listed, print_rows, rows_json
from .verbs import Command, session_argument
from .wording import ago, brief, plural, short

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..events import Event, Json, Problem, SessionInfo
    from ..exchange.export.document import Net
    from ..files.differences import FileDiff
    from ..files.workspace.meetings import UnderWay

SHOWN = 10
"""Files of a kind that people see; the rest is counted."""

BEGIN = (
    ("backtrail hooks install claude-code", "record what Claude Code does, from now on"),
    ("backtrail record -- COMMAND", "run any command and record what it does to the files"),
    ("backtrail demo", "take the tour"),
)
"""What makes sense where there is no session yet."""


@dataclass(frozen=True, slots=True)
class _Now:
    """How a session and its files stand."""

    info: SessionInfo
    prompt: Event | None
    turn: Net
    since: list[FileDiff] = field(default_factory=list)
    put_back: list[FileDiff] = field(default_factory=list)
    """What the agent itself put back since, as with a rewind of its own."""
    not_captured: list[tuple[str, str, int]] = field(default_factory=list)
    problem: str | None = None
    left: list[str] = field(default_factory=list)
    busy: list[UnderWay] = field(default_factory=list)
    anew: bool = False
    """Whether another folder than the session's is at its place."""
    cut_short: list[str] = field(default_factory=list)
    """The calls that a killed process left, by name."""


def _run(call: Call) -> None:
    if call.arguments.session is None:
        folder, found = around(call.store)
        if found is None:
            _nothing(call)
            return
        if folder != here() and not call.out.as_json:
            call.out.note(f"session of {folder}")
        info = found
    else:
        info = call.find(call.arguments.session)
    with call.finishing(info.id):
        left = at_opening(call.store, info.id, files=True)
    now = _look(call, call.store.info(info.id) if left or call.finished else info, left)
    steps = _next(call, now)
    if call.out.as_json:
        call.out.data(_as_json(call, now, steps))
        return
    _print(call, now)
    _print_next(call, steps)


def _nothing(call: Call) -> None:
    steps = [*_moved(call), *(BEGIN[1:] if _has_hooks() else BEGIN)]
    # A store that is only named now is no store of hooks, and the tour has its own.
    record = hint(call, "record", "--", "COMMAND")
    steps = [(record if "record" in command else command, what) for command, what in steps]
    if call.out.as_json:
        rows = [{"command": command, "what": what} for command, what in steps]
        call.out.data({"session": None, "folder": str(here()), "next": rows})
        return
    call.out.line(f"No session in {here()} yet.")
    others = len(call.store.sessions(limit=1))
    if others:
        call.out.line("`backtrail ls --all` lists those of other folders.")
    _print_next(call, steps)


def _has_hooks() -> bool:
    """Whether hooks of any agent are installed that record in this folder."""
    from ..exchange.hooks.installed import is_installed

    return is_installed(here())


def _moved(call: Call) -> list[tuple[str, str]]:
    """What to do in a folder that was somewhere else when its sessions were recorded."""
    try:
        old = came_from(call.store, here())
    except BacktrailError:
        # There is no session here either way, and `doctor` shows what is wrong.
        return []
    if old is None or latest_in(call.store, old) is None:
        return []
    return [(hint(call, "relocate"), f"go on with the sessions of {old}, which this folder was")]


# --- looking -----------------------------------------------------------------------------


def _look(call: Call, info: SessionInfo, unfinished: list[Problem]) -> _Now:
    """How things stand; a restore that was cut short is finished by now, or `unfinished`."""
    from ..exchange.export.document import Net
    from ..session.filepoints import last_tree, last_turn
    from ..session.uncaptured import logged

    prompt, events = last_turn(call.store, info.id)
    turn = Net()
    since: list[FileDiff] = []
    back: list[FileDiff] = []
    busy: list[UnderWay] = []
    anew, cut_short = False, list[str]()
    missing: list[tuple[str, str, int]] | None = None
    problem = next((one.detail for one in unfinished if one.what == UNDER_WAY), None)
    left = [one.detail for one in unfinished if one.what != UNDER_WAY]
    try:
        turn = _net(call, info, events)
        if problem is None and info.cwd is not None and last_tree(call.store, info.id) is not None:
            session = call.session(info.id)
            browser = session.parts.browser
            # One look at the files for all that is said of them.
            tree = browser.present()
            since = browser.by_others(prompt, tree)
            busy = browser.under_way()
            # What undo would find: a call without an end is no other's work.
            coming = browser.foreseen(tree)
            cut_short = [author_of(event) for event in coming if event.data.get("interrupted")]
            if coming:
                events = [*events, *coming]
                since, back = _apart(call, info, since, coming)
                turn = _net(call, info, events)
            missing = session.not_captured()
            found = [p.detail for p in session.problems if p.what == "restore"]
            left += [detail for detail in found if detail not in left]
    except BacktrailError as error:
        problem = str(error)
        anew = isinstance(error, Conflict)
    if missing is None:
        missing = logged(call.store, info)
    return _Now(info, prompt, turn, since, back, missing, problem, left, busy, anew, cut_short)


def _apart(
    call: Call, info: SessionInfo, since: list[FileDiff], coming: list[Event]
) -> tuple[list[FileDiff], list[FileDiff]]:
    """Of what changed since: what others did, and what the agent put back by itself."""
    from ..exchange.export.document import Reader
    from ..session.filepoints import event_diff

    calls = [event for event in coming if event.kind != "files_changed"]
    went_back = [event for event in coming if author_of(event) == "going back"]
    own = {file.path for file in _net(call, info, calls).files}
    with Reader(call.store, info) as reader:
        get = reader.contents()
        diffs = [event_diff(get, event) for event in went_back if get is not None]
    back = {file.path for diff in diffs for file in diff.files}
    others = [file for file in since if file.path not in own | back]
    return others, [file for file in since if file.path in back]


def _net(call: Call, info: SessionInfo, events: list[Event]) -> Net:
    from ..exchange.export.document import Reader

    with Reader(call.store, info) as reader:
        return reader.net(events)


def _next(call: Call, now: _Now) -> list[tuple[str, str]]:
    """The three commands that make sense now."""
    from ..session.points import read_operations

    found = read_operations(call.store, now.info.id)
    steps: list[tuple[str, str]] = []
    if now.problem is not None:
        # What goes back would be refused.
        if now.anew:
            steps.append(("relocate", "take this folder, as it is, for the session's"))
    elif found.undone:
        steps.append(("redo", "do again what was undone"))
    elif found.done and found.done[-1].kind == "rewound":
        steps.append(("undo", "take the rewind back"))
    elif now.turn.files:
        steps.append(("diff", "see what the last turn changed"))
        steps.append(("undo", "take the last turn back"))
    elif found.done:
        steps.append(("undo", "take the last turn back"))
    if found.done and now.prompt is not None and now.problem is None:
        steps.append(("rewind", "go back to an earlier prompt"))
    steps.append(("resume", "go on with the session"))
    steps.append(("show", "read the session"))
    steps.append(("log", "list its events"))
    return [(hint(call, verb, session=now.info.id), what) for verb, what in steps[:3]]


# --- printing ----------------------------------------------------------------------------


def _as_json(call: Call, now: _Now, steps: list[tuple[str, str]]) -> dict[str, Json]:
    from ..events.messages import speech_of
    from ..exchange.export.step import file_row

    prompt = now.prompt
    return {
        "session": titled(call.store, now.info),
        "prompt": None
        if prompt is None
        else {"seq": prompt.seq, "ts": prompt.ts, "text": speech_of(prompt.data.get("message"))},
        "last_turn": [file_row(file) | _whose(now, file.path) for file in now.turn.files],
        "since": [file_row(file) for file in now.since],
        "put_back": [file_row(file) for file in now.put_back],
        "under_way": [_call_row(one) for one in now.busy],
        "not_captured": rows_json(now.not_captured),
        "problem": now.problem or next(iter(now.left), None),
        "cut_short": now.cut_short,
        "next": [{"command": command, "what": what} for command, what in steps],
    }


def _print(call: Call, now: _Now) -> None:
    from ..events.messages import speech_of

    out, info = call.out, now.info
    out.spans((title_of(call.store, info) or "(nothing said yet)", "bold"))
    facts = [short(info.id), info.agent_name or info.model or "", plural(info.turn_count, "turn")]
    out.line(" · ".join(filter(None, [*facts, ago(info.updated_at), *info.tags])), "dim")
    if now.prompt is not None:
        said = brief(speech_of(now.prompt.data.get("message")), 100)
        out.line()
        out.spans(("Last prompt  ", "dim"), (said, ""), (f"  {ago(now.prompt.ts)}", "dim"))
    if now.cut_short:
        names = listed([one_line(name) for name in now.cut_short], 3)
        out.line(f"It was cut short, in {names}: `backtrail resume` goes on", "yellow")
    _print_files(call, "It changed" if now.prompt else "Changed", now.turn.own)
    _print_perhaps(call, now)
    for one in now.busy:
        out.line()
        out.line(f"Under way: {one}", "yellow")
    whose = "perhaps by what is under way" if now.busy else "by others"
    _print_files(call, f"Changed since, {whose}", now.since)
    _print_files(call, "Put back by the agent itself:", now.put_back)
    print_rows(out, now.not_captured, "status")
    if now.problem is not None:
        out.line()
        out.line(f"Files: not compared with the disk: {now.problem}", "yellow")
    for note in now.left:
        out.line()
        out.line(f"Files: {note}", "yellow")


def _call_row(call: UnderWay) -> dict[str, Json]:
    """A call that is open, as JSON."""
    return {
        "session": call.session,
        "name": call.name,
        "agent": call.program or None,
        "pid": call.pid,
        "since": timestamp(call.since),
        "root": call.root,
    }


def _whose(now: _Now, path: str) -> dict[str, Json]:
    """Another author that a file of the turn may have, as JSON; nothing where there is none."""
    if path not in now.turn.perhaps:
        return {}
    return {"perhaps": "a person" if now.turn.perhaps[path] is None else now.turn.perhaps[path]}


def _print_perhaps(call: Call, now: _Now) -> None:
    """What the turn or others may have changed, by these others."""
    groups: dict[tuple[str, ...] | None, list[FileDiff]] = {}
    for file in now.turn.files:
        if file.path in now.turn.perhaps:
            sessions = now.turn.perhaps[file.path]
            groups.setdefault(None if sessions is None else tuple(sessions), []).append(file)
    for whose, files in groups.items():
        if whose is None:
            what = "Perhaps not its own, changed while a call waited, after it was stopped or left:"
        else:
            what = f"Changed while {_named(call, whose)} was at work, too; either may have done it:"
        _print_files(call, what, files)


def _named(call: Call, sessions: Collection[str]) -> str:
    """Other sessions, for people."""
    found = []
    for id in sessions:
        try:
            said = title_of(call.store, call.store.info(id))
        except BacktrailError:
            # It is of another store, or gone.
            said = ""
        found.append(f"{short(id)} ({said})" if said else short(id))
    return " and ".join(found) or "another session"


def _print_files(call: Call, what: str, files: list[FileDiff]) -> None:
    if not files:
        return
    call.out.line()
    call.out.line(f"{what} {summary(files)}")
    print_files(call.out, files[:SHOWN], "  ")
    if len(files) > SHOWN:
        call.out.line(f"  … {plural(len(files) - SHOWN, 'more file')}", "dim")


def _print_next(call: Call, steps: list[tuple[str, str]]) -> None:
    call.out.line()
    widest = max(len(command) for command, _ in steps)
    for command, what in steps:
        call.out.spans((f"  {command:<{widest}}  ", "cyan"), (what, "dim"))


COMMANDS = {
    "status": Command(
        session_argument,
        _run,
        """
        backtrail
        backtrail status latest --json
        """,
        about="What `backtrail` alone does.",
    )
}
