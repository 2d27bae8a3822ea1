"""What adapters share: the sessions of one framework in a store, found by the framework's names.

A framework's name of a session becomes the session's `key`, and its id where it may be one. With
a `cwd`, events go through a `Session`, so that files are captured and go back with the
conversation; without one they go straight to the store.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..errors import AlreadyExists, BacktrailError, Closed, InvalidData, InvalidId, NotFound
from ..events import (
    Event,
    Json,
    NewEvent,
    SessionInfo,
    check_session_id,
    encode_data,
    new_id,
)
from ..session.session import Session
from ..session.toolcalls import Call
from ..stores.base import Store
from . import Place

if TYPE_CHECKING:
    from ..files.changes.brackets import Bracket, Grab

    Begun = Bracket | Grab | None

_HELD = 64
"""Sessions that are kept open for their files."""


def exact(value: Json) -> tuple[Json, str | None]:
    """A framework's value as an event can hold it, and as JSON text where that is not the same.

    Text that no event takes (half a surrogate pair, a number too large, NaN) is kept escaped.
    """
    try:
        encode_data({"": value})
        return value, None
    except InvalidData:
        text = json.dumps(value)
    plain = json.loads(text)
    try:
        encode_data({"": plain})
        return plain, None
    except InvalidData:
        return _cleaned(plain), text


def _cleaned(value: Json) -> Json:
    """A value without what JSON has no word for, for people to read."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    return str(value)


def newest_first(store: Store, id: str, first: int = 4) -> Iterator[Event]:
    """The history, newest first, in small pages: for callers that look at its end alone."""
    at: int | None = None
    size = first
    while at != 0:
        page = list(store.read(id, until=at, reverse=True, limit=size))
        if not page:
            return
        for event in page:
            yield event
            at = event.previous if event.previous < event.seq else 0
            if at < event.seq - 1:
                break
        size = min(size * 4, 256)


class Bridge:
    """The sessions of one framework in a store."""

    def __init__(
        self, store: Store | str | None, framework: str, *,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        self._place = Place(store)
        self.store = self._place.store
        self.framework = framework
        self.cwd = cwd
        self._ids: dict[str, str] = {}
        self._held: OrderedDict[str, Session] = OrderedDict()
        self._mutex = threading.RLock()
        self.closed = False

    def check_open(self) -> None:
        """Raise `Closed` once it is closed."""
        if self.closed:
            raise Closed(f"this {self.framework} adapter is closed")

    # --- sessions ------------------------------------------------------------------------

    def key(self, *names: str) -> str:
        """The key of a session that the framework calls by these names."""
        return f"{self.framework}:" + "/".join(quote(name, safe="") for name in names)

    def find(self, *names: str, own: bool = False) -> str | None:
        """The id of a session, None if there is none.

        With `own`, the one name may also be the id of a session of any origin.
        """
        self.check_open()
        key = self.key(*names)
        known = self._ids.get(key)
        if known is not None:
            return known
        if own:
            with suppress(InvalidId, NotFound):
                self.store.logs(check_session_id(names[0]))
                self._ids[key] = names[0]
                return names[0]
        found = self.store.sessions(key=key, limit=1)
        if not found:
            return None
        self._ids[key] = found[0].id
        return found[0].id

    def make(
        self, *names: str, metadata: Mapping[str, Json] | None = None,
        first: Sequence[NewEvent] = (), tags: Sequence[str] = (), named: bool = True,
        base: tuple[str, int] | None = None,
    ) -> str:  # fmt: skip
        """A new session with its first events; `AlreadyExists` if the framework has it already.

        If it is `named`, its id is the last of the names, where that may be one and is not taken.
        """
        self.check_open()
        key = self.key(*names)
        about = {"framework": self.framework, **(metadata or {})}
        cwd = None if self.cwd is None else os.fspath(self.cwd)
        for id in (*(ids_for(names[-1]) if named else ()), new_id()):
            info = SessionInfo(id, key=key, cwd=cwd, tags=list(tags), metadata=about)
            try:
                self.store.create(info, base=base)
            except AlreadyExists:
                if self.store.sessions(key=key, limit=1):
                    raise
                continue
            start = NewEvent("session_start", {"info": self.store.record(id).to_dict()})
            self.store.append(id, [start, *first])
            self._ids[key] = id
            return id
        raise AlreadyExists(f"there is a session for {key} already")

    def ensure(
        self, *names: str, own: bool = False, metadata: Mapping[str, Json] | None = None,
        named: bool = True,
    ) -> str:  # fmt: skip
        """The id of a session, which is made if there is none."""
        while True:
            found = self.find(*names, own=own)
            if found is not None:
                return found
            with suppress(AlreadyExists):
                return self.make(*names, metadata=metadata, named=named)

    def forget(self, *names: str) -> None:
        """Look the session up anew next time: it is gone."""
        id = self._ids.pop(self.key(*names), None)
        if id is not None:
            self._let_go(id)

    def delete(self, *names: str) -> bool:
        """Delete a session; False if there is none."""
        id = self.find(*names)
        self.forget(*names)
        if id is None:
            return False
        try:
            self.store.delete(id)
        except NotFound:
            return False
        return True

    # --- events --------------------------------------------------------------------------

    def append(
        self, id: str, events: list[NewEvent], *, expected: int | None = None
    ) -> list[Event]:  # fmt: skip
        """Append to a session's main log; with a `cwd`, along with what is to be said of files."""
        if self.cwd is None:
            return self.store.append(id, events, expected=expected)
        return self.session(id).parts.capture.append(events, expected=expected, spans=False)

    def session(self, id: str) -> Session:
        """The session, held open: with a `cwd`, its files are captured."""
        self.check_open()
        with self._mutex:
            found = self._held.get(id)
            if found is not None:
                self._held.move_to_end(id)
                return found
            if self.cwd is None:
                made = Session.resume(self.store, id)
            else:
                made = Session.resume(self.store, id, cwd=self.cwd)
            # Frameworks open a session for every request: that is no event of its own.
            made.parts.log.is_resumed = False
            self._held[id] = made
            while len(self._held) > _HELD:
                idle = (key for key, one in self._held.items() if not _is_busy(one))
                oldest = next(idle, id)
                if oldest == id:
                    break
                self._let_go(oldest)
            return made

    def _let_go(self, id: str) -> None:
        with self._mutex:
            held = self._held.pop(id, None)
        if held is not None:
            with suppress(BacktrailError):
                held.close()

    def close(self) -> None:
        """Let go of sessions, and of the store where it was opened here."""
        with self._mutex:
            if self.closed:
                return
            for id in list(self._held):
                self._let_go(id)
            self.closed = True
        self._place.close()


def _is_busy(session: Session) -> bool:
    """Whether a call of a session is under way."""
    return bool(session.parts.capture.recorder.under_way)


def ids_for(name: str) -> Sequence[str]:
    """The name, if it may be the id of a session."""
    try:
        return (check_session_id(name),)
    except InvalidId:
        return ()


class Brackets:
    """Brackets around a framework's tool calls, opened and closed by its callbacks.

    What a call did to the files is an `action`, since the framework stores the call's answer
    itself; a call that left the files as they were leaves no event.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[Session, Call, Begun]] = {}
        self._mutex = threading.Lock()

    def begin(self, session: Session, id: str, name: str, input: Json) -> None:
        """A call begins."""
        call = Call(name, exact(input)[0], None)
        call.of, call.only_files = id, True
        begun = session.parts.capture.begin_call(call, None)
        with self._mutex:
            self._open[id] = (session, call, begun)

    def end(self, id: str, result: object = None, error: BaseException | None = None) -> None:
        """A call is over; one that did not begin is passed over."""
        with self._mutex:
            found = self._open.pop(id, None)
        if found is not None:
            session, call, begun = found
            call.result = result
            session.parts.capture.end_call(call, begun, error)

    def end_all(self) -> None:
        """Calls whose end no callback heard of are over."""
        for id in list(self._open):
            self.end(id, error=Interrupted("no end was reported"))


class Interrupted(Exception):
    """A call was cut short."""
