"""`store`: upkeep of a store that many machines share."""

from __future__ import annotations

from argparse import ArgumentParser

from .allow import refuse_agents
from .call import Call
from .verbs import Command, Usage


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=["upgrade"], help="make its tables, or change them")
    parser.add_argument("url", nargs="?", metavar="STORE", help="the same as --store")


def _run(call: Call) -> None:
    from ..stores.opening import masked

    if call.arguments.url is not None:
        call.arguments.store = call.arguments.url
    url = call.settings.store
    if url is None or url.partition(":")[0] not in ("postgresql", "postgres"):
        raise Usage(
            "a store on this machine is brought up to date when it is opened; "
            "name one by postgresql://USER@HOST/DATABASE"
        )
    refuse_agents(call, "store upgrade")
    from ..stores.postgres import tables
    from ..stores.postgres.address import parse
    from ..stores.postgres.link import Link

    link = Link(parse(url))
    try:
        done = tables.upgrade(link)
    finally:
        link.close()
    if call.out.as_json:
        call.out.data({"store": masked(url), "before": done.before, "after": done.after})
    elif done.before == done.after:
        call.out.line(f"{masked(url)} is up to date: version {done.after}")
    else:
        was = f"version {done.before}" if done.before else "nothing"
        call.out.line(f"{masked(url)}: from {was} to version {done.after}")


COMMANDS = {
    "store": Command(
        _options,
        _run,
        """
        backtrail store upgrade postgresql://owner@db.example.com/app
        """,
        about="Makes the tables of a PostgreSQL store, or brings them up to date, with a role\n"
        "that may do so. Other roles then need no right to change tables.",
    )
}
