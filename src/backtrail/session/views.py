"""What a session shows: messages out of events, and the results its verbs return. Pure."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, compress
from operator import attrgetter
from typing import TypeVar, get_args

import msgspec

from .._startup.frozen import dataclass, field
from ..errors import InvalidData
from ..events import KINDS, MESSAGE_KINDS, AsDict, Event, Format, Json, NewEvent
from ..events.calls import ToolCall, answers_in, calls_in
from ..events.calls import repair as repaired
from ..events.messages import Page, Said, format_of

T = TypeVar("T")

_SPEAKER = {"system_message": "system", "user_message": "user", "assistant_message": "assistant"}


@dataclass(frozen=True, slots=True)
class FileChange(AsDict):
    """What a rewind does to one path. `insertions` and `deletions` are lines.

    `folder` says that the path is a directory, and no file before or after.
    `old_path` is the name that a file comes from as it is; that one has an entry, too. Of a
    conflict, `code` says why it is one, in a word for programs (`files.effects.Conflict`), and
    `no_merge` why the session's changes cannot be taken out of the file. `modes` are octal, before
    and after, where they differ.
    """

    path: str
    action: str
    reason: str = ""
    insertions: int = 0
    deletions: int = 0
    folder: bool = False
    old_path: str | None = None
    code: str = ""
    no_merge: str = ""
    modes: tuple[str, str] | None = None

    @property
    def acts(self) -> bool:
        """Whether the path changes."""
        return self.action not in ("skip", "conflict")


@dataclass(frozen=True, slots=True)
class Rewind:
    """What a rewind, undo or redo did, or with `applied=False` would do.

    `anchor` is the event the session continues from (0: its very beginning),
    `events_dropped` what left the history, `message_count` what is in it now. `files` has
    one entry for each path that is looked at, `conflicts` those of them that stay because
    others changed them; `warnings` say what cannot be undone. Of the files, changes
    after event `cut` went back. `not_captured` is what the events that go back missed, as
    rows of `Session.not_captured`: it stays as it is. With `error`, acting is refused, and
    why. `plan` stands for what a preview showed: given as `expected`, nothing else is done.
    """

    applied: bool
    anchor: int
    events_dropped: int
    message_count: int
    files: list[FileChange] = field(default_factory=list)
    conflicts: list[FileChange] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    cut: int | None = None
    not_captured: list[tuple[str, str, int]] = field(default_factory=list)
    error: str | None = None
    plan: str = ""

    @property
    def files_changed(self) -> list[str]:
        """The paths that change."""
        return [file.path for file in self.files if file.acts]

    @property
    def insertions(self) -> int:
        """Lines added, over all files."""
        return sum(file.insertions for file in self.files if file.action != "conflict")

    @property
    def deletions(self) -> int:
        """Lines removed, over all files."""
        return sum(file.deletions for file in self.files if file.action != "conflict")

    def __str__(self) -> str:
        """What goes, and what happens to each file, a line each."""
        does = "continues" if self.applied else "would continue"
        lines = [
            f"{does} from event {self.anchor}: {_counted(self.events_dropped, 'event')} dropped, "
            f"{_counted(self.message_count, 'message')} left"
        ]
        for file in self.files:
            text = file.reason or f"+{file.insertions} -{file.deletions}"
            lines.append(f"  {file.action} {file.path} ({text})")
        return "\n".join([*lines, *(f"  {warning}" for warning in self.warnings)])

    def to_dict(self) -> dict[str, Json]:
        """The result as JSON, with `can_rewind` and `error` for callers that expect them."""
        row: dict[str, Json] = msgspec.to_builtins(self)
        row["files_changed"] = self.files_changed
        names = ("path", "reason", "size")
        row["not_captured"] = [dict(zip(names, one, strict=True)) for one in self.not_captured]
        row["insertions"] = self.insertions
        row["deletions"] = self.deletions
        row["can_rewind"] = self.error is None
        return row


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@dataclass(frozen=True, slots=True)
class State(AsDict):
    """Everything a loop needs to go on with a session."""

    session_id: str
    messages: list[dict[str, Json]]
    usage: dict[str, int]
    turn_count: int
    pending: list[ToolCall]


def is_pinned(event: Event) -> bool:
    """Whether an event holds the session's system prompt."""
    return event.kind == "system_message" and event.data.get("pinned") is True


def spoken(pages: Iterable[Page], *, repair: bool = False) -> list[dict[str, Json]]:
    """The messages of a history, oldest first, as they are stored or repaired.

    Pages come newest first, each in order. Of several pinned system prompts the newest
    counts, and stands in front.
    """
    messages, purged = _shown(pages, _message)
    if purged:
        messages = list(compress(messages, _not_orphans(messages)))
    return repaired(messages) if repair else messages


def conversation(pages: Iterable[Page]) -> list[tuple[dict[str, Json], Format]]:
    """The same as stored, each message with its format."""
    entries, purged = _shown(pages, _entry)
    messages = [message for message, _ in entries]
    return list(compress(entries, _not_orphans(messages))) if purged else entries


@contextmanager
def _ageing() -> Iterator[Callable[[], object]]:
    """Pause the search for garbage; what is given lets what is there grow old meanwhile.

    JSON holds no cycles. Looking for some, again and again while a hundred thousand messages
    come in, takes as long as decoding them. Left for later, the new ones are looked at as
    soon as the pause ends, when they have left the processor's cache.
    """
    if not gc.isenabled():
        yield lambda: None
        return
    gc.disable()
    try:
        yield lambda: gc.collect(1)
    finally:
        gc.enable()


_message: Callable[[Said], dict[str, Json]] = attrgetter("message")


def _entry(said: Said) -> tuple[dict[str, Json], Format]:
    format = said.format
    known = _FORMATS.get(format) if isinstance(format, str) else None
    return said.message, known or format_of(said.message)


def _shown(pages: Iterable[Page], pick: Callable[[Said], T]) -> tuple[list[T], bool]:
    """What `pick` makes of each message, oldest first, and whether any was purged."""
    newest_first: list[list[T]] = []
    prompt: Said | None = None
    purged = False
    with _ageing() as age:
        for page in pages:
            said = page.said
            usual = _USUAL.issuperset(page.kinds)
            if not usual or {type(one.message) for one in said} != {dict}:
                said, pinned, erased = _sifted(page)
                prompt, purged = prompt or pinned, purged or erased
            newest_first.append(list(map(pick, said)))
            age()
    if prompt is not None:
        newest_first.append([pick(prompt)])
    return list(chain.from_iterable(reversed(newest_first))), purged


def _sifted(page: Page) -> tuple[list[Said], Said | None, bool]:
    """The messages of a page, the last pinned prompt in it, and whether any was purged."""
    found: list[Said] = []
    pinned: Said | None = None
    purged = False
    for kind, said in zip(page.kinds, page.said, strict=True):
        if kind not in _MESSAGES:
            continue
        if not isinstance(said.message, dict):
            purged = True
            if kind in _SPEAKER:
                content = "[purged]" if said.purged else ""
                found.append(Said({"role": _SPEAKER[kind], "content": content}, "openai"))
        elif kind == "system_message" and said.pinned is True:
            pinned = said
        else:
            found.append(said)
    return found, pinned, purged


_MESSAGES = frozenset(MESSAGE_KINDS)
_USUAL = _MESSAGES - {"system_message"}
_FORMATS: dict[str, Format] = {name: name for name in get_args(Format)}


def _not_orphans(messages: list[dict[str, Json]]) -> Iterator[bool]:
    """Whether each message stays: no provider takes a result whose call was purged."""
    called = {call.id for message in messages for call in calls_in(message)}
    return (answers_in(message) <= called for message in messages)


def last_of(messages: list[dict[str, Json]], role: str) -> dict[str, Json] | None:
    """The last message of a role."""
    return next((m for m in reversed(messages) if m.get("role") == role), None)


def mapped(session_id: str, messages: list[dict[str, Json]]) -> dict[str, Json]:
    """A conversation with its last words, for programs that take a mapping."""
    last = {f"last_{role}": last_of(messages, role) for role in ("user", "assistant")}
    return {"session_id": session_id, "messages": messages, **last}


def beyond(messages: list[dict[str, Json]], given: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """The part of `given` that is not in `messages` yet, if `given` begins with them.

    Frameworks hand back the whole conversation; only what is new is to be appended. What
    they were shown may be repaired, and without the system prompt.
    """
    said = [m for m in messages if m.get("role") not in ("system", "developer")]
    for known in (repaired(messages), repaired(said), messages, said):
        if known and given[: len(known)] == known:
            return given[len(known) :]
    return given


def may_begin(given: list[dict[str, Json]], newest_first: Iterable[Page]) -> bool:
    """Whether a list may begin with a whole conversation, by that one's last words.

    It does not if it lacks what the agent said last: no repair changes that, or its order.
    """
    said = _answers(given)
    for page in newest_first:
        last = _answers([one.message for one in _sifted(page)[0]])
        if last:
            starts = range(len(said) - len(last) + 1)
            return any(said[at : at + len(last)] == last for at in starts)
    return True


def _answers(messages: Iterable[dict[str, Json]]) -> list[dict[str, Json]]:
    """What an agent says by itself."""
    return [m for m in messages if m.get("role") == "assistant" and not answers_in(m)]


def user_message(content: str | list[Json] | Mapping[str, Json]) -> dict[str, Json]:
    """What a person said, as a message."""
    if isinstance(content, Mapping):
        return dict(content)
    return {"role": "user", "content": content}


def own_event(kind: str, data: Mapping[str, Json] | None, id: str | None) -> NewEvent:
    """An event of a caller's own kind."""
    if kind in KINDS:
        raise InvalidData(f"`{kind}` is a kind the library writes: choose another name")
    return NewEvent(kind, data or {}, id=id)


def end_event(reason: str) -> NewEvent:
    """What notes that a session is over."""
    return NewEvent("session_end", {"reason": reason})
