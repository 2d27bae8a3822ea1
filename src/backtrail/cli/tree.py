"""`tree`: forks, branches and subagents of a session, drawn as a tree."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from .._startup.frozen import dataclass, field
from ..exchange.shelf import is_empty, is_within
from ..session.titles import title_of
from .call import Call
from .nearby import around
from .numbers import Numbers
from .verbs import Command, session_argument
from .wording import ago, brief, plural, short

if TYPE_CHECKING:
    from ..events import Json, SessionInfo


@dataclass(frozen=True, slots=True)
class _Node:
    """A line of the tree, and what hangs below it."""

    kind: str
    label: str
    detail: str
    row: dict[str, Json]
    below: list[_Node] = field(default_factory=list)

    def to_dict(self) -> dict[str, Json]:
        return {"kind": self.kind, **self.row, "below": [node.to_dict() for node in self.below]}


_STYLES = {"session": "bold", "fork": "bold cyan", "branch": "yellow", "subagent": "magenta"}


def _options(parser: ArgumentParser) -> None:
    session_argument(parser)
    parser.add_argument("-a", "--all", action="store_true", help="all sessions of this folder")


def _run(call: Call) -> None:
    infos = call.store.sessions()
    known = {info.id: info for info in infos}
    if call.arguments.all:
        folder = around(call.store)[0]
        tops = {_top(info, known).id for info in infos if is_within(info, folder)}
        tops -= {id for id in tops if is_empty(call.store, known[id])}
        roots = [info for info in infos if info.id in tops]
        mark = None
    else:
        chosen = call.info(call.arguments.session)
        roots, mark = [_top(chosen, known)], chosen.id
    nodes = [_session(call, info, infos, set()) for info in roots]
    if call.out.as_json:
        call.out.data({"trees": [node.to_dict() for node in nodes]})
        return
    for node in nodes:
        _draw(call, node, "", "", mark)
    if not nodes:
        call.out.note("no sessions here")


def _top(info: SessionInfo, known: dict[str, SessionInfo]) -> SessionInfo:
    """The session that a fork, or a fork of a fork, goes back to."""
    passed: set[str] = set()
    while info.parent_id in known and info.id not in passed:
        passed.add(info.id)
        info = known[info.parent_id]
    return info


def _session(call: Call, info: SessionInfo, infos: list[SessionInfo], passed: set[str]) -> _Node:
    """A session with its branches, subagents and forks below it."""
    from ..events.history import branches

    passed = {*passed, info.id}
    kind = info.relation or "session"
    numbers = Numbers(call.store, info.id)
    at = f" from {numbers.place(info.fork_seq or 0)}" if info.relation == "fork" else ""
    name = title_of(call.store, info, 50) or "(nothing said yet)"
    detail = f"{short(info.id)}{at} · {plural(info.turn_count, 'turn')} · {ago(info.updated_at)}"
    row: dict[str, Json] = {
        "id": info.id, "title": info.title, "fork_seq": info.fork_seq,
        "turn_count": info.turn_count, "updated_at": info.updated_at,
    }  # fmt: skip
    node = _Node(kind, name, detail, row)
    inherited = info.fork_seq or 0
    for branch in branches(call.store.read(info.id)):
        if branch.head > inherited:
            said = _said_at(call, info.id, branch.left, branch.head)
            parted = (
                f"left at {numbers.place(branch.left)}, {plural(branch.message_count, 'message')}"
            )
            node.below.append(_Node("branch", said, parted, {**branch.to_dict(), "prompt": said}))
    for log in call.store.logs(info.id):
        if log.startswith("subagents/"):
            node.below.append(_subagent(call, info.id, log))
    for other in reversed(infos):
        if other.parent_id == info.id and other.id not in passed:
            node.below.append(_session(call, other, infos, passed))
    return node


def _said_at(call: Call, session_id: str, left: int, head: int) -> str:
    """The first prompt of a branch: on the way back from its end to where it parted."""
    from ..events.messages import speech_of

    first = None
    # What else has a number in between may be on another way.
    for event in call.store.walk(session_id, until=head):
        if event.seq <= left:
            break
        if event.kind == "user_message":
            first = event
    return "(no prompt)" if first is None else brief(speech_of(first.data.get("message")), 50)


def _subagent(call: Call, session_id: str, log: str) -> _Node:
    newest = next(call.store.read(session_id, log=log, reverse=True, limit=1), None)
    events = newest.seq if newest else 0
    name = log.removeprefix("subagents/")
    return _Node("subagent", name, plural(events, "event"), {"id": name, "events": events})


def _draw(call: Call, node: _Node, lead: str, below: str, mark: str | None) -> None:
    kind = "" if node.kind == "session" else f"{node.kind} "
    here = "  ← here" if mark is not None and node.row.get("id") == mark else ""
    call.out.spans(
        (lead, "dim"), (kind, "dim"), (node.label, _STYLES[node.kind]),
        (f"  {node.detail}", "dim"), (here, "green"),
    )  # fmt: skip
    for at, child in enumerate(node.below):
        last = at == len(node.below) - 1
        arm, rest = ("└── ", "    ") if last else ("├── ", "│   ")
        _draw(call, child, below + arm, below + rest, mark)


COMMANDS = {
    "tree": Command(
        _options,
        _run,
        """
        backtrail tree
        backtrail tree --all
        backtrail tree latest --json
        """,
        about="A fork is a session of its own. A branch is what a rewind left behind in the same\n"
        "session; `rewind` to one of its events goes there.",
    )
}
