"""A session as Markdown, with tools and thoughts folded away.

Text of a session stands where Markdown would read it only as words of a person or a model;
all else is in fences longer than any fence in it. HTML in words is shown, not obeyed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from .document import Changes, Document, Entry, Subagent
from .facts import facts
from .html import SPEAKERS, ending
from .parts import Answer, Aside, Call, Part, Picture, Thought, Words
from .text import one_line, visible

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
        for entry in turn.entries:
            yield from _entry(entry)
        if turn.changes:
            yield from _changes(turn.changes)
    for agent in document.subagents:
        yield from _subagent(agent)
    if document.not_captured:
        yield from ("---", "", "## Not captured", "")
        for path, reason, _ in document.not_captured:
            yield f"- {_plain(path, 400)}: {_plain(reason, 400)}"
        yield ""
    yield from ("---", "", " ".join(ending(document, masked)))


def _entry(entry: Entry, level: str = "##") -> Iterator[str]:
    if entry.speaker == "note":
        for part in entry.parts:
            if isinstance(part, Words):
                yield from (f"*{_plain(part.text, 1000)}*", "")
        return
    yield from (f"{level} {SPEAKERS[entry.speaker]} · {_plain(entry.ts)}", "")
    folded = entry.speaker == "system"
    if folded:
        yield from _folded("System prompt")
    for part in entry.parts:
        yield from _part(part, level)
    if folded:
        yield from ("</details>", "")


def _part(part: Part, level: str) -> Iterator[str]:
    if isinstance(part, Words):
        yield from (_words(part.text), "")
    elif isinstance(part, Thought):
        yield from _folded("Thinking")
        yield from _fenced(part.text)
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
    yield from _folded(
        f"<b>{_summary(call.name)}</b> <code>{_summary(call.arguments)}</code>{failed}"
    )
    if call.arguments:
        yield from _fenced(call.arguments)
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
    for entry in agent.entries:
        yield from _entry(entry, f"{level}#" if len(level) < 6 else level)
    yield from ("</details>", "")


def _changes(changes: list[Changes]) -> Iterator[str]:
    yield from ("### Files", "")
    for change in changes:
        for told in change.told:
            yield from (f"*{_plain(change.by)}: {_plain(told, 1000)}*", "")
        for file in change.files:
            name = f"{file.old_path} → {file.path}" if file.old_path else file.path
            counts = f"+{file.insertions} −{file.deletions}"
            by = _summary(change.by)
            yield from _folded(f"<code>{_summary(name)}</code> {file.status} {counts} ({by})")
            if file.modes:
                yield from (f"mode {file.modes[0]} → {file.modes[1]}", "")
            if file.text:
                yield from _fenced(file.text, "diff")
            yield from ("</details>", "")
