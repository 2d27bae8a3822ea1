"""Arguments that several verbs share, so that they are spelled the same."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError

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
