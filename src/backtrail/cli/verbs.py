"""The table of verbs: a line for the help, and the module that has the rest."""

from __future__ import annotations

import importlib
from argparse import ArgumentParser
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._startup.frozen import dataclass
from .._startup.loading import load_msgspec
from ..errors import BacktrailError

if TYPE_CHECKING:
    from .call import Call


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
        "tree": ("tree", "draw forks, branches and subagents as a tree"),
        "search": ("search", "find words in what was said"),
        "watch": ("log", "follow a session as it goes on"),
        "stats": ("stats", "count disk space, sessions, tokens and cost"),
    },
    "Go back": {
        "checkpoint": ("checkpoint", "mark a point of conversation and files to go back to"),
        "rewind": ("rewind", "go back to an earlier point, conversation and files"),
        "undo": ("rewind", "take back the last turn or rewind"),
        "redo": ("rewind", "do again what was undone"),
        "restore": ("rewind", "bring back one file"),
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
        "demo": ("touring", "take a tour in a temporary folder, without network or keys"),
    },
    "Keep house": {
        "rename": ("label", "give a session a title"),
        "tag": ("label", "put tags on a session, or take them off"),
        "pin": ("label", "keep a session at the top of the list"),
        "archive": ("label", "hide a session from the list"),
        "relocate": ("relocate", "tell a session that its folder is somewhere else now"),
        "delete": ("delete", "delete sessions"),
        "purge": ("delete", "really erase a session, a path or a text"),
        "gc": ("gc", "remove contents of files that nothing relies on"),
        "verify": ("verify", "read everything in a store and tell what is wrong"),
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
