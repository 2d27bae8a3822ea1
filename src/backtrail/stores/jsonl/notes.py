"""Project notes as Markdown files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ...errors import Damaged
from ..disk.fs import failed, make_directory, read_file, refuse_links, replace_file
from ..notes import Memory, check_note, note_name


class FileMemory(Memory):
    """A note as a Markdown file of its own, while its store is open."""

    def __init__(self, check_open: Callable[[], None], folder: Path, cwd: str) -> None:
        self._check_open = check_open
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", os.path.basename(cwd))[:40] or "root"
        self._path = folder / f"{stem}-{note_name(cwd)[:16]}.md"

    def read(self) -> str:
        self._check_open()
        refuse_links(self._path.parent)
        try:
            return read_file(self._path).decode()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            raise Damaged(f"the note {self._path} is not UTF-8: {error}") from error
        except OSError as error:
            raise failed(error, "read the project's note") from error

    def write(self, text: str) -> None:
        self._check_open()
        content = check_note(text).encode()
        refuse_links(self._path.parent)
        try:
            make_directory(self._path.parent)
            replace_file(self._path, content)
        except OSError as error:
            raise failed(error, "write the project's note") from error
