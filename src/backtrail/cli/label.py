"""`rename`, `tag`, `pin`, `archive`: what a session is called and where it is listed."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from ..errors import InvalidData
from ..exchange.shelf import ARCHIVED, PINNED
from ..session.titles import title_of
from .call import Call
from .nearby import titled
from .verbs import Command, Usage, session_argument, session_option
from .wording import short

if TYPE_CHECKING:
    from ..events import SessionInfo


def _rename_options(parser: ArgumentParser) -> None:
    parser.add_argument("title", metavar="TITLE", help="the new title; an empty one removes it")
    session_option(parser)


def _rename(call: Call) -> None:
    info = call.info(call.arguments.session)
    old, name = title_of(call.store, info), call.arguments.title.strip()
    info = call.store.update(info.id, title=name or None)
    if call.out.as_json:
        call.out.data({**titled(call.store, info), "old_title": old or None})
        return
    new = title_of(call.store, info) or "nothing"
    call.out.line(f"{old or 'session'} ({short(info.id)}) is now called {new}")


def _tag_options(parser: ArgumentParser) -> None:
    parser.add_argument("tags", nargs="*", metavar="TAG", help="tags to put on; none: show them")
    session_option(parser)
    parser.add_argument(
        "--remove", action="append", default=[], metavar="TAG", help="a tag to take off"
    )


def _tag(call: Call) -> None:
    info = call.info(call.arguments.session)
    wanted = dict.fromkeys(call.arguments.tags, True)
    wanted |= dict.fromkeys(call.arguments.remove, False)
    if len(wanted) < len(call.arguments.tags) + len(call.arguments.remove):
        raise Usage("each tag is given once, to be put on or to be taken off")
    for name in wanted:
        if not name.strip() or not name.isprintable():
            raise InvalidData(f"{name!r} is no tag: use printable characters")
    if wanted:
        info = call.store.update(info.id, tags=wanted)
    _print(call, info, f"has {'tags ' + ', '.join(info.tags) if info.tags else 'no tags'}")


def _mark_options(parser: ArgumentParser) -> None:
    session_argument(parser)
    parser.add_argument("--undo", action="store_true", help="take it back")


def _pin(call: Call) -> None:
    info = call.info(call.arguments.session)
    info = call.store.update(info.id, tags={PINNED: not call.arguments.undo})
    _print(call, info, "is not pinned any more" if call.arguments.undo else "is pinned")


def _archive(call: Call) -> None:
    info = call.info(call.arguments.session)
    info = call.store.update(info.id, tags={ARCHIVED: not call.arguments.undo})
    _print(call, info, "is listed again" if call.arguments.undo else "is archived")


def _print(call: Call, info: SessionInfo, what: str) -> None:
    if call.out.as_json:
        call.out.data(titled(call.store, info))
    else:
        call.out.line(f"{title_of(call.store, info) or 'session'} ({short(info.id)}) {what}")


COMMANDS = {
    "rename": Command(
        _rename_options,
        _rename,
        """
        backtrail rename "the parser, second try"
        backtrail rename "plan B" --session 019a8b2c-1234
        """,
    ),
    "tag": Command(
        _tag_options,
        _tag,
        """
        backtrail tag good
        backtrail tag --remove good -s latest
        backtrail tag --json
        """,
    ),
    "pin": Command(
        _mark_options,
        _pin,
        """
        backtrail pin
        backtrail pin latest --undo
        """,
        about="A pinned session is listed first, and retention never removes it.",
    ),
    "archive": Command(
        _mark_options,
        _archive,
        """
        backtrail archive 019a8b2c-1234
        backtrail archive 019a8b2c-1234 --undo
        """,
        about="Hides a session from `ls` and from what is taken as the latest. Nothing is "
        "removed;\n`ls --archived` shows it.",
    ),
}
