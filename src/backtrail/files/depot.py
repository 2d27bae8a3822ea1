"""Where a store keeps what it knows about files: contents, the catalogue, indexes, locks.

For a store in files this is a folder beside its logs, or the one that `blobs=` names, which
several stores may share. Contents alone may be elsewhere, at a URL of the entry-point group
`backtrail.blobs`. For a store in memory it is a temporary folder that goes when the
last session closes. A store of another package that names no place has one in the user's
data folder. Sessions of one process share what is open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from .._startup.folders import state_folder, user_folder
from .._startup.hashing import sha256
from .._startup.loading import installed
from ..errors import AlreadyExists, NotFound, Unsupported
from ..events import NewEvent, SessionInfo
from ..stores.base import Store
from ..stores.disk.fs import make_directory, mark, refuse_links
from ..stores.wrapper import unwrapped
from .changes.catalogue import Catalogue
from .contents.blobs import Blobs
from .contents.sqlite import open_sqlite_blobs
from .workspace.roots import refuse_store
from .workspace.verdicts import OwnPlaces
from .workspace.workspace import Workspace

Opener = Callable[[str], Blobs]
"""What an entry point of `backtrail.blobs` is: it takes what stands behind `scheme:`."""

_lock = threading.Lock()
_open: dict[tuple[str, str], Depot] = {}
_temporary: WeakKeyDictionary[Store, tuple[str, int]] = WeakKeyDictionary()
"""The folder of each store in memory, and the process that made it."""


def open_blobs(url: str) -> Blobs:
    """The contents at a URL: `sqlite:///PATH`, or a scheme that another package registers."""
    scheme, _, address = url.partition(":")
    # Our own need no asking for entry points, which costs more than opening them.
    opener: Opener | None = (
        open_sqlite_blobs if scheme == "sqlite" else installed("backtrail.blobs", scheme)
    )
    if opener is None:
        raise Unsupported(
            f"no contents for `{scheme}:` are installed; this version has sqlite:, postgresql:, "
            "s3:, and folders"
        )
    return opener(address)


class Depot:
    """The contents and the catalogue in one folder. `close` it as often as it was opened."""

    def __init__(
        self, folder: Path, place: tuple[str, str], blobs: Callable[[], Blobs], *,
        goes_with: int | None,
    ) -> None:  # fmt: skip
        refuse_links(folder, folder / "blobs.db", folder / "catalogue.db", folder / "hooks")
        make_directory(folder)
        mark(folder)
        self.folder = folder
        self._place = place
        self.blobs = blobs()
        self.catalogue = Catalogue(folder / "catalogue.db")
        self._goes_with = goes_with
        self._users = 0

    @classmethod
    def of(cls, store: Store) -> Depot:
        """The depot of a store; `Unsupported` if it has none."""
        folder, goes_with = _folder_of(store)
        url = unwrapped(store).contents_url
        place = str(folder), f"{url}#{store.scope}" if is_shared(store) else url
        with _lock:
            depot = _open.get(place)
            if depot is None:
                blobs = partial(_blobs_of, unwrapped(store), folder, url)
                depot = _open[place] = cls(folder, place, blobs, goes_with=goes_with)
            depot._users += 1
        # Not a method of the depot: that would keep it, and not know that it is closed.
        unwrapped(store).relies_on = partial(_flush, place)
        return depot

    def workspace(
        self, root: str | os.PathLike[str], store: Store,
        progress: Callable[[int], None] | None = None,
    ) -> Workspace:  # fmt: skip
        """The workspace at `root`, in which nothing of `store` is captured."""
        refuse_store(root)
        places = [str(self.folder), state_folder(), *map(str, store.places)]
        own = OwnPlaces(places)
        return Workspace(
            root, self.blobs, self.catalogue, self.folder, own=own, progress=progress,
            url=store.url,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of it; the last to do so closes the files."""
        with _lock:
            self._users -= 1
            if self._users:
                return
            _open.pop(self._place, None)
            self.catalogue.close()
            self.blobs.close()
            if self._goes_with == os.getpid():
                import shutil

                shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def opened(store: Store) -> Iterator[Depot]:
    """The contents of a store, for as long as the block lasts."""
    depot = Depot.of(store)
    try:
        yield depot
    finally:
        depot.close()


def is_shared(store: Store) -> bool:
    """Whether contents of a store are where other machines have them, too."""
    store = unwrapped(store)
    return store.url.startswith("postgresql:") and not store.contents_url.startswith("sqlite:")


def _blobs_of(store: Store, folder: Path, url: str) -> Blobs:
    """The contents of a store, opened."""
    if not is_shared(store):
        return open_blobs(url or f"sqlite:///{folder}/blobs.db")
    from ..stores.postgres import PostgresStore
    from .contents.shared import open_shared

    if not isinstance(store, PostgresStore):
        raise Unsupported(f"the contents of {store.url} cannot be opened: it is no store of ours")
    return open_shared(store.link.address, store.scope, url, folder)


def has_contents(store: Store) -> bool:
    """Whether a store may have contents: where it has none, none are made."""
    if is_shared(store):
        return True
    folder = known_folder(store)
    if folder is None:
        from ..stores.memory import MemoryStore

        return isinstance(unwrapped(store), MemoryStore)
    return (folder / "blobs.db").exists()


def _after_fork() -> None:
    # Whatever a thread of the parent was about to open or close, the depots listed can be used.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _flush(place: tuple[str, str]) -> None:
    """Sync the contents of an open depot; a closed one was synced then."""
    with _lock:
        depot = _open.get(place)
        if depot is not None:
            depot.blobs.flush()


def _folder_of(store: Store) -> tuple[Path, int | None]:
    """The folder for a store's files; if it is to go with a process, that one's number."""
    store = unwrapped(store)
    if store.contents is not None:
        return Path(store.contents), None
    # A hook pays for every import, and its store is in files.
    import tempfile

    from ..stores.memory import MemoryStore

    if not isinstance(store, MemoryStore):
        store.contents = folder_for(_kept_name(store, make=True))
        return store.contents, None
    with _lock:
        known = _temporary.get(store)
        if known is None or not os.path.isdir(known[0]):
            known = _temporary[store] = tempfile.mkdtemp(prefix="backtrail-"), os.getpid()
    return Path(known[0]), known[1]


def known_folder(store: Store) -> Path | None:
    """The folder for a store's files, if it is sure to outlive the process; none is made."""
    store = unwrapped(store)
    if store.contents is not None:
        return Path(store.contents)
    from ..stores.memory import MemoryStore

    name = "" if isinstance(store, MemoryStore) else _kept_name(store, make=False)
    return folder_for(name) if name else None


def folder_for(name: str) -> Path:
    """Where the contents of a store lie that has this name and no place for them."""
    return Path(user_folder("data"), "contents", sha256(name.encode()).hexdigest()[:32])


def _note() -> str:
    """The session that holds the name of a store which has neither an id nor a URL."""
    return f"memory-{sha256(b'contents of files').hexdigest()[:32]}"


def _kept_name(store: Store, *, make: bool) -> str:
    """The name of a store: its id, its URL, else one that is kept in it; empty if there is none."""
    name = store.id or store.url
    if name:
        return name
    if not make:
        try:
            return str(store.find(_note(), "contents").data.get("text", ""))
        except NotFound:
            return ""
    try:
        store.create(SessionInfo(id=_note(), title="Where contents of files are"))
    except AlreadyExists:
        pass
    # The second writer gets the name that is there.
    event = NewEvent("note", {"text": os.urandom(16).hex()}, id="contents")
    return str(store.append(_note(), [event])[0].data["text"])
