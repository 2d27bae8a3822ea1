"""What edit tools of Claude Code did to a file, out of what their results tell. Pure.

A result carries the path, the file before the edit, and the edit. Where the bytes before are
known from elsewhere they count, since text in a transcript has lost its line ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...events import Json
from ...events.messages import text_of
from .format import calls_of

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of one file: by which tool, and how it was before, as text.

    `before` is None where there was no file, or where nobody says; `created` tells these
    apart.
    """

    tool: str
    path: str
    before: str | None
    created: bool
    result: Mapping[str, Json]


def edit_in(result: Json) -> Edit | None:
    """The edit that a tool result tells of, if it does."""
    if not isinstance(result, Mapping):
        return None
    path = _text(result, "filePath") or _text(result, "notebook_path")
    if not path:
        return None
    if _text(result, "updated_file") is not None:
        return Edit("NotebookEdit", path, _text(result, "original_file"), False, result)
    if isinstance(result.get("edits"), list):
        before = _text(result, "originalFileContents")
        before = _text(result, "originalFile") if before is None else before
        return Edit("MultiEdit", path, before, False, result)
    if _text(result, "oldString") is not None and _text(result, "newString") is not None:
        return Edit("Edit", path, _text(result, "originalFile"), False, result)
    if result.get("type") in ("create", "update") and _text(result, "content") is not None:
        created = result["type"] == "create"
        return Edit("Write", path, _text(result, "originalFile"), created, result)
    return None


def edits_in(messages: Iterable[Mapping[str, Json]]) -> Iterator[Edit]:
    """The edits that calls in a conversation ask for, and whose results are no errors.

    Subagents' results do not tell what was before.
    """
    asked: dict[str, tuple[str, Json]] = {}
    for message in messages:
        asked |= calls_of([message])
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, Mapping) or block.get("type") != "tool_result":
                continue
            name, given = asked.pop(str(block.get("tool_use_id")), ("", None))
            if block.get("is_error") is True or not isinstance(given, Mapping):
                continue
            edit = edit_in(_as_result(name, given, text_of(block.get("content"))))
            if edit is not None:
                yield edit


def _as_result(name: str, given: Mapping[str, Json], said: str) -> Json:
    """A call's input in the words of its result."""
    path = given.get("file_path")
    if name == "Write":
        kind = "create" if "created successfully" in said else "update"
        return {"type": kind, "filePath": path, "content": given.get("content")}
    if name == "Edit":
        old, new = given.get("old_string"), given.get("new_string")
        everywhere = given.get("replace_all")
        return {"filePath": path, "oldString": old, "newString": new, "replaceAll": everywhere}
    return {"filePath": path, "edits": given.get("edits")} if name == "MultiEdit" else None


def after(edit: Edit, before: bytes | None) -> bytes | None:
    """The file behind an edit of these bytes; None where that cannot be told."""
    whole = _text(edit.result, "content" if edit.tool == "Write" else "updated_file")
    if edit.tool in ("Write", "NotebookEdit"):
        return whole.encode() if whole is not None else None
    if before is None:
        return None
    try:
        text = before.removeprefix(_BOM).decode()
    except UnicodeDecodeError:
        return None
    windows = "\r\n" in text
    text = text.replace("\r\n", "\n")
    for old, new, everywhere in _replacements(edit):
        if not old:
            text = text or new
        elif old not in text:
            return None
        else:
            text = text.replace(old, new) if everywhere else text.replace(old, new, 1)
    text = text.replace("\n", "\r\n") if windows else text
    return (_BOM if before.startswith(_BOM) else b"") + text.encode()


def _replacements(edit: Edit) -> list[tuple[str, str, bool]]:
    if edit.tool == "Edit":
        result = edit.result
        old, new = str(result["oldString"]), str(result["newString"])
        return [(old, new, result.get("replaceAll") is True)]
    found = []
    for one in edit.result["edits"]:
        if isinstance(one, Mapping):
            before, then = _text(one, "old_string") or "", _text(one, "new_string") or ""
            found.append((before, then, one.get("replace_all") is True))
    return found


def _text(value: Mapping[str, Json], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None
