"""The table of verbs: a line for the help, and the module that has the rest."""

from __future__ import annotations

import importlib
from argparse import ArgumentParser
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import BacktrailError
from ..frozen import dataclass
from ..loading import load_msgspec

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
        "ls": ("listing", "list sessions, of this folder or of all"),
        "show": ("showing", "show a session: messages, tools, file changes, turn by turn"),
        "log": ("events", "list events, or which calls changed a file"),
        "diff": ("comparing", "show what changed in the files between two points"),
        "tree": ("drawing", "draw forks, branches and subagents as a tree"),
        "search": ("searching", "find words in what was said"),
        "watch": ("events", "follow a session as it goes on"),
        "stats": ("counting", "count disk space, sessions, tokens and cost"),
    },
    "Go back": {
        "checkpoint": ("marking", "mark a point of conversation and files to go back to"),
        "rewind": ("rewinding", "go back to an earlier point, conversation and files"),
        "undo": ("rewinding", "take back the last turn or rewind"),
        "redo": ("rewinding", "do again what was undone"),
        "restore": ("rewinding", "bring back one file"),
        "fork": ("forking", "begin a new session from a point of another"),
        "resume": ("forking", "go on with a session, in the agent it belongs to"),
    },
    "Share": {
        "export": ("exporting", "write a session as HTML, Markdown, JSONL or a bundle"),
        "import": ("importing", "take in sessions of other agents, message lists and bundles"),
    },
    "Agents": {
        "chat": ("chatting", "talk to the built-in agent"),
        "hooks": ("hooks", "install, check or remove the hooks of other agents"),
        "hook": ("hook", "what installed hooks call"),
        "record": ("recording", "run any command and record what it does to the files"),
        "demo": ("touring", "take a tour in a temporary folder, without network or keys"),
    },
    "Keep house": {
        "rename": ("naming", "give a session a title"),
        "tag": ("naming", "put tags on a session, or take them off"),
        "pin": ("naming", "keep a session at the top of the list"),
        "archive": ("naming", "hide a session from the list"),
        "relocate": ("placing", "tell a session that its folder is somewhere else now"),
        "delete": ("removing", "delete sessions"),
        "purge": ("removing", "really erase a session, a path or a text"),
        "gc": ("collecting", "remove contents of files that nothing relies on"),
        "verify": ("checking", "read everything in a store and tell what is wrong"),
        "doctor": ("diagnosing", "check that all is set up well"),
        "config": ("configuring", "show the settings and where each comes from"),
        "completion": ("completing", "print completions for bash, zsh or fish"),
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
