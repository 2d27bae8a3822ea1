"""The store contract on every store of the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests import postgres

from backtrail.events import Event
from backtrail.stores import Store, open_store
from backtrail.stores.buffered import Buffered
from backtrail.stores.memory import MemoryStore, NullStore
from backtrail.stores.wrapper import Wrapper
from backtrail.testing import StoreContract


class TestMemory(StoreContract):
    """In this process only."""

    persistent = False
    shared = False

    def make(self, place: Path) -> Store:
        return MemoryStore()


class TestNull(StoreContract):
    """In this process only, and forgotten."""

    persistent = False
    shared = False

    def make(self, place: Path) -> Store:
        return NullStore()


class TestNamedMemory(StoreContract):
    """Opened again by its name, in this process."""

    shared = False

    def make(self, place: Path) -> Store:
        return open_store(f"memory:{place}")


class TestWrapper(StoreContract):
    """A wrapper that changes nothing."""

    persistent = False
    shared = False

    def make(self, place: Path) -> Store:
        return Wrapper(MemoryStore())


class TestSQLite(StoreContract):
    """One database."""

    def make(self, place: Path) -> Store:
        return open_store(f"sqlite:///{place}/x.db")


class TestSQLiteSynced(StoreContract):
    """One database, each append synced."""

    def make(self, place: Path) -> Store:
        return open_store(f"sqlite:///{place}/x.db", durability="synced")


class TestJSONL(StoreContract):
    """Folders of lines."""

    def make(self, place: Path) -> Store:
        return open_store(f"file:{place}/store")


class TestJSONLSynced(StoreContract):
    """Folders of lines, each append synced."""

    def make(self, place: Path) -> Store:
        return open_store(f"file:{place}/store", durability="synced")


class BufferedContract(StoreContract):
    """A buffer assigns numbers later, and raises errors of the store behind it later."""

    def settle(
        self, store: Store, session_id: str, log: str, events: Sequence[Event]
    ) -> list[Event]:
        store.flush()
        stored = {event.id: event for event in store.read(session_id, log=log)}
        return [stored[event.id] for event in events]


class TestBufferedMemory(BufferedContract):
    """A buffer in front of memory."""

    persistent = False
    shared = False

    def make(self, place: Path) -> Store:
        return Buffered(MemoryStore(), interval=0.01, pending=4)


class TestBufferedJSONL(BufferedContract):
    """A buffer in front of folders of lines."""

    def make(self, place: Path) -> Store:
        return Buffered(open_store(f"file:{place}/store"), interval=0.01)


class TestPostgres(StoreContract):
    """A schema of its own on a server."""

    def make(self, place: Path) -> Store:
        return open_store(postgres.url_for(place))
