"""`export`: a session as a page, as text, as lines of JSON, or as a bundle."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .call import Call
from .verbs import Command, Usage

if TYPE_CHECKING:
    from ..events import Json
    from ..formats.secrets import Masking
    from ..session.session import Session

SUFFIXES = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".jsonl": "jsonl",
    ".bundle": "bundle",
}
_ENDINGS = {"html": ".html", "markdown": ".md", "jsonl": ".jsonl", "bundle": ".bundle"}


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", metavar="SESSION", help="default: the latest here")
    kinds = parser.add_mutually_exclusive_group()
    for kind, about in (
        ("html", "one page, complete in itself (the default)"),
        ("markdown", "text with tools folded away"),
        ("jsonl", "every event, one a line"),
        ("bundle", "all of it, files too, to go on elsewhere with `backtrail import`"),
    ):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=about)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to; its suffix names the kind; - is stdout"
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE")
    masks = parser.add_mutually_exclusive_group()
    masks.add_argument(
        "--mask", dest="mask", action="store_true", default=None,
        help="mask secrets (the default, but for a bundle)",
    )  # fmt: skip
    masks.add_argument("--no-mask", dest="mask", action="store_false", help="leave secrets in")


def _run(call: Call) -> None:
    from ..formats.secrets import Masking

    given = call.arguments
    kind = _kind(given.kind, given.output)
    if given.output == "-" and call.out.as_json:
        raise Usage("with --json, the report is on stdout: name a file with -o")
    if given.output == "-" and kind == "bundle" and call.out.is_terminal:
        raise Usage("a bundle is not for a terminal: name a file with -o")
    masking = Masking(on=kind != "bundle" if given.mask is None else given.mask)
    session = call.session(given.session, files=False)
    path = None if given.output == "-" else _path(given.output, session.id, kind)
    with call.out.busy("exporting"):
        done = _write(session, kind, path, masking, force=given.force)
    done = {"session": session.id, "kind": kind, "masked": masking.count} | done
    if path is not None:
        done |= {"path": str(path.absolute()), "size": path.stat().st_size}
        if call.out.as_json:
            call.out.data(done)
        else:
            call.out.line(str(path))
    _print(call, done, masking)


def _kind(kind: str | None, output: str | None) -> str:
    if kind is not None:
        return kind
    if output is None or output == "-":
        return "html" if output is None else "markdown"
    suffix = Path(output).suffix.lower()
    if suffix not in SUFFIXES:
        known = ", ".join(f"--{name}" for name in _ENDINGS)
        raise Usage(f"the suffix of `{output}` names no kind of export: add one of {known}")
    return SUFFIXES[suffix]


def _path(output: str | None, session_id: str, kind: str) -> Path:
    return Path(f"{session_id}{_ENDINGS[kind]}" if output is None else output).expanduser()


def _write(
    session: Session, kind: str, path: Path | None, masking: Masking, *, force: bool
) -> dict[str, Json]:
    """Write it; what only a bundle knows."""
    if kind == "bundle":
        from ..exchange.bundle import pack, write_bundle

        if path is None:
            done = pack(session.store, session.id, sys.stdout.buffer, masking=masking)
            sys.stdout.buffer.flush()
        else:
            done = write_bundle(session.store, session.id, path, masking=masking, force=force)
        return {"events": done.events, "blobs": done.blobs, "missing": done.missing}
    from ..exchange.exporting import write_file

    parts = _parts(session, kind, masking)
    if path is None:
        _stream(parts, sys.stdout.buffer)
    else:
        write_file(path, parts, force=force)
    return {}


def _parts(session: Session, kind: str, masking: Masking) -> Iterable[bytes]:
    from ..exchange.exporting import export_html, export_jsonl, export_markdown

    if kind == "jsonl":
        return export_jsonl(session, masking=masking)
    export = export_html if kind == "html" else export_markdown
    return (text.encode() for text in (export(session, masking=masking),))


def _stream(parts: Iterable[bytes], out: BinaryIO) -> None:
    for part in parts:
        out.write(part)
    out.flush()


def _print(call: Call, done: dict[str, Json], masking: Masking) -> None:
    note = call.out.note
    count = masking.count
    if not masking.on:
        note("secrets are not masked" + ("" if done["kind"] != "bundle" else ": --mask does"))
    elif count:
        note(f"masked {count} secret{'' if count == 1 else 's'}: --no-mask leaves them in")
    else:
        note("no secrets found to mask")
    if done["kind"] == "bundle":
        note(f"{done['events']} events, {done['blobs']} contents of files, as they were")
    if done.get("missing"):
        note(f"{done['missing']} contents are gone from the store and could not be packed")


COMMANDS = {
    "export": Command(
        _options,
        _run,
        """
        backtrail export
        backtrail export latest -o session.html
        backtrail export 0198c2 --markdown -o -
        backtrail export --jsonl -o - | jq .kind
        backtrail export --bundle -o work.bundle
        """,
        about="Writes a private file and overwrites none without --force. Well-known shapes of\n"
        "keys and passwords are masked, and counted. A bundle is for moving a session: it holds\n"
        "all, files too, and is masked only if you say so.",
    )
}
