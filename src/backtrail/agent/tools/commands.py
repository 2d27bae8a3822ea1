"""Command lines, as far as a permission must understand them.

This is no shell and no sandbox: it tells a plain command from one that could be anything.
"""

from __future__ import annotations

import re

_HARD = "`$<>(){}#"
_ENDS = ";&|\n"
_ASSIGNED = re.compile(r"^(?:\s*[A-Za-z_]\w*=\S*\s+)+")


def plain_commands(text: str) -> list[str] | None:
    """The commands of a line joined by `;`, `&&`, `||`, `|` or `&`.

    None if it is more than that: a substitution, a redirection, a group, an open quote.
    """
    commands, current, quote = [], "", ""
    at = 0
    while at < len(text):
        sign = text[at]
        at += 1
        if sign == "\\" and quote != "'":
            current += sign + text[at : at + 1]
            at += 1
        elif quote:
            if quote == '"' and sign in "`$":
                return None
            quote = "" if sign == quote else quote
            current += sign
        elif sign in "'\"":
            quote = sign
            current += sign
        elif sign in _HARD:
            return None
        elif sign in _ENDS:
            commands.append(current)
            current = ""
        else:
            current += sign
    if quote:
        return None
    return [command for one in [*commands, current] if (command := " ".join(one.split()))]


def anywhere_in(text: str) -> list[str]:
    """Every piece of a line that may be a command, quoted or not; for what is forbidden."""
    pieces = [text, *re.split(r"[;&|\n`(){}\"']|\$\(", text)]
    found = (" ".join(piece.split()) for piece in pieces)
    return [_ASSIGNED.sub("", f"{piece} ").strip() for piece in found if piece]


def fits(pattern: str, command: str) -> bool:
    """Whether a command is one of those a pattern means: `*` is anything, `?` one sign.

    `git *` means `git` alone, too.
    """
    wanted = " ".join(pattern.split())
    if wanted.endswith(" *") and command == wanted[:-2]:
        return True
    made = "".join({"*": ".*", "?": "."}.get(sign, re.escape(sign)) for sign in wanted)
    return re.fullmatch(made, command, re.DOTALL) is not None
