"""Checkpoints that go: what is left keeps all that it takes from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...events import NewEvent
from .building import restate
from .codec import Codec
from .deltas import DROPPED
from .line import Line


def needed(line: Line, found: Mapping[str, int], codec: Codec) -> set[str]:
    """The newest checkpoint, and those whose writes make up its delta channels."""
    keep: set[str] = set()
    id = line.top if line.top in found else max(found, default=None)
    while id is not None and id in found:
        keep.add(id)
        whole = line.whole(found[id])
        counters = codec.decode(whole.metadata).get("counters_since_delta_snapshot")
        have = whole.values.keys() | whole.lists.keys()
        id = whole.parent if counters and not counters.keys() <= have else None
    return keep


def remove(line: Line, found: Mapping[str, int], gone: Sequence[str]) -> None:
    """Drop checkpoints: first state again what others take from them, then free them."""
    wholes = [line.whole(seq) for id, seq in found.items() if id not in set(gone)]
    used: set[int] = set()
    for whole in wholes:
        used |= {*whole.early, *whole.spoken}
        used |= {ref[0] for refs in whole.lists.values() for ref in refs}
        if whole.depth:
            restate(line, whole)
    drop = NewEvent(DROPPED, {"checkpoints": [*gone]})
    line.append(lambda: [drop])
    line.free(used)
