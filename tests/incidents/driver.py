"""What a tool must be able to do to be put through the incidents.

Four calls are needed: `start`, `checkpoint`, `restore` and `stop`. What the agent does to
the files happens inside `call`, for tools that look at each call. All else is an ability
that a tool may have. Where a scenario needs one that a tool lacks, the verdict is "cannot",
with the reason; it is never a pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NoReturn

Token = object
"""A point to go back to, as the tool names it."""


class Cannot(Exception):
    """The tool has no such ability; the text says which."""


class Refused(Exception):
    """The tool will not do this, says why, and has changed nothing."""


class Driver(ABC):
    """One session of a tool. `place` is a folder of its own for what it stores."""

    name = ""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place

    @abstractmethod
    def start(self, root: Path) -> None:
        """Watch over a directory; after `stop`, go on with the same session there.

        `Refused` if the directory is not one to watch over.
        """

    @abstractmethod
    def checkpoint(self) -> Token:
        """Remember the present state."""

    @abstractmethod
    def restore(self, token: Token) -> None:
        """Undo what the agent did since, in the tool's own default way."""

    @abstractmethod
    def stop(self) -> None:
        """Let go of the directory. What is stored stays."""

    def call(self, *paths: str) -> AbstractContextManager[object]:
        """A tool call of the agent: what changes in it is the agent's work.

        With `paths`, the tool has said that it will touch these and nothing else.
        """
        return nullcontext()

    # --- other ways back -----------------------------------------------------------------

    def restore_all(self, token: Token) -> None:
        """Make the whole directory as it was, also what others changed."""
        self.restore(token)

    def restore_merging(self, token: Token) -> None:
        """Undo what the agent did, also inside files that a person changed, and only that."""
        self._cannot("take the agent's lines out of a file")

    def restore_paths(self, token: Token, paths: Collection[str]) -> None:
        """Undo what the agent did to some paths only."""
        self._cannot("restore single files")

    def restore_talk(self, token: Token) -> None:
        """Take back the conversation, and leave the files."""
        self._cannot("take back a conversation")

    def restore_files(self, token: Token) -> None:
        """Take back the files, and leave the conversation."""
        self._cannot("keep files apart from a conversation")

    def undo(self) -> None:
        """Take back the last restore, or what the agent did last."""
        self._cannot("undo a restore")

    def redo(self) -> None:
        """Take back the last undo."""
        self._cannot("redo")

    # --- what it says --------------------------------------------------------------------

    def preview(self, token: Token) -> set[str]:
        """The paths that `restore` would change, changing nothing."""
        self._cannot("say what a restore would do")

    def report(self) -> dict[str, str]:
        """What the last restore did, by path: what happened to it, or why it stays."""
        self._cannot("say what a restore did")

    def warnings(self) -> list[str]:
        """What the tool says about what it did not capture or cannot restore."""
        return []

    # --- more sessions -------------------------------------------------------------------

    def another(self) -> Driver:
        """A second session of the same tool, started in the same directory."""
        self._cannot("run two sessions in one directory")

    def another_at(self, root: Path, place: Path) -> Driver:
        """A second session of the same tool at `root`, which stores what it stores in `place`."""
        other = type(self)(place)
        other.start(root)
        return other

    def fork(self, token: Token | None = None) -> Driver:
        """A new session that begins as this one was at a point, or is now."""
        self._cannot("fork")

    def bring(self, files: Mapping[str, bytes]) -> Token:
        """A state of these files that a stranger made with the same tool, and passed on."""
        self._cannot("take a session from somebody else")

    # --- the conversation ----------------------------------------------------------------

    def say(self, text: str) -> None:
        """Append a message of the user's."""
        self._cannot("keep a conversation")

    def said(self) -> list[str]:
        """The conversation as it stands."""
        self._cannot("keep a conversation")

    def say_again(self) -> None:
        """Take back the last message and what followed, and send it again."""
        self._cannot("keep a conversation")

    def stream(self, parts: Collection[str]) -> None:
        """An answer that comes in parts, as a provider streams it."""
        self._cannot("keep a conversation")

    def ask_for_a_tool(self) -> None:
        """Append a message of the model's that calls a tool, which gets no answer."""
        self._cannot("keep a conversation")

    def derived(self) -> object:
        """What is counted from the conversation: turns, calls that wait."""
        self._cannot("keep a conversation")

    def sessions(self) -> list[str]:
        """The names of all sessions, as a picker shows them."""
        self._cannot("list sessions")

    def write_text_log(self) -> None:
        """Keep the conversation in a text file. Called before `start`."""
        self._cannot("keep a conversation")

    def log_file(self) -> Path:
        """The file of the conversation; may be damaged while the tool is stopped."""
        self._cannot("keep a conversation")

    # --- the store -----------------------------------------------------------------------

    def store_size(self) -> int:
        """The bytes that all it stores takes."""
        return sum(path.lstat().st_size for path in self.place.rglob("*") if path.is_file())

    def collect(self) -> None:
        """Remove what no session needs, now."""
        self._cannot("collect garbage")

    def forget(self) -> None:
        """Delete the session and all it stored, as far as others do not need it."""
        self._cannot("delete a session")

    def low_disk(self) -> AbstractContextManager[object]:
        """Make the tool believe that the disk is nearly full."""
        self._cannot("see how much space is left")

    def budget(self, size: int) -> AbstractContextManager[object]:
        """Allow the store so many bytes."""
        self._cannot("keep to a budget")

    def lose(self, content: bytes) -> None:
        """Take a content out of the store behind the tool's back."""
        self._cannot("say where a content lies")

    def state_file(self) -> Path:
        """A small file of the tool's own about this directory, which a power cut may hit."""
        self._cannot("say where its state lies")

    # --- dying ---------------------------------------------------------------------------

    def kill_checkpoint(self) -> None:
        """Take a checkpoint in another process, and kill that in the middle."""
        self._cannot("be killed in a checkpoint")

    def kill_restore(self, token: Token, step: int) -> bool:
        """Restore in another process, and kill that after so many steps.

        False if it was done before so many steps were taken.
        """
        self._cannot("be killed in a restore")

    def kill_call(self, command: str) -> None:
        """Run a command as a call of the agent in another process, and kill that in it."""
        self._cannot("see calls")

    def _cannot(self, what: str) -> NoReturn:
        raise Cannot(f"{self.name} cannot {what}")
