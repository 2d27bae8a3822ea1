"""Where hooks keep their small files: beside the store, else with the user's state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..._startup import folders
from ..._startup.hashing import sha256

if TYPE_CHECKING:
    from ...stores.base import Store

_FOLDER = "hooks"


def folder_of(store: Store) -> Path:
    """The folder for what hooks note about sessions of a store."""
    from ...stores.disk.fs import make_directory, refuse_links

    while store.contents is None and hasattr(store, "inner"):
        store = store.inner
    if store.contents is not None:
        folder = Path(store.contents) / _FOLDER
        refuse_links(store.contents, folder)
    else:
        name = sha256(f"{store.url}#{store.scope}".encode()).hexdigest()[:16]
        folder = state_folder() / name
    make_directory(folder)
    return folder


def state_folder() -> Path:
    """The folder for what hooks note where no store can be had."""
    return Path(folders.state_folder(), _FOLDER)


def append_line(path: Path, line: bytes) -> None:
    """Add a line in one write, so that lines of several processes stay whole."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, line.replace(b"\n", b" ") + b"\n")
    finally:
        os.close(fd)
