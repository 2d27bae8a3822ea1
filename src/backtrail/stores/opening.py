"""From a URL to a store."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .._startup.folders import user_folder
from .._startup.frozen import NamedTuple
from .._startup.loading import installed
from ..errors import InvalidData, NotFound, Unsupported
from ..events import check_text
from .base import Durability, OnDamage, Store


class Options(NamedTuple):
    """The keywords of `open_store`, as a scheme's opener gets them."""

    scope: str = ""
    durability: Durability = "written"
    on_damage: OnDamage | None = None
    create: bool = True

    def check(self, path: str) -> None:
        """Raise `NotFound` if a store at `path` would be a new one, and may not be."""
        if not self.create and not os.path.exists(path):
            raise NotFound(f"there is no store at {path}")


Opener = Callable[[str, Options], Store]
"""What an entry point of `backtrail.stores` is: it takes what stands behind `scheme:`."""

_URL = re.compile(r"[A-Za-z][\w+.-]*://")

# Asking for entry points costs more than opening a store, so our own need no asking.
_OWN = {
    "memory": "memory:open_memory",
    "null": "memory:open_null",
    "file": "jsonl:open_jsonl",
    "sqlite": "sqlite:open_sqlite",
    "postgresql": "postgres:open_postgres",
    "postgres": "postgres:open_postgres",
}


def open_store(
    url: str | None = None,
    *,
    scope: str = "",
    blobs: str | None = None,
    durability: Durability = "written",
    retention: str | None = None,
    on_damage: OnDamage | None = None,
    create: bool = True,
) -> Store:
    """Open the store at `url`, making it if it is not there; `NotFound` without `create`.

    Without a URL: `BACKTRAIL_STORE` in the environment, else a SQLite database in the
    user's data folder. `blobs` is a folder for the contents of files, which several stores
    may share, or a URL (`SCHEME://…`) of the entry-point group `backtrail.blobs`; by default each
    has a folder of its own. `on_damage` is called for each damaged place.

    With a `retention` such as `30d` (or `12h`, `8w`), sessions not updated for that long
    are removed when the store is opened, at most once a day. Off by default.
    """
    if retention is not None:
        from .retention import period, sweep_daily

        period(retention)
    if durability not in ("written", "synced"):
        raise InvalidData(f"durability is 'written' or 'synced', not {durability!r}")
    if scope:
        check_text(scope, "a scope", 128)
    if url is None:
        url = os.environ.get("BACKTRAIL_STORE") or default_url()
    if not isinstance(url, str):
        raise InvalidData(
            f"a store is named by a URL, not {url!r}: use 'file:DIR', 'sqlite:///PATH' or 'memory:'"
        )
    scheme, colon, address = url.partition(":")
    if not colon or not scheme.isidentifier():
        raise Unsupported(
            f"`{url}` is not the URL of a store: use file:DIR, sqlite:///PATH or memory:"
        )
    store = _opener(scheme)(address, Options(scope, durability, on_damage, create))
    if blobs is not None and _URL.match(blobs):
        store.contents_url = blobs
    elif blobs is not None:
        store.contents = Path(os.path.realpath(os.path.expanduser(blobs)))
    if retention is not None:
        try:
            sweep_daily(store, retention)
        except BaseException:
            store.close()
            raise
    return store


@contextmanager
def store_at(store: Store | str, *, create: bool = True) -> Iterator[Store]:
    """A store as it is, or the one at a URL, which is closed again at the end."""
    if isinstance(store, Store):
        yield store
        return
    if store is None:
        raise InvalidData("name a store: a Store, or a URL such as 'sqlite:///PATH'")
    with open_store(store, create=create) as opened:
        yield opened


_REMOTE = ("postgresql", "postgres")
_PASSWORD = re.compile(r"(?<=[?&])((?:ssl)?password)=[^&#]*")
_USER = re.compile(r"^([\w+.-]+://[^/@?#:]*):[^/@?#]*@")


def masked(url: str) -> str:
    """A URL of a store as it may be shown: without a password."""
    return _USER.sub(r"\1:***@", _PASSWORD.sub(r"\1=***", url))


def refuse_remote(url: str | None, what: str) -> None:
    """Raise `Unsupported` if a store is across a network, for what an agent has to wait for."""
    if url is None:
        url = os.environ.get("BACKTRAIL_STORE") or ""
    if url.partition(":")[0] in _REMOTE:
        raise Unsupported(
            f"{what} a local store, and `{masked(url)}` is across a network, which an agent must "
            "not wait for: name a local one (`BACKTRAIL_STORE=sqlite:///PATH`, or the setting "
            "`store`), and copy its sessions"
        )


def default_url() -> str:
    """The store used when none is named: a database in the user's data folder."""
    return f"sqlite:///{user_folder('data')}/backtrail.db"


_openers: dict[str, Opener] = {}


def _opener(scheme: str) -> Opener:
    if scheme in _openers:
        return _openers[scheme]
    own = _OWN.get(scheme)
    if own is not None:
        module, _, name = own.partition(":")
        opener: Opener = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        _openers[scheme] = opener
        return opener
    found: Opener | None = installed("backtrail.stores", scheme)
    if found is not None:
        return found
    known = ", ".join(f"{name}:" for name in sorted(_OWN))
    raise Unsupported(f"no store for `{scheme}:` is installed; this version has {known}")
