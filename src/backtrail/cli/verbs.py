"""The table of verbs, a line for the help and the module of each; arguments that they share."""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._startup.frozen import dataclass
from .._startup.loading import load_msgspec
from ..errors import BacktrailError

if TYPE_CHECKING:
    from .call import Call


OK, ERROR, USAGE, NOT_FOUND, CONFLICT, BUSY, DAMAGED = range(7)
"""Exit codes."""

NOT_DONE = ERROR
"""The exit code where a person said no."""


class Usage(BacktrailError, ValueError):
    """Arguments that make no sense together; the exit code is 2."""


@dataclass(frozen=True, slots=True)
class Command:
    """A verb: its options, what it does (None is exit code 0), and examples for its help.

    `rest` names what may stand behind `--`, such as "PATH"; the verb finds it as the list
    `arguments.rest`. Without it, `--` is left to the parser.
    """

    options: Callable[[ArgumentParser], None]
    run: Callable[[Call], int | None]
    examples: str
    about: str = ""
    rest: str = ""


VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "See": {
        "status": ("status", "the latest session here, what changed, what to do next"),
        "ls": ("ls", "list sessions, of this folder or of all"),
        "show": ("show", "show a session: messages, tools, file changes, turn by turn"),
        "log": ("log", "list events, or which calls changed a file"),
        "diff": ("diff", "show what changed in the files between two points"),
        "blame": ("blame", "show which prompt and call wrote each line of a file"),
        "tree": ("tree", "draw forks, branches and subagents as a tree"),
        "ui": ("ui", "look at sessions in the browser, and go back there"),
        "search": ("search", "find words in what was said"),
        "watch": ("log", "follow a session as it goes on"),
        "stats": ("stats", "count disk space, sessions, tokens and cost"),
    },
    "Go back": {
        "checkpoint": ("checkpoint", "mark a point of conversation and files to go back to"),
        "rewind": ("rewind", "go back to an earlier point, conversation and files"),
        "undo": ("undo", "take back the last turn or rewind"),
        "redo": ("undo", "do again what was undone"),
        "restore": ("restore", "bring back one file"),
        "fork": ("fork", "begin a new session from a point of another"),
        "resume": ("fork", "go on with a session, in the agent it belongs to"),
    },
    "Share": {
        "export": ("export", "write a session as HTML, Markdown, JSONL or a bundle"),
        "import": ("import_", "take in sessions of other agents, message lists and bundles"),
    },
    "Agents": {
        "chat": ("chat", "talk to the built-in agent"),
        "hooks": ("hooks", "install, check or remove the hooks of other agents"),
        "hook": ("hook", "what installed hooks call"),
        "record": ("record", "run any command and record what it does to the files"),
        "demo": ("demo", "take a tour in a temporary folder, without network or keys"),
    },
    "Keep house": {
        "rename": ("label", "give a session a title"),
        "tag": ("label", "put tags on a session, or take them off"),
        "pin": ("label", "keep a session at the top of the list"),
        "archive": ("label", "hide a session from the list"),
        "relocate": ("relocate", "say where a session's folder is now"),
        "delete": ("delete", "delete sessions"),
        "purge": ("delete", "really erase a session, a path or a text"),
        "gc": ("gc", "remove contents of files that nothing relies on"),
        "verify": ("verify", "read everything in a store and report what is wrong"),
        "store": ("store", "bring a shared store up to date"),
        "doctor": ("doctor", "check that all is set up well"),
        "config": ("config", "show the settings and where each comes from"),
        "completion": ("completion", "print completions for bash, zsh or fish"),
    },
}
"""By heading: verb, its module in this package, and what it is for."""


def modules() -> dict[str, str]:
    """The module of each verb."""
    return {verb: home for part in VERBS.values() for verb, (home, _) in part.items()}


def summary(verb: str) -> str:
    """What a verb is for, as a line."""
    return next(part[verb][1] for part in VERBS.values() if verb in part)


def command(verb: str) -> Command:
    """The command of a verb; loads its module."""
    load_msgspec()
    found: dict[str, Command] = importlib.import_module(f"{__package__}.{modules()[verb]}").COMMANDS
    return found[verb]


SESSION = "id, unique beginning of an id, key, title, or `latest`; else the latest here"


def none(parser: ArgumentParser) -> None:
    """No options but those that every verb has."""


def session_argument(parser: ArgumentParser) -> None:
    """The session, for verbs that are about one."""
    parser.add_argument("session", nargs="?", metavar="SESSION", help=SESSION)


def session_option(parser: ArgumentParser) -> None:
    """The session, for verbs whose arguments are something else."""
    parser.add_argument("-s", "--session", metavar="SESSION", help=SESSION)


def yes_option(parser: ArgumentParser) -> None:
    """Do not ask."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def number_option(parser: ArgumentParser, what: str) -> None:
    """How many are shown."""
    parser.add_argument("-n", "--number", type=_count, metavar="N", help=what)


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ArgumentTypeError(f"{text} is less than none")
    return count


def mask_option(parser: ArgumentParser) -> None:
    """Hide what looks like a key."""
    parser.add_argument("--mask", action="store_true", help="hide what looks like a secret")
