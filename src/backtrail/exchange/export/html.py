"""A session as one HTML page, complete in itself: no network, no script but its own.

Everything that came from a session goes through `_text` or `_attribute`, and nowhere else
into the page. The script is fixed and holds nothing of the session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from ...files.differences import FileDiff
from ...formats.parts import Answer, Aside, Picture, Text, Thought, pretty
from .document import Document, Turn
from .html_assets import SCRIPT, STYLE, policy
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

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)[^\n`]*$", re.MULTILINE)
_LONGEST_DIFF_LINE = 2000


def render_html(document: Document, masked: int = 0) -> str:
    """The page; `masked` is how many secrets were taken out of it."""
    return "".join(_page(document, masked))


def _text(text: str) -> str:
    return escape(visible(text), quote=True)


def _attribute(text: str) -> str:
    return escape(one_line(text), quote=True)


def _time(ts: str) -> str:
    """A time, which the script shows in the reader's own zone."""
    return f'<time datetime="{_attribute(ts)}">{_text(ts)}</time>'


def _page(document: Document, masked: int) -> Iterator[str]:
    info = document.info
    title = _attribute(info.title or info.id)
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy()}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="referrer" content="no-referrer">\n'
    yield f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    yield f"<header>\n<h1>{title}</h1>\n<dl>\n"
    for name, value in facts(info):
        shown = _time(value) if name in ("Began", "Last change") else _text(value)
        yield f"<dt>{name}</dt><dd>{shown}</dd>\n"
    yield "</dl>\n</header>\n<main>\n"
    yield (
        '<div class="bar" hidden><input id="search" type="search" placeholder="Search  /" '
        'aria-label="Search" autocomplete="off"><output id="found"></output>'
        '<button id="expand" type="button">Expand all</button>'
        '<button id="collapse" type="button">Collapse all</button></div>\n'
    )
    for turn in document.turns:
        yield from _turn(turn)
    if document.subagents:
        yield '<section class="turn">\n<h2>Subagents</h2>\n'
        for agent in document.subagents:
            yield from _subagent(agent)
        yield "</section>\n"
    if document.not_captured:
        yield '<section class="turn">\n<h2>Not captured</h2>\n<ul>\n'
        for path, reason, _ in document.not_captured:
            yield f"<li><code>{_attribute(path)}</code> {_attribute(reason)}</li>\n"
        yield "</ul>\n</section>\n"
    yield "</main>\n<footer>\n"
    yield "".join(f"<p>{_text(line)}</p>\n" for line in ending(document, masked))
    yield f"</footer>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"


def _turn(turn: Turn) -> Iterator[str]:
    yield '<section class="turn">\n'
    for step in turn.all:
        if step.stands:
            yield from _entry(step, f"e{step.seq}")
    yield from _changes(turn)
    yield "</section>\n"


def _entry(step: Step, anchor: str) -> Iterator[str]:
    name = _attribute(anchor)
    yield f'<article class="{step.speaker}" id="{name}">\n'
    yield f'<h2>{SPEAKERS[step.speaker]} <a href="#{name}">{_time(step.ts)}</a></h2>\n'
    folded = step.speaker == "system"
    if folded:
        title = _attribute(system_title(step))
        yield f'<details class="aside"><summary>{title}</summary>\n'
    for part in parts_of(step):
        yield from _part(part)
    yield "</details>\n</article>\n" if folded else "</article>\n"


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Text):
        yield from _words(part.text)
    elif isinstance(part, Thought):
        yield '<details class="thought"><summary>Thinking</summary>'
        yield f'<div class="words">{_text(part.text or HIDDEN)}</div></details>\n'
    elif isinstance(part, Picture):
        yield _picture(part)
    elif isinstance(part, Aside):
        yield f'<details class="aside"><summary>{_attribute(part.title)}</summary>'
        yield f"<pre>{_text(part.text)}</pre></details>\n" if part.text else "</details>\n"
    else:
        yield from _call(part)


def _words(text: str) -> Iterator[str]:
    """Text, with what stands between fences as code."""
    shown = visible(text)
    at = 0
    while opening := _FENCE.search(shown, at):
        mark = re.escape(opening[1][0]) + "{" + str(len(opening[1])) + ",}"
        closing = re.compile(rf"^ {{0,3}}{mark}[ \t]*$", re.MULTILINE).search(shown, opening.end())
        if closing is None:
            break
        yield _paragraph(shown[at : opening.start()])
        yield f"<pre>{escape(shown[opening.end() + 1 : closing.start()])}</pre>\n"
        at = closing.end()
    yield _paragraph(shown[at:])


def _paragraph(text: str) -> str:
    text = text.strip("\n")
    return f'<div class="words">{escape(text)}</div>\n' if text.strip() else ""


def _picture(picture: Picture) -> str:
    source = f"data:{picture.media_type};base64,{picture.data}"
    return f'<img alt="picture" src="{escape(source, quote=True)}">\n'


def _call(call: Call) -> Iterator[str]:
    failed = call.answer is not None and call.answer.failed
    mark = ' <span class="failed">failed</span>' if failed else ""
    arguments = pretty(call.arguments)
    yield f'<details class="call"><summary>{_attribute(call.name)} '
    yield f"<code>{_attribute(arguments)}</code>{mark}</summary>\n"
    if arguments:
        yield f"<pre>{_text(arguments)}</pre>\n"
    if call.subagent is not None:
        yield from _subagent(call.subagent)
    if call.answer is None:
        yield '<p class="note">no result</p>\n'
    else:
        yield from _answer(call.answer, call.anchor)
    yield "</details>\n"


def _answer(answer: Answer, anchor: int) -> Iterator[str]:
    # Results are events of their own: each can be linked to.
    yield f'<div id="e{anchor}">\n' if anchor else "<div>\n"
    if answer.text or not answer.pictures:
        failed = ' class="failed"' if answer.failed else ""
        yield f"<pre{failed}>{_text(answer.text)}</pre>\n"
    for picture in answer.pictures:
        yield _picture(picture)
    yield "</div>\n"


def _subagent(agent: Subagent) -> Iterator[str]:
    yield f'<details class="aside"><summary>Subagent: {_attribute(agent.title)}</summary>\n'
    yield '<div class="subagent">\n'
    for step in agent.steps:
        yield from _entry(step, f"s-{agent.name}-{step.seq}")
    yield "</div></details>\n"


# --- files -------------------------------------------------------------------------------


def _changes(turn: Turn) -> Iterator[str]:
    """What a turn did to the files in all, and what others did meanwhile."""
    files, others, doubts = turn.net.files, by_others(turn), doubtful(turn)
    if not (files or others or doubts):
        return
    yield '<div class="files">\n<h3>Files</h3>\n'
    for step, doubt in doubts:
        yield f'<p class="note">{_attribute(step.by)}: {_text(doubt)}</p>\n'
    calls = authors(turn)
    for file in files:
        yield from _file(file, calls.get(file.path, ()))
    for step, file in others:
        yield from _file(file, [step])
    yield "</div>\n"


def _file(file: FileDiff, steps: Iterable[Step]) -> Iterator[str]:
    name = f"{file.old_path} → {file.path}" if file.old_path else file.path
    yield f"<details><summary><code>{_attribute(name)}</code> {_attribute(file.status)} "
    yield f'<span class="plus">+{file.insertions}</span> '
    yield f'<span class="minus">−{file.deletions}</span>'
    for step in steps:
        by = _attribute(step.by)
        yield f' <a href="#e{step.at}">{by}</a>' if step.at else f" {by}"
    yield "</summary>\n"
    if file.modes:
        yield f'<p class="note">mode {" → ".join(map(_attribute, file.modes))}</p>\n'
    if file.text:
        yield '<pre class="diff">'
        for line in visible(file.text).splitlines():
            yield _diff_line(line)
        yield "</pre>\n"
    yield "</details>\n"


def _diff_line(line: str) -> str:
    mark = ""
    if line.startswith(("+++", "---", "@@")):
        mark = ' class="h"'
    elif line.startswith("+"):
        mark = ' class="a"'
    elif line.startswith("-"):
        mark = ' class="d"'
    return f"<span{mark}>{escape(visible(line, _LONGEST_DIFF_LINE)) or ' '}</span>"
