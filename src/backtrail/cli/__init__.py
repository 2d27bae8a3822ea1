"""The command line: parsing and printing only.

    verbs.py     the table of verbs: which module has which
    call.py      one run of a verb: its arguments, store, sessions and points by name
    output.py    what people and scripts see; the one place that writes to the terminal
    …            one module a verb, or a family of verbs

A hook pays for every import, so only the module of the verb that was called is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `backtrail` and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["hook"]:
        # Here, since the verb `gc` is a module of this package.
        import gc

        # Over before garbage matters; looking for it takes a tenth of the time.
        gc.disable()
        from .hook import endpoint

        return endpoint(given[1:])
    from .program import run

    return run(given)
