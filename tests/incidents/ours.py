"""Backtrail behind the driver of the incidents."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest import mock

import apsw

import backtrail
from backtrail import (
    Checkpoint,
    Conflict,
    Damaged,
    NotFound,
    Session,
    SessionBusy,
    Unsafe,
    Unsupported,
)
from backtrail.exchange.bundle import read_bundle
from backtrail.files import collect
from backtrail.files.contents import garbage
from backtrail.files.depot import Depot
from backtrail.stores import open_store

from ..exchange.forging import State, forged, packed
from .driver import Driver, Refused, Token
from .dying import DIED

ROOT = Path(__file__).parents[2]


class Ours(Driver):
    """One session of Backtrail; what the agent does is a call of it."""

    name = "Backtrail"

    def __init__(self, place: Path, session_id: str = "main") -> None:
        super().__init__(place)
        self.id = session_id
        self.url = f"sqlite:///{place}/store.db"
        self._session: Session | None = None
        self._last: backtrail.Rewind | None = None

    @property
    def session(self) -> Session:
        assert self._session is not None, "not started"
        return self._session

    # --- the four calls ------------------------------------------------------------------

    def start(self, root: Path) -> None:
        self.root = root
        self.place.mkdir(parents=True, exist_ok=True)
        self._session = Session.open(self.url, self.id, cwd=root)
        try:
            self.session.not_captured()
        except Unsupported as error:
            raise Refused(str(error)) from error

    def checkpoint(self) -> Token:
        return self.session.checkpoint()

    def restore(self, token: Token) -> None:
        self._rewind(token)

    def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def call(self, *paths: str) -> AbstractContextManager[object]:
        if paths:
            return self.session.tool("edit", {"paths": [*paths]}, paths=paths)
        return self.session.tool("bash", {"command": "…"})

    # --- other ways back -----------------------------------------------------------------

    def restore_all(self, token: Token) -> None:
        with _refusing():
            self._last = self.session.rewind(_point(token), mode="exact")

    def restore_merging(self, token: Token) -> None:
        with _refusing():
            self._last = self.session.rewind(_point(token), on_conflict="merge")

    def restore_paths(self, token: Token, paths: Collection[str]) -> None:
        with _refusing():
            self._last = self.session.rewind(_point(token), scope="files", paths=paths)

    def restore_talk(self, token: Token) -> None:
        self._last = self.session.rewind(_point(token), scope="conversation")

    def restore_files(self, token: Token) -> None:
        with _refusing():
            self._last = self.session.rewind(_point(token), scope="files")

    def undo(self) -> None:
        self._last = self.session.undo()

    def redo(self) -> None:
        self._last = self.session.redo()

    def _rewind(self, token: Token) -> None:
        with _refusing():
            self._last = self.session.rewind(_point(token))

    # --- what it says --------------------------------------------------------------------

    def preview(self, token: Token) -> set[str]:
        return set(self.session.rewind(_point(token), dry_run=True).files_changed)

    def report(self) -> dict[str, str]:
        assert self._last is not None, "nothing was restored"
        return {file.path: file.reason or file.action for file in self._last.files}

    def warnings(self) -> list[str]:
        left_out = [f"{path}: {reason}" for path, reason, _ in self.session.not_captured()]
        problems = [problem.detail for problem in self.session.problems]
        return [*(self._last.warnings if self._last else ()), *left_out, *problems]

    # --- more sessions -------------------------------------------------------------------

    def another(self) -> Driver:
        other = Ours(self.place, self.id + "-2")
        other.url = self.url
        other.start(self.root)
        return other

    def fork(self, token: Token | None = None) -> Driver:
        made = self.session.fork(None if token is None else _point(token))
        fork = Ours(self.place, made.id)
        made.close()
        fork.url = self.url
        fork.start(self.root)
        return fork

    def bring(self, files: Mapping[str, bytes]) -> Token:
        """From a bundle, which is how sessions come from strangers."""
        state: State = {}
        for name, content in files.items():
            *above, last = name.split("/")
            at = state
            for part in above:
                at = at.setdefault(part, {})  # type: ignore[assignment]
            at[last] = content
        bundle = self.place / "theirs.bundle"
        bundle.write_bytes(packed(forged([state, {}], self.root)))
        self.stop()
        with _refusing(), open_store(self.url) as store:
            theirs = read_bundle(store, bundle).id
        with _refusing():
            self._session = Session.resume(self.url, theirs, cwd=self.root)
            return self.session.checkpoint(at=1)

    # --- the conversation ----------------------------------------------------------------

    def say(self, text: str) -> None:
        self.session.append({"role": "user", "content": text})

    def said(self) -> list[str]:
        return [str(message["content"]) for message in self.session.messages()]

    def say_again(self) -> None:
        last = next(self.session.events(reverse=True, kinds=("user_message",)))
        self.session.rewind(before=last)
        self.session.append(last.data["message"])

    def stream(self, parts: Collection[str]) -> None:
        for part in parts:
            self.session.emit(backtrail.Delta("text", {"text": part}))
        self.session.append({"role": "assistant", "content": "".join(parts)})

    def ask_for_a_tool(self) -> None:
        wanted = {"name": "bash", "arguments": "{}"}
        call = {"id": "call-1", "type": "function", "function": wanted}
        self.session.append({"role": "assistant", "content": None, "tool_calls": [call]})

    def derived(self) -> object:
        state = self.session.state()
        return state.turn_count, [call.id for call in state.pending]

    def sessions(self) -> list[str]:
        return [info.id for info in self.session.store.sessions()]

    def write_text_log(self) -> None:
        self.url = f"file:{self.place}/store"

    def log_file(self) -> Path:
        return self.place / "store" / "sessions" / self.id / "messages.jsonl"

    # --- the store -----------------------------------------------------------------------

    @contextmanager
    def _depot(self) -> Iterator[Depot]:
        with open_store(self.url) as store:
            depot = Depot.of(store)
            try:
                yield depot
            finally:
                depot.close()

    def collect(self) -> None:
        with open_store(self.url) as store:
            collect(store, grace=0)

    def forget(self) -> None:
        self.session.store.delete(self.id)
        self.stop()

    def low_disk(self) -> AbstractContextManager[object]:
        return mock.patch.object(garbage, "_space", return_value=(100 << 30, 1 << 20))

    def budget(self, size: int) -> AbstractContextManager[object]:
        return mock.patch.object(garbage, "default_budget", return_value=size)

    def lose(self, content: bytes) -> None:
        from backtrail.files.trees import digest_of

        with self._depot() as depot:
            path = depot.folder / "blobs.db"
        connection = apsw.Connection(str(path))
        connection.execute("DELETE FROM blobs WHERE digest = ?", (digest_of(content),))
        connection.close()

    def state_file(self) -> Path:
        with self._depot() as depot:
            return next(depot.folder.glob("index-*"))

    # --- dying ---------------------------------------------------------------------------

    def kill_checkpoint(self) -> None:
        self._die("checkpoint", "", 1)

    def kill_restore(self, token: Token, step: int) -> bool:
        return self._die("restore", _point(token).id, step + 1)

    def kill_call(self, command: str) -> None:
        self._die("call", command, 0)

    def _die(self, verb: str, token: str, step: int) -> bool:
        """Let a child go on with the session and die; this one stops meanwhile."""
        self.stop()
        words = [self.url, self.id, os.fspath(self.root), verb, token, str(step)]
        command = [sys.executable, "-m", "tests.incidents.dying", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True)
        if done.returncode not in (0, DIED):
            raise AssertionError(done.stderr.decode(errors="replace"))
        self.start(self.root)
        return done.returncode == DIED


def _point(token: Token) -> Checkpoint:
    assert isinstance(token, Checkpoint)
    return token


@contextmanager
def _refusing() -> Iterator[None]:
    """What the library refuses is a refusal, not a failure."""
    try:
        yield
    except (Conflict, NotFound, Damaged, SessionBusy, Unsafe, Unsupported) as error:
        raise Refused(str(error)) from error
