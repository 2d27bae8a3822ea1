"""Lines of a Claude Code transcript: what each is, and the messages in them. Pure.

A transcript is a tree of lines, each naming its parent. What a model said in one response is
a line for each block, under one `message.id`. Lines come from outside, so no field is taken
for what it should be. `docs/reference/claude-code.md` describes the format.
"""

from __future__ import annotations

import re
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from ...events import Json
from ..shapes import inner, list_in, object_in, text_in

What = Literal["prompt", "note", "result", "assistant", "boundary", "summary", "link", "other"]
"""What a line is.

`prompt` and `note` are said by the user or in their name, `result` answers tool calls,
`boundary` and `summary` are a compaction, `link` only holds the tree together.
"""

SYNTHETIC = "<synthetic>"
"""The model of what the program says in a model's place."""

_LINKS = ("attachment", "system", "progress")
_NOTES = ("<command-name>", "<local-command-stdout>", "<local-command-stderr>",
          "<local-command-caveat>", "<bash-input>", "<bash-stdout>", "<bash-stderr>",
          "<task-notification>", "<system-reminder>")  # fmt: skip
_PRINTED = ("<bash-stdout>", "<bash-stderr>")
_BY_HAND = ("<command-name>", "<bash-input>")
_STOPPED = ("[Request interrupted by user]", "[Request interrupted by user for tool use]")
"""What it writes in the name of a person that stops it."""

_COMMAND = re.compile(
    r"<command-message>[^<]*</command-message>\s*<command-name>([^<]*)</command-name>"
    r"(?:\s*<command-args>(.*)</command-args>)?",
    re.DOTALL,
)
"""A command that a person made; the text that it stands for is a line of its own."""

_TITLES = {"custom-title": (3, "customTitle"), "agent-name": (2, "agentName"),
           "ai-title": (2, "aiTitle"), "summary": (1, "summary")}  # fmt: skip


def what_is(line: Mapping[str, Json]) -> What:
    """What a line is."""
    kind = line.get("type")
    if kind == "system" and line.get("subtype") == "compact_boundary":
        return "boundary"
    if kind == "attachment" and message_of(line):
        return "prompt"
    if kind in _LINKS:
        return "link"
    message = line.get("message")
    if kind not in ("user", "assistant") or not isinstance(message, Mapping):
        return "other"
    if message.get("role") != kind or not isinstance(message.get("content"), str | list):
        return "other"
    if kind == "assistant":
        return "assistant"
    if line.get("isCompactSummary") is True:
        return "summary"
    if any(blocks_of(message, "tool_result")):
        return "result"
    return "note" if line.get("isMeta") is True or is_note(said(message)) else "prompt"


def message_of(line: Mapping[str, Json]) -> Mapping[str, Json]:
    """The message in a line; of what a person typed while the model was at work, one made of it.

    Such a prompt is an attachment, which the model is sent with the next results. A command that
    a person made is what they typed, as a hook is given it.
    """
    message = line.get("message")
    if isinstance(message, Mapping):
        content = message.get("content")
        command = _COMMAND.fullmatch(content) if isinstance(content, str) else None
        if command is None:
            return message
        return {**message, "content": " ".join(filter(None, command.groups()))}
    given = object_in(line, "attachment")
    by_hand = inner(given, "origin", "kind") == "human"
    if given.get("type") != "queued_command" or not by_hand:
        return {}
    prompt = given.get("prompt")
    return {"role": "user", "content": prompt} if isinstance(prompt, str | list) else {}


def is_note(words: str) -> bool:
    """Whether the program says something in a person's place, such as that a task is done."""
    words = words.strip()
    return words.startswith(_NOTES) or words in _STOPPED


def is_command(line: Mapping[str, Json]) -> bool:
    """Whether a person ran a command of the program's own with a line, or one behind `!`.

    Some commands are lines of the person's, others of the system's, which the model never sees.
    """
    if line.get("type") == "system" and line.get("subtype") == "local_command":
        words = line.get("content")
    else:
        words = said(message_of(line)) if what_is(line) == "note" else ""
    is_meta = line.get("isMeta") is True
    return isinstance(words, str) and not is_meta and words.strip().startswith(_BY_HAND)


def blocks_of(message: Mapping[str, Json], kind: str) -> Iterator[Mapping[str, Json]]:
    """The blocks of a kind in a message."""
    for block in list_in(message, "content"):
        if isinstance(block, Mapping) and block.get("type") == kind:
            yield block


def said(message: Mapping[str, Json]) -> str:
    """The words of a message, without calls, results and thoughts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    texts = [block.get("text") for block in blocks_of(message, "text")]
    return "\n".join(text for text in texts if isinstance(text, str))


def parent_of(line: Mapping[str, Json]) -> str | None:
    """The uuid of the line before; over a compaction, of the one that is meant."""
    return text_in(line, "parentUuid") or text_in(line, "logicalParentUuid")


def starts_over(line: Mapping[str, Json]) -> bool:
    """Whether a line is of the first prompt of its conversation, whatever parent it names.

    After a rewind to before the first prompt nothing was said; but the line then may name the
    one before it in the file. Of a command behind `!`, what it printed says so. Other notes, such
    as that a task is done, bear the number of the turn they come in. `turnIndex` counts all turns,
    `promptIndex` typed prompts alone: a headless prompt has the number of the typed one before it.
    """
    what = what_is(line)
    is_printed = what == "note" and said(message_of(line)).strip().startswith(_PRINTED)
    return (what == "prompt" or is_printed) and inner(line, "turnPosition", "turnIndex") == 1


def sent_anew(line: Mapping[str, Json]) -> list[str]:
    """The hashes of all messages of a request that builds on no earlier one; [] for other lines.

    A process begins with one, and each time that it changes more than the end of a conversation.
    """
    tail = list_in(line, "tail")
    builds_on = line.get("type") != "api-request" or line.get("base")
    return [] if builds_on or not all(isinstance(one, str) for one in tail) else tail


def response_of(line: Mapping[str, Json]) -> str | None:
    """The id of the model's response that a line is part of."""
    return text_in(line, "message", "id")


def merged(messages: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """One message out of the lines of a response: all blocks, and the last word on the rest."""
    blocks: list[Json] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            blocks += content
        elif isinstance(content, str) and content:
            blocks.append({"type": "text", "text": content})
    return {**messages[0], **messages[-1], "content": blocks}


def model_of(line: Mapping[str, Json]) -> str | None:
    """The model that said a line."""
    found = text_in(line, "message", "model")
    return None if found == SYNTHETIC else found


def title_in(line: Mapping[str, Json]) -> tuple[int, str] | None:
    """A title that a line gives the session, and how much it counts."""
    rank, name = _TITLES.get(text_in(line, "type") or "", (0, ""))
    found = " ".join((text_in(line, name) or "").split())[:200]
    return (rank, found) if found else None


def preserved(boundary: Mapping[str, Json]) -> list[str]:
    """The uuids of lines that a compaction left as they were."""
    uuids = list_in(boundary, "compactMetadata", "preservedMessages", "uuids")
    return [uuid for uuid in uuids if isinstance(uuid, str)]


def slug(folder: str) -> str:
    """The name of a folder's directory of transcripts; `folder` is a real path."""
    name = unicodedata.normalize("NFC", folder)
    # A character beyond 16 bits is two, as in JavaScript.
    plain = re.sub(r"[^a-zA-Z0-9]", lambda c: "-" if c.group() < "\U00010000" else "--", name)
    return plain if len(plain) <= 200 else f"{plain[:200]}-{_base36(abs(_hash(name)))}"


def _hash(name: str) -> int:
    """The hash of a string as JavaScript programs like to count it: 32 bits, signed."""
    number = 0
    for (unit,) in struct.iter_unpack("<H", name.encode("utf-16-le", "surrogatepass")):
        number = (number * 31 + unit) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


def _base36(number: int) -> str:
    rest, last = divmod(number, 36)
    return (_base36(rest) if rest else "") + "0123456789abcdefghijklmnopqrstuvwxyz"[last]


WRITERS = {
    "Write": "file_path",
    "Edit": "file_path",
    "MultiEdit": "file_path",
    "NotebookEdit": "notebook_path",
    "Bash": "command",
}
"""The tools that change files, each with the field that says which, or how."""


def results_of(line: Mapping[str, Json]) -> dict[str, bool]:
    """The calls that a line answers, by id, each with whether it failed."""
    return {
        id: block.get("is_error") is True
        for block in blocks_of(message_of(line), "tool_result")
        if isinstance(id := block.get("tool_use_id"), str)
    }


def calls_of(messages: Iterable[Mapping[str, Json]]) -> dict[str, tuple[str, Json]]:
    """The tool calls in messages: name and input, by id."""
    blocks = (block for message in messages for block in blocks_of(message, "tool_use"))
    named = ((text_in(block, "id"), text_in(block, "name"), block.get("input")) for block in blocks)
    return {id: (name, given) for id, name, given in named if id and name}
