"""From arguments to a verb, and from an error to an exit code."""

from __future__ import annotations

import io
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ..errors import BacktrailError, Conflict, Damaged, NotFound, SessionBusy
from .call import Call
from .output import Output
from .verbs import (
    BUSY,
    CONFLICT,
    DAMAGED,
    ERROR,
    NOT_FOUND,
    OK,
    USAGE,
    VERBS,
    Command,
    Usage,
    command,
    modules,
    summary,
)

INTERRUPTED = 130
EXIT: dict[type[BacktrailError], int] = {
    Usage: USAGE,
    NotFound: NOT_FOUND,
    SessionBusy: BUSY,
    Conflict: CONFLICT,
    Damaged: DAMAGED,
}
"""Which error ends with which code; any other ends with 1."""
_COLUMNS = 80
"""Where there is no terminal."""
NAMES = {
    ERROR: "error",
    USAGE: "usage",
    NOT_FOUND: "not_found",
    CONFLICT: "conflict",
    BUSY: "busy",
    DAMAGED: "damaged",
}


class Formatter(RawDescriptionHelpFormatter):
    """Help as wide as the terminal.

    `argparse` asks for the width with each option, by a module that loads what packs archives.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    """The width of the terminal, as `shutil.get_terminal_size` finds it."""
    with suppress(ValueError):
        given = int(os.environ.get("COLUMNS", 0))
        if given > 0:
            return given
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _COLUMNS
    except (AttributeError, ValueError, OSError):
        # No terminal, or stdout is closed.
        return _COLUMNS


class Parser(ArgumentParser):
    """A parser with errors printed like all others, in JSON where that was asked for."""

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message}\n{self.format_usage().strip()}")


def run(given: Sequence[str]) -> int:
    """Run a verb and return the exit code."""
    _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that is not UTF-8 gets \u2026 and no error.
        sys.stdout.reconfigure(errors="backslashreplace")
    verb, rest = _chosen(given)
    own = rest[: rest.index("--")] if "--" in rest else rest
    out = Output(as_json="--json" in own, plain="--no-color" in own)
    try:
        try:
            return _run(verb, rest, out)
        finally:
            sys.stdout.flush()
    except BacktrailError as error:
        return _failed(out, code_of(error), str(error))
    except BrokenPipeError:
        out.abandon()
        return ERROR
    except OSError as error:
        return _failed(out, ERROR, str(error))
    except KeyboardInterrupt:
        out.note("interrupted")
        return INTERRUPTED


def _chosen(given: Sequence[str]) -> tuple[str, list[str]]:
    """The verb, and the rest; without a verb it is `status`."""
    if given[:1] in (["-h"], ["--help"]) or list(given) == ["help"]:
        return "--help", []
    if given[:1] == ["help"]:
        return given[1], ["--help"]
    if given[:1] == ["--version"]:
        return "--version", []
    at = 0
    while at < len(given) and given[at].startswith("-") and given[at] != "--":
        # `backtrail --store URL ls` is how other tools have it.
        at += 2 if given[at] == "--store" else 1
    if at < len(given) and (at == 0 or given[at] in modules()):
        return given[at], [*given[:at], *given[at + 1 :]]
    return "status", list(given)


def _run(verb: str, rest: list[str], out: Output) -> int:
    if verb == "--help":
        sys.stdout.write(overview())
        return OK
    if verb == "--version":
        from .. import __version__

        sys.stdout.write(f"{__version__}\n")
        return OK
    if verb not in modules():
        raise Usage(f"no verb `{verb}`{_nearest(verb)}\n`backtrail --help` lists them")
    found = command(verb)
    behind: list[str] | None = None
    if found.rest and "--" in rest:
        at = rest.index("--")
        rest, behind = rest[:at], rest[at + 1 :]
    made = parser(verb)
    # People put options anywhere: `hooks install --dry-run claude-code`. What stands behind
    # `--` is left to the plain way, which knows that it is no option.
    parse = made.parse_args if "--" in rest else made.parse_intermixed_args
    try:
        arguments = parse(rest)
    except SystemExit as done:
        # --help: the parser has printed it.
        return done.code if isinstance(done.code, int) else OK
    if found.rest:
        arguments.rest = behind or []
    with Call(verb, arguments, out) as call:
        return found.run(call) or OK


def parser(verb: str) -> Parser:
    """The parser of one verb, with the options that all have."""
    found = command(verb)
    line = summary(verb)
    made = Parser(
        prog=f"backtrail {verb}",
        description=f"{line[0].upper()}{line[1:]}.\n\n{found.about}".strip(),
        epilog=f"examples:\n{_indented(found.examples)}",
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    found.options(made)
    common = made.add_argument_group("for every verb")
    common.add_argument("--store", metavar="URL", help="sqlite:///PATH or file:DIR; else as set")
    common.add_argument("--json", action="store_true", help="print data for scripts")
    common.add_argument("--no-color", action="store_true", help="no colour (or set NO_COLOR)")
    if found.rest:
        made.usage = _usage(made, found)
    return made


def _usage(made: Parser, found: Command) -> str:
    """The usage line, with what may stand behind `--`."""
    plain = made.format_usage().removeprefix("usage: ").rstrip().replace("%", "%%")
    return f"{plain} [-- {found.rest} ...]"


def _indented(examples: str) -> str:
    lines = [line.strip() for line in examples.strip().splitlines()]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def code_of(error: BacktrailError) -> int:
    """The exit code for an error."""
    return next((code for kind, code in EXIT.items() if isinstance(error, kind)), ERROR)


def overview() -> str:
    """The help of `backtrail` itself."""
    lines = ["usage: backtrail [VERB] [options]", ""]
    lines.append("Durable, rewindable sessions for AI agents. Without a verb: status.")
    for heading, verbs in VERBS.items():
        lines += ["", f"{heading}:"]
        lines += [f"  {verb:<12}{line}" for verb, (_, line) in verbs.items()]
    lines += ["", "`backtrail VERB --help` says more, with examples."]
    return "\n".join(lines) + "\n"


def _failed(out: Output, code: int, message: str) -> int:
    try:
        out.failed(NAMES[code], message)
    except OSError as error:
        # The reader of stdout is gone, or its disk is full.
        out.abandon()
        if not isinstance(error, BrokenPipeError):
            out.note(f"backtrail: {message}")
    return code


def _open_closed() -> None:
    """Streams that were closed before we began read nothing, and write nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the process ends


def _nearest(verb: str) -> str:
    import difflib

    near = difflib.get_close_matches(verb, modules(), 1)
    return f": did you mean `{near[0]}`?" if near else ""
