"""The URL of a PostgreSQL store: what is libpq's, what is ours, and what must never be shown."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from ..._startup.frozen import NamedTuple
from ...errors import InvalidData

_SECRET = {"password", "sslpassword", "passfile"}
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
_SIZE = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)

SCHEMA = "backtrail"
"""The schema that a store's tables are in, unless the URL names another."""

POOL = 10
"""How many connections a store opens at most, unless the URL says so."""


class Address(NamedTuple):
    """A URL taken apart. `url` holds no password; `conninfo` is what libpq gets."""

    url: str
    conninfo: str
    schema: str
    pool: int
    listen: str
    password: str

    @property
    def place(self) -> str:
        """The server and the database, for messages."""
        parts = urlsplit(self.url)
        return f"{parts.netloc.rpartition('@')[2] or 'the local server'}{parts.path}"


def parse(url: str) -> Address:
    """Take a URL apart: `postgresql://USER@HOST/DATABASE`.

    Ours are `schema=NAME`, `pool=N` and `listen=HOST:PORT`, which is where the server itself is if
    the host is a pooler. Everything else is libpq's.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("postgresql", "postgres"):
        raise InvalidData("the URL of a PostgreSQL store is postgresql://USER@HOST/DATABASE")
    parts = urlsplit(f"postgresql://{rest}")
    words = parse_qsl(parts.query, keep_blank_values=True)
    own = dict(words)
    schema, pool = own.get("schema", SCHEMA), own.get("pool", str(POOL))
    if not _SCHEMA.fullmatch(schema):
        raise InvalidData(f"`{schema}` is not a schema: use small letters, digits and '_'")
    if not _SIZE.fullmatch(pool):
        raise InvalidData(f"`pool={pool}` is not a number of connections, such as 10")
    theirs = [(name, value) for name, value in words if name not in ("schema", "pool", "listen")]
    listen = own.get("listen", "")
    conninfo = urlunsplit(parts._replace(query=_query(theirs), fragment=""))
    shown = parts._replace(netloc=_unspoken(parts.netloc), fragment="")
    kept = [(name, value) for name, value in words if name not in _SECRET]
    direct = ""
    if listen:
        user = parts.netloc.rpartition("@")
        direct = urlunsplit(
            parts._replace(netloc=f"{user[0]}{user[1]}{listen}", query=_query(theirs))
        )
    password = own.get("password", unquote(parts.password or ""))
    shown_url = urlunsplit(shown._replace(query=_query(kept)))
    return Address(shown_url, conninfo, schema, int(pool), direct, password)


def _query(words: list[tuple[str, str]]) -> str:
    return urlencode(words, quote_via=quote, safe="/:,")


def _unspoken(netloc: str) -> str:
    """The part of a URL that names user and host, without the password."""
    user, at, host = netloc.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}"
