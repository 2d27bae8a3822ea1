"""The record of a session that comes from another agent: made, found again, kept up to date."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..errors import AlreadyExists, InvalidId, NotFound
from ..events import AsDict, Json, NewEvent, SessionInfo, check_session_id, new_id
from ..settings.allowance import ORIGIN
from ..stores.base import Store
from .hooks.dialects import DIALECTS, home_of
from .shapes import list_in, object_in


class Found(msgspec.Struct, frozen=True):
    """A foreign session on disk: whose it is, its name there, and its file.

    `own`: the file lies where this person's agent keeps its sessions.
    """

    agent: str
    id: str
    path: Path
    own: bool = True

    @property
    def key(self) -> str:
        """The key of the session that it is, or becomes."""
        return f"{self.agent}:{self.id}"


def found_in(
    agent: str, path: Path | None, files: Callable[[Path], list[Path]], name: Callable[[Path], str]
) -> list[Found]:
    """The session in a file, or those that `files` finds in a folder; `NotFound` if none.

    Without a path, those where the agent keeps them.
    """
    place = (home_of(agent) if path is None else path).absolute()
    if place.is_file():
        return [Found(agent, name(place), place)]
    if not place.is_dir():
        raise NotFound(f"there is no {place}: give a .jsonl file, or a folder that has some")
    found = [Found(agent, name(file), file) for file in files(place)]
    if not found:
        raise NotFound(f"no session of {DIALECTS[agent].title} in {place}")
    return found


class Imported(AsDict, msgspec.Struct, frozen=True):
    """What an import did with one foreign session, or with `dry_run` would.

    `events` are those appended to its logs, `lines` those read, `prompt` how it begins.
    `problems` are what was wrong with some lines: none stopped the import, none is lost.
    `error` says why there is nothing.
    """

    agent: str
    native_id: str
    path: str
    session_id: str
    title: str | None = None
    created: bool = False
    events: int = 0
    lines: int = 0
    problems: list[str] = []
    error: str | None = None
    prompt: str | None = None


class Facts(msgspec.Struct):
    """What lines say about their session. Later lines count, but the first `cwd`."""

    cwd: str | None = None
    model: str | None = None
    branch: str | None = None
    version: str | None = None
    started: str | None = None
    title: tuple[int, str] | None = None
    prompt: str | None = None
    more: dict[str, Json] = {}

    def titled(self, title: tuple[int, str] | None) -> None:
        """Note a title, unless one that counts more is known."""
        if title is not None and (self.title is None or title[0] >= self.title[0]):
            self.title = title


def native_of(info: SessionInfo) -> dict[str, Json]:
    """What a session's record says of its native session; empty if that is nothing."""
    return dict(object_in(info.metadata, "native"))


Natives = dict[tuple[str, str], str]
"""Sessions by the agent and the id of every native session that they are or were."""


def natives(store: Store) -> Natives:
    """The sessions of a store that come from other agents."""
    found: Natives = {}
    for info in store.sessions():
        native = native_of(info)
        agent, id = str(native.get("agent")), str(native.get("id"))
        # A fork says what its parent says, until it goes on by itself.
        if native and (info.relation != "fork" or info.key == f"{agent}:{id}"):
            for name in (id, *list_in(native, "earlier")):
                found.setdefault((agent, str(name)), info.id)
    return found


def has_left(info: SessionInfo, found: Found) -> bool:
    """Whether a session goes on in another native one than this, which it was before."""
    native = native_of(info)
    return bool(native) and native.get("id") != found.id


def known(store: Store, found: Found, others: Natives | None = None) -> SessionInfo | None:
    """The session that a foreign one is already; `others` saves looking at all of them."""
    there = store.sessions(key=found.key, limit=1)
    if there:
        return there[0]
    id = (natives(store) if others is None else others).get((found.agent, found.id))
    return store.info(id) if id is not None else None


def make(store: Store, found: Found, facts: Facts) -> SessionInfo:
    """A new session for a foreign one, with the times of that."""
    native: dict[str, Json] = {"agent": found.agent, "id": found.id, "path": str(found.path)}
    for session_id in (_as_id(found.id), new_id()):
        info = SessionInfo(
            id=session_id, key=found.key, cwd=facts.cwd, model=facts.model, agent_name=found.agent,
            created_at=facts.started or "",
            metadata=_origin(found) | {"native": native, "imported": True},
        )  # fmt: skip
        try:
            store.create(info)
        except AlreadyExists:
            # The id is another session's. A key that was taken meanwhile is that session.
            there = store.sessions(key=found.key, limit=1)
            if there:
                return there[0]
            continue
        begin = NewEvent(
            "session_start", {"info": store.info(session_id).to_dict()}, ts=facts.started
        )
        store.append(session_id, [begin])
        return store.info(session_id)
    raise AlreadyExists(f"cannot make a session for `{found.key}`: its id and key are taken")


def _origin(found: Found) -> dict[str, Json]:
    """What says that a session came from elsewhere, if it did."""
    return {} if found.own else {ORIGIN: "transcript"}


def _as_id(name: str) -> str:
    try:
        return check_session_id(name)
    except InvalidId:
        return new_id()


def update(store: Store, info: SessionInfo, facts: Facts, found: Found | None = None) -> None:
    """Bring the record up to date; what a person named stays so.

    A session that grew by a stranger's transcript is a stranger's from then on.
    """
    changes: dict[str, Json] = {}
    metadata = _origin(found) if found is not None and ORIGIN not in info.metadata else {}
    native = native_of(info)
    about = dict(native)
    rank, known_title = about.get("title_rank"), about.get("title")
    if facts.title is not None and not (isinstance(rank, int) and rank > facts.title[0]):
        about |= {"title_rank": facts.title[0], "title": facts.title[1]}
        if info.title in (None, known_title) and info.title != facts.title[1]:
            changes["title"] = facts.title[1]
    if facts.version is not None:
        about["version"] = facts.version
    if facts.model is not None and facts.model != info.model:
        changes["model"] = facts.model
    if facts.cwd is not None and info.cwd is None:
        changes["cwd"] = facts.cwd
    if about != native:
        metadata["native"] = about
    given = {"git_branch": facts.branch} | facts.more
    known = info.metadata
    metadata |= {n: value for n, value in given.items() if value not in (None, known.get(n))}
    changes |= {"metadata": metadata} if metadata else {}
    if changes:
        store.update(info.id, **changes)
