"""A store around a store: buffering, broadcasting and redaction are wrappers, not flags."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from .base import Store

Verb = TypeVar("Verb", bound=Callable[..., Any])


def handed_on(verb: Verb) -> Verb:
    """The verb of the inner store, in place of a wrapper's own."""
    name = verb.__name__

    # Without what the verb has besides: it may be abstract.
    @wraps(verb, updated=())
    def call(self: Wrapper, *given: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*given, **named)

    return cast(Verb, call)


class Wrapper(Store):
    """Hands every call to `inner`; override what should differ.

    Closing the wrapper closes the inner store.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._describe(inner)

    def _describe(self, inner: Store) -> None:
        """Say of itself what holds for the store behind."""
        self.url = inner.url
        self.scope = inner.scope
        self.environment = inner.environment
        self.contents = inner.contents
        self.durability = inner.durability
        self.places = inner.places

    @property
    def wrapped(self) -> Store:
        """The store behind, as it is: asking waits for nothing and writes nothing."""
        return self.inner

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def former_name(self) -> str:
        return self.inner.former_name

    log_file = handed_on(Store.log_file)
    create = handed_on(Store.create)
    adopt = handed_on(Store.adopt)
    info = handed_on(Store.info)
    update = handed_on(Store.update)
    sessions = handed_on(Store.sessions)
    kept = handed_on(Store.kept)
    delete = handed_on(Store.delete)
    append = handed_on(Store.append)
    append_many = handed_on(Store.append_many)
    read = handed_on(Store.read)
    purge = handed_on(Store.purge)
    logs = handed_on(Store.logs)
    lease = handed_on(Store.lease)
    flush = handed_on(Store.flush)
    close = handed_on(Store.close)

    # The derived verbs go to the inner store too, which may know a faster way.
    record = handed_on(Store.record)
    outline = handed_on(Store.outline)
    tally = handed_on(Store.tally)
    latest = handed_on(Store.latest)
    find = handed_on(Store.find)
    locate = handed_on(Store.locate)
    checkpoint = handed_on(Store.checkpoint)
    search = handed_on(Store.search)
    memory = handed_on(Store.memory)
    verify = handed_on(Store.verify)
    seal = handed_on(Store.seal)


def unwrapped(store: Store) -> Store:
    """The store itself, behind all that is around it."""
    while isinstance(store, Wrapper):
        store = store.wrapped
    return store


def store_name(store: Store) -> str:
    """The name under which sessions of a store rely on contents: by its id, else its URL."""
    id = unwrapped(store).id or store.url
    return f"{id}#{store.scope}" if store.scope else id


def store_names(store: Store) -> tuple[str, ...]:
    """The same, and the name that it had before it had an id, if it did."""
    former = unwrapped(store).former_name
    if not former:
        return (store_name(store),)
    return store_name(store), f"{former}#{store.scope}" if store.scope else former
