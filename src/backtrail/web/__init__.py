"""The viewer: a server on this machine's loopback, and one static page that it serves.

`app` is the whole of it as an ASGI application, `serve` runs it for a person. Sessions are what
agents wrote, so all text is hostile: the server sends data and no HTML, and the page's policy lets
nothing in that could become HTML. Needs the extra `web`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._startup.extras import install_line
from ..errors import Unsupported

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from ..stores.base import Store


def app(store: Store | str | None = None, *, token: str, read_only: bool = False) -> Starlette:
    """The viewer of a store; `token` is what every request for data must bear.

    With `read_only`, nothing is changed: neither the store nor any file.
    """
    check_extra()
    from ..stores.opening import open_store
    from .site import made

    return made(open_store(store) if store is None or isinstance(store, str) else store,
                token=token, read_only=read_only)  # fmt: skip


def check_extra() -> None:
    """`Unsupported`, with the line that installs them, where the needed packages are not there."""
    from importlib.util import find_spec

    lacking = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if lacking:
        raise Unsupported(f"the viewer needs {' and '.join(lacking)}: {install_line('web')}")
