"""What a Claude Code session did to files, out of its transcript and its backups.

Claude Code copies a file before it edits it, and all files it ever edited at each prompt. The
results of its edit tools say what came of it. Together that is, for each call, the file
before and after; and at each prompt, what else happened to these files meanwhile.

Only these files are known, never the whole directory. So the trees made of them hold just the
paths that changed, like those of a call that declares its paths, and are marked `partial`.

The result of an edit carries the path, the file before the edit, and the edit. Where the bytes
before are known from elsewhere they count, since text in a transcript has lost its line ends.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...events import Json, NewEvent
from ...events.messages import text_of
from ...files.contents.blobs import Reference
from ...files.depot import Depot
from ...files.names import shown
from ...files.trees import Entry, Tree, control_in, digest_of, encode_tree
from ...files.workspace.ignore import FILE_LIMIT
from ...stores.base import Store
from ...stores.wrapper import store_name
from ..jsonlines import Line, read_small
from ..shapes import id_in, inner, list_in, object_in, time_in
from . import format as cc

BETWEEN = "outside edit tools"
"""The name of what happened to files otherwise: by a shell, or by a person."""

_BACKUP = re.compile(r"[0-9A-Za-z]{1,64}@v[0-9]{1,9}")
_UNKNOWN = Entry("skipped", 0, 0, b"the transcript does not say")
_GATHERED = 32 << 20
_BOM = b"\xef\xbb\xbf"

Changes = dict[bytes, tuple[Entry | None, Entry | None]]
"""Paths with what was there before and after."""


@dataclass(slots=True)
class FileHistory:
    """What happened to files, line by line. Feed it every line of a file in order.

    Trees are made for lines from byte `first` on; what was before is only remembered.
    """

    store: Store
    session_id: str
    root: str
    backups: Path | None
    first: int = 0
    problems: list[str] = field(default_factory=list)
    _depot: Depot | None = None
    _epoch: int = 0
    _states: dict[bytes, Entry | None] = field(default_factory=dict)
    _modes: dict[bytes, int] = field(default_factory=dict)
    _prompts: dict[str, int] = field(default_factory=dict)
    _own: dict[int, dict[str, Json]] = field(default_factory=dict)
    _before: dict[int, NewEvent] = field(default_factory=dict)
    _contents: dict[bytes, bytes] = field(default_factory=dict)
    _size: int = 0
    _written: set[bytes] = field(default_factory=set)
    _trees: dict[bytes, None] = field(default_factory=dict)
    _delegated: dict[str, list[Edit]] = field(default_factory=dict)
    _outside: int = 0

    def look(self, line: Line) -> None:
        """Learn what a line says."""
        value = line.value
        if value is None:
            return
        kind = value.get("type")
        if kind == "file-history-snapshot":
            self._snapshot(line, value)
        elif kind == "file-history-delta":
            self._learn(value.get("trackingPath"), value.get("backup"))
        elif kind == "user":
            what = cc.what_is(value)
            if line.own_id is not None and what in ("prompt", "note"):
                self._prompts[line.own_id] = line.at
            if what == "result":
                self._result(line, value)

    def delegate(self, call: str, lines: Iterable[Line]) -> None:
        """Learn what a subagent edited, which is the doing of the call that it works for.

        `call` is the id of that call, or of the subagent.
        """
        values = [line.value for line in lines if line.value is not None]
        said = [v["message"] for v in values if cc.what_is(v) in ("assistant", "result")]
        self._delegated.setdefault(call, []).extend(edits_in(said))

    def of(self, line: Line) -> tuple[dict[str, Json] | None, NewEvent | None]:
        """What a line's event says of files, and the event that comes before it."""
        return self._own.get(line.at), self._before.get(line.at)

    def save(self) -> None:
        """Store the contents and trees; before the events that name them."""
        if self._outside:
            self.problems.append(
                f"edits of files outside {self.root} cannot be rewound: {self._outside}"
            )
        if self._trees:
            depot = self._opened()
            name = store_name(self.store)
            references = [Reference(name, self.session_id, tree) for tree in self._trees]
            self._flush()
            depot.blobs.write([], references, epoch=self._epoch, relies=self._written)

    def close(self) -> None:
        """Let go of the contents."""
        depot, self._depot = self._depot, None
        if depot is not None:
            depot.close()

    # --- states --------------------------------------------------------------------------

    def _learn(self, name: Json, backup: Json) -> tuple[bytes, Entry | None] | None:
        """What a backup says of a path; noted if the path was not known."""
        if not isinstance(name, str) or not isinstance(backup, Mapping):
            return None
        path = inside(self.root, name)
        if path is None:
            self._outside += 1
            return None
        gone = backup.get("backupFileName", "") is None
        entry = None if gone else self._backup(path, backup.get("backupFileName"))
        if entry is None and not gone:
            return None
        self._states.setdefault(path, entry)
        return path, entry

    def _backup(self, path: bytes, name: Json) -> Entry | None:
        if self.backups is None or not isinstance(name, str) or not _BACKUP.fullmatch(name):
            return None
        place = self.backups / name
        content = read_small(place, FILE_LIMIT)
        if content is None:
            note = f"the backup {name} of {shown(path)} is gone"
            if note not in self.problems:
                self.problems.append(note)
            return None
        self._modes[path] = stat.S_IMODE(place.lstat().st_mode)
        return self._entry(path, content)

    def _entry(self, path: bytes, content: bytes | None) -> Entry:
        if content is None or len(content) > FILE_LIMIT:
            return _UNKNOWN
        return Entry("file", self._mode(path), len(content), self._put(content))

    def _mode(self, path: bytes) -> int:
        """The mode of a path, of a folder with a slash behind it: as it is now, or the usual."""
        if path not in self._modes:
            is_such, usual = (stat.S_ISREG, 0o644) if path[-1:] != b"/" else (stat.S_ISDIR, 0o755)
            try:
                place = b"%b/%b" % (os.fsencode(self.root), path.removesuffix(b"/"))
                mode = os.lstat(place).st_mode
            except (OSError, ValueError):
                mode = 0
            self._modes[path] = stat.S_IMODE(mode) if is_such(mode) else usual
        return self._modes[path]

    # --- changes -------------------------------------------------------------------------

    def _snapshot(self, line: Line, value: Mapping[str, Json]) -> None:
        """The files at a prompt: what differs from what is known happened some other way."""
        changes: Changes = {}
        known = dict(self._states)
        for name, backup in object_in(value, "snapshot", "trackedFileBackups").items():
            learnt = self._learn(name, backup)
            if learnt is None or learnt[0] not in known or value.get("isSnapshotUpdate") is True:
                continue
            path, now = learnt
            if known[path] != now:
                self._states[path] = now
                changes[path] = (known[path], now)
        prompt = id_in(value, "messageId")
        at = self._prompts.get(prompt or "")
        if changes and at is not None and at >= self.first:
            files = self._files(changes) | {"uncertain": [shown(path) for path in sorted(changes)]}
            data = {"name": BETWEEN, "files": files}
            ts = time_in(value, "snapshot", "timestamp")
            self._before[at] = NewEvent("action", data, id=f"files-{prompt}"[:256], ts=ts)

    def _result(self, line: Line, value: Mapping[str, Json]) -> None:
        """The result of a call that edited files, itself or by a subagent."""
        result = value.get("toolUseResult")
        own = edit_in(result)
        edits = [own] if own is not None else []
        name = own.tool if own is not None else "Agent"
        calls = (inner(block, "tool_use_id") for block in list_in(value, "message", "content"))
        for id in (inner(result, "agentId"), *calls):
            edits += self._delegated.pop(str(id), ())
        changes: Changes = {}
        for edit in edits:
            path = inside(self.root, edit.path)
            if path is None:
                self._outside += 1
                continue
            was, then = self._edit(path, edit)
            changes[path] = (changes[path][0] if path in changes else was, then)
        changes = {path: change for path, change in changes.items() if change[0] != change[1]}
        if changes and line.at >= self.first:
            self._own[line.at] = {"name": name, "files": self._files(changes)}

    def _edit(self, path: bytes, edit: Edit) -> tuple[Entry | None, Entry | None]:
        """What a path was and became."""
        if path in self._states:
            was = self._states[path]
            content = self._content(was)
        elif edit.created:
            was, content = None, None
        else:
            content = edit.before.encode() if edit.before is not None else None
            was = self._entry(path, content)
        then = self._states[path] = self._entry(path, after(edit, content))
        return was, then

    def _content(self, entry: Entry | None) -> bytes | None:
        """The bytes of an entry, which are here or were put into the store just now."""
        if entry is None or entry.kind != "file":
            return None
        found = self._contents.get(entry.value)
        return found if found is not None else self._opened().blobs.get(entry.value)

    def _files(self, changes: Changes) -> dict[str, Json]:
        before = self._tree({path: was for path, (was, _) in changes.items()}, changes)
        then = {path: now for path, (_, now) in changes.items()}
        there = [path for path, now in then.items() if now is not None]
        return {"before": before.hex(), "after": self._tree(then, there).hex(), "partial": True}

    # --- trees and contents --------------------------------------------------------------

    def _tree(self, entries: Mapping[bytes, Entry | None], places: Iterable[bytes]) -> bytes:
        """A tree of these entries, with the directories above `places`."""
        folders: dict[bytes, Tree] = {b"": {}}
        for path in places:
            above = path.rpartition(b"/")[0]
            while above not in folders:
                folders[above] = {}
                above = above.rpartition(b"/")[0]
        for path, entry in entries.items():
            folder, _, name = path.rpartition(b"/")
            if entry is not None:
                folders[folder][name] = entry
        # Deepest first, so that a folder is whole before it is put into the one above.
        for path in sorted(folders, key=lambda path: (path.count(b"/"), path), reverse=True):
            digest = self._put(encode_tree(folders[path]))
            if path:
                parent, _, name = path.rpartition(b"/")
                folders[parent][name] = Entry("directory", self._mode(path + b"/"), 0, digest)
        self._trees[digest] = None
        return digest

    def _put(self, content: bytes) -> bytes:
        digest = digest_of(content)
        if digest not in self._written and digest not in self._contents:
            self._contents[digest] = content
            self._size += len(content)
            if self._size > _GATHERED:
                self._flush()
        return digest

    def _flush(self) -> None:
        self._opened().blobs.write(self._contents.items())
        self._written |= self._contents.keys()
        self._contents, self._size = {}, 0

    def _opened(self) -> Depot:
        if self._depot is None:
            self._depot = Depot.of(self.store)
            self._epoch = self._depot.blobs.epoch()
        return self._depot


def inside(root: str, name: str) -> bytes | None:
    """A path relative to the root; None if it is not in it, or nothing that is captured."""
    if "\0" in name or not root.startswith("/"):
        return None
    top = os.path.normpath(root).rstrip("/") + "/"
    full = os.path.normpath(name if name.startswith("/") else top + name)
    if not full.startswith(top):
        return None
    try:
        path = full[len(top) :].encode()
    except UnicodeEncodeError:
        return None
    if not path or control_in(path) or any(len(part) > 255 for part in path.split(b"/")):
        return None
    return path


# --- edits -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of one file: by which tool, and how it was before, as text.

    `before` is None where there was no file, or where that is not known; `created` distinguishes
    these.
    """

    tool: str
    path: str
    before: str | None
    created: bool
    result: Mapping[str, Json]


def edit_in(result: Json) -> Edit | None:
    """The edit that a tool result describes, if it does."""
    if not isinstance(result, Mapping):
        return None
    path = _text(result, "filePath") or _text(result, "notebook_path")
    if not path:
        return None
    before, created = _text(result, "originalFile"), False
    if _text(result, "updated_file") is not None:
        tool, before = "NotebookEdit", _text(result, "original_file")
    elif isinstance(result.get("edits"), list):
        tool, contents = "MultiEdit", _text(result, "originalFileContents")
        before = before if contents is None else contents
    elif _text(result, "oldString") is not None and _text(result, "newString") is not None:
        tool = "Edit"
    elif result.get("type") in ("create", "update") and _text(result, "content") is not None:
        tool, created = "Write", result["type"] == "create"
    else:
        return None
    return Edit(tool, path, before, created, result)


def edits_in(messages: Iterable[Mapping[str, Json]]) -> Iterator[Edit]:
    """The edits that calls in a conversation ask for, and whose results are no errors.

    Subagents' results do not say what was before.
    """
    asked: dict[str, tuple[str, Json]] = {}
    for message in messages:
        asked |= cc.calls_of([message])
        for block in cc.blocks_of(message, "tool_result"):
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
    """The file behind an edit of these bytes; None where that is not known."""
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
    given = [one for one in edit.result["edits"] if isinstance(one, Mapping)]
    texts = [(_text(one, "old_string") or "", _text(one, "new_string") or "") for one in given]
    return [(*both, one.get("replace_all") is True) for both, one in zip(texts, given, strict=True)]


def _text(value: Mapping[str, Json], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None
