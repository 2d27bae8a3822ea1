"""What several changes come to: each path before the first against after the last. Pure.

What others did in between is not theirs. Where it is in the same file, the changes are taken
out of what was left last, and what remains is what they began with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ...errors import Damaged, NotFound
from ..changes.effects import Change
from ..differences import Diff, FileDiff, described
from ..restore.merge import is_binary, subtract
from ..restore.plan import within
from ..trees import Difference, Entry, Get, alike, diff_trees, digest_of

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
    """Go on with the last span, where nobody else changed the path in between."""
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
