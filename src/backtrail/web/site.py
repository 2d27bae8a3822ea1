"""The viewer as an ASGI application: the page and its modules, and the data below `/api/`."""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Route

from . import branches, changes, deeds, filetree, hits, home, vitals, windows
from .answers import Asked, Part, endpoint, failure
from .guard import Guard
from .live import stream
from .outline import Outlines

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..stores.base import Store

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

READ: dict[str, Part] = {
    "/api/home": home.home,
    "/api/search": hits.search,
    "/api/health": vitals.health,
    "/api/s/{id}": windows.session,
    "/api/s/{id}/outline": windows.outline,
    "/api/s/{id}/prompts": windows.prompts,
    "/api/s/{id}/turns": windows.turns,
    "/api/s/{id}/events": windows.window,
    "/api/s/{id}/event/{seq:int}": windows.event,
    "/api/s/{id}/diff": changes.changed,
    "/api/s/{id}/folder": filetree.folder,
    "/api/s/{id}/file": filetree.content,
    "/api/s/{id}/versions": filetree.versions,
    "/api/s/{id}/blame": filetree.blame,
    "/api/s/{id}/tree": branches.tree,
    "/api/s/{id}/uncaptured": vitals.uncaptured,
}
"""What can be asked for."""

WRITE: dict[str, Part] = {
    "/api/s/{id}/preview": deeds.preview,
    "/api/s/{id}/differing/preview": deeds.differing,
    "/api/s/{id}/act": deeds.act,
    "/api/s/{id}/fork": deeds.fork,
    "/api/s/{id}/copy": deeds.copy_beside,
    "/api/s/{id}/label": home.label,
}
"""What is sent: a wish, or what changes something."""


def made(store: Store, *, token: str, read_only: bool) -> Starlette:
    """The application."""
    outlines = Outlines()

    def make() -> Asked:
        return Asked(store, outlines, read_only)

    routes = [Route(path, endpoint(part, make), methods=["GET"]) for path, part in READ.items()]
    routes += [Route(path, endpoint(part, make), methods=["POST"]) for path, part in WRITE.items()]
    routes += [
        Route("/api/live", stream(make), methods=["GET"]),
        Route("/api/{rest:path}", _nothing, methods=["GET", "POST"]),
        Route("/static/{name:path}", _static, methods=["GET"]),
        Route("/favicon.ico", _icon, methods=["GET"]),
        Route("/{rest:path}", _page, methods=["GET"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, token=token, read_only=read_only),
            Middleware(GZipMiddleware, minimum_size=800),
        ],
    )


async def _nothing(request: Request) -> Response:
    return failure(404, "not_found", "there is nothing here")


async def _page(request: Request) -> Response:
    """Every screen is this page; it looks at its address itself."""
    return _sent("index.html", request)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in assets():
        return failure(404, "not_found", "there is nothing here")
    return _sent(name, request)


async def _icon(request: Request) -> Response:
    return _sent("icon.svg", request)


def _sent(name: str, request: Request) -> Response:
    plain, packed = assets()[name]
    kind = _TYPES.get(name.rpartition(".")[2], "text/plain; charset=utf-8")
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, media_type=kind, headers={"content-encoding": "gzip"})
    return Response(plain, media_type=kind)


@cache
def assets() -> dict[str, tuple[bytes, bytes]]:
    """The page and all that belongs to it, by name: as they are, and packed."""
    found: dict[str, tuple[bytes, bytes]] = {}
    base = resources.files(__package__) / "static"

    def walk(folder: resources.abc.Traversable, lead: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{lead}{entry.name}/")
            elif entry.name.rpartition(".")[2] in _TYPES:
                plain = entry.read_bytes()
                found[lead + entry.name] = plain, gzip.compress(plain, 9, mtime=0)

    walk(base, "")
    return found
