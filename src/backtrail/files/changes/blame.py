r"""Blame: the author of each line of a file, from the versions that the file had. Pure.

The versions come one after the other, each from the one before by a `Deed` of a call, of others,
or of a rewind. Lines that a version shares with the one before keep their author, new ones are the
deed's. A version that was there before has the authors it had then, whatever brought it back, and
so has each line that a rewind brings back. A line ends at `\n` and nowhere else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from ..._startup.frozen import NamedTuple, dataclass
from ...errors import NotFound
from ...events import AsDict
from ..patches import lines_of, match
from ..trees import Entry

Author = Literal["agent", "others", "shared", "uncertain", "unknown"]
"""The hand that wrote a line: an `agent`'s call; `others`, that no session of the root recorded;
calls of several sessions (`shared`), a call or perhaps a person meanwhile (`uncertain`). It is
`unknown` where the contents that would say it were given up."""


@dataclass(frozen=True, slots=True)
class BlameLine(AsDict):
    """One line of a file, and the call that wrote it.

    `turn` is the number of the prompt, as people see it (None where a rewind left the prompt
    behind), `event` the event of the call in the log of the session, `tool` the call's name,
    `agent` the subagent or else the agent that the session is of. All are None where no session
    wrote the line, or it is not known which.
    """

    line: int
    text: str
    session_id: str | None = None
    turn: int | None = None
    event: int | None = None
    tool: str | None = None
    agent: str | None = None
    author: Author = "unknown"


class Origin(NamedTuple):
    """Where a line comes from: its author, and the event of a session that wrote it."""

    author: Author
    session: str = ""
    event: int = 0


OTHERS = Origin("others")
"""A person, or a program that no session recorded."""

UNCERTAIN = Origin("uncertain")
"""Perhaps a call that is under way, perhaps a person."""

UNKNOWN = Origin("unknown")
"""Not known, since contents were given up."""


class Deed(NamedTuple):
    """How the file went from one version to the next; `back` marks a rewind, undo or redo."""

    before: Entry | None
    after: Entry | None
    origin: Origin
    back: bool = False


_SLOTS = 4_000_000
"""Lines of earlier versions whose authors are kept."""

_TEXTS = 64
"""Versions whose lines are kept; others are read again."""


class _Version(NamedTuple):
    """A version: what makes it one, and the origin of each line (None: it cannot be read)."""

    key: bytes
    origins: list[Origin] | None


class History:
    """The versions of one file, in order. `read` gives a content by its digest, None if it is gone.

    What was there before the first deed, and what lies between two, is of others.
    """

    def __init__(self, read: Callable[[bytes], bytes | None]) -> None:
        self._read = read
        self._unexplained = OTHERS
        self._versions: list[_Version] = []
        self._slots = 0
        self._texts: OrderedDict[bytes, list[bytes] | None] = OrderedDict()
        self._known: dict[bytes, bytes] = {}

    def gap(self) -> None:
        """A deed is missing here: what changes up to the next one is of unknown authors."""
        self._unexplained = UNKNOWN

    def has(self, entry: Entry) -> bool:
        """Whether the file was so before."""
        return any(one.key == _key(entry) for one in self._versions)

    def add(self, deed: Deed, known: list[Origin] | None = None) -> None:
        """The next deed, in the order of time; `known` are the authors of what comes back by it."""
        self._step(_key(deed.before), self._unexplained)
        self._unexplained = OTHERS
        if known is None:
            self._step(_key(deed.after), deed.origin, back=deed.back)
        else:
            self._put(_key(deed.after), known)

    def lines(self, now: Entry | None, last: Origin) -> list[tuple[bytes, Origin]]:
        """The lines as the file is `now`, each with its origin; what no deed explains is `last`'s.

        `NotFound` if the content cannot be read.
        """
        key = _key(now)
        self._step(key, UNKNOWN if self._unexplained is UNKNOWN else last)
        text, origins = self._lines(key), self._versions[-1].origins
        if text is None or origins is None:
            raise NotFound("the content of the file at that point was given up")
        return list(zip(text, origins, strict=True))

    # --- versions ------------------------------------------------------------------------

    def _step(self, key: bytes, origin: Origin, *, back: bool = False) -> None:
        """Go on to a version; one that was there before has the authors it had."""
        if not self._versions:
            text = self._lines(key)
            self._put(key, None if text is None else [self._unexplained] * len(text))
        elif self._versions[-1].key != key:
            same = (one.origins for one in reversed(self._versions) if one.key == key)
            origins = next((one for one in same if one is not None), None)
            if origins is None:
                origins = self._derived(key, origin, back=back)
            self._put(key, origins)

    def _derived(self, key: bytes, origin: Origin, *, back: bool) -> list[Origin] | None:
        """The origin of each line of a new version."""
        text = self._lines(key)
        if text is None:
            return None
        found: list[Origin | None] = [None] * len(text)
        for version in reversed(self._versions):
            earlier = self._lines(version.key)
            if version.origins is None or earlier is None:
                continue
            for at, place in enumerate(match(earlier, text)):
                if place >= 0 and found[at] is None:
                    found[at] = version.origins[place]
            if not back or None not in found:
                break
        is_next = self._versions[-1].origins is not None
        new = origin if is_next and not back else UNKNOWN
        return [new if one is None else one for one in found]

    def _put(self, key: bytes, origins: list[Origin] | None) -> None:
        self._versions.append(_Version(key, origins))
        self._slots += len(origins or ())
        while self._slots > _SLOTS and len(self._versions) > 2:
            self._slots -= len(self._versions.pop(0).origins or ())

    def _lines(self, key: bytes) -> list[bytes] | None:
        """The lines of a version; None if its content is gone. Equal lines are one object."""
        if key[:1] != _FILE:
            return []
        if key in self._texts:
            self._texts.move_to_end(key)
            return self._texts[key]
        content = self._read(key[1:])
        text = None if content is None else lines_of(content)
        if text is not None:
            known = self._known.setdefault
            text = [known(line, line) for line in text]
        self._texts[key] = text
        if len(self._texts) > _TEXTS:
            self._texts.popitem(last=False)
        return text


_FILE = b"f"


def _key(entry: Entry | None) -> bytes:
    """What makes a version: a file's content. Anything else has no lines."""
    if entry is None:
        return b""
    return _FILE + entry.value if entry.kind == "file" else b"-" + entry.value
