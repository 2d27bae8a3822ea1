"""A turn on the terminal while it runs: words as they come, tools, and the questions they raise."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .output import Output
from .wording import brief, money, plural

if TYPE_CHECKING:
    from ..agent.tools.tool import Context
    from ..events import Event, Json
    from ..session.listeners import Delta
    from ..session.turns import Result

_SUBJECTS = ("command", "path", "pattern", "description")
"""The inputs that say most of a call."""

_LINES = 12
"""Lines of a text that are shown before the person allows it."""


class Screen:
    """Shows what a stream gives."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._open = ""
        self._asked: str | None = None

    def show(self, item: Delta | Event) -> None:
        """Show one thing of a turn."""
        from ..events import Event

        if isinstance(item, Event):
            if item.kind == "tool_result":
                self._result(item)
        elif item.type == "text_delta":
            self._words(str(item.data.get("text", "")), "")
        elif item.type == "thinking_delta":
            self._words(str(item.data.get("text", "")), "dim")
        elif item.type == "tool_call":
            self._call(item.data)
        elif item.type == "retry":
            self.line(f"the model failed, once more: {item.data.get('error')}", "yellow")
        elif item.type == "done":
            self.end()

    def line(self, text: str, style: str = "") -> None:
        """One line by itself."""
        self.end()
        self._out.line(text, style)

    def end(self) -> bool:
        """End the line that words are on; whether there was one."""
        was_open = bool(self._open)
        if was_open:
            sys.stdout.write("\n")
            self._open = ""
        sys.stdout.flush()
        return was_open

    def _words(self, text: str, style: str) -> None:
        kind = style or "plain"
        if self._open not in ("", kind):
            self.end()
        if not text:
            return
        sys.stdout.write(self._out.styled(text, style))
        sys.stdout.flush()
        self._open = kind

    def _call(self, data: Mapping[str, Json]) -> None:
        call = f"{data.get('name')} {_subject(data.get('input'))}".rstrip()
        if self._asked != call:
            self.line(f"• {call}", "cyan")
        self._asked = None

    def _result(self, event: Event) -> None:
        from ..events.messages import text_of

        if event.data.get("error") is True:
            text = text_of(event.data.get("message")) or "it failed"
            self.line(f"  {brief(text, 200)}", "yellow")

    def about(self, name: str, input: Mapping[str, Json]) -> None:
        """Show a call in full, before the person allows it."""
        call = f"{name} {_subject(input)}".rstrip()
        self._asked = call
        self.line(f"• {call}", "cyan")
        for key, value in input.items():
            text = value if isinstance(value, str) else str(value)
            if key == _key_of(input) and len(text.splitlines()) < 2 and text == brief(text):
                continue
            lines = text.splitlines() or [""]
            self._out.line(f"  {key}:", "dim")
            for line in lines[:_LINES]:
                self._out.line(f"    {line}")
            if len(lines) > _LINES:
                self._out.line(f"    … {len(lines) - _LINES} more lines", "dim")


def _key_of(input: Json) -> str | None:
    if not isinstance(input, Mapping):
        return None
    return next((key for key in _SUBJECTS if isinstance(input.get(key), str)), None)


def _subject(input: Json) -> str:
    """What a call is about, in a few words."""
    key = _key_of(input)
    if key is not None:
        return brief(input[key])
    return brief(str(input)) if input else ""


def ending(result: Result) -> str:
    """How a turn went, in one line."""
    parts = []
    tokens = sum(result.usage.get(name, 0) for name in ("input_tokens", "output_tokens"))
    if tokens:
        parts.append(f"{tokens:,} tokens")
    if result.cost_usd is not None:
        parts.append(money(result.cost_usd))
    if result.files:
        names = ", ".join(brief(path, 40) for path in result.files[:3])
        more = ", …" if len(result.files) > 3 else ""
        parts.append(f"{plural(len(result.files), 'file')} changed ({names}{more})")
    if result.exit_reason not in ("end_turn", "stop_sequence", "error"):
        parts.append(f"ended by {result.exit_reason}")
    return " · ".join(parts)


class Permission:
    """Asks the person before a tool runs. What they always allow is forgotten with the chat."""

    def __init__(self, out: Output, screen: Screen) -> None:
        self._out = out
        self._screen = screen
        self._always: set[str] = set()

    def __call__(self, name: str, input: dict[str, Json], context: Context) -> bool:
        """Whether this call may run."""
        if name in self._always:
            return True
        self._screen.about(name, input)
        while True:
            question = f"Allow {name}? [y]es, [n]o, [a]lways in this chat:"
            answer = self._out.ask(question).lower()
            if answer in ("a", "always"):
                self._always.add(name)
            if answer in ("y", "yes", "a", "always"):
                return True
            if answer in ("", "n", "no"):
                return False
