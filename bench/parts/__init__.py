"""The parts of the benchmark: contenders, columns and goals of each."""

from __future__ import annotations

from .agents import turn_part
from .base import Part, Sizes
from .files import blame_part, file_part, many_part, trees_part
from .growth import growth_part, stores_part
from .hooks import hook_part
from .reading import fork_part, list_part, load_part, search_part, tail_part
from .shared import shared_part
from .starting import start_part
from .writing import append_part, async_part, loop_part, threads_part

PARTS = (
    *("append", "threads", "load", "tail", "list", "fork", "start", "loop", "async"),
    *("trees", "file", "turn", "hook", "many", "growth", "stores", "blame", "search", "shared"),
)


def make(name: str, sizes: Sizes) -> Part:
    """The part of that name, in these sizes."""
    makers = (
        append_part,
        threads_part,
        load_part,
        tail_part,
        list_part,
        fork_part,
        start_part,
        loop_part,
        async_part,
        trees_part,
        file_part,
        turn_part,
        hook_part,
        many_part,
        growth_part,
        stores_part,
        blame_part,
        search_part,
        shared_part,
    )
    return dict(zip(PARTS, makers, strict=True))[name](sizes)


__all__ = ["PARTS", "Part", "Sizes", "make"]
