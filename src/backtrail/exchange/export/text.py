"""Text that came from anywhere, made safe to look at. Pure.

Escape sequences, control characters and those that turn the direction of a line become
signs that can be seen. What is too long is cut, and says so.
"""

from __future__ import annotations

import re

LONGEST = 60_000
"""Characters of one text that are shown."""

_COLOURS = re.compile(r"\x1b\[[0-9;:]{0,64}m")

_SIGNS: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)},
    0x0D: "",
    0x7F: "\u2421",
    **{code: f"\u27e8U+{code:04X}\u27e9" for code in range(0x80, 0xA0)},
    **{
        code: f"\u27e8U+{code:04X}\u27e9"
        for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    },
    0xFEFF: "",
    0xFFFE: "\ufffd",
    0xFFFF: "\ufffd",
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def visible(text: str, longest: int = LONGEST) -> str:
    """Text with nothing in it that a screen would obey, and of limited length.

    Colours of terminals are dropped: they are in the output of every second tool.
    """
    left = len(text) - longest
    if left > 0:
        text = text[:longest]
    text = _COLOURS.sub("", text).translate(_SIGNS)
    return f"{text}\n[… {left:,} more characters left out]" if left > 0 else text


def one_line(text: str, longest: int = 120) -> str:
    """The beginning of a text, on one line."""
    words = " ".join(visible(text[: longest * 4]).split())
    return words if len(words) <= longest else words[: longest - 1] + "…"
