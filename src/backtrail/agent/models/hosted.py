"""Models behind an official client, which `openai` and `anthropic` build alike.

The client sends, reads server-sent events and knows the errors. What a provider spells in
its own way is the body of a request and the `Assembly` of events into a reply.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing, closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import import_module
from importlib.util import find_spec
from json import JSONDecodeError
from typing import Any

from ..._startup.extras import install_line
from ...errors import Closed, Unsupported
from ...events import Json
from ...stores.disk import forks
from .base import Delta, Model, ModelFailed, Reply, Request


class Assembly(ABC):
    """A reply while its events come in."""

    complete = False
    """Whether the model has said why it stopped; what may follow is only a count of tokens."""

    @abstractmethod
    def take(self, event: Mapping[str, Json]) -> list[Delta]:
        """Add one event; what it says to people."""

    @abstractmethod
    def reply(self) -> Reply:
        """The reply, once it is complete."""


class HostedModel(Model):
    """A model that is asked through an official client, made when it is first needed.

    Importing a client takes most of a second, so a session that never asks does not pay.
    """

    package: str
    """The client's package, which is also the name of our extra."""

    def __init__(
        self,
        provider: str,
        name: str,
        *,
        base_url: str | None,
        api_key: str | None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Json] | None = None,
    ) -> None:
        if find_spec(self.package) is None:
            raise Unsupported(
                f"the `{self.package}` client is not installed: {install_line(self.package)}"
            )
        self.provider = provider
        self.name = name
        self.extra = dict(extra or {})
        self._options = {
            "base_url": base_url,
            "api_key": api_key,
            "default_headers": headers,
            "max_retries": 0,
            **({} if timeout is None else {"timeout": timeout}),
        }
        self._clients: dict[bool, Any] = {}
        self._lock = threading.Lock()
        self._closed = False
        forks.register(self)

    def after_fork(self) -> None:
        """Make clients anew: the parent goes on with its connections."""
        self._lock = threading.Lock()
        self._clients = {}

    @abstractmethod
    def _make(self, sdk: Any, is_async: bool) -> Any:
        """A new client."""

    @abstractmethod
    def _body(self, request: Request) -> dict[str, Json]:
        """The request as the provider spells it."""

    @abstractmethod
    def _create(self, client: Any) -> Any:
        """The client's function that sends a request."""

    def _mend(self, body: dict[str, Json], failure: Exception, error: Exception) -> dict[str, Json]:
        """A body that does without what the provider refused; raises where there is none."""
        raise failure from (None if failure is error else error)

    @abstractmethod
    def _assembly(self, request: Request) -> Assembly:
        """What events are added to."""

    def stream(self, request: Request) -> Iterator[Delta | Reply]:
        assembly = self._assembly(request)
        with closing(self._events(self._body(request), assembly)) as events:
            for event in events:
                yield from assembly.take(event)
        yield self._whole(assembly)

    async def astream(self, request: Request) -> AsyncIterator[Delta | Reply]:
        assembly = self._assembly(request)
        async with aclosing(self._aevents(self._body(request), assembly)) as events:
            async for event in events:
                for delta in assembly.take(event):
                    yield delta
        yield self._whole(assembly)

    def _events(
        self, body: dict[str, Json], assembly: Assembly
    ) -> Generator[Mapping[str, Json], None, None]:
        # The consumer's exceptions must not pass for the server's, so only reading is guarded.
        response: Any = None
        try:
            create = self._create(self._client(is_async=False))
            while response is None:
                try:
                    response = create(**body)
                except Exception as error:
                    body = self._mend(body, self._failure(error), error)
            events = iter(response)
            while True:
                try:
                    event = next(events)
                except StopIteration:
                    return
                except Exception as error:
                    if assembly.complete:
                        return
                    raise self._failure(error) from error
                yield event.model_dump(exclude_unset=True, warnings=False)
        finally:
            if response is not None:
                response.close()

    async def _aevents(
        self, body: dict[str, Json], assembly: Assembly
    ) -> AsyncGenerator[Mapping[str, Json], None]:
        response: Any = None
        try:
            create = self._create(self._client(is_async=True))
            while response is None:
                try:
                    response = await create(**body)
                except Exception as error:
                    body = self._mend(body, self._failure(error), error)
            events = aiter(response)
            while True:
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
                except Exception as error:
                    if assembly.complete:
                        return
                    raise self._failure(error) from error
                yield event.model_dump(exclude_unset=True, warnings=False)
        finally:
            if response is not None:
                await response.close()

    def _whole(self, assembly: Assembly) -> Reply:
        if not assembly.complete:
            raise ModelFailed(
                f"`{self.provider}:{self.name}` ended its stream in the middle of an answer",
                transient=True,
            )
        return assembly.reply()

    # --- clients -------------------------------------------------------------------------

    def _client(self, *, is_async: bool) -> Any:
        with self._lock:
            if self._closed:
                raise Closed(f"the model `{self.provider}:{self.name}` is closed")
            if is_async not in self._clients:
                sdk = import_module(self.package)
                self._clients[is_async] = self._make(sdk, is_async)
            return self._clients[is_async]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client = self._clients.pop(False, None)
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        self.close()
        client = self._clients.pop(True, None)
        if client is not None:
            await client.close()

    # --- errors --------------------------------------------------------------------------

    def _failure(self, error: Exception) -> Exception:
        """What went wrong as a `ModelFailed`; the error itself if it is none of the provider's."""
        sdk = import_module(self.package)
        name = f"`{self.provider}:{self.name}`"
        if isinstance(error, sdk.APIConnectionError) or _is_transport(error):
            why = f"{error.__cause__ or error}" or type(error).__name__
            return ModelFailed(f"lost the connection to {name}: {why}", transient=True)
        if isinstance(error, sdk.APIError):
            return _refusal(name, error)
        if isinstance(error, UnicodeDecodeError | JSONDecodeError):
            return ModelFailed(f"{name} sent what is not JSON: {error}", transient=True)
        return error


def _is_transport(error: Exception) -> bool:
    """Whether the HTTP library below the client raised this; clients differ in which it is."""
    return type(error).__module__.partition(".")[0].startswith(("httpx", "httpcore"))


_STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def _refusal(name: str, error: Any) -> ModelFailed:
    """An answer that is an error, at once or in the middle of a stream."""
    body = error.body if isinstance(error.body, Mapping) else {}
    inner = body.get("error", body)
    inner = inner if isinstance(inner, Mapping) else {"message": inner}
    kind, code = inner.get("type"), inner.get("code")
    status = _status(error, kind, code)
    said = inner.get("message") or str(error)
    # Money that is used up does not come back by waiting.
    broke = "insufficient_quota" in (kind, code)
    transient = not broke and (status is None or status in (408, 409, 429) or status >= 500)
    response = getattr(error, "response", None)
    wait = _retry_after(response.headers) if response is not None else None
    what = f"answered {status}" if status else "broke off"
    return ModelFailed(
        f"{name} {what}: {said}", transient=transient, status=status, retry_after=wait
    )


def _status(error: Any, kind: Json, code: Json) -> int | None:
    """The status; an error within a stream came with 200 and names its kind instead."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        return status
    if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()):
        return int(code)
    return _STATUS_OF.get(kind) if isinstance(kind, str) else None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from a header in milliseconds, seconds or as a date."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) / unit)
        except ValueError:
            continue
    try:
        when = parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
