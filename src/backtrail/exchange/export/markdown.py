"""A session as Markdown, with tools and thoughts folded away.

Text of a session stands where Markdown would read it only as words of a person or a model;
all else is in fences longer than any fence in it. HTML in words is shown, not obeyed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from ...files.differences import FileDiff
from ...formats.parts import Answer, Aside, Picture, Text, Thought, pretty
from .document import Document, Turn
from .page import (
    HIDDEN,
    SPEAKERS,
    authors,
    by_others,
    doubtful,
    ending,
    facts,
    one_line,
    parts_of,
    system_title,
    visible,
)
from .step import Call, Part, Step, Subagent

_TICKS = re.compile(r"`{3,}")
# Behind backticks no more of them, as Markdown has it: else it is no fence, but words.
_FENCE = re.compile(r" {0,3}(`{3,}+(?=[^`]*$)|~{3,}+)")
_SPAN = re.compile(r"(?<!`)(`{1,20}+)[^`]++\1(?!`)")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#|!~])")


def render_markdown(document: Document, masked: int = 0) -> str:
    """The text; `masked` is how many secrets were taken out of it."""
    return "\n".join(_lines(document, masked)).rstrip("\n") + "\n"


def _plain(text: str, longest: int = 120) -> str:
    """One line in which no sign means anything."""
    return _SPECIAL.sub(r"\\\1", one_line(text, longest)).replace("&", "&amp;")


def _fenced(text: str, language: str = "") -> Iterator[str]:
    shown = visible(text).rstrip("\n")
    ticks = max((len(run) for run in _TICKS.findall(shown)), default=2) + 1
    yield from ("`" * ticks + language, shown, "`" * ticks, "")


def _folded(summary: str) -> Iterator[str]:
    yield from ("<details>", f"<summary>{summary}</summary>", "")


def _summary(text: str) -> str:
    return escape(one_line(text), quote=True)


def _lines(document: Document, masked: int) -> Iterator[str]:
    info = document.info
    yield from (f"# {_plain(info.title or info.id, 200)}", "")
    yield from ("| | |", "| --- | --- |")
    for name, value in facts(info):
        yield f"| {name} | {_plain(value, 400)} |"
    yield ""
    for turn in document.turns:
        yield from ("---", "")
        for step in turn.all:
            if step.stands:
                yield from _entry(step)
        yield from _changes(turn)
    for agent in document.subagents:
        yield from _subagent(agent)
    if document.not_captured:
        yield from ("---", "", "## Not captured", "")
        for path, reason, _ in document.not_captured:
            yield f"- {_plain(path, 400)}: {_plain(reason, 400)}"
        yield ""
    yield from ("---", "", " ".join(ending(document, masked)))


def _entry(step: Step, level: str = "##") -> Iterator[str]:
    if step.speaker == "note":
        yield from (f"*{_plain(step.sentence, 1000)}*", "")
        return
    yield from (f"{level} {SPEAKERS[step.speaker]} · {_plain(step.ts)}", "")
    folded = step.speaker == "system"
    if folded:
        yield from _folded(_summary(system_title(step)))
    for part in parts_of(step):
        yield from _part(part, level)
    if folded:
        yield from ("</details>", "")


def _part(part: Part, level: str) -> Iterator[str]:
    if isinstance(part, Text):
        yield from (_words(part.text), "")
    elif isinstance(part, Thought):
        yield from _folded("Thinking")
        yield from _fenced(part.text or HIDDEN)
        yield from ("</details>", "")
    elif isinstance(part, Picture):
        yield from (f"*[{_plain(part.media_type)}, {len(part.data)} characters]*", "")
    elif isinstance(part, Aside):
        yield from _folded(_summary(part.title))
        if part.text:
            yield from _fenced(part.text)
        yield from ("</details>", "")
    else:
        yield from _call(part, level)


def _words(text: str) -> str:
    """Words as they are, but no HTML, no heading that looks like ours, no fence left open."""
    lines: list[str] = []
    fence = ""
    shown = visible(text).split("\n")
    tidy = all(_is_tidy(line) for line in shown)
    for line in shown:
        mark = _FENCE.match(line)
        if fence:
            lines.append(line)
            closes = mark and mark[1].startswith(fence) and not line[mark.end() :].strip()
            fence = "" if closes else fence
        elif mark:
            fence = mark[1]
            lines.append(line)
        else:
            lines.append(_inert(line, spans=tidy))
    if fence:
        lines.append(fence)
    return "\n".join(lines).strip("\n")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("![", "!\\[")


def _is_tidy(line: str) -> bool:
    """Whether every backtick of a line pairs in it, so that none can pair across lines."""
    return "\\`" not in line and (bool(_FENCE.match(line)) or "`" not in _SPAN.sub("", line))


def _inert(line: str, *, spans: bool) -> str:
    """A line of words in which HTML is text, and pictures are not fetched.

    With `spans`, what stands between backticks is left as it is: it is text anyway.
    """
    parts: list[str] = []
    at = 0
    for span in _SPAN.finditer(line) if spans else ():
        parts += (_escaped(line[at : span.start()]), span[0])
        at = span.end()
    line = "".join((*parts, _escaped(line[at:])))
    bare = line.lstrip(" ")
    if bare.startswith("#") or (len(bare) >= 3 and not bare.strip("-=* ")):
        return line[: len(line) - len(bare)] + "\\" + bare
    return line


def _call(call: Call, level: str) -> Iterator[str]:
    failed = " (failed)" if call.answer is not None and call.answer.failed else ""
    arguments = pretty(call.arguments)
    yield from _folded(f"<b>{_summary(call.name)}</b> <code>{_summary(arguments)}</code>{failed}")
    if arguments:
        yield from _fenced(arguments)
    if call.subagent is not None:
        yield from _subagent(call.subagent, level)
    if call.answer is None:
        yield from ("*no result*", "")
    else:
        yield from _answer(call.answer)
    yield from ("</details>", "")


def _answer(answer: Answer) -> Iterator[str]:
    if answer.text:
        yield from _fenced(answer.text)
    for picture in answer.pictures:
        yield from (f"*[{_plain(picture.media_type)}, {len(picture.data)} characters]*", "")


def _subagent(agent: Subagent, level: str = "##") -> Iterator[str]:
    yield from _folded(f"Subagent: {_summary(agent.title)}")
    for step in agent.steps:
        yield from _entry(step, f"{level}#" if len(level) < 6 else level)
    yield from ("</details>", "")


def _changes(turn: Turn) -> Iterator[str]:
    files, others, doubts = turn.net.files, by_others(turn), doubtful(turn)
    if not (files or others or doubts):
        return
    yield from ("### Files", "")
    for step, doubt in doubts:
        yield from (f"*{_plain(step.by)}: {_plain(doubt, 1000)}*", "")
    calls = authors(turn)
    for file in files:
        yield from _file(file, calls.get(file.path, ()))
    for step, file in others:
        yield from _file(file, [step])


def _file(file: FileDiff, steps: Iterable[Step]) -> Iterator[str]:
    name = f"{file.old_path} → {file.path}" if file.old_path else file.path
    counts = f"+{file.insertions} −{file.deletions}"
    by = ", ".join(dict.fromkeys(_summary(step.by) for step in steps))
    yield from _folded(f"<code>{_summary(name)}</code> {file.status} {counts} ({by})")
    if file.modes:
        yield from (f"mode {file.modes[0]} → {file.modes[1]}", "")
    if file.text:
        yield from _fenced(file.text, "diff")
    yield from ("</details>", "")
