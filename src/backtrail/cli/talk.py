"""The conversation on a terminal: prompts, turns, and commands that begin with a slash."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BacktrailError, NotFound
from ..session.titles import title_of
from .advice import hint, point_name
from .nearby import here, is_offered
from .numbers import Numbers
from .output import clean
from .picker import pick
from .screen import Screen, ending
from .verbs import Usage
from .wording import ago, brief, plural, short

if TYPE_CHECKING:
    from ..session.session import Session
    from ..session.turns import Result
    from .call import Call

HISTORY = 1000
"""Prompts that are remembered for the arrow keys."""

COMMANDS = {
    "rewind": "go back to before one of your prompts: conversation, files or both",
    "undo": "take back the last turn or rewind",
    "redo": "do again what was undone",
    "fork": "[TITLE] go on in a copy of this session; the original stays as it is",
    "checkpoint": "[LABEL] mark this point, to go back to by `rewind LABEL`",
    "diff": "what the last turn, and others since, did to the files",
    "sessions": "go on with another session of this folder",
    "help": "this list",
    "quit": "leave (Ctrl-D, or Ctrl-C twice)",
}
"""What may be said with a slash in front."""


class Chat:
    """A chat: one session at a time, and the agent that answers."""

    def __init__(
        self,
        call: Call,
        screen: Screen,
        begin: Callable[[], Session],
        resume: Callable[[str], Session],
        session: Session | None,
    ) -> None:
        self.call = call
        self.screen = screen
        self._begin = begin
        self._resume = resume
        self._open = ExitStack()
        self.session: Session | None = None
        self._printed = 0
        self._draft = ""
        if session is not None:
            self._switch(session)

    def close(self) -> None:
        """Let go of the sessions."""
        self._open.close()

    # --- turns ---------------------------------------------------------------------------

    def say(self, prompt: str, *, quiet: bool = False) -> Result:
        """One turn, shown as it runs unless it is to be `quiet`."""
        from ..events import new_id

        if self.session is None:
            self._switch(self._begin())
        session = self._needed()
        id = new_id()
        try:
            for item in session.stream(prompt, id=id):
                if not quiet:
                    self.screen.show(item)
        finally:
            self._print_problems(session)
        # It is over: with its id, this only reads how it went.
        return session.send(prompt, id=id, retry="never")

    def _print_problems(self, session: Session) -> None:
        for problem in session.problems[self._printed :]:
            self.call.out.note(f"{problem.what}: {problem.detail}")
        self._printed = len(session.problems)

    def _switch(self, session: Session) -> None:
        """Go on in another session. The old one is closed last: a fork may live in its store."""
        self._open.enter_context(session)
        self.session, self._printed = session, 0

    def _needed(self) -> Session:
        if self.session is None:
            raise NotFound("nothing was said yet in this chat")
        return self.session

    # --- the loop ------------------------------------------------------------------------

    def talk(self, prompt: str | None) -> int:
        """Read, answer, and again, until the person leaves."""
        interrupts = 0
        if prompt is not None:
            self.call.out.line(f"> {prompt}")
        while interrupts < 2:
            try:
                text = prompt if prompt is not None else self._read()
                prompt = None
                if text.strip():
                    interrupts = 0
                    if not self._respond(text.strip()):
                        return 0
            except EOFError:
                self.call.out.line()
                return 0
            except KeyboardInterrupt:
                prompt = None
                interrupts += 1
                if not self.screen.end():
                    self.call.out.line()
                if interrupts < 2:
                    self.call.out.note("interrupted; once more, or /quit, leaves")
        return 0

    def _respond(self, text: str) -> bool:
        """Run a command or a turn; False when the person leaves."""
        try:
            if text.startswith("/"):
                return self._command(text)
            result = self.say(text)
            if result.error:
                self.screen.line(f"the turn ended with an error: {result.error}", "red")
            if ending(result):
                self.screen.line(ending(result), "dim")
        except BacktrailError as error:
            self.screen.end()
            self.call.out.note(f"backtrail: {error}")
        return True

    def _read(self) -> str:
        """What the person types; a backslash at the end goes on in the next line."""
        import readline

        draft, self._draft = self._draft, ""
        readline.set_startup_hook(lambda: readline.insert_text(draft) if draft else None)
        sys.stderr.flush()
        try:
            lines = [input(self._mark())]
            readline.set_startup_hook(None)
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(input("  "))
        finally:
            readline.set_startup_hook(None)
        return "\n".join(lines)

    def _mark(self) -> str:
        # Between \x01 and \x02: what takes no room on the line.
        return "\x01\x1b[1m\x02>\x01\x1b[0m\x02 " if self.call.out.in_color else "> "

    # --- commands ------------------------------------------------------------------------

    def _command(self, text: str) -> bool:
        name, _, rest = text[1:].partition(" ")
        rest = _unquoted(rest.strip())
        if name in ("quit", "exit", "q"):
            return False
        if name not in COMMANDS:
            raise Usage(f"no command `/{brief(name)}`; /help lists them")
        getattr(self, f"_{name}")(rest)
        return True

    def _help(self, _: str) -> None:
        for name, about in COMMANDS.items():
            self.call.out.line(f"/{name:<11} {about}")

    def _rewind(self, point: str) -> None:
        from ..events.messages import speech_of
        from .rewind import Wish, go_back, picked

        session = self._needed()
        if point:
            wish: Wish | None = Wish(self.call.point(session, point))
        else:
            wish = picked(self.call, session)
        if wish is None:
            return
        before = session.info().message_count
        go_back(self.call, session, wish)
        if wish.before and session.info().message_count != before:
            # Most people want to say it again, a little better.
            self._draft = clean(speech_of(wish.target.data.get("message")))

    def _undo(self, _: str) -> None:
        from .undo import take_back

        take_back(self.call, self._needed(), "undo")

    def _redo(self, _: str) -> None:
        from .undo import take_back

        take_back(self.call, self._needed(), "redo")

    def _fork(self, name: str) -> None:
        session = self._needed()
        made = session.fork(title=name) if name else session.fork()
        self.call.out.line(f"now in the fork {made.id}; the original is {session.id}")
        self._switch(made)

    def _checkpoint(self, label: str) -> None:
        session = self._needed()
        point = session.checkpoint(label or None)
        named = f' "{brief(label)}"' if label else ""
        back = hint(self.call, "rewind", point_name(self.call, session, point))
        place = Numbers(session.store, session.id).place(point.seq)
        self.call.out.line(f"checkpoint{named} at {place}: {back}")

    def _diff(self, _: str) -> None:
        from .diff import summary
        from .hunks import print_diff

        session = self._needed()
        last = self.call.point(session, "@-1")
        found = session.diff(last)
        print_diff(self.call.out, found.files)
        self.call.out.line(summary(found.files) if found else "no file changed", "dim")

    def _sessions(self, _: str) -> None:
        found = pick_session(self.call)
        if found is not None and (self.session is None or found != self.session.id):
            self._switch(self._resume(found))
            self.call.out.line(f"now in session {found}")


def _unquoted(text: str) -> str:
    """What a person put in quotes, as in a shell."""
    is_quoted = len(text) > 1 and text[0] in "\"'" and text[0] == text[-1]
    return text[1:-1] if is_quoted else text


def pick_session(call: Call) -> str | None:
    """The session of this folder that a person picks, by id; None if they leave."""
    infos = [i for i in call.store.sessions(cwd=here()) if is_offered(call.store, i)]
    if not infos:
        raise NotFound(f"no session in {here()}")
    rows = [
        f"{ago(info.updated_at):>10}  {plural(info.message_count, 'message'):>12}  "
        f"{short(info.id)}  {title_of(call.store, info)}"
        for info in infos
    ]
    at = pick("Which session?", rows, at=0, in_color=call.out.in_color)
    return None if at is None else infos[at].id


class Memory:
    """The prompts of earlier chats, for the arrow keys; `None` remembers nothing."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def __enter__(self) -> None:
        import readline

        readline.set_history_length(HISTORY)
        if self._file is not None and self._file.is_file():
            try:
                readline.read_history_file(self._file)
            except OSError:
                # It is only a comfort: without it the chat begins all the same.
                readline.clear_history()

    def __exit__(self, *_: object) -> None:
        import readline

        if self._file is None:
            return
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            readline.write_history_file(self._file)
        except OSError:
            # As above: what was said is in the session, not here.
            return
