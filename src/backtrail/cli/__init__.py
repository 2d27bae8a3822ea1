"""The command line: parsing and printing only. Everything else is imported where it is used."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `backtrail` and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="backtrail",
        description="Durable, rewindable sessions for AI agents.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.add_parser("demo", help="a tour in a temporary folder, without network or keys")
    verify = verbs.add_parser("verify", help="read everything in a store and tell what is wrong")
    verify.add_argument("store", nargs="?", help="a URL such as file:DIR; else the default store")
    chosen = parser.parse_args(arguments)
    if chosen.version:
        from .. import __version__

        print(__version__)
        return 0
    if chosen.verb == "demo":
        from .. import demo

        demo.main()
        return 0
    if chosen.verb == "verify":
        return _verify(chosen.store)
    parser.print_help()
    return 0


def _verify(url: str | None) -> int:
    """Tell each problem on a line; 6 where there is damage, 1 where the store fails."""
    from ..errors import BacktrailError
    from ..files import verify
    from ..stores.opening import open_store

    try:
        with open_store(url) as store:
            problems = verify(store)
    except BacktrailError as error:
        print(f"backtrail: {error}", file=sys.stderr)
        return 1
    for problem in problems:
        where = "/".join(filter(None, (problem.session_id, problem.log)))
        print(f"{where}: {problem.what}: {problem.detail}")
    print(f"{len(problems)} problems", file=sys.stderr)
    return 6 if problems else 0
