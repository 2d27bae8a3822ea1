"""What pages of a session have in common, in HTML and in Markdown. Pure.

Text that came from anywhere is made safe to look at: escape sequences, control characters and
those that turn the direction of a line become signs that can be seen. What is too long is cut,
and says so.
"""

from __future__ import annotations

import re

from ...events import SessionInfo
from ...files.differences import FileDiff
from ...formats.parts import Text
from .document import NO_CALLS, Document, Turn
from .step import Call, Part, Step

SPEAKERS = {
    "system": "System",
    "user": "User",
    "assistant": "Assistant",
    "tool": "Tool",
    "note": "Note",
}

HIDDEN = "hidden by the provider"
"""What stands for a thought without text."""


def parts_of(step: Step) -> list[Part]:
    """What an entry of a page shows; an answer without its call as a call of its own."""
    if step.sentence:
        return [Text(step.sentence)]
    return [*step.parts, *(Call(one.call_id, "result", None, one) for one in step.loose)]


def by_others(turn: Turn) -> list[tuple[Step, FileDiff]]:
    """What others did to the files meanwhile."""
    return [(step, file) for step in turn.steps if step.kind == "files_changed"
            for file in step.files]  # fmt: skip


def doubtful(turn: Turn) -> list[tuple[Step, str]]:
    """What is to be said about files beside the differences, and at which step."""
    return [(step, doubt) for step in turn.all for doubt in step.doubts]


def authors(turn: Turn) -> dict[str, list[Step]]:
    """The calls of a turn that changed each path."""
    found: dict[str, list[Step]] = {}
    for step in turn.steps:
        for file in step.files if step.kind not in NO_CALLS else ():
            for path in {file.path, file.old_path or file.path}:
                found.setdefault(path, []).append(step)
    return found


def ending(document: Document, masked: int) -> list[str]:
    """What is said at the end of a page."""
    lines = ["Exported with Backtrail."]
    if masked:
        lines.append(f"{masked} {'secret was' if masked == 1 else 'secrets were'} masked.")
    if document.left_out:
        count = document.left_out
        lines.append(f"Messages that were taken back and are not shown: {count}.")
    return lines


def facts(info: SessionInfo) -> list[tuple[str, str]]:
    """Names and values, without what is not known."""
    found: list[tuple[str, str | None]] = [
        ("Session", info.id),
        ("Began", info.created_at),
        ("Last change", info.updated_at),
        ("Folder", info.cwd),
        ("Project", info.root if info.root != info.cwd else None),
        ("Agent", info.agent_name),
        ("Model", info.model),
        ("Messages", f"{info.message_count} in {_turns(info.turn_count)}"),
        ("Tokens", _tokens(info)),
        ("Cost", None if info.cost_usd is None else f"${info.cost_usd:.4f}"),
        ("Fork of", info.parent_id),
        ("Tags", ", ".join(info.tags)),
    ]
    return [(name, value) for name, value in found if value]


def _turns(count: int) -> str:
    return f"{count} turn{'' if count == 1 else 's'}"


_TAG = re.compile(r"\s*<([a-z]+(?:-[a-z]+)*)>")


def system_title(step: Step) -> str:
    """What a message of the system is: the prompt, or a note that a program put in."""
    found = _TAG.match(step.text)
    return found[1].replace("-", " ").capitalize() if found else "System prompt"


def _tokens(info: SessionInfo) -> str:
    names = ("input_tokens", "output_tokens")
    known = [(name, info.usage[name]) for name in names if name in info.usage]
    return ", ".join(f"{count:,} {name.partition('_')[0]}" for name, count in known)


# --- text --------------------------------------------------------------------------------

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
