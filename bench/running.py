"""Contenders in processes of their own, shuffled in each round, and what they measured."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .environments import CACHE, ROOT, Say, environment, interpreter

Kind = Literal["ours", "peer", "limit"]
Job = dict[str, Any]

NOTHING, CRASH, POWER = "nothing", "process crash", "power loss"
"""What an acknowledged append survives."""

_PEER_OF = {
    "peer_openai": "openai",
    "peer_strands": "strands",
    "peer_adk": "adk",
    "peer_langgraph": "langgraph",
    "peer_claude": "claude",
}


@dataclass(frozen=True)
class Contender:
    """One way to do what a part measures: a driver and the job it gets."""

    name: str
    kind: Kind
    driver: str
    job: Job
    survives: str = ""
    dataset: Job | None = None
    """The job that prepares what this one reads; prepared once a run."""
    slow: bool = False
    """One round is enough: it is far from being the best."""
    starts: str | None = None
    """The peer whose Python the job starts by itself."""

    @property
    def peer(self) -> str | None:
        """Whose environment the driver runs in; None is our own."""
        return _PEER_OF.get(self.driver)


@dataclass
class Result:
    """The numbers of a contender, one set for each round, or why there are none."""

    contender: Contender
    rounds: list[dict[str, float]] = field(default_factory=list)
    absent: str = ""
    failed: str = ""

    def values(self, metric: str) -> list[float]:
        return [numbers[metric] for numbers in self.rounds if metric in numbers]

    def median(self, metric: str) -> float | None:
        values = self.values(metric)
        return statistics.median(values) if values else None


class Runner:
    """Runs jobs, in one folder of data that is on the disk of the repository.

    Nothing is removed before the end: on ext4, making files is up to ten times slower for a while
    after a tree was removed.
    """

    def __init__(self, data: Path, rounds: int, say: Say, seed: int = 1) -> None:
        self.data = data
        self.rounds = rounds
        self.say = say
        self._rng = random.Random(seed)
        self._datasets: dict[str, Path] = {}
        self._made = 0

    def run(self, part: str, contenders: Sequence[Contender]) -> list[Result]:
        """All contenders in every round, in another order each time."""
        results = {contender.name: Result(contender) for contender in contenders}
        for contender in contenders:
            if contender.dataset is not None:
                self._prepare(contender, results[contender.name])
        for number in range(self.rounds):
            for contender in self._rng.sample(contenders, len(contenders)):
                result = results[contender.name]
                if result.absent or result.failed or (contender.slow and number):
                    continue
                start = time.monotonic()
                self._measure(contender, result)
                spent = time.monotonic() - start
                state = result.failed or result.absent or f"{spent:.1f} s"
                self.say(f"{part} {number + 1}/{self.rounds} {contender.name}: {state}")
        return list(results.values())

    def ask(self, contender: Contender) -> dict[str, Any]:
        """The answer to one job, outside any part."""
        result = Result(contender)
        self._measure(contender, result)
        return result.rounds[0] if result.rounds else {}

    def _prepare(self, contender: Contender, result: Result) -> None:
        key = json.dumps([contender.driver, contender.dataset], sort_keys=True)
        if key not in self._datasets:
            self.say(f"preparing {contender.name}")
            self._datasets[key] = self._folder()
            self._do(contender, contender.dataset or {}, self._datasets[key], result)

    def _measure(self, contender: Contender, result: Result) -> None:
        key = json.dumps([contender.driver, contender.dataset], sort_keys=True)
        if contender.dataset is not None:
            folder = self._datasets[key]
        else:
            folder = self._folder()
        numbers = self._do(contender, contender.job, folder, result)
        if numbers is not None:
            result.rounds.append(numbers)

    def _do(
        self, contender: Contender, job: Job, folder: Path, result: Result
    ) -> dict[str, float] | None:
        # What the one before has left to write would slow this one.
        os.sync()
        full = {
            **job,
            "folder": str(folder),
            "messages": str(self.data / "messages.jsonl"),
            "projects": str(self.data / "projects"),
            "corpus": str(CACHE / "envs"),
            "data": str(self.data),
        }
        script = ROOT / "bench" / "drivers" / f"{contender.driver}.py"
        done = subprocess.run(
            [interpreter(contender.peer), script],
            input=json.dumps(full),
            env=environment(folder),
            cwd=self.data,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            result.failed = lines[-1]
            return None
        numbers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if "absent" in numbers:
            result.absent = numbers["absent"]
            return None
        return numbers

    def _folder(self) -> Path:
        self._made += 1
        folder = self.data / f"run-{self._made}"
        folder.mkdir()
        return folder
