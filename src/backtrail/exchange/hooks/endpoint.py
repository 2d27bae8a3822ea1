"""One call of a hook: an event on stdin, nothing on stdout, exit code 0, within the limit.

Whatever goes wrong is noted as a miss and stops no agent. The limit is kept by a thread and
not by a signal: a signal's function runs only when the main thread is back in Python, and
what may take long is a lock or a disk.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from typing import TYPE_CHECKING

from ..._startup.loading import load_msgspec
from .dialects import CHECK, DIALECTS, Dialect, Verb, verb_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ...events import Json
    from ...settings import Settings
    from ...stores.base import Store
    from .fields import Fields
    from .follower import Follower

LIMIT = 2.0
_INPUT = 256 * 1024 * 1024
_PATIENCE = 0.5
_OFF = ("0", "off", "false", "no")


class Hook:
    """A hook under way: what is known about it, for the note of a miss."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.began = time.monotonic()
        self.limit = _limit_given()
        self._relimited = _thread.allocate_lock()
        self._relimited.acquire()
        self.folder: Path | None = None
        self.event: Mapping[str, Json] = {}

    def miss(self, why: str) -> None:
        """Note that something was missed; for a person who tries the hook out, print it."""
        if self.event.get("hook_event_name") == CHECK:
            # Where the disk is full, a note would reach no person.
            os.write(1, why.encode("utf-8", "replace"))
            return
        from .small_files import Miss, note_miss, now

        given = map(self.event.get, ("hook_event_name", "session_id", "tool_name", "cwd"))
        name, session, tool, cwd = (v[:200] if isinstance(v, str) else "" for v in given)
        miss = Miss(now(), self.dialect.agent, name, session, tool, cwd, why[:1000])
        note_miss(self.folder, miss)

    def left(self) -> float:
        """Seconds until the limit."""
        return self.limit - (time.monotonic() - self.began)

    def relimit(self, seconds: float) -> None:
        """Keep the limit that the settings have; called once."""
        if seconds != self.limit:
            self.allow(seconds - self.limit)

    def allow(self, seconds: float) -> None:
        """Move the limit: for a wait that is not the hook's own doing, and back after it."""
        self.limit += seconds
        try:
            self._relimited.release()
        except RuntimeError:
            # It was moved just before, and the watch has not looked yet.
            return

    def watch(self) -> None:
        """Leave when the time is over, whatever the main thread does."""
        while (left := self.left()) > 0:
            # Asleep until then: whenever this thread wakes up, the main thread waits for it.
            self._relimited.acquire(timeout=left)
        # Even the note of the miss may have to wait for a disk.
        _thread.start_new_thread(_leave, (_PATIENCE,))
        try:
            self.miss(f"took longer than {self.limit:g} s")
        finally:
            os._exit(0)


def _leave(seconds: float) -> None:
    time.sleep(seconds)
    os._exit(0)


def serve(agent: str) -> str:
    """Serve one event of an agent from stdin; what to print, nearly always nothing."""
    hook = Hook(DIALECTS[agent])
    _thread.start_new_thread(hook.watch, ())
    if os.environ.get("BACKTRAIL_HOOKS", "").lower() in _OFF:
        _drain()
        return ""
    try:
        event = _event()
        if event is None:
            hook.miss("what came on stdin is not a JSON object")
            return ""
        hook.event = event
        verb = verb_of(hook.dialect, event)
        return _act(hook, verb) if verb is not None else ""
    # An agent never sees our faults.
    except Exception as error:
        # Our own errors say what is wrong; of others the kind says most.
        hook.miss(getattr(error, "message", "") or f"{type(error).__name__}: {error}")
        return ""


def _act(hook: Hook, verb: Verb) -> str:
    load_msgspec()
    from pathlib import Path

    from ...settings import load
    from ...stores.opening import open_store, refuse_remote
    from .fields import Fields
    from .places import folder_of

    fields = Fields.of(hook.event, hook.dialect)
    settings = load(cwd=fields.cwd if Path(fields.cwd).is_dir() else None)
    hook.relimit(settings.hook_timeout)
    if settings.why_unrecorded(fields.cwd) is not None:
        return ""
    settings.apply()
    refuse_remote(settings.store, "hooks write")
    with open_store(settings.store) as store:
        hook.folder = folder_of(store)
        if verb == "check":
            _check(store, hook.folder)
            return ""
        if not fields.session:
            hook.miss("the event names no session")
            return ""
        news = _follow(hook, verb, store, fields, settings)
        if verb in ("stop", "end"):
            # The agent has nothing to wait for any more, and it is another process that works.
            from ...stores import due

            due.start(store, settings.text("retention"), settings.unasked())
        return news


def _check(store: Store, folder: Path) -> None:
    """Raise if the store cannot be read and written."""
    from ...errors import StoreFailed
    from ...files.contents.garbage import check_floor

    store.sessions(key=CHECK, limit=1)
    for place in store.places:
        if place.exists() and not os.access(place, os.W_OK):
            raise StoreFailed(f"{place} cannot be written: check who owns it and its mode")
    check_floor(folder)
    probe = folder / f"probe-{os.getpid()}"
    try:
        probe.write_bytes(bytes(65536))
    finally:
        probe.unlink(missing_ok=True)


def _follow(hook: Hook, verb: Verb, store: Store, fields: Fields, settings: Settings) -> str:
    from .first_import import SHARE
    from .follower import Follower, Patience
    from .identify import LeftBehind

    begins = verb in ("prompt", "before")
    patience = Patience(hook.limit * SHARE, settings.hook_wait, hook.allow)
    try:
        follower = Follower(
            store, hook.dialect, fields, settings, patience, begins=begins, makes=verb != "end"
        )
    except LeftBehind:
        return ""
    try:
        is_over = follower.is_left and verb not in ("before", "after", "failed")
        getattr(follower, "end_calls" if is_over else verb)()
    finally:
        follower.close()
        for trouble in follower.troubles:
            hook.miss(trouble)
    # What was left for the agent is not for its subagents.
    return _news(hook, store, follower) if verb == "prompt" and not fields.agent else ""


def _news(hook: Hook, store: Store, follower: Follower) -> str:
    """What the agent has to know before it goes on, in the form it takes it."""
    from .small_files import restored, take_notes

    files = [restored(follower.outdated)] if follower.outdated else []
    text = "\n".join(dict.fromkeys([*files, *take_notes(store, follower.id)]))
    if not text or hook.dialect.agent == "claude-code":
        return f"{text}\n" if text else ""
    import json

    name = hook.event["hook_event_name"]
    return json.dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}})


def _event() -> Mapping[str, Json] | None:
    """The event on stdin; None if there is none."""
    import json

    given = sys.stdin.buffer.read(_INPUT)
    try:
        event = json.loads(given)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _drain() -> None:
    """Read what the agent writes, so that it need not hear of a closed pipe."""
    while sys.stdin.buffer.read(1 << 20):
        pass


def _limit_given() -> float:
    """The limit from the environment, until the settings are read."""
    try:
        return max(0.05, float(os.environ.get("BACKTRAIL_HOOK_TIMEOUT", LIMIT)))
    except ValueError:
        return LIMIT


__all__ = ["CHECK", "LIMIT", "Hook", "serve"]
