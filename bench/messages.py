"""Messages as an agent makes them, the same for every contender.

A turn is a user message, a few pairs of a tool call and its result, and an answer.
Sizes are log-normal: 2 KB of JSON in the mean, 150 B to 20 KB. Eight of a hundred
messages hold text beyond ASCII. The seed fixes all of it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Message = dict[str, Any]

LEAST, MOST = 150, 20_000
BEYOND_ASCII = 0.08

_TEXT = (
    "the a of to in is return value error file path line test function class import session "
    "store append event index query config build run result user agent tool call retry timeout "
    "request response handler module package version branch commit merge deploy server client "
    "self None True False def async await with for if else not and or except raise assert 0 1 "
    "src/main.py tests/test_api.py README.md pyproject.toml == != -> () [] {} ..."
)
_FOREIGN = ("größer", "naïve", "façade", "日本語", "данные", "résumé", "🚀", "✅", "→", "测试")
_TOOLS = ("read_file", "edit_file", "bash", "grep", "list_dir", "web_search")
_MEDIAN = {"user": 650, "assistant": 900, "tool": 1700}


def generate(count: int, seed: int = 1) -> Iterator[Message]:
    """`count` messages; the first ones are the same whatever `count` is."""
    rng = random.Random(seed)
    words = (*_TEXT.split(), "\n", "\n    ", "\t")
    plain = _corpus(rng, words)
    foreign = _corpus(rng, (*words, *_FOREIGN))
    made = 0
    while True:
        for message in _turn(rng, plain, foreign):
            if made == count:
                return
            made += 1
            yield message


def write(path: Path, count: int, seed: int = 1) -> None:
    """One message a line, for the drivers to read."""
    with path.open("w", encoding="utf-8") as file:
        for message in generate(count, seed):
            file.write(json.dumps(message, ensure_ascii=False, separators=(",", ":")) + "\n")


def _corpus(rng: random.Random, words: tuple[str, ...]) -> str:
    return " ".join(rng.choices(words, k=100_000))


def _turn(rng: random.Random, plain: str, foreign: str) -> Iterator[Message]:
    def text(role: str) -> str:
        corpus = foreign if rng.random() < BEYOND_ASCII else plain
        size = int(rng.lognormvariate(math.log(_MEDIAN[role]), 0.95))
        size = min(max(size, LEAST), MOST - 1_000)
        start = rng.randrange(len(corpus) - size)
        return corpus[start : start + size]

    yield {"role": "user", "content": text("user")}
    for _ in range(rng.randint(2, 6)):
        call = f"call_{rng.getrandbits(96):024x}"
        arguments = {"path": f"src/{rng.randrange(1000)}.py", "text": text("assistant")}
        function = {
            "name": rng.choice(_TOOLS),
            "arguments": json.dumps(arguments, ensure_ascii=False),
        }
        yield {
            "role": "assistant",
            "content": "Next I look at this.",
            "tool_calls": [{"id": call, "type": "function", "function": function}],
        }
        yield {"role": "tool", "tool_call_id": call, "content": text("tool")}
    yield {"role": "assistant", "content": text("assistant")}
