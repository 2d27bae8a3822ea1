"""One run of a verb: its arguments, its store, and what people call things by."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from ..errors import InvalidId, NotFound
from .nearby import around, here, is_project_of
from .output import Output
from .verbs import Usage
from .wording import short

if TYPE_CHECKING:
    from ..events import Event, Problem, SessionInfo
    from ..session.keywords import SessionOptions
    from ..session.session import Session
    from ..settings import Settings
    from ..stores.base import Store
    from ..telemetry import Signal

SHORTEST = 4
"""Characters of an id below which a prefix is not looked for."""


_FINISHED = {"rewound": "a rewind", "undone": "an undo", "redone": "a redo"}


BEGINNING = frozenset({"chat", "hooks", "import", "record"})
"""The verbs that may begin a store where `--store` names none."""


class Call:
    """What a verb gets. The store is opened when it is first asked for, and closed after."""

    def __init__(self, verb: str, arguments: Namespace, out: Output) -> None:
        self.verb = verb
        self.arguments = arguments
        self.out = out
        self.finished: Event | None = None
        """What a crash had cut short and this call finished, if it was of the session it opened."""
        self._open = ExitStack()

    @cached_property
    def settings(self) -> Settings:
        """The settings, as flags, environment and files have them."""
        from ..settings import load

        found = load({"store": getattr(self.arguments, "store", None)})
        if found.text("color") == "never":
            self.out.in_color = False
        for warning in found.warnings:
            self.out.note(f"backtrail: {warning}")
        return found

    @cached_property
    def store(self) -> Store:
        """The store of `--store`, else of the settings, else the default one."""
        from ..stores.opening import default_url, open_store
        from ..telemetry import listen

        self.settings.apply()
        named = getattr(self.arguments, "store", None) is not None
        url = self.settings.store
        stop = listen(self._note_folder) if url not in (None, default_url()) else None
        try:
            return self._open.enter_context(
                open_store(
                    url,
                    on_damage=lambda problem: self._damaged(),
                    # A slip of the pen is no wish for a new store.
                    create=self.verb in BEGINNING or not named,
                )
            )
        finally:
            if stop is not None:
                stop()

    def _note_folder(self, signal: Signal) -> None:
        if signal.name == "store.folder":
            self.out.note(f"backtrail: made the folder {signal.metadata['folder']} for the store")

    def _damaged(self) -> None:
        if not self.__dict__.get("_reported"):
            self.__dict__["_reported"] = True
            self.out.note("backtrail: parts of the log are damaged; `backtrail verify` shows more")

    # --- sessions ------------------------------------------------------------------------

    def info(self, name: str | None = None) -> SessionInfo:
        """A session to read: as `find`, and where a rewind of its files is unfinished, that."""
        from ..files.restore.unfinished import at_opening

        info = self.find(name)
        self._say(at_opening(self.store, info.id, files=False))
        return info

    def find(self, name: str | None = None) -> SessionInfo:
        """A session by id, unique prefix, key or title; None or `latest`: the latest here."""
        if name is None or name == "latest":
            return self._here()
        try:
            return self.store.info(name)
        except (NotFound, InvalidId):
            return self._named(name)

    def _here(self) -> SessionInfo:
        """The latest session of this folder, else of the nearest one above that has any."""
        folder, found = around(self.store)
        if found is not None:
            if folder != here():
                self._check_meant(folder, found)
                self.out.note(f"session of {folder}")
            return found
        raise NotFound(
            f"no session in {folder} or above: `backtrail ls --all` lists those of other folders, "
            "`backtrail --help` shows how to begin one"
        )

    def _check_meant(self, folder: Path, found: SessionInfo) -> None:
        """An error where a verb would act unasked, and not on the project that this folder is in.

        A person in a folder of a project still means the project. One in the home or in another
        repository does not mean what was once recorded above it.
        """
        given = self.arguments
        unasked = getattr(given, "yes", False) and not getattr(given, "dry_run", False)
        if (unasked or self.verb == "chat") and not is_project_of(folder, here()):
            raise NotFound(
                f"no session in {here()}, and the nearest above it, of {folder}, is taken only if "
                f"it is named: {short(found.id)}"
            )

    def _named(self, name: str) -> SessionInfo:
        """A session by key, prefix of its id, or title."""
        found = self.store.sessions(key=name, limit=1)
        if not found:
            known = self.store.sessions()
            if len(name) >= SHORTEST:
                found = [info for info in known if info.id.startswith(name)]
            found = found or [i for i in known if (i.title or "").casefold() == name.casefold()]
            found = found or [info for info in known if self._is_shown_as(info, name)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise NotFound(
                f"no session `{name}`{self._too_short(name)}: `backtrail ls --all` lists them"
            )
        listed = "".join(f"\n  {info.id}  {info.title or ''}".rstrip() for info in found[:20])
        raise NotFound(f"`{name}` may be any of {len(found)} sessions, say more:{listed}")

    def _is_shown_as(self, info: SessionInfo, name: str) -> bool:
        """Whether `ls` shows a session by this name, which it may cut short."""
        from ..session.titles import FORK, title_of

        wanted = name.removeprefix(f"{FORK} ").casefold()
        if not wanted.removesuffix("…"):
            return False
        shown = title_of(self.store, info).removeprefix(f"{FORK} ").casefold()
        return shown.startswith(wanted[:-1]) if wanted.endswith("…") else shown == wanted

    def _too_short(self, name: str) -> str:
        """Why a beginning of an id did not find it."""
        if len(name) >= SHORTEST or not any(i.id.startswith(name) for i in self.store.sessions()):
            return ""
        return f" (the beginning of an id has {SHORTEST} characters at least)"

    def session(
        self, name: str | None = None, *, files: bool | Literal["background", "force"] = True
    ) -> Session:
        """The same, opened; closed with the call. What a crash cut short is finished first.

        A preview finishes nothing, and says what is unfinished itself.
        """
        from ..session.parts import Parts
        from ..session.session import Session

        info = self.find(name)
        if getattr(self.arguments, "dry_run", False):
            options: SessionOptions = {"files": files, "progress": self.reading()}
            return self.keep(Session(Parts(self.store, info.id, options)))
        with self.finishing(info.id):
            session = Session.resume(self.store, info.id, files=files, progress=self.reading())
        self._say(session.problems)
        return self.keep(session)

    @contextmanager
    def finishing(self, session_id: str) -> Iterator[None]:
        """Say of a session which operation that a crash cut short is finished meanwhile."""
        from ..files.restore.unfinished import is_marked

        if not is_marked(self.store):
            yield
            return
        before = _last_operation(self.store, session_id)
        yield
        last = _last_operation(self.store, session_id)
        if last is not None and (before is None or last.seq > before.seq):
            self.finished = last
            self.out.note(f"backtrail: finished {_FINISHED[last.kind]} that was cut short")

    def _say(self, problems: list[Problem]) -> None:
        for problem in problems:
            self.out.note(f"backtrail: {problem.detail}")

    def reading(self) -> Callable[[int], None]:
        """A count of the files that are read, for a session that is kept as long as the call."""
        return self._open.enter_context(self.out.progress("reading files"))

    def keep(self, session: Session) -> Session:
        """A session that the verb began itself, to be closed with the call."""
        return self._open.enter_context(session)

    @property
    def paths(self) -> list[str]:
        """The paths behind `--`, in full: people mean them from where they are."""
        return [str(Path(path).absolute()) for path in self.arguments.rest]

    # --- points --------------------------------------------------------------------------

    def point(self, session: Session, name: str) -> Event:
        """A point by seq, id or unique prefix, label, `prompt 2`, `@-1` (the last prompt) …"""
        from ..session.points import find_event, find_turn

        number = name.removeprefix("prompt ")
        if number != name and number.isascii() and number.isdecimal():
            # As it is printed.
            seq = find_turn(self.store, session.id, int(number))
            return find_event(self.store, session.id, seq)
        if name.startswith("@-") and name[2:].isdecimal():
            return self._prompt(session, int(name[2:]))
        if name.isascii() and name.isdecimal():
            try:
                return find_event(self.store, session.id, int(name))
            except NotFound:
                pass
        try:
            return find_event(self.store, session.id, name)
        except NotFound:
            number = name.removeprefix("event ")
            if number != name and number.isascii() and number.isdecimal():
                # As it is printed.
                return find_event(self.store, session.id, int(number))
            return self._prefixed(session, name)

    def _prompt(self, session: Session, back: int) -> Event:
        """The prompt that is `back` from the end of the history."""
        said = (e for e in session.store.walk(session.id) if e.kind == "user_message")
        count = 0
        for count, event in enumerate(said, 1):
            if count == back:
                return event
        raise NotFound(f"session `{session.id}` has {count} prompts, so no `@-{back}`")

    def _prefixed(self, session: Session, name: str) -> Event:
        found: list[Event] = []
        if len(name) >= SHORTEST:
            found = [event for event in session.events() if event.id.startswith(name)]
        if len(found) == 1:
            return found[0]
        if found:
            listed = "".join(f"\n  {e.seq}  {e.id}  {e.kind}" for e in found[:20])
            raise NotFound(f"`{name}` may be any of {len(found)} events, say more:{listed}")
        raise NotFound(
            f"session `{session.id}` has no point `{name}`: use the number of an event "
            "(`backtrail log`), the label of a checkpoint, or `@-1` for your last prompt"
        )

    # --- asking --------------------------------------------------------------------------

    def confirm(self, question: str) -> bool:
        """Ask; `--yes` says yes. Without a terminal and `--yes`: an error that names it."""
        if getattr(self.arguments, "yes", False):
            return True
        if not self.out.can_ask:
            raise Usage(
                f"`backtrail {self.verb}` asks before it acts, and there is no terminal to ask on: "
                "add `--yes`"
            )
        return self.out.ask(f"{question} [y/N]").lower() in ("y", "yes")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        store = self.__dict__.get("store")
        self._open.close()
        if store is not None and self.verb not in ("gc", "hook"):
            from ..stores import due

            due.start(store, self.settings.text("retention"), self.settings.unasked())


def _last_operation(store: Store, session_id: str) -> Event | None:
    return next(store.read(session_id, reverse=True, kinds=tuple(_FINISHED)), None)
