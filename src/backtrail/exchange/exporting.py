"""Sessions for people and other programs: one HTML page, Markdown, or lines of JSON.

Each function takes a session and masks secrets, unless it is given a `Masking` that is off;
one that is given counts what was masked. Bundles, for moving a session, are in `bundle.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import msgspec

from ..events import MAIN_LOG
from ..formats.secrets import Masking
from ..session.session import Session
from .export.document import read_document
from .export.html import render_html
from .export.markdown import render_markdown
from .export.placing import placed


def export_html(session: Session, *, masking: Masking | None = None) -> str:
    """The session as one self-contained page."""
    masking = masking or Masking()
    document = read_document(session.store, session.id, masking)
    return render_html(document, masking.count)


def export_markdown(session: Session, *, masking: Masking | None = None) -> str:
    """The session as Markdown."""
    masking = masking or Masking()
    document = read_document(session.store, session.id, masking)
    return render_markdown(document, masking.count)


def export_jsonl(session: Session, *, masking: Masking | None = None) -> Iterator[bytes]:
    """Every event of every log, one a line; the main log first, what was taken back too.

    A line is `{"session", "log", "seq", "id", "ts", "kind", "data"}`, and `follows` where an
    event does not continue from the one before it.
    """
    masking = masking or Masking()
    store = session.store
    logs = sorted(store.logs(session.id), key=lambda log: (log != MAIN_LOG, log))
    for log in logs:
        for event in store.read(session.id, log=log):
            row = {"session": session.id, "log": log, **event.to_dict()}
            row["data"] = masking.json(event.data)
            yield msgspec.json.encode(row) + b"\n"


def write_file(path: str | os.PathLike[str], parts: Iterable[bytes], *, force: bool = False) -> int:
    """Write an export to a private file, whole or not at all; how many bytes it has."""
    with placed(path, force=force) as file:
        return sum(file.write(part) for part in parts)
