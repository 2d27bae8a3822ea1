"""What differs between two trees, as people read it: per file, with lines and renames.

So does what several changes of one session come to: each path before the first against after the
last. What others did in between is not theirs. Where it is in the same file, the changes are taken
out of what was left last, and what remains is what they began with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from .._startup.frozen import dataclass, field, replace
from ..errors import Damaged, NotFound
from ..events import AsDict, Json
from .changes.effects import Change
from .names import one_line, shown
from .restore.merge import is_binary, subtract
from .restore.plan import Step, renames, within
from .trees import Difference, Entry, Get, alike, diff_trees, digest_of

Status = Literal["added", "deleted", "modified", "renamed", "mode", "type", "not captured"]
"""How a path differs; `type`: a file, link or directory became another of these."""


@dataclass(frozen=True, slots=True)
class FileDiff(AsDict):
    """How one path differs. `insertions` and `deletions` are lines, `text` a unified diff.

    `old_path` is where a renamed file was, or what is not captured and moved; `modes` are
    octal, before and after; `folder` says that the path is a directory, and no file before or
    after.
    """

    path: str
    status: Status
    insertions: int = 0
    deletions: int = 0
    old_path: str | None = None
    modes: tuple[str, str] | None = None
    text: str = ""
    folder: bool = False


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two states of a workspace. As text, a unified diff."""

    files: list[FileDiff] = field(default_factory=list)

    @property
    def insertions(self) -> int:
        """Lines added, over all files."""
        return sum(file.insertions for file in self.files)

    @property
    def deletions(self) -> int:
        """Lines removed, over all files."""
        return sum(file.deletions for file in self.files)

    def to_dict(self) -> dict[str, Json]:
        """The diff as JSON."""
        row: dict[str, Json] = msgspec.to_builtins(self)
        row.update(insertions=self.insertions, deletions=self.deletions)
        return row

    def __bool__(self) -> bool:
        return bool(self.files)

    def __str__(self) -> str:
        return "".join(map(_printed, self.files))


def diff(
    get: Get, before: bytes | None, after: bytes | None, paths: Collection[bytes] | None = None,
    besides: Collection[bytes] = (),
) -> Diff:  # fmt: skip
    """What leads from one tree to another; directories show only where they are all there is.

    Nothing is said of what is `besides`.
    """
    differing = diff_trees(get, before, after)
    found = [d for d in differing if within(d.path, paths) and d.path not in besides]
    return described(get, found)


def described(get: Get, found: Iterable[Difference]) -> Diff:
    """Differences for people: moves as one line, directories only if empty or changed."""
    found, things = _with_moves(list(found))
    moves = renames(found)
    came = {path for path, before, _ in found if before is None and path in moves}
    files = [
        FileDiff(shown(difference.path), "not captured", old_path=shown(things[difference.path]))
        if difference.path in things
        else _described(
            get, difference, moves[difference.path] if difference.path in came else None
        )
        for difference in found
        if not (difference.path in moves and difference.path not in came)
        and not _only_holds(difference, found)
    ]
    return Diff(files)


def _with_moves(found: list[Difference]) -> tuple[list[Difference], dict[bytes, bytes]]:
    """Differences without what left a path for another, and where that came from, by its path."""
    if all(entry is None or entry.kept for _, *both in found for entry in both):
        return found, {}
    from .restore.moves import things_moved

    things = things_moved(found)
    left = set(things.values())
    # What is there now, if anything, came to a free place.
    left_out = [
        d if d.path not in left or d.path in things else d._replace(before=None) for d in found
    ]
    return [d for d in left_out if d.before or d.after], things


def paths_of(found: Iterable[Difference]) -> set[str]:
    """The paths of differences, both names of what moved; directories as in `described`."""
    found = list(found)
    return {shown(difference.path) for difference in found if not _only_holds(difference, found)}


def _only_holds(difference: Difference, found: list[Difference]) -> bool:
    """Whether a directory came or went only because of what is in it."""
    kinds = {entry.kind for entry in (difference.before, difference.after) if entry}
    if kinds != {"directory"} or (difference.before and difference.after):
        return False
    below = difference.path + b"/"
    return any(other.path.startswith(below) for other in found)


def _described(get: Get, difference: Difference, origin: bytes | None) -> FileDiff:
    path, before, after = difference
    name, old_name = shown(path), shown(origin) if origin is not None else None
    if old_name is not None:
        return FileDiff(name, "renamed", old_path=old_name)
    old, new = _content(get, before), _content(get, after)
    plus, minus = line_counts(old or b"", new or b"")
    modes = modes_of(before, after)
    try:
        text = unified(old, new, name, name)
    except ValueError:
        text = ""
    if _is_given_up(before, old) or _is_given_up(after, new):
        plus, minus, text = 0, 0, f"the content of {name} was given up\n"
    return FileDiff(
        name, _status(before, after), plus, minus, None, modes, text, is_folder(before, after)
    )


def modes_of(before: Entry | None, after: Entry | None) -> tuple[str, str] | None:
    """The modes that a path had and has, in octal; None where they are the same."""
    if before is None or after is None or before.kind != after.kind or before.mode == after.mode:
        return None
    return f"{before.mode:o}", f"{after.mode:o}"


def is_folder(before: Entry | None, after: Entry | None) -> bool:
    """Whether a path is a directory, and no file before or after."""
    return {entry.kind for entry in (before, after) if entry is not None} == {"directory"}


def _is_given_up(entry: Entry | None, content: bytes | None) -> bool:
    return entry is not None and entry.kind == "file" and content is None


def _status(before: Entry | None, after: Entry | None) -> Status:
    if (before and not before.kept) or (after and not after.kept):
        return "not captured"
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    if before.kind != after.kind:
        return "type"
    return "modified" if before.value != after.value and before.kind != "directory" else "mode"


def _content(get: Get, entry: Entry | None) -> bytes | None:
    """What a diff shows of an entry: a file's bytes, or the text of a link."""
    if entry is None or not entry.kept or entry.kind == "directory":
        return None
    if entry.kind == "link":
        return entry.value
    try:
        return get(entry.value)
    except (NotFound, Damaged):
        return None


def _printed(file: FileDiff) -> str:
    new = one_line(file.path)
    old = one_line(file.old_path) if file.old_path else new
    lines = [f"diff a/{old} b/{new}\n"]
    if file.status == "renamed":
        lines.append(f"rename from {old}\nrename to {new}\n")
    elif file.old_path:
        lines.append(f"{file.status} {new}, moved from {old}\n")
    elif file.status != "modified":
        lines.append(f"{file.status} {new}\n")
    if file.modes:
        lines.append(f"old mode {file.modes[0]}\nnew mode {file.modes[1]}\n")
    return "".join([*lines, file.text])


def step_counts(get: Get, step: Step) -> tuple[int, int]:
    """Lines a step adds and removes."""
    if step.action == "skip":
        return 0, 0
    return line_counts(_content(get, step.before) or b"", _content(get, step.after) or b"")


# --- several changes together ------------------------------------------------------------


Span = tuple[Entry | None, Entry | None]
"""What a path was before and after."""


def total(
    get: Get, changes: Iterable[Change], paths: Collection[bytes] | None = None,
    standing: Mapping[bytes, Collection[int]] | None = None,
) -> Diff:  # fmt: skip
    """What changes of one session did together, less what others did.

    With `standing`, only what is in effect of them: on each path those of these events.
    """
    spans: dict[bytes, list[Span]] = {}
    for change in changes:
        try:
            found = list(diff_trees(get, change.before, change.after))
        except NotFound:
            # Contents that were collected took the trees along.
            continue
        for path, before, after in found:
            counts = standing is None or change.seq in standing.get(path, ())
            if counts and path not in change.foreign and within(path, paths):
                _add(spans.setdefault(path, []), before, after)
    laid: dict[bytes, bytes] = {}

    def get_any(digest: bytes) -> bytes:
        return laid[digest] if digest in laid else get(digest)

    whole: list[Difference] = []
    split: dict[bytes, list[Span]] = {}
    for path in sorted(spans):
        first = _begun_with(get, spans[path], laid)
        if isinstance(first, list):
            split[path] = first
        elif not alike(first, spans[path][-1][1]):
            whole.append(Difference(path, first, spans[path][-1][1]))
    files = described(get_any, whole).files
    for path, parts in split.items():
        files += _summed([described(get, [Difference(path, *part)]).files for part in parts])
    return Diff(sorted(files, key=lambda file: file.path) if split else files)


def _add(spans: list[Span], before: Entry | None, after: Entry | None) -> None:
    """Go on with the last span, where no others changed the path in between."""
    if spans and alike(spans[-1][1], before):
        spans[-1] = (spans[-1][0], after)
    else:
        spans.append((before, after))


def _begun_with(get: Get, spans: list[Span], laid: dict[bytes, bytes]) -> Entry | list[Span] | None:
    """What a path would have been without the spans; where that is a question, these."""
    if len(spans) == 1:
        return spans[0][0]
    entries = [entry for span in spans for entry in span]
    if any(entry is None or entry.kind != "file" for entry in entries):
        return spans
    try:
        texts = [get(entry.value) for entry in entries if entry is not None]
    except (NotFound, Damaged):
        return spans
    content: bytes | None = texts[-1]
    for found, left in reversed(list(zip(texts[::2], texts[1::2], strict=True))):
        if content is None or is_binary(content, found, left):
            return spans
        content = subtract(left, found, content)
    first = spans[0][0]
    if content is None or first is None:
        return spans
    laid[digest_of(content)] = content
    return Entry("file", first.mode, len(content), digest_of(content))


def _summed(parts: Sequence[list[FileDiff]]) -> list[FileDiff]:
    """One path, with the lines of its parts added up."""
    files = [file for part in parts for file in part]
    if not files:
        return []
    plus, minus = sum(file.insertions for file in files), sum(file.deletions for file in files)
    text = "".join(file.text for file in files)
    return [replace(files[-1], status=files[0].status, insertions=plus, deletions=minus, text=text)]


# --- lines -------------------------------------------------------------------------------


_TOO_LONG = 20_000
"""Lines above which lines are counted, not matched: matching takes time squared."""


def is_text(content: bytes) -> bool:
    """Whether a content is shown by lines: it holds no NUL, as git decides."""
    return b"\0" not in content[:8000]


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8", "backslashreplace").splitlines(keepends=True)


def line_counts(before: bytes, after: bytes) -> tuple[int, int]:
    """Lines added and removed; nothing for what is no text."""
    if before == after or not (is_text(before) and is_text(after)):
        return 0, 0
    old, new = (content.splitlines() for content in _differing(before, after))
    head = 0
    while head < len(old) and head < len(new) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    old, new = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(old) > _TOO_LONG or len(new) > _TOO_LONG:
        a, b = Counter(old), Counter(new)
        return (b - a).total(), (a - b).total()
    from difflib import SequenceMatcher

    insertions = deletions = 0
    for tag, i, j, m, n in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            deletions += j - i
            insertions += n - m
    if not old and not new:
        # Only the newline at the end differs: a line was changed.
        return 1, 1
    return insertions, deletions


def _differing(before: bytes, after: bytes) -> tuple[bytes, bytes]:
    """The contents without the whole lines that they begin with alike: bytes compare quickly."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    start = before.rfind(b"\n", 0, low) + 1
    return before[start:], after[start:]


def unified(before: bytes | None, after: bytes | None, old_name: str, new_name: str) -> str:
    """A unified diff, None where there is no file; one line for what is no text."""
    old, new = before or b"", after or b""
    left = "/dev/null" if before is None else f"a/{one_line(old_name)}"
    right = "/dev/null" if after is None else f"b/{one_line(new_name)}"
    if not (is_text(old) and is_text(new)):
        return f"Binary files {left} and {right} differ\n" if old != new else ""
    from difflib import unified_diff

    parts: list[str] = []
    for line in unified_diff(_lines(old), _lines(new), left, right):
        parts.append(line)
        if not line.endswith("\n"):
            parts.append("\n\\ No newline at end of file\n")
    return "".join(parts)
