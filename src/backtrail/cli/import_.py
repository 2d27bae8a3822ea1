"""`import`: sessions of other agents, lists of messages, bundles."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from .call import Call
from .verbs import Command, Usage
from .wording import plural

if TYPE_CHECKING:
    from ..events import SessionInfo
    from ..exchange.foreign_record import Found, Imported

AGENTS = ("claude-code", "codex")
_SHOWN = 5
_LARGEST = 256 << 20


def _options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", help="claude-code, codex, messages, or the file of a bundle"
    )
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="a file or folder; for an agent, by default where it keeps its sessions; "
        "for messages, - is standard input",
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="only list what would come")
    messages = parser.add_argument_group("for messages")
    messages.add_argument(
        "--format",
        choices=("auto", "openai", "responses", "anthropic"),
        default="auto",
        help="how the messages are spelled (default: found from them)",
    )
    messages.add_argument("--key", help="a name for the list: it may grow and be imported again")
    messages.add_argument("--title", help="the session's title")
    bundles = parser.add_argument_group("for bundles")
    bundles.add_argument("--as", dest="as_id", metavar="ID", help="the id of the new session")
    bundles.add_argument(
        "--into", metavar="DIR", help="a new or empty folder that gets its files, and is its own"
    )


def _run(call: Call) -> int | None:
    source = call.arguments.source
    _check(call)
    if source in AGENTS:
        return _from_agent(call)
    if source == "messages":
        _from_list(call)
    else:
        _from_bundle(call)
    return None


def _check(call: Call) -> None:
    """Refuse options that belong to something else."""
    given = call.arguments
    if given.source != "messages" and (given.format != "auto" or given.key or given.title):
        raise Usage("--format, --key and --title are for `import messages`")
    if given.as_id is not None and (given.source in AGENTS or given.source == "messages"):
        raise Usage("--as is for a bundle")
    if given.into is not None and (given.source in AGENTS or given.source == "messages"):
        raise Usage("--into is for a bundle")
    if given.source == "messages" and given.path is None:
        raise Usage("`import messages` needs a file, or - for standard input")


# --- agents ------------------------------------------------------------------------------


def _from_agent(call: Call) -> int | None:
    from ..exchange.foreign import find, import_found

    given = call.arguments
    path = Path(given.path).expanduser() if given.path else None
    found = find(given.source, path)
    done = 0
    results: list[Imported] = []
    with call.out.progress("importing", _size(found)) as step:

        def count(more: int) -> None:
            nonlocal done
            done += more
            step(done)

        for one in import_found(call.store, found, dry_run=given.dry_run, progress=count):
            results.append(one)
    _print(call, results)
    return 1 if any(one.error for one in results) else None


def _size(found: list[Found]) -> int:
    from ..exchange.jsonlines import size_of

    return sum(size_of(one.path) or 0 for one in found)


def _print(call: Call, results: list[Imported]) -> None:
    out = call.out
    dry_run: bool = call.arguments.dry_run
    if out.as_json:
        sessions = [one.to_dict() for one in results]
        out.data({"store": call.store.url, "dry_run": dry_run, "sessions": sessions})
    changed = [one for one in results if one.error or one.created or one.events or one.lines]
    if changed and not out.as_json:
        rows = [
            [one.session_id or one.native_id, _what(one, dry_run), _about(one)] for one in changed
        ]
        out.table(("SESSION", "IMPORTED", "ABOUT"), rows)
    for one in results:
        if one.error:
            out.note(f"{one.path}: {one.error}")
        for problem in one.problems[:_SHOWN]:
            out.note(f"{one.path}: {problem}")
        if len(one.problems) > _SHOWN:
            out.note(f"{one.path}: and {len(one.problems) - _SHOWN} more; --json has them all")
    out.note(_summary(results, dry_run))


def _about(one: Imported) -> str:
    """The title, else how it begins, else where it is."""
    from .output import shortened

    return one.title or shortened(" ".join((one.prompt or "").split())[:80]) or one.path


def _what(one: Imported, dry_run: bool) -> str:
    if one.error:
        return "failed"
    kind = "new" if one.created else "grown"
    return f"{kind}, {one.lines} lines" if dry_run else f"{kind}, {one.events} events"


def _summary(results: list[Imported], dry_run: bool) -> str:
    new = sum(one.created and not one.error for one in results)
    failed = sum(bool(one.error) for one in results)
    grown = sum(bool(one.lines) and not one.created and not one.error for one in results)
    same = len(results) - new - grown - failed
    parts = [(new, "new"), (grown, "grown"), (same, "unchanged"), (failed, "failed")]
    counts = ", ".join(f"{count} {name}" for count, name in parts if count)
    verb = "would be imported" if dry_run else "imported"
    return f"{len(results)} session{'' if len(results) == 1 else 's'} {verb}: {counts}"


# --- message lists -----------------------------------------------------------------------


def _from_list(call: Call) -> None:
    from ..exchange.lists import import_messages

    given = call.arguments
    content, name, ts = _content(given.path)
    done = import_messages(
        call.store, content, name=name, wanted=given.format, key=given.key, title=given.title,
        cwd=str(Path.cwd()), ts=ts, dry_run=given.dry_run,
    )  # fmt: skip
    _print(call, [done])


def _content(path: str) -> tuple[bytes, str, str | None]:
    """The bytes of a file or of standard input, their name, and the file's time."""
    from ..errors import InvalidData, NotFound, StoreFailed
    from ..events import timestamp

    if path == "-":
        return sys.stdin.buffer.read(_LARGEST), "", None
    file = Path(path).expanduser()
    try:
        status = file.stat()
        if status.st_size > _LARGEST:
            raise InvalidData(f"{file} is over {_LARGEST >> 20} MB: split it")
        return file.read_bytes(), str(file), timestamp(status.st_mtime)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {file}") from error
    except InvalidData:
        raise
    except OSError as error:
        raise StoreFailed(f"cannot read {file}: {error.strerror}", errno=error.errno) from error


# --- bundles -----------------------------------------------------------------------------


def _from_bundle(call: Call) -> None:
    from ..errors import NotFound

    given = call.arguments
    path = Path(given.source).expanduser()
    if given.path is not None or not path.exists():
        known = ", ".join((*AGENTS, "messages"))
        if given.path is not None:
            raise Usage(f"`{given.source}` is none of {known}")
        raise NotFound(f"`{given.source}` is no file, and none of {known}")
    if given.dry_run:
        _check_bundle(call, path)
        return
    from ..exchange.bundle import read_bundle

    there = {info.id for info in call.store.sessions()}
    into = _new_folder(given.into)
    with call.out.busy("importing"):
        info = read_bundle(call.store, path, as_id=given.as_id, cwd=into)
        is_new = info.id not in there
        if into is not None:
            _write_files(call, info, into, is_new)
    if call.out.as_json:
        row = info.to_dict() | {"created": is_new}
        call.out.data({"store": call.store.url, "dry_run": False, "sessions": [row]})
    else:
        call.out.line(info.id)
        named, count = info.title or info.id, plural(info.message_count, "message")
        text = f"imported {named}: {count}" if is_new else f"{named} is here already: {count}"
        call.out.note(text)


def _new_folder(name: str | None) -> Path | None:
    """The folder of `--into`, which must be new or empty."""
    from ..errors import AlreadyExists

    if name is None:
        return None
    into = Path(name).expanduser().resolve()
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise AlreadyExists(f"{into} exists and is not empty: choose another directory")
    return into


def _write_files(call: Call, info: SessionInfo, into: Path, is_new: bool) -> None:
    """Write the last state of the files that a session knows, and let it act there."""
    from ..errors import AlreadyExists
    from ..files.restore.materialize import materialize
    from ..session.filepoints import last_tree
    from ..session.session import Session
    from ..settings.allowance import allow

    if not is_new:
        raise AlreadyExists(
            f"session `{info.id}` is here already: `backtrail fork --into DIR -s {info.id}` "
            "takes its files into a new folder"
        )
    tree = last_tree(call.store, info.id)
    if tree is None:
        into.mkdir(parents=True, exist_ok=True)
    else:
        materialize(call.store, tree, into)
    allow(into)
    if tree is not None:
        # What is done there from now on is a change of its files, and no other folder.
        with Session.resume(call.store, info.id) as session:
            session.relocate()


def _check_bundle(call: Call, path: Path) -> None:
    """Check a bundle, and print what importing it would do."""
    from ..exchange.bundle import would_read

    with call.out.busy("checking"):
        bundle, is_there = would_read(call.store, path, as_id=call.arguments.as_id)
    row = bundle.to_dict() | {"created": not is_there}
    if call.out.as_json:
        call.out.data({"store": call.store.url, "dry_run": True, "sessions": [row]})
        return
    call.out.line(bundle.info.id)
    what = "is here already, with all of it" if is_there else "would be imported"
    call.out.note(
        f"{bundle.info.title or bundle.info.id} {what}: {plural(bundle.events, 'event')}, "
        f"{plural(row['blobs'], 'content')} of files"
    )


COMMANDS = {
    "import": Command(
        _options,
        _run,
        """
        backtrail import claude-code --dry-run
        backtrail import claude-code ~/.claude/projects/-home-me-app
        backtrail import codex
        backtrail import messages chat.json --title "Support case"
        backtrail import messages - --format anthropic < messages.jsonl
        backtrail import work.bundle --as work-2
        backtrail import work.bundle --into ../work    with its files, in a new folder
        """,
        about="Reads and never changes what is imported. Importing again adds only what is new,\n"
        "with the times of the source.",
    )
}
