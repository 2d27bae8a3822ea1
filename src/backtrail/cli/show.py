"""`show`: a session turn by turn, with what was said, called, and done to the files."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from .._startup.frozen import replace
from ..errors import NotFound
from ..files.names import one_line
from ..session.titles import title_of
from .call import Call
from .diff import print_files
from .hunks import print_diff
from .nearby import masking
from .output import Output
from .plan import listed, print_rows, rows_json
from .verbs import Command, mask_option, session_argument
from .wording import ago, brief, money, plural, short

if TYPE_CHECKING:
    from ..events import Json, SessionInfo
    from ..exchange.export import step as steps
    from ..exchange.export.document import Turn

_LINES = 15
"""Lines of what was said that are shown without `--full`."""
_RESULT = 4
"""Lines of what a tool answered."""
_QUIET = ("session_start", "session_resume", "turn_end", "subagent_usage")
"""Kinds that only `--full` shows."""

_BOOKS = ("adk_", "agent_framework_", "langgraph.", "pydantic_ai_", "strands_")
"""How the kinds begin by which adapters of frameworks keep their books: the same."""


def _options(parser: ArgumentParser) -> None:
    session_argument(parser)
    parser.add_argument("--turn", type=int, metavar="N", help="only this turn; -1 is the last")
    parser.add_argument(
        "--full", action="store_true", help="all of it: long texts, thoughts, diffs"
    )
    parser.add_argument("--subagent", metavar="ID", help="what a subagent said instead")
    mask_option(parser)


def _run(call: Call) -> None:
    from ..exchange.export.document import Reader
    from ..formats.secrets import Masking

    info = call.info(call.arguments.session)
    name = call.arguments.subagent
    with Reader(call.store, info, Masking(on=call.arguments.mask)) as reader:
        subagents = reader.subagents()
        if name is not None and name not in subagents:
            raise NotFound(f"session `{info.id}` has no subagent `{name}`")
        turns = reader.turns(call.arguments.turn, subagent=name)
        if call.out.as_json:
            rows = [turn.to_dict(diffs=call.arguments.full) for turn in turns]
            shown: Json = {"session": reader.info.to_dict(), "turns": rows, "subagents": subagents}
            call.out.data({**shown, "not_captured": rows_json(reader.not_captured())})
            return
        printer = _Printer(call.out, full=call.arguments.full)
        printer.head(info, title_of(call.store, info, masked=masking(call.arguments.mask)))
        for turn in turns:
            printer.turn(turn)
        if name is None:
            print_rows(call.out, reader.not_captured(), "show")
    if subagents and name is None:
        call.out.line()
        call.out.line(f"subagents: {', '.join(subagents)} (`--subagent ID` shows one)", "dim")


class _Printer:
    """Prints turns for people."""

    def __init__(self, out: Output, *, full: bool) -> None:
        self._out = out
        self._full = full
        self._called: set[str] = set()

    def head(self, info: SessionInfo, name: str) -> None:
        """What the session is."""
        self._out.line(name or "(nothing said yet)", "bold")
        agent = " ".join(filter(None, (info.agent_name, info.model)))
        facts = [short(info.id), info.cwd or "", agent, plural(info.turn_count, "turn")]
        tokens = sum(info.usage.get(name, 0) for name in ("input_tokens", "output_tokens"))
        facts += [plural(tokens, "token")] if tokens else []
        facts += [money(info.cost_usd)] if info.cost_usd is not None else []
        facts += [ago(info.updated_at), *info.tags]
        self._out.line(" · ".join(filter(None, facts)), "dim")

    def turn(self, turn: Turn) -> None:
        """One turn; the one before the first prompt only if something happened in it."""
        steps = [step for step in turn.steps if self._full or not _is_quiet(step.kind)]
        if turn.prompt is None:
            steps = [step for step in steps if self._full or step.kind != "system_message"]
            if not steps:
                return
        self._out.line()
        if turn.prompt is not None:
            event = f"event {turn.prompt.seq}, " if self._full else ""
            when = f"  {event}{ago(turn.prompt.ts)}"
            self._out.spans((f"prompt {turn.number}", "bold cyan"), (when, "dim"))
            self._text(turn.prompt.text, "> ", "bold", _LINES)
        for step in _behind_calls(steps):
            self._step(step)

    def _step(self, step: steps.Step) -> None:
        if step.thinking and self._full:
            self._text(step.thinking, "  ~ ", "dim", _LINES)
        if step.kind == "tool_result":
            self._result(step)
        elif step.kind in ("assistant_message", "system_message"):
            self._text(step.text, "", "", _LINES)
        elif step.kind == "action":
            # Where a hook recorded what a call did, the agent's own message has the call already.
            for asked in step.calls:
                if not asked.id or asked.id not in self._called:
                    self._call(asked)
            self._text(step.text, "    ", "red" if step.error else "dim", _RESULT)
        elif step.kind == "files_changed":
            self._out.line(f"  • {step.text or 'changed by others'}", "magenta")
        else:
            said = step.text if self._full else brief(step.text, 100)
            self._out.line(f"  – {step.kind.replace('_', ' ')} {said}".rstrip(), "dim")
        for asked in step.calls if step.kind != "action" else ():
            self._call(asked)
        for one in step.missing:
            self._out.line(f"    not captured: {one.row_text}", "yellow")
        if step.files:
            print_files(self._out, step.files, "    ")
            if step.perhaps:
                names = listed([one_line(path) for path in step.perhaps], 5)
                self._out.line(f"    perhaps not its own: {names}", "yellow")
            if self._full:
                print_diff(self._out, step.files, "    ")

    def _call(self, asked: steps.Call) -> None:
        self._called.add(asked.id)
        said = _arguments(asked.arguments)
        said = said if self._full else brief(said, 100)
        self._out.spans(("  • ", "magenta"), (asked.name, "bold"), (f"  {said}".rstrip(), ""))

    def _result(self, step: steps.Step) -> None:
        text = step.text or ("(failed)" if step.error else "")
        self._text(text, "    ", "red" if step.error else "dim", _RESULT)

    def _text(self, text: str, mark: str, style: str, most: int) -> None:
        """A text with a mark before each line, cut unless all is wanted."""
        rows = text.strip("\n").split("\n") if text.strip() else []
        shown = rows if self._full or len(rows) <= most + 1 else rows[:most]
        for row in shown:
            self._out.line(f"{mark}{row}".rstrip(), style)
        if len(shown) < len(rows):
            self._out.line(f"{mark}… {plural(len(rows) - len(shown), 'more line')}", "dim")


def _is_quiet(kind: str) -> bool:
    """Whether people need not see it."""
    return kind in _QUIET or kind.startswith(_BOOKS)


def _behind_calls(found: list[steps.Step]) -> list[steps.Step]:
    """The steps of a turn, with what a call did to the files behind its answer.

    A framework appends the messages of a turn when its calls are over and their actions recorded.
    """
    early = {
        one.calls[0].id: replace(one, parts=(), answers=(), note="")
        for one in found
        if one.folded and one.calls and one.at > one.seq
    }
    if not early:
        return found
    rows: list[steps.Step] = []
    for step in found:
        if step.kind == "action" and step.folded and step.at > step.seq:
            continue
        rows.append(step)
        rows += [early.pop(one.call_id) for one in step.answers if one.call_id in early]
    return [*rows, *early.values()]


def _arguments(value: object) -> str:
    """What a tool was called with: the one thing that matters, or all as JSON."""
    from .output import as_json

    if isinstance(value, str):
        import json

        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    if isinstance(value, dict):
        for name in ("command", "file_path", "path", "pattern", "url", "query", "description"):
            if isinstance(value.get(name), str):
                return str(value[name])
    return "" if value in (None, {}) else as_json(value)


COMMANDS = {
    "show": Command(
        _options,
        _run,
        """
        backtrail show
        backtrail show 019a8b2c-1234 --turn -1 --full
        backtrail show latest --mask --json
        """,
        about="The conversation as it stands. What was rewound is left out; `tree` and `log` "
        "have it.",
    )
}
