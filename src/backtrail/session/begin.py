"""How a session begins: created, opened, resumed, or forked from another. Gives its parts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from .. import telemetry
from .._startup.frozen import replace
from ..errors import AlreadyExists, BacktrailError, Conflict, InvalidData, NotFound
from ..events import Json, NewEvent, Problem, SessionInfo, check_session_id, new_id
from ..events.history import COPIED
from ..events.messages import as_message, message_event, prompt_event
from ..files.restore.unfinished import at_opening
from ..settings.allowance import ORIGIN, allow
from ..stores.base import Store
from ..stores.batches import drafts
from ..stores.opening import open_store
from ..stores.records import new_record
from .elsewhere import bring_files
from .keywords import Linked, SessionOptions, agent_named, checked, folder, options_of_agent
from .liveturn import check_agent
from .parts import Parts
from .points import Target, anchor_of, event_id, lost_prompt
from .views import beyond, last_of

_NOTHING = nullcontext()


def created(store: Store | str | None, session_id: str | None, options: SessionOptions) -> Parts:
    """A new session."""
    with _store(store, options) as (place, owns):
        return _made(place, session_id, options, owns)


def opened(store: Store | str | None, session_id: str | None, options: SessionOptions) -> Parts:
    """The session with this id or `key`, resumed if it exists, else created."""
    with _store(store, options) as (place, owns):
        while True:
            known = _known(place, session_id, options.get("key"), whole=bool(_said(options)))
            if known is not None:
                return _reopened(place, known[0], options, owns, record=known[1])
            try:
                return _made(place, session_id, options, owns)
            except AlreadyExists:
                # Another caller made it in between. A key held by another id is an error.
                if _known(place, session_id, options.get("key")) is None:
                    raise


def resumed(
    store: Store | str | None, session_id: str, at: Target | None, options: SessionOptions, *,
    replay: bool,
) -> Parts:  # fmt: skip
    """A session that exists; with `replay`, from the last user message of its history."""
    with _store(store, options, sought=f"no session `{session_id}`") as (place, owns):
        _check_there(place, session_id)
        left = _finished(place, session_id, options)
        seq = None if at is None else anchor_of(place, session_id, at)
        if replay:
            said = (e for e in place.walk(session_id, until=seq) if e.kind == "user_message")
            last = next(said, None)
            seq = last.seq if last else 0
        return _reopened(place, session_id, options, owns, at=seq, left=left)


def latest(store: Store | str | None, options: SessionOptions) -> Parts:
    """The newest session of `cwd`, by default the current directory."""
    cwd = options.get("cwd") or folder(".")
    sought = f"no previous session found in {os.fspath(cwd)}"
    with _store(store, options, sought=sought) as (place, owns):
        newest = place.latest(cwd)
        # It belongs there by its root, perhaps, and stays in its own folder.
        options.pop("cwd", None)
        return _reopened(place, newest.id, options, owns)


def forked(
    parts: Parts, at: Target | None, session_id: str | None,
    into: str | os.PathLike[str] | None, copy_checkpoints: bool, options: SessionOptions,
) -> Parts:  # fmt: skip
    """A new session that begins with the history of another; see `Session.fork`."""
    log = parts.log
    with telemetry.span("session.fork", parent_id=log.id, store=type(log.store).__name__) as span:
        parts.log.check_open()
        options = checked("fork", options)
        if not options.get("persist", True):
            raise InvalidData("a fork is kept where its session is: `persist` is not for it")
        place = None if into is None else folder(into)
        if at is None and parts.capture.recorder.under_way:
            parts.capture.look()
        parts.log.save()
        parts.capture.flush()
        parent = log.store.record(log.id)
        seq = parts.log.view() if at is None else anchor_of(log.store, log.id, at)
        metadata = {**parent.metadata, **(options.get("metadata") or {})}
        inherited: SessionOptions = {
            "title": _forked(parent.title),
            "cwd": parent.cwd,
            "root": None if "cwd" in options else parent.root,
            "model": parent.model,
            "agent_name": parent.agent_name,
            "lease": parts.lease.mode,
            "wait": parts.lease.wait,
            "on_error": log.on_error,
            "files": parts.capture.files,
            **_agent_for(parts, options),
            **options,
            "metadata": metadata,
        }
        _check_agent(inherited)
        prompt = parts.rewinder.reprompt(seq)
        if place is not None:
            inherited["cwd"], inherited["root"] = place, None
        session_id = check_session_id(new_id() if session_id is None else session_id)
        around = _forking(parts, session_id, options.get("key"), at, place)
        lists = {COPIED: copy_checkpoints}
        made = _made(log.store, session_id, inherited, False, (parent, seq), around, lists)
        owed = [prompt] if prompt and options.get("system_prompt") is None else []
        with _opening(made):
            copies = parts.checkpoints.copies_behind(seq, listed=copy_checkpoints)
            made.capture.append([*owed, *copies])
        if telemetry.listeners:
            span.measurements["message_count"] = len(made.log.messages(repair=False))
            anchor = event_id(log.store, log.id, seq)
            span.metadata.update(session_id=made.log.id, anchor_message_id=anchor)
        return made


def _made(
    store: Store, session_id: str | None, options: SessionOptions, owns: bool,
    base: tuple[SessionInfo, int] | None = None,
    around: AbstractContextManager[None] = _NOTHING, notes: Mapping[str, Json] | None = None,
) -> Parts:  # fmt: skip
    """A new session, made within `around` once nothing of it can be refused any more.

    `notes` go into its first event, beside the record.
    """
    if session_id is None:
        session_id = new_id()
    info = SessionInfo(
        id=check_session_id(session_id),
        key=options.get("key"),
        title=options.get("title"),
        cwd=_text(options.get("cwd")),
        root=_text(options.get("root")),
        model=options.get("model"),
        agent_name=options.get("agent_name"),
        tags=list(options.get("tags", ())),
        metadata=dict(options.get("metadata") or {}),
    )
    if base is not None:
        parent, seq = base
        info = replace(info, parent_id=parent.id, relation="fork", fork_seq=seq)
    new_record(info, store.scope)
    prompt = options.get("system_prompt")
    seeds = [prompt_event(prompt)] if prompt is not None else []
    seeds += [message_event(message) for message in options.get("messages", ())]
    drafts(seeds)
    parts = Parts(store, session_id, options, owns=owns)
    parts.capture.recorder.folder.fresh = True
    parts.capture.root = info.root or info.cwd
    with around:
        store.create(info, base=(base[0].id, base[1]) if base else None)
    with _opening(parts):
        parts.lease.hold()
        about: dict[str, Json] = {"info": store.record(session_id).to_dict(), **(notes or {})}
        start = NewEvent("session_start", about)
        parts.capture.append([start, *seeds])
    return parts


def _reopened(
    store: Store, session_id: str, options: SessionOptions, owns: bool, at: int | None = None,
    left: list[Problem] | None = None, record: SessionInfo | None = None,
) -> Parts:  # fmt: skip
    """A session that exists; `left` is what `_finished` said, and `record` what the store has of
    it, if they were asked already.
    """
    if left is None:
        left = _finished(store, session_id, options)
    with telemetry.span(
        "session.resume", session_id=session_id, store=type(store).__name__
    ) as span:
        parts = Parts(store, session_id, options, owns=owns, at=at)
        parts.log.is_resumed = True
        parts.log.problems.extend(left)
        with _opening(parts):
            parts.lease.hold()
            _adopt(parts, options, record)
            if telemetry.listeners:
                span.measurements["message_count"] = len(parts.log.messages())
                span.metadata["source"] = "event_log"
        return parts


@contextmanager
def _opening(parts: Parts) -> Iterator[None]:
    """Close a session that cannot be opened; no other code would."""
    try:
        yield
    except BaseException:
        with suppress(BacktrailError):
            parts.close()
        raise


def _adopt(parts: Parts, options: SessionOptions, record: SessionInfo | None) -> None:
    """Take over what a resuming caller says about the session, if nothing is refused."""
    log, capture = parts.log, parts.capture
    changes = _said_anew(parts, options, record)
    prompt = options.get("system_prompt")
    wanted = None if prompt is None else prompt_event(prompt)
    given = [as_message(message) for message in options.get("messages", ())]
    seeds = [message_event(message) for message in given]
    drafts([wanted, *seeds] if wanted else seeds)
    if given:
        known = log.messages(repair=False)
        new = beyond(known, given)
        if known and new is given:
            raise Conflict(
                f"session `{log.id}` has another history than `messages`: leave it out to "
                "resume, or fork"
            )
        seeds = seeds[len(seeds) - len(new) :]
    if changes:
        log.store.update(log.id, **changes)
    if log.at is not None:
        lost = lost_prompt(log.store, log.id, None, log.at)
        log.prompt = NewEvent("system_message", lost.data) if lost else None
    if (
        wanted is not None
        and last_of(log.messages(repair=False)[:1], "system") != wanted.data["message"]
    ):
        log.prompt = wanted
    capture.append(seeds)


def _said_anew(
    parts: Parts, options: SessionOptions, record: SessionInfo | None
) -> dict[str, Json]:
    """What a caller says about the session that its record does not."""
    log, capture = parts.log, parts.capture
    changes: dict[str, Json] = {}
    if options.get("cwd") is not None and options.get("files", True):
        bring_files(log.store, log.id, str(options["cwd"]))
    said = _said(options)
    if said:
        info = log.store.record(log.id) if record is None else record
        changes = {name: value for name, value in said.items() if value != getattr(info, name)}
        if changes.get("cwd") == info.root:
            # That is where it belongs already, wherever in it the agent runs.
            changes.pop("cwd", None)
            capture.cwd = info.cwd
    if isinstance(changes.get("cwd"), Linked) and capture.last_tree() is not None:
        # A link may lead elsewhere now, and no caller chose that: the next look refuses it.
        capture.root = changes.pop("cwd")
    if "cwd" in changes:
        capture.rebind(changes["cwd"])
    if options.get("metadata"):
        changes["metadata"] = dict(options["metadata"] or {})
    if options.get("tags"):
        changes["tags"] = list(options["tags"])
    return changes


def _said(options: SessionOptions) -> dict[str, Json]:
    """What a caller says that a session's record has, too."""
    names = ("title", "key", "model", "agent_name", "cwd")
    return {name: options.get(name) for name in names if options.get(name) is not None}


@contextmanager
def _forking(
    parts: Parts, session_id: str, key: str | None, at: Target | None, place: str | None
) -> Iterator[None]:
    """A fork's files and contents; without the fork, its directory goes again."""
    if place is None:
        parts.browser.share_contents(session_id)
        yield
        return
    if _known(parts.log.store, session_id, None) or _known(parts.log.store, None, key):
        raise AlreadyExists(f"there is a session `{session_id}` or one with its key already")
    there = Path(place).is_dir()
    parts.browser.write_files(at, place)
    if parts.log.store.record(parts.log.id).metadata.get(ORIGIN) is not None:
        # All that is in the new folder is the session's own, and the caller named it.
        allow(place)
    try:
        parts.browser.share_contents(session_id)
        yield
    except BaseException:
        from ..files.beneath import remove_tree

        remove_tree(place)
        if there:
            Path(place).mkdir()
        raise


def _agent_for(parts: Parts, options: SessionOptions) -> SessionOptions:
    """The agent of a session, and what it is made with, for a fork that names no other."""
    if "agent" in options or "provider" in options:
        return {}
    return {"agent": parts.turns.agent, "agent_options": parts.turns.agent_options}


@contextmanager
def _store(
    store: Store | str | None, options: SessionOptions, *, sought: str | None = None
) -> Iterator[tuple[Store, bool]]:
    """The store to use, and whether it is ours to close; we do, where the block fails.

    Nothing is made for an agent that cannot be, nor for a session that is to be there already:
    `sought` says what is missing then.
    """
    _check_agent(options)
    place, owns = _found(store, options, sought)
    try:
        yield place, owns
    except BaseException:
        if owns:
            place.close()
        raise


def _found(
    store: Store | str | None, options: SessionOptions, sought: str | None
) -> tuple[Store, bool]:
    if not options.get("persist", True):
        return open_store("null:"), True
    if isinstance(store, Store):
        return store, False
    try:
        return open_store(store, create=sought is None), True
    except NotFound as error:
        raise NotFound(f"{sought}: {error}") from error


def _check_agent(options: SessionOptions) -> None:
    agent = agent_named(options)
    if not callable(agent):
        check_agent(agent, options_of_agent(options))
    elif given := options.keys() & {"tools", "can_use_tool", "phase", "hooks"}:
        names = ", ".join(f"`{name}`" for name in sorted(given))
        raise InvalidData(
            f"{names}: for an agent named as 'provider:model' only; a callable brings its own"
        )


def _check_there(store: Store, session_id: str) -> None:
    """Raise `NotFound`, with the name of the store, unless it has this session."""
    try:
        store.logs(session_id)
    except NotFound as error:
        where = store.url or type(store).__name__
        raise NotFound(f"no session `{session_id}` in the store {where}") from error


def _finished(store: Store, session_id: str, options: SessionOptions) -> list[Problem]:
    """Finish what a crash cut short in the session's folder; what is to be said of it."""
    files = bool(options.get("files", True))
    return at_opening(store, session_id, files=files, cwd=options.get("cwd"))


_FORK = r" \(fork(?: (\d+))?\)$"


def _forked(title: str | None) -> str | None:
    """The title of a fork; one without a title goes by what was said first, as its parent does."""
    if title is None:
        return None
    found = re.search(_FORK, title)
    if found is None:
        return f"{title} (fork)"
    return f"{title[: found.start()]} (fork {int(found[1] or 1) + 1})"


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _known(
    store: Store, session_id: str | None, key: str | None, *, whole: bool = False
) -> tuple[str, SessionInfo | None] | None:
    """The id of the session that is meant, if it exists, and, with `whole`, its record."""
    if session_id is not None:
        try:
            if whole:
                return session_id, store.record(session_id)
            # Not `info`: folding a long log only to know that it exists takes long.
            store.logs(session_id)
            return session_id, None
        except NotFound:
            return None
    found = store.sessions(key=key, limit=1) if key is not None else []
    return (found[0].id, found[0]) if found else None
