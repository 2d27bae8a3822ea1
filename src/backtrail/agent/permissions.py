"""What an agent may do: a deny list, an allow list, a phase, and a callback, in this order.

    plan                  only tools that read
    default               reading; edits and runs ask the callback, and are denied without one
    accept_edits          edits too
    trusted               everything that is not denied
    bypass_permissions    the same, for hosts that have their own sandbox

The deny list wins always; `plan` changes nothing, whatever the allow list says. List entries
are names of tools, `bash`, or names with a pattern, `bash(git *)`, `edit(src/**)`. In the deny
list `edit` and `read` mean every tool of that kind, `write` and `grep` too. Patterns keep a
willing agent on its path; they are no sandbox for a hostile command line. What belongs to
version control, `.git` above all, no edit may touch: nothing there is captured.
None of it is stored, and none survives a resume.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from inspect import isawaitable
from pathlib import PurePosixPath
from typing import Literal, get_args

import msgspec

from ..errors import InvalidData, Unsupported
from ..events import Json
from ..files.trees import is_control
from .tools.grep import matches
from .tools.paths import real_path, short
from .tools.tool import Context, Tool, ToolFailed

Phase = Literal["plan", "default", "accept_edits", "trusted", "bypass_permissions"]
Denial = Literal["phase_gated", "budget_exceeded", "user_denied", "sandbox_violation", "unknown"]

PHASES: tuple[Phase, ...] = get_args(Phase)
"""From the least to the most that is allowed."""

_ENTRY = re.compile(r"([\w*?.-]+)(?:\((.*)\))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a call may run; if not, a code for programs and a reason for the model."""

    allowed: bool
    code: Denial | None = None
    reason: str = ""


Answer = bool | Decision
CanUseTool = Callable[[str, dict[str, Json], Context], Answer | Awaitable[Answer]]

_YES = Decision(True)


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the tools of one session may do now."""

    phase: Phase = "default"
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    can_use_tool: CanUseTool | None = None

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise InvalidData(f"there is no phase `{self.phase}`; there are {', '.join(PHASES)}")
        for name in ("allow", "deny"):
            entries = getattr(self, name)
            entries = (entries,) if isinstance(entries, str) else tuple(entries)
            object.__setattr__(self, name, entries)
            for entry in entries:
                _parsed(entry)

    def check(self, tool: Tool, input: dict[str, Json], context: Context) -> Decision:
        """Whether a call may run. An asynchronous callback needs `acheck`."""
        decided = self._decide(tool, input, context)
        if decided is not None:
            return decided
        assert self.can_use_tool is not None
        answer = self.can_use_tool(tool.name, input, context)
        if isawaitable(answer):
            close = getattr(answer, "close", None)
            if callable(close):
                close()
            raise Unsupported("`can_use_tool` is asynchronous: use an AsyncSession")
        return _answered(tool, answer)

    async def acheck(self, tool: Tool, input: dict[str, Json], context: Context) -> Decision:
        """Whether a call may run; the callback may be asynchronous."""
        decided = self._decide(tool, input, context)
        if decided is not None:
            return decided
        assert self.can_use_tool is not None
        answer = self.can_use_tool(tool.name, input, context)
        return _answered(tool, await answer if isawaitable(answer) else answer)

    def narrowed(
        self,
        *,
        phase: Phase | None = None,
        deny: Iterable[str] = (),
        allow: Iterable[str] | None = None,
    ) -> Permissions:
        """The same or less, for a subagent: the lower phase, more denied, less allowed."""
        if phase is not None and phase not in PHASES:
            raise InvalidData(f"there is no phase `{phase}`; there are {', '.join(PHASES)}")
        lower = min(self.phase, phase or self.phase, key=PHASES.index)
        more = (deny,) if isinstance(deny, str) else tuple(deny)
        kept = self.allow if allow is None else tuple(e for e in self.allow if e in set(allow))
        denied = tuple(dict.fromkeys((*self.deny, *more)))
        return replace(self, phase=lower, deny=denied, allow=kept)

    def _decide(self, tool: Tool, input: dict[str, Json], context: Context) -> Decision | None:
        """The lists and the phase; None if the callback is to be asked."""
        try:
            subject = _Subject(tool, input, context)
        except ToolFailed as error:
            outside = "outside the workspace" in error.message
            if outside or self._lists_name(tool):
                return Decision(False, "sandbox_violation" if outside else "unknown", str(error))
            # The tool says itself what is wrong with its input.
            subject = _Subject(tool, input, None)
        if subject.is_of_version_control:
            reason = f"`{tool.name}` does not change what belongs to version control."
            return Decision(False, "sandbox_violation", reason)
        for entry in self.deny:
            if subject.is_denied_by(entry):
                return Decision(False, "user_denied", f"`{tool.name}` is denied by `{entry}`.")
        if self.phase == "plan":
            reason = f"`{tool.name}` does not run in the phase `plan`: only reading does."
            return _YES if tool.kind == "read" else Decision(False, "phase_gated", reason)
        if subject.is_allowed_by(self.allow):
            return _YES
        if self.phase in ("trusted", "bypass_permissions") or tool.kind == "read":
            return _YES
        if self.phase == "accept_edits" and tool.kind == "edit":
            return _YES
        if self.can_use_tool is None:
            reason = f"`{tool.name}` needs to be allowed in the phase `{self.phase}`."
            return Decision(False, "phase_gated", reason)
        return None

    def _lists_name(self, tool: Tool) -> bool:
        """Whether a pattern is there for a tool whose paths are not known."""
        parsed = [_parsed(entry) for entry in self.deny]
        return any(pattern and _means(name, tool) for name, pattern in parsed)


class _Subject:
    """What a call is about, in the words that patterns are held against."""

    def __init__(self, tool: Tool, input: dict[str, Json], context: Context | None) -> None:
        self._tool = tool
        self._paths: list[tuple[str, ...]] = []
        found = tool.paths(context, input) if tool.paths is not None and context else None
        for path in found or ():
            assert context is not None
            full = real_path(context, path, follow=False)
            self._paths.append((short(context, full), full))
        text = input.get(tool.subject) if tool.subject else None
        self._text = text if isinstance(text, str) else msgspec.json.encode(input).decode()

    @property
    def is_of_version_control(self) -> bool:
        """Whether it is an edit of what no scan captures, because it belongs to git and its kin."""
        if self._tool.kind != "edit":
            return False
        parts = {part for names in self._paths for part in PurePosixPath(names[0]).parts}
        return any(is_control(part.encode("utf-8", "replace")) for part in parts)

    def is_denied_by(self, entry: str) -> bool:
        """Whether an entry means this call, or a part of it."""
        name, pattern = _parsed(entry)
        if not _means(name, self._tool):
            return False
        if pattern is None:
            return True
        if self._paths:
            return any(_covers(pattern, one) for names in self._paths for one in names)
        return any(fits(pattern, piece) for piece in anywhere_in(self._text))

    def is_allowed_by(self, entries: Iterable[str]) -> bool:
        """Whether entries mean all of this call."""
        patterns: list[str] = []
        for name, pattern in map(_parsed, entries):
            if fnmatchcase(self._tool.name.lower(), name):
                if pattern in (None, "*", "**"):
                    return True
                patterns.append(pattern or "")
        if self._paths:
            return all(
                any(matches(p, one, anywhere=True) for p in patterns for one in names)
                for names in self._paths
            )
        commands = plain_commands(self._text) if self._tool.subject else [self._text]
        return bool(commands) and all(
            any(fits(p, command) for p in patterns) for command in commands or ()
        )


def _means(name: str, tool: Tool) -> bool:
    """Whether an entry of the deny list names a tool, or its kind."""
    return fnmatchcase(tool.name.lower(), name) or name == tool.kind


def _covers(pattern: str, path: str) -> bool:
    """Whether a pattern means a path, or a directory that it is in."""
    upward = [path, *(str(above) for above in PurePosixPath(path).parents)]
    return any(matches(pattern.rstrip("/"), one, anywhere=True) for one in upward)


def _parsed(entry: str) -> tuple[str, str | None]:
    found = _ENTRY.fullmatch(entry) if isinstance(entry, str) else None
    if found is None:
        raise InvalidData(f"{entry!r} is no entry of a list: a tool's name, or `name(pattern)`")
    return found[1].lower(), found[2]


def _answered(tool: Tool, answer: object) -> Decision:
    if isinstance(answer, Decision):
        return answer
    if answer is True:
        return _YES
    if answer is False:
        return Decision(False, "user_denied", f"The user did not allow `{tool.name}`.")
    return Decision(
        False, "unknown", f"`can_use_tool` answered {type(answer).__name__}, not a bool"
    )


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
