"""Session: one conversation on a store. It begins, appends, shows, goes back and forks.

`conversation.py` is the plain half: appending and showing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Self, Unpack

from .. import telemetry
from .._startup.frozen import replace
from ..errors import AlreadyExists, BacktrailError, Conflict, InvalidData, NotFound
from ..events import Json, NewEvent, Problem, SessionInfo, check_session_id, new_id
from ..events.history import COPIED, INHERITED
from ..events.messages import as_message, message_event, prompt_event
from ..files.restore.unfinished import at_opening
from ..settings.allowance import ORIGIN, allow
from ..stores.base import Store, checkpoint_of, is_deleted
from ..stores.batches import drafts
from ..stores.opening import open_store
from ..stores.records import new_record
from .drive import Sending
from .live import check_agent
from .options import Linked, SessionOptions, agent_named, checked, folder, options_of_agent
from .points import (
    Target,
    anchor_of,
    event_id,
    lost_prompt,
)
from .views import beyond, last_of

_NOTHING = nullcontext()


class Session(Sending):
    """One conversation. Made by `create`, `open`, `resume`, `latest` or `fork`.

    May be used from several threads; turns are served one after another.
    """

    # --- beginning -----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        store: Store | str | None = None,
        session_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """A new session; an id that exists is `AlreadyExists`."""
        options = checked("create", options)
        place, owns = _store(store, options)
        try:
            return cls._made(place, session_id, options, owns, base=None)
        except BaseException:
            if owns:
                place.close()
            raise

    @classmethod
    def open(
        cls,
        store: Store | str | None = None,
        session_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """The session with this id or `key`, resumed if it exists, else created."""
        options = checked("open", options)
        place, owns = _store(store, options)
        try:
            while True:
                known = _known(place, session_id, options.get("key"))
                if known is not None:
                    return cls._reopened(place, known, options, owns, at=None)
                try:
                    return cls._made(place, session_id, options, owns, base=None)
                except AlreadyExists:
                    # Somebody made it in between. A key held by another id is an error.
                    if _known(place, session_id, options.get("key")) is None:
                        raise
        except BaseException:
            if owns:
                place.close()
            raise

    @classmethod
    def resume(
        cls,
        store: Store | str | None,
        session_id: str,
        at: Target | None = None,
        replay_last_user_turn: bool = False,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """A session that exists, to go on with.

        `at` shows the history up to that event, and the first append continues from there.
        `replay_last_user_turn` does so from the last user message, so that it can be
        answered again; where there is none, the history is empty.
        """
        options = checked("resume", options)
        place, owns = _store(store, options, sought=f"no session `{session_id}`")
        try:
            _check_there(place, session_id)
            left = _finished(place, session_id, options)
            seq = None if at is None else anchor_of(place, session_id, at)
            if replay_last_user_turn:
                said = (e for e in place.walk(session_id, until=seq) if e.kind == "user_message")
                last = next(said, None)
                seq = last.seq if last else 0
            return cls._reopened(place, session_id, options, owns, at=seq, left=left)
        except BaseException:
            if owns:
                place.close()
            raise

    @classmethod
    def latest(
        cls,
        store: Store | str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """The newest session of `cwd`, by default the current directory.

        Forks count, subagents do not. `NotFound` if there is none.
        """
        options = checked("latest", options)
        cwd = options.get("cwd") or folder(".")
        sought = f"no previous session found in {os.fspath(cwd)}"
        place, owns = _store(store, options, sought=sought)
        try:
            newest = place.latest(cwd)
            # It belongs there by its root, perhaps, and stays in its own folder.
            options.pop("cwd", None)
            return cls._reopened(place, newest.id, options, owns, at=None)
        except BaseException:
            if owns:
                place.close()
            raise

    @classmethod
    def _made(
        cls,
        store: Store,
        session_id: str | None,
        options: SessionOptions,
        owns: bool,
        base: tuple[SessionInfo, int] | None,
        around: AbstractContextManager[None] = _NOTHING,
        notes: Mapping[str, Json] | None = None,
    ) -> Self:
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
        session = cls(store, session_id, options, owns=owns, at=None)
        session._recorder.folder.fresh = True
        session._root = info.root or info.cwd
        with around:
            store.create(info, base=(base[0].id, base[1]) if base else None)
        with session._opening():
            session._hold()
            about: dict[str, Json] = {"info": store.record(session_id).to_dict(), **(notes or {})}
            start = NewEvent("session_start", about)
            session._append([start, *seeds])
        return session

    @classmethod
    def _reopened(
        cls,
        store: Store,
        session_id: str,
        options: SessionOptions,
        owns: bool,
        at: int | None,
        left: list[Problem] | None = None,
    ) -> Self:
        """A session that exists; `left` is what `_finished` said, if it was asked already."""
        if left is None:
            left = _finished(store, session_id, options)
        with telemetry.span(
            "session.resume", session_id=session_id, store=type(store).__name__
        ) as span:
            session = cls(store, session_id, options, owns=owns, at=at)
            session._resumed = True
            session.problems.extend(left)
            with session._opening():
                session._hold()
                session._adopt(options)
                if telemetry.listeners:
                    span.measurements["message_count"] = len(session.messages())
                    span.metadata["source"] = "event_log"
            return session

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Close a session that cannot be opened; nobody else would."""
        try:
            yield
        except BaseException:
            with suppress(BacktrailError):
                self.close()
            raise

    def _adopt(self, options: SessionOptions) -> None:
        """Take over what a resuming caller says about the session, if nothing is refused."""
        changes = self._said_anew(options)
        prompt = options.get("system_prompt")
        wanted = None if prompt is None else prompt_event(prompt)
        given = [as_message(message) for message in options.get("messages", ())]
        seeds = [message_event(message) for message in given]
        drafts([wanted, *seeds] if wanted else seeds)
        if given:
            known = self.messages(repair=False)
            new = beyond(known, given)
            if known and new is given:
                raise Conflict(
                    f"session `{self.id}` has another history than `messages`: leave it out to "
                    "resume, or fork"
                )
            seeds = seeds[len(seeds) - len(new) :]
        if changes:
            self.store.update(self.id, **changes)
        if self._at is not None:
            lost = lost_prompt(self.store, self.id, None, self._at)
            self._prompt = NewEvent("system_message", lost.data) if lost else None
        if (
            wanted is not None
            and last_of(self.messages(repair=False)[:1], "system") != wanted.data["message"]
        ):
            self._prompt = wanted
        self._append(seeds)

    def _said_anew(self, options: SessionOptions) -> dict[str, Json]:
        """What a caller says about the session that its record does not."""
        changes: dict[str, Json] = {}
        names = ("title", "key", "model", "agent_name", "cwd")
        said = {name: options.get(name) for name in names if options.get(name) is not None}
        if said:
            info = self.store.record(self.id)
            changes = {name: value for name, value in said.items() if value != getattr(info, name)}
            if changes.get("cwd") == info.root:
                # That is where it belongs already, wherever in it the agent runs.
                changes.pop("cwd", None)
                self._cwd = info.cwd
        if isinstance(changes.get("cwd"), Linked) and self._last_tree() is not None:
            # A link may lead elsewhere now, and nobody chose that: the next look refuses it.
            self._root = changes.pop("cwd")
        if "cwd" in changes:
            self._rebind(changes["cwd"])
        if options.get("metadata"):
            changes["metadata"] = dict(options["metadata"] or {})
        if options.get("tags"):
            changes["tags"] = list(options["tags"])
        return changes

    def _hold(self) -> None:
        if self._lease_mode == "session":
            self._held.enter_context(self.store.lease(self.id, wait=self._wait))

    # --- forking ---------------------------------------------------------------------------

    def fork(
        self,
        at: Target | None = None,
        *,
        session_id: str | None = None,
        into: str | os.PathLike[str] | None = None,
        copy_checkpoints: bool = False,
        **options: Unpack[SessionOptions],
    ) -> Self:
        """A new session that begins with this one's history, up to `at` or to now.

        It works in the same directory, with the files as they are; with `into`, in that new
        directory, which gets the files as they were at that point.
        """
        with telemetry.span(
            "session.fork", parent_id=self.id, store=type(self.store).__name__
        ) as span:
            self._check_open()
            options = checked("fork", options)
            if not options.get("persist", True):
                raise InvalidData("a fork is kept where its session is: `persist` is not for it")
            place = None if into is None else folder(into)
            if at is None and self._recorder.under_way:
                self._look()
            self._save()
            self._append([])
            parent = self.store.record(self.id)
            seq = self._view_head() if at is None else anchor_of(self.store, self.id, at)
            metadata = {**parent.metadata, **(options.get("metadata") or {})}
            inherited: SessionOptions = {
                "title": _forked(parent.title),
                "cwd": parent.cwd,
                "root": None if "cwd" in options else parent.root,
                "model": parent.model,
                "agent_name": parent.agent_name,
                "lease": self._lease_mode,
                "wait": self._wait,
                "on_error": self._on_error,
                "files": self._files,
                **self._agent_for(options),
                **options,
                "metadata": metadata,
            }
            _check_agent(inherited)
            prompt = self._reprompt(seq)
            if place is not None:
                inherited["cwd"], inherited["root"] = place, None
            session_id = check_session_id(new_id() if session_id is None else session_id)
            around = self._forking(session_id, options.get("key"), at, place)
            lists = {COPIED: copy_checkpoints}
            fork = self._made(
                self.store, session_id, inherited, False, (parent, seq), around, lists
            )
            owed = [prompt] if prompt and options.get("system_prompt") is None else []
            with fork._opening():
                fork._append([*owed, *self._noted_later(seq, listed=copy_checkpoints)])
            if telemetry.listeners:
                span.measurements["message_count"] = len(fork.messages(repair=False))
                anchor = event_id(self.store, self.id, seq)
                span.metadata.update(session_id=fork.id, anchor_message_id=anchor)
            return fork

    @contextmanager
    def _forking(
        self, session_id: str, key: str | None, at: Target | None, place: str | None
    ) -> Iterator[None]:
        """A fork's files and contents; without the fork, its directory goes again."""
        if place is None:
            self._share_contents(session_id)
            yield
            return
        if _known(self.store, session_id, None) or _known(self.store, None, key):
            raise AlreadyExists(f"there is a session `{session_id}` or one with its key already")
        there = Path(place).is_dir()
        self._write_files(at, place)
        if self.store.record(self.id).metadata.get(ORIGIN) is not None:
            # All that is in the new folder is the session's own, and the caller named it.
            allow(place)
        try:
            self._share_contents(session_id)
            yield
        except BaseException:
            from ..files.beneath import remove_tree

            remove_tree(place)
            if there:
                Path(place).mkdir()
            raise

    def _agent_for(self, options: SessionOptions) -> SessionOptions:
        """The agent of this session, and what it is made with, for a fork that names no other."""
        if "agent" in options or "provider" in options:
            return {}
        return {"agent": self.agent, "agent_options": self._agent_options}

    def _noted_later(self, seq: int, *, listed: bool) -> list[NewEvent]:
        """Copies of the checkpoints of events up to `seq` that were noted after it.

        A fork can go there also when this session is gone, whether or not it lists them.
        """
        copies: list[NewEvent] = []
        for event in self.events(after=seq, kinds=("checkpoint",)):
            if checkpoint_of(event, self.id).seq <= seq and not is_deleted(
                self.store, self.id, event.id
            ):
                data = {**event.data, INHERITED: True}
                if listed:
                    del data[INHERITED]
                copies.append(NewEvent(event.kind, data, id=event.id, ts=event.ts))
        return copies

    def _view_head(self) -> int:
        return self._head_now() if self._at is None else self._at


def _store(
    store: Store | str | None, options: SessionOptions, *, sought: str | None = None
) -> tuple[Store, bool]:
    """The store to use, and whether it is ours to close.

    Nothing is made for an agent that cannot be, nor for a session that is to be there already:
    `sought` says what is missing then.
    """
    _check_agent(options)
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


_FORK = re.compile(r" \(fork(?: (\d+))?\)$")


def _forked(title: str | None) -> str | None:
    """The title of a fork; one without a title goes by what was said first, as its parent does."""
    if title is None:
        return None
    found = _FORK.search(title)
    if found is None:
        return f"{title} (fork)"
    return f"{title[: found.start()]} (fork {int(found[1] or 1) + 1})"


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _known(store: Store, session_id: str | None, key: str | None) -> str | None:
    """The id of the session that is meant, if it exists."""
    if session_id is not None:
        try:
            # Not `info`: folding a long log only to know that it exists takes long.
            store.logs(session_id)
            return session_id
        except NotFound:
            return None
    found = store.sessions(key=key, limit=1) if key is not None else []
    return found[0].id if found else None
