"""Purging: really erasing a session, a path or a text, wherever it is.

Deleting hides and collecting frees; a purge leaves nothing to be read: not in logs, not in
forks, not in contents, not in the search index, not in free pages. What is left are
tombstones: events that say they were purged, and the digests of contents that are gone.
A digest and the names of files stay, so a reader that knows a content sees that it was there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ... import telemetry
from ...errors import Damaged, InvalidData, NotFound, Unsafe
from ...events import MAIN_LOG, Json, Problem, SessionInfo, encode_data
from ...stores.base import Store
from ...stores.opening import store_at
from ...stores.wrapper import store_name, store_names
from ..changes.brackets import is_dead
from ..depot import Depot, has_contents, opened
from ..names import inside, shown
from ..trees import Entry, Get, look_up, parse_tree
from .blobs import Reference
from .collect import planned
from .garbage import drop, mark_and_sweep, note_erased, reach

_REPLACED = "[purged]"


@dataclass(frozen=True, slots=True)
class Purged:
    """What was erased: the bodies of `events` in `sessions`, and `blobs`.

    `present` are files that still hold it in a workspace: the next scan captures them
    again, so delete them and purge again. `problems` are things that could not be read.
    """

    sessions: tuple[str, ...] = ()
    events: int = 0
    blobs: int = 0
    present: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The outcome as JSON."""
        row: dict[str, Json] = msgspec.to_builtins(self)
        return row


def purge(
    store: Store | str,
    session_id: str | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    text: str | None = None,
) -> Purged:
    """Erase a session, or what stands at a path, or all that holds a text, for good.

    - A session goes with its logs, and with the contents that nothing else relies on. Its
      events go from its forks too. What it inherited and others still read stays.
    - A `path`: every content that was captured there, also where it is stored for another
      path's sake. A relative one is in the workspace of the session, or in every workspace;
      an absolute one is one file, in the sessions whose workspace has it. What sessions of
      other workspaces captured too is kept, and reported as a problem.
    - A `text`: every event, record, note and content that holds it, in the session or in all.

    A rewind that needs such a content afterwards says that it is gone. What still waits in
    the buffer of an open session is not seen: flush or close it first.
    """
    if not isinstance(store, Store):
        with store_at(store, create=False) as place:
            return purge(place, session_id, path=path, text=text)
    if (path is not None and text is not None) or (session_id is path is text is None):
        raise InvalidData("purge takes a session, a `path` or a `text`")
    if text is not None and not (isinstance(text, str) and text):
        raise InvalidData(f"the text to purge is some text, not {text!r}")
    what = "text" if text is not None else "path" if path is not None else "session"
    with telemetry.span("store.purge", store=type(store).__name__, what=what) as span:
        purging = _Purging(store)
        if text is not None:
            done = purging.text(text, session_id)
        elif path is not None:
            done = purging.path(path, session_id)
        else:
            assert session_id is not None
            done = purging.session(session_id)
        span.measurements.update(events=done.events, blobs=done.blobs)
        span.metadata["sessions"] = list(done.sessions)
        return done


def sessions_with(
    store: Store, path: str | os.PathLike[str], session_id: str | None = None
) -> list[str]:
    """The sessions that captured something at a path, as `purge` would find them."""
    purging = _Purging(store)
    with purging._contents() as depot:
        if depot is not None:
            purging.captured_at(depot, path, session_id)
    return list(purging.sessions)


@dataclass(slots=True)
class _Purging:
    """One purge. Repeating one that failed in between finishes it."""

    store: Store
    sessions: dict[str, None] = field(default_factory=dict)
    events: int = 0
    blobs: int = 0
    present: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    roots: dict[str, str | None] = field(default_factory=dict)

    def _done(self) -> Purged:
        return Purged(
            tuple(self.sessions), self.events, self.blobs, tuple(self.present),
            tuple(self.problems),
        )  # fmt: skip

    def _report(self, digest: bytes, error: Exception) -> None:
        if isinstance(error, Damaged):
            self.problems.append(Problem("", "files", "damaged", str(error)))

    # --- a session -----------------------------------------------------------------------

    def session(self, session_id: str) -> Purged:
        """Bodies first, then contents, and the session last: so this can be repeated."""
        store = self.store
        with store.lease(session_id):
            info = store.info(session_id)
            _clear_record(store, info)
            for log in store.logs(session_id):
                newest = next(store.read(session_id, log=log, reverse=True, limit=1), None)
                first = _inherited(store, info) if log == MAIN_LOG else 0
                seqs = range(first + 1, newest.seq + 1 if newest else 0)
                store.purge(session_id, seqs, log=log)
                self.events += len(seqs)
            self.sessions[session_id] = None
            with self._contents() as depot:
                if depot is not None:
                    self._let_go(depot, session_id)
            store.delete(session_id)
        return self._done()

    def _let_go(self, depot: Depot, session_id: str) -> None:
        """Erase the contents that only this session relied on."""
        blobs, name = depot.blobs, store_name(self.store)
        references = list(self._references(depot, session_id))
        roots = {reference.root for reference in references}
        held = set(reach(blobs.get, roots, self._report))
        # What a killed call did is not recorded any more.
        left = [c.id for c in depot.catalogue.lines.calls() if c.owner == session_id and is_dead(c)]
        depot.catalogue.lines.give_up(left)
        drop(blobs, references)
        try:
            done = mark_and_sweep(
                blobs, depot.catalogue.lines.trees(), planned(depot), only=held, grace=0
            )
            if done.held:
                # Some of it may be held by a tree that cannot be read.
                self.problems += [
                    Problem(session_id, "files", "not erased", str(error))
                    for error in done.problems.values() if isinstance(error, Damaged)
                ]  # fmt: skip
            blobs.remove(())
        except BaseException:
            blobs.write([], [Reference(name, session_id, root) for root in roots])
            raise
        self.blobs = done.blobs

    # --- a path --------------------------------------------------------------------------

    def path(self, path: str | os.PathLike[str], session_id: str | None) -> Purged:
        """Every content that was captured at a path, but what other projects have too."""
        with self._contents() as depot:
            if depot is None:
                return self._done()
            found, roots = self.captured_at(depot, path, session_id)
            found -= self._shared(depot, found, roots)
            self._erase(depot, found, roots)
        return self._done()

    def captured_at(
        self, depot: Depot, path: str | os.PathLike[str], session_id: str | None
    ) -> tuple[set[bytes], set[str]]:
        """The contents at a path, and the roots it may be in; `sessions` are those that have it."""
        if session_id is not None:
            self.store.info(session_id)
        where: dict[str, bytes | None] = {}
        deleted: list[Reference] = []
        found: set[bytes] = set()
        roots: set[str] = set()
        for reference in self._references(depot, session_id):
            log = reference.log
            if log not in where:
                where[log] = self._inside(log, path, strict=session_id is not None)
                if where[log] is not None:
                    roots.add(self._root(log) or "")
            if where[log] is None and self._root(log) is None:
                deleted.append(reference)
            elif (at := where[log]) is not None:
                digests = self._captured(depot.blobs.get, reference.root, at)
                if digests:
                    self.sessions[log] = None
                found |= digests
        for reference in deleted:
            # Whose they were is not known any more, and no session would miss them.
            for at in {at for at in where.values() if at is not None}:
                found |= self._captured(depot.blobs.get, reference.root, at)
        return found, roots

    def _root(self, log: str) -> str | None:
        """The root of a session; None if it has none, or was deleted."""
        if log not in self.roots:
            try:
                self.roots[log] = self.store.info(log).root
            except NotFound:
                self.roots[log] = None
        return self.roots[log]

    def _shared(self, depot: Depot, found: set[bytes], roots: set[str]) -> set[bytes]:
        """Those of these contents that sessions of other roots captured, too; and report it."""
        others: dict[str, list[bytes]] = {}
        for reference in self._references(depot, None):
            root = self._root(reference.log)
            if root is not None and root not in roots:
                others.setdefault(root, []).append(reference.root)
        shared: set[bytes] = set()
        for root, trees in others.items() if found else ():
            held = found.intersection(reach(depot.blobs.get, trees, self._report))
            if held:
                detail = f"{root} has the same content, so it is kept: purge it there, too"
                self.problems.append(Problem("", "files", "not erased", detail, count=len(held)))
            shared |= held
        return shared

    def _inside(self, log: str, path: str | os.PathLike[str], *, strict: bool) -> bytes | None:
        """The path in a session's trees; None where it does not concern the session."""
        cwd = self._root(log)
        absolute = Path(path).is_absolute()
        if absolute and cwd is None:
            return None
        try:
            named = inside(os.fsencode(cwd) if cwd else b"/", path)
        except Unsafe:
            if strict or not absolute:
                raise
            return None
        if not named:
            raise InvalidData("this path is the whole workspace: purge the session")
        return named

    def _captured(self, get: Get, root: bytes, path: bytes) -> set[bytes]:
        """The contents at a path of a tree, and below it."""
        try:
            entry = look_up(get, root, path)
        except (NotFound, Damaged) as error:
            self._report(root, error)
            return set()
        found: set[bytes] = set()
        todo = [entry] if entry is not None else []
        while todo:
            entry = todo.pop()
            if entry.kind == "file":
                found.add(entry.value)
            elif entry.kind == "directory":
                todo.extend(self._below(get, entry))
        return found

    def _below(self, get: Get, entry: Entry) -> list[Entry]:
        try:
            return list(parse_tree(get(entry.value)).values())
        except (NotFound, Damaged) as error:
            self._report(entry.value, error)
            return []

    # --- a text --------------------------------------------------------------------------

    def text(self, text: str, session_id: str | None) -> Purged:
        """Everything that holds a text."""
        store, forms = self.store, _forms(text)

        def held(value: Json) -> bool:
            encoded = encode_data({"": value})
            return any(form in encoded for form in forms)

        infos = store.sessions() if session_id is None else [store.info(session_id)]
        notes = {info.cwd: store.memory(info.cwd).read() for info in infos if info.cwd}
        for info in infos:
            _scrub_record(store, info, held)
            for log in store.logs(info.id):
                events = store.read(info.id, log=log)
                seqs = [event.seq for event in events if held(event.data)]
                if seqs:
                    store.purge(info.id, seqs, log=log)
                    self.events += len(seqs)
                    self.sessions[info.id] = None
        for cwd, note in notes.items():
            if text in note:
                store.memory(cwd).write(note.replace(text, _REPLACED))
        if infos:
            # Empties what an earlier purge, a record or a note may have left traces in.
            store.purge(infos[0].id, ())
        with self._contents() as depot:
            if depot is not None:
                self._erase(depot, self._blobs_with(depot, forms, session_id))
        return self._done()

    def _blobs_with(
        self, depot: Depot, forms: Collection[bytes], session_id: str | None
    ) -> set[bytes]:
        blobs = depot.blobs
        wanted: Iterator[bytes] = blobs.digests()
        if session_id is not None:
            roots = [reference.root for reference in self._references(depot, session_id)]
            wanted = iter(set(reach(blobs.get, roots, lambda digest, error: None)))
        found: set[bytes] = set()
        for digest in wanted:
            try:
                content = blobs.get(digest)
                if any(form in content for form in forms):
                    found.add(digest)
            except (NotFound, Damaged) as error:
                self._report(digest, error)
        return found

    # --- contents ------------------------------------------------------------------------

    @contextmanager
    def _contents(self) -> Iterator[Depot | None]:
        if not has_contents(self.store):
            yield None
            return
        with opened(self.store) as depot:
            yield depot

    def _references(self, depot: Depot, session_id: str | None) -> Iterator[Reference]:
        """What the session, or all sessions of the store, rely on."""
        names = store_names(self.store)
        for reference in depot.blobs.references():
            if reference.store in names and session_id in (None, reference.log):
                yield reference

    def _erase(
        self, depot: Depot, digests: Collection[bytes], roots: set[str] | None = None
    ) -> None:
        """Remove contents, whatever relies on them, and leave tombstones.

        Files that still hold them are listed for these `roots`, None for all.
        """
        there = depot.blobs.has(digests)
        self.present = _on_disk(depot, there, roots)
        note_erased(depot.folder, there)
        # Also where there are none: an earlier purge may have left traces.
        depot.blobs.remove(there)
        self.blobs = len(there)


def _on_disk(depot: Depot, digests: Collection[bytes], roots: set[str] | None) -> list[str]:
    """The files of watched directories that hold these contents, as far as is known."""
    found: list[str] = []
    for place in depot.catalogue.places():
        if roots is not None and os.fsdecode(place.path) not in roots:
            continue
        tree = depot.catalogue.lines.tree(place.n)
        todo = [(place.path, tree)] if tree is not None and digests else []
        while todo:
            above, tree = todo.pop()
            try:
                entries = parse_tree(depot.blobs.get(tree)).items()
            except (NotFound, Damaged):
                continue
            for name, entry in entries:
                path = above + b"/" + name
                if entry.kind == "directory":
                    todo.append((path, entry.value))
                elif entry.kind == "file" and entry.value in digests and os.path.lexists(path):
                    found.append(shown(path))
    return sorted(found)


# --- records and events ------------------------------------------------------------------


def _clear_record(store: Store, info: SessionInfo) -> None:
    """Leave nothing in a record but what it takes to delete it."""
    store.update(
        info.id, key=None, title=None, cwd=None, model=None, agent_name=None,
        tags=dict.fromkeys(info.tags, False), metadata=dict.fromkeys(info.metadata),
    )  # fmt: skip


def _scrub_record(store: Store, info: SessionInfo, held: Callable[[Json], bool]) -> None:
    """Take out of a record whatever holds the text."""
    names = ("key", "title", "model", "agent_name")
    changes: dict[str, Json] = {name: None for name in names if held(getattr(info, name))}
    if tags := {tag: False for tag in info.tags if held(tag)}:
        changes["tags"] = tags
    if keys := [key for key, value in info.metadata.items() if held({key: value})]:
        changes["metadata"] = dict.fromkeys(keys)
    if changes:
        store.update(info.id, **changes)


def _inherited(store: Store, info: SessionInfo) -> int:
    """Up to which event another session reads what this fork did not write itself."""
    if not info.fork_seq:
        return 0
    shared = 0
    for other in store.sessions():
        if other.id == info.id:
            continue
        ours = store.read(info.id, until=info.fork_seq)
        for mine, theirs in zip(ours, store.read(other.id), strict=False):
            if mine != theirs:
                break
            shared = max(shared, mine.seq)
        if shared == info.fork_seq:
            break
    return shared


def _forms(text: str) -> set[bytes]:
    """How a text may stand in a value: as it is, or in JSON within JSON, escaped."""
    encode_data({"": text})
    forms = {text}
    for _ in range(3):
        for form in list(forms):
            # One encoder leaves what is not ASCII alone, others do not.
            forms.add(json.dumps(form)[1:-1])
            forms.add(json.dumps(form, ensure_ascii=False)[1:-1])
    return {form.encode() for form in forms}
