"""Words of a command as a shell reads them back, and as a person can copy them. Pure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

_LETTERS = {
    ord("\\"): "\\\\",
    ord("'"): "\\'",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}


def quoted(word: str) -> str:
    """A word in quotes if it needs some.

    What a terminal would obey or not show, and a byte that is no text, is written as in
    `$'\\033'`: on a screen it could not be copied otherwise.
    """
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, os.fsencode(word)))}'"


def joined(words: Iterable[str]) -> str:
    """Words as one command."""
    return " ".join(map(quoted, words))


def _escaped(byte: int) -> str:
    # Always three octal digits: how many follow `\x` differs between shells.
    return _LETTERS.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
