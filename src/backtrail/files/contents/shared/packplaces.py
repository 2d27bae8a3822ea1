"""Where packs are: in PostgreSQL, or in a bucket that speaks S3's protocol."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from ....errors import Damaged, NotFound, StoreFailed, Unsupported
from ....stores.postgres.link import Execute, Link
from .packindex import New

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, S3Config

_CHUNK = 1 << 20
_LARGE = 256 << 10
_STATEMENT = 4 << 20


class Place(ABC):
    """Puts packs, reads parts of them, removes them."""

    name: str
    """What the index calls it: a pack is looked for where it was put."""

    grace: float = 0.0
    """Seconds for which a pack that nothing needs is kept: a slow reader may be at it."""

    @abstractmethod
    def cut(self, new: Sequence[New], size: int) -> Iterator[list[New]]:
        """Contents as they are put together."""

    @abstractmethod
    def packs(self, new: Sequence[New]) -> bool:
        """Whether these go into a pack, or into the index."""

    @abstractmethod
    def put(self, key: str, number: int, body: bytes) -> None:
        """Put a pack, which is not there yet."""

    @abstractmethod
    def get(self, key: str, at: int, length: int) -> bytes:
        """A part of a pack; `NotFound` if there is no such pack."""

    def get_ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several parts of one pack, each with its place and length."""
        return [self.get(key, at, length) for at, length in spans]

    @abstractmethod
    def remove(self, execute: Execute | None, packs: Sequence[tuple[int, str]]) -> None:
        """Remove packs; those that are gone do not matter."""


def place_at(url: str, link: Link) -> Place:
    """The place that a URL names; without one, the database itself."""
    if not url:
        return InPostgres(link)
    if url.startswith("s3://"):
        return InBucket(url)
    raise Unsupported(f"contents of a PostgreSQL store are there, or at s3://…, not at {url}")


class InPostgres(Place):
    """Rows of up to 1 MB. Contents up to 256 KB are in the index itself."""

    name = "postgresql"

    def __init__(self, link: Link) -> None:
        self._link = link

    def cut(self, new: Sequence[New], size: int) -> Iterator[list[New]]:
        some: list[New] = []
        total = 0
        for one in new:
            length = len(one.packed.content)
            if length > _LARGE:
                yield [one]
                continue
            some.append(one)
            total += length
            if total >= _STATEMENT:
                yield some
                some, total = [], 0
        if some:
            yield some

    def packs(self, new: Sequence[New]) -> bool:
        return len(new) == 1 and len(new[0].packed.content) > _LARGE

    def put(self, key: str, number: int, body: bytes) -> None:
        view = memoryview(body)
        for first in range(0, len(body), _STATEMENT):
            at = range(first, min(first + _STATEMENT, len(body)), _CHUNK)
            pieces = [place // _CHUNK for place in at]
            parts = [bytes(view[place : place + _CHUNK]) for place in at]

            def store(execute: Execute, pieces: Any = pieces, parts: Any = parts) -> None:
                execute(_PUT, (number, pieces, parts))

            self._link.read(store)

    def get(self, key: str, at: int, length: int) -> bytes:
        query = (
            "SELECT c.content FROM backtrail.packs p JOIN backtrail.chunks c ON c.pack = p.n "
            "WHERE p.key = %s ORDER BY c.piece"
        )
        rows = self._link.read(lambda execute: execute.all(query, (key,)))
        if not rows:
            raise NotFound(f"there is no pack `{key}`")
        return b"".join(content for (content,) in rows)[at : at + length]

    def remove(self, execute: Execute | None, packs: Sequence[tuple[int, str]]) -> None:
        query = "DELETE FROM backtrail.chunks WHERE pack = ANY(%s)"
        numbers = [number for number, _ in packs]
        if execute is not None:
            execute(query, (numbers,))
        else:
            self._link.read(lambda execute: execute(query, (numbers,)))


_PUT = (
    "INSERT INTO backtrail.chunks(pack, piece, content) SELECT %s, u.piece, u.content "
    "FROM unnest(%s::int[], %s::bytea[]) AS u(piece, content) ON CONFLICT (pack, piece) DO NOTHING"
)


class InBucket(Place):
    """One object a pack, put once under a random name."""

    grace = 24 * 3600.0

    def __init__(self, url: str) -> None:
        try:
            from obstore.store import from_url
        except ImportError as error:
            from ...._startup.extras import install_line

            raise Unsupported(f"S3 needs the package `obstore`: {install_line('s3')}") from error
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self.name = f"s3://{bucket}/{prefix.strip('/')}".rstrip("/")
        self._prefix = "packs"
        try:
            self._store: ObjectStore = from_url(
                self.name, config=cast("S3Config", _config()), client_options=_client()
            )
        except Exception as error:
            raise self._failed(error, "open") from error

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key[:2]}/{key}"

    def cut(self, new: Sequence[New], size: int) -> Iterator[list[New]]:
        # Evenly: a rest by itself would be a small object.
        total = sum(len(one.packed.content) for one in new)
        target = total / max(1, -(-total * 3 // (size * 4)))
        some: list[New] = []
        length = 0
        for one in new:
            some.append(one)
            length += len(one.packed.content)
            if length >= target:
                yield some
                some, length = [], 0
        if some:
            yield some

    def packs(self, new: Sequence[New]) -> bool:
        return True

    def put(self, key: str, number: int, body: bytes) -> None:
        _check_process()
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            # Never in parts: a pack is there as a whole, or it is not.
            obstore.put(self._store, self._path(key), body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            # The first attempt of a request that was repeated.
            return
        except Exception as error:
            raise self._failed(error, "write to") from error

    def get(self, key: str, at: int, length: int) -> bytes:
        return self.get_ranges(key, [(at, length)])[0]

    def get_ranges(self, key: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        _check_process()
        import obstore

        # A range of nothing is an error there.
        wanted = [(at, length) for at, length in spans if length]
        try:
            found = iter(
                obstore.get_ranges(
                    self._store,
                    self._path(key),
                    starts=[at for at, _ in wanted],
                    lengths=[length for _, length in wanted],
                )
                if wanted
                else []
            )
            parts = [bytes(next(found)) if length else b"" for _, length in spans]
        except FileNotFoundError as error:
            raise NotFound(f"there is no pack `{key}` in {self.name}") from error
        except Exception as error:
            raise self._failed(error, "read from") from error
        for part, (_, length) in zip(parts, spans, strict=True):
            if len(part) != length:
                raise Damaged(f"the pack `{key}` in {self.name} is shorter than it was")
        return parts

    def remove(self, execute: Execute | None, packs: Sequence[tuple[int, str]]) -> None:
        _check_process()
        import obstore

        for _, key in packs:
            try:
                obstore.delete(self._store, self._path(key))
            except FileNotFoundError:
                continue
            except Exception as error:
                raise self._failed(error, "delete from") from error

    def _failed(self, error: Exception, what: str) -> StoreFailed:
        """The error of a bucket: which, why, what to do; no key is in it."""
        text = " ".join(str(error).split())
        advice = next((then for sign, then in _ADVICE if sign in text), "")
        return StoreFailed(f"cannot {what} {self.name}{advice or ': ' + text[:300]}")


_process: list[int] = []


def _check_process() -> None:
    """Raise in a forked child whose parent used a bucket: the threads for that are not there."""
    if not _process:
        _process.append(os.getpid())
    if _process[0] != os.getpid():
        raise Unsupported(
            "a process cannot use S3 if the one that it was forked from did: start it anew "
            "(multiprocessing with `spawn`), or fork before the first use"
        )


_ADVICE = (
    ("NoSuchBucket", ": there is no such bucket: make it first, or name another"),
    ("PermanentRedirect", ": the bucket is in another region: set AWS_REGION to that one"),
    ("AuthorizationHeaderMalformed", ": the bucket is in another region: set AWS_REGION to it"),
    ("IllegalLocationConstraint", ": the bucket is in another region: set AWS_REGION to it"),
    ("redirect", ": the bucket is in another region: set AWS_REGION to that one"),
    ("InvalidAccessKeyId", ": the key is not known there: check AWS_ACCESS_KEY_ID"),
    ("SignatureDoesNotMatch", ": the secret is wrong: check AWS_SECRET_ACCESS_KEY"),
    ("AccessDenied", ": it is denied to this key: it needs to get, put and delete objects there"),
    ("403", ": it is denied to this key: it needs to get, put and delete objects there"),
    ("Missing region", ": set AWS_REGION to the region of the bucket"),
    ("instance metadata", ": no key was given: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ("169.254.169.254", ": no key was given: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ("error sending request", ": it cannot be reached: check AWS_ENDPOINT_URL and the network"),
    ("Connection refused", ": it cannot be reached: check AWS_ENDPOINT_URL and the network"),
)


def _config() -> dict[str, Any]:
    """What the environment says under the names that other programs use."""
    config: dict[str, Any] = {}
    names = {
        "access_key_id": ("AWS_ACCESS_KEY_ID",),
        "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    }
    for name, variables in names.items():
        found = next((os.environ[one] for one in variables if os.environ.get(one)), None)
        if found:
            config[name] = found
    return config


def _client() -> ClientConfig:
    endpoint = str(_config().get("endpoint", ""))
    return {"allow_http": True} if endpoint.startswith("http://") else {}
