"""What differs between two trees, as people read it: per file, with lines and renames.

So does what several changes of one session come to: each path before the first against after the
last. What others did in between is not theirs. Where it is in the same file, the changes are taken
out of what was left last, and what remains is what they began with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from .._startup.frozen import dataclass, field, replace
from ..errors import Damaged, NotFound
from ..events import AsDict, Json
from .changes.effects import Change
from .names import one_line, shown
from .patches import header, line_counts, unified
from .restore.merge import is_binary, subtract
from .restore.plan import Step, moved, within
from .trees import Difference, Entry, Get, alike, diff_trees, digest_of

Status = Literal["added", "deleted", "modified", "renamed", "mode", "type", "not captured"]
"""How a path differs; `type`: a file, link or directory became another of these."""


@dataclass(frozen=True, slots=True)
class FileDiff(AsDict):
    """How one path differs. `insertions` and `deletions` are lines, `text` a unified diff.

    `old_path` is where a renamed file was, or what is not captured and moved; `modes` are
    octal, before and after; `folder` says that the path is a directory, and no file before or
    after. `header` is what git writes above the text.
    """

    path: str
    status: Status
    insertions: int = 0
    deletions: int = 0
    old_path: str | None = None
    modes: tuple[str, str] | None = None
    text: str = ""
    folder: bool = False
    header: str = ""


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
        return "".join(map(printed, self.files))


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


def described(get: Get, found: Iterable[Difference], *, texts: bool = True) -> Diff:
    """Differences for people: moves as one line, directories only if empty or changed.

    Without `texts`, lines are only counted.
    """
    found, things = _with_moves(list(found))
    moves = moved(get, found)
    origins = {d.path: d for d in found if d.after is None and d.path in moves}
    files: list[FileDiff] = []
    for difference in found:
        path = difference.path
        if path in things:
            files.append(FileDiff(shown(path), "not captured", old_path=shown(things[path])))
        elif path not in origins and not _only_holds(difference, found):
            origin = origins.get(moves.get(path, path))
            files.append(_described(get, difference, origin, texts=texts))
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


def _described(
    get: Get, difference: Difference, origin: Difference | None, *, texts: bool
) -> FileDiff:
    """How a path differs; a file that moved, from what it was at its `origin`."""
    path, before, after = difference
    if origin is not None:
        before = origin.before
    name, old_name = shown(path), shown(origin.path) if origin is not None else None
    old, new = _content(get, before), _content(get, after)
    plus, minus = line_counts(old or b"", new or b"")
    text, above = "", ""
    if texts:
        text, above = _written(name, old_name, (before, old), (after, new))
    if _is_given_up(before, old) or _is_given_up(after, new):
        plus, minus, text = 0, 0, f"the content of {name} was given up\n"
    status: Status = "renamed" if origin is not None else _status(before, after)
    modes, folder = modes_of(before, after), is_folder(before, after)
    return FileDiff(name, status, plus, minus, old_name, modes, text, folder, above)


Side = tuple[Entry | None, bytes | None]
"""What is at a path, and its content, if there is one and it is known."""


def _written(name: str, old_name: str | None, left: Side, right: Side) -> tuple[str, str]:
    """The changed lines of a file, and what git writes above them."""
    (before, old), (after, new) = left, right
    if before is not None and after is not None and before.kind != after.kind:
        # To git, one goes and another comes.
        gone = unified(old, None, name, name) if old is not None else ""
        come = unified(None, new, name, name) if new is not None else ""
        return gone + header(name, None, after, None) + come, header(name, before, None, None)
    return unified(old, new, old_name or name, name), header(name, before, after, old_name)


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


def notes(file: FileDiff) -> str:
    """What git has no words for, as lines above the patch of a file; git passes them by."""
    new = one_line(file.path)
    found = []
    if file.folder or not file.header:
        found.append(f"{file.status} {new}{'/' if file.folder else ''}")
        if file.old_path is not None:
            found[-1] += f", moved from {one_line(file.old_path)}"
    if file.modes and "\nnew mode" not in file.header:
        found.append(f"the mode of {new} was {file.modes[0]} and is {file.modes[1]}")
    return "".join(f"{line}\n" for line in found)


def printed(file: FileDiff) -> str:
    """A file of a diff in full."""
    return notes(file) + file.header + file.text


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
    standing: Mapping[bytes, Collection[int]] | None = None, *, texts: bool = True,
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
    files = described(get_any, whole, texts=texts).files
    for path, parts in split.items():
        each = [described(get, [Difference(path, *part)], texts=texts).files for part in parts]
        files += _summed(each)
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
