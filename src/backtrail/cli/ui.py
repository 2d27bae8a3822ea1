"""`ui`: the viewer in the browser."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import TYPE_CHECKING

from .call import Call
from .verbs import Command

if TYPE_CHECKING:
    from ..web.serve import Address

_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def _run(call: Call) -> None:
    from ..web import check_extra

    check_extra()
    from ..web.serve import serve

    given = call.arguments

    def ready(address: Address, is_open: bool) -> None:
        if call.out.as_json:
            call.out.data({"url": address.url, "read_only": address.read_only, "new": not is_open})
        elif given.no_browser:
            sys.stdout.write(f"{address.url}\n")
        sys.stdout.flush()
        if is_open:
            call.out.note(_already(address, read_only=given.read_only))
        elif not call.out.as_json:
            call.out.note("the viewer runs until Ctrl-C")
        if not given.no_browser and not call.out.as_json:
            _open(call, address.url)

    serve(call.store, port=given.port, read_only=given.read_only, idle=given.idle, ready=ready)


def _already(address: Address, *, read_only: bool) -> str:
    if read_only and not address.read_only:
        return "the viewer of this store runs already, and is not read-only: end that one first"
    return "the viewer of this store runs already"


def _open(call: Call, url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        call.out.line(url)
        call.out.flush()
        call.out.note("no browser could be opened: open this address yourself")


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:
        raise ArgumentTypeError(f"{text} is no port")
    return port


def span(text: str) -> float:
    """Seconds of a span of time such as `12h`, `30min` or `90s`."""
    for unit in sorted(_SECONDS, key=len, reverse=True):
        number = text.removesuffix(unit)
        if number != text and number.isdecimal() and int(number):
            return float(int(number) * _SECONDS[unit])
    raise ArgumentTypeError(f"`{text}` is no span of time: use such as 12h or 30min")


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--port", type=_port, default=0, metavar="N", help="else any that is free")
    parser.add_argument(
        "--no-browser", action="store_true", help="only print the address, as the first line"
    )
    parser.add_argument("--read-only", action="store_true", help="to look, and to change nothing")
    parser.add_argument(
        "--idle", type=span, default=span("12h"), metavar="TIME",
        help="stop after so long without a window (default: 12h)",
    )  # fmt: skip


COMMANDS = {
    "ui": Command(
        _options,
        _run,
        """
        backtrail ui
        backtrail ui --read-only
        backtrail ui --no-browser --port 8765
        """,
        about="A page on this machine only: sessions, turns, files at any moment, going back with\n"
        "a preview. A second call opens a window on the same viewer. The address holds a key:\n"
        "keep it to yourself.",
    )
}
