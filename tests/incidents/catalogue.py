"""All scenarios. A function of a topic's module is one; its docstring is the story."""

from __future__ import annotations

import inspect
from types import ModuleType

from . import bounds, crashes, exactness, honesty, neighbours, repositories, talking
from .stage import Scenario

TOPICS: dict[str, ModuleType] = {
    "exact": exactness,
    "others' work": neighbours,
    "the user's git": repositories,
    "bounds": bounds,
    "crashes": crashes,
    "honesty": honesty,
    "the conversation": talking,
}


def _scenarios(topic: str, module: ModuleType) -> list[Scenario]:
    return [
        Scenario(name, topic, inspect.cleandoc(play.__doc__ or ""), play)
        for name, play in vars(module).items()
        if inspect.isfunction(play) and play.__module__ == module.__name__ and name[0] != "_"
    ]


SCENARIOS = [found for topic, module in TOPICS.items() for found in _scenarios(topic, module)]
"""Every incident, topic by topic."""
