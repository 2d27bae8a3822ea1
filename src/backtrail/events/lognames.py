"""Any text as part of a log's name, and back: namespaces, agent ids, paths of other programs.

A part keeps its letters, digits and inner hyphens; every other byte of its UTF-8 becomes `_` and
two hex digits, an underscore two. A text too long for one part goes on in the next behind `_-`,
an empty one is `_.`. So different texts have different names, which any store takes.
"""

from __future__ import annotations

import re

from ..errors import InvalidId
from . import MAIN_LOG, check_log

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_LONGEST = 128
_ESCAPE = re.compile(r"__|_([0-9a-f]{2})")
_PART = re.compile(r"(?:[A-Za-z0-9]|__|_[0-9a-f]{2})(?:[A-Za-z0-9-]|__|_[0-9a-f]{2})*", re.ASCII)
_EMPTY = "_."
_ON = "_-"


def log_name(*texts: str) -> str:
    """The name of a side log for one or more texts; `log_texts` gives them back.

    `InvalidId` if that is longer than a log's name may be.
    """
    if not texts:
        raise InvalidId("a log's name is made of at least one text")
    name = "/".join(_encoded(text) for text in texts)
    if name == MAIN_LOG:
        # The main log is no side log of that name.
        name = f"_{ord(name[0]):02x}{name[1:]}"
    return check_log(name)


def log_texts(name: str) -> tuple[str, ...]:
    """The texts that `log_name` made this name of; `InvalidId` if it made it of none."""
    found: list[str] = []
    begun = ""
    for part in check_log(name).split("/"):
        stem = part.removesuffix("-").rstrip("_")
        # Of the underscores before it, an odd number: the others are pairs, which are escapes.
        goes_on = part.endswith(_ON) and (len(part) - 1 - len(stem)) % 2 == 1
        begun += part.removesuffix(_ON) if goes_on else part
        if not goes_on:
            found.append(_decoded(begun, name))
            begun = ""
    if begun or log_name(*found) != name:
        raise _foreign(name)
    return tuple(found)


def _encoded(text: str) -> str:
    units: list[str] = []
    for byte in text.encode("utf-8", "surrogatepass"):
        if byte in _PLAIN or (byte == 0x2D and units):
            units.append(chr(byte))
        else:
            units.append("__" if byte == 0x5F else f"_{byte:02x}")
    parts = [""]
    for unit in units:
        if len(parts[-1]) + len(unit) > _LONGEST - len(_ON):
            # A part does not begin with a hyphen.
            unit = "_2d" if unit == "-" else unit
            parts.append("")
        parts[-1] += unit
    return f"{_ON}/".join(parts) if units else _EMPTY


def _decoded(part: str, name: str) -> str:
    if part == _EMPTY:
        return ""
    if not _PART.fullmatch(part):
        raise _foreign(name)
    octets = bytearray()
    at = 0
    for escape in _ESCAPE.finditer(part):
        octets += part[at : escape.start()].encode()
        octets += b"_" if escape[1] is None else bytes((int(escape[1], 16),))
        at = escape.end()
    octets += part[at:].encode()
    try:
        return octets.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise _foreign(name) from error


def _foreign(name: str) -> InvalidId:
    return InvalidId(f"`{name}` is not a log's name that `log_name` made")
