"""`demo`: the tour."""

from __future__ import annotations

from argparse import ArgumentParser

from .call import Call
from .verbs import Command, Usage


def _options(parser: ArgumentParser) -> None:
    """The tour has none."""


def _run(call: Call) -> None:
    from .demo import take_tour

    if call.out.as_json:
        raise Usage("the tour is for people: take it without `--json`")
    take_tour(call.out)


COMMANDS = {"demo": Command(_options, _run, "backtrail demo")}
